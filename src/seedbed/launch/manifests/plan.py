"""The plan of a manifest: the commands of a declared program's roles, and their resources, for any engine."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from seedbed.acting.trust import foreign_names
from seedbed.architectures.compatibility import require_fit, with_settings
from seedbed.architectures.program import Program, Role
from seedbed.config.placement import (
    OTHER_ACTORS,
    EngineSettings,
    InferenceSettings,
    RemoteSettings,
    TransportSettings,
)
from seedbed.config.resolve import replace, to_json
from seedbed.config.settings import RunConfig
from seedbed.config.words import words_of
from seedbed.errors import ConfigError
from seedbed.launch.manifests.order import Order
from seedbed.registry import ARCHITECTURES
from seedbed.types import Agent

_NAME = re.compile(r"[a-z]([-a-z0-9]{0,38}[a-z0-9])?")
_PATH = re.compile(r"/[\w./+-]*\w")


@dataclass(frozen=True)
class Plan:
    """A program that an engine starts.

    Attributes:
      order: the user's wishes.
      name: name of the job, which is a label of DNS.
      config: settings of the run as it was asked for, with its folder.
      program: the declared roles.
      agent: the agent.
    """

    order: Order
    name: str
    config: RunConfig
    program: Program
    agent: Agent

    @property
    def hosts(self) -> int:
        """Number of learners, which are started together or not at all."""
        return self.program.hosts

    @property
    def run(self) -> str:
        """Path of the run folder."""
        assert self.config.run_dir is not None
        return self.config.run_dir

    @property
    def mount(self) -> str:
        """Folder in which the volume with run folders is mounted."""
        return str(PurePosixPath(self.run).parent)

    @property
    def accelerators(self) -> int:
        """Devices of one learner."""
        declared = self.program[self.program.head].needs.accelerators
        return declared if self.order.accelerators is None else self.order.accelerators

    @property
    def elsewhere(self) -> Role | None:
        """The role whose instances the engine places one by one; None if all stand where the learner does.

        On several hosts, each host has actors of its own.
        """
        if self.hosts > 1 or not isinstance(self.config.placement, EngineSettings):
            return None
        return next(
            (role for role in self.program.after if (role.count or role.guests) and not role.listens), None
        )

    @property
    def cores(self) -> int:
        """CPU cores of one learner, with those of the actors beside it."""
        beside = [role for role in self.program.roles if role.name not in (self.program.head, *self._placed)]
        return self.order.learner_cores + math.ceil(sum(role.count * role.needs.cores for role in beside))

    @property
    def _placed(self) -> list[str]:
        return [self.elsewhere.name] if self.elsewhere else []

    @property
    def actors(self) -> int:
        """Number of actors that the engine places."""
        return self.elsewhere.count if self.elsewhere else 0

    @property
    def machines(self) -> int:
        """Number of machines' worth of actors, with ``actors_per_job`` on each."""
        return -(-self.actors // self.per_machine)

    @property
    def most_machines(self) -> int:
        """Number of machines' worth of actors with all guests, which come and go."""
        guests = self.elsewhere.guests if self.elsewhere else 0
        return -(-(self.actors + guests) // self.per_machine)

    @property
    def per_machine(self) -> int:
        """Actors on one machine."""
        guests = self.elsewhere.guests if self.elsewhere else 0
        return max(1, min(self.order.actors_per_job, self.actors or guests))

    @property
    def trust(self) -> list[str]:
        """Flags by which an actor imports what the learner names."""
        names = sorted(foreign_names(to_json(self.config)))
        return ["--trust", *names] if names else []

    def learner(self, **changes: Any) -> list[str]:
        """Returns the command of a learner whose actors come from elsewhere, if the program has some.

        Args:
          **changes: settings that the engine needs, such as ``listen``.
        """
        changes = {"begin_or_resume": True, "video": False, **changes}
        place = self.config.placement
        if self.elsewhere is not None:
            changes |= {"actors": 0, **self._room}
            if isinstance(place, InferenceSettings):
                changes["inference_batch"] = place.full_batch(0)  # as with actors of its own
        config = replace(self.config, **changes)
        require_fit(config, self.agent)
        return ["seedbed", "train", *words_of(config)]

    @property
    def _room(self) -> dict[str, int]:
        """Settings of a learner that has room for the actors, and for as many that come before lost ones are missed."""
        place = self.config.placement
        assert isinstance(place, RemoteSettings), "others are refused: their roles listen"
        room = {"max_envs": place.max_envs or place.planned}
        if place.max_actors is None and 2 * place.actors > OTHER_ACTORS:
            room["max_actors"] = 2 * place.actors
        return room

    def require_guests(self, engine: str) -> None:
        """Refuses programs whose actors cannot join a learner one by one.

        Args:
          engine: name of the engine, for the error.

        Raises:
          ConfigError: they have an exact lag, or evaluate in environments of the run's own, or dial one another.
        """
        self._require_no_listeners(engine)
        if self.elsewhere is None:
            return
        if self.config.lag.exact:
            raise ConfigError(
                f"the run's lag is exact ({self.config.lag}), which only actors keep that the learner starts itself: "
                f"with {engine} they join as they find room; give --lag free, which suits --agent vtrace, or write a "
                "manifest for rayjob"
            )
        if self.config.placement.eval_envs:
            raise ConfigError(
                f"eval_envs is {self.config.placement.eval_envs}, which are the last environments of actors that the "
                f"learner starts itself: with {engine} they join as they find room; give --eval-envs 0 and use "
                "'seedbed eval', or write a manifest for rayjob"
            )

    def _require_no_listeners(self, engine: str) -> None:
        """Refuses programs with roles that others than the learner dial; raises :class:`ConfigError`."""
        if found := [role.name for role in self.program.roles if role.listens]:
            dialling = with_settings(RemoteSettings)
            alone = [arch for arch in ARCHITECTURES.names if arch not in with_settings(TransportSettings)]
            raise ConfigError(
                f"--arch {self.config.arch} has roles that listen ({', '.join(found)}), which dial one another by "
                f"addresses that the learner's machine gives them: {engine} can start programs in which all dial the "
                f"learner ({', '.join(dialling)}) or which are one process ({', '.join(alone)}); run "
                f"{self.config.arch} on one machine, or write a manifest for rayjob"
            )


def plan(config: RunConfig, program: Program, agent: Agent, order: Order, folder: str) -> Plan:
    """Returns the plan of a manifest.

    Args:
      config: settings of the run.
      program: its declared roles.
      agent: the agent.
      order: the user's wishes.
      folder: folder of run folders for a run that names none.

    Raises:
      ConfigError: the name or the run folder cannot stand in a manifest, or settings are those of another engine.
    """
    name = order.name or _name_after(config.env)
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"name is {name!r}, and has to begin with a small letter and to have small letters, digits and hyphens, 40 "
            "at most: give --name"
        )
    run = config.run_dir or f"{folder}/{name}"
    if not _PATH.fullmatch(run):
        raise ConfigError(
            f"run_dir is {run!r}, and has to be an absolute path of letters, digits and ./_+- on the machines of the "
            "engine"
        )
    if getattr(config.placement, "on", "here") != "here" or getattr(config.placement, "listen", None):
        raise ConfigError("--listen and --on are the manifest's: leave them out")
    if config.cluster.host or config.cluster.coordinator is not None:
        raise ConfigError("--host and --coordinator are the manifest's: leave them out")
    return Plan(order, name, replace(config, run_dir=run), program, agent)


def _name_after(env: str) -> str:
    last = re.split(r"[/:]", env)[-1]
    return re.sub(r"[^a-z0-9]+", "-", last.lower()).strip("-")[:40].strip("-")
