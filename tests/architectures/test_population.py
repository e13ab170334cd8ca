"""Several agents in one program: each is the agent of a run of its own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness import on_four_devices, rows, summary, thorough
from small_runs import AGENTS, ENVS, STEPS, frames_of, params, run

import seedbed
from seedbed.config.resolve import configure
from seedbed.errors import ConfigError, RunFailed
from seedbed.launch.train import resume, train
from seedbed.learning.checkpoint import load_latest

RATES = (1e-2, 3e-3)
SWEEP = ("learning_rate=1e-2,3e-3",)
MUZERO = {
    "agent": "muzero",
    "envs": ENVS,
    "simulations": 4,
    "unroll_steps": 2,
    "n_step": 2,
    "replay_size": 1000,
    "replay_min_size": 100,
}


def kept(folder: Path, variant: int) -> dict[str, np.ndarray[Any, Any]]:
    tree = load_latest(folder / "checkpoints")._load("members_train.safetensors")
    return {name: leaf[variant] for name, leaf in tree.items() if name.startswith("params")}


@pytest.mark.parametrize("name", ["vtrace lstm", *thorough("ppo until too far")])
def test_each_member_is_the_agent_of_a_run_of_its_own(name: str, tmp_path: Path) -> None:
    together = run(tmp_path / "together", **AGENTS[name], seeds=2, sweep=SWEEP).to_json()
    # Places in unrolls; how many of them only reset is another number for each, and the mean is told.
    assert together["steps_received"] == 6 * ENVS * STEPS, "counts are those of one agent"
    assert 0 < together["agent_steps"] < 6 * ENVS * STEPS
    assert len(together["variants"]) == 4
    for variant, (rate, seed) in enumerate((rate, seed) for rate in RATES for seed in (0, 1)):
        if variant in (1, 2):  # another seed, and another rate
            alone = run(tmp_path / f"{variant}", **{**AGENTS[name], "learning_rate": rate, "seed": seed})
            assert together["variants"][variant]["mean_return"] == pytest.approx(alone.mean_return)
            assert together["variants"][variant]["episodes"] == alone.episodes
            theirs = params(tmp_path / f"{variant}")
            ours = kept(tmp_path / "together", variant)
            assert ours.keys() == theirs.keys()
            for leaf, array in ours.items():
                np.testing.assert_allclose(array, theirs[leaf], rtol=1e-3, atol=1e-5, err_msg=leaf)


@pytest.mark.parametrize("rewards", [True, *thorough(False)])
def test_a_member_acts_with_its_own_values(rewards: bool, tmp_path: Path) -> None:
    """The running mean of returns, which acting keeps, and the search of MuZero read what is swept here."""
    if rewards:
        name, of_two, settings = "discount", (0.5, 0.99), AGENTS["ppo"]
    else:
        name, of_two, settings = "value_scale", (0.05, 0.9), MUZERO
    sweep = (f"{name}={of_two[0]},{of_two[1]}",)
    done = run(tmp_path / "together", **settings, sweep=sweep).to_json()
    for variant, value in enumerate(of_two):
        alone = run(tmp_path / f"{variant}", **{**settings, name: value})
        assert done["variants"][variant]["mean_return"] == pytest.approx(alone.mean_return)
        ours = kept(tmp_path / "together", variant)
        for leaf, array in params(tmp_path / f"{variant}").items():
            np.testing.assert_allclose(ours[leaf], array, rtol=1e-3, atol=1e-4, err_msg=leaf)


def test_a_round_changes_how_much_is_explored_at_once(tmp_path: Path) -> None:
    settings = {**AGENTS["pqn"], "deterministic": True, "pbt_frames": 4 * ENVS * STEPS}
    sweep = ("epsilon_base=0.9,0.3,0.1",)
    done = run(tmp_path / "run", 4, **settings, sweep=sweep).to_json()
    assert rows(tmp_path / "run")[-1]["pbt_replaced"] == 1
    bases = [np.float32(each["values"]["epsilon_base"]) for each in done["variants"]]
    assert sorted(bases) != sorted(map(np.float32, (0.9, 0.3, 0.1)))
    acting = load_latest(tmp_path / "run/checkpoints")._load("members_acting.safetensors")
    (epsilons,) = (leaf for name, leaf in acting.items() if name.endswith("epsilon"))
    np.testing.assert_allclose(epsilons[:, 0], bases, rtol=1e-6)  # the first one has the rank 0


@pytest.mark.draws
def test_the_best_one_is_what_is_played_and_all_are_compared(tmp_path: Path) -> None:
    done = run(tmp_path / "run", 20, agent="ppo", seeds=3, sweep=SWEEP).to_json()
    means = [variant["mean_return"] for variant in done["variants"]]
    best = done["best_variant"]
    assert means[best] == max(means)
    assert done["mean_return"] == pytest.approx(np.mean(means))
    swept = load_latest(tmp_path / "run/checkpoints").meta["best_values"]
    assert swept == {"learning_rate": pytest.approx(0.01 if best < 3 else 0.003)}
    assert [variant["agent"] for variant in done["variants"]][3] == "learning_rate 0.003, seed 0"
    assert list(done["compared"]) == ["learning_rate 0.01", "learning_rate 0.003"]
    assert done["compared"]["learning_rate 0.01"]["mean"] == pytest.approx(np.mean(means[:3]))
    ours, played = kept(tmp_path / "run", best), params(tmp_path / "run")
    for leaf, array in ours.items():
        np.testing.assert_array_equal(array, played[leaf], err_msg=leaf)
    assert seedbed.evaluate(tmp_path / "run", episodes=2).count == 2
    for variant, mean in enumerate(means):
        last = json.loads((tmp_path / f"run/variants/{variant}/metrics.jsonl").read_text().splitlines()[-1])
        assert last["mean_return"] == mean
        assert last["agent_steps"] == done["agent_steps"] >= frames_of(20)
    assert (tmp_path / "run/curve.png").stat().st_size > 10_000


def test_a_population_in_two_parts_is_the_whole(tmp_path: Path) -> None:
    settings = {"agent": "ppo", "seeds": 2, "sweep": SWEEP, "deterministic": True}
    whole = run(tmp_path / "whole", 8, **settings)
    run(tmp_path / "parts", 5, **settings)
    again = resume(str(tmp_path / "parts"), frames=frames_of(8))
    assert again.params_sha256 == whole.params_sha256
    for variant in range(4):
        for leaf, array in kept(tmp_path / "whole", variant).items():
            np.testing.assert_array_equal(array, kept(tmp_path / "parts", variant)[leaf], err_msg=leaf)
    told, meant = (each.to_json()["variants"] for each in (again, whole))
    for variant in (*told, *meant):
        del variant["best_mean_return"]
    assert told == meant
    with pytest.raises(ConfigError, match="number of agents was 4 and is 6 now"):
        resume(str(tmp_path / "parts"), frames=100 * ENVS * STEPS, seeds=3)
    with pytest.raises(ConfigError, match="the agents was"):
        resume(str(tmp_path / "parts"), frames=100 * ENVS * STEPS, seed=5)


def test_one_that_breaks_does_not_stop_the_others(tmp_path: Path) -> None:
    sweep = ("learning_rate=1e-2,1e38",)
    done = run(tmp_path / "run", 30, gradient_clip=0.0, max_skipped_updates=3, sweep=sweep).to_json()
    fine, broken = done["variants"]
    assert fine["skipped_updates"] == 0
    assert broken["skipped_updates"] > 3
    assert broken["episodes"] > 0, "it goes on acting with the last weights that were finite"
    assert np.isfinite(rows(tmp_path / "run")[-1]["loss/total"])
    with pytest.raises(RunFailed, match=r"updates in a row .* not finite"):
        run(
            tmp_path / "all",
            100,
            gradient_clip=0.0,
            max_skipped_updates=3,
            sweep=("learning_rate=1e38,2e38",),
        )


SIX = {
    "agent": "ppo",
    "seeds": 2,
    "sweep": ("learning_rate=1e-2,3e-3,1e-3",),
    "deterministic": True,
    "pbt_frames": 4 * ENVS * STEPS,
}


def test_in_a_round_the_worst_takes_over_the_best_ones_parameters(tmp_path: Path) -> None:
    before = run(tmp_path / "before", 4, **{**SIX, "pbt_frames": None}).to_json()
    after = run(tmp_path / "after", 4, **SIX).to_json()
    scores = [each["mean_return"] for each in before["variants"]]
    assert [each["mean_return"] for each in after["variants"]] == scores, (
        "the round comes after the last batch"
    )
    best, worst = scores.index(max(scores)), scores.index(min(scores))
    rates = [np.float32(rate) for rate in (1e-2, 3e-3, 1e-3) for _ in range(2)]
    for index, each in enumerate(after["variants"]):
        source = best if index == worst else index
        for leaf, array in kept(tmp_path / "before", source).items():
            np.testing.assert_array_equal(array, kept(tmp_path / "after", index)[leaf], err_msg=leaf)
        factors = (0.8, 1.2) if index == worst else (1.0,)
        rate = each["values"]["learning_rate"]
        assert any(rate == pytest.approx(rates[source] * factor) for factor in factors)
        assert each["agent"].startswith("begun with learning_rate")
    row = rows(tmp_path / "after")[-1]
    assert (row["pbt_rounds"], row["pbt_replaced"]) == (1, 1)
    assert "values" not in before["variants"][0] and "pbt_rounds" not in rows(tmp_path / "before")[-1]
    trees = [
        load_latest(tmp_path / name / "checkpoints")._load("members_train.safetensors")
        for name in ("before", "after")
    ]
    np.testing.assert_array_equal(trees[0]["key"], trees[1]["key"], err_msg="each has a key of its own")


def test_rounds_are_after_the_same_batches_in_other_calls_and_in_two_parts(tmp_path: Path) -> None:
    whole = run(tmp_path / "whole", 10, **SIX).to_json()
    again = {"calls": run(tmp_path / "calls", 10, **SIX, batches_per_call=3).to_json()}
    run(tmp_path / "parts", 5, **SIX)
    again["parts"] = resume(str(tmp_path / "parts"), frames=frames_of(10)).to_json()
    for name, other in again.items():
        assert rows(tmp_path / name)[-1]["pbt_rounds"] == rows(tmp_path / "whole")[-1]["pbt_rounds"] == 2
        assert [one["values"] for one in other["variants"]] == [one["values"] for one in whole["variants"]]
        for variant in range(6):
            for leaf, array in kept(tmp_path / "whole", variant).items():
                np.testing.assert_array_equal(array, kept(tmp_path / name, variant)[leaf], err_msg=leaf)


@pytest.mark.thorough
def test_it_ends_when_the_mean_over_all_is_reached(tmp_path: Path) -> None:
    done = run(tmp_path / "run", 1000, until_return=8.0, seeds=3)
    assert done.stopped_because.startswith("mean return")
    assert summary(tmp_path / "run")["agent_steps"] < 1000 * ENVS * STEPS


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"sweep": ("gradient_clip=0.5,1",)}, "gradient_clip decides what vtrace computes"),
        ({"sweep": ("learning_rate=1e-3,2e-3", "kl_cost=0.1,0.2")}, "kl_cost decides what vtrace computes"),
        ({"arch": "seed", "seeds": 2}, "seeds is a setting of anakin, and"),
        ({"arch": "a2c", "sweep": SWEEP}, "sweep is a setting of anakin, and"),
        ({"seeds": 0}, "seeds is 0, and has to be 1 or more"),
        ({"pbt_frames": 0, "sweep": SWEEP}, "pbt_frames is 0, and has to be 1 or more"),
        ({"pbt_frames": 100, "seeds": 4}, "nothing that differs between agents: give --sweep"),
        ({"pbt_frames": 100, "sweep": ("learning_rate=1e-3",)}, "population-based training of one agent"),
        ({"arch": "seed", "pbt_frames": 100}, "pbt_frames is a setting of anakin, and"),
    ],
)
def test_what_does_not_fit_is_refused(settings: dict[str, Any], says: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=says):
        train(
            configure(
                "gymnax:CartPole-v1",
                **{"arch": "anakin", "preset": "none", "run_dir": str(tmp_path / "run"), **settings},
            )
        )
    assert not (tmp_path / "run").exists()


PROGRAM = """
import json, sys
from pathlib import Path
import jax
from small_runs import run

assert len(jax.devices()) == 4
for name, devices in (("one", (0,)), ("four", (0, 1, 2, 3))):
    done = run(
        Path(sys.argv[1]) / name, agent="ppo", reuse=2, minibatches=2, seeds=3, training_devices=devices
    ).to_json()
    print("told", json.dumps([[each["mean_return"], each["episodes"]] for each in done["variants"]]))
"""


@pytest.mark.thorough
def test_agents_and_environments_over_several_devices(tmp_path: Path) -> None:
    one, four = on_four_devices(PROGRAM, str(tmp_path))
    assert one == four
    assert len(one) == 3
