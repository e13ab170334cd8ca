"""Names that a peer or a run folder has Seedbed import, and the user's consent to them.

A name is foreign if a module stands in it that Seedbed would import: ``module:factory`` and ``module:Id-v0`` as an
environment, ``module:NAME`` as an architecture, agent, network or service of metrics. Options of an environment are
plain values, but some environments import an option's name (a wrapper of another library its ``env_id``, a simulator
the class of its vehicles). So a text in an option that reads ``module:name``, or ``module.name`` of a module that can
be imported, is foreign too; and so are texts in the settings of a foreign agent or architecture.

Nothing is imported to find them.
"""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Collection, Iterator, Mapping, Set
from importlib.machinery import PathFinder
from typing import Any

from seedbed.envs.make import imports_module
from seedbed.envs.options import Options, split
from seedbed.envs.reading import meanings
from seedbed.errors import ConfigError

_DEFINED = ("arch", "agent")
_OPTIONS = ("env_options", "options")
_NO_NAMES = ("run_dir", "dataset", "listen", "coordinator", "tls_cert", "preset", "sweep")
"""Settings that are places, addresses or numbers, which nothing imports."""
_WITH_COLON = re.compile(r"(?<![\w./:-])[\w.-]+:(?!\d+(?![\w.-]))\w[\w.:/-]*")
"""``module:name``, also where a name begins with a digit; no time of day, port, path or URL."""
_WITH_DOTS = re.compile(r"(?<![\w./:-])([^\W\d]\w*)(?:\.[^\W\d]\w*)+(?![\w./:-])")


def foreign_names(record: Mapping[str, Any]) -> set[str]:
    """Returns the names in a run's record, or in an actor's assignment, for which a module is imported.

    Raises:
      ConfigError: the options of an environment are none, or nested too deeply to be looked through.
    """
    named = {key: str(record.get(key, "")) for key in ("env", *_DEFINED, "network")}
    found = {name for key, name in named.items() if (imports_module(name) if key == "env" else ":" in name)}
    try:
        looked_through = [_values(record[key]) for key in _OPTIONS if record.get(key) is not None]
        if any(":" in named[key] for key in _DEFINED):
            rest = set(record).difference(named, _OPTIONS, _NO_NAMES)
            looked_through.append({key: record[key] for key in rest})
        found.update(name for name in _texts(record.get("log")) if ":" in name)
        found.update(*map(_modules_in, _texts(looked_through)))
    except RecursionError:
        raise ConfigError(
            "an option or setting is nested too deeply to be looked through for names of modules"
        ) from None
    return found


def untrusted(names: Set[str], trust: Collection[str] | None) -> str:
    """Returns the names that ``trust`` lacks, as ``--trust`` takes them; empty if there are none.

    Args:
      names: foreign names.
      trust: names that may be imported; None for any.
    """
    return "" if trust is None else " ".join(sorted(names - set(trust)))


def _values(options: Options) -> Mapping[str, Any]:
    """The values of an environment's options, read as they are for the environment."""
    if isinstance(options, Mapping):
        return options
    if not isinstance(options, list | tuple):
        raise ConfigError(f"options of an environment are {options!r}, and have to be a list of name=value")
    return split(map(str, options))


def _texts(value: Any) -> Iterator[str]:
    """Every text in a value of JSON; of one that stands for a table or a list, also the texts in that."""
    if isinstance(value, str):
        yield value
        yield from _texts(meanings(value))
    elif isinstance(value, Mapping):
        yield from _texts([*value.keys(), *value.values()])
    elif isinstance(value, list | tuple | Set):
        for each in value:
            yield from _texts(each)


def _modules_in(text: str) -> Iterator[str]:
    """The names in a text for which code that is given it may import a module."""
    yield from _WITH_COLON.findall(text)
    for found in _WITH_DOTS.finditer(text):
        if _can_be_imported(found[1]):
            yield found[0]


def _can_be_imported(module: str) -> bool:
    """Returns whether there is such a module, in the current directory or among the installed ones."""
    if module in sys.stdlib_module_names or module in sys.modules:
        return True
    try:
        here = PathFinder.find_spec(module, ["", *sys.path])
        return here is not None or importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return True
