"""Groups of settings of which architectures are composed: an architecture's ``Settings`` derive from the ones it reads.

A group knows no architecture. A field with :data:`FOR_QUEUES`, :data:`FOR_REPLAYS` or :data:`FOR_EXPLORERS` as
metadata has a meaning for some agents only: it is shown, and may be given, where the agent's ``Settings`` have the same
values.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass, field, fields
from typing import Annotated, Any, Literal

import tyro

from seedbed.acting.assignment import lanes_of
from seedbed.config.launchers import LauncherName
from seedbed.errors import ConfigError, listed
from seedbed.priority import IDLE

FOR_QUEUES = {"memory": "queue"}
"""Metadata of a setting for agents whose batches come from a queue."""
FOR_REPLAYS = {"memory": "replay"}
"""Metadata of a setting for agents whose batches come from a replay."""
FOR_EXPLORERS = {"explores": True}
"""Metadata of a setting for agents that explore by chance."""
_REMOTE_BATCH = 64
"""Environments in a full inference batch where all actors come from elsewhere."""
_ROOM_FOR_OTHERS = 256
"""Slots for environments of actors from elsewhere, unless max_envs says otherwise."""
OTHER_ACTORS = 1024
"""Conversations with actors from elsewhere, unless max_actors says otherwise."""


def at_least(settings: object, least: float, *names: str, above: bool = False) -> None:
    """Refuses numbers below ``least`` (or at it, with ``above``); None is accepted."""
    for name in names:
        value = getattr(settings, name)
        if value is not None and not (value > least if above else value >= least):
            raise ConfigError(
                f"{name} is {value}, and has to be {f'more than {least}' if above else f'{least} or more'}"
            )


@dataclass(frozen=True)
class Idle:
    """Settings that mean nothing where all of certain others have certain values.

    Attributes:
      names: the settings that mean nothing.
      where: the other settings, with the value of each at which that is so.
    """

    names: tuple[str, ...]
    where: Mapping[str, Any]

    def beside(self, section: Any) -> str:
        """Returns in words what a section has of the values, and the flags that would give the settings a meaning."""
        found = {name: value for name, value in self.where.items() if hasattr(section, name)}
        values = listed([f"{name} is {'empty' if value == () else value}" for name, value in found.items()])
        return f"{values}: give {listed([flag_of(name) for name in found], 'or')}"

    def at(self, section: Any) -> bool:
        """Returns whether the others have these values in a section; one that it lacks has."""
        return all(getattr(section, name, value) == value for name, value in self.where.items())


MEANINGLESS: tuple[Idle, ...] = (
    Idle(("opponents_every", "opponents_share", "opponents_by"), {"opponents": 0}),
    Idle(("coordinator", "host_timeout"), {"hosts": 1}),
    Idle(("max_envs", "max_actors"), {"listen": ()}),
    Idle(("tls_cert", "insecure"), {"listen": (), "hosts": 1, "on": "here"}),
)
"""Settings that mean nothing without others."""


BESIDE = "beside"
"""Key of the metadata of a setting that help shows only beside another one, whose name is the value."""


NEEDS = "needs"
"""Key of the metadata of a setting that means nothing while another one, whose name is the value, is 0 or none."""


OF_ENVIRONMENTS = "of environments"
"""Key of the metadata of a setting that help shows only with certain environments, whose ids begin with the value."""


def has_meaning(part: Any, agent_settings: Any) -> bool:
    """Returns whether a setting means something beside these settings of the agent, or for agents of such a class.

    Its metadata has the values, one or a tuple of them, that other settings must have, or :data:`NEEDS`.
    """
    return not unmet(part, agent_settings)


def unmet(part: Any, agent_settings: Any) -> dict[str, str]:
    """Returns the settings whose values make another one mean nothing, each with the flag that would give it a meaning.

    See :func:`has_meaning`.
    """
    found = {}
    for name, needed in part.metadata.items():
        values = needed if isinstance(needed, tuple) else (needed,)
        if name == NEEDS and not getattr(agent_settings, needed, True):
            found[needed] = flag_of(needed)
        elif name not in (BESIDE, NEEDS) and getattr(agent_settings, name, None) not in values:
            found[name] = f"{flag_of(name)} {values[0]}"
    return found


def deciding(part: Any) -> set[str]:
    """Returns the names of the settings that decide whether another one means something."""
    return {needed if name == NEEDS else name for name, needed in part.metadata.items() if name != BESIDE}


def flag_of(name: str) -> str:
    """Returns the flag of a setting."""
    return f"--{name.replace('_', '-')}"


def is_shown(part: Any, section: Any, given: Container[str] = ()) -> bool:
    """Returns whether help shows a setting of a section: always, or if the one that it stands beside is given.

    That is so if its name, or the setting's own, is among ``given``, or if it has another value than its default. A
    setting of certain environments is shown with these, whose id the section has.
    """
    if (prefix := part.metadata.get(OF_ENVIRONMENTS)) is not None:
        return part.name in given or section.env.startswith(prefix)
    if (beside := part.metadata.get(BESIDE)) is None or beside in given or part.name in given:
        return True
    (default,) = (other.default for other in fields(section) if other.name == beside)
    return bool(getattr(section, beside) != default)


@dataclass(frozen=True)
class Group:
    """Base of all groups."""

    def __post_init__(self) -> None:
        """Refuses values that no run can have; groups call their bases' first."""


