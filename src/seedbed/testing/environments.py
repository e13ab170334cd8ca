"""Does an environment keep the rules of the stream? Run this on your own before you train on it::

    from seedbed.testing.environments import check_environment

    def test_my_environment():
        check_environment("my_module:make_world")

Every rule is a function below, named in the message when it is broken.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seedbed.envs.interface import Environment
from seedbed.envs.make import make as make_environment
from seedbed.envs.masks import allowed_actions, mask_rule
from seedbed.envs.rules import StepRules, broken_array
from seedbed.errors import EnvironmentFault
from seedbed.types import ArraySpec, EnvSpec, TimeStep, leaves, map_leaves

Actions = list[NDArray[Any]]
Steps = list[TimeStep]

_FLAGS = ("terminated", "truncated", "first")


@dataclass(frozen=True)
class Recording:
    """The steps that an environment showed: step 0 is from ``reset``, step ``t`` answers action ``t - 1``."""

    spec: EnvSpec
    num_envs: int
    steps: Steps
    actions: Actions


def check_environment(
    make: Callable[[int], Environment] | str, num_envs: int = 3, steps: int = 500, seed: int = 1
) -> None:
    """Steps an environment with random actions and checks every rule of the stream.

    Args:
      make: takes the number of environments and returns a fresh batch; or an id that ``seedbed.envs.make``
        takes. It is called a few times.
      num_envs: size of the batch, at least 2; a multiple of the agents that an environment has.
      steps: number of steps to take; enough for some episodes to end, since most rules are about ends.
      seed: seed of the environments and of the actions.

    Raises:
      AssertionError: a rule is broken; the message names the rule, the place and the values seen.
    """
    fresh = (lambda n: make_environment(make, n)) if isinstance(make, str) else make
    try:
        _check(fresh, num_envs, steps, seed)
    except EnvironmentFault as fault:
        raise AssertionError(str(fault)) from fault


def _check(fresh: Callable[[int], Environment], num_envs: int, steps: int, seed: int) -> None:
    environment = fresh(num_envs)
    try:
        _size_rule(environment, num_envs)
        _spec_rule(environment.spec)
        actions = sample_actions(environment.spec.action, num_envs, steps, seed)
        recording = record(environment, seed, actions)
        for rule in _STREAM_RULES:
            rule(recording)
        _reset_rule(environment, seed, actions, recording)
    finally:
        environment.close()
    _close_rule(environment)
    _determinism_rule(fresh, seed, actions, recording)
    _seed_rule(fresh, num_envs, seed, recording)
    _final_action_rule(fresh, seed, actions, recording)


def sample_actions(spec: ArraySpec, num_envs: int, steps: int, seed: int) -> Actions:
    """Random actions within the bounds, ``steps`` arrays ``[num_envs, *shape]``; two bounds come first."""
    random = np.random.default_rng(seed)
    low, high = _bounds(spec)
    shape = (num_envs, *spec.shape)
    extremes = [np.broadcast_to(bound, shape).astype(spec.dtype) for bound in (low, high)]
    draw = (
        (lambda: random.integers(low, high + 1, shape))
        if spec.num_values
        else (lambda: random.uniform(low, high, shape))
    )
    return [*extremes, *(draw().astype(spec.dtype) for _ in range(steps - 2))][:steps]


def record(environment: Environment, seed: int, actions: Actions) -> Recording:
    """Resets ``environment``, takes ``actions`` (the next allowed ones, where a mask forbids them), and keeps copies of
    all steps."""
    steps, taken = [copy.deepcopy(environment.reset(seed))], []
    for action in actions:
        taken.append(allowed_actions(environment.spec, steps[-1], action))
        environment.send(taken[-1])
        steps.append(copy.deepcopy(environment.receive()))
    return Recording(environment.spec, environment.num_envs, steps, taken)


def _bounds(spec: ArraySpec) -> tuple[NDArray[Any], NDArray[Any]]:
    """Least and greatest value of every element of an action, no further than 10 from the number nearest to 0."""
    if spec.num_values:
        greatest = np.array(spec.num_values).reshape(spec.shape) - 1
        return np.zeros_like(greatest), greatest
    low, high = (bound.astype(np.float32) for bound in spec.bounds)
    nearest = np.clip(np.float32(0), low, high)
    return np.maximum(low, nearest - 10), np.minimum(high, nearest + 10)


# -- rules about one recording ------------------------------------------------------------------------------


def _shape_rule(recording: Recording) -> None:
    """Arrays have the shapes and dtypes of the spec, with the batch as leading axis."""
    wanted, n = dict(leaves(recording.spec.observation)), recording.num_envs
    for t, step in enumerate(recording.steps):
        shown = dict(leaves(step.observation))
        difference = f"the observation has {sorted(shown)}, not {sorted(wanted)}"
        _require(shown.keys() == wanted.keys(), "shape rule", t, difference)
        for path, spec in wanted.items():
            _require_array(t, f"observation {path}".strip(), shown[path], spec.dtype, (n, *spec.shape))
        _require_array(t, "reward", step.reward, "float32", (n,))
        for name in _FLAGS:
            _require_array(t, name, getattr(step, name), "bool", (n,))


def _value_rule(recording: Recording) -> None:
    """Rewards are finite, and observations are as declared, see :mod:`seedbed.envs.rules`."""
    rules = StepRules(recording.spec)
    for t, step in enumerate(recording.steps):
        broken = rules.broken(step)
        _require(broken is None, "value rule", t, broken or "")


def _mask_rule(recording: Recording) -> None:
    """Action masks allow an action in all but the last observations of episodes."""
    rule = mask_rule(recording.spec)
    for t, step in enumerate(recording.steps):
        broken = rule(step) if rule else None
        _require(broken is None, "mask rule", t, f"action_mask {broken}")


def _start_rule(recording: Recording) -> None:
    """After a reset, every environment is at a first step."""
    _require(bool(recording.steps[0].first.all()), "start rule", 0, "reset() gave steps that are not `first`")


def _first_rule(recording: Recording) -> None:
    """A step is ``first`` exactly when the one before it was the end of an episode."""
    late = "the step after an end is not `first`; the final and the next first observation are two steps"
    early = "a step is `first` though no episode ended before it"
    for t, (before, step) in enumerate(pairwise(recording.steps), 1):
        ended = before.terminated | before.truncated
        _require(not (ended & ~step.first).any(), "first rule", t, late)
        _require(not (step.first & ~ended).any(), "first rule", t, early)


def _end_rule(recording: Recording) -> None:
    """An end is a termination or a truncation, not both, and a first step only of an agent that is not there."""
    several = bool(recording.spec.agents)
    for t, step in enumerate(recording.steps):
        both = bool((step.terminated & step.truncated).any())
        _require(not both, "end rule", t, "a step is both terminated and truncated; terminated wins")
        ended = step.terminated | step.truncated
        at_once = bool((ended & step.first & ~(step.absent & several)).any())
        _require(not at_once, "end rule", t, "a `first` step is also an end")


def _first_reward_rule(recording: Recording) -> None:
    """First steps have no reward: nothing was done to get there."""
    for t, step in enumerate(recording.steps):
        unpaid = not step.reward[step.first].any()
        _require(unpaid, "first reward rule", t, "a `first` step has a reward; it must be 0")


_STREAM_RULES = (
    _shape_rule,
    _value_rule,
    _mask_rule,
    _start_rule,
    _first_rule,
    _end_rule,
    _first_reward_rule,
)


# -- rules about the environment ----------------------------------------------------------------------------


def _size_rule(environment: Environment, num_envs: int) -> None:
    _ensure(
        environment.num_envs == num_envs,
        f"size rule: {environment.num_envs} environments were made, {num_envs} were asked for",
    )


def _spec_rule(spec: EnvSpec) -> None:
    """The spec survives the journey to another process, and its action is a choice or continuous."""
    travelled = EnvSpec.from_json(spec.to_json())
    _ensure(travelled == spec, f"spec rule: {spec} changes when it travels as JSON")
    action, size = spec.action, int(np.prod(spec.action.shape))
    for name in ("num_values", "low", "high"):
        given = len(getattr(action, name))
        _ensure(
            given in {0, size},
            f"spec rule: {name} of the action has {given} entries; it needs {size}, or none",
        )
    whole = np.issubdtype(np.dtype(action.dtype), np.integer)
    _ensure(
        whole == bool(action.num_values),
        f"spec rule: an action of {action.dtype} must {'have' if whole else 'not have'} num_values",
    )


def _reset_rule(environment: Environment, seed: int, actions: Actions, recording: Recording) -> None:
    """``reset`` starts anew at any time, also while a step is under way."""
    shown = environment.reset(seed + 1)
    environment.send(allowed_actions(environment.spec, shown, actions[-1]))
    again = record(environment, seed, actions[:20])
    _require_same(recording, again, "reset rule", "after reset() with the same seed (a step was under way)")


def _close_rule(environment: Environment) -> None:
    try:
        environment.close()
    except Exception as error:
        raise AssertionError(f"close rule: close() raised when called again: {error!r}") from error


def _determinism_rule(
    fresh: Callable[[int], Environment], seed: int, actions: Actions, recording: Recording
) -> None:
    """The same seed and actions give the same stream."""
    again = _record_once(fresh, recording.num_envs, seed, actions)
    _require_same(recording, again, "determinism rule", "in a second batch with the same seed and actions")


def _seed_rule(fresh: Callable[[int], Environment], num_envs: int, seed: int, seen: Recording) -> None:
    """If anything is random, the environments of a batch differ: each has a seed of its own."""
    # Every environment takes the same actions, so that only seeds can tell them apart.
    one = sample_actions(seen.spec.action, 1, min(len(seen.steps), 100), seed)
    actions = [np.repeat(action, num_envs, axis=0) for action in one]
    recording = _record_once(fresh, num_envs, seed, actions)
    other = _record_once(fresh, num_envs, seed + 1, actions)
    random = not all(_same(a, b) for a, b in zip(recording.steps, other.steps, strict=True))
    if not random:
        return
    each = seen.spec.rows
    for i in range(each, num_envs, each):
        equal = all(
            _same(_row(step, row), _row(step, i + row)) for step in recording.steps for row in range(each)
        )
        _ensure(
            not equal,
            f"seed rule: environments 0 and {i // each} of a batch show the same for {len(one)} equal actions; "
            "environment i must be seeded from (seed, i)",
        )


def _final_action_rule(
    fresh: Callable[[int], Environment], seed: int, actions: Actions, recording: Recording
) -> None:
    """The action after an end goes nowhere: it is the next episode that begins in that step.

    An environment that has begun it in the final step already, or has begun none, takes the action.
    """
    spec = recording.spec.action
    changed = [
        _with_others(spec, action, step.terminated | step.truncated)
        for action, step in zip(actions, recording.steps, strict=False)
    ]
    again = _record_once(fresh, recording.num_envs, seed, changed)
    _require_same(
        recording,
        again,
        "final action rule",
        "with other actions in the steps after ends, which have to reset and to take none (autoreset mode NEXT_STEP)",
    )


def _with_others(spec: ArraySpec, action: NDArray[Any], rows: NDArray[np.bool_]) -> NDArray[Any]:
    """Returns the actions with others in ``rows``: the farthest ones within the bounds."""
    low, high = _bounds(spec)
    other = np.where(action - low > high - action, low, high).astype(action.dtype)
    return np.where(rows.reshape(-1, *[1] * (action.ndim - 1)), other, action)


# -- helpers ------------------------------------------------------------------------------------------------


def _record_once(
    fresh: Callable[[int], Environment], num_envs: int, seed: int, actions: Actions
) -> Recording:
    environment = fresh(num_envs)
    try:
        return record(environment, seed, actions)
    finally:
        environment.close()


def _row(step: TimeStep, i: int) -> TimeStep:
    return TimeStep(map_leaves(lambda array: array[i], step.observation), *(field[i] for field in step[1:]))


def _same(a: TimeStep, b: TimeStep) -> bool:
    return not _differing(a, b)


def _differing(a: TimeStep, b: TimeStep) -> list[str]:
    """Returns the names of the fields that differ between two steps."""
    arrays = [
        ("observation " + path, x, y)
        for (path, x), (_, y) in zip(leaves(a.observation), leaves(b.observation), strict=True)
    ]
    arrays += [(name, getattr(a, name), getattr(b, name)) for name in ("reward", *_FLAGS)]
    return [name.strip() for name, x, y in arrays if not np.array_equal(x, y)]


def _require_same(one: Recording, other: Recording, rule: str, when: str) -> None:
    for t, (a, b) in enumerate(zip(one.steps, other.steps, strict=False)):
        differing = _differing(a, b)
        _require(not differing, rule, t, f"{', '.join(differing)} differ {when}")


def _require_array(t: int, name: str, array: Any, dtype: str, shape: tuple[int, ...]) -> None:
    broken = broken_array(array, dtype, shape)
    _require(broken is None, "shape rule", t, f"{name} {broken}")


def _require(kept: bool, rule: str, t: int, broken: str) -> None:
    _ensure(kept, f"{rule}, broken at step {t}: {broken}")


def _ensure(kept: bool, broken: str) -> None:
    # No assert: python -O leaves it out.
    if not kept:
        raise AssertionError(broken)
