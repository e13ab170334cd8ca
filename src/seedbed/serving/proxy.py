"""The registry of a forward-pass server: to rollout workers it is where they join, to the optimizer it is its actors.

What a rollout worker asks when it joins is asked of the optimizer word for word, which so gives it its seeds, its
numbers and its place; what comes back says what is acted for here. Unrolls that are complete go to the optimizer as
those of an actor that runs the policy itself, and the optimizer tells each lane when it may begin its next one.
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
"""Reaches the optimizer; raises :class:`ConnectionLost`."""


class Link:
    """One rollout worker's conversation with the optimizer: one thread sends, and one of the link's own receives.

    Args:
      client: at the optimizer.
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
        on_weights: Callable[[Weights], None],
        on_end: Callable[[str], None],
    ) -> None:
        """Opens the lanes, and one more for weights.

        Args:
          unrolls, weights: what travels.
          lanes: how many there are.
          device: where snapshots are put.
          on_told: called with a lane's number and the version that its next unroll may begin with.
          on_weights: called with a snapshot that was wanted.
          on_end: called once with why the conversation has ended.
        """
        self._unrolls, self._lanes = unrolls, lanes
        self._client.open(lanes_of_unrolls(unrolls, weights, lanes))

        def take(lane: int, arrays: list[NDArray[Any]]) -> None:
            if lane < lanes:
                on_told(lane, int(arrays[0]))
            else:
                on_weights(weights.unpack(arrays, device))

        threading.Thread(
            target=self._receive, args=(take, on_end), name="replies of the optimizer", daemon=True
        ).start()

    def send(self, lane: int, unroll: Unroll) -> None:
        """Sends a complete unroll."""
        assert self._unrolls is not None, "open() comes first"
        self._post(lane, self._unrolls.pack(unroll, None))

    def want(self, version: int) -> None:
        """Asks for the weights of this version, or of a newer one."""
        self._post(self._lanes, [version_array(version)])

    def _post(self, lane: int, arrays: Sequence[NDArray[Any]]) -> None:
        with contextlib.suppress(ConnectionLost):  # the one who receives hears it too
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
            if not isinstance(error, SeedbedError):  # of the device, which may have no room for weights
                _log.error("a link to the optimizer failed", exc_info=error)
            on_end(cause_of(error))

    def close(self) -> None:
        """Ends the conversation; safe to call twice."""
        self._client.close()


@dataclass(eq=False, kw_only=True, repr=False)
class ProxiedLane(ServedLane):
    """A lane whose unrolls go to the optimizer.

    Attributes:
      link: leads there.
      told: the version that its open unroll began with, or may begin with; None from the end of an unroll until the
        optimizer has taken it.
      numbers: of its environments among those of all hosts.
      exploration: how much each of them explores.
    """

    link: Link
    told: int | None
    numbers: Sequence[int]
    exploration: Exploration


class Forwarding(Protocol):
    """Who acts for the lanes; see :class:`~seedbed.serving.forward_service.ForwardService`."""

    def layouts(self, rows: int, lanes: int) -> list[Layouts]:
        """What travels between it and a rollout worker."""

    def new_lane(self, kept: None, **known: Any) -> ProxiedLane:
        """A lane that joins."""

    def join(self, lane: ProxiedLane) -> None:
        """Has its thread take the lane in."""

    def arrive(self, lane: ProxiedLane, arrays: list[NDArray[Any]], now: float) -> None:
        """Has its thread take a step of the lane."""

    def leave(self, lane: ProxiedLane) -> None:
        """Has its thread give the lane up."""

    def tell(self, lane: ProxiedLane, version: int) -> None:
        """Has its thread know that the lane's unroll was taken, and with which version the next one begins."""

    def take(self, link: Link, weights: Weights) -> None:
        """Has its thread take a snapshot that came over ``link``."""

    def require_room(self, envs: int, rows: int) -> None:
        """Refuses lanes that are too large."""

    def report(self, told: Mapping[str, Any]) -> None:
        """Takes what a rollout worker reports of itself."""


@dataclass
class _Joined:
    link: Link
    index: int
    lanes: list[ProxiedLane] = field(default_factory=list)
    slots: list[int] = field(default_factory=list)


class Proxy:
    """Implements :class:`~seedbed.transport.interface.Handler`; see the module.

    Args:
      connect: reaches the optimizer.
      forward: acts for the rollout workers.
      agent: whose policy.
      spec: of the environments.
      capacity: slots that ``forward`` has.
      device: where weights are put.
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
    ) -> None:
        self._connect = connect
        self._forward = forward
        self._agent = agent
        self._spec = spec
        self._device = device
        self._weights = WeightsCodec(agent)
        self._codecs: dict[int, UnrollCodec] = {}
        self._lock = threading.Lock()
        self._free = list(range(capacity))
        self._joined: dict[Peer, _Joined] = {}
        self._heard: set[int] = set()

    def answer(self, peer: Peer, message: dict[str, Any]) -> dict[str, Any]:
        """Asks the optimizer; see :meth:`seedbed.serving.actor_registry.ActorRegistry.answer`."""
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
        # With it the worker would act itself.
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
            on_weights=lambda weights: self._forward.take(joined.link, weights),
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
            self._codecs[rows] = UnrollCodec(self._agent, self._spec, rows)
        return self._codecs[rows]

    def _report(self, joined: _Joined, message: dict[str, Any]) -> dict[str, Any]:
        self._forward.report(message)
        with self._lock:
            self._heard.add(joined.index)
        return {}

    def heard(self) -> list[int]:
        """The rollout workers that have reported since the last call."""
        with self._lock:
            heard, self._heard = self._heard, set()
        return sorted(heard)

    def deliver(self, peer: Peer, lane: int, arrays: list[NDArray[Any]]) -> None:
        """Passes a step to who acts."""
        with self._lock:
            joined = self._joined.get(peer)
        if joined is not None:
            self._forward.arrive(joined.lanes[lane], arrays, time.monotonic())

    def left(self, peer: Peer, reason: str) -> None:
        """Ends the worker's conversation with the optimizer, and frees what it had."""
        del reason
        with self._lock:
            joined = self._joined.pop(peer, None)
            if joined is None:
                return
            for lane in joined.lanes:
                self._forward.leave(lane)
            # After them: who comes next into these slots finds them left.
            self._free.extend(joined.slots)
        joined.link.close()


class ServerReporter:
    """Tells the optimizer every second what its forward-pass server has done, and which workers are alive.

    Args:
      connect: reaches the optimizer.
      token: lets the reports in.
      index: of the server.
      tell: what is reported, as JSON values; None if there is no sign of life to be given.
      on_lost: called once when the optimizer is gone, with how.
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
        """Ends it; safe to call twice."""
        self._over.set()
        self._client.close()
        if self._thread is not threading.current_thread():
            self._thread.join()
