"""Unrolls come in and weights go out, without actors, wires or networks."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fakes import COUNT, FakePeer, reporter

from seedbed.acting.assignment import Assignment
from seedbed.acting.codec import UnrollCodec, WeightsCodec, version_array
from seedbed.acting.example import example_unroll
from seedbed.acting.lag import ExactLag, Rounds
from seedbed.acting.lag_control import ExactControl, FreeControl, LagControl, RoundBuffer
from seedbed.acting.meters import Latencies, Meters
from seedbed.acting.unrolls import Delivery
from seedbed.errors import Refused, SpecError
from seedbed.metrics.ledger import Ledger
from seedbed.serving.actor_registry import ActorRegistry
from seedbed.serving.unroll_service import UnrollService
from seedbed.transport.interface import PROTOCOL
from seedbed.types import Unroll, Weights
from seedbed.weights.store import WeightStore

AGENT = reporter()
LENGTH, ROWS = AGENT.data.unroll_length, 2
CONTROL = 2
BOOKS = {"received": 0, "trained": 0, "queued": 0, "open": 0, "dropped": 0, "resets": 0}


class Stand:
    """A registry with an intake behind it that has room for some unrolls."""

    def __init__(
        self, room: int = 1000, fetch_steps: int = 0, lag: int | None = None, largest: int | None = None
    ) -> None:
        self.room = room
        self.ledger, self.meters = Ledger(), Meters()
        self.handed: list[Delivery] = []
        self.failures: list[BaseException] = []
        assignment = Assignment("toy:count", {}, COUNT, 1, 2 * ROWS, 3, LENGTH, "secret")
        self.store = WeightStore(jax.devices()[:1], keep=1)
        self.publish(0)
        pace: LagControl = FreeControl(self.store, 0, self._take)
        if lag is not None:
            pace = ExactControl(
                Rounds(ExactLag(lag), 1),
                halves={0: 1, 1: 1},
                store=self.store,
                device=0,
                collect=RoundBuffer(2, self._take),
            )
        self.intake = UnrollService(
            AGENT,
            pace,
            assignment,
            self.store,
            policy={"agent": "reporter"},
            fetch_steps=fetch_steps,
            largest=largest,
            ledger=self.ledger,
            meters=self.meters,
            on_failure=self.failures.append,
        )
        self.store.listen(self.intake.thread.poke)
        self.registry = ActorRegistry(assignment, [self.intake], 20)
        self.intake.thread.start()
        self.intake.thread.begin()
        self.peer = FakePeer()
        self.told = self.ask("join", protocol=PROTOCOL, token="secret", index=0, envs=None)
        self.introduced = self.ask("ready", spec=COUNT.to_json())
        self.codec = UnrollCodec(AGENT, COUNT, ROWS)

    def ask(self, kind: str, **more: Any) -> dict[str, Any]:
        return self.registry.answer(self.peer, {"kind": kind, **more})

    def publish(self, version: int) -> None:
        self.store.publish({"w": jnp.full((), float(version))}, version)

    def unroll(self, lane: int, version: int = 0, *, ends: bool = False) -> Unroll:
        example = example_unroll(AGENT, COUNT, LENGTH, ROWS)
        example.timestep.reward[:] = 1.0
        example.timestep.first[0] = True
        example.timestep.terminated[-1, :ROWS] = ends
        example.version[:] = version
        unroll = Unroll(*(self.codec.unpack(jax.tree.leaves(example._replace(weight=None)))[0]))
        return unroll._replace(action=unroll.action.astype(COUNT.action.dtype) + lane)

    def send(self, lane: int, **more: Any) -> list[Any]:
        arrays = self.codec.pack(self.unroll(lane, **more), None)
        self.registry.deliver(self.peer, lane, arrays)
        return arrays

    def settle(self) -> None:
        done = threading.Event()
        self.intake.thread.submit(done.set)
        assert done.wait(20)

    def _take(self, delivery: Delivery) -> bool:
        if len(self.handed) >= self.room:
            return False
        self.handed.append(delivery)
        return True


@pytest.fixture
def stands() -> Iterator[Any]:
    built: list[Stand] = []

    def build(**settings: Any) -> Stand:
        built.append(Stand(**settings))
        return built[-1]

    yield build
    for each in built:
        each.registry.stop()
        assert each.failures == []


def test_an_actor_is_told_how_to_act_and_where_it_stands(stands: Any) -> None:
    stand = stands()
    assert stand.told["policy"] == {"agent": "reporter"}
    assert stand.introduced == {
        "seed": 3,
        "epoch": 0,
        "numbers": [0, 1, 2, 3],
        "exploration": ([0.0, pytest.approx(1 / 3), pytest.approx(2 / 3), 1.0], [False] * 4),
        "versions": [0, 0],
    }
    up, down = zip(*stand.peer.terms, strict=True)
    assert up[0] == up[1] == stand.codec.layout
    assert [layout.fields for layout in down[:2]] == [(((), "int64"),)] * 2
    assert up[2].fields == (((), "int64"),)
    assert down[2].fields == (((), "int64"), ((), "float32"))


def test_an_unroll_is_handed_over_whole_and_its_lane_told_what_comes_next(stands: Any) -> None:
    stand = stands()
    stand.publish(7)
    sent = stand.send(1, ends=True)
    assert stand.peer.next() == (1, np.int64(7))
    (delivery,) = stand.handed
    assert all(map(np.array_equal, jax.tree.leaves(delivery.unroll), sent))
    assert delivery.episodes == [(3.0, 3)] * ROWS
    assert delivery.streams.tolist() == [2, 3]
    assert (delivery.end, delivery.counted) == (LENGTH, LENGTH * ROWS)
    assert stand.ledger.counts() == {**BOOKS, "received": 6, "queued": 6}
    # What came is lent: whoever sent it may write over it.
    sent[0][:] = -1
    assert not np.any(delivery.unroll.timestep.observation == -1)


def test_what_finds_no_room_is_held_unanswered_until_there_is_some(stands: Any) -> None:
    stand = stands(room=1)
    stand.send(0)
    assert stand.peer.next()[0] == 0
    stand.send(1)
    stand.send(0)
    stand.settle()
    assert stand.peer.silent
    assert len(stand.handed) == 1
    stand.room = 2
    stand.intake.thread.poke()
    assert stand.peer.next()[0] == 1, "who waited longest finds the room first"
    stand.registry.left(stand.peer, "gone")
    stand.settle()
    # That of the lane which was never answered is dropped, and nothing else.
    assert stand.ledger.counts() == {**BOOKS, "received": 18, "queued": 12, "dropped": 6}


def test_weights_are_given_when_they_exist(stands: Any) -> None:
    stand = stands()
    stand.registry.deliver(stand.peer, CONTROL, [version_array(0)])
    assert stand.peer.next() == (CONTROL, np.int64(0))
    stand.registry.deliver(stand.peer, CONTROL, [version_array(2)])
    stand.settle()
    stand.publish(1)
    stand.settle()
    assert stand.peer.silent
    stand.publish(2)
    assert stand.peer.next() == (CONTROL, np.int64(2))
    # A version that is gone is made up for by the newest.
    stand.registry.deliver(stand.peer, CONTROL, [version_array(1)])
    assert stand.peer.next() == (CONTROL, np.int64(2))


def test_newer_weights_are_told_after_so_many_steps(stands: Any) -> None:
    stand = stands(fetch_steps=2 * LENGTH)
    told = []
    for version in range(1, 7):
        stand.publish(version)
        stand.send(0)
        told.append(int(stand.peer.next()[1]))
    assert told == [0, 2, 2, 4, 4, 6]


def test_who_waits_for_weights_and_leaves_is_forgotten(stands: Any) -> None:
    stand = stands()
    stand.registry.deliver(stand.peer, CONTROL, [version_array(5)])
    stand.settle()
    stand.registry.left(stand.peer, "gone")
    stand.settle()
    stand.publish(5)
    stand.settle()
    assert stand.peer.silent


def test_reports_are_counted_and_others_refused(stands: Any) -> None:
    stand = stands()
    waits = Latencies()
    for milliseconds in range(1, 101):
        waits.add(milliseconds / 1e3)
    assert stand.ask("report", waits=waits.take()) == {}
    taken = stand.meters.take()
    assert taken["action_wait_p50"] == pytest.approx(50, rel=0.05)
    assert taken["action_wait_p99"] == pytest.approx(99, rel=0.05)
    assert "action_wait_p50" not in stand.meters.take()
    for wrong in (
        {},
        {"waits": 3},
        {"waits": {"x": 1}},
        {"waits": {"1": -1}},
        {"waits": {"99999": 1}},
        {"waits": {"1": 1, "x": 2}},
    ):
        with pytest.raises(Refused):
            stand.ask("report", **wrong)
    assert "action_wait_p50" not in stand.meters.take(), "of a report that is refused nothing is counted"
    with pytest.raises(Refused, match="after 'ready'"):
        stand.registry.answer(FakePeer("another"), {"kind": "report", "waits": {}})


def test_an_actor_that_was_heard_of_is_not_stalled(stands: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("seedbed.serving.actor_registry.time.monotonic", lambda: now[0])
    stand = stands()
    now[0] = 130.0
    assert stand.registry.stalled(20.0) == [], "it compiles"
    stand.registry.deliver(stand.peer, CONTROL, [version_array(0)])
    assert [seconds for _, seconds in stand.registry.stalled(20.0)] == [30.0]
    stand.ask("report", waits={})
    assert stand.registry.stalled(20.0) == []
    now[0] = 151.0
    assert [seconds for _, seconds in stand.registry.stalled(20.0)] == [21.0]


def test_an_actor_that_waits_for_weights_owes_nothing(stands: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("seedbed.serving.actor_registry.time.monotonic", lambda: now[0])
    stand = stands(lag=0)
    for lane in (0, 1):
        stand.send(lane)
        assert stand.peer.next() == (lane, np.int64(1))
    stand.registry.deliver(stand.peer, CONTROL, [version_array(1)])
    stand.settle()
    assert stand.intake.wait_blocked(0.0)
    now[0] = 200.0
    assert stand.registry.stalled(5.0) == []
    stand.publish(1)
    assert stand.peer.next() == (CONTROL, np.int64(1))
    stand.settle()
    assert not stand.intake.wait_blocked(0.0)
    now[0] = 300.0
    assert [seconds for _, seconds in stand.registry.stalled(5.0)] == [100.0]


@pytest.mark.parametrize(
    ("field", "place", "value", "says"),
    [
        ("record", (1, 0), np.nan, "not finite"),
        ("state", 1, np.inf, "not finite"),
        ("version", (0, 0), -(2**31), "do not exist; the newest version is 0"),
        ("version", (0, 0), 1, "do not exist; the newest version is 0"),
        ("action", (2, 1), 3, "actions that do not exist"),
        ("action", (2, 1), -1, "actions that do not exist"),
    ],
)
def test_what_an_actor_computes_has_to_make_sense(
    stands: Any, field: str, place: Any, value: Any, says: str
) -> None:
    stand = stands()
    unroll = stand.unroll(0)
    spoilt = getattr(unroll, field)
    (spoilt["sum"] if field in ("record", "state") else spoilt)[place] = value
    stand.registry.deliver(stand.peer, 0, stand.codec.pack(unroll, None))
    stand.settle()
    (reason,) = stand.peer.closed
    assert says in reason
    assert stand.handed == []
    steps = LENGTH * ROWS
    assert stand.ledger.counts() == {**BOOKS, "received": steps, "dropped": steps}
    stand.send(0)  # it has not heard it yet
    stand.settle()
    assert stand.ledger.counts()["received"] == steps


def test_what_an_actor_from_elsewhere_shows_is_looked_at(stands: Any) -> None:
    stand = stands()
    stand.peer = FakePeer("elsewhere")
    stand.ask("join", protocol=PROTOCOL, token="secret", index=None, envs=2 * ROWS)
    stand.ask("ready", spec=COUNT.to_json())
    stand.send(1)
    assert stand.peer.next()[0] == 1
    unroll = stand.unroll(1)
    unroll.timestep.reward[2, 1] = np.inf
    stand.registry.deliver(stand.peer, 1, stand.codec.pack(unroll, None))
    stand.settle()
    (reason,) = stand.peer.closed
    assert reason.startswith(f"the reward of environment {ROWS + 1} is not finite (inf)")
    assert len(stand.handed) == 1
    steps = LENGTH * ROWS
    assert stand.ledger.counts() == {**BOOKS, "received": 2 * steps, "queued": steps, "dropped": steps}


def test_an_actor_that_is_too_large_for_the_replay_is_refused(stands: Any) -> None:
    stand = stands(largest=ROWS)
    peer = FakePeer("large")
    join = {"kind": "join", "protocol": PROTOCOL, "token": "secret", "index": None, "envs": 4 * ROWS}
    stand.registry.answer(peer, join)
    with pytest.raises(Refused, match="replay takes at most 2 a half; use a smaller --envs"):
        stand.registry.answer(peer, {"kind": "ready", "spec": COUNT.to_json()})


def test_a_version_that_is_gone_is_told_of_no_more(stands: Any) -> None:
    stand = stands(fetch_steps=10 * LENGTH)
    stand.publish(5)
    stand.registry.deliver(stand.peer, CONTROL, [version_array(0)])
    assert stand.peer.next() == (CONTROL, np.int64(5))
    stand.publish(6)
    stand.send(0, version=5)
    assert stand.peer.next() == (0, np.int64(5))


def test_who_left_before_its_errand_is_not_waited_for(stands: Any) -> None:
    stand = stands()
    (member,) = stand.registry.members()
    stand.registry.left(stand.peer, "gone")
    stand.intake.control(member, [version_array(0)])
    stand.settle()
    assert stand.peer.silent


def test_parcels_carry_what_was_put_into_them() -> None:
    codec = WeightsCodec(AGENT)
    arrays = codec.pack(Weights({"w": jnp.float32(2.5)}, 9))
    codec.layout.check(arrays)
    back = codec.unpack(arrays, jax.devices()[0])
    assert (back.version, float(back.params["w"])) == (9, 2.5)
    arrays[1] = np.array(0.0, np.float32)
    assert float(back.params["w"]) == 2.5
    with pytest.raises(SpecError):
        codec.layout.check(arrays[:1])
