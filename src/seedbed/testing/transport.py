"""The promises of every carrier, as checks that run on any of them: a new carrier is one row of ``CARRIERS``.

With pytest::

    @pytest.mark.parametrize("carrier", CARRIERS, ids=lambda carrier: carrier.name)
    @pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
    def test_contract(check, carrier, tmp_path):
        run_check(check, carrier, tmp_path)

Nothing here sleeps: checks wait for events, with a limit of ``PATIENCE`` seconds.
"""

from __future__ import annotations

import os
import queue
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seedbed.errors import (
    ConnectionLost,
    NotNow,
    ProtocolError,
    Refused,
    SeedbedError,
    SpecError,
    TransportError,
)
from seedbed.transport.admission import Gate
from seedbed.transport.connect import connect, listen
from seedbed.transport.framing import MAX_REASON_BYTES
from seedbed.transport.interface import Client, Handler, Layout, Layouts, Peer, Server
from seedbed.transport.poller import Poller
from seedbed.transport.shared_memory import SharedMemoryServer
from seedbed.transport.tls import Identity

PATIENCE = 20.0
"""Seconds that anything may take before a check fails."""

Arrays = list[NDArray[Any]]

UP = Layout((((3, 4), "float32"), ((3,), "bool")))
DOWN = Layout((((3,), "int32"),))


@dataclass(frozen=True)
class Carrier:
    """One way to carry arrays, as the checks see it.

    Attributes:
      name: name for people.
      listen: ``(directory, handler) -> server``; the directory is empty and the carrier's own.
      connect: ``(address, timeout) -> client``.
      between_processes: whether a client may live in another process (``address`` then says all it needs).
    """

    name: str
    listen: Callable[[Path, Handler], Server]
    connect: Callable[[str, float], Client] = lambda address, timeout: connect(address, timeout=timeout)
    between_processes: bool = True


@cache
def _gate() -> Gate:
    return Gate(secrets.token_hex(16), Identity.make())


class _HeardByAnother:
    """A server of the shared-memory carrier whose clients a thread hears that waits for other things, too."""

    def __init__(self, path: str, handler: Handler) -> None:
        self._poller = Poller()
        self._server = SharedMemoryServer(path, handler, self._poller)
        self.address = self._server.address
        self._stopping = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stopping:
            self._poller.poll(None)

    def close(self) -> None:
        """See :class:`~seedbed.transport.interface.Server`."""
        self._server.close()
        self._stopping = True
        self._poller.wake()
        if threading.current_thread() is not self._thread:
            self._thread.join()
            self._poller.close()


CARRIERS = (
    Carrier("inproc", lambda path, handler: listen(f"inproc:{path}", handler), between_processes=False),
    Carrier("shm", lambda path, handler: listen(f"shm:{path}/socket", handler)),
    Carrier("shm-polled", lambda path, handler: _HeardByAnother(f"{path}/socket", handler)),
    Carrier("unix", lambda path, handler: listen(f"unix:{path}/socket", handler)),
    Carrier("tcp", lambda path, handler: listen("127.0.0.1:0", handler)),
    Carrier(
        "tls",
        # An address of the network, which is dialled by loopback.
        lambda path, handler: listen("0.0.0.0:0", handler, gate=_gate()),
        lambda address, timeout: connect(
            address.replace("0.0.0.0", "127.0.0.1"),
            timeout=timeout,
            invitation=_gate().invitation(address),
        ),
        between_processes=False,
    ),
    Carrier("socket", lambda path, handler: listen(f"socket:unix:{path}/socket", handler)),
    Carrier(
        "socket-tls",
        lambda path, handler: listen("socket:0.0.0.0:0", handler, gate=_gate()),
        lambda address, timeout: connect(
            address.replace("0.0.0.0", "127.0.0.1"),
            timeout=timeout,
            invitation=_gate().invitation(address),
        ),
        between_processes=False,
    ),
)


