"""Agents with a policy for each of K agents: the same numbers as K agents that are trained one by one."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from harness import thorough

from seedbed.agents import a2c, bc, dqn, muzero, ppo, pqn, r2d2, sac, vtrace
from seedbed.agents.own_policies import make_own, with_own_policies
from seedbed.envs.policies import policies_of
from seedbed.errors import ConfigError
from seedbed.learning.update import Update
from seedbed.nets.network import Network
from seedbed.testing.agents import CHECKS, SPECS, Subject, experience
from seedbed.types import AGENT_INDEX, Agent, ArraySpec, EnvSpec, TimeStep, Unroll

_SHORT: dict[str, Any] = {"unroll_length": 8, "batch_size": 4}
_LSTM = Network(hidden=(16,), lstm=8)
_FEW = Network(hidden=(16,))


def _ppo(network: Network, **settings: Any) -> Callable[[EnvSpec], Agent]:
    made = ppo.PPOSettings(**{**_SHORT, "minibatches": 1, **settings})
    return lambda spec: ppo.make_agent(made, spec, network)


def _vtrace(network: Network, **settings: Any) -> Callable[[EnvSpec], Agent]:
    made = vtrace.VTraceSettings(**_SHORT, **settings)
    return lambda spec: vtrace.make_agent(made, spec, network)


MAKERS: dict[str, Callable[[EnvSpec], Agent]] = {
    "vtrace": _vtrace(_FEW),
    "vtrace-lstm": _vtrace(_LSTM, previous_action=True, target_entropy=0.5, scale_rewards=True),
    "a2c": lambda spec: a2c.make_agent(a2c.A2CSettings(**_SHORT), spec, _FEW),
    "ppo": _ppo(_FEW, minibatches=8, normalize_observations=True, normalize_values=True),
    "ppo-lstm": _ppo(_LSTM, target_kl=0.02, scale_rewards=True),
    "ppo-corrected": _ppo(_LSTM, correction="vtrace"),
    "dqn": lambda spec: dqn.make_agent(dqn.DQNSettings(**_SHORT, head_size=8), spec, _FEW),
    "r2d2": lambda spec: r2d2.make_agent(
        r2d2.R2D2Settings(**_SHORT, burn_in=2, head_size=8), spec, Network(lstm=8)
    ),
    "pqn": lambda spec: pqn.make_agent(pqn.PQNSettings(**_SHORT, minibatches=4), spec, _FEW),
    "bc": lambda spec: bc.make_agent(bc.BCSettings(**_SHORT), spec, _FEW),
    "sac": lambda spec: sac.make_agent(
        sac.SACSettings(**_SHORT, n_step=2, priority_exponent=0.6), spec, _FEW
    ),
    "muzero": lambda spec: muzero.make_agent(
        muzero.MuZeroSettings(**_SHORT, unroll_steps=2, n_step=2, simulations=4), spec
    ),
}


def spec_of(name: str, count: int) -> EnvSpec:
    spec, agents = SPECS[name], tuple(map(str, range(count)))
    seen = spec.observation if isinstance(spec.observation, dict) else {"observation": spec.observation}
    return replace(spec, observation={**seen, AGENT_INDEX: ArraySpec((), "int32", (count,))}, agents=agents)


def alone(spec: EnvSpec) -> EnvSpec:
    return replace(spec, observation={k: v for k, v in spec.observation.items() if k != AGENT_INDEX})


@functools.cache
def subject(name: str, world: str, count: int) -> tuple[Subject, Agent]:
    """K policies, and the agent whose policies they are."""
    spec = spec_of(world, count)
    return Subject(make_own(MAKERS[name], spec, range(count)), spec), MAKERS[name](alone(spec))


def policy(tree: Any, k: int) -> Any:
    return jax.tree.map(lambda leaf: leaf[k], tree)


def without(step: TimeStep) -> TimeStep:
    return step._replace(observation={k: v for k, v in step.observation.items() if k != AGENT_INDEX})


def rows_of(unroll: Unroll, rows: Any) -> Unroll:
    """The rows of an unroll of one agent, as it would have come to it alone."""
    timed = unroll._replace(timestep=without(unroll.timestep), state=None, weight=None)
    taken: Unroll = jax.tree.map(lambda x: x[:, rows], timed)
    return taken._replace(
        state=jax.tree.map(lambda x: x[rows], unroll.state),
        weight=None if unroll.weight is None else unroll.weight[rows],
    )


def close(one: Any, other: Any, what: str) -> None:
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-6, err_msg=what)


_ENDS: Any = ((2, 0, "terminated"), (4, 1, "truncated"), (5, 2, "terminated"))


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize(
    ("name", "world"),
    [
        ("vtrace-lstm", "masked"),
        ("dqn", "image"),
        *(
            thorough(
                ("ppo", "masked"),
                ("r2d2", "masked"),
                ("vtrace", "image"),
                ("ppo-lstm", "tree"),
                ("ppo-corrected", "continuous"),
                ("pqn", "masked"),
                ("bc", "masked"),
                ("sac", "bounded"),
                ("muzero", "masked"),
            )
        ),
    ],
)
def test_the_contract(name: str, world: str, check: Callable[[Subject], None]) -> None:
    check(subject(name, world, 2)[0])


WORLD_OF = {"sac": "bounded", "muzero": "masked", "dqn": "image", "ppo": "masked"}


@pytest.mark.parametrize("name", ["vtrace", *thorough("r2d2", "sac", "ppo", "muzero")])
def test_one_policy_is_the_agent_itself(name: str) -> None:
    own, agent = subject(name, WORLD_OF.get(name, "vector"), 1)
    key = jax.random.key(7)
    first = jax.jit(own.agent.init)(key)
    for ours, theirs in zip(
        jax.tree.leaves(policy(first, 0)), jax.tree.leaves(jax.jit(agent.init)(key)), strict=True
    ):
        np.testing.assert_array_equal(ours, theirs)
    unroll, params = own.unroll(_ENDS), policy(own.params, 0)
    theirs = rows_of(unroll, np.arange(4))
    if agent.prepare:
        _, unroll = jax.jit(own.agent.prepare)(own.params, unroll)
        _, theirs = jax.jit(agent.prepare)(params, theirs)
        close(without(unroll.timestep), theirs.timestep, "prepared")
        close(unroll.record, theirs.record, "prepared record")
    run = jax.jit(jax.value_and_grad(agent.loss, has_aux=True))
    (loss, (metrics, priorities)), gradient = run(params, params, theirs, jax.random.key(1))
    (ours, (our_metrics, our_priorities)), our_gradient = own.compiled_gradient(unroll)(
        own.params, own.params, unroll, jax.random.key(1)
    )
    close(ours, loss, "loss")
    close(our_metrics, metrics, "metrics")
    close(our_priorities, priorities, "priorities")
    close(policy(our_gradient, 0), gradient, "gradient")
    if agent.clip:
        close(policy(own.agent.clip(our_gradient), 0), agent.clip(gradient), "clipped")


# Not SAC and MuZero: their losses draw numbers for each place in a batch, so that the rest of it matters.
@pytest.mark.parametrize(
    "name",
    [
        "r2d2",
        *thorough("ppo", "vtrace-lstm", "vtrace", "a2c", "ppo-lstm", "ppo-corrected", "dqn", "pqn", "bc"),
    ],
)
def test_each_policy_is_trained_as_it_would_be_alone_on_its_rows(name: str) -> None:
    own, agent = subject(name, WORLD_OF.get(name, "vector"), 2)
    unroll = own.unroll(_ENDS)
    params, prepared = own.params, unroll
    if own.agent.prepare:
        params, prepared = jax.jit(own.agent.prepare)(own.params, unroll)
    together = jax.jit(jax.value_and_grad(own.agent.loss, has_aux=True))
    (loss, (metrics, priorities)), gradient = together(params, params, prepared, jax.random.key(1))
    run = jax.jit(jax.value_and_grad(agent.loss, has_aux=True))
    totals, valid, kls = [], [], []
    for k in range(2):
        rows, mine = np.arange(k, 4, 2), policy(own.params, k)
        theirs = rows_of(unroll, rows)
        if agent.prepare:
            mine, theirs = jax.jit(agent.prepare)(mine, theirs)
            close(policy(params, k), mine, "what was learned without a gradient")
            of_transitions = np.arange(prepared.version.shape[1]) % 4 % 2 == k
            columns = np.flatnonzero(of_transitions) if agent.data.transitions else rows
            close(rows_of(prepared, columns), theirs, "the prepared batch")
        (total, (alone_metrics, alone_priorities)), wanted = run(mine, mine, theirs, jax.random.key(1))
        close(policy(gradient, k), wanted, f"the gradient of policy {k}")
        if priorities is not None:
            close(priorities[rows], alone_priorities, "priorities")
        if agent.clip:
            close(policy(own.agent.clip(gradient), k), agent.clip(wanted), "the clipped gradient")
        totals.append(total)
        valid.append(alone_metrics.get("valid", 1.0))
        kls.append(alone_metrics.get("kl", 0.0))
    close(loss, sum(totals), "the loss")
    close(metrics.get("valid", 1.0), np.mean(valid), "the share that was trained on")
    mean = np.mean(kls) if "kl" in agent.row_means else np.average(kls, weights=valid)
    close(metrics.get("kl", 0.0), mean, "the divergence")


@pytest.mark.parametrize("name", ["vtrace", *thorough("dqn", "r2d2")])
def test_a_policy_with_fewer_rows_weighs_less(name: str) -> None:
    own, agent = subject(name, WORLD_OF.get(name, "vector"), 2)
    unroll = own.unroll(_ENDS)
    owners = np.broadcast_to(np.int32([0, 1, 1, 1]), unroll.timestep.first.shape)
    seen = {**unroll.timestep.observation, AGENT_INDEX: owners}
    unroll = unroll._replace(timestep=unroll.timestep._replace(observation=seen))
    gradient = jax.jit(jax.grad(own.agent.loss, has_aux=True))(
        own.params, own.params, unroll, jax.random.key(1)
    )[0]
    run = jax.jit(jax.grad(agent.loss, has_aux=True))
    for k, rows in ((0, [0]), (1, [1, 2, 3])):
        mine = policy(own.params, k)
        wanted, _ = run(mine, mine, rows_of(unroll, np.array(rows)), jax.random.key(1))
        share = 2 * len(rows) / 4
        scaled = jax.tree.map(lambda leaf, share=share: share * leaf, wanted)
        close(policy(gradient, k), scaled, f"the gradient of policy {k}")


@pytest.mark.parametrize("name", ["ppo-lstm", "dqn"])
def test_rows_are_decided_by_their_own_policies(name: str) -> None:
    own, agent = subject(name, WORLD_OF.get(name, "vector"), 2)
    steps = experience(own.spec, 3, 6, seed=3)
    state = own.initial_state(6)
    apart = [jax.tree.map(lambda leaf, k=k: leaf[k::2], state) for k in range(2)]
    for t in range(3):
        step = jax.tree.map(lambda leaf, t=t: leaf[t], steps)
        keys = jax.random.split(jax.random.key(t), 6)
        greedy, _ = own.mode(own.params, step, state)
        output, state = own.act(own.params, keys, step, state)
        for k in range(2):
            rows = jax.tree.map(lambda leaf, k=k: leaf[k::2], without(step))
            wanted, _ = jax.jit(agent.mode)(policy(own.params, k), rows, apart[k])
            np.testing.assert_array_equal(greedy[k::2], wanted)
            found, apart[k] = jax.jit(agent.act)(policy(own.params, k), keys[k::2], rows, apart[k])
            close(jax.tree.map(lambda leaf, k=k: leaf[k::2], (output, state)), (found, apart[k]), "acting")


@pytest.mark.parametrize(
    ("agents", "owners"),
    [
        (("adversary_0", "adversary_1", "agent_0"), (0, 0, 1)),
        (("red 1", "blue-1", "red 02", "blue-12"), (0, 1, 0, 1)),
        (("leadadversary_0", "adversary_0", "adversary_1"), (0, 1, 1)),
        (("0", "1"), (0, 1)),
        (("caller", "answerer"), (0, 1)),
        (("r2d2", "r2d3"), (0, 0)),
    ],
)
def test_agents_of_one_kind_have_names_that_differ_in_the_number(
    agents: tuple[str, ...], owners: tuple[int, ...]
) -> None:
    assert policies_of(agents, "kind") == owners
    assert policies_of(agents, "own") == tuple(range(len(agents)))


@pytest.mark.parametrize("name", ["ppo-lstm", *thorough("vtrace", "dqn", "r2d2", "pqn")])
def test_a_policy_of_a_kind_is_trained_as_alone_on_the_rows_of_all_its_agents(name: str) -> None:
    spec = replace(
        spec_of(WORLD_OF.get(name, "vector"), 4), agents=("scout_0", "tank_0", "scout_1", "scout_2")
    )
    kinds, agent = (
        Subject(make_own(MAKERS[name], spec, policies_of(spec.agents, "kind")), spec),
        MAKERS[name](alone(spec)),
    )
    assert {len(leaf) for leaf in jax.tree.leaves(kinds.params)} == {2}
    unroll = kinds.unroll(_ENDS)
    np.testing.assert_array_equal(unroll.timestep.observation[AGENT_INDEX][0], range(4))
    params, prepared = kinds.params, unroll
    if kinds.agent.prepare:
        params, prepared = jax.jit(kinds.agent.prepare)(kinds.params, unroll)
        told = np.unique(prepared.timestep.observation[AGENT_INDEX])
        np.testing.assert_array_equal(told, range(4), "rows still say which agent they are of")
    together = jax.jit(jax.value_and_grad(kinds.agent.loss, has_aux=True))
    (loss, _), gradient = together(params, params, prepared, jax.random.key(1))
    run = jax.jit(jax.value_and_grad(agent.loss, has_aux=True))
    totals = []
    for k, rows in enumerate(([0, 2, 3], [1])):
        mine, theirs = policy(kinds.params, k), rows_of(unroll, np.array(rows))
        if agent.prepare:
            mine, theirs = jax.jit(agent.prepare)(mine, theirs)
            close(policy(params, k), mine, "what was learned without a gradient")
        (total, _), wanted = run(mine, mine, theirs, jax.random.key(1))
        close(policy(gradient, k), wanted, f"the gradient of policy {k}")
        totals.append(total)
    close(loss, sum(totals), "the loss")
    step = jax.tree.map(lambda leaf: leaf[0], experience(spec, 1, 4, seed=3))
    decided, _ = kinds.mode(kinds.params, step, kinds.initial_state(4))
    for row, k in enumerate((0, 1, 0, 0)):
        one = jax.tree.map(lambda leaf, row=row: leaf[row : row + 1], without(step))
        wanted, _ = jax.jit(agent.mode)(policy(kinds.params, k), one, agent.initial_state(1))
        np.testing.assert_array_equal(decided[row : row + 1], wanted)


def test_no_gradient_shortens_anothers() -> None:
    own, _ = subject("dqn", "image", 2)
    gradient = jax.tree.map(lambda leaf: jnp.ones_like(leaf) * 1e-4, own.params)
    large = jax.tree.map(lambda leaf: leaf.at[0].set(1e6), gradient)
    clipped = own.agent.clip(large)
    close(policy(clipped, 1), policy(gradient, 1), "the small gradient")
    assert max(float(leaf.max()) for leaf in jax.tree.leaves(policy(clipped, 0))) < 40.0


@pytest.mark.parametrize("name", ["ppo-lstm", *thorough("r2d2", "vtrace", "dqn")])
def test_updates_change_policies_as_they_would_be_changed_alone(name: str) -> None:
    """The whole update: optimizer and target parameters too."""
    own, agent = subject(name, WORLD_OF.get(name, "vector"), 2)
    half = replace(agent, data=replace(agent.data, batch_size=2))
    unroll = own.unroll(_ENDS)
    if unroll.weight is not None:
        # Weights are divided by the largest of the whole batch.
        unroll = unroll._replace(weight=np.float32([0.5, 0.8, 1.0, 1.0]))

    @functools.partial(jax.jit, static_argnums=0)
    def updated(update: Update, state: Any, batch: Unroll) -> Any:
        return jax.lax.fori_loop(0, 3, lambda _, state: update.passes(state, batch)[0], state)

    both, one = Update(own.agent, jax.devices()[:1]), Update(half, jax.devices()[:1])
    start = both.begin(jax.random.key(5))
    after = updated(both, start, unroll)
    for k in range(2):
        begun = one.begin(jax.random.key(5))
        mine, target = policy(start.params, k), None if start.target is None else policy(start.target, k)
        begun = begun._replace(params=mine, target=target, opt_state=agent.optimizer.init(mine))
        alone_after = updated(one, begun, rows_of(unroll, np.arange(k, 4, 2)))
        for ours, theirs in zip(
            jax.tree.leaves(policy((after.params, after.target), k)),
            jax.tree.leaves((alone_after.params, alone_after.target)),
            strict=True,
        ):
            np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-5)


def test_policies_begin_differently_and_the_first_as_the_only_one() -> None:
    agent = MAKERS["vtrace"](alone(spec_of("vector", 3)))
    params = with_own_policies(agent, range(3)).init(jax.random.key(0))
    kernels = [leaf for leaf in jax.tree.leaves(params) if leaf.ndim == 3]
    for kernel in kernels:
        assert len({kernel[k].tobytes() for k in range(3)}) == 3


def test_observations_that_do_not_say_which_agent_they_are_of_are_refused() -> None:
    with pytest.raises(ConfigError, match="does not show which agent a row is"):
        make_own(MAKERS["vtrace"], SPECS["vector"], (0,))
    with pytest.raises(ConfigError, match="does not show which agent a row is"):
        make_own(MAKERS["vtrace"], replace(SPECS["masked"], agents=("a", "b")), (0, 1))
