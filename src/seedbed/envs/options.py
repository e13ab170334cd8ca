"""Options of environments: the user's words, as the keyword arguments of a constructor.

An option is written ``name=value`` and read by the type of the default that it replaces, or refused:
``is_slippery=off`` is False where the default is True, and text where it is text. ``name:=JSON`` is passed as JSON
says, with any default. Options in a mapping come from Python and keep their types. The type of an option is its
annotation, else that of its default. Where neither says anything, words of truth are read as booleans, numbers as
numbers, ``[…]`` and ``{…}`` as lists and tables, and all else as text.

The words travel to the actors as they are, and are read where the environment is made: no other process has to
import the user's module to know the types.
"""

from __future__ import annotations

import inspect
import json
import numbers
import os
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from seedbed.envs.reading import UNKNOWN, Written, read, words
from seedbed.errors import ConfigError, unknown_name

Options = Mapping[str, Any] | Sequence[str]
"""Values by name, as Python has them, or ``name=value`` and ``name:=JSON``, as they are written."""

_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
_NO_DEFAULT = inspect.Parameter.empty


@dataclass(frozen=True)
class Parameter:
    """A keyword argument of an environment's constructor.

    Attributes:
      kind: its type, as an annotation; Any if it is not known.
      default: value that an option replaces; ``inspect.Parameter.empty`` if there is none.
    """

    kind: Any = Any
    default: Any = _NO_DEFAULT

    @staticmethod
    def of(default: Any, annotation: Any = Any) -> Parameter:
        """The parameter with this default, and this annotation if it says anything."""
        if annotation in UNKNOWN or not (inspect.isclass(annotation) or typing.get_origin(annotation)):
            return Parameter(_kind_of(default), default)
        return Parameter(annotation | None if default is None else annotation, default)

    def with_default(self, default: Any) -> Parameter:
        """The same parameter with another default, which tells its type if nothing has told it yet."""
        return Parameter.of(default, self.kind) if default is not None else Parameter(self.kind | None, None)


@dataclass(frozen=True)
class Takes:
    """The keyword arguments of a constructor.

    Attributes:
      parameters: parameters by name.
      any_name: whether it takes other names, too.
    """

    parameters: Mapping[str, Parameter] = field(default_factory=dict)
    any_name: bool = False


ANYTHING = Takes(any_name=True)


def taken_by(function: Callable[..., Any], *own: str) -> Takes:
    """Returns the keyword arguments of ``function``, without the names ``own``."""
    parameters = _signature(function).parameters.values()
    return Takes(
        {
            p.name: Parameter.of(p.default, p.annotation)
            for p in parameters
            if p.kind in _NAMED and p.name not in own
        },
        any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters),
    )


def _signature(function: Callable[..., Any]) -> inspect.Signature:
    """With annotations that are types, unless one of them names something that exists for type checkers only."""
    try:
        return inspect.signature(function, eval_str=True)
    except Exception:
        return inspect.signature(function)


def arguments(env_id: str, options: Options, takes: Takes) -> dict[str, Any]:
    """Returns the keyword arguments that ``options`` stand for.

    Raises:
      ConfigError: a name is not taken (the nearest one is given), a name is given twice, or a value is not of the type
        that its parameter has.
    """
    given = dict(options) if isinstance(options, Mapping) else split(options)
    refuse_unknown(env_id, given, None if takes.any_name else takes.parameters)
    return {
        name: _argument(env_id, name, value, takes.parameters.get(name, Parameter()))
        for name, value in given.items()
    }


def _argument(env_id: str, name: str, value: Any, parameter: Parameter) -> Any:
    if not isinstance(value, Written):
        return _fitted(value, parameter.default)
    try:
        return _as_default(read(value, parameter.kind), parameter.default)
    except (ValueError, TypeError, OverflowError):
        default = "" if parameter.default is _NO_DEFAULT else f" (its default is {parameter.default!r})"
        raise ConfigError(
            f"{env_id}: {name} is {str(value)!r}; it must be {words(parameter.kind)}{default}, or written {name}:=JSON "
            "to be passed as it is"
        ) from None