_ADDED = ("token", "elsewhere")  # by a gate


class FakeHandler:
    """A handler that notes everything and replies when it is told to, or by ``respond``.

    It opens what ``{"open": true}`` asks for, refuses ``{"refuse": text}`` and ``{"not now": text}``,
    raises at ``{"bug": text}`` and answers any other question with the question itself.

    Args:
      up, down, lanes: layouts of the lanes that it opens, and their number.
      more: lanes after these, with layouts of their own.
      respond: ``arrays -> arrays``, the reply that is sent at once; None leaves it to the check.
    """

    def __init__(
        self,
        up: Layout = UP,
        down: Layout = DOWN,
        lanes: int = 2,
        respond: Callable[[Arrays], Arrays] | None = None,
        more: Sequence[Layouts] = (),
    ) -> None:
        self.lanes, self.respond = [*[Layouts(up, down)] * lanes, *more], respond
        self.delivered: queue.Queue[tuple[Peer, int, Arrays]] = queue.Queue()
        self.departed: queue.Queue[tuple[Peer, str]] = queue.Queue()
        self.asked: queue.Queue[Peer] = queue.Queue()
        self.threads: set[int] = set()

    def answer(self, peer: Peer, message: dict[str, Any]) -> dict[str, Any]:
        """See :class:`~seedbed.transport.interface.Handler`."""
        self.threads.add(threading.get_ident())
        self.asked.put(peer)
        if "refuse" in message:
            raise Refused(message["refuse"])
        if "not now" in message:
            raise NotNow(message["not now"])
        if "bug" in message:
            raise RuntimeError(message["bug"])
        if "open" in message:
            peer.open(self.lanes)
        return {name: value for name, value in message.items() if name not in _ADDED}

    def deliver(self, peer: Peer, lane: int, arrays: Arrays) -> None:
        """See :class:`~seedbed.transport.interface.Handler`."""
        self.threads.add(threading.get_ident())
        if self.respond:
            peer.reply(lane, self.respond(arrays))
        else:
            self.delivered.put((peer, lane, arrays))

    def left(self, peer: Peer, reason: str) -> None:
        """See :class:`~seedbed.transport.interface.Handler`."""
        self.threads.add(threading.get_ident())
        self.departed.put((peer, reason))


@dataclass
class Stage:
    """One check's carrier; servers and clients started through it are stopped at the check's end, however it ends."""

    carrier: Carrier
    directory: Path
    _stack: ExitStack = field(default_factory=ExitStack)

    def listen(self, handler: Handler) -> Server:
        """A server in this process."""
        server = self.carrier.listen(self.directory, handler)
        self._stack.callback(server.close)
        return server

    def connect(self, server: Server) -> Client:
        """A client in this process."""
        client = self.carrier.connect(server.address, PATIENCE)
        self._stack.callback(client.close)
        return client

    def pair(self, handler: FakeHandler) -> Client:
        """A client of ``handler``, opened."""
        return opened(self.connect(self.listen(handler)), handler)

    def close(self) -> None:
        """Stops everything."""
        self._stack.close()


def opened(client: Client, handler: FakeHandler) -> Client:
    """``client`` after the handshake with ``handler``."""
    client.ask({"open": True})
    client.open(handler.lanes)
    return client


def run_check(check: Callable[[Stage], None], carrier: Carrier, directory: Path) -> None:
    """Runs one of ``CHECKS``; raises ``AssertionError`` or the carrier's error."""
    stage = Stage(carrier, directory)
    try:
        check(stage)
    finally:
        stage.close()


def example(layout: Layout, seed: int) -> Arrays:
    """Arrays of any bits that fit ``layout`` (booleans are 0 or 1)."""
    rng = np.random.default_rng(seed)
    return [
        rng.integers(0, 2, shape).astype(bool)
        if dtype == "bool"
        else np.frombuffer(rng.bytes(int(np.prod(shape)) * np.dtype(dtype).itemsize), dtype).reshape(shape)
        for shape, dtype in layout.fields
    ]


