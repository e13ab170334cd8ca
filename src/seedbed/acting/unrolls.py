"""Cutting unrolls: a lane's open unroll fills step by step and is handed over when it has T transitions."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from seedbed.types import EnvSpec, TimeStep, Tree, Unroll, leaves, map_leaves, rebuild


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


def resets_at(timestep: TimeStep) -> int:
    """Counts the environments of a step ``[B]`` that show a final observation, at which a decision only resets."""
    return int(np.count_nonzero(np.asarray(timestep.terminated) | np.asarray(timestep.truncated)))


def resets_in(first: Any) -> int:
    """Counts the transitions into a first observation in flags ``[T, B]`` of the steps that transitions lead to."""
    return int(np.count_nonzero(first))


class Delivery(NamedTuple):
    """A complete unroll, as it leaves acting.

    Attributes:
      unroll: ``[T+1, B, ...]``.
      episodes: returns and lengths in steps of those that ended since the last one.
      streams: int64 ``[B]``, which environment each row is; another number after every restart. None where batches
        are the unrolls as they come.
      end: decisions in these streams up to the unroll's last step.
      trains: bool ``[B]``, False for those that only evaluate, which are the last ones; None: all are trained on.
      counted: its transitions in the books.
      priorities: float32 ``[items, B]``, where the actor has computed them; see :attr:`seedbed.types.Agent.priorities`.
    """

    unroll: Unroll
    episodes: list[tuple[float, int]]
    streams: NDArray[np.int64] | None = None
    end: int = 0
    trains: NDArray[np.bool_] | None = None
    counted: int = 0
    priorities: NDArray[np.float32] | None = None


class Begins(enum.IntEnum):
    """Which unroll begins with a step that is about to be decided: then the agent's state is kept for it."""

    NONE = 0
    THIS = 1
    NEXT = 2


class OpenUnroll:
    """The unroll that one lane is filling, time-major; owned by one thread.

    Steps are observed and decided in turn. After ``length`` decisions the next observation completes it: it is cut
    *before* the policy sees that observation, so that a learner in lockstep can train on it first and the
    policy that acts next has seen every transition before it.

    Args:
      spec: of the environments.
      rows: how many there are.
      length: transitions in an unroll.
      overlap: how many of them were the end of the unroll before; the first unroll has all of its own.
    """

    def __init__(self, spec: EnvSpec, rows: int, length: int, overlap: int = 0) -> None:
        self._spec = spec
        self._rows = rows
        self.length = length
        self.overlap = overlap
        self._shared = 0
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
    def untouched(self) -> bool:
        """Whether nothing was decided since the last one was cut."""
        return self.decided == self._shared

    @property
    def transitions(self) -> int:
        """Actions held, over all rows, that were in no unroll before."""
        return (self.decided - self._shared) * self._rows

    @property
    def begins(self) -> Begins:
        """Whether this unroll begins with the step that is decided next, or the one after it."""
        if self.decided == 0:
            return Begins.THIS
        return Begins.NEXT if self.overlap and self.decided == self.length - self.overlap else Begins.NONE

    def observe(self, arrays: Sequence[NDArray[Any]]) -> bool:
        """Takes the step that followed the last decision; True if that completes the unroll."""
        for mine, given in zip(self._steps, arrays, strict=True):
            mine[self.decided] = given
        return self.decided == self.length

    @property
    def observed(self) -> list[NDArray[Any]]:
        """The arrays ``[rows, ...]`` of the newest observed step."""
        return [array[self.decided] for array in self._steps]

    @property
    def ended(self) -> int:
        """The number of rows that show the final observation of an episode: a decision there only resets."""
        return resets_at(timestep_of(self._spec, self.observed))

    def no_actions(self) -> NDArray[Any]:
        """An empty log of actions, ``[0, rows, ...]``."""
        return self._actions[:0].copy()

    def shared(self) -> list[NDArray[Any]]:
        """What it has from the unroll before, for a checkpoint: steps, actions, versions and record."""
        record = [] if self._record is None else [leaf for _, leaf in leaves(self._record)]
        kept = [array[: self._shared] for array in (*self._steps, self._actions, self._versions, *record)]
        return [array.copy() for array in kept]

    def restore(self, shared: Sequence[NDArray[Any]], record: Tree) -> None:
        """Puts back what :meth:`shared` gave; ``record`` is one of the same structure, of which only that is used."""
        self.decided = self._shared = len(shared[0])
        if not self._shared:
            return
        news = [*self._steps, self._actions, self._versions]
        for mine, kept in zip(news, shared, strict=False):
            mine[: self._shared] = kept
        rows = []
        for kept in shared[len(news) :]:
            rows.append(np.empty((self.length, *kept.shape[1:]), kept.dtype))
            rows[-1][: self._shared] = kept
        self._record = rebuild(record, rows)

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

        Its last step, and the overlap before it, begin the next one.
        """
        done = Unroll(
            timestep_of(self._spec, self._steps), self._actions, self._record, state, self._versions
        )
        steps, kept = self._steps, slice(self.length - self.overlap, None)
        self._begin()
        self.decided = self._shared = self.overlap
        for mine, before in zip(self._steps, steps, strict=True):
            mine[: self.overlap + 1] = before[kept]
        if self.overlap:
            self._actions[: self.overlap] = done.action[kept]
            self._versions[: self.overlap] = done.version[kept]
            self._record = map_leaves(np.empty_like, done.record)
            for (_, mine), (_, before) in zip(leaves(self._record), leaves(done.record), strict=True):
                mine[: self.overlap] = before[kept]
        return done
