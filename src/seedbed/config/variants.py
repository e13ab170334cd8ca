"""The agents that a run trains side by side: every value of a sweep, or some that are drawn, with every seed."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from seedbed.config.ranges import Range, read
from seedbed.config.resolve import idle_beside, replace
from seedbed.config.settings import RunConfig
from seedbed.errors import ConfigError, unknown_name
from seedbed.seeding import generator

Values = list[float] | Range
"""Values that a swept setting may have."""

VALUES_OF_BEST = "best_values"
"""Entry of a checkpoint: swept settings of the best agent, by name, as they were then."""

_MOST = 10_000
"""Most agents of a run, and numbers of all of them; a record that says more is not this project's."""


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

    Variant ``i`` of a run with ``--seeds`` alone is the agent of a run of its own with the seed ``seed + i``. The
    numbers of ``--draws`` follow from the seed of the run and these settings.

    Raises:
      ConfigError: a swept setting does not exist, is no number, or has a value that it cannot have.
    """
    population = config.population
    swept = [_axis(config, item) for item in population.sweep]
    names = [name for name, _ in swept]
    if len(set(names)) != len(names):
        raise ConfigError(f"sweep has {', '.join(names)}: name each setting once, with all of its values")
    if population.draws is None:
        for name, values in swept:
            if isinstance(values, Range):
                raise ConfigError(
                    f"sweep of {name}: numbers between {values.low:g} and {values.high:g} cannot all be trained: list "
                    f"some, as in {name}={values.low:g},{values.high:g}, or give the number of agents, --draws 8"
                )
    try:
        return _combined(
            swept, config.seed, population.seeds, population.draws, changing=population.pbt_frames is not None
        )
    except ValueError as error:
        raise ConfigError(f"agents side by side: {error}") from None


def require_meaning(config: RunConfig) -> None:
    """Raises :class:`ConfigError` if the agents of a run differ in a setting that means nothing beside the others."""
    swept = dict(_axis(config, item) for item in config.population.sweep)
    for name, values in swept.items():
        for value in [values.low, values.high] if isinstance(values, Range) else values:
            if (idle := idle_beside(name, replace(config, **{name: value}), swept)) is not None:
                raise ConfigError(f"sweep of {name}: it means nothing where {idle}, or leave it out")


def recorded_variants(record: Mapping[str, Any]) -> list[Variant]:
    """The agents of a recorded run (see :meth:`~seedbed.launch.folder.RunFolder.record`), of which nothing is imported.

    Raises:
      ConfigError: the record is none of a run's.
    """
    try:
        swept = [_parsed(item) for item in record.get("sweep") or ()]
        seed, seeds = int(record.get("seed", 0)), _number_of_agents(record.get("seeds") or 1)
        draws = None if record.get("draws") is None else _number_of_agents(record["draws"])
        return _combined(swept, seed, seeds, draws, changing=record.get("pbt_frames") is not None)
    except (TypeError, ValueError, ArithmeticError, AttributeError) as error:
        raise ConfigError(f"its settings of agents side by side are damaged: {error}") from error


def _number_of_agents(value: Any) -> int:
    if type(value) is not int or value < 1:
        raise ValueError(f"{value!r} is no number of agents")
    return value


def _points(swept: Sequence[tuple[str, Values]], draws: int | None) -> int:
    """The number of agents of each seed.

    Raises:
      ValueError: there are numbers between two bounds, and nothing says how many.
    """
    if draws is not None:
        return draws
    if any(isinstance(values, Range) for _, values in swept):
        raise ValueError("numbers between two bounds, and no number of agents")
    return math.prod(len(values) for _, values in swept if isinstance(values, list))


def _combined(
    swept: Sequence[tuple[str, Values]], seed: int, seeds: int, draws: int | None, *, changing: bool
) -> list[Variant]:
    """The agents, of each seed one after the other.

    Raises:
      ValueError: they are too many, or nothing says how many.
    """
    count = seeds * _points(swept, draws)
    if count * max(1, len(swept)) > _MOST:
        raise ValueError(f"{count:,} are too many: at most {_MOST:,} numbers may differ in one program")
    names = [name for name, _ in swept]
    points: Iterable[tuple[float, ...]]
    if draws is None:
        points = itertools.product(*(values for _, values in swept if isinstance(values, list)))
    else:
        random = generator(seed, "draws")
        points = (tuple(_draw(values, random) for _, values in swept) for _ in range(draws))
    return [
        Variant(seed + offset, dict(zip(names, values, strict=True)), changing)
        for values in points
        for offset in range(seeds)
    ]


def _draw(values: Values, random: np.random.Generator) -> float:
    return values.draw(random) if isinstance(values, Range) else values[random.integers(len(values))]


def _parsed(item: str) -> tuple[str, Values]:
    name, equals, text = item.partition("=")
    if not equals or not text:
        raise ConfigError(
            f"sweep {item!r}: write name=value,value,… for instance learning_rate=1e-4,3e-4,1e-3"
        )
    name = name.replace("-", "_")
    try:
        between = read(text)
    except ValueError as error:
        raise ConfigError(f"sweep {item!r}: {error}") from None
    return name, between or [_number(name, word) for word in text.split(",")]


def _axis(config: RunConfig, item: str) -> tuple[str, Values]:
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
    ends = [values.low, values.high] if isinstance(values, Range) else values
    for value in ends:
        replace(config, **{name: value})  # Refused here if the agent refuses it.
    if len(set(ends)) != len(ends):
        raise ConfigError(f"sweep {item!r}: a value is given twice")
    return name, values


def _number(name: str, word: str) -> float:
    try:
        return float(word)
    except ValueError:
        raise ConfigError(f"sweep: {name} has the value {word!r}, which is no number") from None


def with_values(settings: Any, values: Mapping[str, Any]) -> Any:
    """``settings`` with other numbers, which may be traced: unlike :func:`dataclasses.replace` it looks at none."""
    if not values:
        return settings
    copy = object.__new__(type(settings))
    for part in dataclasses.fields(settings):
        object.__setattr__(copy, part.name, values.get(part.name, getattr(settings, part.name)))
    return copy