def same(left: Arrays, right: Arrays) -> bool:
    """Returns whether both have the same shapes, dtypes and bits."""
    return len(left) == len(right) and all(
        (a.shape, a.dtype, a.tobytes()) == (b.shape, b.dtype, b.tobytes())
        for a, b in zip(left, right, strict=True)
    )


@contextmanager
def raising(kind: type[SeedbedError], *words: str) -> Iterator[None]:
    """Checks that the block raises ``kind`` with all ``words`` in its message, and not from itself."""
    try:
        yield
    except SeedbedError as error:
        assert isinstance(error, kind), f"{error!r} raised, not {kind.__name__}"
        assert error.__cause__ is not error, "whoever follows the causes goes round and round"
        missing = [word for word in words if word not in str(error)]
        assert not missing, f"the message {str(error)!r} does not say {missing}"
    else:
        raise AssertionError(f"no {kind.__name__} raised")


def received(client: Client) -> tuple[int, Arrays]:
    """The next reply."""
    reply = client.receive()
    assert reply is not None, "receive() gave None although it was to wait"
    return reply


def _departure(handler: FakeHandler) -> tuple[Peer, str]:
    return handler.departed.get(timeout=PATIENCE)


# -- questions --


def questions_are_answered(stage: Stage) -> None:
    """Any JSON object travels both ways, also long ones."""
    client = stage.connect(stage.listen(FakeHandler()))
    for message in ({}, {"a": [1, 2.5, None, {"ü": "☃"}]}, {"long": "x" * 900_000}):
        assert client.ask(message) == message


def questions_that_are_no_json_raise(stage: Stage) -> None:
    """A message that cannot travel is the caller's error; the conversation goes on."""
    client = stage.connect(stage.listen(FakeHandler()))
    with raising(SpecError, "JSON"):
        client.ask({"x": np.zeros(3)})
    with raising(SpecError, "limit"):
        client.ask({"x": "y" * 2_000_000})
    assert client.ask({"x": 1}) == {"x": 1}


def refusals_reach_the_client(stage: Stage) -> None:
    """The reason comes through word for word, and the conversation is over."""
    handler = FakeHandler()
    client = stage.connect(stage.listen(handler))
    with raising(Refused, "wrong game: ☃"):
        client.ask({"refuse": "wrong game: ☃"})
    _, reason = _departure(handler)
    assert "wrong game" in reason
    with raising(ConnectionLost, "wrong game"):
        client.ask({})


def a_client_that_may_come_again_is_told_so(stage: Stage) -> None:
    """The reason comes through word for word, as of an end that is not final."""
    handler = FakeHandler()
    client = stage.connect(stage.listen(handler))
    try:
        client.ask({"not now": "no room: ☃"})
    except ConnectionLost as error:
        assert error.said == "no room: ☃", error.said
    else:
        raise AssertionError("no ConnectionLost raised")
    assert _departure(handler)[1] == "no room: ☃"


def a_desk_with_a_bug_ends_one_conversation(stage: Stage) -> None:
    """An exception behind the handler costs its peer alone."""
    server = stage.listen(FakeHandler())
    bystander, client = stage.connect(server), stage.connect(server)
    with raising(ConnectionLost, "a bug", "RuntimeError"):
        client.ask({"bug": "a bug"})
    assert bystander.ask({"x": 1}) == {"x": 1}


def questions_may_come_while_replies_are_due(stage: Stage) -> None:
    """An answer overtakes no reply, and takes none away."""
    handler = FakeHandler()
    client = stage.pair(handler)
    sent = example(DOWN, 1)
    client.send(0, example(UP, 0))
    peer, lane, _ = handler.delivered.get(timeout=PATIENCE)
    peer.reply(lane, sent)
    assert client.ask({"x": 1}) == {"x": 1}
    lane, arrays = received(client)
    assert lane == 0
    assert same(arrays, sent)


