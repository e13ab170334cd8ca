"""The declared program of every architecture is what runs: its roles, whatever starts them, and its bytes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from harness import balanced, rows, shortened, tiny
from small_runs import params, write_catch

from seedbed.acting.example import example_unroll
from seedbed.architectures.program import Edge, Program, Role, Traffic
from seedbed.architectures.roles import carrier_of
from seedbed.cli.program import declared, lines
from seedbed.envs.make import spec_of
from seedbed.errors import ConfigError
from seedbed.launch.build import build_agent
from seedbed.launch.folder import RunFolder
from seedbed.launch.train import train
from seedbed.learning.update import Update
from seedbed.registry import ARCHITECTURES
from seedbed.testing.launcher import ThreadLauncher

REPLAY: dict[str, Any] = {
    "agent": "dqn",
    "head_size": 8,
    "replay_size": 2_000,
    "replay_min_size": 40,
    "batch_size": 10,
    "target_period": 5,
}
EXACT = {"lag": 0, "frames": 4_000}
CASES: dict[str, dict[str, Any]] = {
    "seed": {"arch": "seed", **EXACT},
    "impala": {"arch": "impala", **EXACT},
    "apex": {"arch": "apex", **REPLAY, **EXACT, "replay_ratio": 0.25},
    "rapid": {"arch": "rapid", "forward_servers": 2, **EXACT},
    "rapid in self-play": {
        "arch": "rapid",
        "env": "pettingzoo:parallel_worlds:Nim",
        "forward_servers": 2,
        "opponents": 100,
        "opponents_every": 10,
        "unroll_length": 8,
        **EXACT,
    },
    "gorila": {"arch": "gorila", **REPLAY, "frames": 2_000, "shards": 2},
    "distbelief": {"arch": "distbelief", "agent": "bc", "batch_size": 4, "frames": 2_000, "shards": 2},
}

IN_ONE_PROCESS: dict[str, dict[str, Any]] = {
    "a2c": {"arch": "a2c", "agent": "a2c", "frames": 2_000},
    "a3c": {"arch": "a3c", "agent": "a2c", "frames": 2_000},
    "sebulba": {"arch": "sebulba", "frames": 2_000},
    "anakin": {"arch": "anakin", "env": "gymnax:CartPole-v1", "frames": 2_000},
}
"""Architectures without a role that is a process of its own."""
EVERY = CASES | IN_ONE_PROCESS


def settings_of(name: str, folder: Path) -> dict[str, Any]:
    """The settings of a case; an agent that imitates gets a data set in the folder."""
    case = {"env": "toy:catch", **EVERY[name]}
    return {**case, "dataset": str(write_catch(folder / "data"))} if case.get("agent") == "bc" else case


def test_a_program_names_roles_that_there_are() -> None:
    with pytest.raises(ConfigError, match="actor names the role 'server', and there are learner, actor"):
        Program((Role("learner", 1), Role("actor", 2, dials=(Edge("server"),))))
    with pytest.raises(ConfigError, match="each role once"):
        Program((Role("learner", 1), Role("learner", 2)))
    with pytest.raises(ConfigError, match="the head is 'chief', and there are learner"):
        Program((Role("learner", 1),), head="chief")


def test_bytes_of_an_edge_are_a_formula() -> None:
    edge = Edge("learner", (Traffic("a", "up", 3.0, "step"), Traffic("b", "down", 5.0, "update")))
    units = {"step": 10.0, "update": 2.0}
    assert edge.bytes_for("up", units, 4) == 30.0
    assert edge.bytes_for("down", units, 4) == 5.0 * 2 * 4, "every instance fetches the weights"


def test_every_architecture_is_among_the_cases() -> None:
    assert {case["arch"] for case in EVERY.values()} == {*ARCHITECTURES.names}


@pytest.mark.parametrize("case", shortened(EVERY, EVERY.keys() - {"rapid in self-play"}))
def test_declared_bytes_are_those_that_travel(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(Path(__file__).parents[1])  # where the games are
    config = tiny(folder=tmp_path / "run", **settings_of(case, tmp_path))
    program = declared(config)
    if config.arch == "rapid":
        # Servers tell what they have served now and then: more often here, and so in this process.
        monkeypatch.setattr("seedbed.serving.proxy.REPORT_SECONDS", 0.02)
        run = train(config, launch=ThreadLauncher).to_json()
    else:
        run = train(config).to_json()
    assert balanced(run)
    last = rows(tmp_path / "run")[-1]
    received = last["steps_received"]
    units = {
        "step": received,
        "unroll": received / config.settings.unroll_length,
        "update": last["weights_version"],
        # Of a shard, which takes one gradient of each push.
        "gradient": last["weights_version"] + last.get("gradients_dropped", 0),
    }
    for direction, metric in (("up", "bytes_from_actors"), ("down", "bytes_to_actors")):
        told = sum(edge.bytes_for(direction, units, role.count) for role, edge in program.edges)
        assert told == pytest.approx(last.get(metric, 0), rel=0.05), direction
        assert bool(told) == (case not in ("a3c", "sebulba", "anakin")), "there nothing is handed over"


@pytest.mark.parametrize("arch", ["seed", "impala", "rapid", "sebulba", "anakin"])
def test_hosts_reduce_the_bytes_that_are_declared(arch: str, tmp_path: Path) -> None:
    """Collectives of JAX count nothing: what one update adds up over the hosts is read from its program."""
    env = "gymnax:CartPole-v1" if arch == "anakin" else "toy:catch"
    config = tiny(env, tmp_path / "run", arch=arch, agent="ppo", hosts=2, hidden=(64,))
    spec = spec_of(env)
    agent = build_agent(config, spec)
    update = Update(agent, jax.devices()[:1])
    state = jax.eval_shape(update.begin, jax.random.key(0))
    batch = example_unroll(agent, spec, agent.data.trained_length, agent.data.batch_size)
    step = jax.make_jaxpr(update.passes)(state, batch)
    reduced = _added_up(step.jaxpr)
    (told,) = [
        each.bytes
        for _, edge in declared(config).edges
        for each in edge.traffic
        if each.what == "gradient, all-reduced"
    ]
    assert told == pytest.approx(reduced, rel=0.05)


def _added_up(jaxpr: Any) -> int:
    """The bytes that a traced program adds up over its devices, each place in it counted once."""
    found = 0
    for equation in jaxpr.eqns:
        if equation.primitive.name.startswith("psum"):
            found += sum(each.aval.size * each.aval.dtype.itemsize for each in equation.invars)
        for part in jax.tree.leaves(equation.params, is_leaf=lambda leaf: hasattr(leaf, "eqns")):
            found += _added_up(getattr(part, "jaxpr", part)) if hasattr(part, "eqns") else 0
    return found


@pytest.mark.parametrize("case", shortened(CASES, ("distbelief",)))
def test_the_same_program_runs_in_threads(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every role's entry, with another launcher; the engine does not change what is computed."""
    monkeypatch.chdir(Path(__file__).parents[1])  # where the games are
    launchers: list[ThreadLauncher] = []

    def launch(folder: RunFolder, transport: str) -> ThreadLauncher:
        launchers.append(ThreadLauncher(folder, transport))
        return launchers[-1]

    settings = {**settings_of(case, tmp_path), "frames": 1_000, "transport": "shm"}
    config = tiny(folder=tmp_path / "threads", **settings)
    run = train(config, launch=launch).to_json()
    assert balanced(run)
    (launcher,) = launchers
    program = declared(config)
    wanted = [(role.name, index) for role in program.roles if role.entry for index in range(role.count)]
    assert sorted((task.role, task.index) for task in launcher.started) == sorted(wanted)
    if "lag" in settings:
        train(tiny(folder=tmp_path / "processes", **settings))
        one, other = params(tmp_path / "threads"), params(tmp_path / "processes")
        for leaf, array in one.items():
            np.testing.assert_array_equal(array, other[leaf], err_msg=leaf)


