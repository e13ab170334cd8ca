"""The way in which this copy was installed, and commands that install more: in a clone, and of a wheel."""

from __future__ import annotations

from pathlib import Path

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
