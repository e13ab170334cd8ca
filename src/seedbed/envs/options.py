"""Options of environments: names that do not exist are refused, with the nearest one."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from seedbed.errors import ConfigError, unknown_name

_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def option_names(function: Callable[..., Any], *own: str) -> list[str] | None:
    """Names of the keyword arguments of ``function`` without ``own``; None if it takes any name."""
    parameters = inspect.signature(function).parameters.values()
    if any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters):
        return None
    return [p.name for p in parameters if p.kind in _NAMED and p.name not in own]


def refuse_unknown(env_id: str, options: Mapping[str, Any], known: Iterable[str] | None) -> None:
    """Raises :class:`ConfigError` for the first option that is not in ``known``; None knows every name."""
    if known is None:
        return
    names = list(known)
    for name in options:
        if name not in names and not names:
            raise ConfigError(f"unknown option {name!r}: {env_id} has no options")
        if name not in names:
            raise ConfigError(unknown_name(f"option of {env_id}", name, names))


def whole(env_id: str, name: str, value: Any, least: int) -> int:
    """``value`` if it is a whole number of at least ``least``; else :class:`ConfigError`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ConfigError(f"{env_id}: {name} is {value!r}; it must be a whole number of at least {least}")
    return value
