"""The handler of a shard's server, and the client side of all shards for workers in other processes.

A conversation has three lanes: one fetches parameters, one pushes gradients, and one takes the shard's whole state, for
a checkpoint. Their layouts follow from the shapes of the parameters, which both ends know.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import jax
import numpy as np
import optax
from numpy.typing import NDArray

from seedbed.errors import ConnectionLost, Refused, SeedbedError, SpecError
from seedbed.parameter_server.shards import Fetched, Part, Receipt, Shard, cut, join
from seedbed.transport.admission import Invitation, require_admission, require_claim
from seedbed.transport.connect import connect
from seedbed.transport.interface import PROTOCOL, Client, Layout, Layouts, Peer
from seedbed.transport.tls import within_machine
from seedbed.types import Tree

FETCH, PUSH, TAKE = range(3)
_NUMBER = ((), "int64")
_SHARE = ((), "float32")
_ONE = Layout((_NUMBER,))
_LOOK_SECONDS, _REACH_SECONDS = 0.1, 10.0
"""Seconds for one attempt to reach a shard on this machine, and on another one."""
_PULSE_SECONDS = 1.0


def empty_part(optimizer: optax.GradientTransformation, params: Tree, index: int, shards: int) -> Part:
    """Returns shapes and dtypes of the part on shard ``index`` of ``shards``, given the whole ``params``."""

    def begin(params: Tree) -> Part:
        return Part(cut(params, shards)[index], cut(optimizer.init(params), shards)[index], 0, 0)

    return jax.eval_shape(begin, params)._replace(version=0, skipped=0)


def lanes_of(part: Part, *, takes: bool) -> list[Layouts]:
    """Returns the layouts of the lanes of a shard that holds such a part.

    ``takes``: with the lane on which its whole state is taken.
    """
    params, kept = _fields(part.params), _fields(part[:2])
    return [
        Layouts(_ONE, Layout((_NUMBER, *params))),
        Layouts(Layout((_NUMBER, _SHARE, *params)), Layout((_NUMBER,) * 4)),
        *([Layouts(_ONE, Layout((_NUMBER, _NUMBER, *kept)))] if takes else []),
    ]


def _fields(tree: Tree) -> tuple[tuple[tuple[int, ...], str], ...]:
    return tuple((tuple(leaf.shape), np.dtype(leaf.dtype).name) for leaf in jax.tree.leaves(tree))


def _number(value: int) -> NDArray[np.int64]:
    return np.array(value, np.int64)


def _on_host(tree: Tree) -> list[NDArray[Any]]:
    return [np.asarray(leaf) for leaf in jax.device_get(jax.tree.leaves(tree))]


class ShardHandler:
    """A :class:`~seedbed.transport.interface.Handler` that serves one shard.

    Args:
      shard: the shard that is served.
      token: secret that admits workers and the run's head.
      claim: secret of the session by which workers on other machines are known; empty if there are none.
    """

    def __init__(self, shard: Shard, token: str, claim: str = "") -> None:
        self._shard = shard
        self._token = token
        self._claim = claim
        part = shard.part
        self._structure = jax.tree.structure(part.params)
        self._joined: set[Peer] = set()

    def answer(self, peer: Peer, message: dict[str, Any]) -> dict[str, Any]:
        """Answers ``join`` by opening the lanes, and ``pulse`` with nothing, as a sign of life.

        A head that joins with ``takes`` also gets the lane on which the shard's whole state is taken.

        Raises:
          Refused: the token is wrong, the shard is too large to travel, or the question is unknown.
        """
        kind = message.get("kind")
        if kind == "pulse" and peer in self._joined:
            return {}
        if kind != "join":
            raise Refused(f"unknown question {kind!r}: a shard is asked 'join', and then for its 'pulse'")
        require_admission(message, self._token)
        require_claim(message, self._claim)
        part = self._shard.part
        try:
            peer.open(lanes_of(part, takes=message.get("takes") is True))
        except SpecError as error:
            raise Refused(f"a shard is too large to travel: use more --shards ({error})") from error
        self._joined.add(peer)
        return {"version": part.version}

    def deliver(self, peer: Peer, lane: int, arrays: list[NDArray[Any]]) -> None:
        """Replies with parameters or state, or applies a gradient; one that does not fit ends the conversation."""
        part = self._shard.part
        if lane == FETCH:
            peer.reply(lane, [_number(part.version), *_on_host(part.params)])
        elif lane == TAKE:
            numbers = [_number(part.version), _number(part.skipped)]
            peer.reply(lane, [*numbers, *_on_host(part[:2])])
        else:
            version, carried, *gradient = arrays
            pushed = jax.tree.unflatten(self._structure, gradient)
            try:
                receipt = self._shard.push(pushed, int(version), float(carried))
            except SpecError as error:
                peer.close(str(error))
                return
            # The arrays are valid until the reply only.
            jax.block_until_ready(self._shard.part)
            peer.reply(lane, [_number(int(value)) for value in receipt])

    def left(self, peer: Peer, reason: str) -> None:
        """Forgets the peer."""
        self._joined.discard(peer)


class RemoteShards:
    """The connections to the shards of a parameter server, each at its own address; used by one thread.

    A shard that is gone is waited for: it is started again with the state that it saved last.

    Args:
      optimizer: optimizer of the shards.
      params: shapes and dtypes of the whole parameters.
      addresses: address of each shard, in order.
      invitation: knowledge by which the shards admit this process.
      patience: time in s to wait for a shard that cannot be reached.
      claim: secret of the session by which shards on another machine know this process for one of the run's own.
      takes: whether :meth:`parts` will be called.
      given_up: function that is called while a shard is waited for; returns an error to raise instead of waiting, or
        None.

    Raises:
      ConnectionLost: a shard cannot be reached, or did not come back in time.
      Refused: a shard does not admit this worker.
    """

    def __init__(
        self,
        optimizer: optax.GradientTransformation,
        params: Tree,
        addresses: Sequence[str],
        invitation: Invitation,
        *,
        patience: float,
        claim: str = "",
        takes: bool = False,
        given_up: Callable[[], BaseException | None] = lambda: None,
    ) -> None:
        shards = len(addresses)
        self._addresses = list(addresses)
        self._invitation, self._claim = invitation, claim
        self.patience = patience
        self._takes = takes
        self._given_up = given_up
        self.examples = [empty_part(optimizer, params, index, shards) for index in range(shards)]
        like_state = jax.eval_shape(optimizer.init, params)
        self._cut = jax.jit(partial(cut, shards=shards))
        self._join = jax.jit(partial(join, like=params))
        self._join_state = jax.jit(partial(join, like=like_state))
        self.lost = 0
        """Number of times that a lost shard was waited for."""
        self._clients: list[Client] = []
        try:
            for index in range(shards):
                self._clients.append(self._reach(index))
        except SeedbedError:
            self.close()
            raise

    def close(self) -> None:
        """Ends all conversations; safe to call twice."""
        for client in self._clients:
            client.close()

    def fetch(self) -> Fetched:
        """Fetches the newest parameters; shards may have applied different gradients meanwhile."""
        replies = self._ask(FETCH)
        versions = [int(version) for version, *_ in replies]
        params = [
            jax.tree.unflatten(jax.tree.structure(example.params), leaves)
            for example, (_, *leaves) in zip(self.examples, replies, strict=True)
        ]
        return Fetched(self._join(params), tuple(versions))

    def push(self, gradient: Tree, versions: Sequence[int], carried: float = 1.0) -> list[Receipt]:
        """Pushes its part of a gradient to every shard, and returns the receipts.

        There is no receipt for a part that is lost with its shard.

        Args:
          gradient: gradient in the structure of the parameters.
          versions: version of each shard's parameters at which the gradient was computed.
          carried: share of its batch's transitions that environments carried out, from 0 to 1.
        """
        parts = [_on_host(part) for part in self._cut(gradient)]
        messages: dict[int, list[NDArray[Any]]] = {
            index: [_number(version), np.array(carried, np.float32), *part]
            for index, (version, part) in enumerate(zip(versions, parts, strict=True))
        }
        replies = self._exchange(PUSH, messages)
        numbers = [replies[index] for index in sorted(replies)]
        return [
            Receipt(int(version), int(staleness), bool(taken), bool(skipped))
            for version, staleness, taken, skipped in numbers
        ]

    def parts(self) -> list[Part]:
        """Takes the present state of every shard."""
        replies = self._ask(TAKE)
        found = []
        for example, (version, skipped, *leaves) in zip(self.examples, replies, strict=True):
            params, state = jax.tree.unflatten(jax.tree.structure(example[:2]), leaves)
            found.append(Part(params, state, int(version), int(skipped)))
        return found

    def whole(self, parts: Sequence[Part]) -> Part:
        """Joins ``parts`` to the state of the whole, with version and skipped count of the newest shard."""
        newest = max(parts, key=lambda part: part.version)
        return newest._replace(
            params=self._join([part.params for part in parts]),
            opt_state=self._join_state([part.opt_state for part in parts]),
        )

    # Connections to the shards.

    def _ask(self, lane: int) -> list[list[NDArray[Any]]]:
        """Sends every shard a request, and returns the replies; a lost shard is asked again when it is back."""
        replies: dict[int, list[NDArray[Any]]] = {}
        while missing := [index for index in range(len(self._clients)) if index not in replies]:
            replies |= self._exchange(lane, {index: [_number(0)] for index in missing})
        return [replies[index] for index in range(len(self._clients))]

    def _exchange(
        self, lane: int, messages: Mapping[int, list[NDArray[Any]]]
    ) -> dict[int, list[NDArray[Any]]]:
        """Sends each of these shards its message, then receives their replies, as copies.

        A shard that was lost has no reply; it is back when this returns.
        """
        replies, lost = {}, set()
        for index, message in messages.items():
            try:
                self._clients[index].send(lane, message)
            except ConnectionLost:
                lost.add(index)
        for index in messages.keys() - lost:
            try:
                _, arrays = self._clients[index].receive() or (lane, [])
            except ConnectionLost:
                lost.add(index)
            else:
                # Received arrays are valid until the next message, and JAX arrays may share their memory.
                replies[index] = [np.array(array) for array in arrays]
        for index in lost:
            self._clients[index].close()
            self._clients[index] = self._reach(index)
            self.lost += 1
        return replies

    def _reach(self, index: int) -> Client:
        """Joins a shard; tries again while it is ending or starting."""
        deadline = time.monotonic() + self.patience
        while True:
            try:
                return self._join_shard(index)
            except ConnectionLost:
                if (error := self._given_up()) is not None:
                    raise error from None
                if time.monotonic() > deadline:
                    raise
            time.sleep(_LOOK_SECONDS)

    def _join_shard(self, index: int) -> Client:
        address, example = self._addresses[index], self.examples[index]
        return join_shard(address, self._invitation, example, takes=self._takes, claim=self._claim)


def join_shard(
    address: str, invitation: Invitation, part: Part, *, takes: bool = False, claim: str = ""
) -> Client:
    """Joins the shard at an address, which holds a part like ``part``; returns the open conversation.

    Raises:
      ConnectionLost: the shard cannot be reached.
      Refused: the shard does not admit this process.
    """
    timeout = _LOOK_SECONDS if within_machine(address) else _REACH_SECONDS
    client = connect(address, timeout=timeout, invitation=invitation)
    token = invitation.said_at(address)
    try:
        client.ask({"kind": "join", "protocol": PROTOCOL, "token": token, "takes": takes, "claim": claim})
        client.open(lanes_of(part, takes=takes))
    except SeedbedError:
        client.close()
        raise
    return client


class ShardPulse:
    """A thread that asks a shard for a sign of life once a second, so that a hanging shard blocks no other thread.

    Args:
      address: address of the shard.
      invitation: knowledge by which the shard admits this process.
      part: shapes and dtypes of the part that it holds.

    Attributes:
      there: whether the shard has answered since it was started last.
      asked: time (monotonic, s) of the question that is not answered yet; None if all are answered.
    """

    def __init__(self, address: str, invitation: Invitation, part: Part) -> None:
        self.there = False
        self.asked: float | None = None
        self._over = threading.Event()
        self._join = partial(join_shard, address, invitation, part)
        self._thread = threading.Thread(target=self._run, name="pulse of a shard", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._over.is_set():
            with contextlib.suppress(SeedbedError):  # the shard is starting, or about to be started again
                self._ask_until_gone()
            self.there, self.asked = False, None
            self._over.wait(_LOOK_SECONDS)

    def _ask_until_gone(self) -> None:
        with contextlib.closing(self._join()) as client:
            while not self._over.is_set():
                self.asked = time.monotonic()
                client.ask({"kind": "pulse"})
                self.there, self.asked = True, None
                self._over.wait(_PULSE_SECONDS)

    def close(self) -> None:
        """Asks the thread to end; it may first have to wait until the shard answers or is gone."""
        self._over.set()
