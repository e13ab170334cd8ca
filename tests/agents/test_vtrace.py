"""The V-trace agent beyond the contract: its settings, its parts, and that it learns."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from harness import thorough

from seedbed.agents.vtrace import VTraceSettings, make_agent
from seedbed.errors import ConfigError
from seedbed.nets.actor_critic import ActorCritic
from seedbed.nets.network import Network
from seedbed.ops.distributions import from_spec
from seedbed.registry import AGENTS
from seedbed.testing.agents import SPECS, Subject, experience
from seedbed.types import ArraySpec, EnvSpec, TimeStep, Unroll

SETTINGS = VTraceSettings(unroll_length=8, batch_size=4)
ENDS = [(2, 0, "terminated"), (4, 1, "truncated"), (0, 2, "terminated"), (5, 2, "truncated")]


@pytest.mark.parametrize("spec", ["tree", *thorough("image")])
def test_whole_unrolls_equal_single_steps(spec):
    """Policy and value, with LSTM, frame stack, previous action and reward, across episode ends."""
    env = SPECS[spec]
    distribution = from_spec(env.action)
    model = ActorCritic(
        env,
        distribution.encode,
        num_params=distribution.num_params,
        network=Network(lstm=8),
        previous_action=True,
        previous_reward=True,
    )
    params = jax.tree.map(
        lambda x: x + 0.1 * jnp.cos(jnp.arange(x.size)).reshape(x.shape), model.init(jax.random.key(0))
    )
    steps = experience(env, 9, 4, ENDS)
    draw = jax.vmap(distribution.sample)
    actions = draw(jnp.zeros((8, 4, distribution.num_params)), jax.random.split(jax.random.key(1), 8))
    whole_policy, whole_value, end = jax.jit(model.apply)(params, steps, actions, model.initial_state(4))
    state, apply = model.initial_state(4), jax.jit(model.apply)
    for t in range(9):
        step = jax.tree.map(lambda x, t=t: x[t : t + 1], steps)
        policy, value, state = apply(params, step, None, state)
        np.testing.assert_allclose(policy[0], whole_policy[t], atol=1e-5)
        np.testing.assert_allclose(value[0], whole_value[t], atol=1e-5)
        if t < 8:
            state = model.with_action(state, actions[t])
    np.testing.assert_allclose(state["core"]["cell"], end["core"]["cell"], atol=1e-5)
    assert np.std(whole_policy) > 0.05


def test_the_loss_is_the_weighted_sum_of_its_parts():
    settings = dataclasses.replace(SETTINGS, baseline_cost=0.3, entropy_cost=0.02)
    subject = Subject(make_agent(settings, SPECS["vector"]), SPECS["vector"])
    loss, metrics, _ = subject.gradient(subject.unroll(ENDS))
    expected = metrics["policy_loss"] + 0.3 * metrics["value_loss"] + 0.02 * metrics["entropy_loss"]
    assert loss == pytest.approx(float(expected), rel=1e-5)
    assert metrics["valid"] == pytest.approx(1 - 4 / 32)
    assert metrics["rho"] == pytest.approx(1, abs=1e-4)
    assert metrics["rho_clipped"] == 0


def test_leaving_the_policy_that_acted_has_its_price():
    losses = {}
    for cost in (0.0, 2.0):
        subject = Subject(
            make_agent(dataclasses.replace(SETTINGS, kl_cost=cost), SPECS["vector"]), SPECS["vector"]
        )
        unroll = subject.unroll(ENDS)
        losses[cost, "same"], _, _ = subject.gradient(unroll)
        # What acted had another opinion.
        behaviour = unroll.record["policy"] + np.linspace(-1, 1, unroll.record["policy"].shape[-1])
        losses[cost, "other"], metrics, _ = subject.gradient(unroll._replace(record={"policy": behaviour}))
    assert losses[2.0, "same"] == pytest.approx(float(losses[0.0, "same"]), abs=1e-6)
    price = losses[2.0, "other"] - losses[0.0, "other"]
    assert price == pytest.approx(2 * float(metrics["kl"] * metrics["valid"]), rel=1e-4)
    assert metrics["kl"] > 0.1


def test_rewards_are_clipped_for_learning():
    spec = SPECS["vector"]
    agents = [make_agent(dataclasses.replace(SETTINGS, reward_clip=clip), spec) for clip in (0.0, 0.5)]
    plain, clipped = (Subject(agent, spec) for agent in agents)
    unroll = plain.unroll(ENDS)
    by_hand = unroll._replace(
        timestep=unroll.timestep._replace(reward=np.clip(unroll.timestep.reward, -0.5, 0.5))
    )
    assert clipped.gradient(unroll)[0] == pytest.approx(float(plain.gradient(by_hand)[0]), rel=1e-5)
    assert clipped.gradient(unroll)[0] != pytest.approx(float(plain.gradient(unroll)[0]), rel=1e-3)


def adaptive(target, **changes):
    return make_agent(dataclasses.replace(SETTINGS, target_entropy=target, **changes), SPECS["vector"])


@pytest.mark.parametrize(("target", "direction"), [(0.0, -1), (0.5, -1), (5.0, 1)])
@pytest.mark.parametrize("optimizer", ["adam", "rmsprop"])
def test_the_entropy_cost_moves_towards_its_target(target, direction, optimizer):
    """The policy has about log 5 nats; a target of 0 is below it and is not the same as none."""
    agent = adaptive(target, optimizer=optimizer)
    subject = Subject(agent, SPECS["vector"])
    _, _, gradient = subject.gradient(subject.unroll())
    updates, _ = agent.optimizer.update(gradient, agent.optimizer.init(subject.params), subject.params)
    assert np.sign(updates["entropy"]) == direction


def test_the_entropy_cost_moves_by_its_own_loss_alone():
    subject = Subject(adaptive(0.5), SPECS["vector"])
    fixed = Subject(make_agent(SETTINGS, SPECS["vector"]), SPECS["vector"])
    fixed.params = {"network": subject.params["network"]}
    unroll = subject.unroll(ENDS)
    _, metrics, gradient = subject.gradient(unroll)
    entropies = (metrics["entropy"] - 0.5) * metrics["valid"]
    assert gradient["entropy"] == pytest.approx(float(10 * metrics["entropy_cost"] * entropies), rel=1e-4)
    # With the coefficient at the fixed cost, the network's gradient is that of the fixed cost.
    subject.params = subject.params | {"entropy": jnp.asarray(np.log(0.01) / 10, jnp.float32)}
    _, metrics, gradient = subject.gradient(unroll)
    assert metrics["entropy_cost"] == pytest.approx(0.01, rel=1e-5)
    for one, other in zip(
        jax.tree.leaves(gradient["network"]), jax.tree.leaves(fixed.gradient(unroll)[2]), strict=True
    ):
        np.testing.assert_allclose(one, other, atol=1e-6)


def test_the_entropy_cost_stays_in_its_range_and_comes_back():
    agent = adaptive(0.5, learning_rate=5.0)
    params = jax.jit(agent.init)(jax.random.key(0))
    state = agent.optimizer.init(params)
    still = jax.tree.map(jnp.zeros_like, params)
    for slope, expected in [(-1.0, 2.0), (-1.0, 2.0), (100.0, None)]:
        updates, state = agent.optimizer.update(still | {"entropy": jnp.asarray(slope)}, state, params)
        params = optax.apply_updates(params, updates)
        assert expected is None or params["entropy"] == pytest.approx(expected)
    assert params["entropy"] < 2.0


def test_the_gradient_is_clipped_by_its_norm():
    agent = make_agent(dataclasses.replace(SETTINGS, gradient_clip=2.0), SPECS["vector"])
    params = jax.jit(agent.init)(jax.random.key(0))
    clipped = agent.clip(jax.tree.map(jnp.ones_like, params))
    norm = np.sqrt(sum(np.sum(np.square(leaf)) for leaf in jax.tree.leaves(clipped)))
    assert norm == pytest.approx(2.0, rel=1e-4)
    assert make_agent(dataclasses.replace(SETTINGS, gradient_clip=0.0), SPECS["vector"]).clip is None


def test_the_clip_of_the_network_leaves_the_entropy_cost_alone():
    agent = adaptive(0.5, gradient_clip=2.0)
    gradient = jax.tree.map(jnp.ones_like, jax.jit(agent.init)(jax.random.key(0)))
    clipped = agent.clip(gradient | {"entropy": jnp.asarray(50.0)})
    assert float(clipped["entropy"]) == 50.0
    norm = np.sqrt(sum(np.sum(np.square(leaf)) for leaf in jax.tree.leaves(clipped["network"])))
    assert norm == pytest.approx(2.0, rel=1e-4)


def test_the_learning_rate_is_annealed():
    settings = dataclasses.replace(SETTINGS, anneal_to_zero=True, gradient_clip=0.0)
    agent = make_agent(settings, SPECS["vector"], total_updates=4)
    params = jax.jit(agent.init)(jax.random.key(0))
    state, sizes = agent.optimizer.init(params), []
    for _ in range(5):
        updates, state = agent.optimizer.update(jax.tree.map(jnp.ones_like, params), state, params)
        sizes.append(float(jax.tree.leaves(updates)[0].ravel()[0]))
    np.testing.assert_allclose(sizes, -4.8e-4 * np.array([1, 0.75, 0.5, 0.25, 0]), rtol=1e-3, atol=1e-9)
    with pytest.raises(ConfigError, match="stated length"):
        make_agent(settings, SPECS["vector"])


@pytest.mark.parametrize(
    "wrong",
    [
        {"discount": 1.1},
        {"learning_rate": 0.0},
        {"unroll_length": 0},
        {"gradient_clip": -1.0},
        {"kl_cost": -1.0},
        {"minibatches": 5},
        {"entropy_cost": 0.0, "target_entropy": 0.0},
    ],
)
def test_impossible_settings_are_refused(wrong):
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        VTraceSettings(**wrong)


def test_a_first_policy_explores_everything():
    subject = make_agent(SETTINGS, SPECS["image"])
    params = jax.jit(subject.init)(jax.random.key(0))
    step = jax.tree.map(lambda x: x[0], experience(SPECS["image"], 1, 4))
    output, _ = subject.act(params, jax.random.split(jax.random.key(0), 4), step, subject.initial_state(4))
    np.testing.assert_allclose(jax.nn.softmax(output.record["policy"]), 0.2, atol=0.01)


def test_registry():
    assert set(AGENTS.names) == {"vtrace", "ppo", "a2c", "dqn", "pqn", "r2d2", "sac", "bc", "muzero"}
    assert AGENTS.load("vtrace").Settings is VTraceSettings
    with pytest.raises(ConfigError, match="did you mean vtrace"):
        AGENTS.load("v-trace")


def guess(spec, reward, updates, **changes):
    """Trains on one-step episodes ``o_first, o_final, o_first, …``; the mean reward before and after."""
    settings = VTraceSettings(unroll_length=8, batch_size=16, learning_rate=5e-3, **changes)
    agent = make_agent(settings, spec, Network(hidden=(32,)))
    params = jax.jit(agent.init)(jax.random.key(0))
    state = agent.optimizer.init(params)
    ends = np.arange(9) % 2 == 1

    @jax.jit
    def update(params, state, key):
        seen = jax.random.normal(key, (9, 16, 2))
        flags = jnp.broadcast_to(ends[:, None], (9, 16))
        steps = TimeStep(seen, jnp.zeros((9, 16)), flags, jnp.zeros((9, 16), bool), ~flags)
        keys = jax.random.split(key, (8, 16))
        rows = [
            agent.act(params, keys[t], jax.tree.map(lambda x, t=t: x[t], steps), agent.initial_state(16))[0]
            for t in range(8)
        ]
        action, record = jax.tree.map(lambda *x: jnp.stack(x), *rows)
        earned = jnp.concatenate(
            [jnp.zeros((1, 16)), jnp.where(ends[1:, None], reward(seen[:-1], action), 0.0)]
        )
        unroll = Unroll(steps._replace(reward=earned), action, record, agent.initial_state(16), None)
        gradient, _ = jax.grad(agent.loss, has_aux=True)(params, None, unroll, None)
        updates, state = agent.optimizer.update(agent.clip(gradient), state, params)
        return optax.apply_updates(params, updates), state, earned.sum() / 64

    earned = []
    for i in range(updates):
        params, state, mean = update(params, state, jax.random.key(i))
        earned.append(float(mean))
    return np.mean(earned[:10]), np.mean(earned[-10:])


def test_it_learns_to_choose():
    spec = EnvSpec("test/guess", ArraySpec((2,), "float32"), ArraySpec((), "int32", (4,)))

    def right(seen, action):
        return (action == 2 * (seen[..., 0] > 0) + (seen[..., 1] > 0)).astype(jnp.float32)

    before, after = guess(spec, right, 200)
    assert before < 0.45
    assert after > 0.85


def test_it_learns_to_aim():
    spec = EnvSpec("test/aim", ArraySpec((2,), "float32"), ArraySpec((1,), "float32", (), (-1.0,), (1.0,)))

    def near(seen, action):
        return -jnp.abs(action[..., 0] - jnp.tanh(seen[..., 0]))

    before, after = guess(spec, near, 300, entropy_cost=0.0)
    assert before < -0.5
    assert after > -0.3
