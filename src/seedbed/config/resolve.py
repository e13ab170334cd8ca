"""From names and values to a :class:`RunConfig` and back: presets, the Python API, the record in the run folder."""

from __future__ import annotations

import dataclasses
import os
import re
import tomllib
import typing
from collections.abc import Collection, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import cache
from importlib import resources
from typing import Any

import numpy as np

from seedbed.config.names_elsewhere import COMING_FROM, ELSEWHERE
from seedbed.config.placement import MEANINGLESS, has_meaning, names_of, unmet
from seedbed.config.settings import RunConfig
from seedbed.envs.options import split, written
from seedbed.envs.reading import Written, is_union, plain, words
from seedbed.errors import ConfigError, listed, unknown_name
from seedbed.registry import AGENTS, ARCHITECTURES, Registry

_AS_BEFORE = {
    "observations": "bytes",
    "mask_as_input": True,
    "value_network": "shared",
    "deviation": "state",
    "shuffle": "unrolls",
}
"""Settings of version 0.1 that its records do not have."""
_INSTEAD = {
    "seeds": "start a run for each (seedbed sweep ENV --over seed=0..2 --by all)",
    "sweep": "start a run for each (seedbed sweep ENV --over learning_rate=1e-4,1e-3 --by all)",
    "draws": "start a run for each (seedbed sweep ENV --over learning_rate=log:1e-4..1e-2 --trials 8)",
}
"""Commands with the effect of a setting of some architectures, for all of them."""
_VERSION = re.compile(r"-v(\d+|\*)$")


@dataclasses.dataclass(frozen=True)
class Preset:
    """Tuned settings for some environments.

    Attributes:
      name: name for ``--preset``.
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
        """Names and values for one agent under one architecture, of the settings that these have."""
        of_arch = self.archs.get(arch, {})
        for_all = {name: value for name, value in of_arch.items() if name not in AGENTS.names}
        chosen = {**self.settings, **for_all, **self.agents.get(agent, {}), **of_arch.get(agent, {})}
        kind = AGENTS.load(agent).Settings
        place = dataclasses.fields(ARCHITECTURES.load(arch).Settings)
        idle = {part.name for part in place if not has_meaning(part, kind)}
        return {
            name: value
            for name, value in chosen.items()
            if name not in idle and not _is_of_others(name, agent, arch)
        }


@cache
def presets() -> dict[str, Preset]:
    """All presets by name."""
    found = {}
    for file in (resources.files("seedbed.config") / "presets").iterdir():
        if file.name.endswith(".toml"):
            content = tomllib.loads(file.read_text(encoding="utf-8"))
            name = file.name.removesuffix(".toml")
            agents = {name: content[name] for name in AGENTS.names if name in content}
            match = tuple(content.get("match", ()))
            archs = content.get("arch", {})
            about, settings, agent = content["about"], content["settings"], content.get("agent")
            found[name] = Preset(name, about, match, settings, agents, archs, agent)
    return found


def preset_for(env: str) -> Preset | None:
    """The preset whose pattern fits ``env`` most closely; None if none does.

    An id without a version stands for its newest one, and fits the pattern of any.
    """
    fits = [
        (len(pattern), preset)
        for preset in presets().values()
        for pattern in preset.match
        if fnmatchcase(env, pattern) or fnmatchcase(env, _VERSION.sub("", pattern))
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


def preset_of(config: RunConfig) -> Preset | None:
    """Returns the preset that a configuration started from; None for none."""
    return _chosen(config.env, config.preset)


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
      ConfigError: a setting does not exist (the nearest name is given), has a value of the wrong type, or means nothing
        beside the others.
    """
    if not isinstance(env, str):
        raise ConfigError(
            f"env is {env!r}: give its name, an id or module:name of a class or function in a file, since processes "
            "that act import it"
        )
    config = replace(defaults(env, preset, agent, arch), **settings)
    changing = {swept(item) for item in settings.get("sweep", ())}
    given = flat(config)
    for name in settings:
        # At its default it says nothing, as in settings that a program passes on whole.
        if (
            given[name] != default_of(config, name)
            and (idle := idle_beside(name, config, changing)) is not None
        ):
            raise ConfigError(f"{name} means nothing where {idle}, or leave it out")
    return config


def swept(item: str) -> str:
    """Returns the name of the setting in an item of a sweep, ``name=values``."""
    return item.partition("=")[0].strip("-").replace("-", "_")


def idle_beside(name: str, config: RunConfig, changing: Collection[str] = ()) -> str | None:
    """Returns in words why a setting means nothing beside the others, and a remedy; None if it means something.

    Args:
      name: the setting.
      config: all settings.
      changing: settings that get other values too, and so are no reason.
    """
    place, settings = config.placement, config.settings
    for part in dataclasses.fields(settings):
        # Metadata of one's own may name no setting.
        others = {
            other: flag
            for other, flag in (unmet(part, settings) if part.name == name else {}).items()
            if hasattr(settings, other)
        }
        if others and others.keys().isdisjoint(changing):
            values = listed([f"{other} is {_said(getattr(settings, other))}" for other in others])
            return f"{values}: give {listed(list(others.values()))}"
    for idle in MEANINGLESS if hasattr(place, name) else ():
        if name in idle.names and idle.at(place) and idle.where.keys().isdisjoint(changing):
            return idle.beside(place)
    return None


def _said(value: Any) -> str:
    return "none" if value is None else str(value)


