"""Flags from dataclasses, by tyro, with errors of one line."""

from __future__ import annotations

import contextlib
import io
import os
import re
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from itertools import pairwise
from typing import Any, TypeVar, cast, get_args, get_origin, get_type_hints

import tyro

from seedbed.config.names_elsewhere import COMING_FROM, ELSEWHERE
from seedbed.envs.reading import words as in_words
from seedbed.errors import ConfigError
from seedbed.metrics.say import flush

Settings = TypeVar("Settings")
_SHORT = re.compile(r"(\d+(?:\.\d+)?)([kmgb])", re.IGNORECASE)
"""Numbers as people speak of them: ``10M``, ``500k``."""
_POWERS = {"k": 3, "m": 6, "g": 9, "b": 9}
_SWITCHED = ("true", "false", "t", "f", "yes", "no", "y", "n", "on", "off", "none", "0", "1")
HELP, HELP_ALL = ("--help", "-h"), "--help-all"
"""Flags for help: with the settings that most runs need where nothing stands beside it, and with all."""
_POWER = re.compile(r"\d+(\.\d+)?e\+?\d{1,2}", re.IGNORECASE)
_BOX = re.compile(r"[│╭╮╰╯─┃┏┓┗┛━]+|-{3,}")
"""Signs of which tyro draws boxes, on terminals with and without UTF-8."""


_WITH_COMMAS = (
    "--inference-devices",
    "--actor-devices",
    "--training-devices",
    "--learner-devices",
    "--hidden",
)
"""Flags that take whole numbers, with spaces between them or commas."""


def parse(
    verb: str, kind: type[Settings], arguments: Sequence[str], default: Any = None, about: str = ""
) -> Settings:
    """Reads ``arguments`` into a ``kind``; raises :class:`ConfigError` in one line if they do not fit.

    ``--help`` and ``--help-all`` print and exit; which flags they show is up to ``kind``.
    """
    arguments = [HELP[0] if argument == HELP_ALL else argument for argument in arguments]
    complaint, hints = io.StringIO(), _hints_of_flags(kind)
    if not {*HELP} & {*arguments}:
        _refuse_values_of_switches(arguments, hints)
    try:
        with contextlib.redirect_stderr(complaint):
            settings: Settings = tyro.cli(
                kind,
                prog=f"seedbed {verb}",
                description=about or None,
                args=list(_as_people_write(hints, _with_spaces(arguments))),
                config=(tyro.conf.OmitArgPrefixes, tyro.conf.AvoidSubcommands),
                **({} if default is None else {"default": default}),
            )
            return settings
    except SystemExit as stop:
        if stop.code in (0, None):
            raise
        said = one_line(complaint.getvalue(), verb)
        raise ConfigError(_plainer(said, hints, list(_with_spaces(arguments))) or said) from None


def _with_spaces(arguments: Sequence[str]) -> Iterator[str]:
    """``--hidden 1,2`` and ``--hidden=1,2`` as ``--hidden 1 2``."""
    flag = ""
    for argument in arguments:
        name, equals, value = argument.partition("=")
        if equals and _takes_commas(name):
            yield from (name, *value.split(","))
            continue
        flag = argument if argument.startswith("--") else flag
        yield from argument.split(",") if _takes_commas(flag) else [argument]


def _as_people_write(hints: Mapping[str, Any], arguments: Iterable[str]) -> Iterator[str]:
    """Writes ``none`` as ``None`` and ``1e6`` as ``1000000`` after flags that take nothing, or a whole number."""
    types: tuple[Any, ...] = ()
    for argument in arguments:
        name, equals, value = argument.partition("=")
        if name.startswith("--"):
            types = _types(hints.get(_flag(name)))
            yield f"{name}={_plain(value, types)}" if equals else name
        else:
            yield _plain(argument, types)


def _hints_of_flags(kind: type) -> dict[str, Any]:
    """Type of the value of each flag."""
    found: dict[str, Any] = {}
    for name, hint in get_type_hints(kind).items():
        if is_dataclass(hint):
            found |= _hints_of_flags(cast(type, hint))
        else:
            found[_flag(f"--{name}")] = hint
    return found


