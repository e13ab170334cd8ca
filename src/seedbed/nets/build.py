"""Networks by name, as in ``--network``."""

from __future__ import annotations

import functools
from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from seedbed.errors import ConfigError, unknown_name
from seedbed.nets import torsos
from seedbed.nets.cpu import library
from seedbed.plugins import load
from seedbed.types import Tree, leaves

IMAGE_TORSOS: dict[str, Callable[..., nn.Module]] = {
    "tiny": torsos.tiny,
    "small": torsos.small,
    "pooled": torsos.Pooled,
    "nature": torsos.nature,
    "shallow": torsos.shallow,
    "deep": torsos.Deep,
}
NETWORKS = ("auto", "mlp", *IMAGE_TORSOS)
"""Every name that :func:`build_torso` knows; ``module:Class`` is taken as well."""

# Below it, the kernels of the Atari networks do not fit: their receptive field is 36.
_SMALLEST_FOR_SMALL = 36


COMPUTE_DTYPES = ("float32", "bfloat16", "auto")
"""In what images go through convolutions, by name."""


def build_torso(
    network: str, observation: Tree, hidden: tuple[int, ...] = (), compute_dtype: str = "float32"
) -> nn.Module:
    """A module that maps an observation, tree of ``[N, *shape]``, to features float32 ``[N, D]``.

    Args:
      network: ``mlp``, an image network (``tiny``, ``small``, ``pooled``, ``nature``, ``shallow``, ``deep``),
        ``auto`` (an image network of the right size where there are images, ``mlp`` elsewhere), or
        ``module:Class``: a flax module of the user's, made without arguments, that maps the raw observation
        tree ``[N, *shape]`` (uint8 unscaled) to ``[N, D]``.
      observation: tree of :class:`~seedbed.types.ArraySpec`, frames already stacked.
      hidden: sizes of the dense layers; empty for the network's own.
      compute_dtype: one of :data:`COMPUTE_DTYPES`: in what images go through convolutions. Weights, and all that is
        computed besides, are float32.

    Raises:
      ConfigError: a name is unknown, the class cannot be loaded, or an image network has no image to look
        at.
    """
    dtype = _dtype_of(compute_dtype)
    if ":" in network:
        return _load(network)
    if network not in NETWORKS:
        raise ConfigError(
            unknown_name("network", network, NETWORKS) + " (or module:Class, a flax module of your own)"
        )
    images = [spec for _, spec in leaves(observation) if torsos.is_image(spec)]
    if network == "auto":
        smallest = min((min(spec.shape[:2]) for spec in images), default=0)
        network = "mlp" if not images else "small" if smallest >= _SMALLEST_FOR_SMALL else "tiny"
    if network == "mlp":
        return torsos.Encoder(observation, None, functools.partial(torsos.MLP, hidden or (64, 64)))
    if not images:
        raise ConfigError(
            f"network {network!r} needs an image, and the observation has none: use 'mlp' or 'auto'"
        )
    make = IMAGE_TORSOS[network]
    sizes = {"hidden": hidden} if hidden else {}
    return torsos.Encoder(observation, functools.partial(make, dtype=dtype, **sizes))


def _dtype_of(name: str) -> DTypeLike:
    """The dtype of that name; ``auto`` is bfloat16 where it is the faster one."""
    if name not in COMPUTE_DTYPES:
        raise ConfigError(unknown_name("compute_dtype", name, COMPUTE_DTYPES))
    if name == "auto":
        # XLA's CPU backend computes bfloat16 as float32, and rounds.
        fast = jax.default_backend() != "cpu" or "bfloat16" in library.find().dtypes
        name = "bfloat16" if fast else "float32"
    return jnp.dtype(name)


def _load(network: str) -> nn.Module:
    """The user's module ``module:Class``."""
    found = load(network)
    if not (isinstance(found, type) and issubclass(found, nn.Module)):
        raise ConfigError(f"network {network!r} is {found!r}; needed is a subclass of flax.linen.Module")
    try:
        return found()
    except TypeError as error:
        raise ConfigError(
            f"network {network!r} cannot be made without arguments ({error}): give every field a default"
        ) from error