@dataclass(frozen=True)
class InstanceSettings(Group):
    """Actors, workers, replicas or threads that the run starts itself."""

    actors: int = 2
    """Actors that this run starts on this machine; 0 if all come from elsewhere."""
    actor_restarts: int = 3
    """Restarts of one actor within ten minutes before the run stops."""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, 0, "actors", "actor_restarts")


@dataclass(frozen=True)
class EnvironmentSettings(InstanceSettings):
    """Actors with batches of environments."""

    envs_per_actor: int = 16
    """Environments (or agents in them) of each actor; one half steps while the other waits."""
    eval_envs: int = field(default=0, metadata=FOR_EXPLORERS)
    """Environments, the last ones, that only evaluate: nothing is learned there; returns are theirs alone."""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, 0, "eval_envs")
        at_least(self, 1, "envs_per_actor")
        if self.eval_envs and self.eval_envs >= self.planned:
            raise ConfigError(
                f"eval_envs is {self.eval_envs}, and has to be less than the {self.planned} environments of the run's "
                "own actors, or there is nothing to learn from: give --eval-envs (a preset may have set it)"
            )

    @property
    def planned(self) -> int:
        """Environments of the run's own actors."""
        return self.actors * self.envs_per_actor

    @property
    def stepped_together(self) -> int:
        """Environments in each batch that an actor steps."""
        return lanes_of(self.envs_per_actor)[1]

    @property
    def largest_batch(self) -> int:
        """Environments in the largest batch that one device acts for; no lane is larger."""
        return self._rows(1, 0, None)

    def _rows(self, devices: int, device: int, asked: int | None) -> int:
        rows = self.stepped_together
        here = len(range(device, self.actors, devices))
        return max(asked or here * rows or _REMOTE_BATCH, rows)


@dataclass(frozen=True)
class TransportSettings(Group):
    """A carrier between actors and the process that serves them."""

    transport: Literal["inproc", "shm", "grpc"] = "shm"
    """Carrier to the actors of this machine: threads, shared memory, or gRPC on a Unix socket."""


@dataclass(frozen=True)
class NetworkSettings(Group):
    """Conversations that other machines may hear."""

    tls_cert: tuple[str, ...] = ()
    """Two PEM files, a certificate to show on the network and its key; none: the run makes its own."""
    insecure: bool = False
    """Plain text on the network, which everybody on the way can read and change."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.tls_cert) not in (0, 2):
            raise ConfigError(
                f"tls_cert has {len(self.tls_cert)} files, and takes two: --tls-cert CERTIFICATE KEY"
            )
        if self.tls_cert and self.insecure:
            raise ConfigError(
                "a certificate and plain text contradict each other: give --tls-cert or --insecure"
            )


@dataclass(frozen=True)
class PlaceSettings(NetworkSettings):
    """Processes of the run's own that may be on other machines."""

    on: LauncherName = "here"
    """Place of the run's own actors, or of its other hosts: this machine, or those of a Ray cluster."""


@dataclass(frozen=True)
class EngineSettings(InstanceSettings, PlaceSettings):
    """Actors, workers or replicas of the run's own that an engine places."""

    @property
    def most_actors(self) -> int:
        """Most actors, workers or replicas that a server has conversations with at once."""
        return self.actors + OTHER_ACTORS


