"""Several agents in one environment: rows of a batch, of which some are absent, and numbers that were made by hand."""

from __future__ import annotations

import importlib.util
from contextlib import closing
from typing import Any

import numpy as np
import pytest

from seedbed.acting.unrolls import resets_at, resets_in
from seedbed.envs.episodes import EpisodeMeter
from seedbed.envs.make import imports_module, make, spec_of
from seedbed.errors import ConfigError, EnvironmentFault
from seedbed.testing.environments import check_environment, record, sample_actions
from seedbed.types import ArraySpec, EnvSpec

MINE = "pettingzoo:parallel_worlds"
OWN = {"(policies)": "own"}
"""As an option that no environment can have: each agent has a policy of its own."""
ALIKE = {"(policies)": "kind"}
"""The same: agents of a kind share one."""
PETTINGZOO = importlib.util.find_spec("pettingzoo") is not None


@pytest.mark.parametrize(
    ("env_id", "options", "rows"),
    [
        (f"{MINE}:Scripted", {}, 6),
        (f"{MINE}:Scripted", {"listed": True}, 6),
        (f"{MINE}:Meeting", {}, 4),
        (f"{MINE}:Masked", {}, 4),
        (f"{MINE}:Nim", {}, 4),
        (f"{MINE}:Nim", {"masked": False}, 4),
        (f"{MINE}:Scripted", {**OWN, "listed": True}, 6),
        (f"{MINE}:Nim", OWN, 4),
        (f"{MINE}:Unequal", OWN, 4),
        (f"{MINE}:Unequal", {**OWN, "masked": True}, 4),
    ],
)
def test_the_contract(env_id: str, options: dict[str, Any], rows: int) -> None:
    check_environment(lambda n: make(env_id, n, options), num_envs=rows, steps=60)


def recorded(steps: int, env_id: str = f"{MINE}:Scripted", rows: int = 3, **options: Any) -> Any:
    with closing(make(env_id, rows, options)) as env:
        return record(env, 0, sample_actions(env.spec.action, rows, steps, 0))


# The rows of an episode of Scripted and of the reset after it; the absent are first and terminated at once.
FIRST = [[1, 1, 1], [0, 0, 1], [0, 0, 1], [0, 1, 1], [0, 1, 0], [0, 1, 0], [1, 1, 1]]
TERMINATED = [[0, 0, 1], [0, 0, 1], [0, 1, 1], [0, 1, 0], [0, 1, 0], [0, 1, 1], [0, 0, 1]]
TRUNCATED = [[0, 0, 0]] * 5 + [[1, 0, 0], [0, 0, 0]]
REWARD = [[0, 0, 0], [1, 10, 0], [2, 10, 0], [3, 0, 0], [4, 0, 100], [5, 0, 100], [0, 0, 0]]
# What is declared begins at 1: of the absent it is that.
SEEN = [
    [[1, 1], [1, 2], [1, 1]],
    [[2, 1], [2, 2], [1, 1]],
    [[3, 1], [3, 2], [1, 1]],
    [[4, 1], [1, 1], [4, 3]],
    [[5, 1], [1, 1], [5, 3]],
    [[6, 1], [1, 1], [6, 3]],
    [[1, 1], [1, 2], [1, 1]],
]


@pytest.mark.parametrize("listed", [False, True], ids=["", "the dead stay in agents"])
def test_agents_that_die_and_come_late_have_rows_that_say_so(listed: bool) -> None:
    steps = recorded(6, listed=listed).steps
    for name, wanted in (
        ("first", FIRST),
        ("terminated", TERMINATED),
        ("truncated", TRUNCATED),
        ("reward", REWARD),
    ):
        assert [getattr(step, name).tolist() for step in steps] == wanted, name
    assert [step.observation.tolist() for step in steps] == SEEN


def test_who_waits_for_its_turn_can_do_one_thing_which_does_nothing() -> None:
    with closing(make(f"{MINE}:Nim", 2, {"stones": 5})) as env:
        step = env.reset(0)
        masks = [[[1, 1, 1], [1, 0, 0]], [[1, 0, 0], [1, 1, 0]]]
        # The first takes three, the second the last two: actions of who waits are nowhere.
        for actions, mask in zip([[2, 0], [0, 1]], masks, strict=True):
            assert step.observation["action_mask"].tolist() == mask
            env.send(np.array(actions, np.int32))
            step = env.receive()
        assert step.terminated.tolist() == [True, True] and step.reward.tolist() == [-1, 1]
        env.send(np.zeros(2, np.int32))
        assert env.receive().first.tolist() == [True, True]


