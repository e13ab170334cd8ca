"""The service of actors that run the policy themselves: takes in their unrolls and gives out weights.

Every lane of an actor sends a complete unroll and is told, once it was taken, which version of the weights its next
one begins with: so actors are held back while there is no room. One more lane, the control lane, fetches weights: the
wanted version goes up, a whole snapshot comes down as soon as there is one. So weights travel when they have changed,
and once for all lanes of an actor.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seedbed.acting.assignment import Assignment
from seedbed.acting.codec import Introduction, UnrollCodec, WeightsCodec, lanes_of_unrolls, version_array
from seedbed.acting.lag_control import LagControl
from seedbed.acting.lanes import Lane, Member
from seedbed.acting.meters import Meters
from seedbed.acting.opponents import ITSELF, Games, Pool, without_opponents
from seedbed.acting.unrolls import resets_in
from seedbed.errors import Refused
from seedbed.metrics.ledger import Ledger
from seedbed.serving.border import BorderRules
from seedbed.serving.service import Service
from seedbed.transport.interface import Layouts
from seedbed.types import Agent, TimeStep, Unroll, Weights, leaves, map_leaves
from seedbed.weights.store import WeightStore


class UnrollService(Service[Lane]):
    """A thread that takes unrolls in and gives weights out; it owns its lanes.

    Args:
      agent: the agent whose unrolls come in.
      lag_control: control of the weights that come next, and of the moment at which unrolls are passed on.
      assignment: the run's assignment.
      store: store of the published weights.
      policy: settings from which actors make the agent, as JSON values.
      fetch_steps: number of steps of a lane after which it is told of newer weights, at the beginning of an unroll.
      largest: largest number of environments in a lane; None for any number.
      ledger: ledger in which steps are booked; steps of an actor enter it when their unroll comes.
      meters: meters of acting.
      on_failure: function that is called with the exception that ended the thread.
      pool: frozen versions that play against the policy, where forward-pass servers act; None without self-play.
    """

    def __init__(
        self,
        agent: Agent,
        lag_control: LagControl,
        assignment: Assignment,
        store: WeightStore,
        *,
        policy: Mapping[str, Any],
        fetch_steps: int,
        largest: int | None,
        ledger: Ledger,
        meters: Meters,
        on_failure: Callable[[BaseException], None],
        pool: Pool | None = None,
    ) -> None:
        super().__init__(lag_control, ledger=ledger, meters=meters, on_failure=on_failure)
        self._agent = agent
        self._assignment = assignment
        self._rules = BorderRules(assignment.spec)
        self._store = store
        self._policy = policy
        self._fetch_steps = fetch_steps
        self._largest = largest
        self._pool = pool
        self._weights = WeightsCodec(agent, 0 if pool is None else pool.settings.size)
        self._codecs: dict[int, UnrollCodec] = {}
        self._told: dict[Lane, tuple[int, int]] = {}  # the version, and the lane's steps when it was new
        self._wanted: dict[Member, int] = {}  # the version that each waiting actor wants
        self._packed: tuple[int, list[NDArray[Any]]] | None = None

    # Called by the registry.

    def layouts(self, rows: int, lanes: int) -> list[Layouts]:
        """Returns the layouts: unrolls up, versions down; on the control lane versions up, weights down."""
        return lanes_of_unrolls(self._codec(rows), self._weights, lanes)

    def _codec(self, rows: int) -> UnrollCodec:
        if rows not in self._codecs:
            self._codecs[rows] = UnrollCodec(
                self._agent, self._assignment.spec, rows, players=self._pool is not None
            )
        return self._codecs[rows]

    def new_lane(self, kept: Mapping[str, Any] | None, **known: Any) -> Lane:
        """See :class:`~seedbed.serving.service.Service`."""
        assert kept is None, "what the policy remembers is with the actors"
        lane = Lane(**known)
        if self._pool is not None:
            lane.games = Games(self._pool, [*map(int, lane.slots)], lane.member.epoch)
        return lane

    def require_room(self, envs: int, rows: int) -> None:
        """Raises :class:`Refused` if a lane is larger than the inserts for which the replay was made."""
        if self._largest is not None and rows > self._largest:
            raise Refused(
                f"{envs} environments in one actor: this learner's replay takes at most {self._largest} a half; "
                "use a smaller --envs, or a larger --envs-per-actor at the learner"
            )

    def invitation(self) -> dict[str, Any]:
        """Returns the settings from which the actor makes the agent."""
        return {"policy": dict(self._policy)}

    def introduction(self, lanes: Sequence[Lane]) -> dict[str, Any]:
        """See :class:`~seedbed.acting.codec.Introduction`."""
        assignment, slots = self._assignment, [int(slot) for lane in lanes for slot in lane.slots]
        versions = [self._lag_control.version(lane) for lane in lanes]
        self._told.update({lane: (version, 0) for lane, version in zip(lanes, versions, strict=True)})
        return Introduction(
            seed=assignment.seed,
            epoch=lanes[0].member.epoch,
            numbers=[assignment.slot_number(slot) for slot in slots],
            exploration=assignment.exploration(slots),
            versions=versions,
        )._asdict()

    # Run by the thread.

    def turn(self) -> float | None:
        """Passes unrolls on, tells their lanes so, and gives out the weights that there are."""
        for lane in self._pass_on():
            self._tell(lane)
        for member, wanted in list(self._wanted.items()):
            self._give(member, wanted)
        newest = self._store.newest().version
        for lane in self.lanes:
            if lane.at_rest and self._told[lane][0] <= newest:
                # Its weights are published, so it can act: from now on it owes an unroll.
                lane.arrived, lane.owed_since = None, time.monotonic()
        return None

    def _tell(self, lane: Lane) -> None:
        """Tells the lane the version of the weights that its next unroll begins with."""
        version, since = self._told[lane]
        if lane.steps - since >= self._fetch_steps and (newest := self._lag_control.version(lane)) != version:
            version, since = newest, lane.steps
        self._told[lane] = (version, since)
        reply = version_array(version)
        self._meters.travel(down=reply.nbytes)
        lane.member.peer.reply(lane.half, [reply])

    def take_control(self, member: Member, arrays: list[NDArray[Any]]) -> None:
        """Notes the version of the weights that an actor wants."""
        if any(lane.member is member for lane in self.lanes):  # otherwise it has left meanwhile
            self._wanted[member] = int(arrays[0])

    def _give(self, member: Member, wanted: int) -> None:
        """Sends the wanted snapshot, or the newest if it is no longer kept; does nothing while it is still to come."""
        frozen = self._frozen(wanted)
        weights = frozen or self._store.exactly(wanted) or self._store.newest()
        if weights.version < wanted:
            return
        del self._wanted[member]
        if self._pool is not None and frozen is None:
            # Players are with the servers, so no version stays for games that are under way.
            self._pool.meet(weights, tuple)
        lanes = [lane for lane in self.lanes if lane.member is member]
        for lane in lanes:
            told, since = self._told[lane]
            if wanted <= told < weights.version:  # the version that it was told is gone: it gets this one
                self._told[lane] = (weights.version, since)
        arrays = self._pack(weights)
        if self._pool is not None:
            arrays = [*arrays, self._pool.table()]
        self._meters.travel(down=sum(array.nbytes for array in arrays))
        member.peer.reply(len(lanes), arrays)

    def _frozen(self, wanted: int) -> Weights | None:
        """Returns a version of the pool, which is wanted as ``-1 - version``; None if it is none, or gone."""
        params = None if self._pool is None or wanted >= 0 else self._pool.params(-1 - wanted)
        return None if params is None else Weights(params, -1 - wanted)

    def _pack(self, weights: Weights) -> list[NDArray[Any]]:
        """Packs a snapshot; it is fetched from the device once for all actors."""
        if self._packed is None or self._packed[0] != weights.version:
            self._packed = (weights.version, self._weights.pack(weights))
        return self._packed[1]

    def remove(self, lane: Lane) -> None:
        """Removes a lane, and the version of its weights."""
        super().remove(lane)
        self._told.pop(lane, None)
        self._wanted.pop(lane.member, None)

    def take(self, lane: Lane, arrays: list[NDArray[Any]], now: float) -> None:
        """Takes an unroll of a lane; an actor whose unroll is wrong is sent away."""
        if not lane.served:
            return
        self._meters.travel(up=sum(array.nbytes for array in arrays))
        sent, priorities, players = self._codec(lane.rows).unpack(arrays)
        unroll = sent if players is None else without_opponents(sent)
        begin = self._assignment.overlap if lane.rounds else 0
        new = len(unroll.action) - begin
        self._ledger.decide(new * lane.rows, resets_in(unroll.timestep.first[begin + 1 :]))
        wrong = self._wrong(lane, sent._replace(version=unroll.version)) or self._wrong_players(players)
        if wrong is not None:
            self._ledger.drop(open_steps=new * lane.rows)
            self._send_away(lane, wrong)
            return
        lane.outbox, lane.priorities = unroll, priorities
        self._meet(lane, sent, begin, players)
        lane.counted = new * lane.rows
        lane.steps += new
        lane.rounds += 1
        lane.arrived = now
        self._complete.append(lane)
        self._ledger.cut(lane.counted)

    def _meet(self, lane: Lane, unroll: Unroll, begin: int, players: NDArray[np.int32] | None) -> None:
        """Counts the episodes and games of an unroll as it was played, after ``begin`` transitions."""
        if lane.rounds == 0:
            lane.finished += lane.meet(_step(unroll, begin))
        for at in range(begin, len(unroll.action)):
            if lane.games is not None and players is not None:
                lane.games.follow(_step(unroll, at), lane.meter.returns, players[at])
            lane.finished += lane.meet(_step(unroll, at + 1))

    def _wrong_players(self, players: NDArray[np.int32] | None) -> str | None:
        """Returns the reason for which there can be no such players; None if there can."""
        newest = self._store.newest().version
        if players is None or (players.min() >= ITSELF and players.max() <= newest):
            return None
        return f"the actor says that versions play that do not exist; the newest version is {newest}"

    def _wrong(self, lane: Lane, unroll: Unroll) -> str | None:
        """Returns the reason for which an actor's unroll cannot be trained on; None if it can.

        Its numbers come from another device, and a replay would keep bad ones and sample them again and again.
        """
        if (broken := self._rules.broken_by(lane, unroll.timestep)) is not None:
            return broken
        computed = [*leaves(unroll.record), *leaves(unroll.state)]
        numbers = [leaf for _, leaf in computed if leaf.dtype.kind == "f"]
        if not all(np.isfinite(leaf).all() for leaf in numbers):
            return "the actor's policy has computed numbers that are not finite: look at its device"
        newest = self._store.newest().version
        if unroll.version.min() < 0 or unroll.version.max() > newest:
            return (
                f"the actor says that it acted with weights that do not exist; the newest version is {newest}"
            )
        if self._assignment.spec.action.num_values:
            choices = np.reshape(self._assignment.spec.action.num_values, self._assignment.spec.action.shape)
            fine = (unroll.action >= 0) & (unroll.action < choices)
        else:
            fine = np.isfinite(unroll.action)
        return None if fine.all() else "the actor took actions that do not exist: look at its device"


def _step(unroll: Unroll, at: int) -> TimeStep:
    """Returns a time step ``[n, ...]`` of an unroll, without observations: episodes are counted by the other fields."""
    flags = unroll.timestep._replace(observation={})
    return TimeStep(*(map_leaves(lambda leaf: leaf[at], part) for part in flags))
