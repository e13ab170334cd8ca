"""Steps are the decisions that environments carried out; a resumed run has one curve and seeds of its own."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness import balanced, checkpoints, rows, thorough, tiny
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from seedbed.config.settings import RunConfig
from seedbed.launch.train import resume, train
from seedbed.learning.checkpoint import load_latest
from seedbed.metrics.reports import read_curve

ONE_STEP = {"env_options": ("longest=1",)}
DQN = {"agent": "dqn", "head_size": 8, "replay_size": 4000, "replay_min_size": 40, "batch_size": 16}
INPROC = {"transport": "inproc"}
PLACED: dict[str, dict[str, Any]] = {
    "seed": INPROC,
    "impala": INPROC,
    "apex": {**INPROC, **DQN},
    "rapid": {**INPROC, "agent": "ppo", "lag": "free"},
    "a2c": {},
    "sebulba": {},
    "a3c": {"agent": "a2c", "batch_size": 4},
    "gorila": DQN,
    "anakin": {},
}


def settings_of(env: str, folder: Path, arch: str, **settings: Any) -> RunConfig:
    """A tiny run under an architecture."""
    return tiny(env, folder, **{"arch": arch, **PLACED[arch], **settings})


@pytest.mark.parametrize(
    "arch", ["apex", "sebulba", "anakin", *thorough("seed", "impala", "rapid", "a2c", "a3c", "gorila")]
)
def test_a_decision_that_only_resets_is_no_step(arch: str, tmp_path: Path) -> None:
    env, options = ("toy:count", ONE_STEP)
    if arch == "anakin":
        env, options = "gymnax:CartPole-v1", {"env_options": ("max_steps_in_episode=1",)}
    run = train(settings_of(env, tmp_path / "run", arch, frames=1200, **options)).to_json()
    assert run["agent_steps"] == run["steps_received"] - run["steps_resets"] == run["env_frames"] >= 1200
    assert balanced(run)
    # Every episode has one step, and is known once its unroll has come; every second decision resets.
    waiting = run["agent_steps"] - run["episodes"]
    assert 0 <= waiting <= 400, run["episodes"]
    assert abs(run["steps_resets"] - run["agent_steps"]) <= 8 + 8 * 5
    assert run["agent_steps"] <= 1200 + 400, "a run ends soon after its limit"
    last = rows(tmp_path / "run")[-1]
    assert last["agent_steps"] == last["steps_received"] - last["steps_resets"]


@pytest.mark.parametrize("arch", ["sebulba", *thorough("anakin", "a2c")])
def test_a_rate_is_annealed_over_the_steps_that_were_carried_out(arch: str, tmp_path: Path) -> None:
    env, options = ("toy:count", ONE_STEP)
    if arch == "anakin":
        env, options = "gymnax:CartPole-v1", {"env_options": ("max_steps_in_episode=1",)}
    settings = {"agent": "a2c", "anneal_to_zero": True, "frames": 40 * 20, **options}
    if arch == "sebulba":  # the others have no lag
        settings["lag"] = 0
    run = train(settings_of(env, tmp_path / "run", arch, **settings))
    kept = load_latest(tmp_path / "run/checkpoints")._load("train.safetensors")
    [count] = [leaf for name, leaf in kept.items() if name.endswith("1/count")]
    # Batches of 8 unrolls of 5: 800 steps are worth 20 whole batches, and half of each one is carried out.
    assert count == pytest.approx(20, abs=0.6)
    assert run.weights_version == pytest.approx(40, abs=1)


@pytest.mark.parametrize("arch", ["seed", *thorough("anakin")])
def test_an_exact_run_in_two_parts_is_the_whole_one(arch: str, tmp_path: Path) -> None:
    env, options = ("toy:count", {"env_options": ("longest=3",)})
    if arch == "anakin":
        env, options = "gymnax:CartPole-v1", {"env_options": ("max_steps_in_episode=3",)}
    settings = {**options, "deterministic": True}
    train(settings_of(env, tmp_path / "parts", arch, frames=430, **settings))
    again = resume(str(tmp_path / "parts"), frames=860).to_json()
    whole = train(settings_of(env, tmp_path / "whole", arch, frames=860, **settings)).to_json()
    for name in ("params_sha256", "weights_version", "agent_steps", "steps_resets", "episodes"):
        assert again[name] == whole[name], name


@pytest.fixture
def seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the seeds of environments are noted."""
    here = str(Path(__file__).parent)
    monkeypatch.syspath_prepend(here)
    monkeypatch.setenv("PYTHONPATH", here, prepend=os.pathsep)
    monkeypatch.setenv("WORLD_LOG", str(tmp_path / "seeds"))
    return tmp_path / "seeds"