def test_environments_are_one_after_the_other() -> None:
    steps = recorded(6, rows=6).steps
    for step, flags in zip(steps, FIRST, strict=True):
        assert step.first.tolist() == [*flags, *flags]
    spec = spec_of(f"{MINE}:Scripted")
    assert spec.agents == ("stays", "dies", "comes") and spec.rows == 3
    assert EnvSpec.from_json(spec.to_json()) == spec
    assert spec_of("toy:catch").rows == 1 and "agents" not in spec_of("toy:catch").to_json()


def test_returns_and_counts_of_steps_are_of_the_agents_that_were_there() -> None:
    steps, meter = recorded(12).steps, EpisodeMeter(3)
    told = []
    for t, step in enumerate(steps):
        episodes = meter.add(step)
        told += [(t, row, *episode) for row, episode in zip(meter.finished, episodes, strict=True)]
    # An agent's steps are those from its first one on: rewards 1 + 2 + 3 + 4 + 5, 10 + 10 and 100 + 100.
    once = [(2, 1, 20.0, 2), (5, 0, 15.0, 5), (5, 2, 200.0, 2)]
    assert told == once + [(t + 6, row, total, length) for t, row, total, length in once]
    # Of six decisions of each of three agents 5, 2 and 2 are carried out, wherever they are counted.
    assert sum(resets_at(step) for step in steps[:-1]) == 2 * (18 - 9)
    assert resets_in(np.stack([step.first for step in steps[1:]])) == 2 * (18 - 9)


def test_the_info_of_an_agents_end_is_told() -> None:
    with closing(make(f"{MINE}:Scripted", 3)) as env:
        env.reset(0)
        for _ in range(5):
            env.send(np.zeros(3, np.int32))
            env.receive()
        assert env.tell() == {"steps": [2.0 + 5.0 + 5.0, 3]}


def test_actions_reach_their_agents_and_begin_where_the_space_does() -> None:
    with closing(make(f"{MINE}:Meeting", 4)) as env:
        step = env.reset(3)
        for _ in range(20):
            right = (step.observation["number"] + step.observation["own"]) % 4
            env.send(np.where(np.arange(4) < 2, right, (right + 1) % 4).astype(np.int32))
            over, step = step.truncated, env.receive()
            wanted = np.where(over, 0, [1, 1, 0, 0])
            assert step.reward.tolist() == wanted.tolist()


def test_observations_say_which_agent_they_are_of_also_while_it_is_away() -> None:
    steps = recorded(6, rows=6, **OWN).steps
    for step, seen in zip(steps, SEEN, strict=True):
        assert step.observation["agent_index"].tolist() == [0, 1, 2, 0, 1, 2]
        assert step.observation["observation"].tolist() == [*seen, *seen]
    plain = make(f"{MINE}:Meeting", 2, OWN)
    plain.close()
    assert sorted(plain.spec.observation) == ["agent_index", "number", "own"]
    assert plain.spec.observation["agent_index"] == ArraySpec((), "int32", (2,))
    assert plain.spec.action_mask is None


def test_spaces_of_several_kinds_are_padded_to_the_longest() -> None:
    with closing(make(f"{MINE}:Unequal", 4, OWN)) as env:
        spec, step = env.spec, env.reset(3)
        assert spec.action.num_values == (5,)
        shown = spec.observation["observation"]
        # Where the caller's end, the answerer's bounds and 0 remain.
        low, high = shown.bounds
        assert low.tolist() == [-1] * 6 and high.tolist() == [3] * 6
        for _ in range(20):
            seen = step.observation["observation"]
            assert (seen[::2, 4:] == 0).all() and (seen[::2, :4].sum(axis=1) == 1).all()
            assert step.observation["action_mask"].tolist() == [[1, 1, 1, 1, 0], [1, 1, 1, 1, 1]] * 2
            number = seen[::2, :4].argmax(axis=1)
            assert (seen[1::2, 1:5].argmax(axis=1) == number).all()
            # The answerer's actions begin at -1, which is never right.
            actions = np.stack([number, (number + 1) % 4 + 1], axis=1).ravel().astype(np.int32)
            env.send(actions)
            over, step = step.truncated, env.receive()
            assert step.reward.tolist() == np.where(over, 0, 1).tolist()


def test_masks_that_are_there_are_padded_with_what_is_forbidden() -> None:
    with closing(make(f"{MINE}:Unequal", 2, {**OWN, "masked": True})) as env:
        step, lasts = env.reset(0), set()
        for _ in range(7):
            caller, answerer = step.observation["action_mask"].tolist()
            number = int(step.observation["number"][0].argmax())
            assert caller == [1, 1, 1, int(number == 3), 0] and answerer == [1] * 5
            lasts.add(caller[3])
            env.send(np.zeros(2, np.int32))
            step = env.receive()
        assert lasts == {0, 1}


