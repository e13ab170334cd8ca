"""A machine that has only actors takes the few packages of ``docs/install.md``, without JAX."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from harness import Command, summary, thorough

from seedbed.installation import missing_package, required

ROOT = Path(__file__).parents[2]
(LINE,) = re.findall(r"^pip install (numpy .+)$", (ROOT / "docs" / "install.md").read_text(), re.M)
HIDDEN: dict[str, Any] = {
    "PYTHONPATH": str(Path(__file__).with_name("light")),
    "HIDDEN": " ".join(module for module, package in required().items() if package not in LINE.split()),
}


def test_modules_of_required_packages_are_known() -> None:
    declared = [line for line in metadata.requires("seedbed") or () if "extra ==" not in line]
    assert len(required()) == len(declared) > 15
    for module, package in required().items():
        files = {file.parts[0].removesuffix(".py") for file in metadata.files(package) or ()}
        assert module in files, (module, package)
    assert set(LINE.split()) < set(required().values())


@pytest.mark.parametrize(
    ("name", "package"),
    [("grpc", "grpcio"), ("jax.numpy", "jax"), ("pygame", "pygame-ce"), ("my_game", None), (None, None)],
)
def test_the_package_of_a_missing_module_is_named(name: str | None, package: str | None) -> None:
    assert missing_package(ModuleNotFoundError("No module", name=name)) == package


def test_a_command_that_needs_more_says_which_package_in_one_line(tmp_path: Path) -> None:
    with Command("train", "CartPole-v1", cwd=tmp_path, **HIDDEN) as command:
        assert command.wait() == 2
        assert re.fullmatch(
            r"seedbed: seedbed train needs the package jax here, which is not installed: (pip|make) install.*",
            command.output.strip(),
        )
    assert {path.name.partition("-")[0] for path in tmp_path.iterdir()} == {"output"}


@pytest.mark.slow
@pytest.mark.parametrize("arch", ["seed", *thorough("impala")])
def test_an_actor_without_jax_acts_where_the_learner_runs_the_policy(arch: str, tmp_path: Path) -> None:
    options = ["--arch", arch, "--preset", "none", "--actors", "0", "--listen", "127.0.0.1:0"]
    whole = ["CartPole-v1", *options, "--frames", "4000", "--until-return", "none", "--run-dir", "run"]
    with Command("train", *whole, cwd=tmp_path) as learner:
        line = learner.says("more actors: seedbed actor").split("more actors: seedbed ")[1].splitlines()[0]
        with Command(*line.split(), cwd=tmp_path, **HIDDEN) as actor:
            if arch == "seed":
                assert actor.wait() == 0, actor.output
                assert learner.wait() == 0, learner.output
                assert summary(tmp_path / "run")["agent_steps"] >= 4000
            else:
                assert actor.wait() == 2
                assert "needs the package jax here" in actor.last_line


@pytest.mark.installs
def test_the_packages_of_the_page_are_enough_and_examined(tmp_path: Path) -> None:
    python = tmp_path / "venv" / "bin" / "python"
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    pip = [python, "-m", "pip", "install", "--quiet"]
    subprocess.run([*pip, "--no-deps", ROOT], check=True)
    subprocess.run([*pip, "-c", ROOT / "constraints.txt", *LINE.split()], check=True)
    words = ["train", "CartPole-v1", "--preset", "none", "--actors", "0", "--listen", "127.0.0.1:0"]
    with Command(*words, "--frames", "4000", "--run-dir", "run", cwd=tmp_path) as learner:
        line = learner.says("more actors: seedbed actor").split("more actors: seedbed ")[1].splitlines()[0]
        with Command("-m", "seedbed", *line.split(), cwd=tmp_path, command=[str(python)]) as actor:
            assert actor.wait() == 0, actor.output
        assert learner.wait() == 0, learner.output
    with Command("-m", "seedbed", "doctor", cwd=tmp_path, command=[str(python)]) as doctor:
        assert doctor.wait() == 1
        assert "without JAX this installation serves seedbed actor" in doctor.output
