"""PPO beyond the contract: what is prepared once, what is clipped, what is normalized."""

import dataclasses

import jax
import numpy as np
import pytest
from harness import thorough

from seedbed.agents.ppo import PPOSettings, make_agent
from seedbed.errors import ConfigError
from seedbed.learning.update import Update
from seedbed.nets.network import Network
from seedbed.nets.normalizer import mean_and_deviation
from seedbed.ops import distributions
from seedbed.ops.returns import gae
from seedbed.replay.queue import select
from seedbed.testing.agents import SPECS, Subject, experience

SETTINGS = PPOSettings(unroll_length=8, batch_size=4, minibatches=2, shuffle="unrolls")
ENDS = [(2, 0, "terminated"), (4, 1, "truncated"), (0, 2, "terminated"), (5, 2, "truncated")]


def subject(spec="vector", **changes):
    return Subject(make_agent(dataclasses.replace(SETTINGS, **changes), SPECS[spec]), SPECS[spec])


def test_advantages_are_those_of_the_weights_that_acted():
    it = subject(normalize_advantages=False, discount=0.9, trace_lambda=0.8)
    unroll = it.unroll(ENDS)
    record, steps = it.prepare(unroll).record, unroll.timestep
    values = np.asarray(it.prepare(unroll).record["value"])
    # The value of the last step, from an unroll that goes on one step later.
    _, metrics, _ = it.gradient(unroll)
    for row in range(4):
        valid = ~steps.first[1:, row]
        discounts = np.where(steps.terminated[1:, row], 0, 0.9)
        bootstrap = record["target"][-1, row] - steps.reward[-1, row]
        last = bootstrap / discounts[-1] if discounts[-1] and valid[-1] else 0.0
        expected = gae(discounts, steps.reward[1:, row], np.append(values[:, row], last), valid, lambda_=0.8)
        np.testing.assert_allclose(record["advantage"][:, row], expected, atol=1e-4)
    np.testing.assert_allclose(record["target"], record["advantage"] + values, atol=1e-5)
    assert metrics["target"] == pytest.approx(float(np.mean(record["target"][~steps.first[1:]])), abs=1e-5)


def test_advantages_are_normalized_over_the_valid_steps_of_the_batch():
    it = subject()
    unroll = it.unroll(ENDS)
    valid = ~unroll.timestep.first[1:]
    advantages = np.asarray(it.prepare(unroll).record["advantage"])
    assert advantages[valid].mean() == pytest.approx(0, abs=1e-5)
    assert advantages[valid].std() == pytest.approx(1, abs=1e-4)
    np.testing.assert_array_equal(advantages[~valid], 0)


def test_in_the_first_update_nothing_is_clipped():
    it = subject()
    _, metrics, _ = it.gradient(it.unroll(ENDS))
    assert metrics["clipped"] == 0
    assert metrics["kl"] == pytest.approx(0, abs=1e-6)
    assert metrics["policy_loss"] == pytest.approx(0, abs=1e-5), "normalized advantages at ratios of 1"


def test_how_far_the_policy_has_gone_is_the_mean_over_equal_parts_of_a_batch():
    it = subject()
    batch = it.prepare(it.unroll([end for end in ENDS if end[1] == 2]))
    params = jax.tree.map(lambda leaf: leaf + 0.3, it.params)

    def divergence(part):
        return float(it.agent.loss(params, None, part, jax.random.key(0))[1][0]["kl"])

    halves = [divergence(select(batch, 0, 2)), divergence(select(batch, 2, 4))]
    assert divergence(batch) == pytest.approx(np.mean(halves), rel=1e-5)
    assert halves[0] != pytest.approx(halves[1], rel=1e-2)


def test_the_loss_is_the_weighted_sum_of_its_parts():
    for clip in (0.0, 0.1):
        it = subject(baseline_cost=0.3, entropy_cost=0.02, value_clip=clip)
        loss, metrics, _ = it.gradient(it.unroll(ENDS))
        parts = metrics["policy_loss"] + 0.3 * metrics["value_loss"] + 0.02 * metrics["entropy_loss"]
        assert loss == pytest.approx(float(parts), rel=1e-5)


