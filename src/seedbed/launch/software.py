"""The software that makes a run: versions of the packages, and the commit of the clone."""

from __future__ import annotations

import contextlib
import platform
import subprocess
from functools import cache
from importlib import metadata
from pathlib import Path

from seedbed.installation import clone

_PACKAGES = ("seedbed", "jax", "jaxlib", "flax", "numpy", "gymnasium", "ale-py", "grpcio")
_LONGEST_SECONDS = 10.0
_RESULTS = (":!benchmarks/results", ":!docs/curves")
"""Rows and pictures of measurements, which change nothing that is run."""


def versions() -> dict[str, str]:
    """Returns the versions of Python and of the packages that decide what is computed, by name."""
    found = {"python": platform.python_version()}
    for name in _PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


@cache
def commit() -> str | None:
    """Returns the commit of the clone as this process first saw it, with ``-dirty`` if files are changed.

    None for a wheel, and where git is not there or says nothing.
    """
    if (root := clone()) is None:
        return None
    try:
        found = _git(root, "describe", "--always")
        changed = found and _git(root, "status", "--porcelain", "--untracked-files=no", "--", ".", *_RESULTS)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return (f"{found}-dirty" if changed else found) or None


def _git(folder: Path, *words: str) -> str:
    done = subprocess.run(
        ["git", *words],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        check=False,
        timeout=_LONGEST_SECONDS,
    )
    return done.stdout.strip()
