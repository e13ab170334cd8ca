"""The page of scores is what its rows and the published figures say; the policies that come along play."""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import seedbed
from seedbed.evaluation.playable import LEFT_OUT
from seedbed.launch.folder import RunFolder
from seedbed.types import leaves, rebuild

ROOT = Path(__file__).parents[2]
ZOO = sorted(path.name for path in (ROOT / "zoo").iterdir() if path.is_dir())


@pytest.fixture(scope="module")
def script() -> Iterator[Any]:
    """The tool."""
    with pytest.MonkeyPatch.context() as patched:
        patched.syspath_prepend(str(ROOT / "tools"))
        yield importlib.import_module("scores_page")


def a_run(**more: Any) -> dict[str, Any]:
    """A run of a row."""
    return {"seed": 0, "env_frames": 1000, "seconds": 90.0, "mean_return": 7.0, **more}


def a_row(*means: float) -> dict[str, Any]:
    """A row of runs that play so well."""
    return {"name": "x", "command": "seedbed train X", "runs": [a_run(eval={"mean": mean}) for mean in means]}


SCORE = {
    "task": "X",
    "by": "PPO",
    "row": "x",
    "measure": "return",
    "goal": 100,
    "published": "123 ± 4",
    "source": "somebody",
}


def test_the_page_is_what_the_rows_say(script: Any) -> None:
    page = (ROOT / "docs" / "scores.md").read_text()
    assert page == script.page(), "run .venv/bin/python tools/scores_page.py"
    for score in script.scores():
        assert score["task"] in page and score["published"] in page


def test_a_mean_has_the_interval_of_students_t(script: Any) -> None:
    # Three values: t is 4.303, their deviation 10, its error 5.774.
    low, high = script.interval([90.0, 100.0, 110.0])
    assert (low, high) == pytest.approx((100 - 24.84, 100 + 24.84), abs=0.01)
    assert script.interval([3.0]) is None
    assert script.several([90.0, 100.0, 110.0]) == "100 (75.2 to 125; 90.0, 100, 110)"


def test_a_loss_is_shown_as_one(script: Any) -> None:
    lost, won = (script.line(SCORE, a_row(*means)) for means in ((90.0, 99.0), (110.0, 99.0)))
    assert "**no** (at least 100)" in lost and "| yes (at least 100)" in won
    assert "123 ± 4 (somebody)" in lost and "| 1,000 | 1.5 | `seedbed train X` |" in lost
    assert "| 110 (one seed) |" in script.line(SCORE, a_row(110.0))
    row = a_row(110.0)
    row["runs"][0]["eval"]["greedy"] = True
    assert "| 110 (one seed), greedy |" in script.line(SCORE, row)


def test_a_seed_that_does_not_come_to_the_goal_loses_all_of_them(script: Any) -> None:
    score = SCORE | {"measure": "steps", "goal": 3000}
    runs = [
        a_run(agent_steps=steps, stopped_because="mean return 475 reached 475") for steps in (900, 2000, 4000)
    ]
    assert script.ours(score, {"runs": runs}) == ("", "2,000 steps (900 to 4,000), 3 of 3 seeds", True)
    fell = a_run(agent_steps=9000, stopped_because="9000 frames spent")
    assert script.ours(score, {"runs": [*runs, fell]})[1:] == (
        "2,000 steps (900 to 4,000), 3 of 4 seeds",
        False,
    )
    assert script.ours(score, {"runs": [fell]})[1:] == ("none of 1 seeds", False)


def test_a_score_without_a_row_says_why(script: Any) -> None:
    kept = script.rows()
    missing = [score for score in script.scores() if score["row"] not in kept]
    _, _, rest = script.page().partition("## Without a row")
    assert rest.count("\n* ") == len(missing)


@pytest.mark.parametrize("name", ZOO)
def test_a_policy_that_comes_along_acts(name: str) -> None:
    folder = ROOT / "zoo" / name
    assert sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) < 2_000_000
    assert RunFolder(folder).unknown_names() == set(), "it plays without --trust"
    policy = seedbed.load(folder)
    observation = rebuild(
        policy.observation_spec,
        [np.ones((3, *leaf.shape), leaf.dtype) for _, leaf in leaves(policy.observation_spec)],
    )
    action, _ = policy.act(observation)
    assert action.shape == (3, *policy.action_spec.shape) and policy.version > 0
    assert all(np.isfinite(array).all() for _, array in leaves(policy.params))


@pytest.mark.parametrize("name", ZOO)
def test_a_card_has_the_figures_of_its_row(name: str, script: Any) -> None:
    config = json.loads((ROOT / "zoo" / name / "config.json").read_text())
    row = script.rows()[name]
    (run,) = [run for run in row["runs"] if run["seed"] == config["seed"]]
    card = (ROOT / "zoo" / name / "README.md").read_text()
    assert script.number(run["mean_return"]) in card and f"`{run.get('commit', row['commit'])}`" in card
    changed = {
        key
        for key, value in row["settings"].items()
        if config.get(key) != value and key not in ("seed", "json", "video", *LEFT_OUT)
    }
    assert not changed, "it was trained with the settings of the row"
    assert config.get("run_dir") is None, "no path of a machine"
