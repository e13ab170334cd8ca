"""The service of a trained policy: decides for clients that step their own environments, and learns nothing.

Its clients speak as actors do (``join``, ``ready``, steps up, actions down; docs/wire.md), so one client program serves
for training and after it. The agent's state of each environment stays here, and begins anew where a step says that an
episode does.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seedbed.acting.batcher import BatchRule, decide
from seedbed.acting.inference import Inference, explores_least
from seedbed.acting.unrolls import Begins, step_fields
from seedbed.errors import NotNow, Refused
from seedbed.seeding import integer
from seedbed.serving.command_thread import CommandThread
from seedbed.serving.specs import require_spec
from seedbed.transport.admission import require_admission
from seedbed.transport.interface import NO_ROOM, Layout, Layouts, Peer
from seedbed.types import EnvSpec, Tree

_NEVER = 1 << 30  # transitions after which an unroll is cut
_MOST_INDEX = 1 << 20


@dataclass(eq=False)
class _Client:
    """A client that has joined.

    Attributes:
      peer: the server's end of its conversation.
      index: its number, from which its random numbers follow.
      rows: number of its environments.
      slots: int32 ``[rows]``, rows of the tables of states; empty until it is ready.
      steps: number of decisions so far.
      arrays: step that waits for its reply; None while its environments step.
      arrived: time (monotonic, s) at which that step came.
    """

    peer: Peer
    index: int
    rows: int
    slots: NDArray[np.int32] = field(default_factory=lambda: np.empty(0, np.int32))
    steps: int = 0
    arrays: list[NDArray[Any]] | None = None
    arrived: float = 0.0

    def columns(self) -> NDArray[np.int32]:
        """Returns the inputs of inference beside the step, int32 ``[4, rows]``."""
        columns = np.empty((4, self.rows), np.int32)
        columns[0], columns[1], columns[2], columns[3] = self.slots, self.index, self.steps, Begins.NONE
        return columns


class PolicyService:
    """A :class:`~seedbed.transport.interface.Handler` of any number of servers, and the thread that decides.

    Args:
      inference: the policy, whose random numbers follow from a client's number, row and step.
      params: its parameters.
      spec: spec of the environments.
      told: entries of the answer to ``join`` about the policy.
      token: secret that admits a client.
      capacity: most environments of all clients together.
      rule: size of a full batch, and wait of a partial one.
      within: function that clips actions ``[B, ...]`` to their bounds.
      on_failure: function that is called with the exception that ended the thread.
      say: function that takes a line for people.

    Attributes:
      thread: the thread.
    """

    def __init__(
        self,
        inference: Inference,
        params: Tree,
        spec: EnvSpec,
        *,
        told: Mapping[str, Any],
        token: str,
        capacity: int,
        rule: BatchRule,
        within: Callable[[NDArray[Any]], NDArray[Any]],
        on_failure: Callable[[BaseException], None],
        say: Callable[[str], object],
    ) -> None:
        self.thread = CommandThread("policy", self._turn, on_failure)
        self._inference, self._params, self._spec = inference, params, spec
        self._told, self._token = told, token
        self._rule, self._within, self._say = rule, within, say
        self._lock = threading.Lock()
        self._clients: dict[Peer, _Client] = {}
        self._numbers = itertools.count()
        self._capacity, self._free = capacity, list(range(capacity))
        # Of the thread alone: the clients that are ready, and those of them that wait, in order of arrival.
        self._ready: set[_Client] = set()
        self._waiting: list[_Client] = []

    # Called by servers, each in its thread.

    def answer(self, peer: Peer, message: dict[str, Any]) -> dict[str, Any]:
        """Answers ``join``, ``ready`` and ``report``; see :class:`~seedbed.transport.interface.Handler`."""
        kind = message.get("kind")
        if kind == "join":
            return self._welcome(peer, message)
        client = self._clients.get(peer)
        if kind == "ready":
            return self._admit(client, message)
        if kind == "report" and client is not None and len(client.slots):
            return {}
        raise Refused(f"question {kind!r}: a client asks 'join', then 'ready', and may report then")

    def _welcome(self, peer: Peer, message: Mapping[str, Any]) -> dict[str, Any]:
        require_admission(message, self._token)
        index = _whole(message, "index", 0, _MOST_INDEX - 1)
        rows = _whole(message, "envs", 1, self._inference.largest) or 1
        with self._lock:
            if peer in self._clients:
                raise Refused("'join' comes once")
            client = _Client(peer, next(self._numbers) % _MOST_INDEX if index is None else index, rows)
            self._clients[peer] = client
        return {
            "index": client.index,
            "rows": rows,
            "seeds": [integer(client.index, "environments", bits=30)],
            "unroll_length": _NEVER,
            "overlap": 0,
            "spec": self._spec.to_json(),
            **self._told,
        }

    def _admit(self, client: _Client | None, message: Mapping[str, Any]) -> dict[str, Any]:
        if client is None or len(client.slots):
            raise Refused("'ready' comes once, after 'join'")
        require_spec(message, self._spec)
        with self._lock:
            if client.rows > self._capacity:
                raise Refused(
                    f"{client.rows} environments, and the server has {self._capacity} places for all clients: give "
                    "fewer, or serve with a larger --max-envs"
                )
            if len(self._free) < client.rows:
                raise NotNow(
                    f"{NO_ROOM} {client.rows} more environments, {len(self._free)} places are left: "
                    "serve with a larger --max-envs"
                )
            taken, self._free = self._free[: client.rows], self._free[client.rows :]
            client.slots = np.array(taken, np.int32)
        action = self._spec.action
        down = Layout((((client.rows, *action.shape), action.dtype),))
        client.peer.open([Layouts(Layout(step_fields(self._spec, client.rows)), down)])
        self.thread.submit(self._join, client)
        self._say(f"client {client.index} has come, of {_counted(client.rows)}: {client.peer.name}")
        return {}

    def deliver(self, peer: Peer, lane: int, arrays: list[NDArray[Any]]) -> None:
        """See :class:`~seedbed.transport.interface.Handler`."""
        del lane  # there is one
        self.thread.submit(self._arrive, self._clients[peer], arrays, time.monotonic())

    def left(self, peer: Peer, reason: str) -> None:
        """Frees the client's places; see :class:`~seedbed.transport.interface.Handler`."""
        with self._lock:
            client = self._clients.pop(peer, None)
        if client is not None and len(client.slots):
            self.thread.submit(self._leave, client)
            self._say(f"client {client.index} has left: {reason}")

    # Run by the thread.

    def _join(self, client: _Client) -> None:
        self._inference.assign(client.slots, range(client.rows), explores_least(client.rows))
        self._inference.reset(client.slots)
        self._ready.add(client)

    def _arrive(self, client: _Client, arrays: list[NDArray[Any]], now: float) -> None:
        # Numbers are taken as they are: what they spoil is the client's own.
        if client in self._ready:
            client.arrays, client.arrived = arrays, now
            self._waiting.append(client)

    def _leave(self, client: _Client) -> None:
        self._ready.discard(client)
        if client in self._waiting:
            self._waiting.remove(client)
        with self._lock:
            self._free += client.slots.tolist()

    def _turn(self) -> float | None:
        waiting = [(client.rows, client.arrived) for client in self._waiting]
        due = decide(waiting, len(self._ready) - len(waiting), time.monotonic(), self._rule)
        if not due.take:
            return due.wait
        chosen, self._waiting = self._waiting[: due.take], self._waiting[due.take :]
        steps = [(client.arrays or [], client.columns()) for client in chosen]
        actions, _ = self._inference.act(self._params, steps)
        actions = self._within(np.ascontiguousarray(actions, self._spec.action.dtype))
        ends = np.cumsum([client.rows for client in chosen])
        for client, action in zip(chosen, np.split(actions, ends[:-1]), strict=True):
            client.arrays = None
            client.steps += 1
            client.peer.reply(0, [action])
        return 0.0


def _counted(rows: int) -> str:
    return "1 environment" if rows == 1 else f"{rows} environments"


def _whole(message: Mapping[str, Any], name: str, least: int, most: int) -> int | None:
    """Returns a whole number of a question; None if it has none."""
    given = message.get(name)
    if given is not None and (type(given) is not int or not least <= given <= most):
        raise Refused(f"{name} {given!r}: must be a whole number from {least} to {most}")
    return given
