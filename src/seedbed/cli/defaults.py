"""The settings that the flags of a command are over: the preset of the environment, for its agent and architecture.

Which flags there are depends on agent and architecture, and the agent on the environment, which stands among the flags.
So they are read twice: first with the settings of all agents and architectures at once, only to learn the environment,
the agent and the architecture.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import MISSING, field, fields, is_dataclass, make_dataclass
from typing import Annotated, Any, get_type_hints

import tyro

from seedbed.cli.parse import HELP, HELP_ALL, parse
from seedbed.config.placement import deciding, has_meaning, is_shown, names_of
from seedbed.config.resolve import defaults, idle_beside, of_others, replace, swept
from seedbed.config.settings import RunConfig
from seedbed.config.variants import require_meaning
from seedbed.errors import ConfigError
from seedbed.nets.network import Network
from seedbed.registry import AGENTS, ARCHITECTURES, Registry

FIRST = frozenset(
    {
        *("env", "env_options", "arch", "agent", "preset", "init_from", "seed", "run_dir", "video"),
        *("frames", "minutes", "until_return"),
        *("network", "hidden"),
        *("actors", "envs_per_actor", "lag", "listen", "hosts", "on"),
        *("batch_size", "unroll_length", "learning_rate", "discount"),
    }
)
"""Settings that most runs need: help shows them alone if nothing stands beside it."""


def read_config(verb: str, arguments: Sequence[str], about: str) -> RunConfig:
    """Returns the configuration that the flags of a command make, over the defaults of the environment they name.

    Raises:
      ConfigError: they do not fit.
    """
    default = typed(defaults_of(verb, arguments), arguments)
    return plain(parse(verb, type(default), arguments, default, about + more_for(arguments)))


def is_short(words: Sequence[str]) -> bool:
    """Returns whether help is asked for and nothing else, so that it shows :data:`FIRST` alone."""
    return len(words) == 1 and words[0] in HELP


def more_for(words: Sequence[str]) -> str:
    """Returns an addition to the description of a command whose help is short; an empty text for others."""
    if not is_short(words):
        return ""
    return (
        f" These are the settings that most runs need: {HELP_ALL} shows all, and {HELP[0]} beside an environment, "
        "--arch or --agent all that such a run reads."
    )


def defaults_of(verb: str, arguments: Sequence[str], flags: type = RunConfig) -> RunConfig:
    """Returns the defaults of ``seedbed VERB ARGUMENTS``.

    Args:
      verb: the command.
      arguments: its flags, of any agent and architecture.
      flags: the dataclass of its own flags, beside the configuration's.

    Raises:
      ConfigError: the flags cannot be read, there is no such agent, architecture or preset, or one of them is for
        others only.
    """
    words = [word for word in arguments if word not in (*HELP, HELP_ALL)]
    try:
        first: Any = parse(verb, _side_by_side(flags, words), words)
        found = defaults(first.env, first.preset, first.agent or None, first.arch)
        for registry, chosen in ((AGENTS, found.agent), (ARCHITECTURES, found.arch)):
            _require_own(registry, chosen, words)
        found = _as_chosen(found, first, words)
        _require_meaning(verb, found, words)
    except ConfigError:
        if len(words) == len(arguments):
            raise
        return RunConfig()  # Help is shown although the flags have mistakes.
    return found


# -- flags of one agent and one architecture ---------------------------------------------------------------


def typed(config: RunConfig, words: Sequence[str] = ()) -> RunConfig:
    """Returns ``config`` as an instance of a class that has the flags of its agent and its architecture.

    Flags that stand beside another one are shown if that is among the ``words``, or not at its default; a short
    help shows :data:`FIRST` alone.
    """
    given = {name for _, names in _flags(words) for name in names}
    short = is_short(words)

    def shows(part: Any, section: Any) -> bool:
        value = getattr(section, part.name)
        names = {each.name for each in fields(value)} if is_dataclass(value) else {part.name}
        return not (short and names.isdisjoint(FIRST)) and is_shown(part, section, given)

    net, placement, settings = (
        _meaningful(part, config.settings, shows, given)
        for part in (config.net, config.placement, config.settings)
    )
    made = make_dataclass(
        "RunConfig",
        [
            ("arch", _choice(ARCHITECTURES, "Where the parts run"), field(default=config.arch)),
            ("agent", _choice(AGENTS, "What is computed"), field(default=config.agent)),
            ("net", type(net), field(default=net)),
            ("placement", type(placement), field(default=placement)),
            ("settings", type(settings), field(default=settings)),
            *_hidden(config, lambda part: shows(part, config)),
        ],
        bases=(RunConfig,),
        frozen=True,
    )
    made.__doc__ = RunConfig.__doc__
    values = {part.name: getattr(config, part.name) for part in fields(RunConfig)}
    found: RunConfig = made(**{**values, "net": net, "placement": placement, "settings": settings})
    return found


def plain(config: RunConfig) -> RunConfig:
    """Undoes :func:`typed`: returns a plain configuration with the values of ``config``.

    Raises:
      ConfigError: its agents differ in a setting that means nothing beside the others.
    """
    values = {part.name: getattr(config, part.name) for part in fields(RunConfig)}
    values["net"] = Network(**{part.name: getattr(config.net, part.name) for part in fields(Network)})
    for section, registry, name in (
        ("placement", ARCHITECTURES, config.arch),
        ("settings", AGENTS, config.agent),
    ):
        kind: Any = registry.load(name).Settings
        values[section] = kind(**{part.name: getattr(values[section], part.name) for part in fields(kind)})
    found = RunConfig(**values)
    require_meaning(found)
    return found


def _choice(registry: Registry, about: str) -> Any:
    names = f"{{{','.join(registry.names)}}}|MODULE:NAME"
    return Annotated[str, tyro.conf.arg(metavar=names, help=f"{about}; MODULE:NAME for one of your own.")]


def _meaningful(
    section: Any, agent_settings: Any, shows: Callable[[Any, Any], bool], given: Container[str]
) -> Any:
    """Returns a section as an instance of a class that hides settings without meaning, and others.

    One that is given was found to have a meaning, perhaps by the axes of a sweep alone.
    """
    kind = type(section)

    def is_there(part: Any) -> bool:
        return part.name in given or has_meaning(part, agent_settings)

    hidden = _hidden(section, lambda part: is_there(part) and shows(part, section))
    values = {part.name: getattr(section, part.name) for part in fields(kind)}
    made = make_dataclass(kind.__name__, hidden, bases=(kind,), frozen=True)
    made.__doc__ = kind.__doc__
    return made(**values)


def _hidden(section: Any, shows: Callable[[Any], bool]) -> list[tuple[str, Any, Any]]:
    """Returns the fields of a section that help does not show, for a class that is derived from its own."""
    hints = get_type_hints(type(section), include_extras=True)
    return [
        (
            part.name,
            Annotated[hints[part.name], tyro.conf.Suppress],
            field(default=part.default, default_factory=part.default_factory, metadata=part.metadata),
        )
        for part in fields(section)
        if not shows(part)
    ]


# -- flags of all ------------------------------------------------------------------------------------------


def _side_by_side(flags: type, words: Sequence[str]) -> type:
    """All flags and all settings of all agents and architectures, unchecked; an agent of "" is the preset's."""
    sections = [kind for kind in get_type_hints(RunConfig).values() if is_dataclass(kind)]
    kinds: dict[str, tuple[Any, Any]] = {}
    for kind in (flags, RunConfig, *sections, *_settings(AGENTS, words), *_settings(ARCHITECTURES, words)):
        hints = get_type_hints(kind, include_extras=True)
        # What has no plain default is a section.
        own = [part for part in fields(kind) if part.default is not MISSING]
        kinds |= {part.name: (hints[part.name], field(default=part.default)) for part in own}
    for section in ("placement", "settings"):
        del kinds[section]
    kinds["agent"] = (str, field(default=""))
    return make_dataclass("Flags", [(name, *kind) for name, kind in kinds.items()])


