"""Agents, as a run's settings have them."""

import dataclasses

import jax
import pytest

import seedbed
from seedbed.launch.build import build_agent, outlook, told_preset
from seedbed.nets.build import COMPUTE_DTYPES
from seedbed.registry import AGENTS
from seedbed.testing.agents import SPECS, at, experience


@pytest.mark.parametrize("agent", AGENTS.names)
def test_every_agent_convolves_in_the_dtype_that_is_asked_for(agent: str) -> None:
    spec = SPECS["image"]
    if agent == "sac":
        spec = dataclasses.replace(spec, action=SPECS["bounded"].action)
    step, found = at(experience(spec, 1, 2), 0), {}
    for dtype in COMPUTE_DTYPES[:2]:
        config = seedbed.configure(
            "ALE/Pong-v5", agent=agent, preset="none", compute_dtype=dtype, frames=1000
        )
        ours = build_agent(config, spec)
        params = jax.eval_shape(ours.init, jax.random.key(0))
        program = jax.make_jaxpr(ours.mode)(params, step, ours.initial_state(2))
        found[dtype] = "bf16[" in str(program)
    assert found == {"float32": False, "bfloat16": True}


def test_a_run_says_how_much_it_will_learn_and_how_often_its_target_is_renewed() -> None:
    def lines(agent: str, **settings: object) -> list[str]:
        config = seedbed.configure("toy:catch", agent=agent, preset="none", **settings)
        return outlook(config, SPECS["vector"], build_agent(config, SPECS["vector"]))

    dqn = {"batch_size": 32, "replay_ratio": 4.0, "replay_min_size": 0}
    assert lines("dqn", frames=160_000, target_period=250, **dqn) == [
        "20,000 updates, 80 target renewals in this run"
    ]
    few = lines("dqn", frames=160_000, target_period=1_000, **dqn)
    assert few[0] == "20,000 updates, 20 target renewals in this run"
    assert "20 renewals of the target network are few" in few[1]
    assert "--target-period 400" in few[1]
    assert lines("dqn", **dqn) == [], "a run without an end has any number of updates"
    assert lines("dqn", frames=160_000, **{**dqn, "replay_ratio": None}) == []
    assert lines("ppo", frames=2048 * 3) == ["960 updates in this run"]
    sac = seedbed.configure("toy:catch", agent="sac", preset="none", frames=21_000)
    assert outlook(sac, SPECS["bounded"], build_agent(sac, SPECS["bounded"])) == [
        "20,000 updates in this run"
    ]


@pytest.mark.parametrize(
    ("settings", "late"),
    [
        ({"agent": "ppo", "envs_per_actor": 64}, True),
        ({"agent": "ppo", "envs_per_actor": 16}, False),
        ({"agent": "ppo", "envs_per_actor": 64, "lag": "free"}, False),
        ({"agent": "ppo", "envs_per_actor": 64, "batch_size": 128}, False),
        ({"agent": "vtrace", "envs_per_actor": 64, "lag": 0}, False),
    ],
)
def test_a_run_says_if_most_of_a_round_is_trained_on_late(settings: dict[str, object], late: bool) -> None:
    config = seedbed.configure("toy:catch", preset="none", **settings)
    lines = outlook(config, SPECS["vector"], build_agent(config, SPECS["vector"]))
    assert bool(lines) == late
    assert not late or "give --batch-size 128" in lines[0]


def test_a_run_says_which_preset_it_begins_with_and_what_for_if_the_agent_is_the_presets() -> None:
    def told(env: str, **settings: object) -> list[str]:
        return told_preset(seedbed.configure(env, **settings))

    (general,) = told("my_world:World")
    assert general.startswith("preset general: Any environment that has no preset of its own: PPO, ")
    assert told("my_world:World", agent="dqn") == [], "it has no settings for that"
    assert told("my_world:World", preset="none") == []
    assert told("CartPole-v1", agent="dqn") == ["preset cartpole"]
    assert told("my_world:World", preset="catch")[0].startswith("preset catch: ")


def test_a_run_for_actors_from_elsewhere_says_that_nothing_corrects_for_their_lag() -> None:
    def warned(**settings: object) -> list[str]:
        config = seedbed.configure("my_world:World", listen=("0.0.0.0:0",), **settings)
        return outlook(config, SPECS["vector"], build_agent(config, SPECS["vector"]))

    assert any("nothing corrects for that: give --correction vtrace" in line for line in warned())
    assert not any("corrects" in line for line in warned(correction="vtrace"))
    assert not any("corrects" in line for line in warned(agent="vtrace"))
