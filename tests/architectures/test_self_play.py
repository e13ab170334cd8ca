"""Runs in which the policy plays against frozen versions of itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness import Command, alive, balanced, flags, learned, rows, servers, summary, thorough, until
from small_runs import params, run

import seedbed
from seedbed.errors import CheckpointError, ConfigError
from seedbed.evaluation.crossplay import crossplay
from seedbed.launch.train import resume
from seedbed.learning.checkpoint import Checkpoint, load_latest
from seedbed.metrics.reports import Summary

ROWS, STEPS = 8, 6
PLACED = {"arch": "seed", "transport": "inproc", "actors": 1, "envs_per_actor": ROWS, "lag": 0}
POOL = {"opponents": 2, "opponents_every": 2, "opponents_share": 0.5}
NIM = "pettingzoo:parallel_worlds:Nim"
RAPID = {"arch": "rapid", "actors": 2, "envs_per_actor": 4}


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


@pytest.mark.parametrize("placed", [{"deterministic": True}, RAPID], ids=["seed", "rapid"])
def test_opponents_decisions_are_booked_apart_and_never_trained_on(
    placed: dict[str, Any], tmp_path: Path
) -> None:
    summary = of(tmp_path / "run", **{**POOL, "opponents_share": 1.0}, **placed)
    # Each game has one side of each.
    assert summary.agent_steps == summary.more["steps_opponents"] > 0
    assert summary.more["steps_received"] == summary.more["steps_trained"]
    assert summary.more["opponents"] == 2
    versions = [name for name in summary.more if name.startswith("elo/")]
    assert len(versions) == 2 and summary.more["elo"] > 0
    assert summary.episodes > 0 and -1 <= summary.mean_return <= 1


def ratings(told: Summary) -> dict[str, float]:
    """The numbers of the pool in a summary."""
    return {name: value for name, value in told.more.items() if "elo" in name or "opponent" in name}


@pytest.mark.parametrize(
    "learns",
    [
        {"opponents_by": "pfsp"},
        *thorough({"opponents_by": "recent", "batch_size": 4}),
    ],
)
def test_forward_pass_servers_play_and_count_as_central_inference_does(
    learns: dict[str, Any], tmp_path: Path
) -> None:
    settings = {**POOL, **RAPID, **learns, "frames": 400, "lstm": 8}
    runs = {
        name: of(tmp_path / name, **{**settings, **placed})
        for name, placed in {"seed": {"arch": "seed"}, "one": {}, "two": {"forward_servers": 2}}.items()
    }
    seed, theirs = runs["seed"], params(tmp_path / "seed")
    assert seed.more["opponent_score"] > 0 and seed.more["steps_opponents"] > 50 and seed.episodes > 10
    for name in ("one", "two"):
        told = runs[name]
        assert ratings(told) == pytest.approx(ratings(seed))
        assert (told.agent_steps, told.episodes) == (seed.agent_steps, seed.episodes)
        assert (told.weights_version, told.mean_return) == (seed.weights_version, seed.mean_return)
        for leaf, array in params(tmp_path / name).items():
            np.testing.assert_allclose(array, theirs[leaf], rtol=1e-4, atol=1e-5, err_msg=f"{name} {leaf}")


def pool_in(folder: Path) -> dict[int, tuple[float, int]]:
    """Rating and number of games of each version in the newest checkpoint."""
    table = load_latest(folder / "checkpoints").meta["beside"]["table"]
    return {version: (rating, games) for version, rating, _, games in table}


def test_servers_get_the_pool_of_a_checkpoint_and_what_cannot_be_read_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    settings = {**RAPID, **POOL, "opponents": 3, "lag": "free", "forward_servers": 2}
    of(folder, **settings, frames=500)
    kept = pool_in(folder)
    assert len(kept) == 3
    # From here on no version is frozen any more.
    settings = {"opponents_every": 10**6, "opponents_share": 1.0}
    again = resume(folder, frames=1000, **settings)
    assert balanced(again.to_json())
    now = pool_in(folder)
    assert now.keys() == kept.keys() and again.more["opponents"] == 3
    assert all(games > kept[version][1] for version, (_, games) in now.items()), (kept, now)
    assert seedbed.evaluate(folder, episodes=3).count >= 3
    assert crossplay([folder], games=8).players == (*map(str, kept), f"final {again.weights_version}")

    gone, tree = sorted(kept)[1], Checkpoint.tree

    def damaged(self: Checkpoint, name: str, like: Any) -> Any:
        if name == f"opponent_{gone}":
            raise CheckpointError("a leaf is missing")
        return tree(self, name, like)

    monkeypatch.setattr(Checkpoint, "tree", damaged)
    capsys.readouterr()
    resume(folder, frames=1300, **settings)
    assert f"version {gone} is no opponent any more" in "".join(capsys.readouterr())
    last = pool_in(folder)
    assert last.keys() == kept.keys() - {gone}
    assert all(games > now[version][1] for version, (_, games) in last.items())


@pytest.mark.slow
def test_a_server_that_is_killed_gets_the_pool_anew(tmp_path: Path) -> None:
    settings = {**RAPID, **POOL, "agent": "ppo", "lag": "free", "forward_servers": 2, "opponents": 4}
    words = flags(NIM, "run", **settings, frames=10**9, unroll_length=STEPS, hidden=16, preset="none")
    folder = tmp_path / "run"

    def games_go_on() -> None:
        learned(folder)
        last = rows(folder)[-1]
        until(
            lambda: rows(folder)[-1]["steps_opponents"] > last["steps_opponents"] + 300, "games to be played"
        )

    with Command(*words, cwd=tmp_path) as command:
        games_go_on()
        killed = servers(command)[0]
        killed.kill()
        until(lambda: "killed by signal 9; restart 1 of 3" in command.output, "the server to be replaced")
        log = folder / "logs/learner.log"
        until(lambda: log.read_text().count("joined") >= 3, "its worker to join again")
        games_go_on()
        command.interrupt()
        assert command.wait() == 0, command.output
        assert not [process for process in command.family() if alive(process)]
    left = summary(folder)
    assert left["actor_restarts"] >= 2 and balanced(left) and left["opponents"] == 4


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
        *thorough({"opponents_by": "recent"}, {**DQN, "replay_ratio": 1.0}),
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
        ({**RAPID, "lag": 1}, "opponents need 0 or free"),
        ({**RAPID, "env": "toy:catch"}, "self-play is for games of two"),
        ({"opponents_share": 1.5}, "has to be a share"),
    ],
)
def test_refusals(settings: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=said):
        of(tmp_path / "run", **{**POOL, **settings})
