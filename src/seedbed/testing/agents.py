"""The contract of an agent, as checks that anyone can run on an agent of their own; a new agent is one row.

::

    @pytest.mark.parametrize("name", SPECS)
    @pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
    def test_my_agent(check, name):
        check(subject(make_my_agent, name))

where ``make_my_agent`` maps an :class:`~seedbed.types.EnvSpec` to an :class:`~seedbed.types.Agent` whose
unrolls have 8 transitions or more (with a replay: whose items train on the transition that leads to step 3).
A check raises ``AssertionError`` and says which promise is broken.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, Literal, cast

import jax
import jax.numpy as jnp
import numpy as np

from seedbed.types import (
    ACTION_MASK,
    AGENT_INDEX,
    Agent,
    ArraySpec,
    EnvSpec,
    Exploration,
    TimeStep,
    Tree,
    Unroll,
    leaves,
    map_leaves,
)

_CHOICE = ArraySpec((), "int32", (5,))
SPECS: dict[str, EnvSpec] = {
    "vector": EnvSpec("test/vector", ArraySpec((4,), "float32"), _CHOICE),
    "image": EnvSpec("test/image", ArraySpec((12, 12, 1), "uint8"), _CHOICE, frame_stack=3),
    "tree": EnvSpec(
        "test/tree",
        {
            "camera": ArraySpec((12, 12, 2), "uint8"),
            "goal": ArraySpec((), "int32", (3,)),
            "doors": ArraySpec((3,), "bool"),
            "body": {"speed": ArraySpec((), "float32"), "joints": ArraySpec((2, 2), "float32")},
        },
        ArraySpec((2,), "int32", (3, 2)),
        frame_stack=2,
    ),
    "continuous": EnvSpec(
        "test/continuous",
        ArraySpec((3,), "float32"),
        ArraySpec((3,), "float32", low=(-1.0, 0.0, -np.inf), high=(1.0, 4.0, np.inf)),
    ),
    "bounded": EnvSpec(
        "test/bounded",
        {"camera": ArraySpec((12, 12, 1), "uint8"), "joints": ArraySpec((3,), "float32")},
        ArraySpec((2,), "float32", low=(-1.0, 0.0), high=(1.0, 4.0)),
        frame_stack=2,
    ),
    "masked": EnvSpec(
        "test/masked", {ACTION_MASK: ArraySpec((5,), "bool"), "seen": ArraySpec((4,), "float32")}, _CHOICE
    ),
    "masked parts": EnvSpec(
        "test/masked parts",
        {
            ACTION_MASK: ArraySpec((5,), "int8", (2,) * 5),
            "camera": ArraySpec((12, 12, 1), "uint8"),
            "deep": {ACTION_MASK: ArraySpec((2,), "float32")},
        },
        ArraySpec((2,), "int32", (3, 2)),
        frame_stack=2,
    ),
}
"""Environments, by name, that between them have every kind of observation and action."""

End = tuple[int, int, Literal["terminated", "truncated"]]
"""``(step, environment, how)``: that step shows the final observation of an episode."""


def observations(spec: EnvSpec, leading: tuple[int, ...], seed: int) -> Tree:
    """Random observations ``[*leading, ...]`` of the spec's shapes, dtypes and ranges; masks allow something.

    Rows that say which agent they are have the agents in turn.
    """
    rng = np.random.default_rng(seed)

    def draw(leaf: ArraySpec) -> np.ndarray[Any, Any]:
        shape = (*leading, *leaf.shape)
        if leaf.num_values:
            values = rng.integers(0, leaf.num_values, (*leading, len(leaf.num_values)))
            return values.reshape(shape).astype(leaf.dtype)
        if leaf.dtype == "bool":
            return rng.random(shape) < 0.5
        if leaf.dtype == "uint8":
            return rng.integers(0, 256, shape, dtype=np.uint8)
        return rng.normal(size=shape).astype(leaf.dtype)

    drawn = map_leaves(draw, spec.observation)
    if spec.action_mask is not None:
        drawn[ACTION_MASK] |= _one_of_each(spec, leading, rng).astype(spec.action_mask.dtype)
    if spec.tells_agents:
        rows = np.arange(leading[-1], dtype=np.int32) % len(spec.agents)
        drawn[AGENT_INDEX] = np.broadcast_to(rows, leading)
    return drawn


def _one_of_each(spec: EnvSpec, leading: tuple[int, ...], rng: np.random.Generator) -> np.ndarray[Any, Any]:
    """One value of each choice, at random, as a mask bool ``[*leading, P]``."""
    chosen = [rng.integers(0, count, (*leading, 1)) for count in spec.action.num_values]
    hots = [one == np.arange(count) for one, count in zip(chosen, spec.action.num_values, strict=True)]
    return np.concatenate(hots, axis=-1)


def experience(spec: EnvSpec, steps: int, batch: int, ends: Sequence[End] = (), seed: int = 0) -> TimeStep:
    """Random steps ``[steps, batch, ...]`` with episodes that begin at step 0 and end where ``ends`` says, as far as
    the steps go; masks of final observations allow nothing."""
    flags = {name: np.zeros((steps, batch), bool) for name in ("terminated", "truncated", "first")}
    flags["first"][0] = True
    for step, row, how in ends:
        if step >= steps:
            continue
        flags[how][step, row] = True
        if step + 1 < steps:
            flags["first"][step + 1, row] = True
    reward = np.random.default_rng(seed + 1).normal(size=(steps, batch)).astype(np.float32)
    observation = observations(spec, (steps, batch), seed)
    if spec.action_mask is not None:
        observation[ACTION_MASK][flags["terminated"] | flags["truncated"]] = 0
    return TimeStep(
        observation=observation,
        reward=np.where(flags["first"], np.float32(0), reward),
        **flags,
    )


def at(timestep: TimeStep, index: Any) -> TimeStep:
    """Indexes every array of a time step."""
    return TimeStep(
        map_leaves(lambda x: x[index], timestep.observation), *(array[index] for array in timestep[1:])
    )


class Subject:
    """An agent under test, with its functions compiled once: every unroll has T of the agent and 4 rows.

    Attributes:
      agent, spec: the agent, and its environments' spec.
      params: parameters of ``agent.init`` with noise, so that no policy is uniform and no input is ignored.
    """

    def __init__(self, agent: Agent, spec: EnvSpec) -> None:
        self.agent = agent
        self.spec = spec
        self.params = jax.device_put(jax.tree.map(_shake, jax.jit(agent.init)(jax.random.key(0))))
        self.act = jax.jit(agent.act)
        self.mode = jax.jit(agent.mode)
        self._prepare = jax.jit(agent.prepare or (lambda params, unroll: (params, unroll)))
        self._gradient = jax.jit(jax.value_and_grad(agent.loss, has_aux=True))
        self._compiled: Any = None

    def prepare(self, unroll: Unroll) -> Unroll:
        """The unroll as the loss wants it."""
        _, prepared = self._prepare(self.params, unroll)
        return cast(Unroll, prepared)

    def statistics(self, unroll: Unroll) -> Tree:
        """The parameters after the unroll was prepared, which keep statistics of what was shown."""
        params, _ = self._prepare(self.params, unroll)
        return cast(Tree, params)

    def compiled_gradient(self, unroll: Unroll) -> Any:
        """The compiled gradient of the loss, made with the first prepared unroll that comes."""
        if self._compiled is None:
            arguments = (self.params, self.params, unroll, jax.random.key(1))
            self._compiled = self._gradient.lower(*arguments).compile()
        return self._compiled

    def gradient(self, unroll: Unroll) -> tuple[Any, dict[str, Any], Tree]:
        """Loss, metrics and gradient of an unroll."""
        return self.gradient_of_prepared(self.prepare(unroll))

    def gradient_of_prepared(self, unroll: Unroll) -> tuple[Any, dict[str, Any], Tree]:
        """The same of one that was prepared, alone or as a part of another."""
        run = self.compiled_gradient(unroll)
        (loss, (metrics, _)), gradient = run(self.params, self.params, unroll, jax.random.key(1))
        return loss, metrics, gradient

    def play(self, timestep: TimeStep, seed: int = 0, skip: int = 0, number: int = 0) -> Unroll:
        """Acts on the steps ``[skip + T + 1, B, ...]`` in order, and returns the unroll of the last T + 1.

        The first step has this number; draws follow from numbers and seed.
        """
        steps, batch = timestep.first.shape
        states, outputs = [self.initial_state(batch)], []
        for t in range(steps - 1):
            keys = jax.random.split(jax.random.fold_in(jax.random.key(seed), number + t), batch)
            output, state = self.act(self.params, keys, at(timestep, t), states[-1])
            outputs.append(output)
            states.append(state)
        action, record = jax.tree.map(lambda *rows: np.stack(rows), *outputs[skip:])
        version = np.zeros((steps - 1 - skip, batch), np.int32)
        weight = np.linspace(0.5, 1.0, batch, dtype=np.float32) if self.agent.data.replay else None
        return Unroll(at(timestep, slice(skip, None)), action, record, states[skip], version, weight)

    def initial_state(self, batch: int) -> Tree:
        """The state before the first step, of environments that explore a little."""
        state = self.agent.initial_state(batch)
        return (
            self.agent.explore(state, Exploration(jnp.full(batch, 0.1), jnp.zeros(batch, bool)))
            if self.agent.explore
            else state
        )

    def unroll(self, ends: Sequence[End] = (), seed: int = 0) -> Unroll:
        """Makes an unroll for the loss, see :func:`experience`."""
        steps = self.agent.data.trained_length + 1
        return self.play(experience(self.spec, steps, 4, ends, seed), seed)


def _shake(param: Any) -> Any:
    noise = np.random.default_rng(param.size).normal(size=param.shape)
    return np.asarray(param) + (0.1 * noise).astype(param.dtype)


def subject(make: Callable[[EnvSpec], Agent], name: str) -> Subject:
    """The agent for the environment ``SPECS[name]``, under test."""
    return Subject(make(SPECS[name]), SPECS[name])


_ENDS: tuple[End, ...] = (
    (2, 0, "terminated"),
    (4, 1, "truncated"),
    (0, 2, "terminated"),
    (5, 2, "truncated"),
)


def check_shapes(subject: Subject) -> None:
    """Actions fit their spec; the state keeps its shapes and dtypes; the greedy action is an action too."""
    batch, spec = 4, subject.spec
    step = at(experience(spec, 1, batch), 0)
    state = subject.initial_state(batch)
    output, after = subject.act(subject.params, jax.random.split(jax.random.key(0), batch), step, state)
    greedy, after_greedy = subject.mode(subject.params, step, state)
    for action in (output.action, greedy):
        assert action.shape == (batch, *spec.action.shape), f"action has shape {action.shape}"
        assert action.dtype == jax.dtypes.canonicalize_dtype(spec.action.dtype), f"action is {action.dtype}"
    for name, changed in (("act", after), ("mode", after_greedy)):
        _same_kind(state, changed, f"the state that {name} returns")
    for path, leaf in leaves(output.record):
        assert leaf.shape[:1] == (batch,), f"record {path} has shape {leaf.shape}"


def _same_kind(wanted: Tree, given: Tree, what: str) -> None:
    def describe(tree: Tree) -> list[Any]:
        return [(path, leaf.shape, str(leaf.dtype)) for path, leaf in leaves(tree)]

    assert describe(wanted) == describe(given), f"{what} is {describe(given)}, not {describe(wanted)}"


def check_rows_are_independent(subject: Subject) -> None:
    """Requires that decisions for one environment do not depend on the rest of its batch."""
    batch = 4
    step = at(experience(subject.spec, 1, batch), 0)
    keys = jax.random.split(jax.random.key(3), batch)
    together, _ = subject.act(subject.params, keys, step, subject.initial_state(batch))
    order = np.asarray([2, 0, 3, 1])
    shuffled, _ = subject.act(subject.params, keys[order], at(step, order), subject.initial_state(batch))
    _close(
        jax.tree.map(lambda x: np.asarray(x)[order], together),
        shuffled,
        "acting on the rows in another order",
    )


def check_episodes_do_not_leak(subject: Subject) -> None:
    """Requires the first step of an episode to be acted on as after a reset, with any episode before it in the slot."""
    fresh = subject.play(experience(subject.spec, 4, 4, seed=5), number=4)
    before = experience(subject.spec, 4, 4, [(3, row, "terminated") for row in range(4)], seed=6)
    steps = jax.tree.map(
        lambda *x: np.concatenate(x),
        before,
        experience(subject.spec, 4, 4, seed=5),
        is_leaf=lambda x: x is None,
    )
    after = subject.play(steps)
    _close(
        jax.tree.map(lambda x: np.asarray(x)[0], (fresh.action, fresh.record)),
        jax.tree.map(lambda x: np.asarray(x)[4], (after.action, after.record)),
        "the decision at an episode's first step",
    )


def check_replay_reproduces_acting(subject: Subject) -> None:
    """Requires that with unchanged weights the loss computes the outputs of acting, also across an episode's end.

    Seen through the metric ``kl`` of the behaviour and the trained policy; agents without it are not checked.
    """
    length, skip = subject.agent.data.trained_length, 3
    ends: list[End] = [(skip + step, row, how) for step, row, how in _ENDS]
    steps = experience(subject.spec, skip + length + 1, 4, [*ends, (1, 3, "truncated")])
    _, metrics, _ = subject.gradient(subject.play(steps, skip=skip))
    kl = abs(float(metrics.get("kl", 0.0)))
    assert kl < 1e-6, f"with the same weights, the KL divergence of acting and loss is {kl}"


def _others(array: Any, where: np.ndarray[Any, Any], axis: int) -> np.ndarray[Any, Any]:
    """Returns ``[T, B, ...]`` with other numbers where ``[T, B]`` says so: those before along the axis, doubled."""
    given = np.asarray(array)
    other = np.roll(given, 1, axis)
    if jnp.issubdtype(given.dtype, jnp.floating):
        other = (-2 * other).astype(given.dtype)
    return np.where(where.reshape(*where.shape, *(1,) * (given.ndim - 2)), other, given)


def _is_finite(array: Any) -> bool:
    # By NumPy, as here and there above: what JAX computes outside of a program it compiles for every shape.
    return bool(np.isfinite(np.asarray(array, np.float64)).all())


def check_boundary_is_not_trained(subject: Subject) -> None:
    """Requires that the action at a final observation has no effect on loss or gradient."""
    unroll = subject.unroll(_ENDS)
    first = np.asarray(unroll.timestep.first[1:])

    def disturb(array: Any) -> Any:
        return _others(array, first, axis=1)

    reward = np.array(unroll.timestep.reward)
    reward[1:][first] = 100.0
    changed = unroll._replace(
        timestep=unroll.timestep._replace(reward=reward),
        action=disturb(unroll.action),
        record=jax.tree.map(disturb, unroll.record),
    )
    _close(_loss_and_gradient(subject, unroll), _loss_and_gradient(subject, changed), "the loss")


def check_absent_agents_are_not_trained(subject: Subject) -> None:
    """Requires that nothing at steps at which an agent is absent has an effect on loss, gradient or statistics."""
    plain = subject.unroll([(1, 1, "terminated")])
    steps = len(plain.timestep.first)
    flags = {name: np.array(getattr(plain.timestep, name)) for name in ("first", "terminated")}
    # Row 1 goes at step 1 and comes back at step 4; row 2 comes at step 2; row 3 never does.
    for row, absent in ((1, slice(2, 4)), (2, slice(0, 2)), (3, slice(0, None))):
        for flag in flags.values():
            flag[absent, row] = True
        flags["first"][absent.stop or steps :, row][:1] = True
    unroll = plain._replace(timestep=plain.timestep._replace(**flags))
    absent = unroll.timestep.absent

    def disturb(array: Any, where: Any) -> Any:
        return _others(array, where, axis=0)

    def of_decisions(array: Any) -> Any:
        return disturb(array, absent[:-1])

    changed = unroll._replace(
        timestep=unroll.timestep._replace(
            observation=jax.tree.map(lambda x: disturb(x, absent), unroll.timestep.observation)
        ),
        action=of_decisions(unroll.action),
        record=jax.tree.map(of_decisions, unroll.record),
    )
    one, other = ((_loss_and_gradient(subject, each), subject.statistics(each)) for each in (unroll, changed))
    _close(one, other, "the loss")


def _loss_and_gradient(subject: Subject, unroll: Unroll) -> tuple[Any, Tree]:
    loss, _, gradient = subject.gradient(unroll)
    return loss, gradient


def check_time_limit_is_no_termination(subject: Subject) -> None:
    """Requires a truncation to bootstrap from the final observation, and a termination not to look at it.

    Agents that learn the actions of a data set bootstrap from nothing.
    """
    step = 3
    for how, matters in (("terminated", False), ("truncated", not subject.agent.data.dataset)):
        unroll = subject.unroll([(step, row, how) for row in range(4)])  # type: ignore[misc]
        other = observations(subject.spec, unroll.timestep.first.shape, seed=99)

        def replace(array: Any, new: Any) -> Any:
            changed = np.array(array)
            changed[step] = new[step]
            return changed

        observation = map_leaves(replace, unroll.timestep.observation, other)
        changed = unroll._replace(timestep=unroll.timestep._replace(observation=observation))
        difference = _difference(_loss_and_gradient(subject, unroll), _loss_and_gradient(subject, changed))
        if matters:
            assert difference > 1e-5, "the final observation of a truncated episode is not bootstrapped from"
        else:
            assert difference < 1e-6, f"the final observation of a {how} episode has an effect"


def check_preparing_by_the_record_changes_nothing(subject: Subject) -> None:
    """Requires ``prepare`` to compute the same with and without the record of the step after the unroll."""
    if subject.agent.prepare is None:
        return
    steps = subject.agent.data.trained_length + 2
    longer = subject.play(experience(subject.spec, steps, 4, _ENDS))
    unroll = Unroll(
        at(longer.timestep, slice(None, -1)),
        longer.action[:-1],
        jax.tree.map(lambda x: x[:-1], longer.record),
        longer.state,
        longer.version[:-1],
    )
    last = jax.tree.map(lambda x: x[-1], longer.record)
    prepare = jax.jit(subject.agent.prepare)
    difference = _difference(prepare(subject.params, unroll), prepare(subject.params, unroll, last))
    assert difference < 1e-4, "prepare comes to something else where it is told what has acted"


def check_shards_average_to_the_whole(subject: Subject) -> None:
    """The loss is a mean over the batch: the average over shards is the loss of the whole, gradients too.

    A loss may draw a number for each place in the batch: so each row takes a place in both halves of the whole, as it
    does in its shard.
    """
    unroll = subject.prepare(subject.unroll(_ENDS))

    def gradient(part: Unroll) -> tuple[Any, Tree]:
        loss, _, tree = subject.gradient_of_prepared(part)
        return loss, tree

    def only(rows: Sequence[int]) -> Unroll:
        """A batch of ``rows``, each of them as often as the others: its mean is that of the shard."""
        index = np.asarray(rows)
        return unroll._replace(
            timestep=at(unroll.timestep, (slice(None), index)),
            action=unroll.action[:, index],
            record=jax.tree.map(lambda x: x[:, index], unroll.record),
            state=jax.tree.map(lambda x: x[index], unroll.state),
            version=unroll.version[:, index],
            weight=None if unroll.weight is None else unroll.weight[index],
        )

    def mean(*batches: Sequence[int]) -> tuple[Any, Tree]:
        average: tuple[Any, Tree] = jax.tree.map(
            lambda a, b: (a + b) / 2, *(gradient(only(rows)) for rows in batches)
        )
        return average

    one, other = np.split(np.arange(unroll.version.shape[1]), 2)
    whole = mean([*one, *other], [*other, *one])
    _close(whole, mean([*one, *one], [*other, *other]), "the average over two shards")


def check_update_is_finite(subject: Subject) -> None:
    """Loss, metrics and gradient are finite, and an update moves the parameters and keeps their kind."""
    loss, metrics, gradient = subject.gradient(subject.unroll(_ENDS))
    for path, leaf in [("loss", loss), *leaves(metrics), *leaves(gradient)]:
        assert _is_finite(leaf), f"{path} is not finite"
    for name, metric in metrics.items():
        assert jnp.shape(metric) == (), f"metric {name} has shape {jnp.shape(metric)}"
    agent = subject.agent

    @jax.jit
    def update(params: Tree, gradient: Tree) -> tuple[Tree, Tree]:
        clipped = agent.clip(gradient) if agent.clip else gradient
        updates, _ = agent.optimizer.update(clipped, agent.optimizer.init(params), params)
        return clipped, jax.tree.map(jnp.add, params, updates)

    clipped, moved = update(subject.params, gradient)
    _same_kind(gradient, clipped, "a clipped gradient")
    _same_kind(subject.params, moved, "what an update makes of the parameters")
    assert _difference(subject.params, moved) > 0, "an update moves nothing"


def check_no_convolution_in_a_loop(subject: Subject) -> None:
    """No compiled loop holds a convolution: XLA's CPU backend would be tens of times slower."""
    if not any(leaf.is_image for _, leaf in leaves(subject.spec.observation)):
        return
    found = convolutions_in_loops(subject.compiled_gradient(subject.prepare(subject.unroll())).as_text())
    assert not found, f"convolutions inside loops: {found}"


