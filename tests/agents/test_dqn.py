"""DQN against a slow oracle, its special case against rlax, and what it refuses."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import rlax
from harness import thorough

from seedbed.agents.dqn import DQNSettings, make_agent
from seedbed.errors import ConfigError
from seedbed.nets.network import Network
from seedbed.testing.agents import SPECS, Subject, experience
from seedbed.types import EnvSpec, Exploration, TimeStep, Unroll

PLAIN = {"n_step": 1, "double": False, "dueling": False, "huber": 1.0, "priority_exponent": 0.0}


def subject(spec: str, **settings) -> Subject:
    agent = make_agent(DQNSettings(unroll_length=8, batch_size=4, head_size=16, **settings), SPECS[spec])
    return Subject(agent, SPECS[spec])


def q_at(one: Subject, params, unroll: Unroll, step: int, row: int) -> np.ndarray:
    """The q-values of one step, from frames that are stacked by hand: those before the episode are its first."""
    frames = np.asarray(unroll.timestep.observation)[:, row]
    first = np.asarray(unroll.timestep.first)[:, row]
    stack, at = [], step
    for _ in range(one.spec.frame_stack):
        stack.append(frames[at])
        at -= 0 if first[at] or at == 0 else 1
    state = one.agent.initial_state(1)
    if "frames" in state:
        older = np.concatenate(stack[:0:-1], axis=-1)
        state["frames"]["observation"] = jnp.asarray(older)[None]
    zero = np.zeros(1, np.float32)
    alone = TimeStep(frames[step][None], zero, zero > 0, zero > 0, zero > 0)
    output, _ = one.act(params, jax.random.split(jax.random.key(0), 1), alone, state)
    return np.asarray(output.record["q"][0], np.float64)


def slow_errors(one: Subject, settings: DQNSettings, target, unroll: Unroll, start: int) -> list[float]:
    errors = []
    steps = len(unroll.action)
    for row in range(unroll.version.shape[1]):
        terminated = np.asarray(unroll.timestep.terminated)[:, row]
        truncated = np.asarray(unroll.timestep.truncated)[:, row]
        total, weight, at = 0.0, 1.0, start
        while at < steps and not (at > start and (terminated[at] or truncated[at])):
            total += weight * float(unroll.timestep.reward[at + 1, row])
            weight *= settings.discount
            at += 1
        if not terminated[at]:
            theirs = q_at(one, target, unroll, at, row)
            chooser = q_at(one, one.params, unroll, at, row) if settings.double else theirs
            total += weight * theirs[chooser.argmax()]
        q = q_at(one, one.params, unroll, start, row)
        errors.append(total - q[int(unroll.action[start, row])])
    return errors


@pytest.mark.parametrize("spec", ["image", *thorough("vector")])
@pytest.mark.parametrize("double", [True, False])
def test_errors_are_those_of_a_walk_ahead(spec, double):
    one = subject(spec, n_step=3, double=double)
    start = one.agent.data.replay.start
    target = jax.tree.map(lambda x: x + 0.05 * jnp.sin(jnp.arange(x.size)).reshape(x.shape), one.params)
    ends = [(start + 1, 0, "terminated"), (start + 2, 1, "truncated"), (start + 1, 2, "truncated")]
    unroll = one.unroll(ends, seed=3)
    loss, (metrics, priorities) = jax.jit(one.agent.loss)(one.params, target, unroll, jax.random.key(0))
    settings = DQNSettings(n_step=3, double=double)
    expected = np.asarray(slow_errors(one, settings, target, unroll, start))
    np.testing.assert_allclose(priorities, np.abs(expected), atol=2e-5)
    assert float(loss) == pytest.approx(np.mean(unroll.weight * 0.5 * expected**2), abs=2e-5)
    assert float(metrics["td_error"]) == pytest.approx(np.abs(expected).mean(), abs=2e-5)


def test_the_special_case_is_dqn():
    one = subject("vector", **PLAIN)
    unroll = one.unroll(seed=1)
    assert one.agent.data.replay.window == 1
    assert one.agent.priorities is None
    q = [np.stack([q_at(one, one.params, unroll, t, row) for row in range(4)]) for t in (0, 1)]
    errors = jax.vmap(rlax.q_learning)(
        q[0], unroll.action[0], unroll.timestep.reward[1], jnp.full(4, 0.99), q[1]
    )
    expected = np.mean(unroll.weight * np.asarray(rlax.huber_loss(errors, 1.0)))
    loss, _ = jax.jit(one.agent.loss)(one.params, one.params, unroll, jax.random.key(0))
    assert float(loss) == pytest.approx(expected, abs=1e-5)


def test_priorities_by_what_was_recorded_are_those_of_the_loss_with_the_actors_values():
    one = subject("vector", n_step=2, double=False)
    plan = one.agent.data
    steps = experience(
        one.spec, plan.overlap + plan.unroll_length + 1, 4, [(3, 0, "terminated"), (5, 1, "truncated")]
    )
    whole = one.play(steps)
    recorded = np.asarray(one.agent.priorities(whole))
    assert recorded.shape == (8, 4)
    # All but the last, whose bootstrap the policy has not seen yet.
    for item in range(7):
        window = slice(item, item + 3)
        unroll = Unroll(
            jax.tree.map(lambda x, w=window: x[w], whole.timestep),
            whole.action[item : item + 2],
            None,
            one.initial_state(4),
            None,
            np.ones(4, np.float32),
        )
        _, (_, priorities) = jax.jit(one.agent.loss)(one.params, one.params, unroll, jax.random.key(0))
        np.testing.assert_allclose(recorded[item], priorities, atol=2e-5)


def test_environments_explore_by_their_ranks():
    one = subject("vector")
    state = one.agent.explore(
        one.agent.initial_state(3),
        Exploration(jnp.asarray([0.0, 1.0, 1.0]), jnp.asarray([False, False, True])),
    )
    np.testing.assert_allclose(state["epsilon"], [0.4, 0.4**8, 1e-3], rtol=1e-5)


@pytest.mark.parametrize(
    ("settings", "options", "says"),
    [
        ({}, {"lstm": 8}, "use --agent r2d2"),
        ({"unroll_length": 2, "n_step": 3}, {"spec": "image"}, "unroll_length is 2, and has to be 4 or more"),
        ({}, {"spec": "continuous"}, "q-values are for one choice among a few"),
        ({}, {"spec": "tree"}, "q-values are for one choice among a few"),
    ],
)
def test_what_does_not_fit_is_refused(settings, options, says):
    spec: EnvSpec = SPECS[options.pop("spec", "vector")]
    with pytest.raises(ConfigError, match=says):
        make_agent(DQNSettings(**settings), spec, Network(**options))


@pytest.mark.parametrize(
    ("setting", "value"),
    [("n_step", 0), ("huber", -1.0), ("replay_ratio", 0.0), ("epsilon_base", 1.5), ("target_period", 0)],
)
def test_settings_that_make_no_sense_are_refused(setting, value):
    with pytest.raises(ConfigError, match=setting):
        DQNSettings(**{setting: value})
