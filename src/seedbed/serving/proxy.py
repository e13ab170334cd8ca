"""The proxy of a forward-pass server: a registry to rollout workers, and a set of actors to the optimizer.

The questions of a joining rollout worker are passed on to the optimizer word for word, so that the optimizer assigns
seeds, numbers and exploration; its answers tell this server about the environments that it acts for. Complete unrolls
go to the optimizer as if an actor that runs the policy itself had sent them, and the optimizer tells each lane when it
may begin the next one.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from seedbed.acting.codec import Introduction, UnrollCodec, WeightsCodec, lanes_of_unrolls, version_array
from seedbed.acting.lanes import Member, ServedLane
from seedbed.acting.reporting import REPORT_SECONDS
from seedbed.envs.episodes import EpisodeMeter
from seedbed.errors import ConnectionLost, Refused, SeedbedError, TransportError, cause_of
from seedbed.transport.interface import PROTOCOL, Client, Layouts, Peer
from seedbed.types import Agent, EnvSpec, Exploration, Unroll, Weights

_log = logging.getLogger(__name__)

Connect = Callable[[], Client]
"""A function that connects to the optimizer, or raises :class:`ConnectionLost`."""


class Link:
    """The conversation with the optimizer on behalf of one rollout worker.

    One thread of the caller sends; a thread of the link receives.

    Args:
      client: connection to the optimizer.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._unrolls: UnrollCodec | None = None
        self._lanes = 0

    def ask(self, message: dict[str, Any]) -> dict[str, Any]:
        """See :class:`~seedbed.transport.interface.Client`; only before :meth:`open`."""
        return self._client.ask(message)

    def open(
        self,
        unrolls: UnrollCodec,
        weights: WeightsCodec,
        lanes: int,
        *,
        device: Any,
        on_told: Callable[[int, int], None],
        on_weights: Callable[[Weights, NDArray[np.float64] | None], None],
        on_end: Callable[[str], None],
    ) -> None:
        """Opens the lanes of the unrolls, and one more for weights; starts receiving.

        Args:
          unrolls, weights: codecs of the unrolls and of the weights that travel.
          lanes: number of lanes that carry unrolls.
          device: the JAX device on which snapshots are put.
          on_told: function that is called with a lane's number and the version of the weights that its next unroll may
            begin with.
          on_weights: function that is called with each snapshot that :meth:`want` asked for, and with the pool's table
            in self-play.
          on_end: function that is called once, with the reason, when the conversation has ended.
        """
        self._unrolls, self._lanes = unrolls, lanes
        self._client.open(lanes_of_unrolls(unrolls, weights, lanes))

        def take(lane: int, arrays: list[NDArray[Any]]) -> None:
            if lane < lanes:
                on_told(lane, int(arrays[0]))
            else:
                on_weights(weights.unpack(arrays, device), weights.table(arrays))

        threading.Thread(
            target=self._receive, args=(take, on_end), name="replies of the optimizer", daemon=True
        ).start()

    def send(self, lane: int, unroll: Unroll, players: NDArray[np.int32] | None = None) -> None:
        """Sends a complete unroll, and in self-play the versions that play its rows, int32 ``[T, n]``."""
        assert self._unrolls is not None, "open() comes first"
        self._post(lane, self._unrolls.pack(unroll, players=players))

    def want(self, version: int) -> None:
        """Asks for the weights of this version, or of a newer one; ``-1 - v`` for version v of the pool."""
        self._post(self._lanes, [version_array(version)])

    def _post(self, lane: int, arrays: Sequence[NDArray[Any]]) -> None:
        with contextlib.suppress(ConnectionLost):  # the receiving thread reports it
            self._client.send(lane, arrays)

    def _receive(
        self, take: Callable[[int, list[NDArray[Any]]], None], on_end: Callable[[str], None]
    ) -> None:
        try:
            while True:
                reply = self._client.receive(idle=True)
                assert reply is not None
                take(*reply)
        except Exception as error:
            if not isinstance(error, SeedbedError):  # the device may have no room for weights
                _log.error("a link to the optimizer failed", exc_info=error)
            on_end(cause_of(error))

    def close(self) -> None:
        """Ends the conversation; safe to call twice."""
        self._client.close()


