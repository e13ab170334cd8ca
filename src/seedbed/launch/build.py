"""From a configuration to the agent and the environment's spec that it names."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Mapping
from concurrent.futures import Future, wait
from typing import Any

import psutil

from seedbed.agents.registry import load_agent
from seedbed.config.members import with_values
from seedbed.config.resolve import env_options
from seedbed.config.settings import RunConfig
from seedbed.envs.make import spec_of
from seedbed.errors import ConfigError
from seedbed.types import Agent, EnvSpec


def build_spec(config: RunConfig) -> EnvSpec:
    """What the run's environments look like; makes one and closes it, in a thread of its own.

    Processes that one has started which hangs are killed.

    Raises:
      ConfigError: it cannot be made, or not within ``env_timeout`` seconds.
    """
    found: Future[EnvSpec] = Future()
    own = set(psutil.Process().children(recursive=True))
    # One that hangs cannot be stopped, and a daemon does not keep the process from ending.
    threading.Thread(target=_describe, args=(config, found), name="first environment", daemon=True).start()
    seconds = config.safety.env_timeout
    wait([found], seconds)
    if not found.done():
        for process in set(psutil.Process().children(recursive=True)) - own:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        raise ConfigError(
            f"{config.env} was not made within {seconds:g} s: mend it if it hangs, or allow it more time with "
            "--env-timeout"
        )
    return found.result()


def _describe(config: RunConfig, found: Future[EnvSpec]) -> None:
    try:
        found.set_result(spec_of(config.env, env_options(config)))
    except BaseException as error:
        found.set_exception(error)


def build_agent(config: RunConfig, spec: EnvSpec, values: Mapping[str, Any] | None = None) -> Agent:
    """The run's agent; with ``values`` for some of its numbers, which may be traced, if they are given."""
    lstm = {} if config.net.lstm is None else {"lstm": config.net.lstm}
    return load_agent(config.agent).make_agent(
        with_values(config.settings, values) if values else config.settings,
        spec,
        network=config.net.network,
        hidden=config.net.hidden,
        compute_dtype=config.net.compute_dtype,
        observations=config.net.observations,
        total_updates=_total_updates(config, spec),
        **lstm,
    )


def _total_updates(config: RunConfig, spec: EnvSpec) -> int | None:
    """Updates that the frame budget allows, as the optimizer counts them: what learning rates are annealed over."""
    if config.stop.frames is None:
        return None
    place = config.placement
    acting = 1 - place.eval_envs / max(place.actors * place.envs_per_actor, 1)
    replays = place.actors if config.arch == "gorila" else 1
    transitions = config.stop.frames / spec.frames_per_step * acting - replays * getattr(
        config.settings, "replay_min_size", 0
    )
    updates = transitions * config.settings.updates_a_transition / config.server.n_push
    return max(1, int(updates + 1e-6))