@pytest.mark.parametrize(
    ("settings", "roles"),
    [
        ({"arch": "seed"}, {"learner": 1, "actor": 2}),
        ({"arch": "impala"}, {"learner": 1, "actor": 2}),
        ({"arch": "apex", **REPLAY}, {"learner": 1, "actor": 2}),
        ({"arch": "a2c", "agent": "a2c"}, {"learner": 1, "actor": 1}),
        ({"arch": "sebulba"}, {"learner": 1, "actor": 2}),
        ({"arch": "anakin"}, {"learner": 1}),
        ({"arch": "a3c", "agent": "a2c"}, {"learner": 1, "actor": 2}),
        ({"arch": "rapid", "forward_servers": 2}, {"learner": 1, "forward-pass server": 2, "actor": 2}),
        ({"arch": "gorila", **REPLAY, "shards": 3}, {"shard": 3, "head": 1, "worker": 2}),
        ({**CASES["distbelief"], "actors": 3}, {"shard": 2, "head": 1, "replica": 3}),
    ],
)
def test_every_process_and_thread_is_of_a_role(
    settings: dict[str, Any], roles: dict[str, int], tmp_path: Path
) -> None:
    env = "gymnax:CartPole-v1" if settings["arch"] == "anakin" else "toy:catch"
    if settings.get("agent") == "bc":
        settings = {**settings, "dataset": str(write_catch(tmp_path / "data"))}
    config = tiny(env, tmp_path / "run", **settings)
    program = declared(config)
    assert {role.name: role.count for role in program.roles} == roles
    assert program.hosts == 1
    # Threads of the head have no address that anybody dials.
    inside = [role.name for role in program.roles if role.entry is None]
    assert program.head in inside
    assert carrier_of(config) in ("inproc", "shm")


