"""Data sets of what a trained agent does."""

from __future__ import annotations

import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from harness import MUZERO
from untrained import untrained

import seedbed
from seedbed.agents.bc import BCSettings, make_agent
from seedbed.envs.make import spec_of
from seedbed.errors import ConfigError, DatasetError
from seedbed.evaluation.collect import collect, collect_for_minari
from seedbed.evaluation.player import Player
from seedbed.nets.network import Network


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("collect") / "run"
    options = {"env_options": ("cell_pixels=2",), "until_return": None, "hidden": (8,)}
    seedbed.train(seedbed.configure("toy:catch", run_dir=str(folder), video=False, frames=3_000, **options))
    return folder


def test_a_data_set_says_what_it_is_and_counts_its_episodes(trained: Path) -> None:
    dataset = collect(trained, frames=1_000)
    about = dataset.about
    assert dataset.path == trained / "dataset"
    # 16 environments: 63 transitions each, in 7 episodes of 9. The six that lead from one into the next are none: they
    # only reset, and were counted before.
    assert (dataset.streams, dataset.length) == (16, 63 + 6 + 1)
    assert (about["frames"], about["transitions"], about["episodes"]) == (1008, 1008, 16 * 7)
    assert about["env_options"] == {"cell_pixels": 2}
    assert (about["agent"], about["run"], about["greedy"], about["seed"]) == (
        "vtrace",
        str(trained),
        False,
        0,
    )
    dataset.require(spec_of("toy:catch", {"cell_pixels": 2}))
    with pytest.raises(DatasetError, match="its observation is"):
        dataset.require(spec_of("toy:catch"))
    unroll = dataset.unroll([(stream, 0) for stream in range(16)], 69, {})
    assert unroll.timestep.observation.dtype == np.uint8
    assert unroll.timestep.observation.shape == (70, 16, 20, 10, 1)
    assert about["mean_return"] == pytest.approx(float(unroll.timestep.reward.sum()) / 112)
    assert (unroll.version == about["version"]).all() and about["version"] > 0


def test_what_is_in_it_is_what_the_policy_did_and_saw(trained: Path, tmp_path: Path) -> None:
    dataset = collect(trained, frames=320, out=tmp_path / "data", seed=3)
    unroll = dataset.unroll([(stream, 0) for stream in range(16)], 20, {})
    player = Player(trained)
    environment = player.make(16)
    played = player.play(environment, 3)
    for t in range(20):
        timestep, output = next(played)
        assert (unroll.timestep.observation[t] == timestep.observation).all()
        assert (unroll.timestep.first[t] == timestep.first).all()
        assert (unroll.action[t] == np.asarray(output.action)).all()
        assert (unroll.record["policy"][t] == np.asarray(output.record["policy"])).all()
    environment.close()


def test_the_same_seed_collects_the_same_and_another_something_else(trained: Path, tmp_path: Path) -> None:
    def content(name: str, seed: int) -> bytes:
        collect(trained, frames=100, out=tmp_path / name, seed=seed)
        return (tmp_path / name / "steps-000000.safetensors").read_bytes()

    assert content("one", 1) == content("again", 1) != content("other", 2)


def test_the_agent_that_clones_can_be_trained_on_it(trained: Path, tmp_path: Path) -> None:
    dataset = collect(trained, frames=1_000, out=tmp_path / "data")
    agent = make_agent(BCSettings(unroll_length=5, batch_size=8), dataset.spec, Network(hidden=(8,)))
    unroll = next(dataset.shard(1, 3).batches(agent.data, agent.initial_state, seed=0))
    params = agent.init(jax.random.key(0))
    loss, (metrics, _) = agent.loss(params, params, unroll, jax.random.key(0))
    assert float(loss) > 0 and float(metrics["kl"]) >= 0


def test_a_greedy_one_keeps_no_policy(trained: Path, tmp_path: Path) -> None:
    dataset = collect(trained, frames=100, out=tmp_path / "data", greedy=True)
    assert dataset.unroll([(0, 0)], 5, {}).record == {}
    assert dataset.about["greedy"] is True


def test_what_a_search_has_found_is_no_policy_to_be_cloned(tmp_path: Path) -> None:
    dataset = collect(untrained("toy:catch", tmp_path / "run", **MUZERO), frames=20, out=tmp_path / "data")
    assert dataset.unroll([(0, 0)], 5, {}).record == {}


def test_what_cannot_be_collected_is_refused_before_anything_is_played(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Player, "make", lambda *_: pytest.fail("an environment was made"))
    with pytest.raises(ConfigError, match="0 frames: give at least 1"):
        collect(trained, frames=0)
    with pytest.raises(ConfigError, match="not a run folder"):
        collect(tmp_path, frames=10)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "dataset.json").write_text("{}")
    with pytest.raises(DatasetError, match="holds a data set already"):
        collect(trained, frames=10, out=tmp_path / "data")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("a name", "'a name' is no name of a Minari data set"),
        (
            "cartpole/expert",
            "'cartpole/expert' is no name of a Minari data set: give NAME-vN or GROUP/NAME-vN",
        ),
        ("c/expert-v0", "two or more in GROUP"),
        ("../expert-v0", "is no name"),
        ("catch/expert-v0", "catch/expert-v0 exists already .* minari delete catch/expert-v0"),
    ],
)
def test_a_name_that_minari_cannot_take_is_refused_before_anything_is_played(
    name: str, said: str, trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("minari", reason="the extra minari is not installed")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    (tmp_path / "catch" / "expert-v0" / "data").mkdir(parents=True)
    monkeypatch.setattr(Player, "make", lambda *_: pytest.fail("an environment was made"))
    with pytest.raises(DatasetError, match=said):
        collect_for_minari(trained, name=name, frames=10)


def test_without_minari_nothing_is_played(trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "minari", None)
    monkeypatch.setattr(Player, "make", lambda *_: pytest.fail("an environment was made"))
    with pytest.raises(ConfigError, match="data sets of Minari need minari"):
        collect_for_minari(trained, name="catch/expert-v0", frames=10)