def test_values_near_the_old_ones_are_not_clipped():
    losses = []
    for clip in (0.0, 0.2):
        it = subject(value_clip=clip)
        losses.append(float(it.gradient(it.unroll(ENDS))[1]["value_loss"]))
    assert losses[0] == pytest.approx(losses[1]), "the values are the old ones"


def test_observations_are_normalized_by_what_was_seen_before_this_batch():
    it = subject("vector", normalize_observations=True)
    agent, spec = it.agent, it.spec
    params = jax.jit(agent.init)(jax.random.key(0))
    unroll = it.unroll(ENDS[:2])
    prepare = jax.jit(agent.prepare)
    once, prepared = prepare(params, unroll)
    np.testing.assert_array_equal(prepared.timestep.observation, unroll.timestep.observation)
    seen = np.asarray(unroll.timestep.observation).reshape(-1, *spec.observation.shape)
    np.testing.assert_allclose(once["observations"]["observation"]["mean"], seen.mean(0), atol=1e-6)
    _, prepared = prepare(once, unroll)
    assert np.mean(prepared.timestep.observation) == pytest.approx(0, abs=1e-5)
    assert np.std(prepared.timestep.observation) == pytest.approx(1, abs=1e-2)
    np.testing.assert_array_equal(jax.tree.leaves(once["network"]["params"]["value"])[0], 0)
    gradient, _ = jax.jit(jax.grad(agent.loss, has_aux=True))(once, once, prepared, jax.random.key(0))
    assert all(not np.any(leaf) for leaf in jax.tree.leaves(gradient["observations"])), (
        "no gradient moves them"
    )


def test_values_are_predicted_normalized_by_the_targets_seen_so_far():
    it = subject(normalize_values=True, normalize_advantages=False, discount=0.9, trace_lambda=0.0)
    params = jax.jit(it.agent.init)(jax.random.key(0))
    unroll = it.unroll(ENDS)
    steps = unroll.timestep
    valid, prepare = ~steps.first[1:], jax.jit(it.agent.prepare)

    def targets(values):
        """Of one step, of all transitions but the last, which bootstraps from a value that is not recorded."""
        told = steps.reward[1:-1] + np.where(steps.terminated[1:-1], 0, 0.9) * values[1:]
        return np.where(valid[:-1], told, values[:-1])

    once, prepared = prepare(params, unroll)
    first = np.asarray(prepared.record["target"])
    assert first[valid].mean() == pytest.approx(0, abs=1e-4)
    assert first[valid].std() == pytest.approx(1, abs=1e-4)
    mean, deviation = mean_and_deviation(once["values"])
    # Before any batch the network's values count as they are.
    in_rewards = mean + deviation * first[:-1]
    np.testing.assert_allclose(in_rewards, targets(np.asarray(prepared.record["value"])), atol=1e-5)
    twice, prepared = prepare(once, unroll)
    values = mean + deviation * np.asarray(prepared.record["value"])
    np.testing.assert_allclose(prepared.record["advantage"][:-1], targets(values) - values[:-1], atol=1e-5)
    # Metrics are in rewards, whatever the network is trained on.
    gradient, (metrics, _) = jax.jit(jax.grad(it.agent.loss, has_aux=True))(
        twice, twice, prepared, jax.random.key(0)
    )
    told = values + np.asarray(prepared.record["advantage"])
    assert metrics["target"] == pytest.approx(float(np.mean(told[valid])), abs=1e-5)
    assert all(not np.any(leaf) for leaf in jax.tree.leaves(gradient["values"])), "no gradient moves them"


def test_one_reward_that_is_not_finite_spoils_no_statistics():
    it = subject(normalize_values=True)
    params = jax.jit(it.agent.init)(jax.random.key(0))
    unroll = it.unroll(ENDS)
    rewards = np.array(unroll.timestep.reward)
    rewards[3, 1] = np.inf
    spoiled = unroll._replace(timestep=unroll.timestep._replace(reward=rewards))
    after, _ = jax.jit(it.agent.prepare)(params, spoiled)
    jax.tree.map(np.testing.assert_array_equal, after["values"], params["values"])