def default_of(config: RunConfig, name: str) -> Any:
    """Returns the built-in default of a setting, whichever section has it."""
    return next(
        part.default
        for _, section in _sections(config)
        for part in dataclasses.fields(section)
        if part.name == name
    )


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


def is_whole(config: RunConfig, name: str) -> bool:
    """Returns whether the numbers that a setting takes are whole, whatever its present value is."""
    for _, section in _sections(config):
        if (hint := typing.get_type_hints(type(section)).get(name)) is not None:
            options = _options(hint)
            return int in options and float not in options
    return False


def replace(config: RunConfig, **settings: Any) -> RunConfig:
    """Returns ``config`` with other values, by flat names; unknown names and wrong types are refused.

    Another agent brings its own settings, with their built-in defaults. Another architecture keeps the settings that
    both have.
    """
    config = _with_agent(config, _checked("agent", settings.get("agent", config.agent), str))
    config = _with_architecture(config, _checked("arch", settings.get("arch", config.arch), str))
    known = flat(config)
    for name in settings:
        if name not in known:
            raise ConfigError(_unknown(name, config, known))
    top: dict[str, Any] = {}
    for section, value in _sections(config):
        hints = typing.get_type_hints(type(value))
        given = {
            part.name: _checked(part.name, settings[part.name], hints[part.name])
            for part in dataclasses.fields(value)
            if part.name in settings and part.name not in ("placement", "settings")
        }
        if section is None:
            top.update(given)
        elif given:
            top[section] = dataclasses.replace(value, **given)
    return dataclasses.replace(config, **top)


def _with_agent(config: RunConfig, agent: str) -> RunConfig:
    return config if agent == config.agent else dataclasses.replace(config, agent=agent, settings=None)


def _with_architecture(config: RunConfig, arch: str) -> RunConfig:
    if arch == config.arch:
        return config
    kind = ARCHITECTURES.load(arch).Settings
    before = {
        part.name: getattr(config.placement, part.name) for part in dataclasses.fields(config.placement)
    }
    kept = {name: before[name] for name in names_of(kind) & before.keys()}
    return dataclasses.replace(config, arch=arch, placement=kind(**kept))


def _unknown(name: str, config: RunConfig, known: Mapping[str, Any]) -> str:
    """Says whose setting a name is, or which one is nearest."""
    for registry, chosen in ((AGENTS, config.agent), (ARCHITECTURES, config.arch)):
        if owners := registry.owners(name):
            return of_others(name, registry, owners, chosen)
    if (ours := ELSEWHERE.get(name)) is not None and ours not in known:
        return f"unknown setting {name!r}: {_unknown(ours, config, known)}"
    if ours is not None:
        return f"unknown setting {name!r}: did you mean {ours}? {COMING_FROM}"
    return unknown_name("setting", name, known)


def of_others(setting: str, registry: Registry, owners: Sequence[str], chosen: str) -> str:
    """Returns the error for a setting of other agents, or of other architectures, than the chosen one."""
    instead = _INSTEAD.get(setting.removeprefix("--"))
    return (
        f"{setting} is a setting of {listed(owners)}, and the {registry.kind} of this run is {chosen}: "
        f"leave it out, or choose {registry.flag} {owners[0]}{f', or {instead}' if instead else ''}"
    )


def _is_of_others(name: str, agent: str, arch: str) -> bool:
    """Returns whether a setting belongs to other agents or architectures alone."""
    return any(
        registry.owners(name) and name not in names_of(registry.load(chosen).Settings)
        for registry, chosen in ((AGENTS, agent), (ARCHITECTURES, arch))
    )


def _options(hint: Any) -> tuple[Any, ...]:
    """The types of a union; of anything else, itself."""
    return typing.get_args(hint) if is_union(hint) else (hint,)


def _checked(name: str, value: Any, hint: Any) -> Any:
    """Returns ``value`` as the type of its field; numbers, lists, paths and NumPy's types, converted without loss."""
    value = _plain_value(name, value)
    for option in _options(hint):
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
    raise ConfigError(f"{name} is {value!r}: it must be {words(hint)}")


def _plain_value(name: str, value: Any) -> Any:
    """``value`` without the types that a record cannot keep: of NumPy, paths, and options by name."""
    if name == "env_options" and isinstance(value, Mapping):
        return written(value)
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    return os.fspath(value) if isinstance(value, os.PathLike) else value


def to_json(config: RunConfig) -> dict[str, Any]:
    """The record of the run folder: every setting by its name."""
    return flat(config)


def from_json(record: Mapping[str, Any]) -> RunConfig:
    """Reads a record of :func:`to_json`.

    Records of version 0.1 have the settings of all architectures: the others' are left out. Settings that it had not
    go on as they were.
    """
    agent = _checked("agent", record.get("agent", AGENTS.default), str)
    arch = _checked("arch", record.get("arch", ARCHITECTURES.default), str)
    own = {name: value for name, value in record.items() if not _is_of_others(name, agent, arch)}
    before = {name: value for name, value in _AS_BEFORE.items() if not _is_of_others(name, agent, arch)}
    return replace(RunConfig(), **{**before, **own})


def env_options(config: RunConfig) -> dict[str, Any]:
    """Returns the environment's options for a record, each as it looks; the environment reads them by its own types.

    Raises:
      ConfigError: an option is not of the form name=value.
    """
    options = split(config.env_options)
    return {name: plain(value) if isinstance(value, Written) else value for name, value in options.items()}
