"""Every agent keeps the contract; a new agent is one row of AGENTS and of PAIRS."""

import functools

import jax
import jax.numpy as jnp
import pytest
from harness import thorough
from jax import lax

from seedbed.agents import a2c, bc, dqn, muzero, ppo, pqn, r2d2, sac
from seedbed.agents.vtrace import VTraceSettings, make_agent
from seedbed.nets.network import Network
from seedbed.testing.agents import CHECKS, SPECS, Subject, convolutions_in_loops, subject

_SETTINGS = VTraceSettings(unroll_length=8, batch_size=4)
_MEMORY = VTraceSettings(
    unroll_length=8,
    batch_size=4,
    previous_action=True,
    previous_reward=True,
    target_entropy=0.5,
    kl_cost=0.1,
    minibatches=2,
    reward_clip=1.0,
    optimizer="rmsprop",
)
_PPO = ppo.PPOSettings(unroll_length=8, batch_size=4, minibatches=2)
_PPO_MEMORY = ppo.PPOSettings(
    unroll_length=8,
    batch_size=4,
    minibatches=2,
    previous_action=True,
    previous_reward=True,
    reward_clip=1.0,
    value_clip=0.2,
    target_kl=0.02,
    normalize_observations=True,
    normalize_values=True,
    normalize_advantages=False,
    value_network="own",
)
_PPO_SCALED = ppo.PPOSettings(
    unroll_length=8,
    batch_size=4,
    minibatches=8,
    scale_rewards=True,
    value_network="shared",
    normalize_observations=True,
    previous_action=True,
    deviation="state",
)
_PPO_CORRECTED = ppo.PPOSettings(
    unroll_length=8, batch_size=4, minibatches=2, correction="vtrace", normalize_values=True
)
_VTRACE_SCALED = VTraceSettings(unroll_length=8, batch_size=4, scale_rewards=True, target_entropy=0.5)
_A2C = a2c.A2CSettings(unroll_length=8, batch_size=4)
_DQN = dqn.DQNSettings(unroll_length=8, batch_size=4, head_size=16)
_PLAIN_DQN = dqn.DQNSettings(
    unroll_length=8,
    batch_size=4,
    n_step=1,
    double=False,
    dueling=False,
    head_size=0,
    huber=1.0,
    priority_exponent=0.0,
    optimizer="rmsprop",
    rmsprop_centered=True,
)
_PQN = pqn.PQNSettings(unroll_length=8, batch_size=4, minibatches=1)
_PQN_MEMORY = pqn.PQNSettings(
    unroll_length=8,
    batch_size=4,
    minibatches=2,
    previous_action=True,
    previous_reward=True,
    reward_clip=1.0,
    reward_scale=0.5,
    trace_lambda=0.9,
    epsilon_exponent=7.0,
    optimizer="rmsprop",
)
_PQN_SHUFFLED = pqn.PQNSettings(unroll_length=8, batch_size=4, minibatches=8, previous_action=True)
_R2D2 = r2d2.R2D2Settings(unroll_length=8, batch_size=4, burn_in=2, head_size=16)
_NO_BURN_IN = r2d2.R2D2Settings(
    unroll_length=8,
    batch_size=4,
    burn_in=0,
    n_step=2,
    previous_reward=False,
    previous_action=False,
    rescale=0.0,
)
_SAC = sac.SACSettings(unroll_length=8, batch_size=4, n_step=2)
_SAC_BY_PRIORITY = sac.SACSettings(
    unroll_length=8,
    batch_size=4,
    n_step=2,
    priority_exponent=0.6,
    normalize_observations=True,
    tune_entropy_cost=False,
    entropy_cost=0.2,
    gradient_clip=10.0,
    reward_clip=1.0,
)
_MUZERO = muzero.MuZeroSettings(unroll_length=8, batch_size=4, unroll_steps=3, n_step=2, simulations=4)
_MUZERO_AGAIN = muzero.MuZeroSettings(
    unroll_length=8,
    batch_size=4,
    unroll_steps=2,
    n_step=3,
    simulations=4,
    search="puct",
    reanalyse=0.5,
    rescale=0.0,
    reward_clip=1.0,
    priority_exponent=0.0,
)
_BC = bc.BCSettings(unroll_length=8, batch_size=4)
_BC_MEMORY = bc.BCSettings(
    unroll_length=8,
    batch_size=4,
    burn_in=2,
    previous_action=True,
    previous_reward=True,
    entropy_cost=0.01,
    optimizer="adagrad",
)
AGENTS = {
    "vtrace": lambda spec: make_agent(_SETTINGS, spec),
    "vtrace-lstm": lambda spec: make_agent(_MEMORY, spec, Network(hidden=(32,), lstm=16)),
    "ppo": lambda spec: ppo.make_agent(_PPO, spec),
    "ppo-lstm": lambda spec: ppo.make_agent(_PPO_MEMORY, spec, Network(hidden=(32,), lstm=16)),
    "ppo-scaled": lambda spec: ppo.make_agent(_PPO_SCALED, spec, Network(activation="relu")),
    "ppo-corrected": lambda spec: ppo.make_agent(_PPO_CORRECTED, spec, Network(lstm=8)),
    "vtrace-scaled": lambda spec: make_agent(_VTRACE_SCALED, spec),
    "a2c": lambda spec: a2c.make_agent(_A2C, spec),
    "dqn": lambda spec: dqn.make_agent(_DQN, spec),
    "dqn-plain": lambda spec: dqn.make_agent(_PLAIN_DQN, spec),
    "pqn": lambda spec: pqn.make_agent(_PQN, spec),
    "pqn-lstm": lambda spec: pqn.make_agent(_PQN_MEMORY, spec, Network(hidden=(32,), lstm=16)),
    "pqn-shuffled": lambda spec: pqn.make_agent(_PQN_SHUFFLED, spec),
    "r2d2": lambda spec: r2d2.make_agent(_R2D2, spec, Network(lstm=16)),
    "r2d2-plain": lambda spec: r2d2.make_agent(_NO_BURN_IN, spec, Network(lstm=16)),
    "sac": lambda spec: sac.make_agent(_SAC, spec),
    "sac-by-priority": lambda spec: sac.make_agent(_SAC_BY_PRIORITY, spec, Network("mlp", hidden=(32,))),
    "muzero": lambda spec: muzero.make_agent(_MUZERO, spec),
    "muzero-again": lambda spec: muzero.make_agent(_MUZERO_AGAIN, spec),
    "bc": lambda spec: bc.make_agent(_BC, spec),
    "bc-lstm": lambda spec: bc.make_agent(_BC_MEMORY, spec, Network(hidden=(32,), lstm=16)),
}


