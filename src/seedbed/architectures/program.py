"""The program of a run: its processes and groups of threads, declared before anything starts.

A launcher starts the instances of its roles, a supervisor watches them, and bench, planner and pages read it. None of
these knows any architecture.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

from seedbed.errors import ConfigError, ConnectionLost
from seedbed.instances import GRACE_SECONDS, START_SECONDS
from seedbed.transport.admission import Gate, Invitation
from seedbed.transport.connect import connect
from seedbed.transport.interface import Client
from seedbed.transport.tls import Identity, within_machine

if TYPE_CHECKING:
    import threading

    from seedbed.config.settings import RunConfig
    from seedbed.types import Agent, EnvSpec

_LOOK_SECONDS, _REACH_SECONDS = 0.5, 20.0
"""Seconds for one attempt to reach an instance on this machine, and on another one (certificate and proof included)."""
Unit = Literal["step", "unroll", "update", "gradient"]
"""The unit in which traffic is counted: one environment's step, one environment's unroll, an update of the weights (for
each instance), or a gradient (of one instance)."""


@dataclass(frozen=True)
class Traffic:
    """The traffic in one direction of a conversation.

    Attributes:
      what: name of its contents, for the user.
      direction: ``up``, from the role that dials to the role that is dialled, or ``down``.
      bytes: payload of one unit in bytes, without headers and padding.
      per: unit in which it is counted.
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
      traffic: traffic of the conversation.
    """

    to: str
    traffic: tuple[Traffic, ...] = ()

    def bytes_for(self, direction: str, units: Mapping[str, float], instances: int) -> float:
        """Returns the bytes in one direction.

        Args:
          direction: ``up`` or ``down``.
          units: numbers of units, by unit.
          instances: number of instances that dial; each is sent every update.
        """
        return sum(
            each.bytes * units.get(each.per, 0.0) * (instances if each.per == "update" else 1)
            for each in self.traffic
            if each.direction == direction
        )


@dataclass(frozen=True)
class Resources:
    """The resources of one instance of a role.

    Attributes:
      cores: number of CPU cores that it keeps busy.
      accelerators: number of devices that act or train; on a machine without accelerators, its CPU takes their place.
    """

    cores: float = 1.0
    accelerators: int = 0


@dataclass(frozen=True)
class Environments:
    """The environments that an instance steps.

    Attributes:
      rows: number of environments in a lane, which are stepped by one call.
      lanes: number of lanes of an instance, side by side.
      compiled: whether environments and policy are one program of the devices that act.
    """

    rows: int
    lanes: int = 1
    compiled: bool = False


@dataclass(frozen=True)
class Acts:
    """The policy that an instance runs.

    Attributes:
      rows: number of environments in a full batch.
      wait: time in s that a partial batch waits for more environments.
      devices: devices of its process that act, by index; none: a CPU core of the instance.
    """

    rows: int
    wait: float = 0.0
    devices: tuple[int, ...] = ()


@dataclass(frozen=True)
class Trains:
    """The updates that an instance makes.

    Attributes:
      steps: number of agent steps that are acted for each batch, on one host.
      unroll: number of steps of one environment that are handed over at once.
      updates: number of updates with one batch.
      waiting: number of batches that may wait for the learner, in its memory and ahead of time.
      devices: devices of its process that train, by index.
      lag: number of rounds by which acting is ahead of learning; None: free.
      samples: whether batches are samples from a replay.
    """

    steps: float
    unroll: int
    updates: int = 1
    waiting: float = 1.0
    devices: tuple[int, ...] = (0,)
    lag: int | None = None
    samples: bool = False


@dataclass(frozen=True)
class Role:
    """A role: a group of instances of a program that do the same.

    Attributes:
      name: name for the user, and for the roles that dial it.
      count: number of instances, on each host.
      entry: ``module:function`` that is called with a :class:`Context` and runs one instance; None for the head, and
        for roles whose instances are threads that the head starts itself.
      needs: resources of one instance.
      dials: conversations that an instance begins.
      listens: whether an instance has an address of its own, at which others dial it.
      near: role whose machine an instance should share, so that shared memory takes the place of the network.
      restarts: number of restarts of one instance within ten minutes, at most; None: the run ends when one dies.
      silent_after: seconds that an instance may owe something before it is ended; 0: it is not watched. The head knows
        the debts, see :class:`seedbed.instances.Instances`.
      starts_within: seconds in which an instance has to be ready, in addition to its ``patience``.
      patience: seconds for which an instance waits for the roles that it dials.
      grace: seconds in which an instance may end by itself once the head is gone; after that it is killed.
      late: reason for ending an instance that was silent for ``{seconds}``, for the user.
      elastic: whether instances may join and leave while the run goes on.
      guests: number of further instances, on each host, that come and go with the room of a cluster: their indices
        follow those of the others, their end costs no restart, and the run waits for none of them.
      accelerated: whether its JAX uses the same platform as the head's; otherwise the CPU.
      has_machine: whether each instance has a machine to itself, with all devices of it, since it trains there.
      niceness: niceness of its processes above the head's, see :mod:`seedbed.priority`; None: by the head's platform.
      steps, acts, trains: parts of the loop that an instance runs, for the planner; None: it does not run this part.
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
    grace: float = GRACE_SECONDS
    late: str = "it gave no sign of life for {seconds} s (--env-timeout allows more)"
    elastic: bool = False
    guests: int = 0
    accelerated: bool = False
    has_machine: bool = False
    niceness: int | None = 0
    steps: Environments | None = None
    acts: Acts | None = None
    trains: Trains | None = None

    def is_guest(self, index: int) -> bool:
        """Returns whether the instance with this index comes and goes."""
        return self.count <= index < self.count + self.guests