def test_actions_of_who_is_away_are_among_its_own() -> None:
    # An environment that keeps its dead in agents is given an action of theirs, which no mask could forbid.
    with closing(make(f"{MINE}:Lingering", 2, OWN)) as env:
        env.reset(0)
        for _ in range(5):
            env.send(np.array([6, 6], np.int32))
            env.receive()


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("nobody", "leaves no name in agents"),
        ("vanishes", "taken dies out of agents without an end"),
        ("stranger", "of which possible_agents knows nothing"),
        ("blind", "with an entry for stays"),
    ],
)
def test_an_environment_that_breaks_the_api_is_told(fault: str, said: str) -> None:
    with pytest.raises(EnvironmentFault, match=said):
        recorded(4, fault=fault)


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("Kinds", {}, r"observations of its agents differ \(caller: Dict.*; answerer: Box.*pad_observations"),
        (
            "Kinds",
            {"differ": "actions"},
            r"actions of its agents differ \(caller: Discrete\(4, start=1\); answerer: ",
        ),
        (
            "Kinds",
            {},
            r"one policy decides for all of them: give each agent its own by --policies own, or each kind one by",
        ),
        (
            "Kinds",
            OWN,
            r"observations of its agents differ \(caller: Dict.*; answerer: Box.*only vectors of reals",
        ),
        (
            "Kinds",
            {**OWN, "differ": "kinds of actions"},
            r"actions of its agents differ \(caller: Discrete\(4, start=1\); answerer: Box.*only Discrete ones",
        ),
        (
            "Kinds",
            {**OWN, "differ": "masks"},
            r"action_mask is MultiBinary\(3\), and no mask of Discrete\(7\)",
        ),
        ("Kinds", {**OWN, "differ": "names"}, "have an entry 'agent_index'"),
        (
            "Numbered",
            ALIKE,
            r"observations of its agents differ \(agent_0: .*; agent_1: .*kind 'agent' are to share a policy",
        ),
        ("Nim", {"reals": True}, "its agents take turns, and first has actions of Box"),
        ("SCHEDULE", {}, "SCHEDULE"),
        ("Parallel", {}, "possible_agents"),
        ("Late", {}, r"has no possible_agents: .* before reset\(\)"),
        ("Nothing", {}, "Nothing"),
        ("the_same", {}, "the same object twice"),
        ("Meeting", {"lenght": 3}, "lenght"),
    ],
)
def test_refusals(name: str, options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        make(f"{MINE}:{name}", 4, options)


def test_one_that_takes_turns_may_come_late_and_end_early() -> None:
    steps = recorded(7, f"{MINE}:Relay").steps
    there = []
    for step in steps:
        absent = step.first & step.terminated
        there.append("".join("x-"[each] for each in absent.astype(int)))
    assert there == ["x-x", "x-x", "xxx", "xxx", "xxx", "-xx", "-xx", "-xx"]
    ends = [step.terminated & ~step.first for step in steps]
    assert [each.tolist() for each in ends[4::3]] == [[True, False, False], [False, True, True]]
    assert not np.any(ends[:4]) and not np.any(ends[5:7])


def test_rows_are_whole_environments() -> None:
    with pytest.raises(ConfigError, match=r"3 agents .*stays, dies and comes.* multiple of 3 \(of 6"):
        make(f"{MINE}:Scripted", 4)
    with closing(make(f"{MINE}:Scripted", 4, rounded_up=True)) as env:
        assert env.num_envs == 6


def test_a_picture_is_of_the_first_environment() -> None:
    with closing(make(f"{MINE}:Meeting", 2, render=True)) as env:
        assert env.reset(0).observation["number"][0] * 60 == env.render()[0, 0, 0]
        assert env.render_fps == 5


def test_making_one_imports_what_it_names() -> None:
    assert imports_module(f"{MINE}:Meeting")


@pytest.mark.skipif(not PETTINGZOO, reason="an extra: pip install 'seedbed[pettingzoo]'")
@pytest.mark.parametrize("game", ["rps_v2:parallel_env", "rps_v2:env", "connect_four_v3:env"])
def test_pettingzoos_own(game: str) -> None:
    env_id = f"pettingzoo:pettingzoo.classic.{game}"
    check_environment(lambda n: make(env_id, n), num_envs=4, steps=60)
