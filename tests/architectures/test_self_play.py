"""Runs in which the policy plays against frozen versions of itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_runs import params, run

from seedbed.errors import ConfigError
from seedbed.launch.train import resume

ROWS, STEPS = 8, 6
PLACED = {"arch": "seed", "transport": "inproc", "actors": 1, "envs_per_actor": ROWS, "lag": 0}
POOL = {"opponents": 2, "opponents_every": 2, "opponents_share": 0.5}
NIM = "pettingzoo:parallel_worlds:Nim"


def of(folder: Path, **settings: Any) -> Any:
    return run(folder, **{"env": NIM, "unroll_length": STEPS, "frames": 300, **PLACED, **settings})


def test_a_pool_that_never_plays_changes_nothing(tmp_path: Path) -> None:
    alone = of(tmp_path / "alone")
    never = of(tmp_path / "never", **{**POOL, "opponents_share": 0.0})
    assert never.agent_steps == alone.agent_steps and never.weights_version == alone.weights_version > 2
    ours, theirs = params(tmp_path / "alone"), params(tmp_path / "never")
    assert {name: array.tolist() for name, array in ours.items()} == {
        name: array.tolist() for name, array in theirs.items()
    }
    # Of games against itself alone nothing is to be told.
    assert alone.episodes > 0 and never.episodes == 0


def test_opponents_decisions_are_booked_apart_and_never_trained_on(tmp_path: Path) -> None:
    summary = of(tmp_path / "run", **{**POOL, "opponents_share": 1.0}, deterministic=True)
    # Each game has one side of each.
    assert summary.agent_steps == summary.more["steps_opponents"] > 0
    assert summary.more["steps_received"] == summary.more["steps_trained"]
    assert summary.more["opponents"] == 2
    versions = [name for name in summary.more if name.startswith("elo/")]
    assert len(versions) == 2 and summary.more["elo"] > 0
    assert summary.episodes > 0 and -1 <= summary.mean_return <= 1


# Items of three steps, so that unrolls overlap by two, and opponents' steps are in two unrolls.
DQN = {
    "agent": "dqn",
    "n_step": 3,
    "head_size": 8,
    "replay_min_size": 96,
    "replay_size": 2000,
    "target_period": 5,
}


@pytest.mark.parametrize(
    "agent",
    [
        {"opponents_by": "pfsp"},
        pytest.param({"opponents_by": "recent"}, marks=pytest.mark.slow),
        pytest.param({**DQN, "replay_ratio": 1.0}, marks=pytest.mark.slow),
    ],
    ids=["pfsp", "recent", "dqn"],
)
def test_a_run_goes_on_with_its_pool_bit_for_bit(agent: dict[str, Any], tmp_path: Path) -> None:
    settings = {**POOL, **agent, "deterministic": True}
    whole = of(tmp_path / "whole", frames=400, **settings)
    of(tmp_path / "parts", frames=200, **settings)
    parts = resume(tmp_path / "parts", frames=400)
    assert parts.weights_version == whole.weights_version > 5
    assert whole.more["steps_opponents"] > 0
    # There is no score while none of the versions in the pool has ended a game.
    for name in ("elo", "opponents", "steps_opponents", "opponent_score"):
        assert parts.more.get(name) == whole.more.get(name), name
    ours, theirs = params(tmp_path / "whole"), params(tmp_path / "parts")
    for name, array in ours.items():
        np.testing.assert_array_equal(array, theirs[name], err_msg=name)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (
            {"env": "pettingzoo:parallel_worlds:Scripted", "envs_per_actor": 12, "batch_size": 12},
            "self-play is for games of two",
        ),
        ({"env": "toy:catch"}, "self-play is for games of two"),
        ({"lag": 1}, "opponents need 0 or free"),
        ({"opponents_share": 1.5}, "has to be a share"),
    ],
)
def test_refusals(settings: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=said):
        of(tmp_path / "run", **{**POOL, **settings})