def _settings(registry: Registry, words: Sequence[str]) -> Iterator[type[Any]]:
    """Yields the settings of all rows, and of the definitions that the words name by module."""
    for name in (*registry.names, *_given(registry.flag, words)):
        yield registry.load(name).Settings


def _given(flag: str, words: Sequence[str]) -> Iterator[str]:
    for index, word in enumerate(words):
        name, equals, value = word.partition("=")
        if (
            name == flag
            and (value := value if equals else "".join(words[index + 1 : index + 2]))
            and ":" in value
        ):
            yield value


def _require_own(registry: Registry, chosen: str, words: Iterable[str]) -> None:
    """Raises :class:`ConfigError` at a flag that only others of the registry have."""
    own = names_of(registry.load(chosen).Settings)
    for flag, names in _flags(words):
        owners = [owner for each in names for owner in registry.owners(each)]
        if owners and not names & own:
            raise ConfigError(of_others(flag, registry, owners, chosen))


def _as_chosen(config: RunConfig, given: Any, words: Sequence[str]) -> RunConfig:
    """Returns the configuration with the flags that decide which others mean something (the optimizer)."""
    decide = set().union(*(deciding(part) for part in fields(config.settings)))
    chosen = {name: getattr(given, name) for _, names in _flags(words) for name in decide & names}
    return replace(config, **chosen) if chosen else config


def _require_meaning(verb: str, config: RunConfig, words: Sequence[str]) -> None:
    """Raises :class:`ConfigError` at a flag that means nothing for the run's agent, or without another flag."""
    place = names_of(type(config.placement))
    # Of where the parts run a flag may say what is so anyhow, as --hosts 1.
    changing = _axes(words) | {name for _, names in _flags(words) for name in names & place}
    changing |= {"listen"} if verb == "manifest" else set()  # the learners of a manifest listen
    for flag, names in _flags(words):
        for part in fields(config.placement):
            if part.name in names and not has_meaning(part, type(config.settings)):
                raise ConfigError(f"{flag} is given, but {config.agent} has no use for it: leave it out")
        for name in names:
            if (idle := idle_beside(name, config, changing)) is not None:
                raise ConfigError(f"{flag} means nothing where {idle}, or leave it out")


def _axes(words: Iterable[str]) -> set[str]:
    """Names of the settings that a sweep is over, and of others that an argument of ours begins with."""
    items = (word.partition("=")[2] if word.startswith("--") else word for word in words)
    return {swept(item) for item in items if "=" in item}


def _flags(words: Iterable[str]) -> Iterator[tuple[str, set[str]]]:
    """Every flag among the words, with the names that its setting may have."""
    for flag in (word.partition("=")[0] for word in words if word.startswith("--")):
        name = flag.removeprefix("--").replace("-", "_")
        yield flag, {name, name.removeprefix("no_")}
