"""Targets of an unrolled model against a walk over the steps of one trajectory, and by hand."""

import jax
import numpy as np
import pytest

from seedbed.errors import SpecError
from seedbed.ops.model_targets import model_targets

GAMMA = 0.9


def slow(ends, rewards, values, n, steps):
    """Each of the targets, or None, of a trajectory whose episodes end at ``ends``: step to how."""
    targets, decided, of_transitions, over = [], [], [], []
    length = len(rewards)
    first_end = min(ends, default=length + 1)
    for k in range(steps + 1):
        inside = k < first_end
        decided.append(inside)
        if inside:
            total, weight, t = 0.0, 1.0, k
            while t < k + n and t != first_end:
                total += weight * rewards[t]
                weight *= GAMMA
                t += 1
            targets.append(
                total if ends.get(t) == "terminated" and t == first_end else total + weight * values[t]
            )
        elif ends[first_end] == "terminated":
            targets.append(0.0)
        else:
            targets.append(None)
        if k < steps:
            after = k >= first_end
            over.append(after and ends[first_end] == "terminated")
            of_transitions.append(rewards[k] if not after else 0.0 if over[-1] else None)
    return targets, decided, of_transitions, over


@pytest.mark.parametrize(("n", "steps"), [(1, 1), (1, 4), (3, 2), (5, 5)])
def test_targets_are_those_of_a_walk(n, steps):
    rng = np.random.default_rng(n + steps)
    compute = jax.jit(lambda *trajectory: model_targets(*trajectory, n=n))
    seen = set()
    for _ in range(150):
        length = steps + n
        ends = {
            int(step): str(rng.choice(["terminated", "truncated"]))
            for step in rng.choice(np.arange(1, length + 1), rng.integers(0, 3), replace=False)
            # The step after an end begins an episode, and is no end.
        }
        ends = {step: how for step, how in ends.items() if step - 1 not in ends}
        rewards, values = rng.normal(size=length), rng.normal(size=length + 1)
        valid = np.array([t not in ends for t in range(length)])
        discounts = np.array([0.0 if ends.get(t + 1) == "terminated" else GAMMA for t in range(length)])
        found = compute(*(np.asarray(x, np.float32) for x in (discounts, rewards, values)), valid)
        targets, decided, of_transitions, over = slow(ends, rewards, values, n, steps)
        np.testing.assert_array_equal(found.has_policy, decided)
        np.testing.assert_array_equal(found.has_value, [target is not None for target in targets])
        np.testing.assert_array_equal(found.has_reward, [reward is not None for reward in of_transitions])
        np.testing.assert_array_equal(found.is_over, over)
        known = np.array([target is not None for target in targets])
        np.testing.assert_allclose(found.values[known], [x for x in targets if x is not None], atol=1e-5)
        known = np.array([reward is not None for reward in of_transitions])
        np.testing.assert_allclose(
            found.rewards[known], [x for x in of_transitions if x is not None], atol=1e-6
        )
        seen.add((tuple(decided), tuple(over)))
    # No end, ends at the steps up to K, and of two kinds where there are transitions after them.
    assert len(seen) == 2 * steps


def test_the_end_of_an_episode_by_hand():
    # Rewards 1, 2; the second transition terminates, and the third leads into a new episode.
    found = model_targets(
        np.array([0.5, 0.0, 0.5, 0.5]),
        np.array([1.0, 2.0, 0.0, 7.0]),
        np.array([10.0, 20.0, 30.0, 40.0, 50.0]),
        np.array([True, True, False, True]),
        n=1,
    )
    np.testing.assert_array_equal(found.values, [1 + 0.5 * 20, 2, 0, 0])
    np.testing.assert_array_equal(found.rewards, [1, 2, 0])
    np.testing.assert_array_equal(found.has_value, [True, True, True, True])
    np.testing.assert_array_equal(found.has_policy, [True, True, False, False])
    np.testing.assert_array_equal(found.has_reward, [True, True, True])
    np.testing.assert_array_equal(found.is_over, [False, False, True])


def test_a_batch_that_was_not_vmapped_is_refused():
    with pytest.raises(SpecError, match="one trajectory"):
        model_targets(*(np.zeros((4, 2)),) * 4, n=1)
