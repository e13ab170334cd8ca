"""Public names of packages, each imported when it is first used: importing a package itself stays cheap."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazily(package: str, rows: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Makes the ``__getattr__`` and the ``__dir__`` of a package (PEP 562).

    Args:
      package: name of the package, for errors.
      rows: ``module:name`` of each public name; a module alone for a submodule.
    """

    def get(name: str) -> Any:
        if name not in rows:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module, _, attribute = rows[name].partition(":")
        found = import_module(module)
        return getattr(found, attribute) if attribute else found

    return get, lambda: sorted({*rows, *vars(sys.modules[package])})
