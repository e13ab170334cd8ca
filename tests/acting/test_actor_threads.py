"""Where actor threads wait: whole crews are in tests/architectures/test_sebulba.py."""

from __future__ import annotations

import threading
from typing import Literal

import jax
import numpy as np
import pytest
from fakes import PATIENCE, numbered

from seedbed.acting.actor_threads import LearnerGate, seed_of
from seedbed.acting.assignment import half_seeds
from seedbed.acting.lag import ExactLag, Rounds
from seedbed.acting.unrolls import Delivery
from seedbed.types import Unroll, Weights
from seedbed.weights.store import WeightStore


class House:
    """A gate with its store, and a shelf with room for some unrolls."""

    def __init__(self, lag: int | Literal["free"], threads: int = 2, room: int = 100, base: int = 0) -> None:
        self.store = WeightStore(jax.devices()[:1], keep=10)
        self.shelf: list[Unroll] = []
        self.room = room
        rounds = None if lag == "free" else Rounds(ExactLag(lag), updates=2, base=base)
        self.gate = LearnerGate(threads=threads, store=self.store, hand_over=self._take, rounds=rounds)
        self.store.listen(self.gate.poke)

    def _take(self, delivery: Delivery) -> bool:
        if len(self.shelf) >= self.room:
            return False
        self.shelf.append(delivery.unroll)
        return True

    def publish(self, version: int) -> None:
        self.store.publish({"w": np.float32(version)}, version)


def ask(gate: LearnerGate, index: int, rounds: int) -> tuple[threading.Thread, list[Weights | None]]:
    """A thread that asks for weights, and what it got."""
    got: list[Weights | None] = []
    thread = threading.Thread(target=lambda: got.append(gate.weights(index, rounds, 0)))
    thread.start()
    return thread, got


def test_a_round_acts_with_exactly_its_weights() -> None:
    house = House(lag=1, threads=1, base=3)
    house.publish(3)
    assert [house.gate.weights(0, number, 0).version for number in (0, 1)] == [3, 3]  # type: ignore[union-attr]
    thread, got = ask(house.gate, 0, 2)
    assert house.gate.wait_blocked(PATIENCE)
    house.publish(4)
    assert house.gate.wait_blocked(PATIENCE), "the first of two updates is not what it waits for"
    house.publish(5)
    thread.join(PATIENCE)
    house.publish(6)
    assert [weights.version for weights in got if weights] == [5]


def test_it_rests_only_when_all_wait_for_what_is_not_there() -> None:
    house = House(lag=0)
    house.publish(0)
    assert not house.gate.wait_blocked(0.0), "nobody waits"
    first, _ = ask(house.gate, 0, 1)
    assert not house.gate.wait_blocked(0.05), "the other one acts"
    second, got = ask(house.gate, 1, 1)
    assert house.gate.wait_blocked(PATIENCE)
    house.publish(2)
    assert not house.gate.wait_blocked(0.0), "they will go on, though they may not have woken yet"
    for thread in (first, second):
        thread.join(PATIENCE)
    assert got[0] is not None


def test_freely_it_takes_the_newest_and_waits_for_room() -> None:
    house = House(lag="free", room=1)
    house.publish(0)
    house.publish(4)
    weights = house.gate.weights(0, 7, 0)
    assert weights is not None and weights.version == 4
    assert house.gate.pass_on(0, 0, Delivery(numbered(3, [1]), []))
    passed: list[bool] = []
    thread = threading.Thread(
        target=lambda: passed.append(house.gate.pass_on(1, 0, Delivery(numbered(3, [2]), [])))
    )
    thread.start()
    house.gate.poke()
    assert len(house.shelf) == 1
    house.room = 2
    house.gate.poke()
    thread.join(PATIENCE)
    assert passed == [True]
    assert len(house.shelf) == 2


@pytest.mark.parametrize("lag", ["free", 0])
def test_everybody_is_sent_home(lag: int | Literal["free"]) -> None:
    house = House(lag=lag, room=0)
    house.publish(0)
    if lag == "free":
        passed: list[bool] = []
        thread = threading.Thread(
            target=lambda: passed.append(house.gate.pass_on(0, 0, Delivery(numbered(3, [1]), [])))
        )
        thread.start()
        house.gate.close()
        thread.join(PATIENCE)
        assert passed == [False]
    else:
        thread, got = ask(house.gate, 0, 1)
        house.gate.close()
        thread.join(PATIENCE)
        assert got == [None]
    assert house.gate.closed
    assert house.gate.weights(0, 0, 0) is None


def test_two_threads_have_the_environments_of_one_actor() -> None:
    for index in range(3):
        halves = half_seeds(5, index, 2, 2)
        assert [seed_of(5, 2 * index, 2), seed_of(5, 2 * index + 1, 2)] == halves
