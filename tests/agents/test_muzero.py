"""MuZero against a slow oracle in float64, its parts by hand, and the settings and worlds that it refuses."""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from seedbed.agents import muzero
from seedbed.agents.muzero import MuZeroSettings, make_agent
from seedbed.errors import ConfigError
from seedbed.evaluation.policy import deciding
from seedbed.nets.latent_model import scale_gradient, unit
from seedbed.nets.network import Network
from seedbed.testing.agents import SPECS, Subject, at, experience

SMALL = {
    "unroll_length": 8,
    "batch_size": 4,
    "simulations": 4,
    "state_size": 6,
    "model_size": 8,
    "support": 5,
}
NET = Network(hidden=(8, 8))
ENDS = [(1, 0, "terminated"), (2, 1, "truncated"), (4, 2, "terminated"), (5, 3, "truncated")]
K, N = 3, 2


def subject(**settings) -> Subject:
    settings = MuZeroSettings(**{**SMALL, "unroll_steps": K, "n_step": N, **settings})
    return Subject(make_agent(settings, SPECS["vector"], NET), SPECS["vector"])


def other(params):
    return jax.tree.map(
        lambda x: x + 0.2 * jnp.sin(jnp.arange(x.size, dtype=x.dtype)).reshape(x.shape), params
    )


# -- an oracle: one row after the other, in float64 -----------------------------------------------------------


def dense(layer, x):
    return x @ np.asarray(layer["kernel"], np.float64) + np.asarray(layer["bias"], np.float64)


def scaled(x):
    return (x - x.min()) / (x.max() - x.min() + 1e-5)


def represented(params, x):
    tree = params["representation"]["params"]
    x = np.asarray(x, np.float64)
    for name in ("Dense_0", "Dense_1"):
        x = np.tanh(dense(tree["torso"]["MLP_0"][name], x))
    return scaled(dense(tree["state"], x))


def stepped(params, state, action):
    tree = params["dynamics"]["params"]
    hidden = np.maximum(dense(tree["MLP_0"]["Dense_0"], np.concatenate([state, np.eye(5)[action]])), 0)
    return scaled(state + dense(tree["state"], hidden)), dense(tree["reward"], hidden)


def predicted(params, state):
    tree = params["prediction"]["params"]
    hidden = np.maximum(dense(tree["MLP_0"]["Dense_0"], state), 0)
    return dense(tree["policy"], hidden), dense(tree["value"], hidden)


def log_softmax(x):
    return x - x.max() - np.log(np.exp(x - x.max()).sum())


def number(logits):
    h = (np.exp(log_softmax(logits)) * np.arange(-5, 6)).sum()
    root = (np.sqrt(1 + 4e-3 * (abs(h) + 1 + 1e-3)) - 1) / 2e-3
    return np.sign(h) * (root**2 - 1)


def of_number(logits, x):
    h = np.clip(np.sign(x) * (np.sqrt(abs(x) + 1) - 1) + 1e-3 * x, -5, 5)
    low = min(int(np.floor(h)), 4)
    target = np.zeros(11)
    target[low + 5], target[low + 6] = 1 - (h - low), h - low
    return -(target * log_softmax(logits)).sum()


def slow(settings, params, target, unroll, anything):
    """Losses of the rows, and sizes of errors at their first step."""
    losses, errors = [], []
    for row in range(unroll.version.shape[1]):
        step = jax.tree.map(lambda x, row=row: np.asarray(x)[:, row], unroll.timestep)
        end = next((t for t in range(1, K + N + 1) if step.terminated[t] or step.truncated[t]), None)
        values = np.asarray(unroll.record["value"][:, row], np.float64).copy()
        if end is not None and step.truncated[end]:
            values[end] = number(predicted(target, represented(target, step.observation[end]))[1])

        def goal(k, step=step, end=end, values=values):
            total, weight, t = 0.0, 1.0, k
            while t < k + N and t != end:
                total, weight, t = (
                    total + weight * float(step.reward[t + 1]),
                    weight * settings.discount,
                    t + 1,
                )
            return total if t == end and step.terminated[t] else total + weight * values[t]

        state, loss = represented(params, step.observation[0]), 0.0
        for k in range(K + 1):
            decided, over = end is None or k < end, end is not None and k >= end and step.terminated[end]
            policy, value = predicted(params, state)
            share = 1.0 if k == 0 else 1 / K
            if decided:
                improved = np.asarray(unroll.record["policy"][k, row], np.float64)
                loss -= share * (improved * log_softmax(policy)).sum()
            if decided or over:
                loss += share * settings.value_cost * of_number(value, goal(k) if decided else 0.0)
            if k == 0:
                errors.append(abs(goal(0) - number(value)))
            if k < K:
                action = int(anything[k, row] if over else unroll.action[k, row])
                state, reward = stepped(params, state, action)
                if decided or over:
                    loss += of_number(reward, float(step.reward[k + 1]) if decided else 0.0) / K
        losses.append(loss)
    return np.array(losses), np.array(errors)


