"""Every setting of a run, once. Field names are the flags, docstrings the help."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

import tyro

from seedbed.acting.recipe import lanes_of
from seedbed.agents.a2c import A2CSettings
from seedbed.agents.bc import BCSettings
from seedbed.agents.dqn import DQNSettings
from seedbed.agents.ppo import PPOSettings
from seedbed.agents.r2d2 import R2D2Settings
from seedbed.agents.vtrace import VTraceSettings
from seedbed.errors import ConfigError, unknown_name


def _at_least(settings: object, least: float, *names: str, above: bool = False) -> None:
    """Refuses numbers that are below ``least`` (or at it, if they have to be ``above``); None is fine."""
    for name in names:
        value = getattr(settings, name)
        if value is not None and not (value > least if above else value >= least):
            raise ConfigError(
                f"{name} is {value}, and has to be {f'more than {least}' if above else f'{least} or more'}"
            )


@dataclass(frozen=True)
class Network:
    """What the policy looks like."""

    network: str = "auto"
    """Torso: auto, mlp, tiny, small, pooled, nature, shallow, deep, or module:Class of your
    own."""
    hidden: tuple[int, ...] = ()
    """Sizes of the torso's dense layers; none given: the network's own."""
    lstm: int | None = None
    """Size of an LSTM between torso and heads; 0 for none; None for the agent's own (r2d2: 512, the others: 0)."""
    compute_dtype: Literal["float32", "bfloat16", "auto"] = "float32"
    """In what pictures go through the torso's convolutions; weights and the rest are float32. auto: bfloat16 on
    accelerators and on CPUs that have it (see seedbed doctor)."""
    observations: Literal["auto", "bytes"] = "auto"
    """How observations enter the network; auto: by their declared bounds; bytes: every uint8 by 255, as version 0.1
    did."""

    def __post_init__(self) -> None:
        _at_least(self, 0, "lstm")
        for size in self.hidden:
            if size < 1:
                raise ConfigError(f"hidden has a layer of size {size}, and has to have sizes of 1 or more")


@dataclass(frozen=True)
class Stop:
    """When the run ends: at whichever comes first."""

    frames: int | None = None
    """Environment frames (agent steps times frame skip)."""
    minutes: float | None = None
    """Minutes of training."""
    until_return: float | None = None
    """Mean return of the last 100 episodes."""

    def __post_init__(self) -> None:
        _at_least(self, 0, "frames", "minutes", above=True)


_REMOTE_BATCH = 64
"""Environments in a full inference batch where all actors come from elsewhere."""
_ROOM_FOR_OTHERS = 256
"""Slots for environments of actors from elsewhere, unless max_envs says otherwise."""


