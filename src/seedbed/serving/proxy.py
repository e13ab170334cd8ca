"""The proxy of a forward-pass server: a registry to rollout workers, and a set of actors to the optimizer.

The questions of a joining rollout worker are passed on to the optimizer word for word, so that the optimizer assigns
seeds, numbers and exploration; its answers tell this server about the environments that it acts for. Complete unrolls
go to the optimizer as if an actor that runs the policy itself had sent them, and the optimizer tells each lane when it
may begin the next one.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seedbed.acting.codec import Introduction, UnrollCodec, WeightsCodec
from seedbed.acting.lanes import Member, ServedLane
from seedbed.acting.reporting import REPORT_SECONDS
from seedbed.envs.episodes import EpisodeMeter
from seedbed.errors import ConnectionLost, Refused, TransportError
from seedbed.serving.forward_pass import Fetch
from seedbed.serving.inference_service import InferenceService
from seedbed.serving.link import Link, ProxiedLane
from seedbed.transport.interface import PROTOCOL, Client, Peer
from seedbed.types import Agent, EnvSpec, Exploration

Connect = Callable[[], Client]
"""A function that connects to the optimizer, or raises :class:`ConnectionLost`."""


@dataclass
class _Joined:
    link: Link
    index: int
    lanes: list[ServedLane] = field(default_factory=list)
    slots: list[int] = field(default_factory=list)


class Proxy:
    """A :class:`~seedbed.transport.interface.Handler` that passes rollout workers on to the optimizer; see the module.

    Args:
      connect: function that connects to the optimizer.
      service: service that acts for the rollout workers, with a
        :class:`~seedbed.serving.forward_pass.RemoteRecipient`.
      fetch: the weights with which it acts.
      agent: the agent whose policy acts.
      spec: spec of the environments.
      capacity: number of slots of ``service``.
      device: the JAX device on which weights are put.
      opponents: most frozen versions in the optimizer's pool; 0 without self-play.
    """

    def __init__(
        self,
        connect: Connect,
        service: InferenceService,
        fetch: Fetch,
        agent: Agent,
        spec: EnvSpec,
        *,
        capacity: int,
        device: Any,
        opponents: int = 0,
    ) -> None:
        self._connect = connect
        self._service, self._fetch = service, fetch
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
        self._service.require_room(envs, rows)
        self._take_slots(joined, envs)
        member = Member(joined.index, introduction.epoch, peer, local=True)
        for half, version in enumerate(introduction.versions):
            part = slice(half * rows, (half + 1) * rows)
            joined.lanes.append(
                self._service.new_lane(
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
            on_told=lambda lane, version: self._tell(joined.lanes[lane], version),
            on_weights=lambda *came: self._service.thread.submit(self._fetch.take, joined.link, *came),
            on_end=peer.close,
        )
        for lane in joined.lanes:
            self._service.join(lane)
        peer.open(self._service.layouts(rows, lanes))
        return {}

    def _tell(self, lane: ServedLane, version: int) -> None:
        """The optimizer has taken the lane's unroll; the next one begins with this version."""
        assert isinstance(lane, ProxiedLane)
        lane.told = version  # first: the lane is not due before its outbox is empty
        self._service.taken(lane)

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
        self._service.report(message)
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
            self._service.arrive(joined.lanes[lane], arrays, time.monotonic())

    def left(self, peer: Peer, reason: str) -> None:
        """Ends the worker's conversation with the optimizer, and frees its lanes and slots."""
        del reason
        with self._lock:
            joined = self._joined.pop(peer, None)
            if joined is None:
                return
            for lane in joined.lanes:
                self._service.leave(lane)
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
