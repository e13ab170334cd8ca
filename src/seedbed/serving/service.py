"""The base class of services: one thread owns the lanes of some actors; other threads send it commands.

Subclasses define the work of that thread: ``turn``, ``take``, and ``take_control`` if there is a control lane.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar

from numpy.typing import NDArray

from seedbed.acting.lag_control import LagControl
from seedbed.acting.lanes import Lane, Member, arrival
from seedbed.acting.meters import Meters
from seedbed.metrics.ledger import Ledger
from seedbed.serving.command_thread import CommandThread
from seedbed.transport.interface import Layouts

L = TypeVar("L", bound=Lane)


class Service(ABC, Generic[L]):
    """A thread behind the registry that takes messages of actors, replies, and passes unrolls on.

    Args:
      lag_control: control of the weights that lanes act with, and of the moment at which unrolls are passed on.
      ledger: ledger in which steps are booked.
      meters: meters that all services of a run share.
      on_failure: function that is called with the exception that ended the thread.

    Attributes:
      thread: the thread.
      lanes: the lanes that it serves.
    """

    hears = False
    """True if messages take so little time that the thread hears them itself; see
    :meth:`~seedbed.serving.command_thread.CommandThread.wait_at`."""

    def __init__(
        self,
        lag_control: LagControl,
        *,
        ledger: Ledger,
        meters: Meters,
        on_failure: Callable[[BaseException], None],
    ) -> None:
        self.thread = CommandThread("acting", self.turn, on_failure)
        self.lanes: list[L] = []
        self._complete: list[L] = []  # lanes whose outbox is not handed over yet
        self._lag_control = lag_control
        self._ledger = ledger
        self._meters = meters

    # Called by the registry, in its thread.

    @abstractmethod
    def layouts(self, rows: int, lanes: int) -> list[Layouts]:
        """Returns the layouts of the messages of an actor with ``lanes`` lanes of ``rows`` environments each.

        One layout more, at the end, is that of a *control lane*, which has no environments; not all services have one.
        """

    @abstractmethod
    def new_lane(self, kept: Mapping[str, Any] | None, **known: Any) -> L:
        """Makes a lane for an actor that joins.

        Args:
          kept: the lane's state in a checkpoint (see :meth:`lane_states`), or None.
          **known: ``member``, ``half``, ``slots``, ``meter``, ``owed_since``, ``evaluating``, ``evaluating_apart`` of
            the lane; see :class:`~seedbed.acting.lanes.Lane`.
        """

    def invitation(self) -> dict[str, Any]:
        """Returns the service's part of the answer to ``join``, as JSON values."""
        return {}

    def introduction(self, lanes: Sequence[L]) -> dict[str, Any]:
        """Returns the answer to ``ready`` for an actor with these lanes, as JSON values."""
        del lanes
        return {}

    def require_room(self, envs: int, rows: int) -> None:
        """Raises :class:`~seedbed.errors.Refused` if ``envs`` environments of an actor, in lanes of ``rows``, are too
        many."""

    def report(self, told: Mapping[str, Any]) -> None:
        """Adds the report of an actor or of a forward-pass server to the meters.

        Raises :class:`~seedbed.errors.Refused` if it is no report.
        """
        self._meters.report(told)

    def lane_states(self) -> dict[tuple[int, int], dict[str, Any]]:
        """Returns the state of every lane, for an exact resumption; only while the service is blocked in lockstep."""
        return {}

    # Called by other threads.

    def join(self, lane: L) -> None:
        """Commands the thread to add a lane."""
        self.thread.submit(self.add, lane)

    def arrive(self, lane: L, arrays: list[NDArray[Any]], now: float) -> None:
        """Commands the thread to take a message of the lane, received at ``now`` (monotonic, s)."""
        self.thread.submit(self.take, lane, arrays, now)

    def control(self, member: Member, arrays: list[NDArray[Any]]) -> None:
        """Commands the thread to take a message of the actor's control lane."""
        self.thread.submit(self.take_control, member, arrays)

    def taken(self, lane: L) -> None:
        """Commands the thread to empty the lane's outbox, which another process has taken."""
        self.thread.submit(self._taken, lane)

    def leave(self, lane: L) -> None:
        """Commands the thread to remove a lane."""
        self.thread.submit(self.remove, lane)

    def wait_blocked(self, timeout: float) -> bool:
        """Waits, in lockstep, until all lanes wait for weights; returns False when ``timeout`` s have passed."""
        return self.thread.wait_idle(lambda: self._lag_control.blocked(self.lanes), timeout)

    # Run by the thread.

    @abstractmethod
    def turn(self) -> float | None:
        """Does all work that is due; returns the time in s to wait for commands (None: until there is one)."""

    @abstractmethod
    def take(self, lane: L, arrays: list[NDArray[Any]], now: float) -> None:
        """Takes a message of a lane, received at ``now`` (monotonic, s)."""

    def take_control(self, member: Member, arrays: list[NDArray[Any]]) -> None:
        """Takes a message of the actor's control lane."""
        raise NotImplementedError(f"{type(self).__name__} has no control lane")

    def add(self, lane: L) -> None:
        """Adds a lane."""
        lane.served = True
        self.lanes.append(lane)

    def remove(self, lane: L) -> None:
        """Removes a lane, and drops its steps; nothing if it has gone."""
        if lane.served:
            lane.served = False
            self.lanes.remove(lane)
            if lane in self._complete:
                self._complete.remove(lane)
            self._ledger.drop(open_steps=lane.open_steps, queued_steps=lane.counted)

    def _pass_on(self) -> list[L]:
        """Passes complete unrolls on, as far as there is room; returns the lanes whose unrolls were taken."""
        taken: list[L] = []
        # First come, first served: otherwise a full queue would starve the last lanes, or the large ones.
        for lane in sorted(self._complete, key=arrival):
            if not self._lag_control.hand_over(lane):
                break
            lane.handed_over()
            taken.append(lane)
        if taken:
            self._complete = [lane for lane in self._complete if lane.outbox is not None]
        return taken

    def _taken(self, lane: L) -> None:
        if lane.served:
            self._ledger.train(lane.counted)
            lane.handed_over()
            self._complete.remove(lane)

    def _send_away(self, lane: L, reason: str) -> None:
        """Gives the lane up at once, and ends the conversation with its actor; later messages of it are ignored."""
        self.remove(lane)
        lane.sent_away = True
        lane.member.peer.close(reason)
