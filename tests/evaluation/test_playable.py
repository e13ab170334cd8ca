"""A run folder that only plays: small, sealed, and as good as the run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from untrained import untrained

import seedbed
from seedbed.config.variants import VALUES_OF_BEST
from seedbed.errors import CheckpointError, ConfigError
from seedbed.launch.folder import RunFolder
from seedbed.learning.checkpoint import Contents, save
from seedbed.types import leaves


def files(folder: Path) -> set[str]:
    """The files in a folder."""
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run, with an optimizer's state and normalized observations."""
    settings: dict[str, Any] = {"agent": "ppo", "normalize_observations": True, "scale_rewards": True}
    return untrained("Pendulum-v1", tmp_path_factory.mktemp("playable") / "run", **settings)


@pytest.fixture(scope="module")
def played(run: Path) -> Path:
    """The same, to be played alone."""
    return seedbed.export(run, format="run")


def test_it_acts_as_the_run_does_and_holds_nothing_else(run: Path, played: Path) -> None:
    assert played == run / "policy.run"
    assert files(played) == {
        "config.json",
        "spec.json",
        "checkpoints/000000000000/manifest.json",
        "checkpoints/000000000000/train.safetensors",
    }
    size = (played / "checkpoints/000000000000/train.safetensors").stat().st_size
    assert size < 0.5 * (run / "checkpoints/000000000000/train.safetensors").stat().st_size
    assert str(run) not in (played / "config.json").read_text()
    whole, part = seedbed.load(run), seedbed.load(played)
    ours, theirs = dict(leaves(whole.params)), dict(leaves(part.params))
    assert ours.keys() == theirs.keys()
    for name, array in ours.items():
        np.testing.assert_array_equal(array, theirs[name])
    observation = np.random.default_rng(1).normal(size=(50, 3)).astype("float32")
    np.testing.assert_array_equal(whole.act(observation)[0], part.act(observation)[0])


def test_it_names_no_place_and_plays_without_them(tmp_path: Path) -> None:
    secret = str(tmp_path / "secret")
    run = untrained(
        "toy:catch",
        tmp_path / "secret" / "run",
        begin_or_resume=True,
        store=f"file://{secret}/copies",
        init_from=f"{secret}/other",
        listen=("secret.example:7777",),
        tls_cert=(f"{secret}/cert", f"{secret}/key"),
        log=("json:dumps",),
    )
    played = seedbed.export(run, format="run", out=tmp_path / "played")
    assert "secret" not in (played / "config.json").read_text()
    action, _ = seedbed.load(played).act(np.zeros(seedbed.load(played).observation_spec.shape, np.float32))
    assert action.shape == ()


def test_values_of_the_best_agent_of_a_sweep_go_along(tmp_path: Path) -> None:
    run = untrained("toy:catch", tmp_path / "run")
    swept = {VALUES_OF_BEST: {"discount": 0.5}}
    contents = Contents({"train": {"params": seedbed.load(run).params}}, {"version": 1, **swept})
    save(RunFolder.open(run).checkpoints, 1, contents)
    meta = RunFolder.open(seedbed.export(run, format="run", out=tmp_path / "played")).newest().meta
    assert meta[VALUES_OF_BEST] == swept[VALUES_OF_BEST]


def test_it_is_not_written_over_a_run_nor_over_a_file(run: Path, played: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="already holds a run: choose another folder"):
        seedbed.export(run, format="run", out=played)
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot write"):
        seedbed.export(run, format="run", out=tmp_path / "file" / "folder")


def test_what_was_changed_is_not_played(run: Path, tmp_path: Path) -> None:
    copy = seedbed.export(run, format="run", out=tmp_path / "copy")
    (weights,) = copy.glob("checkpoints/*/train.safetensors")
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    with pytest.raises(CheckpointError, match="does not have the SHA-256"):
        seedbed.load(copy)
