"""From names and values to a :class:`RunConfig` and back: presets, the Python API, the record in the run folder."""

from __future__ import annotations

import dataclasses
import json
import tomllib
import types
import typing
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from functools import cache
from importlib import resources
from typing import Any

from seedbed.config.settings import SETTINGS, RunConfig
from seedbed.errors import ConfigError, unknown_name


@dataclasses.dataclass(frozen=True)
class Preset:
    """Tuned settings for some environments.

    Attributes:
      name: as in ``--preset``.
      about: one sentence.
      match: patterns of environment ids that it is chosen for by itself.
      settings: setting names and values, for every agent.
      agents: more of them for single agents, by the agent's name.
      archs: more of them for single architectures, by the architecture's name; a table in one is for an agent there.
      agent: the one that is trained if none is named; None for the built-in one.
    """

    name: str
    about: str
    match: tuple[str, ...]
    settings: Mapping[str, Any]
    agents: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)
    archs: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)
    agent: str | None = None

    def settings_for(self, agent: str, arch: str) -> dict[str, Any]:
        """Names and values for one agent under one architecture."""
        of_arch = self.archs.get(arch, {})
        for_all = {name: value for name, value in of_arch.items() if name not in SETTINGS}
        return {**self.settings, **for_all, **self.agents.get(agent, {}), **of_arch.get(agent, {})}


@cache
def presets() -> dict[str, Preset]:
    """All presets by name."""
    found = {}
    for file in (resources.files("seedbed.config") / "presets").iterdir():
        if file.name.endswith(".toml"):
            content = tomllib.loads(file.read_text(encoding="utf-8"))
            name = file.name.removesuffix(".toml")
            agents = {name: content[name] for name in SETTINGS if name in content}
            match = tuple(content.get("match", ()))
            archs = content.get("arch", {})
            about, settings, agent = content["about"], content["settings"], content.get("agent")
            found[name] = Preset(name, about, match, settings, agents, archs, agent)
    return found


def preset_for(env: str) -> Preset | None:
    """The preset whose pattern fits ``env`` most closely; None if none does."""
    fits = [
        (len(pattern), preset)
        for preset in presets().values()
        for pattern in preset.match
        if fnmatchcase(env, pattern)
    ]
    return max(fits, key=lambda fit: fit[0])[1] if fits else None


def defaults(
    env: str, preset: str = "auto", agent: str | None = None, arch: str = RunConfig.arch
) -> RunConfig:
    """The configuration that ``env`` starts from: the preset's settings over the built-in ones.

    ``agent`` None stands for the preset's agent, or the built-in one where it names none.
    """
    chosen = _chosen(env, preset)
    agent = agent or (chosen and chosen.agent) or RunConfig.agent
    base = replace(RunConfig(env=env, preset=preset), agent=agent, arch=arch)
    return replace(base, **chosen.settings_for(agent, arch)) if chosen else base


def _chosen(env: str, preset: str) -> Preset | None:
    if preset == "none":
        return None
    if preset == "auto":
        return preset_for(env)
    if preset not in presets():
        raise ConfigError(unknown_name("preset", preset, [*presets(), "auto", "none"]))
    return presets()[preset]


def configure(
    env: str = RunConfig.env,
    *,
    preset: str = "auto",
    agent: str | None = None,
    arch: str = RunConfig.arch,
    **settings: Any,
) -> RunConfig:
    """A configuration as the command line would make it: ``configure("CartPole-v1", actors=4)``.

    ``agent`` None stands for the preset's.

    Raises:
      ConfigError: a setting does not exist (the nearest name is given) or has a value of the wrong type.
    """
    return replace(defaults(env, preset, agent, arch), **settings)


def _sections(config: Any) -> Iterator[tuple[str | None, Any]]:
    """``(section, dataclass)`` of the configuration: itself, then each of its parts."""
    yield None, config
    for part in dataclasses.fields(config):
        value = getattr(config, part.name)
        if dataclasses.is_dataclass(value):
            yield part.name, value


def flat(config: RunConfig) -> dict[str, Any]:
    """Every setting by its name, without sections."""
    return {
        part.name: getattr(section, part.name)
        for _, section in _sections(config)
        for part in dataclasses.fields(section)
        if not dataclasses.is_dataclass(getattr(section, part.name))
    }


def replace(config: RunConfig, **settings: Any) -> RunConfig:
    """``config`` with other values, by flat names; unknown names and wrong types are refused.

    Another agent brings its own settings, with their built-in defaults.
    """
    if (agent := settings.get("agent", config.agent)) != config.agent:
        if agent not in SETTINGS:
            raise ConfigError(unknown_name("agent", str(agent), SETTINGS))
        config = dataclasses.replace(config, agent=agent, settings=SETTINGS[agent]())
    known = flat(config)
    for name in settings:
        if name not in known:
            raise ConfigError(unknown_name("setting", name, known))
    top: dict[str, Any] = {}
    for section, value in _sections(config):
        hints = typing.get_type_hints(type(value))
        mine = {
            part.name: _checked(part.name, settings[part.name], hints[part.name])
            for part in dataclasses.fields(value)
            if part.name in settings
        }
        if section is None:
            top.update(mine)
        elif mine:
            top[section] = dataclasses.replace(value, **mine)
    return dataclasses.replace(config, **top)


def _checked(name: str, value: Any, hint: Any) -> Any:
    """``value`` as the type of its field, numbers and lists converted without loss."""
    options = typing.get_args(hint) if _is_union(hint) else (hint,)
    for option in options:
        if option is type(None):
            if value is None:
                return None
        elif typing.get_origin(option) is typing.Literal:
            if value in typing.get_args(option):
                return value
        elif typing.get_origin(option) is tuple:
            if isinstance(value, (list, tuple)):
                return tuple(_checked(name, item, typing.get_args(option)[0]) for item in value)
        elif option is float:
            if isinstance(value, (int, float)) and not isinstance(value, bool):
                return float(value)
        elif option is int and isinstance(value, float) and value.is_integer():
            return int(value)
        elif type(value) is option:
            return value
    raise ConfigError(f"{name} is {value!r}: it must be {_words(hint)}")


def _is_union(hint: Any) -> bool:
    return typing.get_origin(hint) in (typing.Union, types.UnionType)


def _words(hint: Any) -> str:
    if _is_union(hint):
        return " or ".join(_words(option) for option in typing.get_args(hint))
    if typing.get_origin(hint) is typing.Literal:
        return " or ".join(str(value) for value in typing.get_args(hint))
    if typing.get_origin(hint) is tuple:
        return f"a list of {_words(typing.get_args(hint)[0])}"
    if hint is type(None):
        return "none"
    return {int: "a whole number", float: "a number", bool: "true or false", str: "text"}.get(hint, str(hint))


def to_json(config: RunConfig) -> dict[str, Any]:
    """The record of the run folder: every setting by its name."""
    return flat(config)


def from_json(record: Mapping[str, Any]) -> RunConfig:
    """Reads what :func:`to_json` wrote, also that of version 0.1, which had one rule for observations."""
    return replace(RunConfig(), **{"observations": "bytes", **record})


def env_options(config: RunConfig) -> dict[str, Any]:
    """The environment's options, each value read as JSON, or as text if it is none.

    Raises:
      ConfigError: an option is not of the form name=value.
    """
    options = {}
    for item in config.env_options:
        name, equals, value = item.partition("=")
        if not equals or not name:
            raise ConfigError(f"environment option {item!r}: write name=value, for instance sticky_actions=0")
        try:
            options[name] = json.loads(value)
        except json.JSONDecodeError:
            options[name] = value
    return options
