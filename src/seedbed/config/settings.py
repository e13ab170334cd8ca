"""Every setting of a run, once. Field names are the flags, docstrings the help."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Annotated, Any, Literal

import tyro

from seedbed.acting.lag import ExactLag, Lag, lag_of
from seedbed.config.placement import (
    BESIDE,
    OF_ENVIRONMENTS,
    EngineSettings,
    HostSettings,
    LearnerSettings,
    PlaceSettings,
    PopulationSettings,
    RemoteSettings,
    TransportSettings,
    at_least,
)
from seedbed.envs.policies import SEVERAL, SHARED, option
from seedbed.errors import ConfigError
from seedbed.nets.network import Network
from seedbed.registry import AGENTS, ARCHITECTURES
from seedbed.seeding import MOST_SEED

_URL = re.compile(r"[a-z][a-z0-9+.-]*(::[a-z][a-z0-9+.-]*)*://.", re.IGNORECASE)
_PASSWORD = re.compile(r"[^/]*://[^/@]*:[^/@]*@")


def _require_finite(settings: object) -> None:
    """Refuses nan and inf in any section; None is no limit."""
    for part in fields(settings):  # type: ignore[arg-type]
        value = getattr(settings, part.name)
        if is_dataclass(value):
            _require_finite(value)
        elif isinstance(value, float) and not math.isfinite(value):
            raise ConfigError(f"{part.name} is {value}, and has to be a finite number")


def require_store(url: str) -> None:
    """Refuses what is no URL, and passwords, which would stand in the run's record; raises :class:`ConfigError`."""
    if not _URL.match(url):
        raise ConfigError(
            f"store is {url!r}, and has to be a URL: s3://BUCKET/RUN, gs://BUCKET/RUN, or file:///FOLDER for a folder"
        )
    if _PASSWORD.match(url):
        raise ConfigError(
            f"store is {url.partition('://')[0]}://…, with a password that would stand in config.json: give it to the "
            "store's package by its own variables or files"
        )


@dataclass(frozen=True)
class Stop:
    """The end of the run: the limit that comes first."""

    frames: int | None = None
    """Environment frames (agent steps times frame skip)."""
    minutes: float | None = None
    """Minutes of training."""
    until_return: float | None = None
    """Mean return of the last 100 episodes."""

    def __post_init__(self) -> None:
        at_least(self, 0, "frames", "minutes", above=True)


@dataclass(frozen=True)
class Safety:
    """Checkpoints, and limits for faults."""

    checkpoint_minutes: float = 5.0
    """Minutes between checkpoints; one more is written at the end, also after Ctrl-C."""
    keep_checkpoints: int = 3
    """Checkpoints kept."""
    env_timeout: float = 60.0
    """Seconds for an environment to start or step, and for a silent part, before it is restarted."""
    max_skipped_updates: int = 10
    """Updates in a row that may be skipped because they are not finite before the run stops."""

    def __post_init__(self) -> None:
        at_least(self, 0, "checkpoint_minutes")
        at_least(self, 1, "keep_checkpoints", "max_skipped_updates")
        at_least(self, 0, "env_timeout", above=True)