def test_the_loss_is_that_of_a_walk_over_one_row_after_the_other():
    one, key = subject(), jax.random.key(5)
    target, settings = other(one.params), MuZeroSettings()
    for ends in (ENDS, []):
        unroll = one.unroll(ends, seed=3)
        loss, (_, priorities) = jax.jit(one.agent.loss)(one.params, target, unroll, key)
        anything = jax.random.randint(jax.random.split(key)[1], (K, 4), 0, 5, jnp.int32)
        losses, errors = slow(settings, one.params, target, unroll, anything)
        assert float(loss) == pytest.approx(np.mean(unroll.weight * losses), rel=1e-4)
        np.testing.assert_allclose(priorities, errors, rtol=1e-3, atol=1e-4)


def test_what_is_reanalysed_is_what_the_target_parameters_would_record_now():
    plain, key = subject(), jax.random.key(5)
    target, unroll = other(plain.params), plain.unroll(ENDS, seed=3)
    keys = jax.random.split(jax.random.split(key)[0], (K + N + 1, 4))
    records = []
    for t in range(K + N + 1):
        output, _ = plain.act(target, keys[t], at(unroll.timestep, t), {})
        records.append(output.record)
    anew = unroll._replace(record=jax.tree.map(lambda *rows: np.stack(rows), *records))
    assert np.abs(anew.record["value"] - unroll.record["value"]).min() > 1e-6
    expected, _ = jax.jit(plain.agent.loss)(plain.params, target, anew, key)
    found, _ = jax.jit(subject(reanalyse=1.0).agent.loss)(plain.params, target, unroll, key)
    assert float(found) == pytest.approx(float(expected), rel=1e-4)


def test_only_the_share_of_the_rows_is_reanalysed():
    plain, half, key = subject(), subject(reanalyse=0.5), jax.random.key(5)
    unroll, target = plain.unroll(seed=3), other(plain.params)
    of_recorded, of_half = jax.jit(plain.agent.loss), jax.jit(half.agent.loss)
    for row in range(4):
        alone = unroll._replace(weight=np.eye(4, dtype=np.float32)[row])
        recorded, _ = of_recorded(plain.params, target, alone, key)
        found, _ = of_half(plain.params, target, alone, key)
        assert (abs(float(recorded - found)) > 1e-5) is (row < 2)


def test_half_of_the_gradient_goes_through_each_step_of_the_dynamics():
    np.testing.assert_allclose(jax.grad(lambda x: scale_gradient(x, 0.5) ** 2)(3.0), 3.0)
    settings = MuZeroSettings(**SMALL)
    model = muzero._make_model(settings, SPECS["vector"], NET)
    params = subject().params
    states, actions = jax.random.uniform(jax.random.key(0), (2, 6)), jnp.array([[1, 2], [0, 4]])

    def plain(states, k):
        for step in range(k + 1):
            states, reward = model.networks.step(params, states, actions[step])
        return jnp.sum(jnp.sin(reward))

    for k in range(2):
        halved = jax.grad(lambda s, k=k: jnp.sum(jnp.sin(muzero._unrolled(model, params, s, actions)[1][k])))
        whole = jax.grad(plain)(states, k)
        assert float(jnp.abs(whole).max()) > 1e-4
        np.testing.assert_allclose(halved(states), 0.5 ** (k + 1) * whole, rtol=1e-4, atol=1e-7)


