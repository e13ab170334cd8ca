"""The agents that a run trains side by side: every value of a sweep with every seed."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from seedbed.config.resolve import replace
from seedbed.config.settings import RunConfig
from seedbed.errors import ConfigError, unknown_name

_MOST_RECORDED = 10_000
"""Most agents of a recorded run; a record that says more is not this project's."""


@dataclass(frozen=True)
class Variant:
    """One of the agents of a run.

    Attributes:
      seed: the root of its randomness.
      values: the settings in which it differs from the others, by name.
      changing: whether it only begins with these values, as in population-based training.
    """

    seed: int
    values: dict[str, float] = field(default_factory=dict)
    changing: bool = False

    @property
    def swept(self) -> str:
        """:attr:`values` in words; empty if there are none."""
        words = ", ".join(f"{name} {value:g}" for name, value in self.values.items())
        return f"begun with {words}" if self.changing and words else words

    def __str__(self) -> str:
        return ", ".join(filter(None, [self.swept, f"seed {self.seed}"]))


def variants(config: RunConfig) -> list[Variant]:
    """The agents of a run; one if there are neither several seeds nor a sweep.

    Variant ``i`` of a run with ``--seeds`` alone is the agent of a run of its own with the seed ``seed + i``.

    Raises:
      ConfigError: a swept setting does not exist, is no number, or has a value that it cannot have.
    """
    population = config.population
    swept = [_axis(config, item) for item in population.sweep]
    names = [name for name, _ in swept]
    if len(set(names)) != len(names):
        raise ConfigError(f"sweep has {', '.join(names)}: name each setting once, with all of its values")
    return _combined(swept, config.seed, population.seeds, changing=population.pbt_frames is not None)


def has_variants(record: Mapping[str, Any]) -> bool:
    """Returns whether a recorded run has agents side by side, each with a curve of its own."""
    return record.get("seeds", 1) != 1 or bool(record.get("sweep"))


def recorded_variants(record: Mapping[str, Any]) -> list[Variant]:
    """The agents of a recorded run (see :meth:`~seedbed.launch.folder.RunFolder.record`), of which nothing is imported.

    Raises:
      ConfigError: the record is none of a run's.
    """
    try:
        swept = [_parsed(item) for item in record.get("sweep") or ()]
        seed, seeds = int(record.get("seed", 0)), int(record.get("seeds") or 1)
        if (count := seeds * math.prod(len(values) for _, values in swept)) > _MOST_RECORDED:
            raise ValueError(f"there would be {count:,} of them")
    except (TypeError, ValueError, AttributeError) as error:
        raise ConfigError(f"its settings of agents side by side are damaged: {error}") from error
    return _combined(swept, seed, seeds, changing=record.get("pbt_frames") is not None)


def _combined(
    swept: Sequence[tuple[str, list[float]]], seed: int, seeds: int, *, changing: bool
) -> list[Variant]:
    names = [name for name, _ in swept]
    return [
        Variant(seed + offset, dict(zip(names, values, strict=True)), changing)
        for values in itertools.product(*(values for _, values in swept))
        for offset in range(seeds)
    ]


def _parsed(item: str) -> tuple[str, list[float]]:
    name, equals, text = item.partition("=")
    if not equals or not text:
        raise ConfigError(
            f"sweep {item!r}: write name=value,value,… for instance learning_rate=1e-4,3e-4,1e-3"
        )
    name = name.replace("-", "_")
    return name, [_number(name, word) for word in text.split(",")]


def _axis(config: RunConfig, item: str) -> tuple[str, list[float]]:
    name = item.partition("=")[0].replace("-", "_")
    settings = {
        part.name: getattr(config.settings, part.name) for part in dataclasses.fields(config.settings)
    }
    numbers = {setting for setting, value in settings.items() if isinstance(value, float)}
    if "=" in item and name not in numbers:
        if name not in settings:
            raise ConfigError(unknown_name("number to sweep", name, numbers))
        raise ConfigError(
            f"sweep {item!r}: {name} is {settings[name]}, of which one program cannot have several values: "
            "start a run for each"
        )
    name, values = _parsed(item)
    for value in values:
        replace(config, **{name: value})  # Refused here if the agent refuses it.
    if len(set(values)) != len(values):
        raise ConfigError(f"sweep {item!r}: a value is given twice")
    return name, values


def _number(name: str, word: str) -> float:
    try:
        return float(word)
    except ValueError:
        raise ConfigError(f"sweep: {name} has the value {word!r}, which is no number") from None


def with_values(settings: Any, values: Mapping[str, Any]) -> Any:
    """``settings`` with other numbers, which may be traced: unlike :func:`dataclasses.replace` it looks at none."""
    copy = object.__new__(type(settings))
    for part in dataclasses.fields(settings):
        object.__setattr__(copy, part.name, values.get(part.name, getattr(settings, part.name)))
    return copy
