"""Admission to a parameter server: the registry of workers, and a shard, asked from this machine and from others."""

from __future__ import annotations

from typing import Any

import numpy as np
import optax
import pytest

from seedbed.errors import Refused
from seedbed.parameter_server.server import ShardHandler
from seedbed.parameter_server.shards import Bound, Part, Shard
from seedbed.parameter_server.workers import Worker, WorkerRegistry
from seedbed.transport.interface import PROTOCOL, Layouts

TOKEN, CLAIM = "0123456789abcdef", "claimed in this session"


class Somebody:
    """A peer that notes what is opened, and why it was closed."""

    place = "elsewhere"

    def __init__(self) -> None:
        self.opened = False
        self.closed = ""

    def open(self, lanes: list[Layouts]) -> None:
        self.opened = True

    def close(self, reason: str) -> None:
        self.closed = reason


def join(**more: Any) -> dict[str, Any]:
    return {"kind": "join", "protocol": PROTOCOL, "token": TOKEN, "index": 1, **more}


FROM_THERE = {"elsewhere": True, "claim": CLAIM}
WRONG: list[dict[str, Any]] = [
    {"elsewhere": True},
    {"elsewhere": True, "claim": ""},
    {"elsewhere": True, "claim": "of an earlier session"},
    {"elsewhere": True, "claim": None},
]


class Registry(WorkerRegistry):
    """A registry of two workers that notes who has left."""

    def __init__(self, claim: str = CLAIM) -> None:
        self.gone: list[tuple[int, int]] = []
        super().__init__(
            TOKEN,
            2,
            job=lambda index, epoch: {"epoch": epoch},
            on_report=lambda worker, told: None,
            on_leave=self._note,
            claim=claim,
        )

    def _note(self, worker: Worker, reason: str) -> None:
        self.gone.append((worker.index, worker.epoch))


def test_a_worker_on_another_machine_takes_the_place_of_one_that_was_not_missed_yet() -> None:
    registry, lost, other = Registry(), Somebody(), Somebody()
    assert registry.answer(lost, join(**FROM_THERE)) == {"epoch": 0}  # type: ignore[arg-type]
    assert registry.answer(other, join(**FROM_THERE)) == {"epoch": 1}  # type: ignore[arg-type]
    assert "another worker joined with the same index" in lost.closed and not other.closed
    assert registry.gone == [(1, 0)] and len(registry) == 1
    with pytest.raises(Refused, match="worker 1 is there already"):  # here, an end is heard at once
        registry.answer(Somebody(), join())  # type: ignore[arg-type]


@pytest.mark.parametrize("said", WRONG, ids=str)
@pytest.mark.parametrize("claim", [CLAIM, ""], ids=["claim", "none elsewhere"])
def test_the_token_alone_makes_nobody_elsewhere_a_worker(claim: str, said: dict[str, Any]) -> None:
    registry, shard = Registry(claim), shard_with(claim)
    for handler in (registry, shard):
        somebody = Somebody()
        with pytest.raises(Refused, match="only the run's own workers"):
            handler.answer(somebody, join(**said))  # type: ignore[arg-type]
        assert not somebody.opened
    assert not len(registry)


def test_on_this_machine_nothing_is_claimed() -> None:
    for handler in (Registry(), shard_with(CLAIM)):
        somebody = Somebody()
        handler.answer(somebody, join())  # type: ignore[arg-type]
        assert somebody.opened
    claiming = Somebody()
    shard_with(CLAIM).answer(claiming, join(**FROM_THERE))  # type: ignore[arg-type]
    assert claiming.opened


def shard_with(claim: str) -> ShardHandler:
    rule = optax.sgd(0.1)
    params = [np.zeros(2, np.float32)]
    return ShardHandler(Shard(rule, Part(params, rule.init(params), 0, 0), Bound()), TOKEN, claim)
