"""A lane: one half of an actor's environments, which are stepped, acted for and cut into unrolls together."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seedbed.acting.opponents import Games
from seedbed.acting.unrolls import Delivery, OpenUnroll
from seedbed.envs.episodes import EpisodeMeter
from seedbed.transport.interface import Peer
from seedbed.types import TimeStep, Unroll


@dataclass(frozen=True)
class Member:
    """An actor that has joined.

    Attributes:
      index: index of the actor among the actors of this host.
      epoch: number of actors that had this index before.
      peer: the server's end of its conversation.
      local: whether it is one of the run's own actors.
    """

    index: int
    epoch: int
    peer: Peer = field(compare=False)
    local: bool = False


@dataclass
class Script:
    """The actions of a lane before the run was interrupted: replayed, they bring its environments back.

    Attributes:
      actions: logged actions ``[steps, n, ...]``.
      digest: checksum of the step that followed the last action.
      played: number of actions that were replayed so far.
    """

    actions: NDArray[Any]
    digest: int
    played: int = 0


def digest_of(arrays: Sequence[NDArray[Any]]) -> int:
    """Computes the CRC-32 of one step's arrays, by which a replayed environment is verified."""
    value = 0
    for array in arrays:
        value = zlib.crc32(np.ascontiguousarray(array).tobytes(), value)
    return value


@dataclass(eq=False, kw_only=True, repr=False)
class Lane:
    """The state of one lane; owned by the thread that serves it. Times are monotonic, in s.

    Attributes:
      member: the actor that the lane belongs to.
      half: index of the lane among the actor's lanes: 0 or 1.
      slots: int32 ``[n]``, slot of each environment.
      meter: meter of the returns and lengths of its episodes.
      steps: number of decisions so far.
      rounds: number of unrolls cut so far.
      arrived: time at which the message that waits for a reply came; None while the environments step.
      owed_since: time since which the actor owes a message; None while it waits for a reply.
      outbox: a complete unroll that is not handed over yet.
      priorities: float32 ``[items, n]``, priorities of the outbox's items, if the actor has computed them.
      finished: returns and lengths of the episodes that ended since the last unroll was handed over.
      evaluating: number of its environments, the last ones, that only evaluate.
      evaluating_apart: whether some environments of the run only evaluate.
      counted: number of steps of the outbox that the ledger counts.
      sent_away: whether its actor was sent away for what it sent.
      served: whether its service has taken it in, and it has not left.
      games: games of its rows in self-play; None where the policy plays alone.
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
    sent_away: bool = False
    served: bool = False
    games: Games | None = None

    @property
    def open_steps(self) -> int:
        """Number of decisions of its environments that the ledger counts as open: in no complete unroll."""
        return 0

    @property
    def at_rest(self) -> bool:
        """True between two unrolls, once the one before was handed over."""
        return self.arrived is not None and self.outbox is None

    @property
    def order(self) -> tuple[int, int]:
        """The pair of the actor's index and the half, which orders lanes independently of their arrival."""
        return (self.member.index, self.half)

    @property
    def rows(self) -> int:
        """Number of its environments, n."""
        return len(self.slots)

    def meet(self, timestep: TimeStep) -> list[tuple[float, int]]:
        """Counts a step ``[n, ...]`` of the stream; returns ``(return, length)`` of the episodes that ended with it.

        Where some environments of the run only evaluate, episodes of the others are left out: exploration lowers their
        returns.
        """
        finished = self.meter.add(timestep)
        if not finished:
            return finished
        return [
            episode for row, episode in zip(self.meter.finished, finished, strict=True) if self.counts(row)
        ]

    def counts(self, row: int) -> bool:
        """Returns whether an episode of the row that ends now is among the returns."""
        apart = self.evaluating_apart and row < self.rows - self.evaluating
        return not apart and (self.games is None or self.games.counts(row))

    def delivery(self) -> Delivery:
        """Returns the outbox in the form in which it is handed over."""
        assert self.outbox is not None
        streams = self.slots.astype(np.int64) | np.int64(self.member.epoch) << 32
        trains = np.arange(self.rows) < self.rows - self.evaluating
        return Delivery(
            self.outbox, self.finished, streams, self.steps, trains, self.counted, self.priorities
        )

    def handed_over(self) -> None:
        """Empties the outbox after it was taken."""
        self.outbox, self.priorities, self.finished, self.counted = None, None, [], 0

    def __repr__(self) -> str:
        doing = "waits" if self.arrived is not None else "steps"
        held = ", unroll held" if self.outbox is not None else ""
        return f"<lane {self.order} of {self.rows}: {doing}, step {self.steps}, round {self.rounds}{held}>"


@dataclass(eq=False, kw_only=True, repr=False)
class ServedLane(Lane):
    """A lane whose actions are decided by the thread that serves it.

    Attributes:
      open: its open unroll.
      log: actions of all rounds, kept where checkpoints resume exactly; None otherwise.
      script: actions to be replayed after a resumption; None once the environments are back.
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
        """Returns the inputs of inference beside the step, int32 ``[4, n]``; see :func:`columns`."""
        return columns(self.slots, self.member.epoch, self.steps, self.open)


def columns(slots: NDArray[np.int32], epoch: int, step: int, unroll: OpenUnroll) -> NDArray[np.int32]:
    """Returns int32 ``[4, n]``: slot, epoch, step, and the unroll that begins with the step, as a ``Begins``."""
    filled = np.empty((4, len(slots)), np.int32)
    filled[0], filled[1], filled[2], filled[3] = slots, epoch, step, unroll.begins
    return filled


def arrival(lane: Lane) -> tuple[float, tuple[int, int]]:
    """Returns the sort key of lanes for first come, first served; waiting lanes sort before stepping ones."""
    return (np.inf if lane.arrived is None else lane.arrived, lane.order)
