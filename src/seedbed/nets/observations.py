"""The entry of observations into a network: one rule for each of its leaves, from its spec alone.

===========  ======================================================================  ==============================
of a leaf    its spec                                                                the network reads
===========  ======================================================================  ==============================
choices      a number of values                                                      each one-hot
pixels       an image ``[H, W, C]`` whose bounds are 0 and 255                       0 to 1
wide         finite bounds beyond ±32                                                each number in two scales: by
                                                                                     its range, and by its logarithm
numbers      everything else                                                         the numbers as they are
===========  ======================================================================  ==============================

Bounds tell how far numbers may go and not how far they do: a grid of codes from 0 to 10 may be declared 0 to 255, as an
emulator's memory is, which goes all the way. So wide ones are given in two scales, of which one fits
(docs/decisions/0039). Images of a side below 32 that are declared 0 to 255 may be either, and are taken for wide.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from seedbed.nets.network import AUTO, Network
from seedbed.types import ACTION_MASK, AGENT_INDEX, ArraySpec, EnvSpec, Tree, leaves, map_leaves

Rule = Literal["auto", "bytes"]
"""``auto``: as above. ``bytes``: as version 0.1 did, every uint8 by 255, all of rank 3 an image."""

RULES: tuple[Rule, ...] = ("auto", "bytes")

_NARROW = 32.0
"""Numbers up to this size are read as they are; 10 times pi, as some angular speeds have, among them."""
_NO_BOUND = 1e30
"""Stands for infinity in many a space."""
_SMALLEST_PICTURE = 32
_MOST_LINES = 8


class Values(enum.Enum):
    """The treatment of a leaf's numbers."""

    CHOICES = "one-hot"
    PIXELS = "as a picture, by 255"
    BYTES = "by 255"
    WIDE = "as numbers, by their range and by their logarithm"
    NUMBERS = "as numbers"


@dataclass(frozen=True)
class Entry:
    """The entry of one leaf.

    Attributes:
      spec: spec of the leaf.
      values: treatment of its numbers.
      image: whether it goes through convolutions, where the network has any.
    """

    spec: ArraySpec
    values: Values
    image: bool

    @property
    def is_rank_3(self) -> bool:
        """True if convolutions can be asked to read it, however small it is."""
        return len(self.spec.shape) == 3 and not self.spec.num_values

    @property
    def side(self) -> int:
        """The shorter side of an image."""
        return min(self.spec.shape[:2])


def entry_of(spec: ArraySpec, rule: str = "auto") -> Entry:
    """Returns the entry of a leaf of ``spec``."""
    if rule == "bytes":
        return _entry_of_0_1(spec)
    return Entry(spec, _values_of(spec), spec.is_image)


def entries(observation: Any, rule: str = "auto") -> list[tuple[str, Entry]]:
    """Returns the entry of each leaf of a tree of specs, by its path."""
    return [(path, entry_of(spec, rule)) for path, spec in leaves(observation)]


def _entry_of_0_1(spec: ArraySpec) -> Entry:
    image = len(spec.shape) == 3 and not spec.num_values
    if spec.num_values:
        return Entry(spec, Values.CHOICES, image)
    return Entry(spec, Values.BYTES if spec.dtype == "uint8" else Values.NUMBERS, image)


def read_part(spec: EnvSpec, observation: Tree, network: Network) -> Tree:
    """The leaves of an observation, or of its spec, that a network reads: all but the mask, which it may ask for."""
    if spec.action_mask is None or network.mask_as_input:
        return observation
    return {key: part for key, part in observation.items() if key != ACTION_MASK}


def spec_as_read(observation: Any, rule: str = "auto") -> Any:
    """The specs of the arrays that a network is given; see :func:`as_read`."""
    return observation if rule == "auto" else map_leaves(_turned_back, observation)


def as_read(spec: Any, observation: Any, rule: str = "auto") -> Any:
    """The observation ``[..., *shape]`` as a network is given it: by version 0.1 images channels first, as shown."""
    if rule == "auto":
        return observation
    return map_leaves(
        lambda leaf, array: jnp.moveaxis(array, -1, -3) if leaf.channels_first else array, spec, observation
    )


def _turned_back(spec: ArraySpec) -> ArraySpec:
    if not spec.channels_first:
        return spec
    height, width, channels = spec.shape
    return ArraySpec((channels, height, width), spec.dtype)


