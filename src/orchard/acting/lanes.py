"""A lane: one half of one actor's environments, the unit that travels, acts and cuts unrolls."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from orchard.acting.unrolls import Delivery, OpenUnroll
from orchard.envs.episodes import EpisodeMeter
from orchard.transport.seam import Peer
from orchard.types import Unroll


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


@dataclass(eq=False)
class Lane:
    """What acting knows of one lane; owned by the thread that serves it.

    Attributes:
      member: the actor it belongs to.
      half: which half of it.
      slots: int32 ``[n]``.
      open: its open unroll.
      meter: returns and lengths of its episodes.
      steps: decisions so far.
      rounds: unrolls cut so far.
      arrived: when the step that waits for a decision came, in s; None while the environments step.
      owed_since: when the last reply was sent, in s: since then the actor owes a step.
      outbox: a complete unroll that found no room yet.
      finished: returns and lengths of the episodes that ended since the last unroll was handed over.
      log: the actions of all rounds, kept if the run is to be resumed exactly.
      script: what is still to be replayed.
      evaluating: how many of its environments, the last ones, only evaluate.
      counted: steps of the outbox in the books.
    """

    member: Member
    half: int
    slots: NDArray[np.int32]
    open: OpenUnroll
    meter: EpisodeMeter
    steps: int = 0
    rounds: int = 0
    arrived: float | None = None
    owed_since: float | None = None
    outbox: Unroll | None = None
    finished: list[tuple[float, int]] = field(default_factory=list)
    log: list[NDArray[Any]] | None = None
    script: Script | None = None
    evaluating: int = 0
    counted: int = 0

    @property
    def order(self) -> tuple[int, int]:
        """Its place among all lanes, the same whatever came first."""
        return (self.member.index, self.half)

    @property
    def rows(self) -> int:
        """n, its environments."""
        return len(self.slots)

    def columns(self) -> NDArray[np.int32]:
        """What inference needs beside the step, int32 ``[4, n]``: slot, epoch, step, begins an unroll."""
        columns = np.empty((4, self.rows), np.int32)
        columns[0] = self.slots
        columns[1] = self.member.epoch
        columns[2] = self.steps
        columns[3] = self.open.begins
        return columns

    def delivery(self) -> Delivery:
        """The outbox, as it is handed over."""
        assert self.outbox is not None
        streams = self.slots.astype(np.int64) | np.int64(self.member.epoch) << 32
        trains = np.arange(self.rows) < self.rows - self.evaluating
        return Delivery(self.outbox, self.finished, streams, self.steps, trains, self.counted)

    def __repr__(self) -> str:
        doing = "waits" if self.arrived is not None else "steps"
        held = ", unroll held" if self.outbox is not None else ""
        return f"<lane {self.order} of {self.rows}: {doing}, step {self.steps}, round {self.rounds}{held}>"


def arrival(lane: Lane) -> tuple[float, tuple[int, int]]:
    """By what lanes are sorted that are served first come, first served; those that wait come first."""
    return (np.inf if lane.arrived is None else lane.arrived, lane.order)