@pytest.mark.parametrize("arch", ["seed", "rapid"])
def test_actors_that_only_step_may_step_aside(arch: str, tmp_path: Path) -> None:
    for chosen, shown in (
        ({}, "on idle cores beside an accelerator"),
        ({"actor_niceness": 0}, ""),
        ({"actor_niceness": 7}, "nice 7"),
        ({"actor_niceness": 20}, "on idle cores"),
    ):
        program = declared(tiny("toy:catch", tmp_path / "run", arch=arch, **chosen))
        niceness = {role.name: role.niceness for role in program.roles}
        assert niceness.pop("actor") == chosen.get("actor_niceness")
        assert set(niceness.values()) == {0}
        actor = next(line for line in lines(program, "shm") if line.startswith("actor "))
        assert actor.endswith(f", {shown}") if shown else actor.endswith("at most")
    with pytest.raises(ConfigError, match="from 0 to 20"):
        tiny("toy:catch", tmp_path / "run", arch=arch, actor_niceness=21)


@pytest.mark.parametrize("case", ["impala", "apex", "gorila"])
def test_who_decides_does_not_step_aside(case: str, tmp_path: Path) -> None:
    program = declared(tiny(folder=tmp_path / "run", **settings_of(case, tmp_path)))
    assert {role.niceness for role in program.roles} == {0}


def test_without_processes_actors_are_threads(tmp_path: Path) -> None:
    config = tiny("toy:catch", tmp_path / "run", transport="inproc")
    shown = list(lines(declared(config), carrier_of(config)))
    assert "the head" in next(line for line in shown if line.startswith("learner "))
    assert "thread of the head" in next(line for line in shown if line.startswith("actor "))
    assert any("one process" in line for line in shown)


def test_guests_are_declared_beside_the_actors_that_a_run_counts_on(tmp_path: Path) -> None:
    program = declared(tiny("toy:catch", tmp_path / "run", on="ray", guests=3))
    actor = program["actor"]
    assert (actor.count, actor.guests, actor.elastic) == (2, 3, True)
    assert Program.from_json(program.to_json())["actor"] == actor
    assert "and 3 guests that come and go" in next(
        line for line in lines(program, "shm") if line.startswith("actor ")
    )
    alone = declared(tiny("toy:catch", tmp_path / "run"))["actor"]
    assert (alone.guests, alone.elastic) == (0, False)
