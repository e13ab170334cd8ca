"""What the flags of a command go over: the preset of the environment, for the agent that the flags or the preset name.

Which flags there are depends on the agent, and the agent on the environment, which stands among the flags. So they are
read twice: first with the settings of all agents at once, only to learn what the command is about.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import Field, field, fields, make_dataclass
from functools import cache
from typing import Any, get_type_hints

from orchard.cli.parse import parse
from orchard.config.resolve import defaults
from orchard.config.settings import SETTINGS, RunConfig
from orchard.errors import ConfigError


def defaults_of(verb: str, arguments: Sequence[str], around: type | None = None) -> RunConfig:
    """The defaults of ``orchard VERB ARGUMENTS``.

    Args:
      verb: the command.
      arguments: its flags, whichever agent they are for.
      around: a dataclass with more flags, if there are any, whose field ``run`` is the configuration.

    Raises:
      ConfigError: the flags cannot be read, there is no such preset, or one of them is for other agents only.
    """
    of_any = _of_any_agent()
    kind = of_any if around is None else _with_fields_of(around, run=(of_any, field(default_factory=of_any)))
    # The help is for the second reading to print, which knows the agent.
    about: Any = parse(verb, kind, [word for word in arguments if word not in ("--help", "-h")])
    about = about if around is None else about.run
    found = defaults(about.env, about.preset, about.agent, about.arch)
    _require_own(found.agent, arguments)
    return found


@cache
def _of_any_agent() -> type:
    """:class:`RunConfig` with the settings of all agents, none of them checked, and an agent that may be None."""
    agent = get_type_hints(RunConfig)["agent"] | None
    settings = _with_fields_of(*SETTINGS.values())
    return _with_fields_of(
        RunConfig, agent=(agent, field(default=None)), settings=(settings, field(default_factory=settings))
    )


def _with_fields_of(*kinds: type, **others: tuple[Any, Any]) -> type:
    """A dataclass with the fields of all ``kinds``, by name; ``others`` take the place of theirs, as type and field."""
    made: dict[str, tuple[Any, Any]] = {}
    for kind in kinds:
        hints = get_type_hints(kind, include_extras=True)
        made |= {part.name: (hints[part.name], _copy(part)) for part in fields(kind)}
    return make_dataclass("Flags", [(name, *part) for name, part in (made | others).items()])


def _copy(part: Field[Any]) -> Any:
    return field(default=part.default, default_factory=part.default_factory)


def _require_own(agent: str, arguments: Iterable[str]) -> None:
    """Raises :class:`ConfigError` at a flag that only other agents have."""
    for flag in (word.partition("=")[0] for word in arguments if word.startswith("--")):
        names = {flag.removeprefix(start).replace("-", "_") for start in ("--", "--no-")}
        of = [name for name, kind in SETTINGS.items() if names & {part.name for part in fields(kind)}]
        if of and agent not in of:
            raise ConfigError(
                f"{flag} is a setting of {' and '.join(of)}, and the agent of this run is {agent}: "
                f"leave it out, or add --agent {of[0]}"
            )