@pytest.mark.parametrize(
    "wrong",
    [
        {"clip": 0.0},
        {"clip": 1.0},
        {"value_clip": -1.0},
        {"target_kl": 0.0},
        {"minibatches": 3},
        {"minibatches": 0},
    ],
    ids=str,
)
def test_settings_that_mean_nothing_are_refused(wrong):
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        dataclasses.replace(SETTINGS, **wrong)


@pytest.mark.parametrize("spec", ["image", "continuous", *thorough("vector")])
def test_a_batch_of_transitions_has_the_loss_and_the_gradient_of_its_unrolls(spec):
    options = {
        "previous_action": True,
        "previous_reward": True,
        "normalize_advantages": False,
        "reward_clip": 1.0,
    }
    whole, cut = (subject(spec, shuffle=shuffle, **options) for shuffle in ("unrolls", "transitions"))
    unroll = whole.unroll(ENDS)
    assert cut.prepare(unroll).version.shape == (1, 32) != whole.prepare(unroll).version.shape
    for one, other in zip(
        jax.tree.leaves(whole.gradient(unroll)), jax.tree.leaves(cut.gradient(unroll)), strict=True
    ):
        np.testing.assert_allclose(one, other, atol=2e-5)


def test_minibatches_may_be_many_more_than_unrolls_but_not_with_a_memory():
    settings = PPOSettings(unroll_length=64, batch_size=1, minibatches=32)
    plan = make_agent(settings, SPECS["vector"]).data
    assert (plan.transitions, plan.rows) == (True, 64)
    with pytest.raises(ConfigError, match="minibatches is 32, and has to be a divisor of the batch size"):
        make_agent(settings, SPECS["vector"], Network(lstm=8))
    with pytest.raises(ConfigError, match="a divisor of the transitions of a batch, 64"):
        dataclasses.replace(settings, minibatches=48)
    with pytest.raises(ConfigError, match="shuffle is transitions, but an LSTM of 8"):
        make_agent(
            dataclasses.replace(settings, shuffle="transitions", minibatches=1),
            SPECS["vector"],
            Network(lstm=8),
        )


def test_each_pass_has_every_transition_once_in_an_order_of_its_own():
    update = Update(
        make_agent(dataclasses.replace(SETTINGS, shuffle="auto"), SPECS["vector"]), jax.devices()[:1]
    )
    key = jax.random.key_data(jax.random.key(0))
    passes = [np.asarray(update.order(key, updates)) for updates in (0, 2)]
    for order in passes:
        assert order.shape == (2, 16)
        assert sorted(order.ravel().tolist()) == list(range(32))
    assert (passes[0] != passes[1]).any()


def test_a_step_that_only_resets_counts_as_no_transition_in_either_kind_of_rows():
    for shuffle in ("unrolls", "transitions"):
        it = subject(shuffle=shuffle, anneal_to_zero=False)
        update = Update(it.agent, jax.devices()[:1])
        unroll = it.unroll(ENDS)
        carried = update._carried(it.prepare(unroll))
        assert carried == pytest.approx(1 - np.mean(unroll.timestep.first[1:]))


def test_the_gradient_of_the_value_does_not_reach_a_policy_with_layers_of_its_own():
    def policys_part(**changes):
        it = subject(baseline_cost=0.5, **changes)
        cheap = subject(baseline_cost=0.0, **changes)
        unroll = it.unroll(ENDS)
        one, other = (one.gradient(unroll)[2]["network"]["params"] for one in (it, cheap))
        return (one["policy"], other["policy"]) if "torso" not in one else (one["torso"], other["torso"])

    apart, shared = policys_part(value_network="auto"), policys_part(value_network="shared")
    jax.tree.map(np.testing.assert_array_equal, *apart)
    assert not np.allclose(jax.tree.leaves(shared[0])[1], jax.tree.leaves(shared[1])[1])


def test_the_deviation_is_the_same_in_every_state_unless_it_is_to_depend_on_it():
    for deviation, same in (("free", True), ("state", False)):
        it = subject("continuous", deviation=deviation)
        policy = it.unroll().record["policy"]
        mean, raw = np.split(np.asarray(policy), 2, axis=-1)
        assert (np.ptp(raw, axis=(0, 1)).max() == 0) == same
        assert np.ptp(mean, axis=(0, 1)).max() > 0


