"""The service of central inference: one thread for each accelerator takes steps, acts, and hands unrolls on."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from seedbed.acting.assignment import Assignment
from seedbed.acting.inference import Inference
from seedbed.acting.lag_control import BatchControl
from seedbed.acting.lanes import Script, ServedLane, digest_of
from seedbed.acting.meters import Meters
from seedbed.acting.opponents import ITSELF, Games, Opponents, marked, without_opponents
from seedbed.acting.unrolls import OpenUnroll, step_fields, timestep_of
from seedbed.errors import Refused, RunFailed
from seedbed.metrics.ledger import Ledger
from seedbed.serving.border import BorderRules
from seedbed.serving.service import Service
from seedbed.transport.interface import Layout, Layouts
from seedbed.types import Tree, Unroll, Weights, map_leaves


class Recipient(Protocol):
    """The receiver of complete unrolls, and of the lanes that they come from; called by the service."""

    def new_lane(self, **known: Any) -> ServedLane:
        """Makes a lane; ``known`` are its attributes, see :meth:`~seedbed.serving.service.Service.new_lane`."""

    def games(self, pool: Opponents, lane: ServedLane) -> Games:
        """Makes the games of a lane in self-play."""

    def joined(self, lane: ServedLane) -> None:
        """Takes note of a lane before its first step is decided."""

    def cut(self, lane: ServedLane, unroll: Unroll) -> Unroll:
        """Takes note of a complete unroll; returns it in the form in which it waits in the lane's outbox."""


class LocalRecipient:
    """The recipient of unrolls that are trained on in this process."""

    def __init__(self, assignment: Assignment) -> None:
        self._assignment = assignment

    def new_lane(self, **known: Any) -> ServedLane:
        """See :class:`Recipient`."""
        return ServedLane(**known)

    def games(self, pool: Opponents, lane: ServedLane) -> Games:
        """See :class:`Recipient`."""
        numbers = [self._assignment.slot_number(int(slot)) for slot in lane.slots]
        return Games(pool, numbers, lane.member.epoch)

    def joined(self, lane: ServedLane) -> None:
        """Does nothing."""

    def cut(self, lane: ServedLane, unroll: Unroll) -> Unroll:
        """Takes opponents out: nobody trains on their decisions."""
        return unroll if lane.games is None else without_opponents(unroll)


