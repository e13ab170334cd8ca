"""Orchard: scalable deep reinforcement learning in JAX.

The command line and this module do the same: ``orchard.train(orchard.configure("CartPole-v1"))`` is
``orchard train CartPole-v1``. Importing this package imports neither JAX nor an environment.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_API = {
    "configure": "orchard.config.resolve",
    "train": "orchard.launch.run",
    "resume": "orchard.launch.run",
    "evaluate": "orchard.launch.evaluate",
    "record": "orchard.launch.evaluate",
}

__all__ = ["__version__", *sorted(_API)]  # noqa: PLE0604


def __getattr__(name: str) -> Any:
    if name not in _API:
        raise AttributeError(f"module 'orchard' has no attribute {name!r}")
    return getattr(import_module(_API[name]), name)
