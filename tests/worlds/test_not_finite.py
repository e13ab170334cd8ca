"""Worlds that give numbers which nothing can be learned from: refused where they enter, with environment and field."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness import Command, balanced, flags, learned, rows, shortened, summary, tiny
from odd_worlds import SPOILT, Spoiling

from seedbed.envs.make import Guarded, make
from seedbed.envs.rules import LARGEST_REAL, LARGEST_REWARD, StepRules
from seedbed.envs.standard import batch_of
from seedbed.errors import EnvironmentFault, RunFailed, SpecError
from seedbed.launch.train import train
from seedbed.metrics.reports import many_skipped
from seedbed.types import ArraySpec, EnvSpec, TimeStep

SAYS = {
    "nan reward": r"the reward of environment 6 is not finite \(nan\): .*TransformReward",
    "no reward": r"odd: environment 6: step\(\) gave the reward as None; it must be one number",
    "infinite reward": r"the reward of environment 6 is not finite \(-inf\)",
    "huge reward": r"the reward of environment 6 is 1e\+38, and 1e\+12 is the most",
    "wide reward": r"the reward of environment 6 is not finite \(inf\)",
    "nan observation": r"the observation b of environment 6 is not finite \(nan\): .*TransformObservation.*nan_to_num",
    "infinite observation": r"the observation b of environment 6 is not finite \(inf\)",
    "huge observation": r"the observation b of environment 6 has 1e\+30, and 4.6e\+18 is the most",
    "wide observation": r"odd: environment 6: observation b shows 1e\+39, and travels as float32",
}


@pytest.mark.parametrize("kind", SPOILT)
@pytest.mark.parametrize("after", [0, 5])
def test_a_number_that_is_none_is_refused_with_environment_and_field(kind: str, after: int) -> None:
    made: list[int] = []

    def make_one() -> Spoiling:
        made.append(len(made))
        return Spoiling(kind, after if made[-1] == 2 else 10**6)

    environment = Guarded(batch_of("odd", 4, make_one), first=4)
    with pytest.raises(EnvironmentFault, match=SAYS[kind]) as found:
        environment.reset(1)
        for _ in range(20):
            environment.send(np.zeros(4, np.int32))
            environment.receive()
    assert found.value.step == after + (SPOILT[kind][0] == "reward")


@pytest.mark.parametrize(
    ("rewards", "says"),
    [
        (np.array([0, 1e39, 0]), "the reward of environment 1 is not finite"),
        (np.array([0, 0, np.nan], np.float32), "the reward of environment 2 is not finite"),
        (np.array([None, 0, 0]), "the reward of environment 0 is not finite"),
    ],
)
def test_a_batch_of_ones_own_is_looked_at_too(
    rewards: Any, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = make("CartPole-v1", 3)
    batch: Any = environment._environment
    step = batch._env.step

    def spoilt(action: Any) -> Any:
        observation, _, terminated, truncated, info = step(action)
        return observation, rewards, terminated, truncated, info

    monkeypatch.setattr(batch._env, "step", spoilt)
    environment.reset(1)
    environment.send(np.zeros(3, np.int32))
    with pytest.raises(EnvironmentFault, match=says):
        environment.receive()


def test_pictures_and_what_is_within_bounds_are_let_in() -> None:
    spec = EnvSpec(
        "e",
        {"x": ArraySpec((2,), "float32"), "eye": ArraySpec((8, 8, 1), "uint8")},
        ArraySpec((), "int32", (2,)),
    )
    never = np.zeros(3, bool)

    def step(x: float, reward: float) -> TimeStep:
        shown = {"x": np.full((3, 2), x, np.float32), "eye": np.full((3, 8, 8, 1), 255, np.uint8)}
        return TimeStep(shown, np.full(3, reward, np.float32), never, never, never)

    rules = StepRules(spec)
    assert [path for path, _ in rules._rules] == ["x"], "bytes that use all their range cost nothing"
    for x, reward in ((0.0, 0.0), (LARGEST_REAL, -LARGEST_REWARD), (-LARGEST_REAL, LARGEST_REWARD)):
        assert rules.broken(step(x, reward)) is None
        # What is let in can be squared.
        assert np.isfinite(np.square(np.float32(x))) and np.isfinite(np.square(np.float32(reward)))
    for x, reward in ((2 * LARGEST_REAL, 0.0), (0.0, -2 * LARGEST_REWARD)):
        assert rules.broken(step(x, reward)) is not None


def test_an_action_that_is_no_number_is_the_policys_fault() -> None:
    environment = make("Pendulum-v1", 2, first=8)
    environment.reset(1)
    with pytest.raises(
        SpecError, match=r"the policy's action for environment 9 is not finite \(\[nan\]\).*--learning-rate"
    ):
        environment.send(np.array([[0.5], [np.nan]], np.float32))


BESIDE = {"actors": 2, "envs_per_actor": 8, "unroll_length": 5, "batch_size": 16}
DQN = {"agent": "dqn", "replay_size": 4000, "replay_min_size": 40, "replay_ratio": 0.5}
RUNS = [
    ("seed", "nan reward", {}),
    ("seed", "no reward", {}),
    ("seed", "infinite reward", {"transport": "inproc"}),
    ("seed", "huge reward", {}),
    ("impala", "wide reward", {}),
    ("impala", "nan observation", {"transport": "grpc"}),
    ("rapid", "wide observation", {}),
    ("apex", "nan reward", {**DQN, "batch_size": 16}),
    ("gorila", "infinite observation", {**DQN, "batch_size": 16}),
    ("a3c", "huge reward", {"agent": "a2c", "envs_per_actor": None, "batch_size": 8}),
    ("sebulba", "nan observation", {}),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arch", "kind", "more"), shortened(RUNS, RUNS[::7]), ids=[f"{arch}-{kind}" for arch, kind, _ in RUNS]
)
def test_one_of_sixteen_costs_one_restart(arch: str, kind: str, more: dict[str, Any], tmp_path: Path) -> None:
    settings = {name: value for name, value in {**BESIDE, **more}.items() if value is not None}
    options = (f"kind={kind}", "after=40", f"once={tmp_path / 'once'}")
    words = flags("odd_worlds:Spoiling", "run", arch=arch, env_options=options, **settings)
    with Command(*words, cwd=tmp_path) as learner:
        output = learner.says("restart 1 of 3")
        (line,) = [line for line in output.splitlines() if "restart 1 of 3" in line]
        assert "odd_worlds:Spoiling" in line and " environment " in line, line
        assert ("reward" if SPOILT[kind][0] == "reward" else "observation b") in line
        before = learned(tmp_path / "run")
        while learned(tmp_path / "run") < before + 5:
            assert learner.process.is_running(), learner.output
        learner.interrupt()
        assert learner.wait() == 0, learner.output
        assert "learning-rate" not in learner.output
    left = summary(tmp_path / "run")
    assert left["stopped_because"] == "interrupted"
    assert left["actor_restarts"] == 1
    assert left["skipped_updates"] == 0
    assert balanced(left) and all(map(balanced, rows(tmp_path / "run")))


@pytest.mark.slow
def test_an_exact_run_ends_and_names_it(tmp_path: Path) -> None:
    config = tiny("odd_worlds:Spoiling", tmp_path / "run", arch="a2c", env_options=("after=40",))
    with pytest.raises(
        RunFailed, match=r"actor 0: .*the reward of environment \d is not finite .*cannot go on without it"
    ) as found:
        train(config)
    assert "learning-rate" not in str(found.value)
    left = summary(tmp_path / "run")
    assert balanced(left) and left["skipped_updates"] == 0


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
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    too_fast = {"learning_rate": 1e38, "gradient_clip": 0.0, "max_skipped_updates": 10**6}
    train(tiny("toy:catch", tmp_path / "run", transport="inproc", frames=2000, **too_fast))
    log = (tmp_path / "run" / "logs" / "learner.log").read_text()
    for told in (capsys.readouterr().out, log):
        assert told.count("were skipped, since loss or gradient was not finite") == 1