class InferenceService(Service[ServedLane]):
    """A thread that acts for the lanes of one accelerator, and cuts their unrolls; it owns lanes and tables.

    Args:
      inference: the policy on the accelerator.
      lag_control: control that chooses the lanes of each batch and their weights.
      assignment: the run's assignment.
      ledger: ledger in which steps are booked.
      meters: meters that all services of the run share.
      full_batch: number of rows in a full batch, for the meters.
      on_failure: function that is called with the exception that ended the thread.
      pool: frozen versions that play against the policy; None without self-play.
      recipient: receiver of the unrolls; None for one in this process.
    """

    hears = True
    _lag_control: BatchControl

    def __init__(
        self,
        inference: Inference,
        lag_control: BatchControl,
        assignment: Assignment,
        *,
        ledger: Ledger,
        meters: Meters,
        full_batch: int,
        on_failure: Callable[[BaseException], None],
        pool: Opponents | None = None,
        recipient: Recipient | None = None,
    ) -> None:
        super().__init__(lag_control, ledger=ledger, meters=meters, on_failure=on_failure)
        self.inference = inference
        self._assignment = assignment
        self._rules = BorderRules(assignment.spec)
        self._full_batch = full_batch
        self._pool = pool
        self._recipient = recipient or LocalRecipient(assignment)
        self._up = self._down = 0  # bytes that have travelled and are not metered yet

    # Called by the registry.

    def require_room(self, envs: int, rows: int) -> None:
        """Raises :class:`Refused` if a lane is larger than the largest batch of the policy."""
        if rows > self.inference.largest:
            raise Refused(
                f"{envs} environments in one actor: inference takes at most {self.inference.largest} a half; "
                "use a smaller --envs, or a larger --inference-batch at the learner"
            )

    def layouts(self, rows: int, lanes: int) -> list[Layouts]:
        """Returns the layouts: steps up, actions down."""
        spec = self._assignment.spec
        down = Layout((((rows, *spec.action.shape), spec.action.dtype),))
        return [Layouts(Layout(step_fields(spec, rows)), down)] * lanes

    def new_lane(self, kept: Mapping[str, Any] | None, **known: Any) -> ServedLane:
        """See :class:`~seedbed.serving.service.Service`."""
        log: list[NDArray[Any]] | None = [] if self._assignment.keep_log else None
        unroll = self._open_unroll(len(known["slots"]))
        lane = self._recipient.new_lane(open=unroll, log=log, **known)
        if self._pool is not None:
            lane.games = self._recipient.games(self._pool, lane)
            if kept is not None:
                lane.games.restore(kept.get("games", kept))
        if kept is not None:
            lane.steps, lane.rounds = kept["steps"], kept["rounds"]
            lane.script = Script(kept["actions"], kept["digest"])
            lane.open.restore(kept["shared"], kept.get("record"))
            if lane.log is not None:
                lane.log.append(kept["actions"])
        return lane

    def _open_unroll(self, rows: int) -> OpenUnroll:
        assignment = self._assignment
        return OpenUnroll(
            assignment.spec, rows, assignment.overlap + assignment.unroll_length, assignment.overlap
        )

    def lane_states(self) -> dict[tuple[int, int], dict[str, Any]]:
        """See :class:`~seedbed.serving.service.Service`."""
        return {lane.order: _state_of(lane) for lane in self.lanes}

    # Run by the thread.

    def turn(self) -> float | None:
        """Passes unrolls on, and acts for the lanes that are due; returns the time in s to wait for commands."""
        self._meters.travel(up=self._up, down=self._down)
        self._up = self._down = 0
        self._pass_on()
        chosen, wait = self._lag_control.choose(self.lanes, time.monotonic())
        if not chosen:
            return wait
        self._serve(chosen)
        return 0.0

    def _serve(self, lanes: Sequence[ServedLane]) -> None:
        weights = self._lag_control.weights(lanes)
        begin = time.monotonic()
        players, others = (None, 0) if self._pool is None else self._players(self._pool, lanes, weights)
        actions, record = self._act(lanes, weights, players)
        actions = np.ascontiguousarray(actions, self._assignment.spec.action.dtype)
        now = time.monotonic()
        resets = others + sum(lane.meter.ended for lane in lanes)
        start = 0
        for lane in lanes:
            rows = slice(start, start + lane.rows)
            start += lane.rows
            version = weights.version if players is None else marked(players[rows], weights.version)
            lane.open.decide(actions, record, version, rows)
            lane.steps += 1
            self._reply(lane, actions[rows], now)
        self._ledger.decide(start, resets)
        self._meters.add(start, max(start, self._full_batch), now - begin)

    def _players(
        self, pool: Opponents, lanes: Sequence[ServedLane], weights: Weights
    ) -> tuple[NDArray[np.int64], int]:
        """Begins and ends games.

        Returns the version that plays each row of the lanes, ``[sum of n]``, and the number of decisions of opponents
        that are carried out: they are none of the policy's.
        """
        before = pool.steps
        pool.meet(
            weights, lambda: {int(one) for lane in self.lanes if lane.games for one in lane.games.players}
        )
        for lane in lanes:
            assert lane.games is not None, "every lane has games if there is a pool"
            step = timestep_of(self._assignment.spec, lane.open.observed)
            lane.games.step(step, lane.meter.returns, lane.steps)
        return np.concatenate([lane.games.players for lane in lanes if lane.games]), pool.steps - before

    def _act(
        self, lanes: Sequence[ServedLane], weights: Weights, players: NDArray[np.int64] | None
    ) -> tuple[NDArray[Any], Tree]:
        """Decides for the lanes; with one call for each version that plays rows of them, the newest first."""
        batch = [(lane.open.observed, lane.columns()) for lane in lanes]
        if players is None or self._pool is None or (players == ITSELF).all():
            return self.inference.act(weights.params, batch)
        arrays = [np.concatenate(parts) for parts in zip(*(step for step, _ in batch), strict=True)]
        columns = np.concatenate([each for _, each in batch], axis=1)
        order, decided = [], []
        for version in [ITSELF, *sorted({*players.tolist()} - {ITSELF}, reverse=True)]:
            rows = np.flatnonzero(players == version)
            # None of the policy itself, and of a version that could not be loaded.
            params = self._pool.params(version)
            part = ([array[rows] for array in arrays], columns[:, rows])
            if rows.size:
                order.append(rows)
                decided.append(self.inference.act(weights.params if params is None else params, [part]))
        back = np.argsort(np.concatenate(order))
        actions, records = zip(*decided, strict=True)
        return np.concatenate(actions)[back], map_leaves(lambda *parts: np.concatenate(parts)[back], *records)

    def _reply(self, lane: ServedLane, action: NDArray[Any], now: float) -> None:
        lane.arrived = None
        lane.owed_since = now
        self._down += action.nbytes
        lane.member.peer.reply(lane.half, [action])

    def add(self, lane: ServedLane) -> None:
        """Adds a lane, whose environments begin anew unless it comes from a checkpoint."""
        self._recipient.joined(lane)
        if lane.script is None:  # otherwise the slots hold the states of the checkpoint
            self.inference.reset(lane.slots)
        super().add(lane)

    def take(self, lane: ServedLane, arrays: list[NDArray[Any]], now: float) -> None:
        """Takes the next step of a lane's environments."""
        if not lane.served:
            return
        self._up += sum([array.nbytes for array in arrays])
        step = timestep_of(self._assignment.spec, arrays)
        if (broken := self._rules.broken_by(lane, step)) is not None:
            self._send_away(lane, broken)
            return
        finished = lane.meet(step)
        if lane.script is None:
            lane.finished += finished
        elif not self._replayed(lane, lane.script, arrays, now):
            return  # episodes that ended up to here were counted before the run was interrupted
        if lane.open.observe(arrays):
            self._cut(lane)
        lane.arrived = now

    def _cut(self, lane: ServedLane) -> None:
        lane.counted = lane.open.transitions
        unroll = lane.open.cut(self.inference.first_states(lane.slots))
        lane.outbox = self._recipient.cut(lane, unroll)
        self._complete.append(lane)
        lane.rounds += 1
        if lane.log is not None:
            lane.log.append(lane.outbox.action[-(lane.counted // lane.rows) :])
        self._ledger.cut(lane.counted)

    def _replayed(self, lane: ServedLane, script: Script, arrays: list[NDArray[Any]], now: float) -> bool:
        """Replies with the next logged action; returns True once the environments are where they were."""
        if script.played < len(script.actions):
            script.played += 1
            self._reply(lane, script.actions[script.played - 1], now)
            return False
        if digest_of(arrays) != script.digest:
            raise RunFailed(
                f"cannot resume exactly: lane {lane.order} of {self._assignment.env} does not come back to where "
                "it was when its actions are played again; the environment is not deterministic given its "
                "seed. Resume without --deterministic."
            )
        lane.script = None
        return True


def _state_of(lane: ServedLane) -> dict[str, Any]:
    log = lane.log or []
    return {
        "steps": lane.steps,
        "rounds": lane.rounds,
        "actions": np.concatenate(log) if log else lane.open.no_actions(),
        "digest": digest_of(lane.open.observed),
        "shared": lane.open.shared(),
        **({} if lane.games is None else {"games": lane.games.state()}),
    }
