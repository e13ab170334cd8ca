"""Which agent goes with which architecture: what one file of the architectures' own tests cannot show."""

from __future__ import annotations

from typing import Any

import pytest

from seedbed.architectures.compatibility import why_not
from seedbed.config.resolve import configure
from seedbed.envs.make import spec_of
from seedbed.errors import ConfigError
from seedbed.launch.build import build_agent


@pytest.mark.parametrize("arch", ["seed", "sebulba", "a2c"])
def test_the_preset_of_cartpole_has_no_more_environments_than_a2c_learns_from_at_once(arch: str) -> None:
    config = configure("CartPole-v1", arch=arch, agent="a2c")
    assert why_not(config, build_agent(config, spec_of("CartPole-v1"))) is None


@pytest.mark.parametrize("arch", ["seed", "impala", "apex", "rapid", "a3c", "a2c", "sebulba", "anakin"])
def test_what_learns_from_a_data_set_needs_an_architecture_that_has_one(arch: str) -> None:
    config = configure("toy:catch", arch=arch, agent="bc")
    reason = why_not(config, build_agent(config, spec_of("toy:catch")))
    assert str(reason).endswith("it learns from a data set, and here agents act; use --arch distbelief")


@pytest.mark.parametrize("hosts", [1, 2])
def test_the_environments_of_all_hosts_count(hosts: int) -> None:
    settings = {
        "preset": "none",
        "agent": "a2c",
        "lag": 0,
        "actors": 1,
        "envs_per_actor": 16,
        "batch_size": 16,
    }
    config = configure("CartPole-v1", hosts=hosts, **settings)
    reason = why_not(config, build_agent(config, spec_of("CartPole-v1")))
    assert (reason is None) == (hosts == 1)
    assert hosts == 1 or "32 environments are more than a batch of 16" in str(reason)


ROUND = {"preset": "none", "actors": 2, "envs_per_actor": 4, "lag": 0}


@pytest.mark.parametrize("arch", ["seed", "impala", "rapid", "sebulba"])
@pytest.mark.parametrize(
    ("agent", "settings", "says"),
    [
        ("vtrace", {"batch_size": 8}, None),
        ("vtrace", {"batch_size": 3}, "the 8 environments must be a multiple of the batch size 3"),
        ("ppo", {"batch_size": 12}, "the 8 environments must be a multiple of the batch size 12"),
    ],
)
def test_rounds_that_do_not_come_out_even_are_refused_before_anything_is_started(
    arch: str, agent: str, settings: dict[str, int], says: str | None
) -> None:
    config = configure("toy:catch", arch=arch, agent=agent, **ROUND, **settings)
    reason = why_not(config, build_agent(config, spec_of("toy:catch")))
    assert reason is None if says is None else says in str(reason)


@pytest.mark.parametrize(("ratio", "even"), [(1.0, True), (0.7, False)])
def test_a_replay_ratio_that_does_not_come_out_even_is_refused_before_anything_is_started(
    ratio: float, even: bool
) -> None:
    settings = {**ROUND, "unroll_length": 8, "batch_size": 32, "replay_ratio": ratio}
    config = configure("toy:catch", arch="seed", agent="dqn", **settings)
    reason = why_not(config, build_agent(config, spec_of("toy:catch")))
    assert reason is None if even else "--replay-ratio" in str(reason)


@pytest.mark.parametrize("arch", ["seed", "impala", "apex"])
@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"on": "ray"}, None),
        ({"on": "ray", "actors": 0}, None),
        (
            {"on": "here"},
            "guests is 3, and on is here, where no machines come and go: give --on ray, or --guests 0",
        ),
        (
            {"on": "ray", "hosts": 2},
            "guests is 3, and hosts is 2: each host has its own actors; leave one out",
        ),
        ({"on": "ray", "lag": 0}, "guests is 3, and the lag is exact (0), which needs the same actors"),
    ],
    ids=str,
)
def test_guests_need_a_cluster_and_a_free_lag(arch: str, settings: dict[str, Any], says: str | None) -> None:
    agent = "dqn" if arch == "apex" else "vtrace"
    made = {
        "preset": "none",
        "agent": agent,
        "actors": 2,
        "envs_per_actor": 8,
        "batch_size": 16,
        "eval_envs": 0,
    }
    if agent == "vtrace":
        del made["eval_envs"]
    config = configure("toy:catch", arch=arch, guests=3, **{**made, **settings})
    reason = why_not(config, build_agent(config, spec_of("toy:catch")))
    assert reason is None if says is None else str(reason).startswith(says)
    assert config.placement.slots == (config.placement.actors + 3) * 8 + 256


@pytest.mark.parametrize("arch", ["rapid", "gorila", "distbelief", "anakin"])
def test_no_other_architecture_has_guests(arch: str) -> None:
    with pytest.raises(ConfigError, match="guests is a setting of seed, impala and apex"):
        configure("toy:catch", arch=arch, guests=3)