def convolutions_in_loops(text: str) -> list[str]:
    """Lists the computations of a compiled program that hold a convolution and are run by a ``while``, at any depth.

    Args:
      text: text from ``jax.jit(f).lower(…).compile().as_text()``.
    """
    bodies: dict[str, str] = {}
    for match in re.finditer(r"^(?:ENTRY )?%?([\w.\-]+) [^\n]*\{\n(.*?)^\}", text, re.MULTILINE | re.DOTALL):
        bodies[match.group(1)] = match.group(2)
    looped: set[str] = set()
    waiting = [
        name for body in bodies.values() for name in re.findall(r"(?:body|condition)=%?([\w.\-]+)", body)
    ]
    while waiting:
        name = waiting.pop()
        if name in bodies and name not in looped:
            looped.add(name)
            waiting += re.findall(r"%([\w.\-]+)", bodies[name])
    return sorted(
        name for name in looped if re.search(r"\bconvolution\(|conv\w*_?2d|__onednn\$conv", bodies[name])
    )


def _difference(one: Tree, other: Tree) -> float:
    """The largest difference between two trees of numbers, relative to the largest number of its leaf or 1."""
    pairs = [
        (np.asarray(a, np.float64), np.asarray(b, np.float64))
        for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    ]
    return max((float(np.max(np.abs(a - b)) / max(1.0, np.max(np.abs(a)))) for a, b in pairs), default=0.0)