# -- opening --


def layouts_must_agree(stage: Stage) -> None:
    """A client that opens something else than the handler is told both."""
    client = stage.connect(stage.listen(FakeHandler()))
    with raising(ProtocolError):
        client.open([Layouts(UP, DOWN)] * 2)
    client.ask({"open": True})
    other = Layout((((3, 4), "int32"), ((3,), "bool")))
    with raising(SpecError, "float32", "int32"):
        client.open([Layouts(UP, DOWN), Layouts(other, DOWN)])
    with raising(SpecError):
        client.open([Layouts(UP, DOWN)] * 3)
    client.open([Layouts(UP, DOWN)] * 2)
    with raising(ProtocolError):
        client.open([Layouts(UP, DOWN)] * 2)


def a_limit_passed_is_a_refusal(stage: Stage) -> None:
    """A handler that opens too much refuses, without having to know."""
    client = stage.connect(stage.listen(FakeHandler(lanes=65)))
    with raising(Refused, "lanes"):
        client.ask({"open": True})


# -- steps --


def steps_travel_on_interleaved_lanes(stage: Stage) -> None:
    """Lanes do not wait for one another, and nothing is mixed up."""
    handler = FakeHandler(lanes=3)
    client = stage.pair(handler)
    for turn in range(20):
        sent = {lane: example(UP, 10 * turn + lane) for lane in range(3)}
        replies = {lane: example(DOWN, 10 * turn + lane) for lane in range(3)}
        for lane, arrays in sent.items():
            client.send(lane, arrays)
        steps = [handler.delivered.get(timeout=PATIENCE) for _ in range(3)]
        for peer, lane, arrays in reversed(steps):
            assert same(arrays, sent[lane])
            peer.reply(lane, replies[lane])
        for lane, arrays in (received(client) for _ in range(3)):
            assert same(arrays, replies.pop(lane))


def every_dtype_and_shape_travels(stage: Stage) -> None:
    """Bit for bit: all numbers, booleans, scalars, empty arrays, no arrays, and arrays in Fortran's order."""
    dtypes = (
        "bool int8 uint8 int16 uint16 int32 uint32 int64 uint64 float16 float32 float64 complex64 complex128"
    )
    fields = [((2, 3), dtype) for dtype in dtypes.split()]
    layouts = [
        Layout(tuple(fields)),
        Layout((((0, 5), "float32"), ((), "int64"), ((7,), "uint8"), ((3, 0), "bool"))),
        Layout((((0,), "uint8"),)),
        Layout(()),
    ]
    for index, layout in enumerate(layouts):
        handler = FakeHandler(layout, layout, respond=lambda arrays: [array.copy() for array in arrays])
        inner = Stage(stage.carrier, stage.directory)
        try:
            client = inner.pair(handler)
            arrays = example(layout, index)
            client.send(1, arrays)
            assert same(received(client)[1], arrays)
            client.send(1, [np.array(array, order="F") for array in arrays])
            assert same(received(client)[1], arrays)
        finally:
            inner.close()


def lanes_may_have_layouts_of_their_own(stage: Stage) -> None:
    """A lane of small questions and large replies beside one of large steps."""
    small, large = (
        Layout((((), "int64"),)),
        Layout((((3, 1000), "float32"), ((0, 2), "bool"), ((5,), "uint8"))),
    )
    handler = FakeHandler(lanes=1, more=[Layouts(small, large), Layouts(large, small)])
    client = stage.pair(handler)
    for turn in range(3):
        sent = [example(layouts.up, 10 * turn + lane) for lane, layouts in enumerate(handler.lanes)]
        for lane, arrays in enumerate(sent):
            client.send(lane, arrays)
        for _ in sent:
            peer, lane, arrays = handler.delivered.get(timeout=PATIENCE)
            assert same(arrays, sent[lane])
            peer.reply(lane, example(handler.lanes[lane].down, 100 * turn + lane))
        for lane, arrays in (received(client) for _ in sent):
            assert same(arrays, example(handler.lanes[lane].down, 100 * turn + lane))
    with raising(SpecError):
        client.send(1, sent[2])


