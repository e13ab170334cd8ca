"""Values from text: of a type that is known, or as it looks."""

from __future__ import annotations

import ast
import contextlib
import inspect
import json
import os
import re
import types
import typing
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from pathlib import Path, PurePath
from typing import Any

import numpy as np

_NONE = type(None)
UNKNOWN = (Any, object, inspect.Parameter.empty)
"""Annotations that say nothing."""
_TRUTH = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
_NUMBER = re.compile(r"[+-]?(?!0\d)(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", re.IGNORECASE)
_WRAPPED = (typing.Annotated, typing.Final)
"""Annotations around another one, which is the type."""
_CONTAINERS = (list, tuple, set, frozenset, deque)
_WORDS = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
    Path: "a path",
    dict: 'a table, for instance {"a": 1}',
    _NONE: "none",
}


class Written(str):
    """The text of a value that was written without a type."""


def plain(text: str) -> Any:
    """Returns the value of ``text`` where nothing is known of the type."""
    word = text.strip().lower()
    if word in _TRUTH:
        return _TRUTH[word]
    if word in ("none", "null"):
        return None
    if _NUMBER.fullmatch(word):
        return float(word) if set(word) & set(".e") else int(word)
    if word[:1] in ("[", "{", "(", '"'):
        with contextlib.suppress(ValueError):
            return literal(text)
    return str(text)


def read(text: str, kind: Any) -> Any:
    """Returns the value of the type ``kind`` that ``text`` stands for; raises :class:`ValueError` if there is none."""
    if kind in UNKNOWN:
        return plain(text)
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin in _WRAPPED:
        return read(text, inner[0])
    if is_union(kind):
        return _first(text, sorted(inner, key=_place))
    if origin is typing.Literal:
        return _choice(text, [(value, (value,)) for value in inner])
    base = origin or kind
    for known, reader in _READERS:
        if inspect.isclass(base) and issubclass(base, known):
            return reader(text, kind)
    if (made := _container(base)) is not None:
        return made(_list(text, kind))
    raise ValueError(text)


def _first(text: str, kinds: Sequence[Any]) -> Any:
    """The value of the first of ``kinds`` that ``text`` can be."""
    for kind in kinds:
        with contextlib.suppress(ValueError, TypeError):
            return read(text, kind)
    raise ValueError(text)


_ORDER = (_NONE, int, float, bool)


def _place(kind: Any) -> int:
    """The place in which a member of a union is tried: all that is narrower than text comes before it."""
    return len(_ORDER) + (kind is str) if kind not in _ORDER else _ORDER.index(kind)


def _none(text: str, _: Any) -> None:
    if text.strip().lower() not in ("none", "null"):
        raise ValueError(text)


def _bool(text: str, _: Any) -> bool:
    word = text.strip().lower()
    if word in ("0", "1"):
        return word == "1"
    if word not in _TRUTH:
        raise ValueError(text)
    return _TRUTH[word]


def _int(text: str, _: Any) -> int:
    with contextlib.suppress(ValueError):
        return int(text)
    value = float(text)
    if not value.is_integer():
        raise ValueError(text)
    return int(value)


def _float(text: str, _: Any) -> float:
    value = float(text)
    if np.isnan(value):
        raise ValueError(text)
    return value


def _str(text: str, _: Any) -> str:
    if text[:1] == text[-1:] == '"':
        with contextlib.suppress(ValueError):
            return str(json.loads(text))
    return str(text)


def _enum(text: str, kind: type[Enum]) -> Enum:
    chosen: Enum = _choice(text, [(one, (one.name, one.value)) for one in kind])
    return chosen


def _choice(text: str, choices: Sequence[tuple[Any, tuple[Any, ...]]]) -> Any:
    """The first of the choices, each with its names, that ``text`` names."""
    word = text.strip().lower()
    for choice, names in choices:
        if word in [str(name).lower() for name in names]:
            return choice
    raise ValueError(text)


def _path(text: str, _: Any) -> Path:
    return Path(text)


def _table(text: str, _: Any) -> dict[Any, Any]:
    value = literal(text)
    if not isinstance(value, dict):
        raise ValueError(text)
    return value


