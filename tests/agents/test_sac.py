"""SAC against a slow oracle in float64, its parts by hand, and the settings and worlds that it refuses."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from seedbed.agents.sac import SACSettings, make_agent
from seedbed.errors import ConfigError
from seedbed.nets.network import Network
from seedbed.testing.agents import SPECS, Subject, at, experience
from seedbed.types import ArraySpec, EnvSpec, Unroll

BODY = EnvSpec(
    "test/body",
    ArraySpec((3,), "float32"),
    ArraySpec((2,), "float32", low=(-1.0, 0.0), high=(1.0, 4.0)),
)
SMALL = Network(hidden=(8, 8))
CENTRE, HALF = np.array([0.0, 2.0]), np.array([1.0, 2.0])
ENDS = [(1, 0, "terminated"), (2, 1, "truncated"), (1, 2, "truncated"), (2, 3, "terminated")]


def agent(spec: EnvSpec = BODY, network: Network = SMALL, **settings):
    return make_agent(SACSettings(**{"unroll_length": 8, "batch_size": 4, **settings}), spec, network)


def subject(**settings) -> Subject:
    return Subject(agent(**settings), BODY)


def other(params):
    return jax.tree.map(
        lambda x: x + 0.2 * jnp.sin(jnp.arange(x.size, dtype=x.dtype)).reshape(x.shape), params
    )


# -- an oracle: one row after the other, in float64 -----------------------------------------------------------


def dense(layer, x):
    return x @ np.asarray(layer["kernel"], np.float64) + np.asarray(layer["bias"], np.float64)


def mlp(params, x, head):
    torso = params["torso"]["MLP_0"]
    for name in ("Dense_0", "Dense_1"):
        x = np.maximum(dense(torso[name], x), 0.0)
    return dense(params[head], x)


def policy_at(params, x, noise):
    """Elements and log-density of a draw."""
    said = mlp(params["policy"]["params"], np.asarray(x, np.float64), "policy")
    mean, deviation = said[:2], np.exp(np.clip(said[2:], -20, 2))
    before = mean + deviation * noise
    log_density = scipy.stats.norm(mean, deviation).logpdf(before) - np.log1p(-(np.tanh(before) ** 2))
    return np.tanh(before), log_density.sum()


def critics_at(params, x, elements):
    both = np.concatenate([elements, np.asarray(x, np.float64)])
    trees = params["critics"]["params"]
    return np.array([mlp(trees[f"critics_{index}"], both, "value")[0] for index in (0, 1)])


def slow(settings, params, target, unroll, key, cost):
    """Errors ``[2, B]``, policy losses ``[B]`` and entropies ``[B]``."""
    rows = unroll.version.shape[1]
    noise = np.asarray(jax.random.normal(key, (2, 1, rows, 2)), np.float64)[:, 0]
    errors, losses, entropies = [], [], []
    for row in range(rows):
        x = unroll.timestep.observation[:, row]
        total, weight, at = 0.0, 1.0, 0
        while at < settings.n_step and not (at and unroll.timestep.first[at + 1, row]):
            total += weight * float(unroll.timestep.reward[at + 1, row])
            weight *= settings.discount
            at += 1
        if not unroll.timestep.terminated[at, row]:
            elements, log_density = policy_at(params, x[at], noise[0, row])
            total += weight * (critics_at(target, x[at], elements).min() - cost * log_density)
        taken = (np.asarray(unroll.action[0, row], np.float64) - CENTRE) / HALF
        errors.append(total - critics_at(params, x[0], taken))
        elements, log_density = policy_at(params, x[0], noise[1, row])
        losses.append(cost * log_density - critics_at(params, x[0], elements).min())
        entropies.append(-log_density)
    return np.array(errors).T, np.array(losses), np.array(entropies)


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("tuned", [True, False])
def test_the_loss_is_that_of_a_walk_ahead(n, tuned):
    one = subject(n_step=n, entropy_cost=0.3, tune_entropy_cost=tuned)
    settings = SACSettings(n_step=n)
    target, key = other(one.params), jax.random.key(5)
    unroll = one.unroll(ENDS, seed=3)
    loss, (metrics, priorities) = jax.jit(one.agent.loss)(one.params, target, unroll, key)
    cost = float(np.exp(one.params["entropy"])) if tuned else 0.3
    errors, losses, entropies = slow(settings, one.params, target, unroll, key, cost)
    value_loss = np.mean(unroll.weight * 0.5 * (errors**2).sum(0))
    adjustment = cost * np.mean(entropies + 2) if tuned else 0.0
    assert float(metrics["value_loss"]) == pytest.approx(value_loss, rel=1e-4)
    assert float(metrics["policy_loss"]) == pytest.approx(losses.mean(), rel=1e-4)
    assert float(metrics["entropy"]) == pytest.approx(entropies.mean(), rel=1e-4)
    assert float(metrics["entropy_cost"]) == pytest.approx(cost, rel=1e-5)
    assert float(loss) == pytest.approx(value_loss + losses.mean() + adjustment, rel=1e-4)
    np.testing.assert_allclose(priorities, np.abs(errors).mean(0), rtol=1e-4, atol=1e-5)


def test_each_part_of_the_loss_moves_its_own_parameters_alone():
    one = subject()
    unroll, key = one.unroll(seed=3), jax.random.key(5)

    @jax.jit
    def gradient(unroll, params):
        return jax.grad(lambda p: one.agent.loss(p, one.params, unroll, key)[0])(params)

    def largest(tree):
        return max(float(jnp.abs(leaf).max()) for leaf in jax.tree.leaves(tree))

    whole = gradient(unroll, one.params)
    assert min(largest(whole[name]) for name in ("policy", "critics", "entropy")) > 1e-3
    assert largest(whole["begun"]) == 0
    # Without weights the critics learn nothing, and the policy's gradient goes through them all the same.
    unweighted = gradient(unroll._replace(weight=np.zeros(4, np.float32)), one.params)
    assert largest(unweighted["critics"]) == 0
    for name in ("policy", "entropy"):
        jax.tree.map(np.testing.assert_array_equal, whole[name], unweighted[name])


@pytest.mark.parametrize(("target", "rises"), [(50.0, True), (-50.0, False)])
def test_the_weight_of_the_entropy_rises_while_there_is_too_little(target, rises):
    one = subject(target_entropy=target)
    _, metrics, gradient = one.gradient(one.unroll(seed=3))
    assert abs(float(metrics["entropy"])) < 50
    assert (float(gradient["entropy"]) < 0) is rises, "descent moves against the gradient"


@pytest.mark.parametrize(
    ("action", "wanted"),
    [
        (ArraySpec((3,), "float32", low=(-1.0,) * 3, high=(2.0,) * 3), -3.0),
        (ArraySpec((2, 2), "float32", low=(0.0, 1.0, 0.0, 0.0), high=(1.0, 1.0, 1.0, 9.0)), -3.0),
        (ArraySpec((), "float32", low=(-4.0,), high=(4.0,)), -1.0),
    ],
)
def test_the_target_is_minus_the_number_of_elements_that_are_no_constants(action, wanted):
    spec = dataclasses.replace(BODY, action=action)
    one = Subject(agent(spec), spec)
    unroll = one.unroll(seed=1)
    _, metrics, gradient = one.gradient(unroll)
    cost, entropy = float(metrics["entropy_cost"]), float(metrics["entropy"])
    assert float(gradient["entropy"]) == pytest.approx(cost * (entropy - wanted), rel=1e-4)


def test_actions_are_uniform_until_something_was_learned():
    one = subject()
    params, rows = jax.jit(one.agent.init)(jax.random.key(0)), 2_000
    # A policy of its own, which is anything but uniform.
    params["policy"] = jax.tree.map(lambda leaf: leaf + 0.5, params["policy"])
    step = at(experience(BODY, 1, rows), 0)
    keys = jax.random.split(jax.random.key(1), rows)

    def uniform(params):
        output, _ = one.agent.act(params, keys, step, one.agent.initial_state(rows))
        drawn = (np.asarray(output.action) - CENTRE) / HALF
        return all(scipy.stats.kstest(x, scipy.stats.uniform(-1, 2).cdf).pvalue > 1e-3 for x in drawn.T)

    assert uniform(params)
    begun, _ = one.agent.prepare(params, one.unroll())
    assert not uniform(begun)
    assert begun["begun"] == 1


def test_the_policy_that_acts_is_the_one_that_is_trained():
    one = subject(priority_exponent=0.6, entropy_cost=0.3, tune_entropy_cost=False)
    params = {**one.params, "begun": jnp.ones(())}
    step, keys = at(experience(BODY, 1, 3), 0), jax.random.split(jax.random.key(1), 3)
    output, _ = one.act(params, keys, step, one.agent.initial_state(3))
    for row in range(3):
        noise = np.asarray(jax.random.normal(jax.random.split(keys[row])[0], (2,)), np.float64)
        elements, log_density = policy_at(params, step.observation[row], noise)
        np.testing.assert_allclose(output.action[row], CENTRE + HALF * elements, atol=1e-5)
        q = critics_at(params, step.observation[row], elements).min()
        assert float(output.record["q"][row]) == pytest.approx(q, abs=1e-5)
        assert float(output.record["value"][row]) == pytest.approx(q - 0.3 * log_density, abs=1e-4)
    greedy, _ = one.mode(params, step, one.agent.initial_state(3))
    middle = np.stack([np.tanh(mlp(params["policy"]["params"], x, "policy")[:2]) for x in step.observation])
    np.testing.assert_allclose(greedy, CENTRE + HALF * middle, atol=1e-5)


def test_priorities_by_what_was_recorded_are_sizes_of_errors_at_the_actors_values():
    one = subject(priority_exponent=0.6, n_step=2)
    whole = one.play(experience(BODY, 10, 4, [(3, 0, "terminated"), (5, 1, "truncated")]))
    recorded = np.asarray(one.agent.priorities(whole))
    assert recorded.shape == (8, 4)
    q, values = whole.record["q"], whole.record["value"]
    for row in range(4):
        for t in range(7):  # all but the last, whose bootstrap the policy has not seen yet
            total, weight, step = 0.0, 1.0, t
            while step < t + 2 and not (step > t and whole.timestep.first[step + 1, row]):
                total += weight * float(whole.timestep.reward[step + 1, row])
                weight *= 0.99
                step += 1
            total += 0.0 if whole.timestep.terminated[step, row] else weight * float(values[step, row])
            wanted = 0.0 if whole.timestep.first[t + 1, row] else abs(total - float(q[t, row]))
            assert recorded[t, row] == pytest.approx(wanted, abs=1e-4)


def test_without_priorities_nothing_is_recorded():
    one = subject()
    assert one.agent.priorities is None
    assert one.unroll().record == {}


def test_observations_are_normalized_by_the_ones_that_were_trained_on():
    one = subject(normalize_observations=True, n_step=2)
    params = jax.jit(one.agent.init)(jax.random.key(0))
    unrolls = [one.unroll(seed=seed) for seed in (1, 2)]
    for unroll in unrolls:
        params, prepared = one.agent.prepare(params, unroll)
    seen = np.concatenate([unroll.timestep.observation[0] for unroll in unrolls])
    statistics = params["observations"]["observation"]
    assert float(statistics["count"]) == 8
    np.testing.assert_allclose(statistics["mean"], seen.mean(0), atol=1e-5)
    before = unrolls[0].timestep.observation[0]
    wanted = (unrolls[1].timestep.observation - before.mean(0)) / before.std(0)
    np.testing.assert_allclose(prepared.timestep.observation, np.clip(wanted, -10, 10), rtol=1e-3, atol=1e-3)
    gradient = jax.grad(lambda p: one.agent.loss(p, params, prepared, jax.random.key(0))[0])(params)
    assert all(float(jnp.abs(leaf).max()) == 0 for leaf in jax.tree.leaves(gradient["observations"]))


def test_the_gradients_of_policy_and_critics_are_clipped_apart():
    one = subject(gradient_clip=0.1)
    _, _, gradient = one.gradient(one.unroll(seed=3))
    clipped = one.agent.clip(gradient)

    def norm(tree):
        return np.sqrt(sum(float(jnp.sum(jnp.square(leaf))) for leaf in jax.tree.leaves(tree)))

    assert norm(gradient["policy"]) > 0.1 and norm(gradient["critics"]) > 0.1
    assert norm(clipped["policy"]) == pytest.approx(0.1, rel=1e-4)
    assert norm(clipped["critics"]) == pytest.approx(0.1, rel=1e-4)
    assert subject().agent.clip is None


def test_layers_are_those_of_the_paper_unless_others_are_asked_for():
    def sizes(network):
        params = jax.eval_shape(agent(network=network).init, jax.random.key(0))
        return [
            params[part]["params"][critic]["torso"]["MLP_0"]["Dense_0"]["kernel"].shape
            if critic
            else params[part]["params"]["torso"]["MLP_0"]["Dense_0"]["kernel"].shape
            for part, critic in (("policy", ""), ("critics", "critics_0"), ("critics", "critics_1"))
        ]

    assert sizes(Network()) == [(3, 256), (5, 256), (5, 256)]
    assert sizes(Network(hidden=(7,))) == [(3, 7), (5, 7), (5, 7)]


def test_behind_an_image_the_value_is_no_sum_of_two_values():
    spec = SPECS["bounded"]
    one = Subject(make_agent(SACSettings(n_step=2, unroll_length=8, batch_size=4), spec), spec)
    unroll, key = one.unroll(seed=1), jax.random.key(0)

    @jax.jit
    def target_of(action):
        changed: Unroll = unroll._replace(action=jnp.full_like(unroll.action, action))
        return one.agent.loss(one.params, one.params, changed, key)[1][1]

    def differences(params_of):
        return np.asarray(params_of(0.9) - params_of(0.1))

    assert np.std(differences(target_of)) > 1e-4, "the action's part depends on the observation"


@pytest.mark.parametrize(
    ("settings", "spec", "network", "says"),
    [
        ({}, SPECS["vector"], {}, r"are int32\[\], .*use --agent ppo or vtrace, or dqn for one choice"),
        ({}, SPECS["tree"], {}, r"are int32\[2\], .*use --agent ppo or vtrace"),
        (
            {},
            SPECS["continuous"],
            {},
            r"a tanh needs finite ones on both sides; .* use --agent ppo or vtrace",
        ),
        ({}, BODY, {"lstm": 8}, "lstm is 8, but sac learns from single transitions"),
        ({"unroll_length": 2, "n_step": 4}, BODY, {}, "unroll_length is 2, and has to be 3 or more"),
        ({}, BODY, {"network": "nature"}, "needs an image"),
    ],
)
def test_worlds_and_networks_that_do_not_fit_are_refused(settings, spec, network, says):
    with pytest.raises(ConfigError, match=says):
        make_agent(SACSettings(**settings), spec, Network(**network))


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"target_rate": 0.0}, "target_rate is 0.0, and has to be more than 0 and at most 1"),
        ({"target_rate": 1.5}, "target_rate is 1.5"),
        ({"target_period": 0}, "target_period is 0"),
        ({"entropy_cost": 0.0}, "entropy_cost is 0.0, and has to be more than 0 where it is tuned"),
        ({"entropy_cost": -1.0, "tune_entropy_cost": False}, "entropy_cost is -1.0"),
        ({"target_entropy": -1.0, "tune_entropy_cost": False}, "target_entropy is -1.0"),
        ({"replay_ratio": 0.0}, "replay_ratio is 0.0"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings, says):
    with pytest.raises(ConfigError, match=says):
        SACSettings(**settings)
