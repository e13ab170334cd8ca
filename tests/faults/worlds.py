"""Environments that go wrong, as ``worlds:name``."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np


class _World(gymnasium.Env[Any, Any]):
    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (3,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, at: int) -> None:
        self._left = at

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Any]:
        super().reset(seed=seed)
        return np.zeros(3, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._left -= 1
        return np.zeros(3, np.float32), self.now() if self._left == 0 else 0.0, False, False, {}

    def now(self) -> float:
        return 0.0


class _Raising(_World):
    def now(self) -> float:
        raise ValueError("the world has ended")


released = threading.Event()
"""Lets those that hang in the tests' own process go."""


def _hang() -> None:
    released.wait(10_000)


class _Hanging(_World):
    def now(self) -> float:
        _hang()
        return 0.0


class _NeverReset(_World):
    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Any]:
        _hang()
        return super().reset(seed=seed, options=options)


CHILD = ("sleep", "86397")
"""What the engine of a world looks like among the processes."""


class _WithChild(_World):
    def __init__(self, at: int) -> None:
        super().__init__(at)
        self.child = subprocess.Popen(CHILD)

    def close(self) -> None:
        self.child.kill()
        self.child.wait()


class _Frozen(_WithChild):
    def now(self) -> float:
        Path("frozen").touch()
        # For longer than anybody waits, and no other thread of the process runs meanwhile.
        re.match(r"(a+)+$", "a" * 64 + "b")
        return 0.0


def raising(at: int = 30) -> _World:
    """Raises at its step ``at``."""
    return _Raising(at)


def hanging(at: int = 30) -> _World:
    """Never returns from its step ``at``."""
    return _Hanging(at)


def never_reset(at: int = 30) -> _World:
    """Never returns from its first reset."""
    return _NeverReset(at)


def never_made(at: int = 30) -> _World:
    """Is never made, and waits for a process of its own."""
    subprocess.Popen(CHILD).wait()
    return _World(at)


def never_made_by_actors(at: int = 30) -> _World:
    """Is made by the learner, and never by an actor."""
    return never_made(at) if sys.argv[-1].endswith("actor-0.json") else _World(at)


def with_child(at: int = 30) -> _World:
    """Has a process of its own, from its birth until it is closed."""
    return _WithChild(at)


def frozen(at: int = 30) -> _World:
    """Has a process of its own, makes a file ``frozen`` at its step ``at`` and brings its actor to a standstill."""
    return _Frozen(at)
