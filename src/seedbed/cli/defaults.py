"""What the flags of a command go over: the preset of the environment, for the agent that the flags or the preset name.

Which flags there are depends on the agent, and the agent on the environment, which stands among the flags. So they are
read twice: first with the settings of all agents at once, only to learn what the command is about.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import MISSING, field, fields, is_dataclass, make_dataclass
from typing import Any, get_type_hints

from seedbed.cli.parse import parse
from seedbed.config.resolve import defaults
from seedbed.config.settings import SETTINGS, RunConfig
from seedbed.errors import ConfigError


def defaults_of(verb: str, arguments: Sequence[str], flags: type = RunConfig) -> RunConfig:
    """The defaults of ``seedbed VERB ARGUMENTS``.

    Args:
      verb: the command.
      arguments: its flags, whichever agent they are for.
      flags: the dataclass with those that it has beside the configuration's.

    Raises:
      ConfigError: the flags cannot be read, there is no such agent or preset, or one of them is for other agents only.
    """
    words = [word for word in arguments if word not in ("--help", "-h")]
    try:
        first: Any = parse(verb, _side_by_side(flags), words)
        found = defaults(first.env, first.preset, first.agent or None, first.arch)
        _require_own(found.agent, words)
    except ConfigError:
        if len(words) == len(arguments):
            raise
        return RunConfig()  # Whoever asks for help may have made mistakes.
    return found


def _side_by_side(flags: type) -> type:
    """All flags and all settings of all agents, none of them checked; an agent of "" is the preset's."""
    sections = [kind for kind in get_type_hints(RunConfig).values() if is_dataclass(kind)]
    kinds: dict[str, tuple[Any, Any]] = {}
    for kind in (flags, RunConfig, *sections, *SETTINGS.values()):
        hints = get_type_hints(kind, include_extras=True)
        # What has no plain default is a section.
        own = [part for part in fields(kind) if part.default is not MISSING]
        kinds |= {part.name: (hints[part.name], field(default=part.default)) for part in own}
    kinds["agent"] = (str, field(default=""))
    return make_dataclass("Flags", [(name, *kind) for name, kind in kinds.items()])


def _require_own(agent: str, words: Iterable[str]) -> None:
    """Raises :class:`ConfigError` at a flag that only other agents have."""
    for flag in (word.partition("=")[0] for word in words if word.startswith("--")):
        name = flag.removeprefix("--").replace("-", "_")
        names = {name, name.removeprefix("no_")}
        of = [other for other, kind in SETTINGS.items() if names & {part.name for part in fields(kind)}]
        if of and agent not in of:
            raise ConfigError(
                f"{flag} is a setting of {' and '.join(of)}, and the agent of this run is {agent}: "
                f"leave it out, or choose --agent {of[0]}"
            )
