"""Action masks that environments show: taken, refused by name, or an observation like any other."""

from __future__ import annotations

import json
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from odd_worlds import World, box

from seedbed.envs.make import Guarded
from seedbed.envs.mask_from_info import MaskFromInfo
from seedbed.envs.masks import allowed_actions, mask_rule
from seedbed.envs.own import _batched
from seedbed.envs.spaces import action_codec, observation_codec
from seedbed.errors import EnvironmentFault, SpecError
from seedbed.nets.network import Network
from seedbed.nets.observations import described
from seedbed.testing.environments import check_environment
from seedbed.types import ACTION_MASK, ArraySpec, EnvSpec, TimeStep

UNIT = box(0, 1, (2,))
BITS = spaces.MultiBinary
NINE, TWO_CHOICES, BUTTONS = spaces.Discrete(9), spaces.MultiDiscrete([3, 2]), BITS(2)
STEER = box(-1, 1, (2,))

MASKS = {
    "bits": (BITS(9), NINE),
    "bools": (box(0, 1, (9,), np.bool_), NINE),
    "bytes": (box(0, 1, (9,), np.int8), NINE),
    "long": (box(0, 1, (9,), np.int64), NINE),
    "two choices": (BITS(5), TWO_CHOICES),
    "buttons": (BITS(4), BUTTONS),
    "from 5 on": (BITS(3), spaces.Discrete(3, start=5)),
}
REFUSED = {
    "shape": (
        BITS(8),
        NINE,
        r"is int8 \(8,\), and no mask.*needed is \(9,\).*MultiBinary\(9\); or another name",
    ),
    "rank": (BITS((9, 1)), NINE, r"is int8 \(9, 1\)"),
    "by choice": (
        BITS((2, 3)),
        TWO_CHOICES,
        r"is int8 \(2, 3\), .*needed is \(5,\), an entry for each value of each choice",
    ),
    "reals": (box(0, 1, (9,)), NINE, r"is float32 \(9,\)"),
    "range": (box(0, 9, (9,), np.int8), NINE, r"is int8 \(9,\)"),
    "number": (spaces.Discrete(9), NINE, r"is int32 \(\)"),
    "several": (spaces.Tuple([BITS(3), BITS(2)]), TWO_CHOICES, r"is a dict of \['0', '1'\]"),
    "no choices": (BITS(2), STEER, r"actions are float32 \(2,\) and no choices.*another name"),
}


def spec_of(mask: spaces.Space, action: spaces.Space, **more: spaces.Space) -> EnvSpec:
    observation, _ = observation_codec(spaces.Dict({ACTION_MASK: mask, "x": UNIT, **more}), "odd")
    return EnvSpec("odd", observation, action_codec(action, "odd")[0])


@pytest.mark.parametrize("kind", MASKS)
def test_masks_that_are_taken(kind: str) -> None:
    spec = spec_of(*MASKS[kind])
    count = sum(spec.action.num_values)
    assert spec.action_mask is not None and spec.action_mask.shape == (count,)
    assert EnvSpec.from_json(json.loads(json.dumps(spec.to_json()))).action_mask == spec.action_mask
    lines = [*described(spec)]
    assert lines == [
        f"action_mask: ({count},), forbids actions",
        "observation x: float32 (2,), 0 to 1, as numbers",
    ]
    asked = [*described(spec, Network(mask_as_input=True))]
    assert [line.partition(":")[0] for line in asked] == [
        "action_mask",
        "observation action_mask",
        "observation x",
    ]


@pytest.mark.parametrize("kind", REFUSED)
def test_masks_that_are_refused(kind: str) -> None:
    mask, action, words = REFUSED[kind]
    with pytest.raises(
        SpecError, match=f"odd: observation action_mask {words}" if kind != "no choices" else words
    ):
        _ = spec_of(mask, action).action_mask
    world = World(spaces.Dict({ACTION_MASK: mask, "x": UNIT}), action)
    with pytest.raises(SpecError, match="odd: observation action_mask"):
        Guarded(_batched("odd", 1, lambda: world))


