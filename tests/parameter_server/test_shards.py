"""The parameter server: shards compute what one optimizer does, refuse what does not fit, and lose no gradient."""

from __future__ import annotations

import threading
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from harness import thorough
from hypothesis import given
from hypothesis import strategies as st

import seedbed
from seedbed.envs.make import spec_of
from seedbed.errors import SpecError
from seedbed.launch.build import build_agent
from seedbed.parameter_server.shards import Bound, LocalShards, Part, Shard, cut, join
from seedbed.types import Agent, Tree

RULES = {
    "adam": optax.adam(0.1),
    "rmsprop": optax.rmsprop(0.1, 0.9, centered=True, momentum=0.5),
    "adagrad": optax.adagrad(0.1),
    "annealed": optax.sgd(optax.linear_schedule(0.1, 0.0, 5)),
}


def tree(seed: int = 0) -> Tree:
    random = np.random.default_rng(seed)
    sizes = {"kernel": (5, 7), "bias": (3,), "scale": (), "none": (0,)}
    return {"network": {name: jnp.asarray(random.normal(size=s), jnp.float32) for name, s in sizes.items()}}


def server(
    rule: optax.GradientTransformation, shards: int, bound: Bound | None = None, params: Tree = None
) -> LocalShards:
    params = tree() if params is None else params
    whole = Part(params, rule.init(params), 0, 0)
    return LocalShards(rule, whole, shards, bound or Bound())


def same(one: Tree, other: Tree) -> None:
    jax.tree.map(np.testing.assert_array_equal, one, other)


@given(st.lists(st.lists(st.integers(0, 5), max_size=3), max_size=4), st.integers(1, 7))
def test_parts_make_the_whole_and_are_of_one_size(shapes: list[list[int]], shards: int) -> None:
    count = 0
    whole = {}
    for index, shape in enumerate(shapes):
        size = int(np.prod(shape))
        whole[str(index)] = np.arange(count, count + size, dtype=np.float32).reshape(shape)
        count += size
    parts = cut(whole, shards)
    assert len(parts) == shards
    same(join(parts, whole), whole)
    for name, leaf in whole.items():
        sizes = [part[name].size for part in parts]
        assert max(sizes) - min(sizes) <= 1
        assert leaf.ndim == 0 or sum(sizes) == leaf.size


@pytest.mark.parametrize("shards", [1, 4])
@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_shards_compute_what_the_optimizer_does(rule: optax.GradientTransformation, shards: int) -> None:
    ours = server(rule, shards)
    params, state = tree(), rule.init(tree())
    for step in range(1, 6):
        fetched = ours.fetch()
        assert fetched.versions == (step - 1,) * shards
        receipts = ours.push(tree(step), fetched.versions)
        assert [tuple(receipt) for receipt in receipts] == [(step, 0, True, False)] * shards
        changes, state = jax.jit(rule.update)(tree(step), state, params)
        params = optax.apply_updates(params, changes)
    whole = ours.whole()
    assert whole.version == 5
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-6), whole.params, params)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-6), whole.opt_state, state)


def test_a_gradient_that_is_dropped_lowers_an_annealed_rate_and_changes_nothing_else() -> None:
    ours = server(RULES["annealed"], 2, Bound(most=0))
    first = ours.fetch().versions
    assert all(receipt.taken for receipt in ours.push(tree(1), first))
    before = ours.whole()
    assert not any(receipt.taken for receipt in ours.push(tree(2), first, 0.5))
    after = ours.whole()
    same(before.params, after.params)
    assert (before.version, after.version) == (1, 1)
    assert [int(count) for part in (before, after) for count in jax.tree.leaves(part.opt_state)] == [1, 2]


def agent_of(name: str, **settings: Any) -> Agent:
    config = seedbed.configure("toy:catch", agent=name, preset="none", frames=10_000, **settings)
    return build_agent(config, spec_of("toy:catch"))


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("dqn", {}),
        *thorough(
            ("vtrace", {"target_entropy": 0.5, "optimizer": "rmsprop"}),
            ("a2c", {}),
            ("ppo", {"anneal_to_zero": True}),
        ),
    ],
)
def test_every_agents_optimizer_can_have_the_parameters_in_parts(name: str, settings: dict[str, Any]) -> None:
    agent = agent_of(name, **settings)
    params = jax.jit(agent.init)(jax.random.key(0))
    one, four = (server(agent.optimizer, shards, params=params) for shards in (1, 4))
    for step in range(3):
        gradient = jax.tree.map(lambda leaf, step=step: jnp.sin(leaf * 100 + step), params)
        for each in (one, four):
            each.push(gradient, each.fetch().versions)
    # To the last digit or nearly: compiled programs round otherwise where arrays end elsewhere.
    close = partial(np.testing.assert_allclose, rtol=1e-6, atol=1e-9)
    jax.tree.map(close, one.whole().params, four.whole().params)
    jax.tree.map(close, one.whole().opt_state, four.whole().opt_state)


