"""Several hosts train as one: two processes with two simulated devices each, their collectives over Gloo."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness import MUZERO, Command, flags, simulated, summary, thorough
from small_runs import AGENTS, ENVS, STEPS, params

from seedbed.acting.assignment import number_of
from seedbed.launch.rendezvous import free_port

pytestmark = pytest.mark.slow

BATCHES = 6
WORLD = {
    "arch": "anakin",
    "actors": None,
    "envs_per_actor": None,
    "batch_size": ENVS,
    "unroll_length": STEPS,
    "learning_rate": 1e-2,
    "frames": BATCHES * ENVS * STEPS,
}
PLACES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    # Of one process with four devices, and of each of two with two.
    "anakin": ({}, {}),
    "seed": (
        {"arch": "seed", "deterministic": True, "actors": 2, "envs_per_actor": ENVS // 2},
        {"actors": 1},
    ),
    "sebulba": (
        {"arch": "sebulba", "deterministic": True, "actors": 4, "envs_per_actor": ENVS // 4},
        {"actors": 2},
    ),
}


def words(folder: str, **settings: Any) -> list[str]:
    settings = {**WORLD, **settings}
    env = settings.pop("env", "gymnax:CartPole-v1" if settings["arch"] == "anakin" else "CartPole-v1")
    return flags(env, folder, **settings)


def given(words: list[str]) -> list[str]:
    """Without the flags whose value is None."""
    text = re.sub(r" --\S+ None", "", " ".join(words))
    return text.split(" ")


def trained(cwd: Path, folder: str, devices: int, **settings: Any) -> dict[str, Any]:
    settings = {"training_devices": tuple(range(devices)), **settings}
    with command(cwd, *given(words(folder, **settings)), devices=devices) as learner:
        assert learner.wait() == 0, learner.output
    return summary(cwd / folder)


def command(cwd: Path, *words: str, devices: int = 2) -> Command:
    return Command(*words, cwd=cwd, **simulated(devices))


SAMPLED: dict[str, Any] = {
    "replay_min_size": 2 * ENVS * STEPS,
    "replay_size": 8 * ENVS * STEPS,
    # Of one host; two have one each without it.
    "replay_parts": 2,
}
REPLAY: dict[str, Any] = {**SAMPLED, "replay_ratio": 2.0, "head_size": 8, "target_period": 5}
AGENTS_HERE = {
    **AGENTS,
    "dqn": {**REPLAY, "agent": "dqn"},
    "r2d2": {**REPLAY, "agent": "r2d2", "lstm": 8, "burn_in": 3},
    "sac": {**SAMPLED, "agent": "sac", "env": "Pendulum-v1", "replay_ratio": 1.0},
    "muzero": {**SAMPLED, **MUZERO, "reanalyse": 0.5},
}


@pytest.mark.parametrize(
    ("name", "arch", "seeds"),
    [
        ("a2c", "anakin", 2),
        *thorough(
            ("ppo", "rapid", 1),
            ("dqn", "anakin", 1),
            ("dqn", "seed", 1),
            ("r2d2", "sebulba", 1),
            ("sac", "seed", 1),
            ("muzero", "sebulba", 1),
            ("vtrace lstm", "impala", 1),
            ("ppo", "anakin", 1),
            ("vtrace lstm", "seed", 1),
            ("ppo", "sebulba", 1),
        ),
    ],
)
def test_two_hosts_compute_what_one_does(name: str, arch: str, seeds: int, tmp_path: Path) -> None:
    beside = arch in ("impala", "rapid")  # which have no exact resumption
    whole, half = PLACES["seed" if beside else arch]
    if beside:
        whole = {**whole, "arch": arch, "deterministic": False, "lag": 0}
    settings = {**AGENTS_HERE[name], **whole, **({"seeds": seeds} if arch == "anakin" else {})}
    if arch == "anakin" and "replay_size" in settings:
        settings |= {"envs": ENVS, "replay_parts": None}  # each device has a part
    one = trained(tmp_path, "one", 4, **settings)
    two = trained(tmp_path, "two", 2, **{**settings, **half, "hosts": 2, "replay_parts": None})
    assert two["weights_version"] == one["weights_version"] > 0
    for what in ("agent_steps", "episodes", "mean_return", "steps_trained"):
        assert two[what] == pytest.approx(one[what]), what
    other = summary(tmp_path / "two/hosts/1")
    assert (two["host"], other["host"]) == (0, 1)
    for what in ("params_sha256", "weights_version", "agent_steps", "episodes", "mean_return"):
        assert two[what] == other[what], what
    ours, theirs = params(tmp_path / "one"), params(tmp_path / "two")
    assert ours.keys() == theirs.keys()
    for leaf, array in ours.items():
        np.testing.assert_allclose(array, theirs[leaf], rtol=1e-4, atol=1e-5, err_msg=leaf)


@pytest.mark.parametrize(("arch", "name"), thorough(("seed", "dqn"), *((arch, "a2c") for arch in PLACES)))
def test_a_resumed_run_is_the_run_that_was_not_stopped(arch: str, name: str, tmp_path: Path) -> None:
    whole, half = PLACES[arch]
    settings = {**AGENTS_HERE[name], **whole, **half, "hosts": 2, "deterministic": True}
    without = trained(tmp_path, "without", 1, **settings)
    trained(tmp_path, "with", 1, **{**settings, "frames": BATCHES // 2 * ENVS * STEPS})
    with command(
        tmp_path, "resume", "with", "--frames", str(WORLD["frames"]), "--no-video", devices=1
    ) as resumed:
        assert resumed.wait() == 0, resumed.output
    again = summary(tmp_path / "with")
    for what in ("params_sha256", "weights_version", "agent_steps", "episodes", "mean_return"):
        assert again[what] == without[what], what


def test_one_command_on_each_host(tmp_path: Path) -> None:
    address = f"127.0.0.1:{free_port('127.0.0.1')}"
    settings = {**AGENTS["a2c"], "hosts": 2, "coordinator": address}
    with (
        command(tmp_path, *given(words("run", **settings)), devices=1) as first,
        command(tmp_path, *given(words("run", **settings, host=1)), devices=1) as second,
    ):
        assert first.wait() == 0, first.output
        assert second.wait() == 0, second.output
    assert f"host 0 waits at {address} for hosts 1 to 1" in first.output
    assert "seedbed eval run/hosts/1" in second.output
    frames = str(2 * WORLD["frames"])
    go_on = ["resume", "run", "--frames", frames, "--no-video"]
    with (
        command(tmp_path, *go_on, devices=1) as first,
        command(tmp_path, *go_on, "--host", "1", devices=1) as second,
    ):
        assert first.wait() == 0, first.output
        assert second.wait() == 0, second.output
    one, other = (summary(tmp_path / folder) for folder in ("run", "run/hosts/1"))
    # Decisions that only reset are no steps: it ends with the first batch that makes up for them.
    assert one["agent_steps"] == other["agent_steps"] == one["steps_received"] - one["steps_resets"]
    assert 0 <= one["agent_steps"] - 2 * BATCHES * ENVS * STEPS < ENVS * STEPS


def test_a_host_with_other_flags_is_turned_away_and_may_come_back(tmp_path: Path) -> None:
    address = f"127.0.0.1:{free_port('127.0.0.1')}"
    settings = {**AGENTS["a2c"], "hosts": 2, "coordinator": address}
    wrong = {**settings, "host": 1, "learning_rate": 1e-3}
    with command(tmp_path, *given(words("run", **settings)), devices=1) as first:
        with command(tmp_path, *given(words("run", **wrong)), devices=1) as second:
            assert second.wait() == 2
            assert second.last_line == (
                "seedbed: host 0 turns host 1 away: learning_rate is 0.001 there and 0.01 on host 0: "
                "give all hosts the same flags"
            )
        with command(tmp_path, *given(words("run", **settings, host=1)), devices=1) as second:
            assert second.wait() == 0, second.output
        assert first.wait() == 0, first.output


def test_numbers_over_all_hosts_are_those_of_one_host_with_all_and_differ() -> None:
    planned, later = 6, 5
    hosts = [[number_of(index, planned, host, 3) for index in range(planned + later)] for host in range(3)]
    assert [number for host in hosts for number in host[:planned]] == list(range(3 * planned))
    assert len({number for host in hosts for number in host}) == 3 * (planned + later)
    assert [number_of(index, planned, 0, 1) for index in range(11)] == list(range(11))