@pytest.mark.parametrize(
    ("batch_size", "unroll_length", "parts"),
    [(32, 64, 32), (8, 256, 8), (8, 128, 8), (8, 5, 1), (1, 2048, 1), (6, 32, 3), (4, 16, 1)],
)
def test_unless_it_is_told_a_batch_has_parts_that_fit_either_kind_of_rows(batch_size, unroll_length, parts):
    settings = PPOSettings(batch_size=batch_size, unroll_length=unroll_length)
    for network in (Network(), Network(lstm=4)):
        assert make_agent(settings, SPECS["vector"], network).data.minibatches == parts
    assert settings.updates_a_transition == settings.reuse * parts / (batch_size * unroll_length)


def late(spec="vector", **changes):
    """An agent with its newest weights, an unroll of older ones, and the newest policy and values at every step."""
    changes = {"normalize_advantages": False, "discount": 0.9, "trace_lambda": 0.8, **changes}
    it = subject(spec, correction="vtrace", **changes)
    unroll = it.unroll(ENDS)
    noise = np.random.default_rng(7)
    it.params = jax.tree.map(lambda x: x + 0.3 * noise.normal(size=x.shape).astype(np.float32), it.params)
    # The newest policy may do other things, but without a memory it does not matter.
    newest = it.play(experience(it.spec, 10, 4, ENDS)).record
    return it, unroll, newest


@pytest.mark.parametrize("spec", ["vector", "continuous"])
def test_with_a_lag_advantages_and_targets_are_those_of_vtrace(spec):
    it, unroll, newest = late(spec)
    record, steps = it.prepare(unroll).record, unroll.timestep
    distribution = distributions.from_spec(it.spec.action)
    values = np.asarray(newest["value"], np.float64)
    log_prob = [
        np.asarray(distribution.log_prob(policy, unroll.action), np.float64)
        for policy in (newest["policy"][:-1], unroll.record["policy"])
    ]
    rhos = np.exp(log_prob[0] - log_prob[1])
    targets = values.copy()
    for t in reversed(range(8)):
        discount = np.where(steps.terminated[t + 1], 0.0, 0.9)
        weight = np.where(steps.first[t + 1], 0.0, np.minimum(1.0, rhos[t]))
        delta = steps.reward[t + 1] + discount * values[t + 1] - values[t]
        targets[t] = values[t] + weight * (delta + 0.8 * discount * (targets[t + 1] - values[t + 1]))
    assert (np.minimum(1.0, rhos) < 0.9).any() and (rhos > 1.1).any(), "the policies are not alike"
    np.testing.assert_allclose(record["target"], targets[:-1], atol=2e-4)
    np.testing.assert_allclose(record["advantage"], (targets - values)[:-1], atol=2e-4)
    np.testing.assert_allclose(record["policy"], newest["policy"][:-1], atol=1e-5)
    valid = ~steps.first[1:]
    np.testing.assert_allclose(np.asarray(record["rho"])[valid], rhos[valid], rtol=1e-3)
    assert it.gradient(unroll)[1]["rho"] == pytest.approx(rhos[valid].mean(), rel=1e-3)


def test_with_a_lag_nothing_is_clipped_before_the_newest_policy_is_left():
    it, unroll, _ = late()
    _, metrics, _ = it.gradient(unroll)
    assert metrics["clipped"] == 0
    assert metrics["kl"] == pytest.approx(0, abs=1e-6)
    advantages = np.asarray(it.prepare(unroll).record["advantage"])
    assert metrics["policy_loss"] == pytest.approx(-advantages.mean(), rel=1e-4)
    uncorrected = subject(normalize_advantages=False)
    uncorrected.params = it.params
    assert uncorrected.gradient(unroll)[1]["clipped"] > 0.1


def test_without_lag_the_correction_changes_nothing():
    plain, corrected = (subject(correction=correction) for correction in ("none", "vtrace"))
    unroll = plain.unroll(ENDS)
    one, other = plain.gradient(unroll), corrected.gradient(unroll)
    assert other[1].pop("rho") == pytest.approx(1.0, abs=1e-5)
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)
