"""The machines that a run is planned for, as they are given on the command line."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields

from seedbed.errors import ConfigError, unknown_name

GIGABIT = 1e9 / 8
"""Bytes a second of a link of 1 Gbit/s."""


@dataclass(frozen=True)
class Machine:
    """A kind of machine.

    Attributes:
      cores: number of CPU cores of one.
      accelerators: number of accelerators of one.
      price: price of one, per hour, in any currency.
      count: number of machines of this kind.
      network: bandwidth of the link of one, in Gbit/s, in each direction.
      speed: speed of a core, as a multiple of the cores that the costs were timed on.
      accelerator_speed: speed of an accelerator, as a multiple of the one that the costs were timed on.

    Raises:
      ConfigError: a number is not finite, or too small.
    """

    cores: float
    accelerators: int = 0
    price: float = 0.0
    count: int = 1
    network: float = 10.0
    speed: float = 1.0
    accelerator_speed: float = 1.0

    def __post_init__(self) -> None:
        for name in ("cores", "count", "network", "speed", "accelerator_speed"):
            if not getattr(self, name) > 0 or math.isnan(getattr(self, name)):
                raise ConfigError(f"machine: {name} is {getattr(self, name)}, and has to be more than 0")
        if math.isinf(self.cores):
            raise ConfigError("machine: cores is inf, and has to be a number of cores")
        for name in ("accelerators", "price"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ConfigError(f"machine: {name} is {getattr(self, name)}, and has to be 0 or more")

    @property
    def name(self) -> str:
        """The machine, for people."""
        many = f"{self.count} machines of " if self.count > 1 else ""
        accelerators = f" and {self.accelerators} accelerator{'s' * (self.accelerators > 1)}"
        return (
            f"{many}{self.cores:g} core{'s' * (self.cores != 1)}{accelerators if self.accelerators else ''}"
        )


_KINDS = {field.name: int if field.type == "int" else float for field in fields(Machine)}


def machine_of(words: str) -> Machine:
    """Reads a machine from ``cores=64,accelerators=1,price=3.5``.

    Raises:
      ConfigError: it is none.
    """
    given: dict[str, float] = {}
    for word in words.split(","):
        name, equals, value = word.partition("=")
        name = name.strip().replace("-", "_")
        if not equals:
            raise ConfigError(
                f"--machine {words}: {word!r} is no name=value; needed is cores=NUMBER, and more of "
                f"{', '.join(_KINDS)} with commas between them, as in cores=64,accelerators=1,price=3.5"
            )
        if name not in _KINDS:
            raise ConfigError(f"--machine {words}: {unknown_name('property', name, _KINDS)}")
        if name in given:
            raise ConfigError(f"--machine {words}: {name} is given twice")
        try:
            given[name] = _KINDS[name](value)
        except ValueError:
            kind = "a whole number" if _KINDS[name] is int else "a number"
            raise ConfigError(f"--machine {words}: {name} is {value!r}, and has to be {kind}") from None
    if "cores" not in given:
        raise ConfigError(f"--machine {words}: the number of cores is missing: add cores=NUMBER")
    return Machine(**given)  # type: ignore[arg-type]


def machines_of(given: Sequence[str]) -> tuple[Machine, ...]:
    """Reads the machine of the head and, if there is a second kind, the machines of all other processes.

    Raises:
      ConfigError: one of them is no machine, or there are more than two kinds, or several heads.
    """
    machines = tuple(machine_of(words) for words in given)
    if len(machines) > 2:
        raise ConfigError(
            f"--machine is given {len(machines)} kinds of machines, and takes two at most: the one of the head, and "
            "the ones of all other processes"
        )
    if machines and machines[0].count > 1:
        raise ConfigError(
            f"--machine {given[0]}: the head stands on one machine, so count belongs to the second kind: "
            "--machine cores=8,accelerators=1 cores=64,count=4 (several heads are --hosts)"
        )
    return machines