@dataclass(frozen=True)
class RunConfig:
    """Train an agent.

    Its ``placement`` and its ``settings`` are the ``Settings`` of the architecture and of the agent; None for defaults.
    """

    env: Annotated[str, tyro.conf.Positional] = "ALE/Pong-v5"
    """A Gymnasium id, envpool:TASK, gymnax:, brax:, craftax:, pgx: or toy:NAME, or module:factory."""
    arch: str = ARCHITECTURES.default
    """Architecture (where the parts run), or module:NAME of your own."""
    agent: str = AGENTS.default
    """Agent (what is computed), or module:NAME of your own; a preset may name another default."""
    preset: str = "auto"
    """Defaults to start from: auto (by the environment), none, or a name."""
    seed: int = 0
    """Root of all randomness."""
    deterministic: bool = False
    """Reproducible bit by bit and resumed exactly: exact lag, fixed batches, environments brought back."""
    init_from: str | None = None
    """Run folder whose newest parameters the run begins with, as far as they fit; none: new ones."""
    env_options: tuple[str, ...] = ()
    """Options of the environment: name=value, read by the default's type, or name:=JSON."""
    policies: Literal["shared", "own", "kind"] = field(default="shared", metadata={OF_ENVIRONMENTS: SEVERAL})
    """Policies of an environment's agents: shared by all, each agent's own, or one a kind (by name)."""
    run_dir: str | None = None
    """Folder of the run; None for a new one under runs/."""
    begin_or_resume: bool = False
    """Go on with the run in --run-dir if there is one, so that the same command may be executed again."""
    store: str | None = field(default=None, metadata={BESIDE: "run_dir"})
    """URL of a bucket or folder for copies of the run's state, which goes on from there on any machine."""
    log: tuple[str, ...] = ()
    """Services that metrics go to as well: wandb, mlflow, trackio (extras), or module:NAME of your own."""
    json: bool = False
    """Print the summary as the last line."""
    video: bool = True
    """End with a video of the agent."""
    net: Network = field(default_factory=Network)
    stop: Stop = field(default_factory=Stop)
    safety: Safety = field(default_factory=Safety)
    placement: Any = None
    settings: Any = None

    def __post_init__(self) -> None:
        if not 0 <= self.seed <= MOST_SEED:
            raise ConfigError(f"seed is {self.seed}, and has to be between 0 and {MOST_SEED}")
        if self.policies != SHARED and not self.env.startswith(SEVERAL):
            raise ConfigError(
                f"policies is {self.policies}, and {self.env} has one agent: leave it out, or give an environment of "
                f"several ({', '.join(f'{prefix}…' for prefix in SEVERAL)})"
            )
        if self.begin_or_resume and self.run_dir is None:
            raise ConfigError("begin_or_resume needs the folder that may hold the run: give --run-dir")
        if self.store is not None:
            require_store(self.store)
        for section, registry, name in (
            ("placement", ARCHITECTURES, self.arch),
            ("settings", AGENTS, self.agent),
        ):
            wanted = registry.load(name).Settings
            given = getattr(self, section)
            if given is None:
                object.__setattr__(self, section, wanted())
            elif not isinstance(given, wanted):
                raise ConfigError(
                    f"{section} is a {type(given).__name__}, and has to be a {wanted.__name__} for the {registry.kind} "
                    f"{name}: seedbed.configure makes the right one"
                )

        _require_finite(self)
        if self._listens and self.lag.exact:
            raise ConfigError(
                f"listen is {', '.join(self.placement.listen)}, but only a run's own actors keep an exact lag: leave "
                "--listen out, or --deterministic, and give --lag free (a preset may have set another)"
            )

        if self.store is not None and self.cluster.hosts > 1:
            raise ConfigError(
                f"store is {self.store} and hosts is {self.cluster.hosts}: the state of several hosts is not copied "
                "there; leave --store out, and give a --run-dir on a disk that all machines share"
            )
        if isinstance(self.placement, PlaceSettings) and self.placement.on != "here":
            self._require_places(self.placement.on)

    def _require_places(self, on: str) -> None:
        """Refuses settings with which nothing of the run could be on other machines."""
        if self.cluster.hosts > 1:
            if self.cluster.coordinator is not None:
                raise ConfigError(
                    f"on is {on}, which finds machines for the other hosts, and coordinator is "
                    f"{self.cluster.coordinator}, for hosts that are started by hand: leave one of them out"
                )
        elif not isinstance(self.placement, EngineSettings):
            raise ConfigError(
                f"on is {on} and hosts is 1: under {self.arch} a host is one process, so there is nothing to place; "
                "give --hosts 2 or more, or leave --on out"
            )
        elif isinstance(self.placement, TransportSettings) and self.placement.transport == "inproc":
            raise ConfigError(
                f"on is {on}, and transport inproc makes actors threads of this process: use --transport shm or "
                "grpc"
            )

    @property
    def making(self) -> tuple[str, ...]:
        """Options with which environments are made: their own, and the word for agents with policies of their own."""
        return self.env_options if self.policies == SHARED else (*self.env_options, option(self.policies))

    @property
    def on(self) -> str:
        """Place of the run's own actors: here, or a cluster; several hosts have theirs beside them."""
        apart = isinstance(self.placement, EngineSettings) and self.cluster.hosts == 1
        return self.placement.on if apart else "here"

    @property
    def lag(self) -> Lag:
        """The lag of the weights that act; a deterministic run has an exact one."""
        asked = self.placement.lag if isinstance(self.placement, LearnerSettings) else "free"
        lag = lag_of(self._own_lag if asked is None else asked)
        return ExactLag(0) if self.deterministic and not lag.exact else lag

    @property
    def _own_lag(self) -> int | Literal["free"]:
        """The lag that the agent is made for, unless actors come from elsewhere, whose lag is free."""
        return "free" if self._listens else getattr(self.settings, "own_lag", "free")

    @property
    def _listens(self) -> bool:
        return isinstance(self.placement, RemoteSettings) and bool(self.placement.listen)

    @property
    def cluster(self) -> HostSettings:
        """The hosts that train together; one where the architecture knows no others."""
        return self.placement if isinstance(self.placement, HostSettings) else HostSettings()

    @property
    def population(self) -> PopulationSettings:
        """The agents that are trained side by side; one where the architecture knows no others."""
        return self.placement if isinstance(self.placement, PopulationSettings) else PopulationSettings()
