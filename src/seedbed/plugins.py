"""Functions and classes of users, named as ``module:name``."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from importlib.machinery import PathFinder
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from seedbed.errors import ConfigError, described, unknown_name
from seedbed.regular_files import current_folder


def load_object(name: str) -> Any:
    """Returns the object ``module:name``; the current directory is searched first.

    Raises:
      ConfigError: the module cannot be imported, or has no such name; says where it was looked for.
    """
    module_name, _, attribute = name.partition(":")
    module = import_from_here(name, module_name)
    found = getattr(module, attribute, None)
    if found is None and module_name == "__main__":
        raise ConfigError(
            f"{name}: __main__ is another program in each process, and here it has no {attribute}: write {attribute} "
            f"to a file, as my_world.py, and give my_world:{attribute} (or act in threads, --transport inproc)"
        )
    if found is None:
        public = [n for n, value in vars(module).items() if not n.startswith("_")]
        raise ConfigError(f"{name}: {unknown_name(f'name in {module_name}', attribute, public)}")
    return found


def load(name: str) -> Callable[..., Any]:
    """Returns the function or class ``module:name``; see :func:`load_object`.

    Raises:
      ConfigError: as for :func:`load_object`, or the object cannot be called.
    """
    found = load_object(name)
    attribute = name.partition(":")[2]
    if not callable(found):
        raise ConfigError(
            f"{name}: {attribute} is a {type(found).__name__}; it must be a function or a class"
        )
    made: Callable[..., Any] = found
    return made


def standing_above(name: str, path: Path) -> Path | None:
    """Returns the folder above ``path`` that has the module of ``module:name``, if it is not found from here.

    Nothing is imported. A name may have a library before its module, as ``dm_env:module:name``.
    """
    module = name.rpartition(":")[0].rpartition(":")[2].partition(".")[0]
    if not module:
        return None
    here = current_folder()
    searched = [*([] if here is None else [str(here)]), *sys.path]
    if module in sys.modules or PathFinder.find_spec(module, searched) is not None:
        return None
    if find_spec(module) is not None:  # by a finder of its own, as of a clone that is installed
        return None
    for folder in path.resolve().parents:
        found = PathFinder.find_spec(module, [str(folder)])
        if found is not None and found.origin is not None:  # any folder of that name would do for a package
            return folder
    return None


def import_from_here(name: str, module: str) -> Any:
    """Imports ``module``, which ``name`` needs; the current directory is looked in first.

    Raises:
      ConfigError: it cannot be imported; says where it was looked for.
    """
    if module.endswith(".py") or "/" in module:
        stem = Path(module).stem
        raise ConfigError(
            f"{name}: a module is named without its folder and without .py: write "
            f"{stem}:{name.rpartition(':')[2]}, in the folder of {stem}.py"
        )
    here = current_folder()
    if here is not None and str(here) not in sys.path:
        # Scripts that are installed (`seedbed`) do not have the current directory on their path.
        sys.path.insert(0, str(here))
    try:
        return import_module(module)
    except (Exception, SystemExit) as error:
        raise ConfigError(
            f"{name}: module {module!r} cannot be imported: {described(error)} "
            f"(looked in {here or 'no folder, since the current one was removed,'} and in the installed packages)"
        ) from error
