"""The registry that actors join: admits them, gives them slots and passes their messages to a service."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seedbed.acting.assignment import Assignment, half_seeds, lanes_of
from seedbed.acting.lanes import Lane, Member
from seedbed.acting.notes import notes_of
from seedbed.envs.episodes import EpisodeMeter
from seedbed.errors import NotNow, Refused
from seedbed.instances import START_SECONDS
from seedbed.serving.service import Service
from seedbed.serving.specs import require_spec
from seedbed.serving.violations import Violations
from seedbed.transport.admission import equal, require_admission
from seedbed.transport.interface import NO_ROOM, RUN_IS_OVER, Peer

_MOST_SERVERS = 1024
"""Numbers that forward-pass servers may have."""


@dataclass
class _Joined:
    """An actor that has joined.

    Attributes:
      since: time (monotonic, s) of its joining.
      heard: time (monotonic, s) of its last report.
      acts: whether a message of a lane or a report came; until then it makes its environments, and compiles.
    """

    member: Member
    since: float
    lanes: list[Lane] = field(default_factory=list)
    slots: list[int] = field(default_factory=list)
    service: int = 0
    envs: int = 0
    heard: float = 0.0
    acts: bool = False

    def owed_since(self) -> list[float]:
        """Returns the times (monotonic, s) since which lanes owe a step; before it acts, the time of joining.

        No time is earlier than the actor's last report: it may have several steps to make between two messages.
        """
        if not self.acts:
            return [self.since]
        # Each attribute is read once: the service may set it meanwhile.
        owed = [since for lane in self.lanes if (since := lane.owed_since) is not None]
        return [max(since, self.heard) for since in owed]


class ActorRegistry:
    """A :class:`~seedbed.transport.interface.Handler` that admits actors, gives them slots, and routes their messages.

    Actors come and go at any time; an actor that joins under an index replaces the one that had it.

    Args:
      assignment: environments, seeds and sizes that actors are told when they join.
      services: services of the actors, one for each accelerator that acts; actors are divided among them by index.
      capacity: number of slots over all services.
      resumable: states of lanes in a checkpoint, by lane order (see :meth:`lane_states`).
      first_epoch: epoch of the first actor at each index; a resumed run counts on, so that its environments
        do not begin with the same seeds again.
      on_join, on_leave: functions that are called with the member and, for leaving, the reason.
      on_note: function that is called with each warning of an actor's environments, one line.
    """

    def __init__(
        self,
        assignment: Assignment,
        services: Sequence[Service[Any]],
        capacity: int,
        *,
        resumable: dict[tuple[int, int], dict[str, Any]] | None = None,
        first_epoch: int = 0,
        on_join: Callable[[Member], None] = lambda member: None,
        on_leave: Callable[[Member, str], None] = lambda member, reason: None,
        on_note: Callable[[str], None] = lambda note: None,
    ) -> None:
        self._on_note = on_note
        self.assignment = assignment
        self.services = list(services)
        self._resumable = resumable or {}
        self._on_join = on_join
        self._on_leave = on_leave
        self._lock = threading.RLock()
        self._joined: dict[Peer, _Joined] = {}
        self._violations = Violations()
        self._servers_heard: dict[int, float] = {}
        self._first_epoch = first_epoch
        self._epochs: dict[int, int] = {}
        self._free = list(range(assignment.own * assignment.envs, capacity))
        # Guests of the run have slots of their own, too: one that comes again waits for none.
        self._own = {
            index: list(range(index * assignment.envs, (index + 1) * assignment.envs))
            for index in range(assignment.own)
        }

    # The registry, called by servers.

    def answer(self, peer: Peer, message: dict[str, Any]) -> dict[str, Any]:
        """Answers a question: ``join`` is answered with the environments to make; ``ready`` opens the lanes.

        After that the actor sends its metrics with ``report``. A forward-pass server sends those of its actors with
        ``server report``.

        Raises:
          Refused: the token or the environments' spec is wrong, or the question is out of turn.
          NotNow: there is no room, or others from there were sent away too often for what they sent.
        """
        kind = message.get("kind")
        if kind == "join":
            return self._welcome(peer, message)
        if kind == "ready":
            return self._admit(peer, message)
        if kind == "report":
            return self._take_report(peer, message)
        if kind == "server report":
            return self._take_server_report(message)
        raise Refused(f"unknown question {kind!r}: an actor asks 'join', then 'ready', and reports")

    def deliver(self, peer: Peer, lane: int, arrays: list[NDArray[Any]]) -> None:
        """Passes a message to the actor's service."""
        joined = self._joined.get(peer)  # one look into a dict needs no lock
        if joined is None:
            return
        joined.acts = True
        service = self.services[joined.service]
        if lane >= len(joined.lanes):
            service.control(joined.member, arrays)
            return
        # Set here and not by the service, which may be busy: the actor has sent the step that it owed.
        joined.lanes[lane].owed_since = None
        service.arrive(joined.lanes[lane], arrays, service.thread.clock())

    def left(self, peer: Peer, reason: str) -> None:
        """Frees the actor's slots and lanes; its open unrolls are dropped."""
        with self._lock:
            joined = self._joined.pop(peer, None)
            if joined is None:
                return
            if joined.member.index not in self._own:
                self._free.extend(joined.slots)
            for lane in joined.lanes:
                self.services[joined.service].leave(lane)
            if any(lane.sent_away for lane in joined.lanes):
                reason = "; ".join(filter(None, (reason, self._violations.note(peer.place))))
        self._on_leave(joined.member, reason)

    def _welcome(self, peer: Peer, message: dict[str, Any]) -> dict[str, Any]:
        require_admission(message, self.assignment.token)
        with self._lock:
            if peer in self._joined:
                raise Refused("'join' comes once")
            index = self._index_for(message)
            if index not in self._own and (reason := self._violations.refusal(peer.place)) is not None:
                raise NotNow(reason)
            envs = self._envs_for(index, message.get("envs"))
            self._replace(index)
            epoch = self._epoch_of(index)
            member = Member(index, epoch, peer, local=index in self._own)
            service = index % len(self.services)
            self._joined[peer] = _Joined(member, time.monotonic(), service=service, envs=envs)
        lanes, rows = lanes_of(envs)
        return {
            "env": self.assignment.env,
            "options": self.assignment.options,
            "spec": self.assignment.spec.to_json(),
            "index": index,
            "rows": rows,
            "unroll_length": self.assignment.unroll_length,
            "overlap": self.assignment.overlap,
            "env_timeout": self.assignment.env_timeout,
            "seeds": half_seeds(self.assignment.seed, self.assignment.actor_number(index), epoch, lanes),
            **self.services[service].invitation(),
        }

    def _take_report(self, peer: Peer, message: dict[str, Any]) -> dict[str, Any]:
        with self._lock:
            joined = self._joined.get(peer)
            if joined is None or not joined.lanes:
                raise Refused("'report' comes after 'ready'")
            joined.heard, joined.acts = time.monotonic(), True
        self.services[joined.service].report(message)
        for note in notes_of(message):
            self._on_note(note)
        return {}

    def _take_server_report(self, message: dict[str, Any]) -> dict[str, Any]:
        """Takes the report of a forward-pass server: its meters, and the actors that it has heard of (``heard``)."""
        require_admission(message, self.assignment.token)
        server, heard = message.get("server"), message.get("heard")
        if type(server) is not int or not 0 <= server < _MOST_SERVERS or not isinstance(heard, list):
            raise Refused(f"not what a forward-pass server reports: {str(message)[:200]}")
        self.services[0].report(message)
        with self._lock:
            self._servers_heard[server] = now = time.monotonic()
            for joined in self._joined.values():
                if joined.member.index in heard:
                    joined.heard, joined.acts = now, True
        return {}

    def _index_for(self, message: Mapping[str, Any]) -> int:
        asked = message.get("index")
        if asked is not None and (type(asked) is not int or not 0 <= asked < 1 << 20):
            raise Refused(f"actor index {asked!r}: must be a whole number from 0 to {(1 << 20) - 1}")
        if self.assignment.lockstep and asked not in self._own:
            raise Refused(
                "this run has an exact lag, which only its own actors keep: start it with --lag free and "
                "without --deterministic"
            )
        if message.get("elsewhere") is True and asked in self._own:
            self._require_claim(asked, message.get("claim"))
        if asked is not None:
            return int(asked)
        taken = {joined.member.index for joined in self._joined.values()} | set(self._own)
        return next(index for index in range(1 << 20) if index not in taken)

    def _require_claim(self, index: int, claim: Any) -> None:
        """Refuses a peer on another machine that was not started by this session; one of an earlier session is none."""
        if not claim:
            raise Refused(f"actor index {index}: it is one of the run's own actors; join without an index")
        if not (self.assignment.claim and equal(claim, self.assignment.claim)):
            raise Refused(
                f"actor index {index}: another session of this run has started this actor, and is over; the present "
                "one has started another in its place"
            )

    def _epoch_of(self, index: int) -> int:
        """Returns the next epoch at ``index``.

        No slot sees an epoch twice, or random keys would repeat. Slots of the run's own actors stay with their index;
        the other slots pass from one actor to the next, so epochs of actors from elsewhere are counted over all their
        indices.
        """
        mine = {index} if index in self._own else self._epochs.keys() - self._own.keys()
        before = [self._epochs[other] for other in mine if other in self._epochs]
        self._epochs[index] = max(before, default=self._first_epoch - 1) + 1
        return self._epochs[index]

    def _replace(self, index: int) -> None:
        for peer, joined in list(self._joined.items()):
            if joined.member.index == index:
                self.left(peer, "replaced by a new actor with the same index")
                peer.close("another actor joined with the same index")

    def _envs_for(self, index: int, asked: Any) -> int:
        if index in self._own or asked is None:
            return self.assignment.envs
        if type(asked) is not int or asked < 1 or (asked > 1 and asked % 2):
            raise Refused(f"{asked!r} environments: must be 1 or an even number")
        return int(asked)

    def _admit(self, peer: Peer, message: dict[str, Any]) -> dict[str, Any]:
        with self._lock:
            joined = self._joined.get(peer)
            if joined is None or joined.lanes:
                raise Refused("'ready' comes once, after 'join'")
            require_spec(message, self.assignment.spec)
            service = self.services[joined.service]
            lanes, rows = lanes_of(joined.envs)
            self._take_slots(joined, service, rows)
            for half in range(lanes):
                lane = self._new_lane(
                    service, joined.member, half, joined.slots[half * rows : (half + 1) * rows]
                )
                joined.lanes.append(lane)
                service.join(lane)
        peer.open(service.layouts(rows, lanes))
        self._on_join(joined.member)
        return service.introduction(joined.lanes)

    def _take_slots(self, joined: _Joined, service: Service[Any], rows: int) -> None:
        if joined.member.index in self._own:
            joined.slots = self._own[joined.member.index]
            return
        service.require_room(joined.envs, rows)
        if len(self._free) < joined.envs:
            raise NotNow(
                f"{NO_ROOM} {joined.envs} more environments, {len(self._free)} places are left: "
                "start the learner with a larger --max-envs"
            )
        joined.slots = [self._free.pop(0) for _ in range(joined.envs)]

    def _new_lane(self, service: Service[Any], member: Member, half: int, slots: list[int]) -> Lane:
        lane: Lane = service.new_lane(
            self._resumable.pop((member.index, half), None),
            member=member,
            half=half,
            slots=np.asarray(slots, np.int32),
            meter=EpisodeMeter(len(slots)),
            owed_since=time.monotonic(),
            evaluating=sum(map(self.assignment.evaluates, slots)),
            evaluating_apart=self.assignment.evaluating > 0,
        )
        return lane

    # Called by the run.

    def members(self) -> list[Member]:
        """Returns the actors whose lanes are open."""
        with self._lock:
            return [joined.member for joined in self._joined.values() if joined.lanes]

    @property
    def last_epoch(self) -> int:
        """Highest epoch of an actor so far; a resumed run counts on from it."""
        with self._lock:
            return max(self._epochs.values(), default=self._first_epoch)

    def stalled(self, timeout: float) -> list[tuple[Member, float]]:
        """Returns the actors that have owed a step for longer than ``timeout`` s, or did not begin in time.

        With the time in s, for each.
        """
        now, starting = time.monotonic(), max(timeout, START_SECONDS)
        with self._lock:
            owing = [
                (joined.member, now - min(since), timeout if joined.acts else starting)
                for joined in self._joined.values()
                if (since := self._owed_since(joined))
            ]
        return [(member, seconds) for member, seconds, allowed in owing if seconds > allowed]

    def _owed_since(self, joined: _Joined) -> list[float]:
        """Returns :meth:`_Joined.owed_since`, without the time for which nobody looked whether the step had come.

        An actor that decides itself has no weights, and so owes nothing, until its service begins.
        """
        service, now = self.services[joined.service], time.monotonic()
        # In this order: it may begin in between.
        unheard = service.thread.unheard()
        begun = service.thread.begun
        return [min(now, max(since, begun) + unheard) for since in joined.owed_since()]

    def owes(self) -> dict[int, float | None]:
        """Returns the time (monotonic, s) since which each of the run's own actors owes a step.

        None for an actor that owes nothing. An actor that has not begun to act is left out: it may have to compile.
        """
        with self._lock:
            return {
                joined.member.index: min(self._owed_since(joined), default=None)
                for joined in self._joined.values()
                if joined.member.local and joined.acts
            }

    def elsewhere(self) -> dict[int, str]:
        """Returns the address of the machine of each actor from elsewhere, by its index; empty if it is this one."""
        return {member.index: member.peer.place for member in self.members() if not member.local}

    def dismiss_stalled(self, timeout: float) -> None:
        """Ends the conversations with actors from elsewhere that are :meth:`stalled`."""
        for member, seconds in self.stalled(timeout):
            if not member.local:
                self.dismiss(member, f"no step for {seconds:.0f} s")

    def servers_heard(self) -> dict[int, float | None]:
        """Returns the time (monotonic, s) of each forward-pass server's last report; others are left out."""
        with self._lock:
            return dict(self._servers_heard)

    def dismiss(self, member: Member, reason: str) -> None:
        """Ends the conversation with an actor."""
        member.peer.close(reason)

    def say_over(self) -> None:
        """Ends the conversations with actors from elsewhere, and tells them that the run is over."""
        for member in self.members():
            if not member.local:
                self.dismiss(member, RUN_IS_OVER)

    def lane_states(self) -> dict[tuple[int, int], dict[str, Any]]:
        """Returns the state of every lane, for an exact resumption; only while all services are blocked in lockstep."""
        return {order: state for service in self.services for order, state in service.lane_states().items()}

    def stop(self) -> None:
        """Stops the services."""
        for service in self.services:
            service.thread.stop()
