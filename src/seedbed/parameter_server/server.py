"""A shard behind a server, and the shards as a worker elsewhere has them.

On three lanes: parameters are fetched, gradients are pushed, and all that a shard holds is taken, for a checkpoint.
What travels on each follows from the shapes of the parameters, which both ends know.
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
from seedbed.transport.admission import require_admission
from seedbed.transport.connect import connect
from seedbed.transport.interface import PROTOCOL, Client, Layout, Layouts, Peer
from seedbed.types import Tree

FETCH, PUSH, TAKE = range(3)
_NUMBER = ((), "int64")
_SHARE = ((), "float32")
_ONE = Layout((_NUMBER,))
_LOOK_SECONDS = 0.1
_PULSE_SECONDS = 1.0


def empty_part(optimizer: optax.GradientTransformation, params: Tree, index: int, shards: int) -> Part:
    """Shapes and dtypes of what the ``index``-th of so many shards holds; ``params`` has those of the whole."""

    def begin(params: Tree) -> Part:
        return Part(cut(params, shards)[index], cut(optimizer.init(params), shards)[index], 0, 0)

    return jax.eval_shape(begin, params)._replace(version=0, skipped=0)


def lanes_of(part: Part, *, takes: bool) -> list[Layouts]:
    """The layouts of the lanes of a shard that holds such a part; ``takes``: with that on which all of it is taken."""
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
    """What stands behind the server of a shard, see :class:`seedbed.transport.interface.Handler`.

    Args:
      shard: which one.
      token: what whoever joins must know.
    """

    def __init__(self, shard: Shard, token: str) -> None:
        self._shard = shard
        self._token = token
        part = shard.part
        self._structure = jax.tree.structure(part.params)
        self._joined: set[Peer] = set()

    def answer(self, peer: Peer, message: dict[str, Any]) -> dict[str, Any]:
        """Lets a worker in, or the run, which ``takes`` all that the shard holds: ``join`` opens the lanes."""
        kind = message.get("kind")
        if kind == "pulse" and peer in self._joined:
            return {}
        if kind != "join":
            raise Refused(f"unknown question {kind!r}: a shard is asked 'join', and then for its 'pulse'")
        require_admission(message, self._token)
        part = self._shard.part
        try:
            peer.open(lanes_of(part, takes=message.get("takes") is True))
        except SpecError as error:
            raise Refused(f"a shard is too large to travel: use more --shards ({error})") from error
        self._joined.add(peer)
        return {"version": part.version}

    def deliver(self, peer: Peer, lane: int, arrays: list[NDArray[Any]]) -> None:
        """Gives what is asked for, or takes a gradient; one that it refuses ends that conversation."""
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
            # What came is lent until the reply.
            jax.block_until_ready(self._shard.part)
            peer.reply(lane, [_number(int(value)) for value in receipt])

    def left(self, peer: Peer, reason: str) -> None:
        """Forgets it."""
        self._joined.discard(peer)


class RemoteShards:
    """The shards of a parameter server, each at an address of its own; used by one thread.

    A shard that is gone is waited for: it comes back with what it had kept last.

    Args:
      optimizer: as the shards have it.
      params: the shapes and dtypes of the whole parameters.
      addresses: of each shard, in order.
      token: what they want to hear.
      patience: seconds to wait for a shard that is not there.
      takes: whether :meth:`parts` will be asked for.
      given_up: asked while a shard is waited for: an error to raise instead of waiting, or None.

    Raises:
      ConnectionLost: a shard is not there, or did not come back.
      Refused: a shard does not let this worker in.
    """

    def __init__(
        self,
        optimizer: optax.GradientTransformation,
        params: Tree,
        addresses: Sequence[str],
        token: str,
        *,
        patience: float,
        takes: bool = False,
        given_up: Callable[[], BaseException | None] = lambda: None,
    ) -> None:
        shards = len(addresses)
        self._addresses = list(addresses)
        self._token = token
        self.patience = patience
        self._takes = takes
        self._given_up = given_up
        self.examples = [empty_part(optimizer, params, index, shards) for index in range(shards)]
        like_state = jax.eval_shape(optimizer.init, params)
        self._cut = jax.jit(partial(cut, shards=shards))
        self._join = jax.jit(partial(join, like=params))
        self._join_state = jax.jit(partial(join, like=like_state))
        self.lost = 0
        """How often a shard had to be waited for."""
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
        """The newest parameters; shards may have taken different gradients meanwhile."""
        replies = self._ask(FETCH)
        versions = [int(version) for version, *_ in replies]
        params = [
            jax.tree.unflatten(jax.tree.structure(example.params), leaves)
            for example, (_, *leaves) in zip(self.examples, replies, strict=True)
        ]
        return Fetched(self._join(params), tuple(versions))

    def push(self, gradient: Tree, versions: Sequence[int], carried: float = 1.0) -> list[Receipt]:
        """Gives every shard its part of a gradient.

        There is no receipt for a part that is lost with its shard.

        Args:
          gradient: of the parameters' structure.
          versions: of each shard, when it gave the parameters that the gradient was computed at.
          carried: the share of its batch's transitions that environments carried out.
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
        """All that every shard holds now."""
        replies = self._ask(TAKE)
        found = []
        for example, (version, skipped, *leaves) in zip(self.examples, replies, strict=True):
            params, state = jax.tree.unflatten(jax.tree.structure(example[:2]), leaves)
            found.append(Part(params, state, int(version), int(skipped)))
        return found

    def whole(self, parts: Sequence[Part]) -> Part:
        """``parts`` not cut; the version and what was skipped are those of the newest shard."""
        newest = max(parts, key=lambda part: part.version)
        return newest._replace(
            params=self._join([part.params for part in parts]),
            opt_state=self._join_state([part.opt_state for part in parts]),
        )

    # How shards are reached.

    def _ask(self, lane: int) -> list[list[NDArray[Any]]]:
        """What every shard replies to a question; one that was lost is asked again when it is back."""
        replies: dict[int, list[NDArray[Any]]] = {}
        while missing := [index for index in range(len(self._clients)) if index not in replies]:
            replies |= self._exchange(lane, {index: [_number(0)] for index in missing})
        return [replies[index] for index in range(len(self._clients))]

    def _exchange(
        self, lane: int, messages: Mapping[int, list[NDArray[Any]]]
    ) -> dict[int, list[NDArray[Any]]]:
        """Sends these shards each its message, then takes their replies, as copies.

        There is none from a shard that was lost; it is back when this returns.
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
                # What came is lent, and an array of JAX may go on to use the memory that it was made from.
                replies[index] = [np.array(array) for array in arrays]
        for index in lost:
            self._clients[index].close()
            self._clients[index] = self._reach(index)
            self.lost += 1
        return replies

    def _reach(self, index: int) -> Client:
        """A conversation with a shard; one that is ending, or has not begun yet, is tried again."""
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
        return join_shard(self._addresses[index], self._token, self.examples[index], takes=self._takes)


def join_shard(address: str, token: str, part: Part, *, takes: bool = False) -> Client:
    """Returns a conversation with the shard at an address, which holds such a part.

    Raises:
      ConnectionLost: it is not there.
      Refused: it does not let this process in.
    """
    client = connect(address, timeout=_LOOK_SECONDS)
    try:
        client.ask({"kind": "join", "protocol": PROTOCOL, "token": token, "takes": takes})
        client.open(lanes_of(part, takes=takes))
    except SeedbedError:
        client.close()
        raise
    return client


class ShardPulse:
    """Asks a shard for a sign of life once a second, from a thread of its own: one that hangs holds up nobody else.

    Args:
      address: of the shard.
      token: secret that it wants to hear.
      part: shapes and dtypes of the part that it holds.

    Attributes:
      there: whether it has answered since it was started last.
      asked: when the question was asked that is not answered yet, in s (monotonic); None if all are.
    """

    def __init__(self, address: str, token: str, part: Part) -> None:
        self.there = False
        self.asked: float | None = None
        self._over = threading.Event()
        self._join = partial(join_shard, address, token, part)
        self._thread = threading.Thread(target=self._run, name="pulse of a shard", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._over.is_set():
            with contextlib.suppress(SeedbedError):  # it is about to come, or to be started again
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
        """Ends the thread, which may have to wait for the shard to be gone."""
        self._over.set()
