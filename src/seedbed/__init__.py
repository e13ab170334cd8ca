"""Seedbed: scalable deep reinforcement learning in JAX.

The command line and this module do the same: ``seedbed.train(seedbed.configure("CartPole-v1"))`` is
``seedbed train CartPole-v1``. Importing this package imports neither JAX nor an environment.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__version__ = "0.2.0"

_API = {
    "configure": "seedbed.config.resolve.configure",
    "train": "seedbed.launch.train.train",
    "resume": "seedbed.launch.train.resume",
    "evaluate": "seedbed.evaluation.player.evaluate",
    "record": "seedbed.evaluation.player.record",
    "collect": "seedbed.evaluation.collect.collect",
    "act": "seedbed.launch.actor.act_and_reconnect",
    "bench": "seedbed.timing.stages.bench",
    "findings": "seedbed.launch.machine.findings",
}

__all__ = ["__version__", *sorted(_API)]  # noqa: PLE0604


def __getattr__(name: str) -> Any:
    if name not in _API:
        raise AttributeError(f"module 'seedbed' has no attribute {name!r}")
    module, _, attribute = _API[name].rpartition(".")
    return getattr(import_module(module), attribute)