def test_states_are_between_0_and_1():
    np.testing.assert_allclose(unit(jnp.array([[1.0, 3.0, 2.0]])), [[0, 1, 0.5]], atol=1e-4)
    np.testing.assert_array_equal(unit(jnp.full((1, 3), 7.0)), np.zeros((1, 3)))


def test_first_priorities_are_errors_of_the_recorded_values():
    one = subject()
    plan = one.agent.data
    assert (plan.trained_length, plan.overlap, plan.items) == (K + N + 1, K + N, 8)
    steps = plan.overlap + plan.unroll_length + 1
    unroll = one.play(experience(one.spec, steps, 4))
    value = np.random.default_rng(0).normal(size=(steps - 1, 4)).astype(np.float32)
    found = one.agent.priorities(unroll._replace(record={**unroll.record, "value": value}))
    reward = np.asarray(unroll.timestep.reward)
    for t in range(8):
        goal = reward[t + 1] + 0.99 * reward[t + 2] + 0.99**2 * value[t + 2]
        np.testing.assert_allclose(found[t], np.abs(goal - value[t]), rtol=1e-4, atol=1e-5)


def test_the_greedy_decision_needs_no_chance_and_is_the_search_s_own():
    one = subject(simulations=16)
    step = at(experience(one.spec, 1, 4), 0)
    actions, _ = one.mode(one.params, step, {})
    np.testing.assert_array_equal(actions, one.mode(one.params, step, {})[0])
    outputs = [one.act(one.params, jax.random.split(jax.random.key(s), 4), step, {})[0] for s in range(20)]
    assert any((output.action != actions).any() for output in outputs), "acting explores"


def test_outside_of_training_nothing_is_added_to_the_policy_at_the_root():
    noisy, plain = (subject(simulations=16, search="puct", noise=noise) for noise in (0.9, 0.0))
    step, keys = at(experience(noisy.spec, 1, 64), 0), jax.random.split(jax.random.key(3), 64)
    outside = deciding(noisy.agent, greedy=False)
    drawn, expected, trained = (
        jax.jit(act)(noisy.params, keys, step, {})[0]
        for act in (outside.act, plain.agent.act, noisy.agent.act)
    )
    np.testing.assert_array_equal(drawn.action, expected.action)
    np.testing.assert_array_equal(drawn.record["policy"], expected.record["policy"])
    assert (trained.record["policy"] != expected.record["policy"]).any()
    assert len({*np.asarray(drawn.action).tolist()}) > 1, "it draws"


@pytest.mark.parametrize(
    ("settings", "spec", "network", "says"),
    [
        ({}, "continuous", {}, "the search is for one choice among a few"),
        ({}, "tree", {}, "one choice among a few"),
        ({}, "vector", {"lstm": 8}, "lstm is 8, but muzero has no memory besides"),
        ({"unroll_length": 4}, "vector", {}, "unroll_length is 4, and has to be 10 or more"),
        ({"unroll_length": 11}, "image", {}, "unroll_length is 11, and has to be 12 or more"),
        ({}, "vector", {"network": "nature"}, "needs an image"),
    ],
)
def test_worlds_and_networks_that_do_not_fit_are_refused(settings, spec, network, says):
    with pytest.raises(ConfigError, match=says):
        make_agent(MuZeroSettings(**settings), SPECS[spec], Network(**network))


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"reanalyse": 1.5}, "reanalyse is 1.5, and has to be from 0 to 1"),
        ({"simulations": 0}, "simulations is 0, and has to be 1 or more"),
        ({"unroll_steps": 0}, "unroll_steps is 0"),
        ({"discount": 0.0}, "discount is 0.0, and has to be more than 0"),
        ({"value_cost": -1.0}, "value_cost is -1.0"),
        ({"noise": 2.0}, "noise is 2.0"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings, says):
    with pytest.raises(ConfigError, match=says):
        MuZeroSettings(**settings)


def test_without_the_search_a_run_does_not_begin(monkeypatch):
    agent = make_agent(MuZeroSettings(**SMALL, unroll_steps=K, n_step=N), SPECS["vector"], NET)
    monkeypatch.setitem(sys.modules, "mctx", None)
    with pytest.raises(ConfigError, match="muzero searches with mctx"):
        jax.eval_shape(agent.init, jax.random.key(0))
