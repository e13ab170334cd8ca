"""The command line of a configuration: the arguments of ``seedbed train`` that make it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from seedbed.config.placement import flag_of
from seedbed.config.resolve import defaults, flat
from seedbed.config.settings import RunConfig

_CHOOSING = ("env", "preset", "arch", "agent")


def words_of(config: RunConfig) -> list[str]:
    """Returns the arguments of ``seedbed train`` that make a configuration; settings at their defaults are left out."""
    chosen = {"preset": RunConfig.preset, "arch": RunConfig.arch}
    chosen["agent"] = defaults(config.env, config.preset).agent
    words = [config.env]
    for name, default in chosen.items():
        if (value := getattr(config, name)) != default:
            words += [f"--{name}", value]
    before = flat(defaults(config.env, config.preset, config.agent, config.arch))
    for name, value in flat(config).items():
        if name not in _CHOOSING and value != before[name]:
            words += given_as(name, value)
    return words


def given_as(name: str, value: Any) -> Iterator[str]:
    """Yields the arguments of ``seedbed train`` that give a setting its value."""
    if isinstance(value, bool):
        yield flag_of(name) if value else flag_of(f"no_{name}")
        return
    yield flag_of(name)
    yield from map(str, value) if isinstance(value, tuple) else (str(value),)
