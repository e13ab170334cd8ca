"""From a configuration to the agent and the environment's spec that it names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orchard.agents.registry import load_agent
from orchard.config.members import with_values
from orchard.config.resolve import env_options
from orchard.config.settings import RunConfig
from orchard.envs.make import spec_of
from orchard.types import Agent, EnvSpec


def build_spec(config: RunConfig) -> EnvSpec:
    """What the run's environments look like; makes one and closes it."""
    return spec_of(config.env, env_options(config))


def build_agent(config: RunConfig, spec: EnvSpec, values: Mapping[str, Any] | None = None) -> Agent:
    """The run's agent; with ``values`` for some of its numbers, which may be traced, if they are given."""
    return load_agent(config.agent).make_agent(
        with_values(config.settings, values) if values else config.settings,
        spec,
        network=config.net.network,
        hidden=config.net.hidden,
        lstm=config.net.lstm,
        total_updates=_total_updates(config, spec),
    )


def _total_updates(config: RunConfig, spec: EnvSpec) -> int | None:
    """Updates that the frame budget allows: what learning rates are annealed over."""
    if config.stop.frames is None:
        return None
    settings = config.settings
    frames_a_batch = settings.batch_size * settings.unroll_length * spec.frames_per_step
    updates_a_batch = settings.reuse * settings.minibatches
    return max(1, config.stop.frames * updates_a_batch // frames_a_batch)