@dataclass(eq=False, kw_only=True, repr=False)
class ProxiedLane(ServedLane):
    """A lane whose unrolls go to the optimizer.

    Attributes:
      link: conversation with the optimizer.
      told: version of the weights that its open unroll began with, or may begin with; None from the end of an unroll
        until the optimizer has taken it.
      numbers: number of each of its environments among the environments of all hosts.
      exploration: exploration of its environments.
      players: int32 ``[n]``, versions that play its rows, of each decision in its open unroll; empty without self-play.
    """

    link: Link
    told: int | None
    numbers: Sequence[int]
    exploration: Exploration
    players: list[NDArray[np.int32]] = field(default_factory=list)


class Forwarding(Protocol):
    """The service that acts for the lanes; see :class:`~seedbed.serving.forward_service.ForwardService`."""

    def layouts(self, rows: int, lanes: int) -> list[Layouts]:
        """Returns the layouts of the messages between it and a rollout worker."""

    def new_lane(self, kept: None, **known: Any) -> ProxiedLane:
        """Makes a lane for a rollout worker that joins."""

    def join(self, lane: ProxiedLane) -> None:
        """Commands its thread to add a lane."""

    def arrive(self, lane: ProxiedLane, arrays: list[NDArray[Any]], now: float) -> None:
        """Commands its thread to take a step of the lane, received at ``now`` (monotonic, s)."""

    def leave(self, lane: ProxiedLane) -> None:
        """Commands its thread to remove a lane."""

    def tell(self, lane: ProxiedLane, version: int) -> None:
        """Tells its thread that the lane's unroll was taken, and the version that the next one begins with."""

    def take(self, link: Link, weights: Weights, table: NDArray[np.float64] | None) -> None:
        """Hands its thread a snapshot that came over ``link``, with the pool's table in self-play."""

    def require_room(self, envs: int, rows: int) -> None:
        """Raises :class:`~seedbed.errors.Refused` if lanes of ``rows`` environments are too large."""

    def report(self, told: Mapping[str, Any]) -> None:
        """Adds the report of a rollout worker to the meters."""


@dataclass
class _Joined:
    link: Link
    index: int
    lanes: list[ProxiedLane] = field(default_factory=list)
    slots: list[int] = field(default_factory=list)