def large_steps_travel(stage: Stage) -> None:
    """Megabytes, several times, on two lanes."""
    layout = Layout((((64, 210, 160, 3), "uint8"),))
    client = stage.pair(FakeHandler(layout, layout, respond=list))
    arrays = [example(layout, seed) for seed in (1, 2)]
    for _ in range(3):
        for lane in (0, 1):
            client.send(lane, arrays[lane])
        for lane, back in (received(client), received(client)):
            assert same(back, arrays[lane])


def sent_arrays_may_be_reused(stage: Stage) -> None:
    """Arrays are copied before ``send`` and ``reply`` return."""
    handler = FakeHandler()
    client = stage.pair(handler)
    mine, kept = [a.copy() for a in example(UP, 1)], example(UP, 1)
    client.send(0, mine)
    mine[0][:], mine[1][:] = 0, True
    peer, lane, arrays = handler.delivered.get(timeout=PATIENCE)
    assert same(arrays, kept)
    actions, kept = [a.copy() for a in example(DOWN, 1)], example(DOWN, 1)
    peer.reply(lane, actions)
    actions[0][:] = 0
    assert same(received(client)[1], kept)


def arrays_stay_valid_as_promised(stage: Stage) -> None:
    """A step stays valid until its reply, a reply until the next step on its lane, independently of the other lane."""
    handler = FakeHandler()
    client = stage.pair(handler)
    client.send(0, example(UP, 0))
    peer, _, held = handler.delivered.get(timeout=PATIENCE)
    for turn in range(1, 4):
        client.send(1, example(UP, turn))
        handler.delivered.get(timeout=PATIENCE)
        peer.reply(1, example(DOWN, turn))
        received(client)
    assert same(held, example(UP, 0))
    peer.reply(0, example(DOWN, 0))
    _, reply = received(client)
    client.send(1, example(UP, 5))
    handler.delivered.get(timeout=PATIENCE)
    peer.reply(1, example(DOWN, 5))
    received(client)
    assert same(reply, example(DOWN, 0))


def arrays_outlive_the_conversation(stage: Stage) -> None:
    """Arrays that are still held after the end may be read, with any contents."""
    handler = FakeHandler()
    server = stage.listen(handler)
    client = opened(stage.connect(server), handler)
    client.send(0, example(UP, 0))
    peer, _, held = handler.delivered.get(timeout=PATIENCE)
    peer.reply(0, example(DOWN, 0))
    _, reply = received(client)
    client.close()
    _departure(handler)
    server.close()
    assert [array.shape for array in held + reply] == [(3, 4), (3,), (3,)]
    assert same(reply, example(DOWN, 0))
    assert sum(float(array.astype(bool).sum()) for array in held) >= 0


def misuse_raises_and_harms_nothing(stage: Stage) -> None:
    """Wrong arrays, lanes and turns are the caller's error, at both ends; the conversation goes on."""
    handler = FakeHandler()
    server = stage.listen(handler)
    client = stage.connect(server)
    with raising(ProtocolError, "not open"):
        client.send(0, example(UP, 0))
    opened(client, handler)
    pixels, flags = example(UP, 0)
    for wrong in (
        [pixels],
        [pixels.astype("float64"), flags],
        [pixels.astype(">f4"), flags],
        [pixels.T, flags],
        [pixels, flags.astype("uint8")],
    ):
        with raising(SpecError):
            client.send(0, wrong)
    for lane in (2, -1):
        with raising(ProtocolError, "lane"):
            client.send(lane, [pixels, flags])
    with raising(ProtocolError, "wait"):
        client.receive()
    client.send(0, [pixels, flags])
    with raising(ProtocolError, "lane 0"):
        client.send(0, [pixels, flags])
    peer, lane, arrays = handler.delivered.get(timeout=PATIENCE)
    assert same(arrays, [pixels, flags])
    with raising(SpecError):
        peer.reply(lane, [flags])
    for wrong_lane in (1, 2, -1):
        with raising(ProtocolError):
            peer.reply(wrong_lane, example(DOWN, 0))
    peer.reply(lane, example(DOWN, 0))
    with raising(ProtocolError):
        peer.reply(lane, example(DOWN, 0))
    assert same(received(client)[1], example(DOWN, 0))