@dataclass(frozen=True)
class RemoteSettings(EnvironmentSettings, EngineSettings):
    """Actors that join from other machines."""

    listen: tuple[str, ...] = ()
    """Addresses for actors from elsewhere: HOST:PORT (port 0: a free one), by gRPC; socket:… without."""
    max_envs: int | None = field(default=None, metadata={BESIDE: "listen"})
    """Most environments that inference keeps slots for; None for this run's own plus 256."""
    max_actors: int | None = field(default=None, metadata={BESIDE: "listen"})
    """Most actors at once; None for this run's own plus 1024."""
    guests: int = field(default=0, metadata={BESIDE: "on"})
    """Further actors that come and go with the room of the cluster. (Free lag only.)"""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, 0, "guests")
        at_least(self, 1, "max_envs", "max_actors")
        if self.actors == 0 and not self.listen and not self.guests:
            raise ConfigError(
                "actors is 0 and listen names no address, so no environment would be stepped: give one or more actors, "
                "or --listen HOST:PORT for actors from elsewhere"
            )

    @property
    def most_actors(self) -> int:
        """See :class:`EngineSettings`; raises :class:`ConfigError` if the run's own are more."""
        own = self.actors + self.guests
        if self.max_actors is not None and self.max_actors < own:
            raise ConfigError(
                f"max_actors is {self.max_actors}, and has to be {own} or more: so many are the run's own"
            )
        return self.max_actors or super().most_actors + self.guests

    @property
    def slots(self) -> int:
        """Environments that inference keeps slots for; raises :class:`ConfigError` if the run's own need more."""
        own = self.planned + self.guests * self.envs_per_actor
        if self.max_envs is not None and self.max_envs < own:
            raise ConfigError(
                f"max_envs is {self.max_envs}, and has to be {own} or more: the run's own {self.actors + self.guests} "
                f"actors have {self.envs_per_actor} environments each"
            )
        return self.max_envs or own + _ROOM_FOR_OTHERS


@dataclass(frozen=True)
class InferenceDeviceSettings(Group):
    """Devices that act."""

    inference_devices: Annotated[tuple[int, ...], tyro.conf.arg(aliases=("--actor-devices",))] = (0,)
    """Devices that act, by index (see seedbed doctor)."""


@dataclass(frozen=True)
class BatchingSettings(EnvironmentSettings):
    """Inference batches over actors."""

    inference_batch: int | None = None
    """Environments in a full inference batch; None for half of this run's own. (Free lag only.)"""
    inference_wait_ms: float = field(default=2.0, metadata={BESIDE: "inference_batch"})
    """Milliseconds that a partial batch waits for more. (Free lag only.)"""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, 0, "inference_wait_ms")
        at_least(self, 1, "inference_batch")


@dataclass(frozen=True)
class OpponentSettings(Group):
    """Self-play against frozen versions of the policy."""

    opponents: int = field(default=0, metadata={BESIDE: "opponents"})
    """Most frozen versions of the policy that play against it, in games of two; 0: no self-play."""
    opponents_every: int = field(default=200, metadata={BESIDE: "opponents"})
    """Updates between two frozen versions."""
    opponents_share: float = field(default=0.2, metadata={BESIDE: "opponents"})
    """Share of games against frozen versions; in the others the policy plays both sides."""
    opponents_by: Literal["uniform", "recent", "pfsp"] = field(default="pfsp", metadata={BESIDE: "opponents"})
    """Choice among frozen versions: all alike, the newest more often, or those that beat the policy."""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, 0, "opponents", "opponents_share")
        at_least(self, 1, "opponents_every")
        if self.opponents_share > 1:
            raise ConfigError(f"opponents_share is {self.opponents_share}, and has to be a share: 1 or less")


@dataclass(frozen=True)
class PrioritySettings(Group):
    """Priority of actors that only step environments."""

    actor_niceness: int | None = field(default=None, metadata={BESIDE: "actors"})
    """Niceness of actors, to 19; 20: only idle cores; none: 20 beside an accelerator, else 0."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.actor_niceness is not None and not 0 <= self.actor_niceness <= IDLE:
            raise ConfigError(f"actor_niceness is {self.actor_niceness}, and has to be from 0 to {IDLE}")


@dataclass(frozen=True)
class InferenceSettings(BatchingSettings, InferenceDeviceSettings, PrioritySettings):
    """Central inference: batches over actors, on devices that act."""

    def full_batch(self, device: int = 0) -> int:
        """Environments in a full inference batch of the ``device``-th device that acts; no lane is larger."""
        return self._rows(len(self.inference_devices), device, self.inference_batch)

    @property
    def largest_batch(self) -> int:
        """Environments in the largest of all inference batches."""
        return max(map(self.full_batch, range(len(self.inference_devices))))


@dataclass(frozen=True)
class TrainingDeviceSettings(Group):
    """Devices that train."""

    training_devices: Annotated[tuple[int, ...], tyro.conf.arg(aliases=("--learner-devices",))] = (0,)
    """Devices that train, by index; each takes an equal share of the batch."""


@dataclass(frozen=True)
class LearnerSettings(Group):
    """Lag, and the way of unrolls to a learner."""

    queue_size: int | None = field(default=None, metadata=FOR_QUEUES)
    """Unrolls that may wait for the learner; None for one batch. (Free lag only.)"""
    prefetch: int = 1
    """Batches assembled and moved to the training devices ahead of time. (Free lag only.)"""
    lag: int | Literal["free"] | None = None
    """Rounds between acting and newest weights: free, or exact; None: the agent's own (ppo, a2c, pqn: 0)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, 0, "prefetch")
        at_least(self, 1, "queue_size")
        if self.lag != "free":
            at_least(self, 0, "lag")