class Proxy:
    """A :class:`~seedbed.transport.interface.Handler` that passes rollout workers on to the optimizer; see the module.

    Args:
      connect: function that connects to the optimizer.
      forward: service that acts for the rollout workers.
      agent: the agent whose policy acts.
      spec: spec of the environments.
      capacity: number of slots of ``forward``.
      device: the JAX device on which weights are put.
      opponents: most frozen versions in the optimizer's pool; 0 without self-play.
    """

    def __init__(
        self,
        connect: Connect,
        forward: Forwarding,
        agent: Agent,
        spec: EnvSpec,
        *,
        capacity: int,
        device: Any,
        opponents: int = 0,
    ) -> None:
        self._connect = connect
        self._forward = forward
        self._agent = agent
        self._spec = spec
        self._device = device
        self._opponents = opponents
        self._weights = WeightsCodec(agent, opponents)
        self._codecs: dict[int, UnrollCodec] = {}
        self._lock = threading.Lock()
        self._free = list(range(capacity))
        self._joined: dict[Peer, _Joined] = {}
        self._heard: set[int] = set()

    def answer(self, peer: Peer, message: dict[str, Any]) -> dict[str, Any]:
        """Answers ``join`` and ``ready`` with the optimizer's answers, and takes reports itself.

        See :meth:`seedbed.serving.actor_registry.ActorRegistry.answer`.
        """
        kind = message.get("kind")
        try:
            if kind == "join":
                return self._join(peer, message)
            with self._lock:
                joined = self._joined.get(peer)
            if joined is not None and kind == "ready" and not joined.lanes:
                return self._open(peer, joined, message)
            if joined is not None and kind == "report" and joined.lanes:
                return self._report(joined, message)
        except ConnectionLost as error:
            raise Refused(f"the optimizer is gone: {error}") from error
        raise Refused(f"{kind!r} does not come now: a rollout worker asks 'join', then 'ready', and reports")

    def _join(self, peer: Peer, message: dict[str, Any]) -> dict[str, Any]:
        with self._lock:
            if peer in self._joined:
                raise Refused("'join' comes once")
        link = Link(self._connect())
        try:
            welcome = link.ask(message)
        except TransportError:
            link.close()
            raise
        with self._lock:
            self._joined[peer] = _Joined(link, welcome["index"])
        # Without the policy: with it the worker would act itself.
        return {name: value for name, value in welcome.items() if name != "policy"}

    def _open(self, peer: Peer, joined: _Joined, message: dict[str, Any]) -> dict[str, Any]:
        introduction = Introduction(**joined.link.ask(message))
        lanes, envs = len(introduction.versions), len(introduction.numbers)
        rows = envs // lanes
        self._forward.require_room(envs, rows)
        self._take_slots(joined, envs)
        member = Member(joined.index, introduction.epoch, peer, local=True)
        for half, version in enumerate(introduction.versions):
            part = slice(half * rows, (half + 1) * rows)
            joined.lanes.append(
                self._forward.new_lane(
                    None,
                    member=member,
                    half=half,
                    slots=np.asarray(joined.slots[part], np.int32),
                    meter=EpisodeMeter(rows),
                    owed_since=time.monotonic(),
                    link=joined.link,
                    told=version,
                    numbers=introduction.numbers[part],
                    exploration=Exploration(*(column[part] for column in introduction.exploration)),
                )
            )
        joined.link.open(
            self._codec(rows),
            self._weights,
            lanes,
            device=self._device,
            on_told=lambda lane, version: self._forward.tell(joined.lanes[lane], version),
            on_weights=lambda weights, table: self._forward.take(joined.link, weights, table),
            on_end=peer.close,
        )
        for lane in joined.lanes:
            self._forward.join(lane)
        peer.open(self._forward.layouts(rows, lanes))
        return {}

    def _take_slots(self, joined: _Joined, envs: int) -> None:
        with self._lock:
            if len(self._free) < envs:
                raise Refused(f"no room for {envs} more environments, {len(self._free)} places are left")
            joined.slots, self._free = self._free[:envs], self._free[envs:]

    def _codec(self, rows: int) -> UnrollCodec:
        if rows not in self._codecs:
            self._codecs[rows] = UnrollCodec(self._agent, self._spec, rows, players=self._opponents > 0)
        return self._codecs[rows]

    def _report(self, joined: _Joined, message: dict[str, Any]) -> dict[str, Any]:
        self._forward.report(message)
        with self._lock:
            self._heard.add(joined.index)
        return {}

    def heard(self) -> list[int]:
        """Returns the indices of the rollout workers that have reported since the last call."""
        with self._lock:
            heard, self._heard = self._heard, set()
        return sorted(heard)

    def deliver(self, peer: Peer, lane: int, arrays: list[NDArray[Any]]) -> None:
        """Passes a step to the service that acts."""
        with self._lock:
            joined = self._joined.get(peer)
        if joined is not None:
            self._forward.arrive(joined.lanes[lane], arrays, time.monotonic())

    def left(self, peer: Peer, reason: str) -> None:
        """Ends the worker's conversation with the optimizer, and frees its lanes and slots."""
        del reason
        with self._lock:
            joined = self._joined.pop(peer, None)
            if joined is None:
                return
            for lane in joined.lanes:
                self._forward.leave(lane)
            # Freed after the lanes have left: the next worker in these slots finds no lane in them.
            self._free.extend(joined.slots)
        joined.link.close()


class ServerReporter:
    """A thread that reports a forward-pass server's meters and living workers to the optimizer every second.

    Args:
      connect: function that connects to the optimizer.
      token: the run's token, for admission.
      index: index of the server.
      tell: function that returns the report, as JSON values; None while the server gives no sign of life.
      on_lost: function that is called once, with the reason, when the optimizer is gone.
    """

    def __init__(
        self,
        connect: Connect,
        token: str,
        index: int,
        tell: Callable[[], dict[str, Any] | None],
        on_lost: Callable[[str], None],
    ) -> None:
        self._client = connect()
        self._known = {"kind": "server report", "protocol": PROTOCOL, "token": token, "server": index}
        self._tell = tell
        self._on_lost = on_lost
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="reports to the optimizer", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._over.wait(REPORT_SECONDS):
                if (told := self._tell()) is not None:
                    self._client.ask({**self._known, **told})
        except TransportError as error:
            if not self._over.is_set():
                self._on_lost(str(error))

    def close(self) -> None:
        """Ends the thread and the connection; safe to call twice."""
        self._over.set()
        self._client.close()
        if self._thread is not threading.current_thread():
            self._thread.join()
