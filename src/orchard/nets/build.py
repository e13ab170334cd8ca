"""Networks by name, as in ``--network``."""

from __future__ import annotations

import functools
from collections.abc import Callable

import flax.linen as nn

from orchard.errors import ConfigError, unknown_name
from orchard.nets import torsos
from orchard.plugins import load
from orchard.types import Tree, leaves

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


def build_torso(network: str, observation: Tree, hidden: tuple[int, ...] = ()) -> nn.Module:
    """A module that maps an observation, tree of ``[N, *shape]``, to features float32 ``[N, D]``.

    Args:
      network: ``mlp``, an image network (``tiny``, ``small``, ``pooled``, ``nature``, ``shallow``, ``deep``),
        ``auto`` (an image network of the right size where there are images, ``mlp`` elsewhere), or
        ``module:Class``: a flax module of the user's, made without arguments, that maps the raw observation
        tree ``[N, *shape]`` (uint8 unscaled) to ``[N, D]``.
      observation: tree of :class:`~orchard.types.ArraySpec`, frames already stacked.
      hidden: sizes of the dense layers; empty for the network's own.

    Raises:
      ConfigError: the name is unknown, the class cannot be loaded, or an image network has no image to look
        at.
    """
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
    return torsos.Encoder(observation, functools.partial(make, hidden=hidden) if hidden else make)


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
