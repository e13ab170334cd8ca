"""Data sets of Minari, out and in again: what is learned from is the same, number for number."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from untrained import untrained

from seedbed.architectures.distbelief import open_dataset
from seedbed.cli.collect import run as collect
from seedbed.config.resolve import configure
from seedbed.envs.spaces import observation_codec
from seedbed.errors import ConfigError, DatasetError
from seedbed.replay import exchange
from seedbed.replay.dataset import Dataset, Decided, write
from seedbed.replay.exchange import located, write_episodes
from seedbed.types import ArraySpec, EnvSpec, TimeStep, leaves, rebuild

minari = pytest.importorskip("minari", reason="the extra minari is not installed")
SPEC = EnvSpec(
    "world",
    {
        "image": ArraySpec((9, 8, 3), "uint8"),
        "speed": ArraySpec((2,), "float32", low=(-1.0,), high=(2.0,)),
        "choice": ArraySpec((), "int32", (4,)),
    },
    ArraySpec((), "int32", (3,)),
)
FIRST = [[1, 0, 0, 1, 0, 0], [1, 0, 1, 0, 1, 0]]
TERMINATED = [[0, 0, 1, 0, 0, 0], [0, 0, 0, 1, 0, 0]]
TRUNCATED = [[0, 0, 0, 0, 0, 0], [0, 1, 0, 0, 0, 0]]
EPISODES = [(0, 0, 3), (0, 3, 6), (1, 0, 2), (1, 2, 4), (1, 4, 6)]
"""Stream, first step, and the step after the last one of each episode; two are not at their end."""


@pytest.fixture(autouse=True)
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def numbers(shape: tuple[int, ...], leaf: ArraySpec) -> Any:
    random = np.random.default_rng([*shape, len(leaf.dtype)])
    if leaf.num_values:
        return random.integers(leaf.num_values[0], size=shape).astype(leaf.dtype)
    return (
        random.random(shape).astype("float32")
        if leaf.dtype == "float32"
        else random.integers(256, size=shape).astype("uint8")
    )


def steps() -> Iterator[Decided]:
    shown = [numbers((6, 2, *leaf.shape), leaf) for _, leaf in leaves(SPEC.observation)]
    action = numbers((6, 2), SPEC.action)
    for step in range(6):
        flags = [np.array(column, bool)[:, step] for column in (TERMINATED, TRUNCATED, FIRST)]
        reward = np.where(flags[2], 0, np.array([step + 0.5, -step], np.float32)).astype(np.float32)
        observation = rebuild(SPEC.observation, [leaf[step] for leaf in shown])
        yield Decided(TimeStep(observation, reward, *flags), action[step], {})


def test_a_round_trip_changes_no_number(tmp_path: Path) -> None:
    ours = write(tmp_path / "ours", SPEC, steps(), lambda: {"agent": "ppo", "episodes": 3})
    folder = write_episodes(ours, "world/hand-v0")
    assert folder == tmp_path / "minari" / "world" / "hand-v0"
    theirs = list(minari.load_dataset("world/hand-v0").iterate_episodes())
    assert [len(episode) for episode in theirs] == [end - begin - 1 for _, begin, end in EPISODES]
    for episode, (stream, begin, end) in zip(theirs, EPISODES, strict=True):
        kept = ours.read(stream, begin, end)
        np.testing.assert_array_equal(episode.observations["image"], kept["observation/image"])
        np.testing.assert_array_equal(episode.actions, kept["action"][:-1])
        np.testing.assert_array_equal(episode.rewards, kept["reward"][1:])
        assert bool(episode.terminations[-1]) is bool(TERMINATED[stream][end - 1])
        # An end of the collecting is an end of the episode by a cut.
        assert bool(episode.truncations[-1]) is not bool(episode.terminations[-1])
    back = Dataset.open(located("minari:world/hand-v0", SPEC))
    back.require(SPEC)
    assert (back.streams, back.length) == (1, sum(end - begin for _, begin, end in EPISODES))
    assert back.about["transitions"] == ours.about["transitions"] == 7
    at = 0
    for stream, begin, end in EPISODES:
        kept, found = ours.read(stream, begin, end), back.read(0, at, at + end - begin)
        for name in kept:
            # The action at the last observation goes nowhere; the cuts are marked.
            upto = -1 if name in ("action", "truncated") else None
            np.testing.assert_array_equal(found[name][:upto], kept[name][:upto], err_msg=name)
            assert found[name].dtype == kept[name].dtype
        at += end - begin
    # By its folder, too, and read once for all.
    assert located(f"minari:{folder}", SPEC) == located("minari:world/hand-v0", SPEC) == back.path
    assert located(str(tmp_path / "ours"), SPEC) == tmp_path / "ours"


@pytest.mark.parametrize("dtype", ["int8", "uint16", "int32", "uint32", "int64", "uint64"])
@pytest.mark.parametrize("declared", ["all", "upwards", "few", "nothing"])
def test_bounds_of_integers_are_kept(dtype: str, declared: str, tmp_path: Path) -> None:
    info = np.iinfo(dtype)
    low, high = {"few": (1, 100), "upwards": (1, info.max)}.get(declared, (info.min, info.max))
    bounds: Any = {} if declared == "nothing" else {"low": (float(low),), "high": (float(high),)}
    spec = EnvSpec("world", ArraySpec((2,), dtype, **bounds), SPEC.action)
    row = np.full((2, 2), 7, dtype)
    kept = (step._replace(timestep=step.timestep._replace(observation=row)) for step in steps())
    write_episodes(write(tmp_path / "ours", spec, kept, dict), "hand-v0")
    found = minari.load_dataset("hand-v0").observation_space
    assert found == spaces.Box(low, high, (2,), np.dtype(dtype).type)


def test_a_box_of_whole_numbers_of_64_bits_comes_back(tmp_path: Path) -> None:
    # They travel as ones of 32 bits, with the bounds that were declared.
    shown, _ = observation_codec(spaces.Box(0, np.iinfo(np.int64).max, (2,), np.int64), "world")
    assert isinstance(shown, ArraySpec)
    spec = EnvSpec("world", shown, SPEC.action)
    row = np.full((2, 2), 7, shown.dtype)
    kept = (step._replace(timestep=step.timestep._replace(observation=row)) for step in steps())
    write_episodes(write(tmp_path / "ours", spec, kept, dict), "hand-v0")
    Dataset.open(located("minari:hand-v0", spec)).require(spec)


def test_what_does_not_fit_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = write(tmp_path / "ours", SPEC, steps(), dict)
    write_episodes(ours, "hand-v0")
    with pytest.raises(DatasetError, match="exists already"):
        write_episodes(ours, "hand-v0")
    with pytest.raises(DatasetError, match=r"'a name' is no name of a Minari data set: give NAME-vN or"):
        write_episodes(ours, "a name")
    with pytest.raises(DatasetError, match=r"no Minari data set none-v0 here: download it"):
        located("minari:none-v0", SPEC)
    other = EnvSpec("other", SPEC.observation, ArraySpec((), "int32", (4,)))
    with pytest.raises(
        DatasetError, match=r"has action int32\[\] of \[3\], and other has action int32\[\] of \[4\]"
    ):
        located("minari:hand-v0", other)
    fewer = EnvSpec("other", {"image": SPEC.observation["image"]}, SPEC.action)
    with pytest.raises(DatasetError, match="and other has"):
        located("minari:hand-v0", fewer)
    assert not list((tmp_path / "cache").rglob("dataset.json"))
    monkeypatch.setattr(exchange, "_EPISODES_A_WRITE", 2)
    many = write_episodes(ours, "parts-v0")
    assert minari.MinariDataset(many / "data").total_episodes == len(EPISODES)


@pytest.mark.slow
def test_a_run_is_collected_for_minari_and_cloned_from_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = untrained("toy:catch", tmp_path / "run", agent="vtrace")
    with pytest.raises(ConfigError, match="--out NAME-v0"):
        collect([str(folder), "--frames", "10", "--format", "minari"])
    collect([str(folder), "--frames", "300", "--format", "minari", "--out", "catch/any-v0", "--json"])
    told = json.loads(capsys.readouterr().out)
    assert told["dataset"] == str(tmp_path / "minari" / "catch" / "any-v0")
    config = configure("toy:catch", agent="bc", arch="distbelief", dataset="minari:catch/any-v0")
    spec = EnvSpec.from_json(json.loads((folder / "spec.json").read_text()))
    dataset = open_dataset(config, spec, verify=True)
    assert dataset.about["frames"] == told["frames"] >= 300
    returns = [float(np.sum(episode.rewards)) for episode in minari.load_dataset("catch/any-v0")]
    assert {*returns} <= {-1.0, 0.0, 1.0} and dataset.about["mean_return"] == pytest.approx(np.mean(returns))