def lost(folder: Path) -> None:
    """Removes the newest checkpoint, as if the run had been killed before it was written."""
    shutil.rmtree(checkpoints(folder)[-1])


@pytest.mark.parametrize(
    "arch", ["seed", *thorough("a3c", "rapid", "a2c", "impala", "apex", "sebulba", "gorila")]
)
def test_each_resumption_has_seeds_and_a_number_of_its_own_and_one_curve(
    arch: str, tmp_path: Path, seen: Path
) -> None:
    run = tmp_path / "run"
    train(settings_of("counted_worlds:seeds", run, arch, frames=600))
    for frames in (1200, 1300):
        resume(str(run), frames=frames)
        lost(run)
    resume(str(run), frames=1100)
    counts = Counter(seen.read_text().split())
    again = {seed for seed, count in counts.items() if count > 1}
    assert not again, f"{len(again)} of {len(counts)} seeds came again"
    told = rows(run)
    assert {row["session"] for row in told} == {0, 1, 2, 3}
    assert [row["session"] for row in told] == sorted(row["session"] for row in told)
    reader = EventAccumulator(str(run / "events"), size_guidance={"scalars": 0})
    reader.Reload()
    events = reader.Scalars("progress/updates")
    steps = [event.step for event in events]
    assert steps == sorted(set(steps)), "the curve goes back"
    # What the sessions had that were lost is in no curve: a session begins where its checkpoint stands.
    kept = read_curve(run / "metrics.jsonl").agent_steps
    assert set(kept) <= set(steps)
    begins = [next(row for row in told if row["session"] == number) for number in (1, 2, 3)]
    assert len({row["agent_steps"] for row in begins}) == 1, "all go on from the same checkpoint"
    assert not [step for step in steps if step > told[-1]["agent_steps"]]


def test_a_run_that_lost_its_only_checkpoint_begins_with_other_environments(
    tmp_path: Path, seen: Path
) -> None:
    run = tmp_path / "run"
    train(settings_of("counted_worlds:seeds", run, "seed", frames=200))
    lost(run)
    resume(str(run), frames=200)
    assert max(Counter(seen.read_text().split()).values()) == 1
    first = next(row for row in rows(run) if row["session"] == 1)
    assert first["agent_steps"] == 0
    assert np.all(np.diff(read_curve(run / "metrics.jsonl").agent_steps) > 0)


def test_an_exact_run_keeps_its_seeds(tmp_path: Path, seen: Path) -> None:
    run = tmp_path / "run"
    train(settings_of("counted_worlds:seeds", run, "seed", frames=200, deterministic=True))
    resume(str(run), frames=400)
    assert set(Counter(seen.read_text().split()).values()) == {2}


def test_the_number_of_a_session_is_kept_whatever_becomes_of_it(tmp_path: Path) -> None:
    run = tmp_path / "run"
    train(settings_of("toy:catch", run, "seed", frames=200))
    (run / "session").unlink()  # as in runs of 0.1
    resume(str(run), frames=300)
    assert (run / "session").read_text().split()[0] == "1"
    resume(str(run))  # nothing left to do
    assert (run / "session").read_text().split()[0] == "2"
