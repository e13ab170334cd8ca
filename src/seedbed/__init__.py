"""Seedbed: scalable deep reinforcement learning in JAX.

The command line and this module do the same: ``seedbed.train(seedbed.configure("CartPole-v1"))`` is
``seedbed train CartPole-v1``. Importing this package imports neither JAX nor an environment.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from seedbed.public import lazily

if TYPE_CHECKING:
    from seedbed.config.resolve import configure, replace
    from seedbed.evaluation.collect import collect
    from seedbed.evaluation.export import export
    from seedbed.evaluation.player import evaluate, record
    from seedbed.evaluation.policy import load
    from seedbed.evaluation.remote import connect
    from seedbed.launch.actor import act_and_reconnect as act
    from seedbed.launch.machine import findings
    from seedbed.launch.train import resume, train
    from seedbed.timing.stages import bench

__version__ = "0.2.0"
__all__ = [
    "__version__",
    "act",
    "bench",
    "collect",
    "configure",
    "connect",
    "evaluate",
    "export",
    "findings",
    "load",
    "record",
    "replace",
    "resume",
    "train",
]

__getattr__, __dir__ = lazily(
    __name__,
    {
        "act": "seedbed.launch.actor:act_and_reconnect",
        "bench": "seedbed.timing.stages:bench",
        "collect": "seedbed.evaluation.collect:collect",
        "configure": "seedbed.config.resolve:configure",
        "connect": "seedbed.evaluation.remote:connect",
        "evaluate": "seedbed.evaluation.player:evaluate",
        "export": "seedbed.evaluation.export:export",
        "findings": "seedbed.launch.machine:findings",
        "load": "seedbed.evaluation.policy:load",
        "record": "seedbed.evaluation.player:record",
        "replace": "seedbed.config.resolve:replace",
        "resume": "seedbed.launch.train:resume",
        "train": "seedbed.launch.train:train",
    },
)