@dataclass(frozen=True)
class Placement:
    """Where the parts stand."""

    actors: int = 2
    """Actors that this run starts on this machine (sebulba: threads); 0 if all come from elsewhere."""
    envs_per_actor: int = 16
    """Environments of each actor; one half steps while the other waits for its actions (sebulba: while another
    thread's do)."""
    eval_envs: int = 0
    """Environments, the last ones of this run's actors, that only evaluate: they hardly explore, nothing is learned
    from them, and the returns that are reported are theirs alone. (Agents that explore by chance.)"""
    transport: Literal["inproc", "shm", "grpc"] = "shm"
    """How the actors of this machine are reached: threads, shared memory or gRPC on a Unix socket."""
    listen: tuple[str, ...] = ()
    """Addresses (HOST:PORT, port 0 for a free one) where actors of other machines may join by gRPC."""
    max_envs: int | None = None
    """Most environments that inference keeps slots for; None for those of this run's actors plus 256."""
    inference_batch: int | None = None
    """Environments in a full inference batch; None for half of those of this run's actors. (Free lag only.)"""
    inference_wait_ms: float = 2.0
    """How long a partial batch waits for more, in milliseconds. (Free lag only.)"""
    inference_devices: Annotated[tuple[int, ...], tyro.conf.arg(aliases=("--actor-devices",))] = (0,)
    """Devices that act, by index (see seedbed doctor)."""
    training_devices: Annotated[tuple[int, ...], tyro.conf.arg(aliases=("--learner-devices",))] = (0,)
    """Devices that train, by index; each takes an equal share of the batch."""
    queue_size: int | None = None
    """Unrolls that may wait for the learner; None for one batch. (Free lag only.)"""
    prefetch: int = 1
    """Batches assembled and moved to the training devices ahead of time. (Free lag only.)"""
    fetch_steps: int | None = None
    """Steps of an environment after which its actor fetches newer weights, at the beginning of an unroll; None for
    the architecture's own (impala: every unroll; apex: 400 frames). (Impala and apex, free lag only.)"""
    forward_servers: int = 1
    """Forward-pass servers of each host, which run the policy for its actors. (Rapid only.)"""
    publish_updates: int = 1
    """Updates after which the weights are published to the forward-pass servers. (Rapid, free lag only.)"""
    batches_per_call: int = 8
    """Batches that one call of the compiled program acts for and learns from. (Anakin only.)"""
    lag: int | Literal["free"] = "free"
    """How far the weights that act may be behind the newest: free (its mean is bounded by the queue; counted in
    updates), or an exact number of rounds, in lockstep."""

    def __post_init__(self) -> None:
        _at_least(self, 0, "actors", "eval_envs", "inference_wait_ms", "prefetch")
        _at_least(self, 1, "envs_per_actor", "inference_batch", "queue_size", "max_envs", "batches_per_call")
        _at_least(self, 1, "forward_servers", "publish_updates")
        _at_least(self, 0, "fetch_steps")
        if self.lag != "free":
            _at_least(self, 0, "lag")
        if self.eval_envs and self.eval_envs >= (planned := self.actors * self.envs_per_actor):
            raise ConfigError(
                f"eval_envs is {self.eval_envs}, and has to be less than the {planned} environments of the run's own "
                "actors, or there is nothing to learn from: give --eval-envs (a preset may have set it)"
            )
        if self.actors == 0 and not self.listen:
            raise ConfigError(
                "actors is 0 and listen names no address, so that nobody could step an environment: "
                "give one or more actors, or --listen HOST:PORT for actors from elsewhere"
            )

    def full_batch(self, device: int) -> int:
        """Environments in a full inference batch of the ``device``-th device that acts; no lane is larger."""
        rows = lanes_of(self.envs_per_actor)[1]
        here = len(range(device, self.actors, len(self.inference_devices)))
        return max(self.inference_batch or here * rows or _REMOTE_BATCH, rows)

    @property
    def slots(self) -> int:
        """Environments that inference keeps slots for; raises :class:`ConfigError` if the run's own need more."""
        planned = self.actors * self.envs_per_actor
        if self.max_envs is not None and self.max_envs < planned:
            raise ConfigError(
                f"max_envs is {self.max_envs}, and has to be {planned} or more: the run's own {self.actors} "
                f"actors have {self.envs_per_actor} environments each"
            )
        return self.max_envs or planned + _ROOM_FOR_OTHERS


@dataclass(frozen=True)
class Cluster:
    """How many hosts train together."""

    hosts: int = 1
    """Hosts that train one agent together, each with actors and devices of its own and its share of every batch."""
    host: int = 0
    """Which of them this one is: 0 for the one that the others come to."""
    coordinator: str | None = None
    """HOST:PORT, an address of host 0 that the others can reach; None: all hosts are started on this machine."""
    host_timeout: float = 30.0
    """Seconds without a sign of life after which a host counts as gone, and the run ends."""

    def __post_init__(self) -> None:
        _at_least(self, 1, "hosts")
        _at_least(self, 0, "host")
        _at_least(self, 0, "host_timeout", above=True)
        if self.host >= self.hosts:
            raise ConfigError(f"host is {self.host} and hosts is {self.hosts}: hosts count from 0")
        if self.host and self.coordinator is None:
            raise ConfigError(f"host {self.host} has to be told where host 0 is: add --coordinator HOST:PORT")


@dataclass(frozen=True)
class ParameterServer:
    """Parameters that workers push gradients to."""

    shards: int = 1
    """Parts of the parameters, each of which takes gradients by itself, in a process of its own (a3c: in that of the
    run). (Distbelief, gorila and a3c only.)"""
    max_staleness: int | None = None
    """How many other gradients a shard may have taken since the parameters that a gradient was computed at; None for
    the architecture's own (gorila: four of every worker; the others: any). (Distbelief, gorila and a3c only.)"""
    stale_gradients: Literal["drop", "scale"] = "drop"
    """What becomes of a gradient that is staler: drop it, or scale down what it changes. (Distbelief, gorila and a3c
    only.)"""
    outlier_deviations: float | None = None
    """By how many standard deviations a loss is above those before if its gradient is not to be pushed; None for the
    architecture's own (gorila: 5; distbelief: none is too far). (Distbelief and gorila only.)"""
    shard_snapshot_seconds: float = 10.0
    """Seconds between two snapshots of a shard, from which it goes on if its process dies. (Distbelief and gorila
    only.)"""
    dataset: str | None = None
    """Folder of the data set to learn from; see seedbed collect. (Distbelief only.)"""
    n_fetch: int = 1
    """After how many gradients a replica fetches the newest parameters. (Distbelief only.)"""
    n_push: int = 1
    """How many gradients a replica pushes together, as their mean. (Distbelief only.)"""
    warm_start: int = 0
    """Gradients that the first replica pushes before the others begin. (Distbelief only.)"""

    def __post_init__(self) -> None:
        _at_least(self, 1, "shards", "n_fetch", "n_push")
        _at_least(self, 0, "max_staleness", "warm_start")
        _at_least(self, 0, "outlier_deviations", "shard_snapshot_seconds", above=True)