def _close(one: Tree, other: Tree, what: str) -> None:
    difference = _difference(one, other)
    assert difference < 2e-5, f"{what} differs by {difference}"


def check_forbidden_actions_are_never_taken(subject: Subject) -> None:
    """Requires actions that the mask allows, drawn by agents that explore as much as they can, and greedy ones.

    Where nothing is allowed, as at the end of an episode, what is recorded is finite all the same.
    """
    spec, batch = subject.spec, 64
    if spec.action_mask is None:
        return
    ends: list[End] = [(2, row, "terminated") for row in range(0, batch, 2)]
    steps = experience(spec, 6, batch, ends, seed=7)
    state = subject.agent.initial_state(batch)
    if subject.agent.explore:
        state = subject.agent.explore(state, Exploration(jnp.zeros(batch), jnp.zeros(batch, bool)))
    for t in range(len(steps.first)):
        step = at(steps, t)
        greedy, _ = subject.mode(subject.params, step, state)
        keys = jax.random.split(jax.random.key(t), batch)
        output, state = subject.act(subject.params, keys, step, state)
        for how, action in (("drawn", output.action), ("greedy", greedy)):
            taken = _takes_forbidden(spec, step, np.asarray(action))
            assert not taken.any(), f"the {how} actions of rows {np.flatnonzero(taken)} are forbidden"
        for path, leaf in leaves(output.record):
            assert _is_finite(leaf), f"record {path} is not finite"