def _list(text: str, kind: Any) -> list[Any]:
    inner = [each for each in typing.get_args(kind) if each is not Ellipsis] or [Any]
    values = _elements(text)
    if (
        typing.get_origin(kind) is tuple
        and Ellipsis not in typing.get_args(kind)
        and len(inner) != len(values)
    ):
        raise ValueError(text)
    kinds = inner if len(inner) == len(values) else inner[:1] * len(values)
    return [_element(value, each) for value, each in zip(values, kinds, strict=True)]


def _elements(text: str) -> list[Any]:
    """The elements of ``[1, 2]``, ``(1, 2)`` and ``1,2``; :class:`Written` where they were not quoted."""
    bare = text.strip()
    if bare[:1] in ("[", "("):
        with contextlib.suppress(ValueError):
            value = literal(bare)
            return list(value) if isinstance(value, list | tuple) else [value]
        if bare[-1] not in ("]", ")"):
            raise ValueError(text)
        bare = bare[1:-1]
    return [Written(part.strip()) for part in bare.split(",")] if bare.strip() else []


def _element(value: Any, kind: Any) -> Any:
    if isinstance(value, str) and (kind not in UNKNOWN or isinstance(value, Written)):
        return read(value, kind)
    if kind in UNKNOWN:
        return value
    # Read again from its text: one reading for numbers, whether they stand alone or in a list.
    return read(json.dumps(value), kind)


def literal(text: str) -> Any:
    """Reads ``text`` as JSON, else as Python; raises :class:`ValueError` if it is neither."""
    with contextlib.suppress(ValueError, RecursionError):
        return json.loads(text, parse_constant=_no_constant)
    try:
        return ast.literal_eval(text.strip())
    except (SyntaxError, TypeError, MemoryError, RecursionError) as error:
        raise ValueError(text) from error


def meanings(text: str) -> list[Any]:
    """Returns all that :func:`read` may make of ``text``, of any type, beside the text itself and numbers.

    Texts in it may have meanings of their own: a list that is neither JSON nor Python is read element by element.
    """
    try:
        whole = literal(text)
    except ValueError:
        with contextlib.suppress(ValueError):
            return [part for part in _elements(text) if part != text]
        return []
    return [] if whole == text else [whole]


def _no_constant(word: str) -> None:
    raise ValueError(word)


_READERS: tuple[tuple[type, Callable[[str, Any], Any]], ...] = (
    (_NONE, _none),
    (bool, _bool),
    (np.bool_, _bool),
    (Enum, _enum),
    (int, _int),
    (np.integer, _int),
    (float, _float),
    (np.floating, _float),
    (str, _str),
    (PurePath, _path),
    (os.PathLike, _path),
    (Mapping, _table),
    (np.ndarray, _list),
)
"""Types that can be written, a narrower one before wider ones."""


def _container(base: Any) -> Callable[[list[Any]], Any] | None:
    """Returns the container that values of the type ``base`` are, or may be if it is abstract; None if in none."""
    if not inspect.isclass(base):
        return None
    abstract = base.__module__ == "collections.abc"
    return next(
        (one for one in _CONTAINERS if issubclass(base, one) or (abstract and issubclass(one, base))), None
    )


def is_union(kind: Any) -> bool:
    """Returns whether ``kind`` is one of several types."""
    return typing.get_origin(kind) in (typing.Union, types.UnionType)


def words(kind: Any) -> str:
    """Returns a description of values of the type ``kind``: ``"a whole number or none"``."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin in _WRAPPED:
        return words(inner[0])
    if is_union(kind):
        return " or ".join(dict.fromkeys(words(each) for each in inner))
    if origin is typing.Literal:
        return " or ".join(str(value) for value in inner)
    base = origin or kind
    if base in _WORDS:
        return _WORDS[base]
    if inspect.isclass(base) and issubclass(base, np.generic):
        return f"a number of {base.__name__}"
    if inspect.isclass(base) and issubclass(base, Enum):
        return " or ".join(one.name for one in base)
    if base is np.ndarray or _container(base) is not None:
        elements = [each for each in inner if each is not Ellipsis]
        return f"a list of {_several(words(elements[0]))}" if elements else "a list, for instance [1, 2]"
    return f"a {getattr(base, '__name__', base)}"


def _several(one: str) -> str:
    """Returns ``whole numbers`` of ``a whole number``; other words as they are."""
    return re.sub(r"^an? (\w+ ?\w+)$", r"\1s", one)
