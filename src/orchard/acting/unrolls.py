"""Cutting unrolls: a lane's open unroll fills step by step and is handed over when it has T transitions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from orchard.types import EnvSpec, TimeStep, Tree, Unroll, leaves, map_leaves, rebuild


def step_arrays(timestep: TimeStep) -> list[NDArray[Any]]:
    """The arrays of one time step in the order in which they travel: observation, reward, three flags."""
    observations = [np.asarray(leaf) for _, leaf in leaves(timestep.observation)]
    return [*observations, timestep.reward, timestep.terminated, timestep.truncated, timestep.first]


def step_fields(spec: EnvSpec, rows: int) -> tuple[tuple[tuple[int, ...], str], ...]:
    """Shapes and dtypes of :func:`step_arrays` for ``rows`` environments; what a step's layout is made of."""
    observations = tuple(((rows, *leaf.shape), leaf.dtype) for _, leaf in leaves(spec.observation))
    return (*observations, ((rows,), "float32"), *(((rows,), "bool"),) * 3)


def timestep_of(spec: EnvSpec, arrays: Sequence[Any]) -> TimeStep:
    """The time step whose :func:`step_arrays` are ``arrays``; they keep whatever leading axes they have."""
    *observations, reward, terminated, truncated, first = arrays
    return TimeStep(rebuild(spec.observation, observations), reward, terminated, truncated, first)


class OpenUnroll:
    """The unroll that one lane is filling, time-major; owned by one thread.

    Steps are observed and decided in turn. After T decisions the next observation completes it: it is cut
    *before* the policy sees that observation, so that a learner in lockstep can train on it first and the
    policy that acts next has seen every transition before it.
    """

    def __init__(self, spec: EnvSpec, rows: int, length: int) -> None:
        self._spec = spec
        self._rows = rows
        self.length = length
        self._begin()

    def _begin(self) -> None:
        fields = step_fields(self._spec, self._rows)
        self._steps = [np.empty((self.length + 1, *shape), dtype) for shape, dtype in fields]
        action = self._spec.action
        self._actions = np.empty((self.length, self._rows, *action.shape), action.dtype)
        self._versions = np.empty((self.length, self._rows), np.int32)
        self._record: Tree = None
        self.decided = 0

    @property
    def transitions(self) -> int:
        """Actions held, over all rows."""
        return self.decided * self._rows

    def observe(self, arrays: Sequence[NDArray[Any]]) -> bool:
        """Takes the step that followed the last decision; True if that completes the unroll."""
        for mine, given in zip(self._steps, arrays, strict=True):
            mine[self.decided] = given
        return self.decided == self.length

    @property
    def observed(self) -> list[NDArray[Any]]:
        """The arrays ``[rows, ...]`` of the newest observed step."""
        return [array[self.decided] for array in self._steps]

    def no_actions(self) -> NDArray[Any]:
        """An empty log of actions, ``[0, rows, ...]``."""
        return self._actions[:0].copy()

    def decide(self, action: NDArray[Any], record: Tree, version: int) -> None:
        """Keeps what was decided for the observed step: ``[rows, ...]`` each, and the weights' version."""
        if self._record is None:
            self._record = map_leaves(lambda x: np.empty((self.length, *x.shape), x.dtype), record)
        self._actions[self.decided] = action
        self._versions[self.decided] = version
        for (_, mine), (_, given) in zip(leaves(self._record), leaves(record), strict=True):
            mine[self.decided] = given
        self.decided += 1

    def cut(self, state: Tree) -> Unroll:
        """Hands over the complete unroll, with the ``state`` before its first step.

        Its last step begins the next one.
        """
        done = Unroll(
            timestep_of(self._spec, self._steps), self._actions, self._record, state, self._versions
        )
        last = self.observed
        self._begin()
        self.observe(last)
        return done