def _takes_forbidden(spec: EnvSpec, step: TimeStep, action: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Returns whether the action ``[B, *shape]`` of each row is forbidden; where nothing is allowed, nothing is."""
    mask = np.asarray(step.observation[ACTION_MASK]) != 0
    elements = action.reshape(len(action), -1)
    forbidden = np.zeros(len(action), bool)
    pieces = np.split(mask, np.cumsum(spec.action.num_values)[:-1], axis=-1)
    for i, allowed in enumerate(pieces):
        chosen = np.take_along_axis(allowed, elements[:, i, None].astype(np.int64), axis=1)[:, 0]
        forbidden |= ~chosen & allowed.any(axis=1)
    return forbidden


def check_priorities(subject: Subject) -> None:
    """Requires a finite priority of 0 or more of each item, by the loss and by the record of acting."""
    plan = subject.agent.data
    if plan.replay is None:
        return
    unroll = subject.prepare(subject.unroll(_ENDS))
    (_, (_, priorities)), _ = subject.compiled_gradient(unroll)(
        subject.params, subject.params, unroll, jax.random.key(1)
    )
    _require_priorities(priorities, (4,), "the loss")
    if subject.agent.priorities is None:
        return
    steps = plan.overlap + plan.unroll_length + 1
    whole = subject.play(experience(subject.spec, steps, 4, _ENDS))
    blind = whole._replace(timestep=whole.timestep._replace(observation={}))
    _require_priorities(subject.agent.priorities(blind), (plan.items, 4), "what was recorded")


def _require_priorities(given: Any, shape: tuple[int, ...], whose: str) -> None:
    assert given.shape == shape, f"priorities by {whose} have shape {given.shape}, not {shape}"
    assert _is_finite(given) and (np.asarray(given) >= 0).all(), f"priorities by {whose} are {given}"


CHECKS: tuple[Callable[[Subject], None], ...] = (
    check_shapes,
    check_rows_are_independent,
    check_episodes_do_not_leak,
    check_replay_reproduces_acting,
    check_boundary_is_not_trained,
    check_absent_agents_are_not_trained,
    check_time_limit_is_no_termination,
    check_preparing_by_the_record_changes_nothing,
    check_shards_average_to_the_whole,
    check_update_is_finite,
    check_forbidden_actions_are_never_taken,
    check_priorities,
    check_no_convolution_in_a_loop,
)
"""Every check; each takes a :class:`Subject`."""
