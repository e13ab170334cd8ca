"""Orchard: scalable deep reinforcement learning in JAX.

The command line and this module do the same: ``orchard.train(orchard.configure("CartPole-v1"))`` is
``orchard train CartPole-v1``. Importing this package imports neither JAX nor an environment.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_API = {
    "configure": "orchard.config.resolve.configure",
    "train": "orchard.launch.run.train",
    "resume": "orchard.launch.run.resume",
    "evaluate": "orchard.launch.evaluate.evaluate",
    "record": "orchard.launch.evaluate.record",
    "collect": "orchard.launch.collect.collect",
    "act": "orchard.launch.actor.act_and_reconnect",
    "bench": "orchard.launch.bench.bench",
    "findings": "orchard.launch.machine.findings",
}

__all__ = ["__version__", *sorted(_API)]  # noqa: PLE0604


def __getattr__(name: str) -> Any:
    if name not in _API:
        raise AttributeError(f"module 'orchard' has no attribute {name!r}")
    module, _, attribute = _API[name].rpartition(".")
    return getattr(import_module(module), attribute)
