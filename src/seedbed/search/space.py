"""The space of a sweep: settings, and the values that each may have.

::

    learning_rate=log:1e-4..1e-2    numbers between two bounds, equally likely in every decade
    gradient_clip=0.1..1            numbers between two bounds; whole ones, if the setting and both bounds are whole
    entropy_cost=0,0.01             one of several values; also words, as in activation=tanh,relu
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from seedbed.config.ranges import read
from seedbed.config.resolve import flat, idle_beside, is_whole, replace
from seedbed.config.settings import RunConfig
from seedbed.errors import ConfigError

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

FIXED = frozenset(
    {
        *("env", "arch", "agent", "preset", "run_dir", "json", "video", "begin_or_resume", "store", "host"),
        # Each run is scored over the same budget.
        *("frames", "minutes", "until_return"),
    }
)
"""Settings that are the same in all runs of a sweep."""
_MOST = 1000
"""Combinations of which all are tried."""


@dataclass(frozen=True)
class Axis:
    """A setting, and the values that it may have.

    Attributes:
      name: the setting.
      values: values to choose from; empty for numbers between two bounds.
      low, high: bounds, which are possible values too.
      log: whether numbers are drawn evenly on a logarithmic scale.
      whole: whether numbers are whole.
    """

    name: str
    values: tuple[Any, ...] = ()
    low: float = 0.0
    high: float = 0.0
    log: bool = False
    whole: bool = False

    @property
    def ends(self) -> tuple[Any, ...]:
        """Values that a run has to accept: all of them, or both bounds."""
        return self.values or (self.low, self.high)

    def distribution(self) -> BaseDistribution:
        """Returns the values as Optuna knows them."""
        from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

        if self.values:
            return CategoricalDistribution(self.values)
        if self.whole:
            return IntDistribution(int(self.low), int(self.high), log=self.log)
        return FloatDistribution(self.low, self.high, log=self.log)


def axes(config: RunConfig, items: Sequence[str]) -> tuple[Axis, ...]:
    """Reads ``name=values``; every end of every axis is a value that the run accepts.

    Raises:
      ConfigError: a setting does not exist, stands twice or is the same in all runs, or a value is impossible.
    """
    found = tuple(_axis(config, item) for item in items)
    names = [axis.name for axis in found]
    if not names or len({*names}) < len(names):
        raise ConfigError(
            f"a sweep is over {', '.join(names) or 'nothing'}: name each setting once, as in "
            "--over learning_rate=log:1e-4..1e-2 entropy_cost=0,0.01"
        )
    for axis in found:
        for value in axis.ends:
            case = replace(config, **{axis.name: value})  # refused here if the run would refuse it
            if (idle := idle_beside(axis.name, case, names)) is not None:
                raise ConfigError(f"over {axis.name}: it means nothing where {idle}, or leave it out")
    return found


def combinations(space: Sequence[Axis]) -> list[dict[str, Any]]:
    """Returns every combination of the values, the last setting changing first.

    Raises:
      ConfigError: there are numbers between two bounds, or too many combinations.
    """
    for axis in space:
        if not (axis.values or axis.whole):
            raise ConfigError(
                f"over {axis.name}: numbers between {axis.low:g} and {axis.high:g} cannot all be tried: list them, as "
                f"in {axis.name}={axis.low:g},{axis.high:g}, or leave --by all out"
            )
    values = [axis.values or range(int(axis.low), int(axis.high) + 1) for axis in space]
    if (number := math.prod(map(len, values))) > _MOST:
        raise ConfigError(f"{number} combinations are too many to try all of them: at most {_MOST}")
    return [
        dict(zip((axis.name for axis in space), each, strict=True)) for each in itertools.product(*values)
    ]


def _axis(config: RunConfig, item: str) -> Axis:
    name, equals, text = item.partition("=")
    name = name.strip("-").replace("-", "_")
    if not equals or not text:
        raise ConfigError(
            f"over {item!r}: write name=low..high, name=log:low..high or name=value,value,…, for instance "
            "learning_rate=log:1e-4..1e-2"
        )
    if name in FIXED:
        raise ConfigError(f"over {item!r}: {name} is the same in all runs of a sweep: start a sweep for each")
    if name not in flat(config):
        replace(config, **{name: None})  # says whose setting it is, or which one is nearest
    try:
        found = read(text)
    except ValueError as error:
        raise ConfigError(f"over {item!r}: {error}") from None
    if found is None:
        values = tuple(map(_value, text.split(",")))
        if any(isinstance(value, list | dict) for value in values):
            raise ConfigError(f"over {item!r}: a sweep is over numbers and words, not over lists")
        if len({*values}) < len(values) or len(values) < 2:
            raise ConfigError(f"over {item!r}: give two or more different values, or leave {name} out")
        return Axis(name, values)
    whole = is_whole(config, name) and found.low.is_integer() and found.high.is_integer()
    return Axis(name, (), found.low, found.high, found.log, whole)


def _value(word: str) -> Any:
    """A number, a truth value or none if it looks like one; else the word."""
    try:
        return json.loads({"True": "true", "False": "false", "none": "null", "None": "null"}.get(word, word))
    except ValueError:
        return word


def described(values: dict[str, Any]) -> str:
    """Returns values in words: ``learning_rate 0.0003, entropy_cost 0.01``."""
    return ", ".join(_words(values))


def _words(values: dict[str, Any]) -> Iterator[str]:
    for name, value in values.items():
        yield f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}"