@pytest.mark.parametrize(
    "observation",
    [
        spaces.Dict(deep=spaces.Dict(action_mask=box(0, 5, (3,)), x=UNIT), x=UNIT),
        spaces.Dict(mask=BITS(9), x=UNIT),
        UNIT,
    ],
)
def test_only_the_leaf_at_the_top_that_is_named_so_is_a_mask(observation: spaces.Space) -> None:
    found, _ = observation_codec(observation, "odd")
    spec = EnvSpec("odd", found, ArraySpec((), "int32", (9,)))
    assert spec.action_mask is None
    assert mask_rule(spec) is None
    assert not any("forbids" in line for line in described(spec))


class Masked(gymnasium.Env[Any, Any]):
    """One whose masks are a script, from the reset on; an episode ends with it."""

    def __init__(self, *script: list[int], space: Any = None, action: Any = None) -> None:
        self.observation_space = spaces.Dict(action_mask=space or BITS(3), x=UNIT)
        self.action_space = action or spaces.Discrete(3)
        self._script = script
        self._time = 0

    def _shown(self) -> Any:
        mask = np.array(self._script[self._time], self.observation_space["action_mask"].dtype)
        return {"action_mask": mask, "x": np.zeros(2, np.float32)}

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self._time = 0
        return self._shown(), {}

    def step(self, action: Any) -> Any:
        assert self._shown()["action_mask"][action], "a forbidden action"
        self._time += 1
        return self._shown(), 0.0, self._time == len(self._script) - 1, False, {}


SOME, NONE = [0, 1, 1], [0, 0, 0]


@pytest.mark.parametrize(
    ("script", "moment", "steps"),
    [
        ([NONE, SOME, SOME], "reset", 0),
        ([SOME, NONE, SOME], "step", 1),
        ([SOME, SOME, SOME, NONE, SOME], "step", 3),
    ],
)
def test_a_mask_that_allows_nothing_is_refused_with_environment_and_step(
    script: list[list[int]], moment: str, steps: int
) -> None:
    def make(num_envs: int) -> Guarded:
        long = [SOME] * 6
        made = iter([Masked(*long), Masked(*script), Masked(*long)])
        return Guarded(_batched("odd", num_envs, lambda: next(made)))

    words = (
        rf"odd: {moment}\(\) breaks the rule of masks: action_mask of environment 1 of the batch is "
        r"\[0, 0, 0\] and allows no action: it must allow one in all but the last observation of an episode"
    )
    with pytest.raises(EnvironmentFault, match=words) as fault:
        environment = make(2)
        environment.reset(1)
        for _ in range(4):
            environment.send(np.array([1, 1]))
            environment.receive()
    assert fault.value.step == steps
    with pytest.raises(AssertionError, match="rule of masks"):
        check_environment(make)


def test_one_choice_of_several_without_a_value_is_refused_too() -> None:
    spec = spec_of(*MASKS["two choices"])
    rule = mask_rule(spec)
    assert rule is not None
    assert rule(shown(spec, [[0, 1, 0, 1, 0]])) is None
    assert "allows no action of one of the choices" in str(rule(shown(spec, [[1, 1, 1, 0, 0]])))


def test_a_mask_of_other_numbers_is_refused() -> None:
    spec = spec_of(*MASKS["bytes"])
    rule = mask_rule(spec)
    assert rule is not None
    assert "it must be 1 (allowed) or 0" in str(rule(shown(spec, [[1] * 9, [-1] * 9])))


def shown(spec: EnvSpec, mask: Any, ended: bool = False) -> TimeStep:
    assert spec.action_mask is not None
    array = np.array(mask, spec.action_mask.dtype)
    flags = np.zeros(len(array), bool)
    return TimeStep({ACTION_MASK: array}, flags, flags | ended, flags, flags)


