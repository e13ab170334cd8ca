"""Playing with a trained agent."""

import os
from pathlib import Path

import imageio.v3 as imageio
import numpy as np
import pytest
from harness import PLACED, at_once, placed, tiny

import seedbed
from seedbed import regular_files
from seedbed.cli.ending import _video
from seedbed.errors import ConfigError, SeedbedError
from seedbed.evaluation import player
from seedbed.evaluation.player import evaluate, record


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("evaluate") / "run"
    # In lockstep: what it comes to does not depend on how busy the machine is.
    seedbed.train(seedbed.configure("toy:catch", run_dir=str(folder), video=False, frames=40_000, lag=0))
    return folder


def test_a_solved_task_evaluates_as_solved_with_equal_shares_of_every_environment(trained: Path) -> None:
    result = evaluate(trained, episodes=40, greedy=True)
    assert result.count == 48, "40 episodes over 16 environments are 3 each"
    assert result.mean > 0.8
    assert result.low <= result.interquartile_mean <= result.high


def test_the_same_seed_plays_the_same_episodes(trained: Path) -> None:
    assert evaluate(trained, episodes=16, seed=3) == evaluate(trained, episodes=16, seed=3)


def test_no_episodes_and_no_run_are_refused_in_one_line(trained: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="at least 1"):
        evaluate(trained, episodes=0)
    with pytest.raises(ConfigError, match="not a run folder"):
        evaluate(tmp_path)


@pytest.mark.parametrize("kind", PLACED)
def test_a_video_is_not_written_into_what_is_no_file(kind: str, trained: Path, tmp_path: Path) -> None:
    placed(kind, trained / "video.mp4")
    try:
        with pytest.raises(ConfigError, match=rf"cannot write the video .*video\.mp4: ({PLACED[kind]})"):
            at_once(lambda: record(trained))
    finally:
        regular_files.remove(trained / "video.mp4")
    (tmp_path / "pipe.mp4").symlink_to(tmp_path / "to")
    placed("pipe", tmp_path / "to")
    with pytest.raises(ConfigError, match=r"cannot write the video .*pipe\.mp4: it is a pipe"):
        at_once(lambda: record(trained, to=tmp_path / "pipe.mp4"))


def test_an_environment_that_cannot_be_drawn_is_a_clear_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("blind.py").write_text(
        "import gymnasium, numpy\n"
        "class World(gymnasium.Env):\n"
        "    observation_space = gymnasium.spaces.Box(-1, 1, (2,))\n"
        "    action_space = gymnasium.spaces.Discrete(2)\n"
        "    def reset(self, seed=None, options=None):\n"
        "        super().reset(seed=seed)\n"
        "        return numpy.zeros(2, numpy.float32), {}\n"
        "    def step(self, action):\n"
        "        return numpy.zeros(2, numpy.float32), 1.0, bool(action), False, {}\n"
    )
    seedbed.train(tiny("blind:World", Path("run"), frames=500, transport="inproc"))
    with pytest.raises(SeedbedError, match=r"blind:World"):
        record("run")
    _video("run")
    assert "no video: blind:World" in capsys.readouterr().out, "the end of a run goes on without one"
    assert not [*Path("run").glob("*.mp4")], "half a video"


def test_a_video_shows_the_whole_episode(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    seedbed.train(tiny("CartPole-v1", folder, frames=2_000, transport="inproc"))
    video = record(folder)
    frames = imageio.imread(video, plugin="pyav")
    assert frames.ndim == 4
    assert frames.shape[-1] == 3
    assert len(frames) >= 8, "no CartPole episode is shorter"
    assert np.ptp(frames) > 100, "something is drawn"
    assert imageio.immeta(video, plugin="pyav")["fps"] == 50, "as CartPole says"
    assert [*folder.glob("*.mp4")] == [video]


def test_a_video_shows_as_many_episodes_as_are_asked_for(trained: Path, tmp_path: Path) -> None:
    said: list[str] = []
    one, three = (record(trained, to=tmp_path / f"{n}.mp4", episodes=n, say=said.append) for n in (1, 3))
    # Catch lasts nine decisions: ten observations, the first and the last among them.
    assert [len(imageio.imread(video, plugin="pyav")) for video in (one, three)] == [10, 30]
    assert said == []
    record(trained, to=tmp_path / "cut.mp4", episodes=3, max_steps=14, say=said.append)
    assert said == ["episode 2 of 3 had not ended after 14 steps: the video is cut there"]
    for wrong in ({"episodes": 0}, {"max_steps": 0}):
        with pytest.raises(ConfigError, match=" is 0: a video needs one or more"):
            record(trained, **wrong)


@pytest.mark.parametrize("ending", [".mkv", ".mov", ".avi", ".MP4"])
def test_a_video_is_of_the_kind_that_its_name_says(ending: str, trained: Path, tmp_path: Path) -> None:
    video = record(trained, to=tmp_path / f"video{ending}")
    assert len(imageio.imread(video, plugin="pyav")) == 10


@pytest.mark.parametrize("name", ["video.gif", "video.webm", "video.png", "video"])
def test_a_name_that_is_no_videos_is_refused_before_anything_is_played(
    name: str, trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(player.Player, "make", lambda *_, **__: pytest.fail("it was played"))
    with pytest.raises(ConfigError, match=r"give a name that ends in \.mp4 or "):
        record(trained, to=tmp_path / name)


@pytest.mark.parametrize(
    ("given", "libraries", "set_to"),
    [
        ({}, {"EGL", "OSMesa"}, "egl"),
        ({}, {"OSMesa"}, "osmesa"),
        ({}, set(), "egl"),
        ({"DISPLAY": ":0"}, {"EGL"}, None),
        ({"WAYLAND_DISPLAY": "wayland-0"}, {"EGL"}, None),
        ({"MUJOCO_GL": "glfw"}, {"EGL"}, "glfw"),
    ],
)
def test_without_a_screen_mujoco_draws_into_memory(
    given: dict[str, str], libraries: set[str], set_to: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "MUJOCO_GL"):
        monkeypatch.delenv(name, raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(player.sys, "platform", "linux")
    monkeypatch.setattr(player, "find_library", lambda name: name if name in libraries else None)
    player.draw_without_a_screen()
    assert os.environ.get("MUJOCO_GL") == set_to
