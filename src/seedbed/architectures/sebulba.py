"""Sebulba: a host's accelerators, some that act and some that learn (Hessel et al. 2021, "Podracer architectures").

::

    one process
    ┌───────────────────────────────────────────────────────────────────────────────┐
    │ actor threads              devices that act            devices that train     │
    │ ┌──────────────┐ observations ┌──────────────┐  unrolls  ┌──────────────────┐ │
    │ │ environments │ ───────────► │ policy,      │ ────────► │ batch ─► updates │ │
    │ │ of the host  │ ◄─────────── │ open unrolls │ ◄──────── │                  │ │
    │ └──────────────┘   actions    └──────────────┘  weights  └──────────────────┘ │
    │        × threads                  × devices                  × devices        │
    └───────────────────────────────────────────────────────────────────────────────┘

Every thread steps a batch of environments of its own and has the policy decide on its accelerator, which it shares
with other threads: one steps while another decides. Unrolls grow on the accelerator and go from there to those that
train, never through the host.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax

from seedbed.acting.actor_threads import ActorThreads, LearnerGate
from seedbed.acting.rollout import Program
from seedbed.architectures.checks import acts_and_queues, no_actors, too_far_behind
from seedbed.architectures.interface import Architecture, Setup
from seedbed.architectures.learner_loop import LearnerLoop
from seedbed.config.placement import (
    EnvironmentSettings,
    HostSettings,
    InferenceDeviceSettings,
    LearnerSettings,
    TrainingDeviceSettings,
)
from seedbed.config.settings import RunConfig
from seedbed.learning.checkpoint import Checkpoint
from seedbed.seeding import key
from seedbed.types import Agent, EnvSpec, Tree, Unroll


@dataclass(frozen=True)
class SebulbaSettings(
    HostSettings, LearnerSettings, TrainingDeviceSettings, InferenceDeviceSettings, EnvironmentSettings
):
    """Placement of Sebulba's parts."""

    actors: int = 2
    """Actor threads."""
    envs_per_actor: int = 16
    """Environments of each thread, stepped while other threads' are decided for."""


class Sebulba(LearnerLoop):
    """One run of Sebulba: everything but what starts and watches its threads.

    Args:
      config: the run's settings.
      agent: what is computed.
      spec: of the environments.
      log: where the last words of threads are.
      checkpoint: where to go on from; None to begin.
      first_epoch: of the first thread at each index, or a higher one if the checkpoint has come further.
    """

    threads: ActorThreads

    def __init__(
        self,
        config: RunConfig,
        agent: Agent,
        spec: EnvSpec,
        *,
        log: Path,
        checkpoint: Checkpoint | None = None,
        first_epoch: int = 0,
    ) -> None:
        place = config.placement
        super().__init__(
            config, agent, spec, lanes=place.actors, checkpoint=checkpoint, first_epoch=first_epoch
        )
        self._gate = gate = LearnerGate(
            lag=self._lag,
            threads=place.actors,
            updates_per_round=self._per_round,
            store=self._store,
            hand_over=self._take_unroll,
            base=self._base_version,
        )
        self._store.listen(gate.poke)
        self._memory.listen(gate.poke)
        self.threads = ActorThreads(
            assignment=self._assignment(),
            program=Program(agent, spec, place.envs_per_actor, key(config.seed, "acting")),
            devices=self._devices,
            gate=gate,
            ledger=self.ledger,
            log=str(log),
            first_epoch=self._first_epoch,
            resumable=self._crew_states(checkpoint),
        )

    def _crew_states(self, checkpoint: Checkpoint | None) -> dict[int, dict[str, Any]]:
        if checkpoint is None:
            return {}
        like = self._agent.initial_state(self._config.placement.envs_per_actor)
        return {
            index: {**state, "state": checkpoint.tree(f"memory_{index}", like)}
            for (index, _), state in self._resumable.items()
        }

    def open(self, addresses: list[str]) -> list[str]:
        """Compiles and publishes the first weights."""
        del addresses
        self._begin()
        self.threads.warm_up([self._store.newest(index) for index in range(len(self._devices))])
        return []

    def close(self) -> None:
        """Stops the threads; safe to call twice."""
        self._gate.close()
        self._end()

    def _on_training_devices(self, unrolls: Sequence[Unroll]) -> Unroll:
        return self.learner.gather(unrolls)

    def _wait_blocked(self, timeout: float) -> bool:
        return self._gate.wait_blocked(timeout)

    # What others read.

    def meters(self) -> dict[str, float]:
        """Metrics since the last call, by name."""
        return {**super().meters(), **self.threads.meters.take(), "actors": self.threads.alive()}

    def _lane_states(self) -> dict[tuple[int, int], dict[str, Any]]:
        return {(index, 0): state for index, state in self.threads.states().items()}

    def _tables(self) -> dict[str, Tree]:
        return {f"memory_{index}": jax.device_get(tree) for index, tree in self.threads.memories().items()}

    @property
    def _last_epoch(self) -> int:
        return self.threads.last_epoch


def check(config: RunConfig, agent: Agent) -> str | None:
    """Refuses settings that do not go together."""
    place = config.placement
    if (reason := no_actors(config, "threads")) is not None:
        return reason
    if place.actors < len(place.inference_devices):
        return (
            f"actors is {place.actors}, so of {len(place.inference_devices)} devices that act some have no thread: "
            "give as many --actors or more, or fewer --actor-devices"
        )
    return too_far_behind(config, agent)


def build(setup: Setup) -> Sebulba:
    """Puts the run's parts together."""
    return Sebulba(
        setup.config,
        setup.agent,
        setup.spec,
        log=setup.log,
        checkpoint=setup.checkpoint,
        first_epoch=setup.first_epoch,
    )


SEBULBA = Architecture(
    "sebulba", SebulbaSettings, build, refuses=acts_and_queues, check=check, policy="thread"
)
