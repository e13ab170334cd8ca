"""The LSTM core against NumPy, and its reset."""

import jax
import numpy as np

from seedbed.nets.recurrent import LSTM, initial_state

T, B, D, H = 6, 3, 4, 5
CORE = LSTM(H)
INPUTS = np.random.default_rng(0).normal(size=(T, B, D)).astype(np.float32)
NEVER = np.zeros((T, B), bool)
PARAMS = CORE.init(jax.random.key(0), INPUTS, NEVER, initial_state(H, B))


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def test_equals_numpy():
    weights = jax.tree.map(lambda x: np.asarray(x, np.float64), PARAMS["params"])
    cell = hidden = np.zeros((B, H))
    expected = []
    for x in INPUTS:
        gates = x @ weights["Dense_0"]["kernel"] + weights["Dense_0"]["bias"] + hidden @ weights["recurrent"]
        enter, forget, new, leave = np.split(gates, 4, axis=-1)
        cell = sigmoid(forget) * cell + sigmoid(enter) * np.tanh(new)
        hidden = sigmoid(leave) * np.tanh(cell)
        expected.append(hidden)
    outputs, state = CORE.apply(PARAMS, INPUTS, NEVER, initial_state(H, B))
    np.testing.assert_allclose(outputs, expected, atol=1e-5)
    np.testing.assert_allclose(state["cell"], cell, atol=1e-5)
    np.testing.assert_allclose(state["hidden"], hidden, atol=1e-5)


def test_a_first_step_starts_afresh():
    first = NEVER.copy()
    first[3, 1] = True
    outputs, _ = CORE.apply(PARAMS, INPUTS, first, initial_state(H, B))
    continued, _ = CORE.apply(PARAMS, INPUTS, NEVER, initial_state(H, B))
    afresh, _ = CORE.apply(PARAMS, INPUTS[3:], NEVER[3:], initial_state(H, B))
    np.testing.assert_allclose(outputs[3:, 1], afresh[:, 1], atol=1e-6)
    np.testing.assert_allclose(outputs[:, [0, 2]], continued[:, [0, 2]], atol=1e-6)
    assert np.abs(outputs[3:, 1] - continued[3:, 1]).max() > 1e-2


def test_the_forget_gate_is_open_at_first():
    bias = PARAMS["params"]["Dense_0"]["bias"]
    np.testing.assert_array_equal(bias, np.repeat([0, 1, 0, 0], H))