@functools.cache
def _subject(agent: str, spec: str) -> Subject:
    return subject(AGENTS[agent], spec)


# Every agent and every world; V-trace in all worlds, and other settings, by `make thorough`.
PAIRS = [
    ("vtrace", "masked parts"),
    ("vtrace-lstm", "image"),
    ("ppo", "image"),
    ("ppo-lstm", "masked"),
    ("ppo-scaled", "continuous"),
    ("a2c", "masked"),
    ("dqn", "masked"),
    ("pqn-shuffled", "vector"),
    ("r2d2", "image"),
    ("sac", "bounded"),
    ("muzero", "masked"),
    ("bc", "masked"),
    ("bc-lstm", "tree"),
    *thorough(
        *(("vtrace", spec) for spec in SPECS if spec != "masked parts"),
        *(("vtrace-lstm", spec) for spec in SPECS if spec != "image"),
        ("ppo-corrected", "vector"),
        ("vtrace-scaled", "vector"),
        ("dqn-plain", "image"),
        ("pqn", "image"),
        ("pqn-lstm", "masked"),
        ("r2d2-plain", "vector"),
        ("sac-by-priority", "bounded"),
        ("muzero-again", "image"),
        ("ppo", "continuous"),
        ("ppo", "masked parts"),
        ("ppo-lstm", "tree"),
        ("ppo-scaled", "masked"),
        ("ppo-scaled", "vector"),
        ("a2c", "vector"),
        ("a2c", "continuous"),
        ("dqn", "image"),
        ("pqn-lstm", "image"),
        ("pqn-shuffled", "masked"),
        ("r2d2", "masked"),
        ("bc", "image"),
        ("bc", "continuous"),
        ("bc-lstm", "masked parts"),
    ),
]


def test_every_agent_and_every_world_has_a_row_that_is_always_run():
    always = [row for row in PAIRS if isinstance(row, tuple) and not hasattr(row, "marks")]
    kinds = {agent.partition("-")[0] for agent in AGENTS}
    assert {agent.partition("-")[0] for agent, _ in always} == kinds
    assert {spec for _, spec in always} == set(SPECS)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize(("agent", "spec"), PAIRS)
def test_contract(agent, spec, check):
    check(_subject(agent, spec))


def test_a_convolution_in_a_loop_is_found():
    kernel = jnp.ones((3, 3, 1, 4))

    def looped(images):
        convolve = functools.partial(
            lax.conv_general_dilated,
            rhs=kernel,
            window_strides=(1, 1),
            padding="SAME",
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
        )
        return lax.scan(lambda c, x: (c, convolve(x).sum()), 0.0, images)[1]

    def text(function, images):
        return jax.jit(function).lower(images).compile().as_text()

    assert convolutions_in_loops(text(looped, jnp.ones((5, 2, 12, 12, 1))))
    assert not convolutions_in_loops(text(lambda x: looped(x[None]), jnp.ones((2, 12, 12, 1))))