def _values_of(spec: ArraySpec) -> Values:
    if spec.num_values:
        return Values.CHOICES
    low, high = spec.bounds
    if not low.size:
        return Values.NUMBERS
    if (
        spec.is_image
        and min(spec.shape[:2]) >= _SMALLEST_PICTURE
        and (low == 0).all()
        and (high == 255).all()
    ):
        return Values.PIXELS
    return Values.WIDE if _is_wide(low, high).any() else Values.NUMBERS


def _is_wide(low: Any, high: Any) -> Any:
    largest = np.maximum(np.abs(low), np.abs(high))
    return (largest > _NARROW) & (largest < _NO_BOUND)


def numbers(entry: Entry, array: jax.Array) -> jax.Array:
    """Returns a leaf ``[N, *shape]`` as a network reads it: float32 of that shape, the last axis twice as long if wide.

    For all but choices.
    """
    if entry.values is Values.WIDE:
        return _in_two_scales(entry.spec, array)
    scale = 1 / 255 if entry.values in (Values.PIXELS, Values.BYTES) else 1.0
    return array.astype(jnp.float32) * scale


def _in_two_scales(spec: ArraySpec, array: jax.Array) -> jax.Array:
    """Each number, counted from its bound nearest to 0: twice its part of the range, and half its symmetric logarithm.

    (Hafner et al. 2023, equation 1.) Elements without bounds, or narrow ones, are read as they are beside theirs.
    """
    low, high = spec.bounds
    wide = _is_wide(low, high)
    start = np.where(wide, np.clip(0.0, np.minimum(low, high), high), 0.0)
    size = np.maximum(high - start, start - low)
    wide &= size > 0
    moved = _moved(array, start)
    gain = np.where(wide, 2.0 / np.where(wide, size, 1.0), 1.0)
    two = [moved * gain.astype(np.float32), 0.5 * jnp.sign(moved) * jnp.log1p(jnp.abs(moved))]
    if array.ndim == 1:
        return jnp.stack(two, axis=-1)
    return jnp.concatenate(two, axis=-1)


def _moved(array: jax.Array, start: Any) -> jax.Array:
    """``array - start`` as float32; of whole numbers without loss, however far from 0 both are."""
    if np.issubdtype(array.dtype, np.integer) and np.abs(start).max() < 2**31:
        return (array.astype(jnp.int32) - start.astype(np.int32)).astype(jnp.float32)
    return array.astype(jnp.float32) - start.astype(np.float32)


def described(spec: EnvSpec, network: Network = AUTO, *, normalized: bool = False) -> Iterator[str]:
    """One line for each leaf of the observations that a network reads, of which the first ones stand for many.

    ``observation board: uint8 (8, 8, 12), 0 to 1, as numbers``; and ``action_mask: (9,), forbids actions``.
    """
    rule, name = network.observations, network.network
    if spec.action_mask is not None:
        yield f"{ACTION_MASK}: {spec.action_mask.shape}, forbids actions"
    found = leaves(read_part(spec, spec.observation, network))
    if spec.tells_agents:
        yield f"{AGENT_INDEX}: tells which of {len(spec.agents)} agents it is"
        found = [(path, leaf) for path, leaf in found if path != AGENT_INDEX]
    for path, leaf in found[:_MOST_LINES]:
        way = entry_of(leaf, rule).values.value
        if normalized and leaf.dtype.startswith("float"):
            way = "brought to mean 0 and variance 1"
        elif ":" in name:
            way = f"as it is, to {name}"
        turned = _turned(leaf) if rule == "auto" and leaf.channels_first else ""
        yield f"{f'observation {path}'.strip()}: {_looks(leaf)}, {way}{turned}"
    if len(found) > _MOST_LINES:
        yield f"and {len(found) - _MOST_LINES} more observations"


def _looks(spec: ArraySpec) -> str:
    """Dtype, shape and bounds, in words."""
    low, high = spec.bounds
    if not low.size:
        return f"{spec.dtype} {spec.shape}, empty"
    lowest, highest = float(low.min()), float(high.max())
    if np.isinf(lowest) and np.isinf(highest):
        return f"{spec.dtype} {spec.shape}, without bounds"
    if spec.num_values:
        return f"{spec.dtype} {spec.shape}, choices among {max(spec.num_values)}"
    return f"{spec.dtype} {spec.shape}, {lowest:g} to {highest:g}"


def _turned(spec: ArraySpec) -> str:
    height, width, channels = spec.shape
    return f", shown as {(channels, height, width)} and turned"
