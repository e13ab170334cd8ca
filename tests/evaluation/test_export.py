"""A policy in a file for programs without Seedbed: it decides as the policy does."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from harness import MUZERO, shortened, thorough
from untrained import untrained

import seedbed
from seedbed.cli.main import main
from seedbed.errors import ConfigError
from seedbed.evaluation.export import FORMATS, function_of
from seedbed.nets.build import NETWORKS
from seedbed.types import ACTION_MASK, ArraySpec, leaves, rebuild

RUNS: dict[str, tuple[str, dict[str, Any]]] = {
    "mlp": ("toy:catch", {"agent": "vtrace"}),
    "pictures": ("toy:catch", {"agent": "vtrace", "env_options": ("cell_pixels=8",), "network": "nature"}),
    "deep": ("toy:catch", {"agent": "a2c", "env_options": ("cell_pixels=8",), "network": "deep", "lstm": 8}),
    "shallow": ("toy:catch", {"agent": "vtrace", "env_options": ("cell_pixels=8",), "network": "shallow"}),
    "small": ("toy:catch", {"agent": "a2c", "env_options": ("cell_pixels=8",), "network": "small"}),
    "pooled": ("toy:catch", {"agent": "ppo", "env_options": ("cell_pixels=8",), "network": "pooled"}),
    "tiny": ("toy:catch", {"agent": "dqn", "env_options": ("cell_pixels=2",), "network": "tiny"}),
    "memory": ("toy:memory", {"agent": "ppo", "lstm": 8, "previous_action": True, "previous_reward": True}),
    "continuous": ("Pendulum-v1", {"agent": "ppo", "normalize_observations": True}),
    "values": ("toy:catch", {"agent": "dqn"}),
    "rectified": ("toy:catch", {"agent": "vtrace", "activation": "relu"}),
    "silu": ("toy:catch", {"agent": "a2c", "activation": "silu"}),
    "normalized": ("toy:catch", {"agent": "pqn", "lstm": 8}),
    "sequences": ("toy:memory", {"agent": "r2d2", "lstm": 8, "burn_in": 2}),
    "masks": ("toy:doors", {"agent": "ppo"}),
    "masked values": ("toy:doors", {"agent": "dqn"}),
    "stack": ("ALE/Pong-v5", {"agent": "vtrace", "network": "tiny"}),
    "own policies": ("pgx:tic_tac_toe", {"agent": "ppo", "policies": "own"}),
    "own values": ("pgx:tic_tac_toe", {"agent": "dqn", "policies": "own"}),
    "bounded": ("Pendulum-v1", {"agent": "sac", "normalize_observations": True}),
    "cloned": ("toy:catch", {"agent": "bc", "lstm": 8}),
    "search": ("toy:doors", MUZERO),
}
"""Environment and settings of runs, by a name of what is shown."""
STEPS, BATCH = 20, 50
"""1,000 observations."""

Call = Callable[[list[Any]], list[Any]]


def opened(path: Path) -> Call:
    """The function in a file."""
    if path.suffix == ".stablehlo":
        call = jax.export.deserialize(bytearray(path.read_bytes())).call
        return lambda arrays: [np.asarray(x) for x in call(*arrays)]
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    contract = json.loads(path.with_name("policy.onnx.json").read_text())
    names = [port["name"] for port in contract["inputs"]]
    assert names == [port.name for port in session.get_inputs()]
    assert [port["name"] for port in contract["outputs"]] == [port.name for port in session.get_outputs()]
    return lambda arrays: session.run(None, dict(zip(names, arrays, strict=True)))


def shown(spec: Any, random: np.random.Generator) -> Any:
    """A batch of observations, drawn at random."""

    def draw(leaf: ArraySpec) -> Any:
        low, high = (np.clip(bound, -9, 255) for bound in leaf.bounds)
        drawn = random.uniform(low, high, (BATCH, *leaf.shape))
        return (drawn if np.dtype(leaf.dtype).kind == "f" else np.round(drawn)).astype(leaf.dtype)

    return rebuild(spec, [draw(leaf) for _, leaf in leaves(spec)])


# Every run and every format.
TURNS = [(name, FORMATS[number % 2] if name != "search" else "stablehlo") for number, name in enumerate(RUNS)]
# The deep network takes long to compile.
FIRST = [turn for turn in TURNS if turn[0] != "deep"]
OTHERS = [(name, FORMATS[(number + 1) % 2]) for number, name in enumerate(RUNS) if name != "search"]


def test_every_network_is_among_the_runs() -> None:
    assert {settings.get("network", "mlp") for _, settings in RUNS.values()} == {*NETWORKS} - {"auto"}


@pytest.mark.parametrize(("name", "form"), [*shortened(TURNS, FIRST), *thorough(*OTHERS)])
def test_it_decides_as_the_policy_does(name: str, form: str, tmp_path: Path) -> None:
    env, settings = RUNS[name]
    folder = untrained(env, tmp_path / "run", **settings)
    file = seedbed.export(folder, format=form)
    call = opened(file)
    policy = seedbed.load(folder, greedy=True)
    function, random = function_of(policy), np.random.default_rng(1)
    arrays = function.example(BATCH)
    moving = [port.name for port in function.outputs[1:]]
    steps, state, alike = len(arrays) - len(moving), None, []
    for step in range(STEPS):
        observation, reward = (
            shown(policy.observation_spec, random),
            random.normal(size=BATCH).astype("float32"),
        )
        first = random.random(BATCH) < 0.2 if step else np.ones(BATCH, bool)
        action, state = policy.act(observation, state, reward=reward, first=first)
        arrays[:steps] = [*(leaf for _, leaf in leaves(observation)), reward, first]
        exported, *after = call(arrays)
        assert exported.dtype == action.dtype and exported.shape == action.shape
        mine = dict(leaves(state.agent, "state"))
        for path, theirs in zip(moving, after, strict=True):
            if path != "state/action":
                np.testing.assert_allclose(mine[path], theirs, atol=1e-4, err_msg=path)
        if policy.spec.action_mask is not None:
            mask = observation[ACTION_MASK]
            assert (mask[np.arange(BATCH), exported] | ~mask.any(axis=1)).all(), "a forbidden action"
        near = np.isclose(exported, action, atol=1e-4)
        alike.append(near if action.ndim == 1 else near.all(-1))
        # Where two actions are as good as each other they go on with different states.
        arrays[steps:] = [np.asarray(mine[path]) for path in moving]
    assert np.mean(alike) >= 0.999


def test_what_the_converter_cannot_write_is_refused_with_the_format_that_can(tmp_path: Path) -> None:
    env, settings = RUNS["search"]
    folder = untrained(env, tmp_path / "run", **settings)
    with pytest.raises(ConfigError, match=r"cannot write this policy .*: use --format stablehlo"):
        seedbed.export(folder, format="onnx")
    assert not [*folder.glob("policy*")]


@pytest.mark.parametrize("batch", [1, 7])
def test_a_program_without_seedbed_calls_it_with_batches_of_any_size(batch: int, tmp_path: Path) -> None:
    env, settings = RUNS["mlp"]
    file = seedbed.export(untrained(env, tmp_path / "run", **settings), out=tmp_path / "mine.stablehlo")
    program = (
        "import json, sys\n"
        "import jax, numpy as np\n"
        f"file, batch = {str(file)!r}, {batch}\n"
        "contract = json.load(open(file + '.json'))\n"
        "shape = lambda port: [batch if n == 'batch' else n for n in port['shape']]\n"
        "inputs = [np.zeros(shape(port), port['dtype']) for port in contract['inputs']]\n"
        "results = jax.export.deserialize(bytearray(open(file, 'rb').read())).call(*inputs)\n"
        "assert [list(x.shape) for x in results] == [shape(port) for port in contract['outputs']]\n"
        "assert [x.dtype.name for x in results] == [port['dtype'] for port in contract['outputs']]\n"
        "by_name = {port['name'] for port in contract['inputs']}\n"
        "assert {each['input'] for each in contract['state']} < by_name\n"
        "assert [each['output'] for each in contract['state']] == [o['name'] for o in contract['outputs'][1:]]\n"
        "print('seedbed' in sys.modules, contract['env'], contract['agent'], contract['updates'])\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stdout == "False toy:catch vtrace 0\n", done.stderr


def test_the_command_prints_the_path_and_refuses_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    env, settings = RUNS["mlp"]
    folder = str(untrained(env, tmp_path / "run", **settings))

    def status(*words: str) -> object:
        with pytest.raises(SystemExit) as ended:
            main(["export", folder, *words])
        return ended.value.code

    assert status() == 0
    assert capsys.readouterr().out == f"{folder}/policy.stablehlo\n"
    assert status("--out", str(tmp_path / "no" / "file")) == 2
    assert "cannot write" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "jax2onnx", None)
    assert status("--format", "onnx") == 2
    assert "'.[onnx]'" in capsys.readouterr().err
    assert status("--format", "pickle") == 2
    with pytest.raises(ConfigError, match="choose stablehlo, onnx or run"):
        seedbed.export(folder, format="pickle")