def split(items: Iterable[str]) -> dict[str, Any]:
    """Returns the values by name: :class:`Written` of ``name=value``, and parsed JSON of ``name:=JSON``.

    Raises:
      ConfigError: an option has another form, or a name is given twice.
    """
    values: dict[str, Any] = {}
    for item in items:
        name, equals, text = item.partition("=")
        plain_name = name.removesuffix(":")
        if not equals or not plain_name:
            raise ConfigError(f"environment option {item!r}: write name=value, for instance sticky_actions=0")
        if plain_name in values:
            raise ConfigError(f"environment option {item!r}: {plain_name} is given twice")
        values[plain_name] = _json(item, text) if name.endswith(":") else Written(text)
    return values


def _json(item: str, text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise ConfigError(
            f"environment option {item!r}: {text!r} is no JSON ({error}); after := it has to be"
        ) from None


def written(options: Mapping[str, Any]) -> tuple[str, ...]:
    """Returns options from Python in writing, such that they keep their types.

    Raises:
      ConfigError: a value is none of JSON's, nor a path or one of NumPy's numbers and arrays.
    """

    def known(value: Any) -> Any:
        if isinstance(value, np.ndarray | np.generic):
            return value.tolist()
        return os.fspath(value)

    texts = []
    for name, value in options.items():
        if not isinstance(name, str) or not name or "=" in name or name.endswith(":"):
            raise ConfigError(
                f"environment option {name!r}: the name of an option is text without =, as in name=value"
            )
        try:
            _require_text_keys(value)
            texts.append(f"{name}:={json.dumps(value, default=known)}")
        except (TypeError, ValueError):
            raise ConfigError(
                f"environment option {name} is {value!r}, which the record of a run cannot keep: make it in a factory "
                "of your own, and give its name as the environment (module:factory)"
            ) from None
    return tuple(texts)


def _require_text_keys(value: Any) -> None:
    """Raises :class:`TypeError` for a table with other keys, of which JSON would make text."""
    if isinstance(value, Mapping) and not all(isinstance(key, str) for key in value):
        raise TypeError(value)
    if isinstance(value, Mapping | list | tuple):
        for one in value.values() if isinstance(value, Mapping) else value:
            _require_text_keys(one)


def _kind_of(default: Any) -> Any:
    """Returns the type of options that replace ``default``; elements of a list are as written, unless all are text."""
    if default is None or default is _NO_DEFAULT:
        return Any
    kind = type(default)
    if isinstance(default, list | tuple) and default and all(isinstance(one, str) for one in default):
        return list[str]
    return kind


def _as_default(value: Any, default: Any) -> Any:
    """A value that was read, in the container or the precision of the default."""
    if isinstance(default, np.ndarray | np.generic) and value is not None:
        found = _of_dtype(value, default.dtype)
        return found if isinstance(default, np.ndarray) else found[()]
    if value is None or not isinstance(default, tuple | set | frozenset):
        return value
    made: Callable[[Any], Any] = type(default)
    return made(value)


def _of_dtype(value: Any, dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """The value as an array; raises :class:`ValueError` if it has no such numbers. Reals may lose digits."""
    given = np.asarray(value)
    with np.errstate(over="ignore", invalid="ignore"):
        found = given.astype(dtype)
    if (np.isinf(found) & np.isfinite(given)).any() if dtype.kind == "f" else (found != given).any():
        raise ValueError(value)
    return found


def _fitted(value: Any, default: Any) -> Any:
    """A value from Python or JSON, which has no tuples and may have 4.0 for 4; else as it is."""
    if isinstance(default, tuple) and isinstance(value, list):
        return tuple(value)
    whole_default = isinstance(default, int) and not isinstance(default, bool)
    if whole_default and isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def refuse_unknown(env_id: str, options: Iterable[str], known: Iterable[str] | None) -> None:
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
    """Returns ``value`` if it is a whole number of at least ``least``; else raises :class:`ConfigError`."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < least:
        raise ConfigError(f"{env_id}: {name} is {value!r}; it must be a whole number of at least {least}")
    return int(value)
