"""Worlds that show numbers that are not finite: how many updates they cost is told."""

import sys
from pathlib import Path

import pytest
from harness import tiny

from seedbed.launch.train import train
from seedbed.metrics.reports import many_skipped

WORLD = """
import gymnasium
import numpy as np


class World(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (1,))
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {}

    def step(self, action):
        shown = np.nan if self.np_random.random() < 0.002 else 0.0
        return np.full(1, shown, np.float32), 1.0, bool(self.np_random.random() < 0.2), False, {}
"""


@pytest.mark.parametrize(
    ("skipped", "updates", "begins"),
    [
        (0, 0, None),
        (0, 100, None),
        (1, 100, None),
        (2, 100, "2 of 100 updates (2%) were skipped, since loss or gradient was not finite"),
        (1470, 3300, "1,470 of 3,300 updates (45%) were skipped"),
    ],
)
def test_more_than_one_update_in_a_hundred_that_is_skipped_is_told(
    skipped: int, updates: int, begins: str | None
) -> None:
    line = many_skipped(skipped, updates)
    assert (line is None) if begins is None else str(line).startswith(begins)


@pytest.mark.slow
def test_a_run_tells_it_on_the_console_and_in_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "nan_world.py").write_text(WORLD)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    train(
        tiny("nan_world:World", tmp_path / "run", transport="inproc", frames=8000, max_skipped_updates=10**6)
    )
    log = (tmp_path / "run" / "logs" / "learner.log").read_text()
    for told in (capsys.readouterr().out, log):
        assert told.count("were skipped, since loss or gradient was not finite") == 1
