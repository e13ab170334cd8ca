"""Machines as they are given."""

from __future__ import annotations

import pytest

from seedbed.errors import ConfigError
from seedbed.planning.machines import Machine, machine_of, machines_of


def test_a_machine_is_read() -> None:
    assert machine_of("cores=64,accelerators=1,price=3.5") == Machine(64.0, 1, 3.5)
    assert machine_of("cores=8, count=4,accelerator-speed=2") == Machine(8.0, count=4, accelerator_speed=2.0)
    assert machines_of(["cores=8,accelerators=1", "cores=64,count=4"]) == (
        Machine(8.0, 1),
        Machine(64.0, count=4),
    )
    assert machines_of([]) == ()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("64", "'64' is no name=value; needed is cores=NUMBER"),
        ("cores=64 accelerators=1", "cores is '64 accelerators=1', and has to be a number"),
        ("accelerators=1", "the number of cores is missing: add cores=NUMBER"),
        ("cores=64,gpus=1", "gpus"),
        ("cores=64,cores=32", "cores is given twice"),
        ("cores=64,accelerators=0.5", "accelerators is '0.5', and has to be a whole number"),
        ("cores=0", "cores is 0.0, and has to be more than 0"),
        ("cores=nan", "cores is nan"),
        ("cores=8,price=-1", "price is -1.0, and has to be 0 or more"),
        ("cores=inf", "cores is inf, and has to be a number of cores"),
        ("cores=8,count=0", "count is 0, and has to be more than 0"),
    ],
)
def test_a_mistake_is_named(words: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        machine_of(words)


def test_the_head_is_one_machine_and_there_are_two_kinds() -> None:
    with pytest.raises(ConfigError, match="the head stands on one machine"):
        machines_of(["cores=8,count=2"])
    with pytest.raises(ConfigError, match="3 kinds of machines, and takes two at most"):
        machines_of(["cores=8"] * 3)
