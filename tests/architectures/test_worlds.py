"""Whole runs in worlds of every kind: what their observations and actions look like reaches the learner."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from harness import Command, balanced, flags, shortened, summary, tiny

import seedbed

WORLDS: dict[str, tuple[str, dict[str, Any]]] = {
    "vizdoom by envpool": ("envpool:Basic-v1", {"network": "small"}),
    "vizdoom by envpool, sebulba": ("envpool:Basic-v1", {"network": "small", "arch": "sebulba"}),
    "football": ("envpool:gfootball/academy_empty_goal_close-v1", {"network": "small"}),
    "vizdoom": ("vizdoom.gymnasium_wrapper:VizdoomBasic-v1", {"network": "small"}),
    "ale, sebulba": (
        "ALE/Pong-v5",
        {"network": "small", "arch": "sebulba", "agent": "ppo"},
    ),
    # Continuous actions, in one program; as many actors as there are by default stands for none.
    "brax": ("brax:inverted_pendulum", {"arch": "anakin", "agent": "ppo"}),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", shortened(WORLDS, ("vizdoom", "ale, sebulba")))
def test_a_run_trains_in_every_kind_of_world(name: str, tmp_path: Path) -> None:
    env, settings = WORLDS[name]
    package = env.partition(":")[0].partition(".")[0]
    if package in ("envpool", "vizdoom"):
        # There is none for some machines, and some have not the system's libraries; else `make test` installs it.
        pytest.importorskip(package, exc_type=ImportError)
    frames_a_step = 4 if env in ("envpool:Basic-v1", "ALE/Pong-v5") else 1
    settings = {"hidden": (), "frames": 240 * frames_a_step, **settings}
    # In a process of its own: a game that crashes takes no other test with it. VizDoom leaves a file where it starts.
    with Command(*flags(env, "run", **settings), cwd=tmp_path) as command:
        assert command.wait() == 0, command.output
    first = summary(tmp_path / "run")
    assert first["stopped_because"] == f"{240 * frames_a_step} frames spent"
    assert balanced(first) and first["weights_version"] >= 3 and first["skipped_updates"] == 0


@pytest.mark.slow
def test_a_run_of_nested_spaces_goes_on_and_is_evaluated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = str(Path(__file__).parent)
    monkeypatch.syspath_prepend(here)
    monkeypatch.setenv("PYTHONPATH", here, prepend=os.pathsep)  # for the actors
    folder = tmp_path / "run"
    first = seedbed.train(tiny("nested_world:Nested", folder, frames=240, hidden=())).to_json()
    assert balanced(first) and first["weights_version"] >= 3 and first["skipped_updates"] == 0
    again = seedbed.resume(str(folder), frames=400).to_json()
    assert balanced(again) and again["weights_version"] > first["weights_version"]
    assert again["params_sha256"] != first["params_sha256"]
    assert seedbed.evaluate(folder, episodes=1).count == 1