def test_staleness_is_counted_and_bounded() -> None:
    params, gradient = {"w": jnp.zeros(4)}, {"w": jnp.ones(4)}
    pushes = [0, 0, 0, 0]  # all computed at the first parameters
    for bound, taken, steps in [
        (Bound(), [True] * 4, 1 + 1 + 1 + 1),
        (Bound(1), [True, True, False, False], 1 + 1),
        (Bound(1, "scale"), [True] * 4, 1 + 1 + 2 / 3 + 2 / 4),
        (Bound(0, "scale"), [True] * 4, 1 + 1 / 2 + 1 / 3 + 1 / 4),
    ]:
        ours = server(optax.sgd(1.0), 2, bound, params)
        receipts = [ours.push(gradient, (version, version)) for version in pushes]
        assert [receipt[0].taken for receipt in receipts] == taken
        versions = [receipt[1].version for receipt in receipts]
        assert versions == np.cumsum(taken).tolist()
        assert [receipt[1].staleness for receipt in receipts] == [0, *versions[:-1]]
        np.testing.assert_allclose(ours.whole().params["w"], -steps, rtol=1e-6)


def test_what_adam_changes_is_scaled_and_not_what_it_sees() -> None:
    # It divides by the size of gradients: the first change is the learning rate, whatever the gradient.
    ours = server(optax.adam(0.5), 1, Bound(0, "scale"), {"w": jnp.zeros(2)})
    ours.push({"w": jnp.ones(2)}, [0])
    ours.push({"w": jnp.ones(2)}, [0])
    np.testing.assert_allclose(ours.whole().params["w"], -0.5 - 0.25, rtol=1e-5)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"w": jnp.ones((5, 1)), "v": jnp.ones(3)}, r"float32\[5, 1\] was pushed for w, .*float32\[4\]"),
        ({"w": jnp.ones(4), "v": jnp.ones(3, jnp.int32)}, r"int32\[3\] was pushed for v"),
        ({"w": jnp.ones(4)}, "a gradient of w was pushed, and the parameters are v, w"),
        ({"w": jnp.ones(4), "v": jnp.ones(5)}, r"pushed for v"),
    ],
)
def test_what_does_not_fit_is_refused_and_changes_nothing(wrong: Tree, said: str) -> None:
    params = {"w": jnp.ones(4), "v": jnp.ones(3)}
    ours = server(optax.sgd(0.1), 2, params=params)
    before = ours.whole()
    with pytest.raises(SpecError, match=said):
        ours.push(wrong, (0, 0))
    # The shards' own check, which stands where gradients come from elsewhere.
    parts = cut(wrong, 2)
    with pytest.raises(SpecError, match="nothing was changed"):
        ours.shards[1].push(parts[1], 0)
    assert ours.whole().version == 0
    same(before.params, ours.whole().params)


def test_a_gradient_of_parameters_that_a_shard_never_had_is_refused() -> None:
    ours = server(optax.sgd(0.1), 2)
    with pytest.raises(SpecError, match=r"version 3 .* come to version 0: .*fetch the parameters again"):
        ours.push(tree(1), (3, 3))
    assert ours.whole().version == 0


def test_a_change_that_is_not_finite_is_skipped_and_counted() -> None:
    # Adam without an epsilon divides 0 by 0.
    ours = server(optax.adam(0.1, eps=0.0), 1, params={"w": jnp.ones(2)})
    [receipt] = ours.push({"w": jnp.zeros(2)}, [0])
    assert receipt.skipped
    whole = ours.whole()
    assert (whole.version, whole.skipped) == (1, 1)
    np.testing.assert_array_equal(whole.params["w"], 1.0)
    ours.push({"w": jnp.ones(2)}, [1])
    assert (ours.whole().version, int(ours.whole().skipped)) == (2, 1)
    assert float(ours.whole().params["w"][0]) < 1.0


def test_a_gradient_that_comes_while_another_is_applied_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    rule = optax.sgd(1.0)
    shard = Shard(rule, Part({"w": jnp.zeros(1)}, rule.init({"w": jnp.zeros(1)}), 0, 0), Bound())
    apply, second = shard._apply, threading.Thread(target=shard.push, args=({"w": jnp.ones(1)}, 0))

    def interrupted(*arguments: Any, **weight: Any) -> Any:
        if not second.ident:
            second.start()
            second.join(0.2)  # it cannot end: if it does, what it did is about to be lost
        return apply(*arguments, **weight)

    monkeypatch.setattr(shard, "_apply", interrupted)
    shard.push({"w": jnp.ones(1)}, 0)
    second.join(10)
    assert shard.part.version == 2
    assert float(shard.part.params["w"][0]) == -2.0


def test_many_threads_lose_no_gradient() -> None:
    ours = server(optax.sgd(1.0), 3, params={"w": jnp.zeros(7)})

    def work() -> None:
        for _ in range(25):
            ours.push({"w": jnp.ones(7)}, ours.fetch().versions)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert ours.whole().version == 100
    np.testing.assert_array_equal(ours.whole().params["w"], -100.0)
