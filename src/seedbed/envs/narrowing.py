"""Wider numbers than the ones that travel: converted without loss, refused by name, or told once by name.

Inside Seedbed integers have at most 32 bits and reals are float32. An array that has that dtype already is neither
copied nor looked at.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seedbed.envs.contract import looks
from seedbed.errors import EnvironmentFault

Array = NDArray[Any]

_log = logging.getLogger(__name__)

_DIGITS = 1e-3
"""Loss of a value, as such and as a share of the spread of the values so far, from which on it is told."""
_LARGE = 2.0**14
"""Up to this size float32 is never further from a number than that."""


class Narrowing:
    """Converts the batches of one leaf to the dtype in which it travels.

    Args:
      name: name of the leaf, for messages.
      dtype: dtype of the results.
      remedy: function that says how the user mends a value that does not fit.
      offset_remedy: function that says how the user takes an offset off, given as an array.
      watched: whether digits may be lost; whole numbers of the dtype are then looked at too.
    """

    def __init__(
        self,
        name: str,
        dtype: str,
        remedy: Callable[[], str],
        offset_remedy: Callable[[Array], str],
        *,
        watched: bool = True,
    ) -> None:
        self._name = name
        self._dtype = np.dtype(dtype)
        self._remedy = remedy
        self._offset_remedy = offset_remedy
        self._low: Array | None = None
        self._high: Array | None = None
        self._told = not watched

    def __call__(self, batch: Any) -> Array:
        """The batch ``[B, ...]`` in the dtype; raises :class:`EnvironmentFault` where a value would become another."""
        given = np.asarray(batch)
        narrow = given if given.dtype == self._dtype else self._narrowed(given)
        # Reals that came as float32 have lost nothing here.
        if not self._told and (narrow is not given or self._dtype.kind != "f"):
            self._watch(given)
        return narrow

    def _narrowed(self, given: Array) -> Array:
        if given.dtype.kind not in "biuf":
            raise EnvironmentFault(
                f"{self._name} is {looks(given)}; it must be numbers that {self._dtype} holds"
            )
        with np.errstate(over="ignore", invalid="ignore"):
            narrow = given.astype(self._dtype)
        if self._dtype.kind == "f":
            self._require(np.isfinite(narrow) | ~np.isfinite(given), given)
        else:
            self._require(narrow == given, given)
        return narrow

    def _require(self, kept: Array, given: Array) -> None:
        if not kept.all():
            at = tuple(np.argwhere(~kept)[0])
            fault = EnvironmentFault(
                f"{self._name} shows {given[at]}, and travels as {self._dtype}, which has no such number: "
                f"{self._remedy()}"
            )
            fault.environment = int(at[0])
            raise fault

    def _watch(self, given: Array) -> None:
        """Tells, once, that float32 loses digits which tell values apart."""
        if not (np.abs(given) > _LARGE).any() or not np.isfinite(given).all():
            return
        low, high = given.min(0), given.max(0)
        self._low = low if self._low is None else np.minimum(self._low, low)
        self._high = high if self._high is None else np.maximum(self._high, high)
        lost, spread = np.abs(given - given.astype(np.float32)).max(0), self._high - self._low
        matters = (lost > _DIGITS) & (lost > _DIGITS * spread) & (spread > 0)
        if matters.any():
            self._told = True
            offset = np.where(matters, self._low, 0.0)
            example = float(given.reshape(len(given), -1)[0, int(np.argmax(matters))])
            _log.warning(
                "%s shows numbers like %.17g, of which float32 keeps seven digits: what tells them apart is lost; "
                "subtract the offset in the environment: %s",
                self._name,
                example,
                self._offset_remedy(offset),
            )
