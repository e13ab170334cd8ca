"""Which agent goes with which architecture: what one file of the architectures' own tests cannot show."""

from __future__ import annotations

import pytest

from seedbed.architectures.compatibility import why_not
from seedbed.config.resolve import configure
from seedbed.envs.make import spec_of
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
