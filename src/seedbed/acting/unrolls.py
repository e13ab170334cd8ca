"""Cutting unrolls: a lane's open unroll fills step by step and is handed over when it has T transitions."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from seedbed.types import EnvSpec, TimeStep, Tree, Unroll, leaf_values, map_leaves, rebuild


def step_arrays(timestep: TimeStep) -> list[NDArray[Any]]:
    """Returns the arrays of one time step in the order in which they travel: observation, reward, three flags."""
    observations = [np.asarray(leaf) for leaf in leaf_values(timestep.observation)]
    return [*observations, timestep.reward, timestep.terminated, timestep.truncated, timestep.first]


def step_fields(spec: EnvSpec, rows: int) -> tuple[tuple[tuple[int, ...], str], ...]:
    """Returns shapes and dtypes of :func:`step_arrays` for ``rows`` environments: the fields of a step's layout."""
    observations = tuple(((rows, *leaf.shape), leaf.dtype) for leaf in leaf_values(spec.observation))
    return (*observations, ((rows,), "float32"), *(((rows,), "bool"),) * 3)


def timestep_of(spec: EnvSpec, arrays: Sequence[Any]) -> TimeStep:
    """Makes the time step whose :func:`step_arrays` are ``arrays``, with any leading axes."""
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
      unroll: the unroll, ``[T+1, B, ...]``.
      episodes: returns and lengths in steps of the episodes that ended since the delivery before.
      streams: int64 ``[B]``, number of each row's stream of steps; an environment has a new one after every restart.
        None where batches are the unrolls as they come.
      end: number of decisions in these streams up to the unroll's last step.
      trains: bool ``[B]``, False for environments that only evaluate, the last ones; None: all are trained on.
      counted: number of its transitions that the ledger counts.
      priorities: float32 ``[items, B]``, priorities of its items, if the actor has computed them; see
        :attr:`seedbed.types.Agent.priorities`.
    """

    unroll: Unroll
    episodes: list[tuple[float, int]]
    streams: NDArray[np.int64] | None = None
    end: int = 0
    trains: NDArray[np.bool_] | None = None
    counted: int = 0
    priorities: NDArray[np.float32] | None = None


class Begins(enum.IntEnum):
    """The unroll that begins with the step to be decided next, and for which the agent's state is then kept."""

    NONE = 0
    THIS = 1
    NEXT = 2


class OpenUnroll:
    """The unroll that one lane is filling, time-major; owned by one thread.

    Steps are observed and decided in turn. After ``length`` decisions the next observation completes it: it is cut
    *before* the policy sees that observation, so that a learner in lockstep can train on it first and the
    policy that acts next can have been trained on every transition before it.

    Args:
      spec: spec of the environments.
      rows: number of environments.
      length: number of transitions in an unroll.
      overlap: number of these transitions that an unroll shares with the one before; the first unroll shares none.
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
        self.observed: list[NDArray[Any]] = []
        """The arrays ``[rows, ...]`` of the newest observed step; none before the first."""

    @property
    def untouched(self) -> bool:
        """True while no step was decided since the last unroll was cut."""
        return self.decided == self._shared

    @property
    def transitions(self) -> int:
        """Number of actions held, over all rows, that were in no unroll before."""
        return (self.decided - self._shared) * self._rows

    @property
    def begins(self) -> Begins:
        """The unroll that begins with the step that is decided next: this one, the one after it, or none."""
        if self.decided == 0:
            return Begins.THIS
        return Begins.NEXT if self.overlap and self.decided == self.length - self.overlap else Begins.NONE

    def observe(self, arrays: Sequence[NDArray[Any]]) -> bool:
        """Takes the step that followed the last decision; returns whether that completes the unroll."""
        self.observed = [array[self.decided] for array in self._steps]
        for mine, given in zip(self.observed, arrays, strict=True):
            mine[...] = given
        return self.decided == self.length

    def no_actions(self) -> NDArray[Any]:
        """Returns an empty log of actions, ``[0, rows, ...]``."""
        return self._actions[:0].copy()

    def shared(self) -> list[NDArray[Any]]:
        """Returns the part shared with the unroll before, for a checkpoint: steps, actions, versions and record."""
        record = [] if self._record is None else leaf_values(self._record)
        kept = [array[: self._shared] for array in (*self._steps, self._actions, self._versions, *record)]
        return [array.copy() for array in kept]

    def restore(self, shared: Sequence[NDArray[Any]], record: Tree) -> None:
        """Restores a result of :meth:`shared`; only the structure of ``record`` is used."""
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

    def decide(
        self, action: NDArray[Any], record: Tree, version: int | NDArray[Any], mine: slice = slice(None)
    ) -> None:
        """Keeps the decision for the observed step.

        Args:
          action, record: action and record ``[B, ...]`` of a batch.
          version: version of the weights, one for all rows, or int ``[rows]``.
          mine: rows of the batch that are this lane's; all by default.
        """
        if self._record is None:
            self._record = map_leaves(
                lambda x: np.empty((self.length, self._rows, *x.shape[1:]), x.dtype), record
            )
        at = self.decided
        self._actions[at] = action[mine]
        self._versions[at] = version
        for kept, given in zip(leaf_values(self._record), leaf_values(record), strict=True):
            kept[at] = given[mine]
        self.decided += 1

    def cut(self, state: Tree) -> Unroll:
        """Returns the complete unroll, with the agent's ``state`` ``[rows, ...]`` before its first step.

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
        self.observed = [array[self.decided] for array in self._steps]
        if self.overlap:
            self._actions[: self.overlap] = done.action[kept]
            self._versions[: self.overlap] = done.version[kept]
            self._record = map_leaves(np.empty_like, done.record)
            for mine, before in zip(leaf_values(self._record), leaf_values(done.record), strict=True):
                mine[: self.overlap] = before[kept]
        return done