def receive_need_not_wait(stage: Stage) -> None:
    """``wait=False`` gives None until there is a reply."""
    handler = FakeHandler()
    client = stage.pair(handler)
    assert client.receive(wait=False) is None
    client.send(0, example(UP, 0))
    peer, lane, _ = handler.delivered.get(timeout=PATIENCE)
    assert client.receive(wait=False) is None
    peer.reply(lane, example(DOWN, 0))
    deadline = time.monotonic() + PATIENCE
    while (reply := client.receive(wait=False)) is None:
        assert time.monotonic() < deadline, "the reply never came"
    assert same(reply[1], example(DOWN, 0))
    assert client.receive(wait=False) is None


def one_thread_may_send_while_another_receives(stage: Stage) -> None:
    """Replies come while the other thread sends; the end is heard while nothing is due, with its reason."""
    handler = FakeHandler(respond=lambda arrays: [arrays[0][:, 0].astype(np.int32)])
    client = stage.pair(handler)
    peer = handler.asked.get(timeout=PATIENCE)
    got: queue.Queue[tuple[int, int] | str] = queue.Queue()

    def listen() -> None:
        try:
            while True:
                reply = client.receive(idle=True)
                assert reply is not None
                got.put((reply[0], int(reply[1][0][0])))
        except TransportError as error:
            got.put(str(error))

    listening = threading.Thread(target=listen)
    listening.start()
    values = [array.copy() for array in example(UP, 0)]
    for number in range(200):
        values[0][:] = number
        client.send(number % 2, values)
        assert got.get(timeout=PATIENCE) == (number % 2, number)
    peer.close("enough")
    assert "enough" in str(got.get(timeout=PATIENCE))
    listening.join(PATIENCE)
    with raising(ConnectionLost, "enough"):
        client.send(0, values)


def eight_clients_at_once(stage: Stage) -> None:
    """Each gets its own replies; the handler is called by one thread only."""
    handler = FakeHandler(respond=lambda arrays: [arrays[0][:, 0].astype(np.int32)])
    server = stage.listen(handler)
    failures: list[BaseException] = []

    def act(index: int) -> None:
        try:
            client = opened(stage.carrier.connect(server.address, PATIENCE), handler)
            try:
                _exchange(client, index)
            finally:
                client.close()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=act, args=(index,)) for index in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert not failures, failures
    assert len({_departure(handler)[0] for _ in range(8)}) == 8
    assert handler.departed.empty()
    assert len(handler.threads) == 1


def _exchange(client: Client, index: int) -> None:
    flags = np.zeros(3, bool)
    for turn in range(50):
        for lane in (0, 1):
            value = 1000 * index + 10 * turn + lane
            client.send(lane, [np.full((3, 4), value, np.float32), flags])
        for _ in range(2):
            lane, (value_back,) = received(client)
            assert value_back.tolist() == [1000 * index + 10 * turn + lane] * 3


# -- ends --


def a_client_that_closes_has_left_once(stage: Stage) -> None:
    """``left`` comes once, replies to it do nothing, and its next call raises."""
    handler = FakeHandler()
    client = stage.pair(handler)
    client.send(0, example(UP, 0))
    peer, lane, _ = handler.delivered.get(timeout=PATIENCE)
    client.close()
    client.close()
    gone, reason = _departure(handler)
    assert gone is peer
    assert "client closed" in reason
    peer.reply(lane, example(DOWN, 0))
    peer.close("too late")
    for call in (client.receive, lambda: client.send(1, example(UP, 0)), lambda: client.ask({})):
        with raising(ConnectionLost, "this side closed"):
            call()
    assert handler.departed.empty()