@dataclass(frozen=True)
class Population:
    """How many agents are trained side by side."""

    seeds: int = 1
    """Independent agents in one program, with the seeds from seed on. (Anakin only.)"""
    sweep: tuple[str, ...] = ()
    """Numbers of the agent to compare, as name=value,value,…; every value is trained with every seed. (Anakin only.)"""

    def __post_init__(self) -> None:
        _at_least(self, 1, "seeds")


@dataclass(frozen=True)
class Safety:
    """What happens when something breaks."""

    checkpoint_minutes: float = 5.0
    """Minutes between checkpoints; one more is written at the end, also after Ctrl-C."""
    keep_checkpoints: int = 3
    """Checkpoints kept."""
    env_timeout: float = 60.0
    """Seconds that an environment may take for one step (or to start; under impala and apex: and the policy to be
    compiled in the actor) before its actor is restarted, and that a forward-pass server of rapid may be silent before
    it is; the first environment of all, which the learner makes to see what it looks like, before the run is given
    up."""
    actor_restarts: int = 3
    """Restarts of one actor within ten minutes before the run stops."""
    max_skipped_updates: int = 10
    """Updates in a row that may be skipped because they are not finite before the run stops."""

    def __post_init__(self) -> None:
        _at_least(self, 0, "actor_restarts", "checkpoint_minutes")
        _at_least(self, 1, "keep_checkpoints", "max_skipped_updates")
        _at_least(self, 0, "env_timeout", above=True)


AgentSettings = VTraceSettings | PPOSettings | A2CSettings | DQNSettings | R2D2Settings | BCSettings
SETTINGS: dict[str, type[AgentSettings]] = {
    "vtrace": VTraceSettings,
    "ppo": PPOSettings,
    "a2c": A2CSettings,
    "dqn": DQNSettings,
    "r2d2": R2D2Settings,
    "bc": BCSettings,
}
"""What can be set of each agent."""


@dataclass(frozen=True)
class RunConfig:
    """Train an agent."""

    env: Annotated[str, tyro.conf.Positional] = "ALE/Pong-v5"
    """Any Gymnasium id, envpool:TASK, gymnax:NAME, brax:NAME, craftax:NAME, toy:NAME, or module:factory of your own."""
    arch: Literal[
        "seed", "impala", "apex", "rapid", "distbelief", "gorila", "a3c", "a2c", "sebulba", "anakin"
    ] = "seed"
    """Where the parts run."""
    agent: Literal["vtrace", "ppo", "a2c", "dqn", "r2d2", "bc"] = "vtrace"
    """What is computed; a preset may name another one to start from."""
    preset: str = "auto"
    """Defaults to start from: auto (by the environment), none, or a name."""
    seed: int = 0
    """Root of all randomness."""
    deterministic: bool = False
    """Reproducible bit by bit, and resumed exactly: an exact lag, fixed batches, environments brought back."""
    env_options: tuple[str, ...] = ()
    """Options of the environment as name=value (ALE: sticky_actions, episodic_life, frame_skip, noop_max, …)."""
    run_dir: str | None = None
    """Folder of the run; None for a new one under runs/."""
    json: bool = False
    """Print the summary as the last line."""
    video: bool = True
    """End with a video of the agent."""
    net: Network = field(default_factory=Network)
    stop: Stop = field(default_factory=Stop)
    placement: Placement = field(default_factory=Placement)
    cluster: Cluster = field(default_factory=Cluster)
    server: ParameterServer = field(default_factory=ParameterServer)
    population: Population = field(default_factory=Population)
    safety: Safety = field(default_factory=Safety)
    settings: AgentSettings = field(default_factory=VTraceSettings)

    def __post_init__(self) -> None:
        if self.agent not in SETTINGS:
            raise ConfigError(unknown_name("agent", self.agent, SETTINGS))
        wanted = SETTINGS[self.agent]
        if type(self.settings) is not wanted:
            raise ConfigError(
                f"settings is a {type(self.settings).__name__}, and has to be a {wanted.__name__} for the agent "
                f"{self.agent}: seedbed.configure makes the right one"
            )
        if self.cluster.hosts > 1 and self.arch in ("a2c", "a3c", "gorila", "distbelief"):
            raise ConfigError(
                f"hosts is {self.cluster.hosts}, but a run of {self.arch} has one host: choose --arch seed"
            )
        if self.placement.listen and (self.deterministic or self.placement.lag != "free"):
            raise ConfigError(
                f"listen is {', '.join(self.placement.listen)}, but only a run's own actors keep an exact lag: "
                "leave --listen out, or --deterministic, and give --lag free (a preset may have set another)"
            )