def _flag(name: str) -> str:
    return name.replace("_", "-")


def _types(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) or (hint,)


def _refuse_values_of_switches(arguments: Sequence[str], hints: Mapping[str, Any]) -> None:
    """Raises :class:`ConfigError` for ``--video false``, whose value would be read as an environment."""
    for argument, after in pairwise([*arguments, ""]):
        name, equals, value = argument.partition("=")
        flag = re.sub("^--no-", "--", _flag(name))
        given = value if equals else after
        value_of_it = given.lower() in _SWITCHED and not os.path.lexists(given)  # a run folder may be named 1
        if hints.get(flag) is bool and (equals or value_of_it):
            raise ConfigError(
                f"{flag} takes no value, and is given {given!r}: write {flag} or --no-{flag[2:]}"
            )


def _plainer(said: str, hints: Mapping[str, Any], arguments: Sequence[str]) -> str | None:
    """Returns a complaint of tyro's about the value of a flag in the words of the other errors; None for others."""
    if found := re.match(r"Unrecognized options: --no-([\w-]+)", said):
        flag = _flag(f"--{found[1]}")
        types = _types(hints.get(flag))
        if type(None) not in types:
            return None
        return f"there is no --no-{flag[2:]}: " + (
            f"leave {flag} out" if str in types else f"write {flag} none"
        )
    if not (found := re.match(r"Error parsing ([^\s:]+)", said)):
        return None
    names = found[1].split("/")
    hint = next((hints[name] for name in names if name in hints), None)
    name, values = _last_of(names, arguments)
    if hint is None or not values:
        return None
    if not any(get_origin(each) is tuple for each in (hint, *_types(hint))):
        values = values[:1]  # what follows is no part of it
    short = _SHORT.fullmatch(values[0]) if int in _types(hint) else None
    instead = f", such as {short[1]}e{_POWERS[short[2].lower()]}" if short else ""
    return f"{name} is {' '.join(values)!r}: it must be {in_words(hint)}{instead}"


def _last_of(names: Container[str], arguments: Iterable[str]) -> tuple[str, list[str]]:
    """Returns the last flag of one of the names, and the words that follow it."""
    last, ours = "", False
    values: list[str] = []
    for argument in arguments:
        name, equals, value = argument.partition("=")
        if name.startswith("--"):
            if ours := _flag(name) in names:
                last, values = _flag(name), [value] if equals else []
        elif ours:
            values.append(argument)
    return last, values


def _plain(value: str, types: Container[Any]) -> str:
    if value.lower() == "none" and type(None) in types and str not in types:
        return "None"
    if _POWER.fullmatch(value) and int in types and float not in types and float(value).is_integer():
        return str(int(float(value)))
    return value


def _takes_commas(flag: str) -> bool:
    return flag.replace("_", "-") in _WITH_COMMAS


def one_line(complaint: str, verb: str) -> str:
    """Returns tyro's complaint, a box under a title, as one line; of suggested flags it keeps the names."""
    _, *lines = _BOX.sub(" ", complaint).strip().split("\n")
    words = " ".join(" ".join(lines).split()).replace(" ,", ",")
    words = re.sub(r"\s*(Got errors:|For full helptext|Argument helptext:).*$", "", words)
    words, _, suggested = words.partition(" Perhaps you meant: ")
    _, unknown, given = words.partition("Unrecognized options: ")
    elsewhere = (
        ELSEWHERE.get(re.split(r"[\s,=]", given)[0].lstrip("-").replace("-", "_")) if unknown else None
    )
    if elsewhere is not None:
        words = f"{words}; did you mean --{elsewhere.replace('_', '-')}? {COMING_FROM}"
    elif suggested:
        flags = dict.fromkeys(re.findall(r"(?<!\S)--[\w-]+", suggested))
        words = f"{words}; did you mean {' or '.join(flags)}?"
    return f"{words} (seedbed {verb} --help-all shows all settings)"


def print_line(text: str) -> None:
    """Prints one line that a command was asked for.

    Raises:
      BrokenPipeError: the reader has left.
      RunFailed: it cannot be written.
    """
    flush(text + "\n")
