"""R2D2: the memory is brought to where the actor's was, and errors, loss and priorities are the paper's."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from harness import thorough

from seedbed.agents.r2d2 import R2D2Settings, make_agent, values_after_burn_in
from seedbed.errors import ConfigError
from seedbed.nets.network import Network
from seedbed.ops.q_values import in_rewards, rescaled
from seedbed.testing.agents import SPECS, Subject, experience

T, BURN_IN = 8, 3
ENDS = [(2, 0, "terminated"), (6, 1, "truncated"), (4, 2, "terminated"), (9, 3, "truncated")]


def subject(spec: str = "image", **settings) -> Subject:
    known = {
        "unroll_length": T,
        "batch_size": 4,
        "burn_in": BURN_IN,
        "head_size": 16,
        "n_step": 3,
        **settings,
    }
    return Subject(make_agent(R2D2Settings(**known), SPECS[spec], Network(lstm=8)), SPECS[spec])


def model_of(one: Subject):
    """The agent's network, out of its loss."""
    return next(
        cell.cell_contents
        for cell in one.agent.loss.__closure__
        if hasattr(cell.cell_contents, "num_actions")
    )


def test_a_stored_sequence_gives_the_actors_values():
    """From the middle of an episode, over episodes' ends, with the state before the sequence's very first step."""
    one = subject()
    skip = 4
    steps = experience(one.spec, skip + BURN_IN + T + 1, 4, [(skip + t, row, how) for t, row, how in ENDS])
    stored = one.play(steps, skip=skip)
    q = values_after_burn_in(model_of(one), one.params["network"], stored, BURN_IN)
    np.testing.assert_allclose(q[:-1], stored.record["q"][BURN_IN:], atol=1e-5)


def test_a_state_that_is_late_by_the_burn_in_gives_others():
    """What SEED's own code stored; the test above would not see it if states did not matter."""
    one = subject()
    steps = experience(one.spec, 4 + BURN_IN + T + 1, 4)
    stored = one.play(steps, skip=4)
    late = one.play(steps, skip=4 + BURN_IN).state
    q = values_after_burn_in(model_of(one), one.params["network"], stored._replace(state=late), BURN_IN)
    assert np.abs(q[:-1] - stored.record["q"][BURN_IN:]).max() > 1e-3


def test_no_gradient_goes_through_the_burn_in():
    one = subject()
    unroll = one.unroll(seed=2)

    def first_state(state):
        q = values_after_burn_in(
            model_of(one),
            one.params["network"],
            unroll._replace(state=unroll.state | {"core": state}),
            BURN_IN,
        )
        return jnp.sum(jnp.square(q))

    assert not any(np.any(leaf) for leaf in jax.tree.leaves(jax.grad(first_state)(unroll.state["core"])))


def slow_loss(one: Subject, settings: R2D2Settings, target, unroll) -> tuple[float, np.ndarray]:
    """The paper's, one sequence and one step at a time, in float64."""
    model = model_of(one)
    q, target_q = (
        np.asarray(values_after_burn_in(model, p["network"], unroll, settings.burn_in), np.float64)
        for p in (one.params, target)
    )
    losses, priorities = [], []
    for row in range(unroll.version.shape[1]):
        ended = [np.asarray(x)[settings.burn_in :, row] for x in unroll.timestep[2:4]]
        rewards = np.asarray(unroll.timestep.reward)[settings.burn_in + 1 :, row]
        actions = np.asarray(unroll.action)[settings.burn_in :, row]
        errors = []
        for t in range(T):
            if ended[0][t] or ended[1][t]:
                continue
            total, weight, at = 0.0, 1.0, t
            while at < min(t + settings.n_step, T) and not (at > t and (ended[0][at] or ended[1][at])):
                total, weight, at = total + weight * rewards[at], weight * settings.discount, at + 1
            if not ended[0][at]:
                best = target_q[at, row, q[at, row].argmax()]
                total += weight * float(in_rewards(jnp.asarray(best), settings.rescale))
            errors.append(float(rescaled(jnp.asarray(total), settings.rescale)) - q[t, row, actions[t]])
        sizes = np.abs(errors)
        losses.append(0.5 * np.sum(sizes**2))
        priorities.append(settings.priority_eta * sizes.max() + (1 - settings.priority_eta) * sizes.mean())
    return float(np.mean(unroll.weight * np.asarray(losses))), np.asarray(priorities)


@pytest.mark.parametrize("spec", ["image", *thorough("vector")])
def test_loss_and_priorities_are_the_papers(spec):
    one = subject(spec)
    target = jax.tree.map(lambda x: x + 0.05 * jnp.sin(jnp.arange(x.size)).reshape(x.shape), one.params)
    unroll = one.unroll(ENDS, seed=5)
    loss, (_, priorities) = jax.jit(one.agent.loss)(one.params, target, unroll, jax.random.key(0))
    settings = R2D2Settings(unroll_length=T, burn_in=BURN_IN, n_step=3)
    expected, their_priorities = slow_loss(one, settings, target, unroll)
    assert float(loss) == pytest.approx(expected, rel=1e-4)
    np.testing.assert_allclose(priorities, their_priorities, rtol=1e-4)


def test_priorities_by_what_was_recorded():
    """Those of a loss with the actor's values for both networks, but for the last step's, which it has not seen."""
    one = subject("vector", n_step=1)
    unroll = one.unroll(seed=7)
    before_last = unroll._replace(
        timestep=unroll.timestep._replace(
            # Nothing is bootstrapped over the last transition.
            terminated=np.concatenate([unroll.timestep.terminated[:-1], np.ones((1, 4), bool)])
        )
    )
    _, (_, expected) = jax.jit(one.agent.loss)(one.params, one.params, before_last, jax.random.key(0))
    recorded = one.agent.priorities(before_last)
    assert recorded.shape == (1, 4)
    np.testing.assert_allclose(recorded[0], expected, rtol=1e-4)


def test_an_lstm_is_needed():
    with pytest.raises(ConfigError, match="lstm is 0, but r2d2 is an agent with a memory"):
        make_agent(R2D2Settings(), SPECS["vector"], Network(lstm=0))


@pytest.mark.parametrize(("setting", "value"), [("burn_in", 81), ("rescale", -1.0), ("priority_eta", 1.5)])
def test_settings_that_make_no_sense_are_refused(setting, value):
    with pytest.raises(ConfigError, match=setting):
        R2D2Settings(**{setting: value})
