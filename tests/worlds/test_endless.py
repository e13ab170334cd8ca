"""Episodes that have no end: playing ends by itself, and training says what it waits for."""

from __future__ import annotations

import json
from pathlib import Path

import imageio.v3 as imageio
import pytest
from harness import tiny

import seedbed
from seedbed.cli.main import main
from seedbed.errors import ConfigError
from seedbed.evaluation import player as playing
from seedbed.launch import recorder


@pytest.fixture(autouse=True)
def worlds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))


def trained(env: str, folder: Path) -> Path:
    seedbed.train(tiny(env, folder, transport="inproc", actors=1, frames=200))
    return folder


def test_episodes_without_an_end_are_cut_counted_and_named(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(playing, "_LINE_SECONDS", 0.0)
    run = trained("counted_worlds:endless", tmp_path / "run")
    found = seedbed.evaluate(run, episodes=20, max_steps=30)
    # A reward of 1 a step: cut after 30, each is worth 30, and none is left out.
    assert (found.count, found.cut, found.max_steps, found.mean) == (32, 32, 30, 30.0)
    capfd.readouterr()
    with pytest.raises(SystemExit) as stop:
        main(["eval", str(run), "--episodes", "4", "--max-steps", "10"])
    assert stop.value.code in (0, None)
    told = capfd.readouterr()
    assert (
        "4 episodes, 4 of them cut after 10 steps and counted with their return up to there: mean 10"
        in told.out
    )
    assert "playing: 0 of 4 episodes, 5 steps since all began" in told.err
    with pytest.raises(SystemExit):
        main(["eval", str(run), "--episodes", "4", "--max-steps", "10", "--json"])
    told = capfd.readouterr()
    value = json.loads(told.out)
    assert (value["count"], value["cut"], value["max_steps"]) == (4, 4, 10)
    with pytest.raises(ConfigError, match="0 steps: give at least 1"):
        seedbed.evaluate(run, max_steps=0)


def test_one_endless_environment_among_others_contributes_as_many_episodes(tmp_path: Path) -> None:
    import counted_worlds

    run = trained("counted_worlds:one_endless", tmp_path / "run")
    counted_worlds._OneEndless.made = 0
    found = seedbed.evaluate(run, episodes=12, max_steps=50)
    assert counted_worlds._OneEndless.made >= 12
    # One episode of each of 12 environments, of which one is cut.
    assert (found.count, found.cut) == (12, 1)
    assert found.mean == pytest.approx((11 * 4 + 50) / 12)
    counted_worlds._OneEndless.made = 0
    found = seedbed.evaluate(run, episodes=48, max_steps=50)
    # Three of each of 16: those of the endless one are cut, each after a reset of its own.
    assert (found.count, found.cut) == (48, 3)
    assert found.mean == pytest.approx((45 * 4 + 3 * 50) / 48)


def test_no_episode_is_cut_that_ends_at_the_last_step(tmp_path: Path) -> None:
    run = trained("toy:catch", tmp_path / "run")
    assert seedbed.evaluate(run, episodes=16, max_steps=9).cut == 0
    assert seedbed.evaluate(run, episodes=16, max_steps=8).cut == 16
    # Of an environment that owes several, each counts once.
    whole, exact = (seedbed.evaluate(run, episodes=48, max_steps=steps) for steps in (27_000, 9))
    assert (exact.cut, exact.count, exact.mean) == (0, whole.count, whole.mean)


def test_a_video_of_what_has_no_end_is_cut_and_says_so(tmp_path: Path) -> None:
    run = trained("counted_worlds:endless", tmp_path / "run")
    said: list[str] = []
    video = seedbed.record(run, max_steps=40, say=said.append)
    assert said == ["the episode had not ended after 40 steps: the video is cut there"]
    assert len(imageio.imread(video, plugin="pyav")) == 41


@pytest.mark.parametrize(("env", "says"), [("counted_worlds:endless", 1), ("toy:catch", 0)])
def test_training_says_once_that_no_episode_has_ended(
    env: str, says: int, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if says:
        monkeypatch.setattr(recorder, "_FIRST_EPISODE_SECONDS", 0.0)
    run = tmp_path / "run"
    seedbed.train(tiny(env, run, transport="inproc", actors=1, frames=3000))
    assert capfd.readouterr().out.count("no episode has ended yet") == says
    assert (run / "logs/learner.log").read_text().count("no episode has ended yet") == says
