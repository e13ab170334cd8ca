"""Checks of numbers and masks of actors from elsewhere, of single steps and of whole unrolls."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from fakes import FakePeer

from seedbed.acting.lanes import Lane, Member
from seedbed.envs.episodes import EpisodeMeter
from seedbed.serving.border import BorderRules
from seedbed.types import ACTION_MASK, ArraySpec, EnvSpec, TimeStep

ROWS, LENGTH = 2, 3
SPEC = EnvSpec(
    "e",
    {"x": ArraySpec((2,), "float32"), ACTION_MASK: ArraySpec((3,), "int8", low=(0.0,), high=(1.0,))},
    ArraySpec((), "int32", (3,)),
)


def lane(*, local: bool = False) -> Lane:
    slots = np.arange(ROWS, dtype=np.int32)
    return Lane(member=Member(5, 0, FakePeer(), local), half=1, slots=slots, meter=EpisodeMeter(ROWS))


def steps(*leading: int) -> TimeStep:
    shown = {"x": np.zeros((*leading, 2), np.float32), ACTION_MASK: np.ones((*leading, 3), np.int8)}
    flags = [np.zeros(leading, np.bool_) for _ in range(3)]
    return TimeStep(shown, np.zeros(leading, np.float32), *flags)


@pytest.mark.parametrize("leading", [(ROWS,), (LENGTH + 1, ROWS)], ids=["step", "unroll"])
@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("reward", np.nan, "the reward of environment 3 is not finite"),
        ("x", 1e30, "the observation x of environment 3 has 1e"),
        (ACTION_MASK, 5, "the observation action_mask of environment 3 has 5"),
        (ACTION_MASK, 0, "action_mask of environment 1 of the batch is [0, 0, 0] and allows no action"),
    ],
)
def test_what_breaks_a_rule_is_named(leading: Any, field: str, value: float, says: str) -> None:
    rules = BorderRules(SPEC)
    sent = steps(*leading)
    assert rules.broken_by(lane(), sent) is None
    array = sent.reward if field == "reward" else sent.observation[field]
    array[(*(size - 1 for size in leading),)] = value
    assert str(rules.broken_by(lane(), sent)).startswith(says)
    assert rules.broken_by(lane(local=True), sent) is None, "the run's own actors have looked already"
