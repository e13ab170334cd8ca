"""Search in models that are known: the better arm, the better plan, masks, and rows that do not know of each other."""

import functools
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from seedbed.errors import ConfigError
from seedbed.ops.masks import FORBIDDEN
from seedbed.ops.search import Node, Search, library

KINDS = ["gumbel", "puct"]
# PUCT takes an arm that was not tried for the worst one, until the others were tried often.
SEARCHES = [("gumbel", 24), ("puct", 200)]
ARMS = np.array([0.1, 0.9, 0.5, 0.3], np.float32)


def node(states: jax.Array, actions: int, logits: jax.Array | None = None, value: float = 0.0) -> Node:
    batch = states.shape[0]
    logits = jnp.zeros((batch, actions)) if logits is None else logits
    return Node(logits, jnp.full(batch, value), states)


def bandit(action, states):
    """Rewards of arms at the first step, nothing after it."""
    first = states[:, 0] == 0
    reward = jnp.where(first, jnp.asarray(ARMS)[action], 0.0)
    return reward, node(jnp.ones_like(states), len(ARMS))


def walk(action, states):
    """Two steps: 0 and then 1 gives a reward of 1, and 1 at once gives 0.4; the state is (time, what was done)."""
    time, done = states[:, 0], states[:, 1]
    reward = jnp.where(time == 0, jnp.where(action == 1, 0.4, 0.0), 0.0)
    reward = jnp.where((time == 1) & (done == 0) & (action == 1), 1.0, reward)
    after = jnp.stack([time + 1, jnp.where(time == 0, action.astype(jnp.float32), done)], axis=1)
    return reward, node(after, 2)


def keys(count: int, seed: int = 0) -> jax.Array:
    return jax.random.split(jax.random.key(seed), count)


@functools.cache
def compiled(kind, simulations, model, discount, greedy, noise):
    search = Search(kind, simulations, discount, noise=noise)
    return jax.jit(lambda keys, root: search.run(keys, root, model, greedy=greedy))


def searched(kind, simulations, keys, root, model, discount=0.9, greedy=False, noise=0.25):
    return compiled(kind, simulations, model, discount, greedy, noise)(keys, root)


@pytest.mark.parametrize(("kind", "simulations"), SEARCHES)
def test_the_best_arm_is_found(kind, simulations):
    root = node(jnp.zeros((16, 1)), 4)
    found = searched(kind, simulations, keys(16), root, bandit)
    np.testing.assert_allclose(np.sum(found.policy, axis=1), np.ones(16), rtol=1e-5)
    assert (np.argmax(found.policy, axis=1) == 1).all()
    assert np.mean(np.asarray(found.action) == 1) > 0.7
    # The mean of arms under the policy.
    np.testing.assert_allclose(found.value, np.asarray(found.policy) @ ARMS, rtol=1e-4)
    both = searched(
        kind,
        simulations,
        jnp.stack([*keys(2), *keys(2, seed=1)]),
        node(jnp.zeros((4, 1)), 4),
        bandit,
        greedy=True,
    )
    np.testing.assert_array_equal(both.action, np.ones(4))
    # PUCT draws where bounds are equal.
    np.testing.assert_allclose(
        both.policy, np.tile(both.policy[:1], (4, 1)), atol=0.0 if kind == "gumbel" else 0.1
    )


@pytest.mark.parametrize(("kind", "simulations"), SEARCHES)
def test_a_later_reward_is_worth_a_detour_unless_it_is_discounted_away(kind, simulations):
    root = node(jnp.zeros((1, 2)), 2)
    for discount, best in ((0.9, 0), (0.2, 1)):
        found = searched(kind, simulations, keys(1), root, walk, discount, greedy=True)
        assert found.action[0] == best == np.argmax(found.policy[0])
        assert 0.4 <= float(found.value[0]) <= 0.9 or discount == 0.2


@pytest.mark.parametrize("kind", KINDS)
def test_a_forbidden_action_is_never_tried(kind):
    logits = jnp.zeros((64, 4)).at[:, 1].set(FORBIDDEN).at[0, :3].set(FORBIDDEN)
    # PUCT with nothing but noise.
    found = searched(kind, 8, keys(64), node(jnp.zeros((64, 1)), 4, logits), bandit, noise=1.0)
    assert not (np.asarray(found.action) == 1).any()
    np.testing.assert_array_equal(found.policy[:, 1], np.zeros(64))
    assert (np.asarray(found.value) <= 0.5).all()
    # Of the first row three are forbidden.
    assert found.action[0] == 3 and float(found.value[0]) == pytest.approx(0.3, abs=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_is_searched_as_if_it_were_alone(kind):
    logits = jax.random.normal(jax.random.key(5), (6, 4))
    together = searched(kind, 8, keys(6), node(jnp.zeros((6, 1)), 4, logits), bandit)
    order = np.array([4, 0, 5, 5, 1, 1])
    apart = searched(kind, 8, keys(6)[order], node(jnp.zeros((6, 1)), 4, logits[order]), bandit)
    for ours, theirs in zip(together, apart, strict=True):
        np.testing.assert_allclose(ours[order], theirs, atol=1e-6)


def test_draws_follow_the_key():
    # Nothing is known of the arms: only the noise decides.
    def nothing(action, states):
        return jnp.zeros(action.shape), node(states, 4)

    twice = jnp.stack([keys(400)] * 2).reshape(-1)
    drawn = np.asarray(searched("gumbel", 2, twice, node(jnp.zeros((800, 1)), 4), nothing).action)
    np.testing.assert_array_equal(drawn[:400], drawn[400:])
    assert (np.bincount(drawn[:400], minlength=4) > 60).all()


def test_without_the_library_the_error_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "mctx", None)
    with pytest.raises(ConfigError, match=r"muzero searches with mctx .*pip install .*\[muzero\]"):
        library()


def test_a_share_of_the_uniform_policy_keeps_every_allowed_action_being_tried():
    def flat(action, states):
        return jnp.zeros(len(action)), node(states, 4)

    def policy(explores, greedy=False):
        sure = jnp.array([[20.0, 0.0, 0.0, FORBIDDEN]])
        search = Search("gumbel", 8, 0.9, root_uniform=0.3)
        found = search.run(keys(1), node(jnp.zeros((1, 1)), 4, sure), flat, explores=explores, greedy=greedy)
        return np.asarray(found.policy[0])

    # All values are equal: what is better than the policy is the policy.
    np.testing.assert_allclose(policy(explores=True), [0.8, 0.1, 0.1, 0.0], atol=1e-5)
    for sure in (policy(explores=False), policy(explores=True, greedy=True)):
        np.testing.assert_allclose(sure, [1.0, 0.0, 0.0, 0.0], atol=1e-5)
