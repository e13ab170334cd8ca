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
from seedbed.nets.network import Network
from seedbed.nets.observations import Entry, entries
from seedbed.plugins import load
from seedbed.types import Tree

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

_ACTIVATIONS = {"auto": nn.tanh, "tanh": nn.tanh, "relu": torsos.relu, "silu": torsos.silu}
COMPUTE_DTYPES = ("float32", "bfloat16", "auto")
"""Names of the dtypes of convolutions."""


def build_torso(settings: Network, observation: Tree) -> nn.Module:
    """A module that maps an observation, tree of ``[N, *shape]``, to features float32 ``[N, D]``.

    Args:
      settings: the network's. Its ``network`` is ``mlp``, an image network (``tiny``, ``small``, ``pooled``,
        ``nature``, ``shallow``, ``deep``), ``auto`` (each image through ``small``, or ``tiny`` if it is small; ``mlp``
        where there is none), or ``module:Class``: a flax module of the user's, made without arguments, that maps the
        raw observation tree ``[N, *shape]`` (uint8 unscaled) to ``[N, D]``. Weights, and all that is computed besides
        convolutions, are float32.
      observation: tree of :class:`~seedbed.types.ArraySpec`, frames already stacked.

    Raises:
      ConfigError: a name is unknown, the class cannot be loaded, or an image network has no image to look
        at.
    """
    network, hidden, observations = settings.network, settings.hidden, settings.observations
    dtype, normalized = _dtype_of(settings.compute_dtype), settings.normalization == "layer"
    if ":" in network:
        return _load(network)
    if network not in NETWORKS:
        raise ConfigError(
            unknown_name("network", network, NETWORKS) + " (or module:Class, a flax module of your own)"
        )
    images = _images(settings, observation)
    if is_mlp(settings, observation):
        dense = functools.partial(
            torsos.MLP, hidden or (64, 64), _ACTIVATIONS[settings.activation], normalized=normalized
        )
        return torsos.Encoder(observation, None, dense, rule=observations)
    if not images:
        raise ConfigError(
            f"network {network!r} needs an image, and the observation has none: use 'mlp' or 'auto'"
        )
    if settings.activation != "auto":
        raise ConfigError(
            f"activation is {settings.activation}, and is of an MLP's layers, but the observation goes through "
            "convolutions: leave it out, or use --network mlp"
        )

    def torso(name: str) -> Callable[[], nn.Module]:
        sizes = {"hidden": hidden} if hidden else {}
        return functools.partial(IMAGE_TORSOS[name], dtype=dtype, normalized=normalized, **sizes)

    if network != "auto":
        return torsos.Encoder(observation, torso(network), rule=observations)
    sides = [entry.side for entry in images]
    if observations == "bytes":  # Version 0.1 had one network for all images.
        name = "small" if min(sides) >= torsos.SMALLEST_FOR_SMALL else "tiny"
        return torsos.Encoder(observation, torso(name), rule=observations)
    large = max(sides) >= torsos.SMALLEST_FOR_SMALL
    return torsos.Encoder(
        observation,
        torso("small" if large else "tiny"),
        small_torso=torso("tiny") if large else None,
        by_size=True,
        rule=observations,
    )


def is_mlp(settings: Network, observation: Tree) -> bool:
    """Returns whether the torso is dense layers alone."""
    return settings.network == "mlp" or (settings.network == "auto" and not _images(settings, observation))


def _images(settings: Network, observation: Tree) -> list[Entry]:
    found = entries(observation, settings.observations)
    return [entry for _, entry in found if _may_be_image(entry, settings.network)]


def _may_be_image(entry: Entry, network: str) -> bool:
    """Returns whether a network convolves a leaf: by ``auto`` large enough ones, by name all of rank 3."""
    return entry.image or (network != "auto" and entry.is_rank_3)


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
