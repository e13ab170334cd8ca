"""From a configuration to the agent and the environment's spec that it names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from seedbed.agents.interface import AgentDefinition
from seedbed.architectures.compatibility import load_architecture
from seedbed.config.placement import EnvironmentSettings, TransportSettings
from seedbed.config.settings import RunConfig
from seedbed.config.variants import with_values
from seedbed.envs.make import NATIVE
from seedbed.launch.first import in_a_process, in_a_thread
from seedbed.launch.surroundings import require_devices
from seedbed.registry import AGENTS
from seedbed.types import Agent, DataPlan, EnvSpec

_OURS = ("toy", *NATIVE)
"""Prefixes of environments that need no process of their own: toys, and JAX functions."""


def build_spec(config: RunConfig) -> EnvSpec:
    """What the run's environments look like, after a few steps of the first ones.

    They stand where the others will: in a process of their own if those are stepped in processes, else in a thread.

    Raises:
      ConfigError: they cannot be made, fail, break the contract, or one call takes more than ``env_timeout`` seconds.
    """
    place = config.placement
    together = place.envs_per_actor if isinstance(place, EnvironmentSettings) else config.settings.batch_size
    apart = isinstance(place, TransportSettings) and place.transport != "inproc"
    seen = in_a_process if apart and config.env.partition(":")[0] not in _OURS else in_a_thread
    # Two show whether a factory returns the same object again.
    return seen(config, min(together, 2))


def build_agent(config: RunConfig, spec: EnvSpec, values: Mapping[str, Any] | None = None) -> Agent:
    """The run's agent; with ``values`` for some of its numbers, which may be traced, if they are given.

    Raises:
      ConfigError: a setting does not fit the environment, or JAX has no device.
    """
    require_devices()
    definition = cast(AgentDefinition, AGENTS.load(config.agent))
    return definition.make(
        with_values(config.settings, values) if values else config.settings,
        spec,
        config.net,
        total_updates=_total_updates(config, spec),
    )


_FEW_RENEWALS = 50
"""Of a target network in a whole run: with fewer, rewards hardly reach the values of the steps before them."""


def outlook(config: RunConfig, spec: EnvSpec, agent: Agent) -> list[str]:
    """Lines for the start of a run: how much is learned in it, and a warning where that is too little or too late."""
    plan, lines = agent.data, []
    updates = _total_updates(config, spec)
    ratio_is_free = plan.replay is not None and plan.replay.ratio is None
    if updates is not None and not ratio_is_free:
        # Targets that follow by a share of the way are renewed all the time.
        copied = plan.target_period and plan.target_rate == 1
        renewals = updates // plan.target_period if copied else None
        of_target = "" if renewals is None else f", {renewals:,} target renewals"
        lines.append(f"{updates:,} updates{of_target} in this run")
        if renewals is not None and renewals < _FEW_RENEWALS:
            lines.append(
                f"warning: {renewals} renewals of the target network are few: give a longer run, a higher "
                f"--replay-ratio, or --target-period {max(1, updates // _FEW_RENEWALS)}"
            )
    return [*lines, *_late_batches(config, plan)]


def _late_batches(config: RunConfig, plan: DataPlan) -> list[str]:
    """A warning where an agent that is made for an exact lag makes several batches of each round."""
    place = config.placement
    exact = config.lag.exact and getattr(config.settings, "own_lag", "free") != "free"
    if not exact or not isinstance(place, EnvironmentSettings):
        return []
    environments = place.planned * config.cluster.hosts
    if environments <= plan.batch_size:
        return []
    return [
        f"warning: {environments} environments make several batches of {plan.batch_size} in each round, and all but "
        f"the first are trained on late: give --batch-size {environments}"
    ]


def _total_updates(config: RunConfig, spec: EnvSpec) -> int | None:
    """Updates that the frame budget allows, as the optimizer counts them: what learning rates are annealed over."""
    if config.stop.frames is None:
        return None
    place, acting = config.placement, 1.0
    if isinstance(place, EnvironmentSettings):
        acting -= place.eval_envs / max(place.planned, 1)
    transitions = config.stop.frames / spec.frames_per_step * acting
    updates = load_architecture(config.arch).updates(config, transitions)
    return max(1, int(updates + 1e-6))
