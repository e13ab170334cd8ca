"""Builders of the agent and the environment's spec that a configuration names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from seedbed.agents.interface import AgentDefinition
from seedbed.agents.own_policies import make_own
from seedbed.architectures.compatibility import load_architecture, with_settings
from seedbed.architectures.shares import fitting_batch
from seedbed.config.placement import EnvironmentSettings, InferenceSettings, RemoteSettings, TransportSettings
from seedbed.config.resolve import preset_of
from seedbed.config.settings import RunConfig
from seedbed.config.variants import with_values
from seedbed.envs.foreign import foreign_spec, is_foreign
from seedbed.envs.make import NATIVE, require_whole
from seedbed.envs.policies import KIND, SHARED, kind_of, policies_of, policy_names
from seedbed.errors import ConfigError, listed
from seedbed.launch.first import in_a_process, in_a_thread
from seedbed.launch.surroundings import require_devices
from seedbed.registry import AGENTS
from seedbed.types import Agent, DataPlan, EnvSpec

_OURS = ("toy", *NATIVE)
"""Prefixes of environments that need no process of their own: toys, and JAX functions."""


Trials = dict[tuple[object, ...], EnvSpec]
"""Specs by environment, options, number of environments, and kind of trial."""


def build_spec(config: RunConfig, earlier: Trials | None = None) -> EnvSpec:
    """Returns the spec of the run's environments, after a trial of one or two of them: made, reset, stepped, closed.

    The trial runs in a process of its own if actors step environments in processes, else in a thread (decision 0056).

    Args:
      config: settings of the run.
      earlier: trials that are not made again, and to which this one is added; none: it is made.

    Raises:
      ConfigError: an environment cannot be made, fails, breaks the contract, or one call takes more than
        ``env_timeout`` seconds; or the agents that an actor steps are no whole number of environments.
    """
    place = config.placement
    if is_foreign(config.env):
        if not isinstance(place, RemoteSettings) or place.actors:
            central = listed(with_settings(RemoteSettings, InferenceSettings), "or")
            raise ConfigError(
                f"{config.env} is stepped by another program, which joins: give --arch {central} --actors 0 and "
                "--listen socket:HOST:PORT or socket:unix:PATH"
            )
        return foreign_spec(config.env, config.env_options)
    together = place.envs_per_actor if isinstance(place, EnvironmentSettings) else config.settings.batch_size
    apart = isinstance(place, TransportSettings) and place.transport != "inproc"
    seen = in_a_process if apart and config.env.partition(":")[0] not in _OURS else in_a_thread
    # Two show whether a factory returns the same object again.
    number = min(together, 2)
    trial = (config.env, config.making, number, seen)
    trials = {} if earlier is None else earlier
    if trial not in trials:
        trials[trial] = seen(config, number)
    spec = trials[trial]
    if isinstance(place, EnvironmentSettings):
        require_whole(spec, place.stepped_together)
        if place.eval_envs % spec.rows:
            raise ConfigError(
                f"eval_envs is {place.eval_envs}, and an environment of {spec.id} has {spec.rows} agents, of which "
                f"none may only evaluate beside one that is trained: give a multiple of {spec.rows}"
            )
    return spec


def build_agent(config: RunConfig, spec: EnvSpec, values: Mapping[str, Any] | None = None) -> Agent:
    """Builds the run's agent.

    Args:
      config: settings of the run.
      spec: spec of the environments.
      values: values by name that replace some of the agent's settings; they may be traced.

    Raises:
      ConfigError: a setting does not fit the environment, or JAX has no device.
    """
    settings = with_values(config.settings, values or {})
    return make_agent(config, settings, spec, _total_updates(config, spec))


def make_agent(config: RunConfig, settings: Any, spec: EnvSpec, total_updates: int | None) -> Agent:
    """Makes the agent of a configuration, with other ``settings`` of its own; see :class:`AgentDefinition`."""
    require_devices()
    definition = cast(AgentDefinition, AGENTS.load(config.agent))

    def make(spec: EnvSpec) -> Agent:
        return definition.make(settings, spec, config.net, total_updates=total_updates)

    if config.policies == SHARED:
        return make(spec)
    return make_own(make, spec, policies_of(spec.agents, config.policies))


_FEW_RENEWALS = 50
"""Least number of target network updates in a run: with fewer, rewards hardly reach the values of earlier steps."""


def told_preset(config: RunConfig) -> list[str]:
    """Returns a line about the preset that a run begins with, if it has one that has settings for its agent."""
    found = preset_of(config)
    if found is None or not found.settings_for(config.agent, config.arch):
        return []
    is_about_it = config.agent == (found.agent or RunConfig.agent)
    return [f"preset {found.name}" + (f": {found.about}" if is_about_it else "")]


def outlook(config: RunConfig, spec: EnvSpec, agent: Agent) -> list[str]:
    """Returns lines for the start of a run: the number of updates, and warnings if they are few or batches late."""
    plan, lines = agent.data, []
    if config.policies == KIND:
        for kind in policy_names(spec.agents, KIND):
            lines.append(f"one policy for {listed([one for one in spec.agents if kind_of(one) == kind])}")
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
    return [*lines, *_late_batches(config, plan), *_uncorrected(config)]


def _late_batches(config: RunConfig, plan: DataPlan) -> list[str]:
    """Returns a warning if an agent that is made for an exact lag trains on several batches in each round."""
    place = config.placement
    exact = config.lag.exact and getattr(config.settings, "own_lag", "free") != "free"
    if not exact or not isinstance(place, EnvironmentSettings):
        return []
    environments = place.planned * config.cluster.hosts
    if environments <= plan.batch_size:
        return []
    whole = fitting_batch(config, least=environments) or "fewer --actors or --envs-per-actor"
    return [
        f"warning: {environments} environments make several batches of {plan.batch_size} in each round, and all but "
        f"the first are trained on late: give {whole}"
    ]


def _uncorrected(config: RunConfig) -> list[str]:
    """Returns a warning if actors from elsewhere act for PPO with older weights, and nothing corrects for that."""
    if not getattr(config.placement, "listen", ()) or getattr(config.settings, "correction", None) != "none":
        return []
    return [
        "warning: actors from elsewhere act with weights of some updates ago, and nothing corrects for that: give "
        "--correction vtrace, or --agent vtrace"
    ]


def _total_updates(config: RunConfig, spec: EnvSpec) -> int | None:
    """Returns the number of optimizer updates within the frame budget, over which learning rates are annealed."""
    if config.stop.frames is None:
        return None
    place, acting = config.placement, 1.0
    if isinstance(place, EnvironmentSettings):
        acting -= place.eval_envs / max(place.planned, 1)
    transitions = config.stop.frames / spec.frames_per_step * acting
    updates = load_architecture(config.arch).updates(config, transitions)
    return max(1, int(updates + 1e-6))