def a_client_may_say_why_it_closes(stage: Stage) -> None:
    """The handler hears the client's reason, cut where it is too long."""
    handler = FakeHandler()
    for reason, heard in (("out of disk: ☃", "out of disk: ☃"), ("x" * 5000, "x" * MAX_REASON_BYTES)):
        inner = Stage(stage.carrier, stage.directory)
        try:
            inner.pair(handler).close(reason)
            assert _departure(handler)[1] == heard
        finally:
            inner.close()


def a_peer_that_is_closed_is_told_why(stage: Stage) -> None:
    """The reason reaches a client that waits; ``left`` comes once, not inside ``close``."""
    handler = FakeHandler()
    client = stage.pair(handler)
    client.send(0, example(UP, 0))
    peer, _, _ = handler.delivered.get(timeout=PATIENCE)
    peer.close("too slow: 30 s without a step")
    peer.close("again")
    with raising(ConnectionLost, "too slow: 30 s without a step"):
        client.receive()
    with raising(ConnectionLost, "too slow"):
        client.send(1, example(UP, 0))
    assert _departure(handler) == (peer, "too slow: 30 s without a step")
    assert handler.departed.empty()


def a_server_that_closes_ends_everything(stage: Stage) -> None:
    """Clients are told, the handler hears of each, and the address is free again."""
    handler = FakeHandler()
    server = stage.listen(handler)
    clients = [opened(stage.connect(server), handler) for _ in range(2)]
    clients[0].send(0, example(UP, 0))
    server.close()
    server.close()
    assert handler.departed.qsize() == 2
    with raising(ConnectionLost, "closing"):
        clients[0].receive()
    with raising(ConnectionLost, "closing"):
        clients[1].ask({})
    again = FakeHandler(respond=lambda arrays: example(DOWN, 3))
    client = stage.pair(again)
    client.send(0, example(UP, 0))
    assert same(received(client)[1], example(DOWN, 3))


def closing_wakes_a_waiting_client(stage: Stage) -> None:
    """``close`` from another thread ends a ``receive`` that waits."""
    handler = FakeHandler()
    client = stage.pair(handler)
    client.send(0, example(UP, 0))
    handler.delivered.get(timeout=PATIENCE)
    closer = threading.Timer(0.05, client.close)
    closer.start()
    with raising(ConnectionLost, "this side closed"):
        client.receive()
    closer.join()
    _departure(handler)


def peers_that_never_ask_do_not_leave(stage: Stage) -> None:
    """The handler hears of a peer only if the peer asked something."""
    handler = FakeHandler()
    server = stage.listen(handler)
    stage.connect(server).close()
    server.close()
    assert handler.departed.empty()


# -- other processes --


def a_killed_client_has_left_once(stage: Stage) -> None:
    """Killed between two steps: noticed at once, and its neighbours go on."""
    handler = FakeHandler(respond=lambda arrays: example(DOWN, 0))
    server = stage.listen(handler)
    bystander = opened(stage.connect(server), handler)
    handler.asked.get(timeout=PATIENCE)
    with process("actor", server.address) as actor:
        victim = handler.asked.get(timeout=PATIENCE)
        actor.kill()
        gone, reason = _departure(handler)
    assert gone is victim
    assert reason
    bystander.send(0, example(UP, 0))
    received(bystander)
    assert handler.departed.empty()


