"""Numbers between two bounds: ``0.1..1``, or ``log:1e-4..1e-2``, equally likely in every decade."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

_DIGITS = 4
"""Digits of a number that is drawn, so that it can be read, and typed."""


@dataclass(frozen=True)
class Range:
    """Numbers between two bounds, which belong to them.

    Attributes:
      low, high: bounds.
      log: whether numbers are even on a logarithmic scale.
    """

    low: float
    high: float
    log: bool = False

    def draw(self, random: np.random.Generator) -> float:
        """Returns a number by chance, of four digits."""
        if self.log:
            number = math.exp(random.uniform(math.log(self.low), math.log(self.high)))
        else:
            number = random.uniform(self.low, self.high)
        return min(max(float(f"{number:.{_DIGITS}g}"), self.low), self.high)


def read(text: str) -> Range | None:
    """Reads ``low..high`` or ``log:low..high``; None if it is written otherwise.

    Raises:
      ValueError: the bounds are impossible; with the remedy.
    """
    if ".." not in text:
        return None
    log = text.startswith("log:")
    try:
        low, high = map(float, text.removeprefix("log:").split(".."))
    except ValueError:
        low = high = math.nan
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise ValueError("write two finite numbers, the lower one first, as in 1e-4..1e-2")
    if log and low <= 0:
        raise ValueError(f"a logarithmic scale has no {low:g}: begin above 0")
    return Range(low, high, log)