@dataclass(frozen=True)
class FetchSettings(Group):
    """Actors that fetch weights."""

    fetch_steps: int | None = None
    """Steps between fetches of newer weights, at unrolls' beginnings; None: as published. (Free lag only.)"""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, 0, "fetch_steps")


@dataclass(frozen=True)
class HostSettings(PlaceSettings):
    """Hosts that train together."""

    hosts: int = 1
    """Hosts that train one agent, each with actors and devices of its own and its share of every batch."""
    host: int = field(default=0, metadata={BESIDE: "hosts"})
    """Number of this host; 0 is the one that the others connect to."""
    coordinator: str | None = field(default=None, metadata={BESIDE: "hosts"})
    """HOST:PORT of host 0, reachable for the others; None: host 0 starts them, here or on a cluster."""
    host_timeout: float = field(default=30.0, metadata={BESIDE: "hosts"})
    """Seconds without a sign of life after which a host counts as gone, and the run ends."""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, 1, "hosts")
        at_least(self, 0, "host")
        at_least(self, 0, "host_timeout", above=True)
        if self.host >= self.hosts:
            raise ConfigError(f"host is {self.host} and hosts is {self.hosts}: hosts count from 0")
        if self.host and self.coordinator is None:
            raise ConfigError(f"host {self.host} has to be told where host 0 is: add --coordinator HOST:PORT")


@dataclass(frozen=True)
class ShardSettings(Group):
    """Parameters that gradients are pushed to."""

    shards: int = 1
    """Parts of the parameters, each of which takes gradients by itself."""
    max_staleness: int | None = None
    """Most gradients that a shard took since the parameters of a gradient; None: the architecture's own."""
    stale_gradients: Literal["drop", "scale"] = "drop"
    """Treatment of a gradient that is staler: drop it, or scale down its change."""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, 1, "shards")
        at_least(self, 0, "max_staleness")


@dataclass(frozen=True)
class ShardProcessSettings(ShardSettings):
    """Shards in processes of their own."""

    outlier_deviations: float | None = None
    """Standard deviations above the mean loss that make an outlier; None: the architecture's own."""
    shard_snapshot_seconds: float = 10.0
    """Seconds between two snapshots of a shard, from which it goes on if its process dies."""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, 0, "outlier_deviations", "shard_snapshot_seconds", above=True)


@dataclass(frozen=True)
class PopulationSettings(Group):
    """Agents that are trained side by side."""

    seeds: int = 1
    """Independent agents in one program, with the seeds from seed on."""
    sweep: tuple[str, ...] = ()
    """Numbers of the agent to compare, as name=value,value,…; every value is trained with every seed."""
    draws: int | None = field(default=None, metadata={BESIDE: "sweep"})
    """Agents of each seed whose swept numbers are drawn, also as name=low..high or name=log:low..high."""
    pbt_frames: int | None = field(default=None, metadata={BESIDE: "sweep"})
    """Frames between two rounds of population-based training of the agents of a sweep; none: no rounds."""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, 1, "seeds", "draws", "pbt_frames")
        given = [name for name in ("draws", "pbt_frames") if getattr(self, name) is not None]
        if given and not self.sweep:
            raise ConfigError(
                f"{given[0]} is given, and nothing that differs between agents: give --sweep, as in "
                "--sweep learning_rate=1e-4,3e-4,1e-3,3e-3"
            )


def names_of(settings: type[Any]) -> set[str]:
    """Returns the names of all settings of a dataclass."""
    return {part.name for part in fields(settings)}
