"""A shard behind a server, and the shards as a worker elsewhere has them.

On three lanes: parameters are fetched, gradients are pushed, and all that a shard holds is taken, for a checkpoint.
What travels on each follows from the shapes of the parameters, which both ends know.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from numpy.typing import NDArray

from orchard.errors import ConnectionLost, OrchardError, Refused, SpecError, TransportError
from orchard.transport.admission import require_admission
from orchard.transport.connect import connect
from orchard.transport.seam import PROTOCOL, Client, Layout, Layouts, Peer
from orchard.types import Tree
from orchard.weights.shards import Fetched, Part, Receipt, Shard, cut, join

FETCH, PUSH, TAKE = range(3)
_NUMBER = ((), "int64")
_ONE = Layout((_NUMBER,))
_LOOK_SECONDS = 0.1


def empty_part(optimizer: optax.GradientTransformation, params: Tree, index: int, shards: int) -> Part:
    """Shapes and dtypes of what the ``index``-th of so many shards holds; ``params`` has those of the whole."""

    def begin(params: Tree) -> Part:
        zero = jnp.zeros((), jnp.int32)
        return Part(cut(params, shards)[index], cut(optimizer.init(params), shards)[index], 0, zero)

    return jax.eval_shape(begin, params)._replace(version=0)


def lanes_of(part: Part) -> list[Layouts]:
    """The layouts of the lanes of a shard that holds such a part."""
    params, kept = _fields(part.params), _fields(part[:2])
    return [
        Layouts(_ONE, Layout((_NUMBER, *params))),
        Layouts(Layout((_NUMBER, *params)), Layout((_NUMBER,) * 3)),
        Layouts(_ONE, Layout((_NUMBER, _NUMBER, *kept))),
    ]


def _fields(tree: Tree) -> tuple[tuple[tuple[int, ...], str], ...]:
    return tuple((tuple(leaf.shape), np.dtype(leaf.dtype).name) for leaf in jax.tree.leaves(tree))


def _number(value: int) -> NDArray[np.int64]:
    return np.array(value, np.int64)


def _on_host(tree: Tree) -> list[NDArray[Any]]:
    return [np.asarray(leaf) for leaf in jax.device_get(jax.tree.leaves(tree))]


class ShardDesk:
    """What stands behind the server of a shard, see :class:`orchard.transport.seam.Desk`.

    Args:
      shard: which one.
      token: what whoever joins must know.
      on_end: called when somebody who has joined says that it is over.
    """

    def __init__(self, shard: Shard, token: str, on_end: Callable[[], None] = lambda: None) -> None:
        self._shard = shard
        self._token = token
        self._on_end = on_end
        self._joined: set[Peer] = set()
        part = shard.part
        self._lanes = lanes_of(part)
        self._structure = jax.tree.structure(part.params)

    def answer(self, peer: Peer, message: dict[str, Any]) -> dict[str, Any]:
        """Lets a worker in, or the run: ``join`` opens the lanes; ``end`` says that it is over."""
        kind = message.get("kind")
        if kind == "end" and peer in self._joined:
            self._on_end()
            return {}
        if kind != "join" or peer in self._joined:
            raise Refused(f"unknown question {kind!r}: a shard is asked 'join' once, and then told 'end'")
        require_admission(message, self._token)
        peer.open(self._lanes)
        self._joined.add(peer)
        return {"version": self._shard.part.version}

    def deliver(self, peer: Peer, lane: int, arrays: list[NDArray[Any]]) -> None:
        """Gives what is asked for, or takes a gradient; one that it refuses ends that conversation."""
        part = self._shard.part
        if lane == FETCH:
            peer.reply(lane, [_number(part.version), *_on_host(part.params)])
        elif lane == TAKE:
            numbers = [_number(part.version), _number(int(part.skipped))]
            peer.reply(lane, [*numbers, *_on_host(part[:2])])
        else:
            version, *gradient = arrays
            try:
                receipt = self._shard.push(jax.tree.unflatten(self._structure, gradient), int(version))
            except SpecError as error:
                peer.close(str(error))
                return
            # What came is lent until the reply.
            jax.block_until_ready(self._shard.part)
            peer.reply(lane, [_number(int(value)) for value in receipt])

    def left(self, peer: Peer, reason: str) -> None:
        """Forgets a worker."""
        del reason
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
    ) -> None:
        shards = len(addresses)
        self._addresses = list(addresses)
        self._token = token
        self._patience = patience
        self._examples = [empty_part(optimizer, params, index, shards) for index in range(shards)]
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
        except OrchardError:
            self.close()
            raise

    def close(self) -> None:
        """Ends all conversations; safe to call twice."""
        for client in self._clients:
            client.close()

    def end(self) -> None:
        """Tells all shards that are there that it is over."""
        for client in self._clients:
            with contextlib.suppress(TransportError):
                client.ask({"kind": "end"})

    def fetch(self) -> Fetched:
        """The newest parameters; shards may have taken different gradients meanwhile."""
        replies = self._ask(FETCH)
        versions = [int(version) for version, *_ in replies]
        params = [
            jax.tree.unflatten(jax.tree.structure(example.params), leaves)
            for example, (_, *leaves) in zip(self._examples, replies, strict=True)
        ]
        return Fetched(self._join(params), tuple(versions))

    def push(self, gradient: Tree, versions: Sequence[int]) -> list[Receipt]:
        """Gives every shard its part of a gradient.

        A part that is lost with its shard is not taken.

        Args:
          gradient: of the parameters' structure.
          versions: of each shard, when it gave the parameters that the gradient was computed at.
        """
        parts = [_on_host(part) for part in self._cut(gradient)]
        messages = {
            index: [_number(version), *part]
            for index, (version, part) in enumerate(zip(versions, parts, strict=True))
        }
        replies = self._exchange(PUSH, messages)
        lost = [_number(0)] * 3
        numbers = [replies.get(index, lost) for index in range(len(parts))]
        return [Receipt(int(version), int(staleness), bool(taken)) for version, staleness, taken in numbers]

    def parts(self) -> list[Part]:
        """All that every shard holds now."""
        replies = self._ask(TAKE)
        found = []
        for example, (version, skipped, *leaves) in zip(self._examples, replies, strict=True):
            params, state = jax.tree.unflatten(jax.tree.structure(example[:2]), leaves)
            found.append(Part(params, state, int(version), skipped.astype(np.int32)))
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
        deadline = time.monotonic() + self._patience
        while True:
            client = connect(self._addresses[index], timeout=max(0.0, deadline - time.monotonic()))
            try:
                client.ask({"kind": "join", "protocol": PROTOCOL, "token": self._token})
                client.open(lanes_of(self._examples[index]))
            except ConnectionLost:
                client.close()
                if time.monotonic() > deadline:
                    raise
                time.sleep(_LOOK_SECONDS)
            except OrchardError:
                client.close()
                raise
            else:
                return client
