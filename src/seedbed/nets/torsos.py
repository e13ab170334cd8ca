"""Torsos: from an observation to features ``[N, D]``.

A torso knows nothing of time: N is time and batch in one. Image torsos map images ``[N, H, W, C]``, float32 or uint8
(which stands for 0 … 1), to float32 ``[N, D]``; their ``dtype`` is for convolutions alone. An
:class:`Encoder` puts a whole observation together.
"""

from __future__ import annotations

from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from seedbed.errors import SpecError
from seedbed.nets.convolutions import Conv, Padding, max_pool, scaled
from seedbed.nets.dense import Dense
from seedbed.nets.initializers import RELU_INIT
from seedbed.nets.observations import Entry, Values, entries, numbers
from seedbed.types import Tree, leaves


class MLP(nn.Module):
    """Dense layers of ``sizes``, each with its activation: ``[N, D]`` to ``[N, sizes[-1]]``."""

    sizes: tuple[int, ...] = (64, 64)
    activation: Callable[[jax.Array], jax.Array] = nn.tanh

    @nn.compact
    def __call__(self, features: jax.Array) -> jax.Array:
        """Applies it."""
        for size in self.sizes:
            features = self.activation(Dense(size, RELU_INIT)(features))
        return features


class ConvTorso(nn.Module):
    """Rectified convolutions, then rectified dense layers: ``[N, H, W, C]`` to ``[N, hidden[-1]]``.

    Attributes:
      layers: ``(features, kernel, stride)`` of every convolution.
      padding: padding of all of them.
      hidden: sizes of the dense layers.
      dtype: dtype of the convolutions.
    """

    layers: tuple[tuple[int, int, int], ...]
    padding: Padding
    hidden: tuple[int, ...]
    dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(self, images: jax.Array) -> jax.Array:
        """Applies it."""
        for features, kernel, stride in self.layers:
            images = Conv(features, kernel, stride, self.padding, True, self.dtype, RELU_INIT)(images)
        return _dense(_flattened(images), self.hidden)


def _flattened(images: jax.Array) -> jax.Array:
    """Returns ``[N, H, W, C]`` as float32 ``[N, H * W * C]``: after convolutions of any dtype the rest is float32."""
    return images.reshape(images.shape[0], -1).astype(jnp.float32)


def _dense(flat: jax.Array, sizes: tuple[int, ...]) -> jax.Array:
    """Rectified dense layers; called inside a compact module, which owns their weights."""
    for size in sizes:
        flat = nn.relu(Dense(size, RELU_INIT)(flat))
    return flat


def tiny(hidden: tuple[int, ...] = (128,), dtype: DTypeLike = jnp.float32) -> nn.Module:
    """For images of about 10x10, as in MinAtar (Young and Tian 2019): 16 filters 3x3, dense 128."""
    return ConvTorso(((16, 3, 1),), "VALID", hidden, dtype)


def small(hidden: tuple[int, ...] = (256,), dtype: DTypeLike = jnp.float32) -> nn.Module:
    """The network of DQN 2013 and A3C (Mnih et al. 2013, 2016); good on a CPU."""
    return ConvTorso(((16, 8, 4), (32, 4, 2)), "VALID", hidden, dtype)


def nature(hidden: tuple[int, ...] = (512,), dtype: DTypeLike = jnp.float32) -> nn.Module:
    """The network of DQN 2015 (Mnih et al., Nature): 32, 64, 64 filters, dense 512."""
    return ConvTorso(((32, 8, 4), (64, 4, 2), (64, 3, 1)), "VALID", hidden, dtype)


def shallow(hidden: tuple[int, ...] = (256,), dtype: DTypeLike = jnp.float32) -> nn.Module:
    """The shallow network of IMPALA (Espeholt et al. 2018, figure 3, left): :func:`small` with padding."""
    return ConvTorso(((16, 8, 4), (32, 4, 2)), "SAME", hidden, dtype)


class Pooled(nn.Module):
    """A third of the work of :func:`small`, and quick to learn where little of the image matters.

    The image is max-pooled to half its side, which keeps small and bright objects (an average would fade
    Pong's ball), and is then brought to mean 0 and variance 1, so that objects before the background are
    large and the background small. Without that the same network needs several times the experience in Pong.

    Attributes:
      layers: ``(features, kernel, stride)`` of every convolution.
      hidden: sizes of the dense layers, each with layer normalisation (Ba et al. 2016) before its rectifier.
      dtype: dtype of the convolutions.
    """

    layers: tuple[tuple[int, int, int], ...] = ((16, 4, 2), (16, 4, 2))
    hidden: tuple[int, ...] = (128,)
    dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(self, images: jax.Array) -> jax.Array:
        """Applies it, ``[N, H, W, C]`` to ``[N, hidden[-1]]``."""
        images = _standardized(scaled(max_pool(images, window=2, stride=2)))
        for features, kernel, stride in self.layers:
            images = Conv(features, kernel, stride, "VALID", True, self.dtype, RELU_INIT)(images)
        flat = _flattened(images)
        for size in self.hidden:
            flat = nn.relu(nn.LayerNorm()(Dense(size, RELU_INIT)(flat)))
        return flat


