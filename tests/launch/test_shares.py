"""A batch that the training devices of all hosts cannot share is refused at once, with flags that mend it."""

import re
from typing import Any

import pytest

from seedbed.config.resolve import configure
from seedbed.config.settings import RunConfig
from seedbed.errors import ConfigError
from seedbed.launch.shares import require_equal_shares
from seedbed.launch.train import train


def run(**settings: Any) -> RunConfig:
    return configure("CartPole-v1", preset="none", **settings)


@pytest.mark.parametrize("hosts", [2, 3, 5, 7])
@pytest.mark.parametrize(
    "settings",
    [
        {"agent": "vtrace"},
        {"agent": "vtrace", "batch_size": 9, "training_devices": (0, 1)},
        {"agent": "a2c", "arch": "anakin", "batch_size": 30},
        {"agent": "ppo"},
        {"agent": "ppo", "lstm": 8},
        {"agent": "ppo", "shuffle": "unrolls", "batch_size": 16, "minibatches": 4},
        {"agent": "ppo", "unroll_length": 30, "batch_size": 16, "minibatches": 8},
        {"agent": "pqn"},
    ],
    ids=str,
)
def test_what_is_advised_passes(settings: dict[str, Any], hosts: int) -> None:
    devices = hosts * len(settings.get("training_devices", (0,)))
    given = run(hosts=hosts, **settings)
    try:
        require_equal_shares(given)
    except ConfigError as error:
        advised = re.search(r"use --batch-size (\d+)(?: --minibatches (\d+))?$", str(error))
        assert advised and f"{devices} training devices" in str(error), error
        size, parts = (None if number is None else int(number) for number in advised.groups())
        more = {"batch_size": size} | ({} if parts is None else {"minibatches": parts})
        given = run(**{"hosts": hosts, **settings, **more})
        require_equal_shares(given)
    # Counted by hand: every device has as many unrolls, and as many rows of each minibatch.
    batch, parts = given.settings.batch_size, getattr(given.settings, "parts", 1)
    whole = settings.get("shuffle") == "unrolls" or "lstm" in settings or parts == 1
    rows = batch if whole else batch * given.settings.unroll_length
    assert batch % devices == 0 and rows % (parts * devices) == 0


def test_it_is_said_before_anything_is_started(tmp_path: Any) -> None:
    with pytest.raises(
        ConfigError, match=r"32 unrolls .* 3 training devices \(1 on each of 3 hosts\): use --batch"
    ):
        train(run(hosts=3, run_dir=str(tmp_path / "run")))
    assert not (tmp_path / "run").exists()
