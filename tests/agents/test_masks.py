"""Every registered agent with choices keeps to action masks; a new one is held by it without a row here."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from harness import thorough

from seedbed.agents.vtrace import VTraceSettings, make_agent
from seedbed.errors import ConfigError, SpecError
from seedbed.nets.network import Network
from seedbed.ops.masks import is_forbidden
from seedbed.registry import AGENTS
from seedbed.testing.agents import (
    SPECS,
    Subject,
    at,
    check_forbidden_actions_are_never_taken,
    check_priorities,
    check_update_is_finite,
    experience,
)
from seedbed.types import ACTION_MASK, ArraySpec, EnvSpec, leaves

CHECKS = [check_forbidden_actions_are_never_taken, *thorough(check_update_is_finite, check_priorities)]
CHOICE = ArraySpec((), "int32", (5,))
SPEC_OF = {
    **SPECS,
    "bytes": EnvSpec(
        "bytes", {ACTION_MASK: ArraySpec((5,), "uint8", high=(1.0,)), "x": ArraySpec((2,), "int32")}, CHOICE
    ),
    "whole numbers": EnvSpec(
        "whole numbers",
        {ACTION_MASK: ArraySpec((5,), "int32", low=(0.0,), high=(1.0,)), "x": ArraySpec((2,), "float32")},
        CHOICE,
        frame_stack=3,
    ),
}


def made(name: str, spec: EnvSpec) -> Any:
    """The agent with its own settings, but for short unrolls."""
    definition: Any = AGENTS.load(name)
    settings = dataclasses.replace(definition.Settings(), unroll_length=16, batch_size=4)
    return definition.make(settings, spec, Network(hidden=(16,)))


def choosing(spec_name: str) -> list[str]:
    """Names of the agents that take actions of a spec, where it has no mask."""
    spec = SPEC_OF[spec_name]
    seen = {path: leaf for path, leaf in spec.observation.items() if path != ACTION_MASK}
    taken = []
    for name in AGENTS.names:
        try:
            made(name, dataclasses.replace(spec, observation=seen))
        except (ConfigError, SpecError):
            continue
        taken.append(name)
    return taken


PAIRS = [(name, spec) for spec in ("masked", "masked parts") for name in choosing(spec)]


@functools.cache
def subject(name: str, spec_name: str) -> Subject:
    return Subject(made(name, SPEC_OF[spec_name]), SPEC_OF[spec_name])


def test_the_agents_of_this_package_are_among_them():
    assert {"vtrace", "ppo", "a2c", "dqn", "pqn", "r2d2", "muzero", "bc"} <= {
        name for name, spec in PAIRS if spec == "masked"
    }
    assert {"vtrace", "ppo", "a2c", "bc"} <= {name for name, spec in PAIRS if spec == "masked parts"}


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize(("name", "spec"), PAIRS)
def test_every_agent_keeps_to_the_mask(name, spec, check):
    check(subject(name, spec))


@pytest.mark.parametrize("spec", ["bytes", "whole numbers"])
@pytest.mark.parametrize("name", ["vtrace", "dqn"])
def test_masks_are_whole_numbers_of_any_kind(name, spec):
    check_forbidden_actions_are_never_taken(subject(name, spec))


@pytest.mark.parametrize("name", choosing("masked"))
def test_a_mask_that_allows_one_action_alone_leaves_no_choice(name):
    under, batch = subject(name, "masked"), 5
    step = at(experience(under.spec, 1, batch), 0)
    step.observation[ACTION_MASK][:] = np.eye(5, dtype=bool)
    state = under.agent.initial_state(batch)
    output, _ = under.act(under.params, jax.random.split(jax.random.key(0), batch), step, state)
    np.testing.assert_array_equal(output.action, np.arange(5))
    np.testing.assert_array_equal(under.mode(under.params, step, state)[0], np.arange(5))


@pytest.mark.parametrize("name", ["vtrace", "ppo", "a2c", "bc"])
def test_the_policy_head_learns_nothing_of_an_action_that_is_always_forbidden(name):
    under = subject(name, "masked")
    steps = under.unroll().timestep
    steps.observation[ACTION_MASK][..., 3] = False
    steps.observation[ACTION_MASK][..., 0] = True
    _, metrics, gradient = under.gradient(under.play(steps))
    (head,) = (leaf for path, leaf in leaves(gradient["network"]) if path.endswith("policy/bias"))
    assert np.isfinite(head).all() and head[3] == 0.0 and np.count_nonzero(head) == 4
    assert abs(float(metrics["kl"])) < 1e-6


@pytest.mark.parametrize("name", ["dqn", "r2d2"])
def test_priorities_of_new_items_are_of_allowed_actions_alone(name):
    under = subject(name, "masked")
    plan = under.agent.data
    whole = under.play(experience(under.spec, plan.overlap + plan.unroll_length + 1, 4))
    forbidden = is_forbidden(whole.record["q"])
    assert forbidden.any()
    other = whole._replace(record={"q": jnp.where(forbidden, -1e20, whole.record["q"])})
    np.testing.assert_array_equal(under.agent.priorities(whole), under.agent.priorities(other))
    assert float(jnp.max(under.agent.priorities(whole))) < 100


@pytest.mark.parametrize("name", ["dqn", "r2d2"])
@pytest.mark.parametrize("double", [True, False])
def test_targets_never_bootstrap_from_a_forbidden_action(name, double):
    """The last action has by far the best value of all, for both networks, and is never allowed."""
    spec, definition = SPECS["masked"], AGENTS.load(name)
    settings = dataclasses.replace(
        definition.Settings(), unroll_length=16, batch_size=4, dueling=False, double=double
    )
    under = Subject(definition.make(settings, spec, Network(hidden=(16,))), spec)
    steps = under.unroll().timestep
    steps.observation[ACTION_MASK][..., 4] = False
    steps.observation[ACTION_MASK][..., 0] = True
    unroll = under.play(steps)
    plain, raised = under.params, jax.tree.map(jnp.asarray, under.params)
    raised["network"]["params"]["q"]["bias"] = plain["network"]["params"]["q"]["bias"].at[4].set(1e6)
    run = jax.jit(jax.grad(lambda params: under.agent.loss(params, params, unroll, None), has_aux=True))
    for ours, theirs in zip(jax.tree.leaves(run(plain)), jax.tree.leaves(run(raised)), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_q_lambda_never_bootstraps_from_a_forbidden_action():
    """The last action has by far the best value of all, and is never allowed."""
    under = subject("pqn", "masked")
    steps = under.unroll().timestep
    steps.observation[ACTION_MASK][..., 4] = False
    steps.observation[ACTION_MASK][..., 0] = True
    unroll = under.play(steps)
    plain, raised = under.params, jax.tree.map(jnp.asarray, under.params)
    raised["network"]["params"]["q"]["bias"] = plain["network"]["params"]["q"]["bias"].at[4].set(1e6)
    prepare = jax.jit(under.agent.prepare)
    targets = [prepare(params, unroll)[1].record["target"] for params in (plain, raised)]
    np.testing.assert_array_equal(*targets)
    assert np.abs(targets[0]).max() < 100


def test_cloning_leaves_out_what_the_mask_of_the_data_set_forbids():
    under = subject("bc", "masked")
    unroll = under.unroll()
    allowed, action = unroll.timestep.observation[ACTION_MASK][:-1], np.array(unroll.action)
    loss, metrics, _ = under.gradient(unroll)
    assert float(metrics["forbidden"]) == 0.0 and float(metrics["valid"]) == 1.0
    # In row 0 a forbidden action in the place of each that was taken, as far as there is one.
    action[:, 0] = allowed[:, 0].argmin(axis=-1)
    share = (~allowed[np.arange(len(action)), 0, action[:, 0]]).mean() / action.shape[1]
    spoiled, metrics, gradient = under.gradient(unroll._replace(action=action))
    assert share > 0.1
    assert float(metrics["forbidden"]) == pytest.approx(share)
    assert float(metrics["valid"]) == pytest.approx(1 - share)
    assert 0 < float(spoiled) < 2 * float(loss)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient))


@pytest.mark.parametrize("mask_as_input", [False, True])
def test_the_network_reads_the_mask_only_if_it_is_asked_to(mask_as_input):
    spec = SPECS["masked"]
    agent = make_agent(VTraceSettings(), spec, Network(mask_as_input=mask_as_input))
    params = agent.init(jax.random.key(0))
    widths = [leaf.shape[0] for path, leaf in leaves(params) if path.endswith("Dense_0/kernel")]
    assert widths == [4 + 5 * mask_as_input] * 2
    check_forbidden_actions_are_never_taken(Subject(agent, spec))


def test_a_mask_alone_is_read_only_if_it_is_asked_for():
    spec = dataclasses.replace(SPECS["masked"], observation={ACTION_MASK: ArraySpec((5,), "bool")})
    with pytest.raises(ConfigError, match=r"an action mask and nothing else.*--mask-as-input"):
        make_agent(VTraceSettings(), spec)
    agent = make_agent(VTraceSettings(), spec, Network(mask_as_input=True))
    check_forbidden_actions_are_never_taken(Subject(agent, spec))