@dataclass(frozen=True)
class Program:
    """All roles of a run, in the order in which they are started.

    Attributes:
      roles: all roles; the head dials the roles before it, and the roles after it dial the head or one another.
      head: name of the role whose process holds the run.
      hosts: number of hosts, each with a head and instances of its own.

    Raises:
      ConfigError: a role names one that does not exist, or two have the same name.
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
        """The roles before the head, which dials them."""
        return self.roles[: self._position]

    @property
    def after(self) -> tuple[Role, ...]:
        """The roles after the head, which dial it or one another."""
        return self.roles[self._position + 1 :]

    @property
    def edges(self) -> Iterator[tuple[Role, Edge]]:
        """All conversations, each with the role that begins it."""
        return ((role, edge) for role in self.roles for edge in role.dials)

    @property
    def is_dialled(self) -> bool:
        """True if anything travels between different roles."""
        return any(edge.to != role.name for role, edge in self.edges)

    @property
    def has_instances(self) -> bool:
        """True if the program has instances of other roles than the head."""
        return len(self.roles) > 1

    def to_json(self) -> dict[str, Any]:
        """Returns the program as JSON values."""
        return {"head": self.head, "hosts": self.hosts, "roles": [asdict(role) for role in self.roles]}

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> Program:
        """Makes a program of the values of :meth:`to_json`; raises :class:`ConfigError` if they are of none."""
        try:
            roles = tuple(_role(**role) for role in value["roles"])
            return Program(roles, value["head"], value["hosts"])
        except (KeyError, TypeError, AttributeError) as error:
            raise ConfigError(f"these are not the values of a program: {error!r}") from error


def _role(*, needs: Mapping[str, Any], dials: Sequence[Mapping[str, Any]], **rest: Any) -> Role:
    edges = tuple(Edge(edge["to"], tuple(Traffic(**each) for each in edge["traffic"])) for edge in dials)
    parts: dict[str, Any] = {
        name: None if (values := rest.pop(name, None)) is None else kind(**_with_tuples(values))
        for name, kind in (("steps", Environments), ("acts", Acts), ("trains", Trains))
    }
    return Role(**rest, **parts, needs=Resources(**needs), dials=edges)


def _with_tuples(values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the values of JSON with tuples in the place of lists."""
    return {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}


@dataclass(frozen=True)
class Task:
    """The task of one instance, as JSON values.

    Attributes:
      role: name of the role.
      index: number of the instance within the role.
      entry: entry of the role.
      run: settings of the run.
      spec: spec of the environments.
      dials: addresses of the roles that it dials, in the order of their instances.
      patience: seconds for which it waits for these roles.
      listens: its own address; None if it is not dialled.
      folder: folder of its own, which outlives it and holds the checkpoint that it begins with.
      niceness: niceness of its process above the head's, see :mod:`seedbed.priority`.
      abroad: another address, at which instances on other machines dial it; empty if all are on this one.
      identity: files of the certificate that it shows there and of the key to it; empty for plain text.
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
    niceness: int = 0
    abroad: str = ""
    identity: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Returns the task as JSON values."""
        return asdict(self)


@dataclass(frozen=True)
class Context:
    """The argument of a role's entry.

    Attributes:
      task: task of the instance.
      invitation: knowledge by which the other instances admit this one.
      claim: secret of the session by which one on another machine takes its index; empty if it needs none.
      over: event that is set when the instance is to end.
      make_config: function that makes the run's settings from their JSON values.
      make_agent: function that makes the agent; it imports JAX.
      alone: whether the instance has a process to itself, which it may end.
    """

    task: Task
    invitation: Invitation
    claim: str
    over: threading.Event
    make_config: Callable[[dict[str, Any]], RunConfig]
    make_agent: Callable[[RunConfig, EnvSpec], Agent]
    alone: bool = False

    @property
    def token(self) -> str:
        """The run's token."""
        return self.invitation.token

    @cached_property
    def config(self) -> RunConfig:
        """Settings of the run."""
        return self.make_config(self.task.run)

    @cached_property
    def spec(self) -> EnvSpec:
        """Spec of the environments."""
        from seedbed.types import EnvSpec

        return EnvSpec.from_json(self.task.spec)

    @cached_property
    def agent(self) -> Agent:
        """The agent; made at first use, which imports JAX."""
        return self.make_agent(self.config, self.spec)

    @property
    def gate(self) -> Gate:
        """Admission of instances on other machines."""
        identity = Identity.read(*self.task.identity) if self.task.identity else None
        return Gate(self.token, identity, insecure=identity is None)

    def address_of(self, role: str) -> str:
        """Returns the address of the instance of a role that this instance dials."""
        addresses = self.task.dials[role]
        return addresses[self.task.index % len(addresses)]

    def dial(self, role: str) -> Client:
        """Returns a connection to the instance at :meth:`address_of`, which may still be starting.

        Raises:
          ConnectionLost: the instance does not listen in time, or this one is to end.
        """
        address, deadline = self.address_of(role), time.monotonic() + self.task.patience
        timeout = min(_LOOK_SECONDS, self.task.patience) if within_machine(address) else _REACH_SECONDS
        while True:
            try:
                return connect(address, timeout=timeout, invitation=self.invitation)
            except ConnectionLost:
                if self.over.is_set() or time.monotonic() > deadline:
                    raise
