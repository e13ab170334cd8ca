"""A lane: one half of one actor's environments, the unit that travels, acts and cuts unrolls."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seedbed.acting.unrolls import Delivery, OpenUnroll
from seedbed.envs.episodes import EpisodeMeter
from seedbed.transport.interface import Peer
from seedbed.types import TimeStep, Unroll


@dataclass(frozen=True)
class Member:
    """Who an actor is: ``index`` among the actors, ``epoch`` (how many came before it at that index)."""

    index: int
    epoch: int
    peer: Peer = field(compare=False)
    local: bool = False


@dataclass
class Script:
    """The actions a lane took before the run was interrupted: played again, they bring its environments back.

    Attributes:
      actions: ``[steps, n, ...]``.
      digest: checksum of the step that followed the last of them.
    """

    actions: NDArray[Any]
    digest: int
    played: int = 0


def digest_of(arrays: Sequence[NDArray[Any]]) -> int:
    """A checksum of one step, by which a replayed environment is recognised."""
    value = 0
    for array in arrays:
        value = zlib.crc32(np.ascontiguousarray(array).tobytes(), value)
    return value


@dataclass(eq=False, kw_only=True, repr=False)
class Lane:
    """What acting knows of one lane; owned by the thread that serves it.

    Attributes:
      member: the actor it belongs to.
      half: which half of it.
      slots: int32 ``[n]``.
      meter: returns and lengths of its episodes.
      steps: decisions so far.
      rounds: unrolls cut so far.
      arrived: when what waits for a reply came, in s; None while the environments step.
      owed_since: since when the actor owes something, in s; None while it waits for a reply.
      outbox: a complete unroll that found no room yet.
      priorities: float32 ``[items, n]``, those of the outbox, if the actor has computed them.
      finished: returns and lengths of the episodes that ended since the last unroll was handed over.
      evaluating: how many of its environments, the last ones, only evaluate.
      evaluating_apart: whether some environments of the run do.
      counted: steps of the outbox in the books.
    """

    member: Member
    half: int
    slots: NDArray[np.int32]
    meter: EpisodeMeter
    steps: int = 0
    rounds: int = 0
    arrived: float | None = None
    owed_since: float | None = None
    outbox: Unroll | None = None
    priorities: NDArray[np.float32] | None = None
    finished: list[tuple[float, int]] = field(default_factory=list)
    evaluating: int = 0
    evaluating_apart: bool = False
    counted: int = 0

    @property
    def open_steps(self) -> int:
        """Decisions of all its environments that are in no complete unroll, in the books."""
        return 0

    @property
    def at_rest(self) -> bool:
        """Whether it stands between two unrolls, and the one before was handed over."""
        return self.arrived is not None and self.outbox is None

    @property
    def order(self) -> tuple[int, int]:
        """Its place among all lanes, the same whatever came first."""
        return (self.member.index, self.half)

    @property
    def rows(self) -> int:
        """n, its environments."""
        return len(self.slots)

    def meet(self, timestep: TimeStep) -> list[tuple[float, int]]:
        """Takes a step ``[n, ...]`` of the stream; returns ``(return, length)`` of the episodes that it finished.

        Where some environments only evaluate, theirs alone: those that explore are not what the agent can do.
        """
        finished = self.meter.add(timestep)
        if not self.evaluating_apart:
            return finished
        return [
            episode
            for row, episode in zip(self.meter.finished, finished, strict=True)
            if row >= self.rows - self.evaluating
        ]

    def delivery(self) -> Delivery:
        """The outbox, as it is handed over."""
        assert self.outbox is not None
        streams = self.slots.astype(np.int64) | np.int64(self.member.epoch) << 32
        trains = np.arange(self.rows) < self.rows - self.evaluating
        return Delivery(
            self.outbox, self.finished, streams, self.steps, trains, self.counted, self.priorities
        )

    def handed_over(self) -> None:
        """Says that the outbox was taken."""
        self.outbox, self.priorities, self.finished, self.counted = None, None, [], 0

    def __repr__(self) -> str:
        doing = "waits" if self.arrived is not None else "steps"
        held = ", unroll held" if self.outbox is not None else ""
        return f"<lane {self.order} of {self.rows}: {doing}, step {self.steps}, round {self.rounds}{held}>"


@dataclass(eq=False, kw_only=True, repr=False)
class ServedLane(Lane):
    """A lane whose steps are decided here.

    Attributes:
      open: its open unroll.
      log: the actions of all rounds, kept if the run is to be resumed exactly.
      script: what is still to be replayed.
    """

    open: OpenUnroll
    log: list[NDArray[Any]] | None = None
    script: Script | None = None

    @property
    def open_steps(self) -> int:
        """See :class:`Lane`."""
        return self.open.transitions

    @property
    def at_rest(self) -> bool:
        """See :class:`Lane`."""
        return super().at_rest and self.open.untouched

    def columns(self) -> NDArray[np.int32]:
        """What inference needs beside the step, see :func:`columns`."""
        return columns(self.slots, self.member.epoch, self.steps, self.open)


def columns(slots: NDArray[np.int32], epoch: int, step: int, unroll: OpenUnroll) -> NDArray[np.int32]:
    """int32 ``[4, n]``: slot, epoch, step, and which unroll begins with that (as ``Begins`` has it)."""
    filled = np.empty((4, len(slots)), np.int32)
    filled[0], filled[1], filled[2], filled[3] = slots, epoch, step, unroll.begins
    return filled


def arrival(lane: Lane) -> tuple[float, tuple[int, int]]:
    """By what lanes are sorted that are served first come, first served; those that wait come first."""
    return (np.inf if lane.arrived is None else lane.arrived, lane.order)
