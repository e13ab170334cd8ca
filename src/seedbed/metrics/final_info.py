"""Numbers that environments tell in ``info`` at the end of an episode: ``env/*`` of the metrics.

The environment's author chooses the names, so their number is bounded wherever they are kept: the first ones stay.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from seedbed.errors import Refused

MOST_NAMES, _LONGEST_NAME = 32, 64
FAMILY = "env/"
_ODD = re.compile(r"[^\w.-]+")
_MOST = 1 << 40
_LARGEST = 1e100
"""Size of numbers beyond which sums might not be finite; larger ones are left out."""


class FinalInfo:
    """Sums of numbers by name, and of how many each is the sum; owned by one thread."""

    def __init__(self) -> None:
        self._sums: dict[str, tuple[float, int]] = {}

    def add(self, *infos: Mapping[Any, Any]) -> None:
        """Counts the numbers of final steps."""
        for info in infos:
            for name, value in _numbers(info):
                self._count(name, value, 1)

    def merge(self, told: Mapping[str, Any]) -> None:
        """Adds a result of :meth:`take`; raises :class:`Refused` on anything else."""
        for name, sum_and_count in told.items():
            known = (
                bool(name)
                and name == _clean(name)
                and isinstance(sum_and_count, list)
                and len(sum_and_count) == 2
            )
            if not (known and _is_sum(*sum_and_count)):
                raise Refused(
                    f"{name[:20]!r}: {str(sum_and_count)[:40]} in a report: not what an actor tells"
                )
        for name, (total, count) in told.items():
            self._count(name, total, count)

    def take(self) -> dict[str, list[float]]:
        """Sum and count by name, as JSON values; begins anew."""
        sums, self._sums = self._sums, {}
        return {name: [*pair] for name, pair in sums.items()}

    def means(self) -> dict[str, float]:
        """The mean of each by its name among the metrics; begins anew."""
        return {FAMILY + name: total / count for name, (total, count) in self.take().items() if count}

    def _count(self, name: str, value: float, count: int) -> None:
        if name in self._sums or len(self._sums) < MOST_NAMES:
            total, before = self._sums.get(name, (0.0, 0))
            self._sums[name] = (total + value, before + count)


def _is_sum(total: object, count: object) -> bool:
    finite = type(total) in (int, float) and abs(total) <= _LARGEST * _MOST  # type: ignore[arg-type]
    return finite and type(count) is int and 0 <= count < _MOST


def _numbers(info: Mapping[Any, Any], before: str = "") -> Iterator[tuple[str, float]]:
    """Yields the numbers of an info, by name; numbers of a dict inside are called ``outer.inner``."""
    for key, value in info.items():
        if not (own := _clean(str(key))):
            continue
        name = before + own
        if isinstance(value, Mapping):
            if len(name) < _LONGEST_NAME:
                yield from _numbers(value, f"{name}.")
        elif (number := _number(value)) is not None:
            yield name[:_LONGEST_NAME], number


def _clean(name: str) -> str:
    return _ODD.sub("_", name)[:_LONGEST_NAME]


def _number(value: Any) -> float | None:
    """A finite number, also in an array of one element; None for anything else."""
    if not isinstance(value, bool | int | float | np.generic | np.ndarray):
        return None
    array = np.asarray(value)
    if array.size != 1 or array.dtype.kind not in "biuf":
        return None
    number = float(array.reshape(()))
    return number if abs(number) <= _LARGEST else None