def _standardized(images: jax.Array) -> jax.Array:
    """Each of ``[N, H, W, C]`` with mean 0 and variance 1; an image of one colour becomes 0."""
    axes = (1, 2, 3)
    centred = images - jnp.mean(images, axes, keepdims=True)
    variance = jnp.mean(jnp.square(centred), axes, keepdims=True)
    return centred * jax.lax.rsqrt(variance + 1e-5)  # 1e-5: the square of less than one step of a uint8


class Deep(nn.Module):
    """The deep residual network of IMPALA (Espeholt et al. 2018, figure 3, right).

    Attributes:
      channels: filters of each section; a section halves the image and has ``blocks`` residual blocks.
      blocks: residual blocks in a section, of two convolutions each.
      hidden: sizes of the dense layers.
      dtype: dtype of the convolutions.
    """

    channels: tuple[int, ...] = (16, 32, 32)
    blocks: int = 2
    hidden: tuple[int, ...] = (256,)
    dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(self, images: jax.Array) -> jax.Array:
        """Applies it, ``[N, H, W, C]`` to ``[N, hidden[-1]]``."""
        for channels in self.channels:
            images = max_pool(Conv(channels, 3, dtype=self.dtype)(images), window=3, stride=2)
            for _ in range(self.blocks):
                inner = Conv(channels, 3, rectified=True, dtype=self.dtype)(nn.relu(images))
                images = images + Conv(channels, 3, dtype=self.dtype)(inner)
        return _dense(_flattened(nn.relu(images)), self.hidden)


SMALLEST_FOR_SMALL = 36
"""Side of an image: below it, the kernels of the Atari networks do not fit, whose receptive field this is."""


class Encoder(nn.Module):
    """A whole observation as features: tree of ``[N, *shape]`` to float32 ``[N, D]``.

    Images go through a torso of their own each; choices become one-hot; everything else is flattened; then
    all are concatenated, in sorted key order. :mod:`seedbed.nets.observations` says how each leaf is read.

    Attributes:
      observation: tree of :class:`~seedbed.types.ArraySpec`, the frames already stacked.
      image_torso: makes the torso of an image; None flattens images too.
      vector_torso: makes the module that is applied to everything that was concatenated; None for none.
      small_torso: makes the torso of an image that is too small for :func:`small`; None: the same as all others.
      by_size: whether only large enough leaves go through convolutions, and not all of rank 3.
      rule: rule by which leaves enter; by default as in version 0.1.
    """

    observation: Tree
    image_torso: Callable[[], nn.Module] | None
    vector_torso: Callable[[], nn.Module] | None = None
    small_torso: Callable[[], nn.Module] | None = None
    by_size: bool = False
    rule: str = "bytes"

    @nn.compact
    def __call__(self, observation: Tree) -> jax.Array:
        """Applies it."""
        found = entries(self.observation, self.rule)
        features = [
            self._features(entry, array)
            for (_, entry), (_, array) in zip(found, leaves(observation), strict=True)
        ]
        joined = jnp.concatenate(features, axis=-1)
        return joined if self.vector_torso is None else jnp.asarray(self.vector_torso()(joined))

    def _features(self, entry: Entry, array: jax.Array) -> jax.Array:
        if self.image_torso is None or not self._convolves(entry):
            return _flat(entry, array)
        small = entry.side < SMALLEST_FOR_SMALL
        torso = self.small_torso if small and self.small_torso else self.image_torso
        # Convolutions read bytes as they are, which is a quarter of what they would be as float32.
        by_255 = entry.values in (Values.PIXELS, Values.BYTES)
        images = array if by_255 and array.dtype == jnp.uint8 else numbers(entry, array)
        try:
            return jnp.asarray(torso()(images))
        except SpecError as error:
            raise SpecError(f"{error}{self._remedy()}") from error

    def _convolves(self, entry: Entry) -> bool:
        return entry.image or (not self.by_size and entry.is_rank_3)

    def _remedy(self) -> str:
        """Names the networks to choose instead, which take every image here."""
        images = [entry for _, entry in entries(self.observation, self.rule) if entry.is_rank_3]
        tiny = "--network tiny, or " if all(entry.side >= 3 for entry in images) else ""
        return f"; choose {tiny}--network auto, which takes each by its size"


def _flat(entry: Entry, array: jax.Array) -> jax.Array:
    """``[N, *shape]`` as float32 ``[N, D]``; choices one-hot."""
    if entry.values is not Values.CHOICES:
        return numbers(entry, array).reshape(array.shape[0], -1)
    flat = array.reshape(array.shape[0], -1)
    hots = [jax.nn.one_hot(flat[:, i], n) for i, n in enumerate(entry.spec.num_values)]
    return jnp.concatenate(hots, axis=-1)
