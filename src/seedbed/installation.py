"""The way in which this copy was installed, and commands that install more: in a clone, and of a wheel."""

from __future__ import annotations

import re
from importlib import metadata
from pathlib import Path

_MODULES = {"ale-py": "ale_py", "grpcio": "grpc", "pygame-ce": "pygame"}
_ROOT = Path(__file__).parents[2]


def clone() -> Path | None:
    """Returns the root of the clone that this copy is imported from; None if it was installed from a wheel."""
    return _ROOT if (_ROOT / "pyproject.toml").is_file() and (_ROOT / "constraints.txt").is_file() else None


def extra_line(extra: str) -> str:
    """Returns the command that installs an optional part."""
    if clone() is None:
        return f"pip install 'seedbed[{extra}]'"
    return f".venv/bin/python -m pip install -c constraints.txt -e '.[{extra}]'"


def whole_line() -> str:
    """Returns the command that installs all required packages."""
    return "pip install seedbed" if clone() is None else "make install"


def required() -> dict[str, str]:
    """Returns the required packages by the names of their modules."""
    declared = [line for line in metadata.requires("seedbed") or () if "extra ==" not in line]
    names = [re.split(r"[^\w-]", line, maxsplit=1)[0] for line in declared]
    return {_MODULES.get(name, name): name for name in names}


def missing_package(error: ModuleNotFoundError) -> str | None:
    """Returns the required package whose module was not found; None if it was the module of another one."""
    return required().get((error.name or "").partition(".")[0])
