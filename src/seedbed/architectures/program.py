"""The program of a run: every process and every group of threads that it consists of, declared before anything starts.

A launcher starts the instances of its roles, a supervisor watches them, and bench, planner and pages read it; none of
them knows an architecture.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

from seedbed.errors import ConfigError, ConnectionLost
from seedbed.instances import START_SECONDS
from seedbed.transport.connect import connect
from seedbed.transport.interface import Client

if TYPE_CHECKING:
    import threading

    from seedbed.config.settings import RunConfig
    from seedbed.types import Agent, EnvSpec

_LOOK_SECONDS = 0.5
Unit = Literal["step", "unroll", "update", "gradient"]
"""What traffic is counted by: one environment's step, one environment's unroll, an update of the weights (for each
instance), or a gradient (of one instance)."""


@dataclass(frozen=True)
class Traffic:
    """What travels in one direction.

    Attributes:
      what: its name for people.
      direction: up, from the role that dials to the one that is dialled; or down.
      bytes: payload of one unit, without headers and padding.
      per: the unit.
    """

    what: str
    direction: Literal["up", "down"]
    bytes: float
    per: Unit


@dataclass(frozen=True)
class Edge:
    """A conversation that every instance of a role begins.

    Attributes:
      to: name of the role that is dialled.
      traffic: what travels.
    """

    to: str
    traffic: tuple[Traffic, ...] = ()

    def bytes_for(self, direction: str, units: Mapping[str, float], instances: int) -> float:
        """Returns the bytes in one direction for so many units, where ``instances`` dial."""
        return sum(
            each.bytes * units.get(each.per, 0.0) * (instances if each.per == "update" else 1)
            for each in self.traffic
            if each.direction == direction
        )


@dataclass(frozen=True)
class Resources:
    """What one instance of a role needs.

    Attributes:
      cores: processor cores that it keeps busy.
      accelerators: devices that act or train; on a machine without any they are its processor.
    """

    cores: float = 1.0
    accelerators: int = 0


@dataclass(frozen=True)
class Role:
    """The instances of a program that do the same.

    Attributes:
      name: for people, and for the roles that dial it.
      count: number of instances; of each host, where there are several.
      entry: ``module:function``, called with a :class:`Context`, runs one instance; None for the head, and for roles
        whose instances are threads that the head starts itself.
      needs: of one instance.
      dials: the conversations that an instance begins.
      listens: whether an instance has an address of its own, where others dial it.
      near: role whose machine an instance should share, so that shared memory takes the place of the network.
      restarts: of one instance within ten minutes; None: the run ends when one dies.
      silent_after: seconds that an instance may owe something before it is ended; 0: it is not watched. What it owes
        is known from the head, see :class:`seedbed.instances.Instances`.
      starts_within: seconds in which an instance has to be ready, beside its ``patience``.
      patience: seconds for which an instance waits for the roles that it dials.
      late: the reason that is given for an instance that was silent for so many ``{seconds}``.
      elastic: whether more may come, and some may go, while the run goes on.
      accelerated: whether its JAX runs where the head's does; otherwise on the processor.
    """

    name: str
    count: int
    entry: str | None = None
    needs: Resources = Resources()
    dials: tuple[Edge, ...] = ()
    listens: bool = False
    near: str | None = None
    restarts: int | None = None
    silent_after: float = 0.0
    starts_within: float = START_SECONDS
    patience: float = 5.0
    late: str = "it gave no sign of life for {seconds} s (--env-timeout allows more)"
    elastic: bool = False
    accelerated: bool = False


@dataclass(frozen=True)
class Program:
    """All roles of a run, in the order in which they are started.

    Attributes:
      roles: those before the head are dialled by it; those after it dial it, or each other.
      head: the role whose process holds the run.
      hosts: number of heads, each with its share of the instances.

    Raises:
      ConfigError: a role dials one that there is not, or two have the same name.
    """

    roles: tuple[Role, ...]
    head: str = "learner"
    hosts: int = 1

    def __post_init__(self) -> None:
        names = [role.name for role in self.roles]
        if len(set(names)) < len(names):
            raise ConfigError(f"a program has each role once, and here are {', '.join(names)}")
        for role in self.roles:
            for name in [edge.to for edge in role.dials] + ([role.near] if role.near else []):
                if name not in names:
                    raise ConfigError(
                        f"{role.name} names the role {name!r}, and there are {', '.join(names)}"
                    )
        if self.head not in names:
            raise ConfigError(f"the head is {self.head!r}, and there are {', '.join(names)}")

    def __getitem__(self, name: str) -> Role:
        """Returns the role of this name."""
        return next(role for role in self.roles if role.name == name)

    @cached_property
    def _position(self) -> int:
        return [role.name for role in self.roles].index(self.head)

    @property
    def before(self) -> tuple[Role, ...]:
        """The roles that stand before the head: it dials them."""
        return self.roles[: self._position]

    @property
    def after(self) -> tuple[Role, ...]:
        """The roles that come after the head: they dial it, or one another."""
        return self.roles[self._position + 1 :]

    @property
    def edges(self) -> Iterator[tuple[Role, Edge]]:
        """All conversations, each with the role that begins it."""
        return ((role, edge) for role in self.roles for edge in role.dials)

    @property
    def is_dialled(self) -> bool:
        """Whether anything travels between different roles."""
        return any(edge.to != role.name for role, edge in self.edges)

    @property
    def has_instances(self) -> bool:
        """Whether others than the head act or learn."""
        return len(self.roles) > 1

    def to_json(self) -> dict[str, Any]:
        """Returns the program as JSON values."""
        return {"head": self.head, "hosts": self.hosts, "roles": [asdict(role) for role in self.roles]}


@dataclass(frozen=True)
class Task:
    """What one instance is told, as JSON values.

    Attributes:
      role: name of the role.
      index: of the instance among those of the role.
      entry: of the role.
      run: the run's settings.
      spec: of the environments.
      dials: addresses of the roles that it dials, in the order of their instances.
      patience: seconds for which it waits for them.
      listens: its own address; None if nobody dials it.
      folder: a place of its own that outlives it; what it begins with stands there.
    """

    role: str
    index: int
    entry: str
    run: dict[str, Any]
    spec: dict[str, Any]
    dials: dict[str, list[str]] = field(default_factory=dict)
    patience: float = 5.0
    listens: str | None = None
    folder: str = ""

    def to_json(self) -> dict[str, Any]:
        """Returns it as JSON values."""
        return asdict(self)


@dataclass(frozen=True)
class Context:
    """What the entry of a role is called with.

    Attributes:
      task: what the instance is told.
      token: secret that the others want to hear.
      over: set when the instance is to end.
      make_config: makes the run's settings of their JSON values.
      make_agent: makes the agent; it imports JAX.
    """

    task: Task
    token: str
    over: threading.Event
    make_config: Callable[[dict[str, Any]], RunConfig]
    make_agent: Callable[[RunConfig, EnvSpec], Agent]

    @cached_property
    def config(self) -> RunConfig:
        """The run's settings."""
        return self.make_config(self.task.run)

    @cached_property
    def spec(self) -> EnvSpec:
        """Of the environments."""
        from seedbed.types import EnvSpec

        return EnvSpec.from_json(self.task.spec)

    @cached_property
    def agent(self) -> Agent:
        """The agent that is trained."""
        return self.make_agent(self.config, self.spec)

    def address_of(self, role: str) -> str:
        """Returns the address of the one instance of a role that this instance talks to."""
        addresses = self.task.dials[role]
        return addresses[self.task.index % len(addresses)]

    def dial(self, role: str) -> Client:
        """Returns a connection to :meth:`address_of` a role, which may still be starting.

        Raises:
          ConnectionLost: it is not there in time, or this instance is to end.
        """
        address, deadline = self.address_of(role), time.monotonic() + self.task.patience
        while True:
            try:
                return connect(address, timeout=min(_LOOK_SECONDS, self.task.patience))
            except ConnectionLost:
                if self.over.is_set() or time.monotonic() > deadline:
                    raise
