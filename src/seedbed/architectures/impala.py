"""IMPALA: the policy runs beside the environments, and unrolls go to one learner (Espeholt et al. 2018, section 3).

::

      actor processes                                the learner's process
    ┌──────────────────────────────┐    unrolls    ┌──────────────────────────────────┐
    │ environments ─► policy,      │ ────────────► │ registry ─► service ─► queue     │
    │       ▲        open unrolls  │   transport   │                ▲        │ unrolls│
    │       └── actions ──┘        │ ◄──────────── │                │ weights▼        │
    └──────────────────────────────┘    weights    │             learner ◄─ prefetch  │
               × actors                            └──────────────────────────────────┘

Actors hold a copy of the policy. Each fetches the newest weights when it begins an unroll, if they have changed, and
acts with them to its end: by then the learner has gone on, which V-trace corrects. Recurrent states, frame stacks and
open unrolls stay with the actors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from seedbed.acting.pace import Free, Pace, Round
from seedbed.architectures.checks import acts_and_queues, not_exact, too_far_behind, too_heavy
from seedbed.architectures.devices import pick
from seedbed.architectures.interface import Architecture
from seedbed.architectures.with_actors import WithActors, with_actors
from seedbed.config.placement import (
    FetchSettings,
    HostSettings,
    LearnerSettings,
    RemoteSettings,
    TrainingDeviceSettings,
    TransportSettings,
)
from seedbed.config.resolve import to_json
from seedbed.config.settings import RunConfig
from seedbed.serving.unroll_service import UnrollService
from seedbed.types import Agent, Tree


@dataclass(frozen=True)
class ImpalaSettings(
    HostSettings, FetchSettings, LearnerSettings, TrainingDeviceSettings, RemoteSettings, TransportSettings
):
    """Placement of IMPALA's parts."""


class Impala(WithActors):
    """One run of IMPALA: everything but the actors; see :class:`~seedbed.architectures.with_actors.WithActors`."""

    def _make_services(self) -> Sequence[UnrollService]:
        return [
            UnrollService(
                self._agent,
                self._pace_of_unrolls(),
                self._assignment(),
                self._store,
                policy=to_json(self._config),
                fetch_steps=self._fetch_steps if self._lag == "free" else 0,
                # A replay is made for inserts of so many rows.
                largest=self._config.placement.largest_batch if self._agent.data.replay else None,
                ledger=self.ledger,
                meters=self._meters,
                on_failure=self.fail,
            )
        ]

    def _acting_devices(self) -> list[Any]:
        """The device that the weights which actors fetch are read from."""
        return pick("training", self._config.placement.training_devices)[:1]

    @property
    def _fetch_steps(self) -> int:
        """Steps between two fetches of the weights, where the lag is free."""
        return self._config.placement.fetch_steps or 0

    def _pace_of_unrolls(self) -> Pace:
        if self._lag == "free":
            return Free(self._store, 0, self._take_unroll)
        return self._lockstep(0, self._config.placement.actors, Round(self._lanes, self._take_unroll))

    def _tables(self) -> dict[str, Tree]:
        return {}  # with the actors


def check(config: RunConfig, agent: Agent) -> str | None:
    """Refuses settings that do not go together."""
    fetch_steps = config.placement.fetch_steps
    if fetch_steps is not None and config.lag != "free":
        return (
            f"fetch_steps is {fetch_steps}, but with an exact lag every unroll has its version: leave it out"
        )
    return (
        not_exact(
            config,
            "the agent's states are with the actors, and no checkpoint could hold them (--lag 0 alone is reproducible "
            "while nothing is interrupted)",
        )
        or too_far_behind(config, agent)
        or too_heavy(config, agent)
    )


IMPALA = Architecture(
    "impala", ImpalaSettings, with_actors(Impala), refuses=acts_and_queues, check=check, policy="actor"
)