def an_interrupted_client_ends(stage: Stage) -> None:
    """Ctrl-C ends an actor that waits for a reply."""
    handler = FakeHandler()  # never replies
    server = stage.listen(handler)
    with process("actor", server.address) as actor:
        handler.delivered.get(timeout=PATIENCE)
        actor.send_signal(signal.SIGINT)
        assert actor.wait(PATIENCE) == _INTERRUPTED
    assert _departure(handler)


def a_killed_server_is_noticed(stage: Stage) -> None:
    """A client that waits for a dead server raises promptly."""
    with process("server", f"{stage.carrier.name}:{stage.directory}") as server:
        assert server.stdout is not None
        address = server.stdout.readline().strip()
        client = stage.carrier.connect(address, PATIENCE)
        try:
            opened(client, FakeHandler())
            client.send(0, example(UP, 0))
            received(client)
            server.send_signal(signal.SIGSTOP)
            # Until it stands still it might answer.
            os.waitid(os.P_PID, server.pid, os.WSTOPPED)
            client.send(1, example(UP, 1))
            killer = threading.Timer(0.05, server.kill)
            killer.start()
            begin = time.monotonic()
            with raising(ConnectionLost, "gone"):
                client.receive()
            assert time.monotonic() - begin < 5
            killer.join()
        finally:
            client.close()


CHECKS: tuple[Callable[[Stage], None], ...] = (
    questions_are_answered,
    questions_that_are_no_json_raise,
    refusals_reach_the_client,
    a_client_that_may_come_again_is_told_so,
    a_desk_with_a_bug_ends_one_conversation,
    questions_may_come_while_replies_are_due,
    layouts_must_agree,
    a_limit_passed_is_a_refusal,
    steps_travel_on_interleaved_lanes,
    lanes_may_have_layouts_of_their_own,
    every_dtype_and_shape_travels,
    large_steps_travel,
    sent_arrays_may_be_reused,
    arrays_stay_valid_as_promised,
    arrays_outlive_the_conversation,
    misuse_raises_and_harms_nothing,
    receive_need_not_wait,
    one_thread_may_send_while_another_receives,
    eight_clients_at_once,
    a_client_that_closes_has_left_once,
    a_client_may_say_why_it_closes,
    a_peer_that_is_closed_is_told_why,
    a_server_that_closes_ends_everything,
    closing_wakes_a_waiting_client,
    peers_that_never_ask_do_not_leave,
)
"""Checks of one process, for every carrier."""

PROCESS_CHECKS: tuple[Callable[[Stage], None], ...] = (
    a_killed_client_has_left_once,
    an_interrupted_client_ends,
    a_killed_server_is_noticed,
)
"""Checks that start other processes (of this module, so for carriers of ``CARRIERS``)."""

_INTERRUPTED = 42


@contextmanager
def process(role: str, address: str) -> Iterator[subprocess.Popen[str]]:
    """This module as another process, which is gone when the block is left."""
    running = subprocess.Popen(
        [sys.executable, "-P", "-m", __spec__.name, role, address],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with running:
        try:
            yield running
        finally:
            running.kill()


def _act(address: str) -> None:
    """An actor that steps until it is stopped."""
    client = connect(address, timeout=PATIENCE)
    try:
        handler = FakeHandler()
        opened(client, handler)
        for seed in range(sys.maxsize):
            client.send(seed % 2, example(UP, seed))
            received(client)
    except KeyboardInterrupt:
        sys.exit(_INTERRUPTED)
    finally:
        client.close()


def _serve(place: str) -> None:
    """A server that lives until its standard input ends."""
    name, _, directory = place.partition(":")
    carrier = next(carrier for carrier in CARRIERS if carrier.name == name)
    handler = FakeHandler(respond=lambda arrays: example(DOWN, 0))
    server = carrier.listen(Path(directory), handler)
    sys.stdout.write(server.address + "\n")
    sys.stdout.flush()
    sys.stdin.read()
    server.close()


def _main() -> None:
    role, address = sys.argv[1:]
    {"actor": _act, "server": _serve}[role](address)


if __name__ == "__main__":
    _main()
