"""A batch that cannot be shared equally is refused at once, with flags that pass every later check too."""

import re
from typing import Any

import pytest

from seedbed.architectures.compatibility import why_not
from seedbed.architectures.shares import require_equal_shares
from seedbed.config.resolve import configure
from seedbed.config.settings import RunConfig
from seedbed.envs.make import spec_of
from seedbed.errors import ConfigError
from seedbed.launch.build import build_agent, outlook
from seedbed.launch.train import train

ENV = "toy:catch"


def run(**settings: Any) -> RunConfig:
    return configure(ENV, **{"preset": "none", **settings})


def advised(text: str) -> dict[str, int]:
    """The settings that a refusal names."""
    if found := re.search(r"^minibatches is .* such as (\d+)$", text):
        return {"minibatches": int(found[1])}
    found = re.search(r"(?:[Uu]se|give) --batch-size (\d+)(?: --minibatches (\d+))?", text)
    assert found, text
    names = zip(("batch_size", "minibatches"), found.groups(), strict=True)
    return {name: int(value) for name, value in names if value is not None}


@pytest.mark.parametrize("hosts", [1, 3])
@pytest.mark.parametrize(
    "settings",
    [
        {"agent": "vtrace"},
        {"agent": "vtrace", "lag": 0, "batch_size": 20},
        {"agent": "vtrace", "lag": 0, "batch_size": 9, "training_devices": (0, 1)},
        {"agent": "vtrace", "batch_size": 9, "training_devices": (0, 1)},
        {"agent": "a2c", "arch": "anakin", "batch_size": 30},
        {"agent": "a2c", "arch": "impala", "batch_size": 16},
        {"agent": "a2c", "arch": "sebulba", "envs_per_actor": 9, "batch_size": 16},
        {"agent": "ppo"},
        {"agent": "ppo", "preset": "cartpole"},
        {"agent": "ppo", "preset": "cartpole", "batch_size": 18},
        {"agent": "ppo", "preset": "cartpole", "envs_per_actor": 9, "shuffle": "unrolls"},
        {"agent": "ppo", "lstm": 8},
        {"agent": "ppo", "lstm": 8, "batch_size": 16, "unroll_length": 20, "minibatches": 5},
        {"agent": "ppo", "shuffle": "unrolls", "batch_size": 16, "minibatches": 4},
        {"agent": "ppo", "unroll_length": 30, "batch_size": 16, "minibatches": 8},
        {"agent": "ppo", "correction": "vtrace", "batch_size": 30},
        {"agent": "pqn"},
        {"agent": "dqn", "batch_size": 20, "replay_parts": 6, "actors": 6},
        {"agent": "r2d2", "lstm": 8, "arch": "apex", "batch_size": 20},
    ],
    ids=str,
)
def test_a_remedy_that_is_named_works_when_typed(settings: dict[str, Any], hosts: int) -> None:
    settings = settings | {"hosts": hosts}
    try:
        given = run(**settings)
        if hosts > 1:  # as a training does it
            require_equal_shares(given)
        said = why_not(given, build_agent(given, spec_of(ENV)))
    except ConfigError as error:
        said = str(error)
    if said is not None:
        settings |= advised(said)
        given = run(**settings)
        require_equal_shares(given)
    agent = build_agent(given, spec_of(ENV))
    assert why_not(given, agent) is None
    for line in outlook(given, spec_of(ENV), agent):
        if "trained on late" in line:
            better = run(**settings | advised(line))
            assert why_not(better, made := build_agent(better, spec_of(ENV))) is None
            assert not any("late" in line for line in outlook(better, spec_of(ENV), made))
    # Counted by hand: every device has as many unrolls, and as many rows of each minibatch.
    devices = hosts * len(settings.get("training_devices", (0,)))
    batch, parts = agent.data.batch_size, agent.data.minibatches
    assert batch % devices == 0 and agent.data.rows % (parts * devices) == 0


def test_a_batch_that_nothing_fits_is_refused_without_a_number() -> None:
    given = run(agent="vtrace", lag=0, actors=1, envs_per_actor=9, training_devices=(0, 1))
    with pytest.raises(ConfigError, match="use another number of --actors or --envs-per-actor"):
        require_equal_shares(given)


def test_it_is_said_before_anything_is_started(tmp_path: Any) -> None:
    with pytest.raises(
        ConfigError, match=r"16 unrolls .* 3 training devices \(1 on each of 3 hosts\): use --batch-size 48$"
    ):
        train(configure("CartPole-v1", agent="ppo", hosts=3, run_dir=str(tmp_path / "run")))
    assert not (tmp_path / "run").exists()