@pytest.mark.parametrize("kind", ["bits", "bools", "bytes", "long", "two choices"])
def test_the_mask_of_a_final_observation_is_not_used(kind: str) -> None:
    spec = spec_of(*MASKS[kind])
    rule = mask_rule(spec)
    assert rule is not None
    nothing = [[0] * sum(spec.action.num_values)]
    assert rule(shown(spec, nothing, ended=True)) is None
    assert "allows no action" in str(rule(shown(spec, nothing)))


@pytest.mark.parametrize("script", [(SOME, SOME, NONE), (SOME, [1, 0, 0], SOME, [0, 0, 1], NONE)])
def test_what_keeps_to_it_passes_the_suite(script: tuple[list[int], ...]) -> None:
    check_environment(lambda num_envs: Guarded(_batched("odd", num_envs, lambda: Masked(*script))), steps=60)


def test_actions_that_no_policy_chooses_are_the_next_allowed_ones() -> None:
    spec = spec_of(*MASKS["two choices"])
    step = shown(spec, [[1, 0, 0, 0, 1], [0, 1, 1, 1, 1], [0, 0, 0, 1, 0], [1, 0, 1, 1, 0]])
    action = np.array([[1, 0], [2, 0], [1, 1], [1, 1]], np.int32)
    np.testing.assert_array_equal(allowed_actions(spec, step, action), [[0, 1], [2, 0], [1, 0], [2, 0]])
    free = EnvSpec(spec.id, {"x": ArraySpec((2,), "float32")}, spec.action)
    assert allowed_actions(free, step, action) is action


class InInfo(World):
    """One whose masks stand in ``info``, but for those of final observations; refuses what they forbid."""

    def _info(self) -> dict[str, Any]:
        self._free = self.np_random.integers(0, 2, 5)
        self._free[[0, 3]] = 1
        parts = np.split(self._free, [3])
        return {
            ACTION_MASK: tuple(parts) if isinstance(self.action_space, spaces.MultiDiscrete) else self._free
        }

    def reset(self, **given: Any) -> tuple[Any, dict[str, Any]]:
        shown, _ = super().reset(**given)
        return shown, self._info()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        chosen = action + np.array([0, 3]) if np.ndim(action) else action
        assert self._free[chosen].all(), "a forbidden action"
        shown, reward, terminated, truncated, _ = super().step(action)
        return shown, reward, terminated, truncated, {} if terminated else self._info()


@pytest.mark.parametrize("observation", [UNIT, spaces.Dict(x=UNIT), spaces.Discrete(3)])
@pytest.mark.parametrize("action", [spaces.Discrete(5), TWO_CHOICES])
def test_a_mask_in_info_is_shown_by_a_wrapper(observation: spaces.Space, action: spaces.Space) -> None:
    def make(num_envs: int) -> Guarded:
        return Guarded(_batched("odd", num_envs, lambda: MaskFromInfo(InInfo(observation, action))))

    check_environment(make, steps=200)
    spec = make(1).spec
    assert spec.action_mask is not None and spec.observation.keys() == (
        {"x", ACTION_MASK} if isinstance(observation, spaces.Dict) else {"observation", ACTION_MASK}
    )


def test_gymnasiums_taxi_drives_where_it_can() -> None:
    check_environment(
        lambda num_envs: Guarded(
            _batched("taxi", num_envs, lambda: MaskFromInfo(gymnasium.make("Taxi-v4", max_episode_steps=30)))
        ),
        steps=100,
    )


def test_a_mask_that_is_missing_in_info_allows_nothing() -> None:
    environment = Guarded(_batched("odd", 1, lambda: MaskFromInfo(World(UNIT, NINE))))
    with pytest.raises(EnvironmentFault, match=r"reset\(\) breaks the rule of masks"):
        environment.reset(1)
