"""Spaces of all kinds: each is taken as its row says, or refused with a line that mends it when it is typed."""

import gymnasium
import jax
import numpy as np
import pytest
from gymnasium import spaces
from odd_worlds import UNIT, World, box

import seedbed
from seedbed.envs.make import Guarded
from seedbed.envs.own import _batched
from seedbed.envs.spaces import observation_codec
from seedbed.errors import ConfigError, EnvironmentFault, SeedbedError
from seedbed.launch.build import build_agent
from seedbed.nets.observations import described
from seedbed.testing.environments import sample_actions
from seedbed.types import ArraySpec, EnvSpec

BYTES = np.uint8
TAKEN = {
    "first": (
        box(0, 255, (3, 64, 64), BYTES),
        "uint8 (64, 64, 3), 0 to 255, as a picture, by 255, shown as (3, 64, 64) ",
    ),
    "grey": (
        box(0, 255, (1, 84, 84), BYTES),
        "uint8 (84, 84, 1), 0 to 255, as a picture, by 255, shown as (1, 84, 84) ",
    ),
    "stack": (
        box(0, 255, (4, 84, 84), BYTES),
        "uint8 (84, 84, 4), 0 to 255, as a picture, by 255, shown as (4, 84, 84) ",
    ),
    "rgb stack": (
        box(0, 255, (12, 84, 84), BYTES),
        "uint8 (84, 84, 12), 0 to 255, as a picture, by 255, shown as (12, ",
    ),
    "oblong": (
        box(0, 255, (3, 48, 160), BYTES),
        "uint8 (48, 160, 3), 0 to 255, as a picture, by 255, shown as (3, 48",
    ),
    "small": (
        box(0, 255, (1, 36, 36), BYTES),
        "uint8 (36, 36, 1), 0 to 255, as a picture, by 255, shown as (1, 36, 36) ",
    ),
    "last": (box(0, 255, (64, 48, 3), BYTES), "uint8 (64, 48, 3), 0 to 255, as a picture, by 255"),
    "floats": (box(0, 255, (64, 64, 3)), "float32 (64, 64, 3), 0 to 255, as a picture, by 255"),
    "unit floats": (
        box(0, 1, (4, 84, 84)),
        "float32 (84, 84, 4), 0 to 1, as numbers, shown as (4, 84, 84) and turned",
    ),
    "depth": (
        box(0, 5000, (48, 64, 1), np.uint16),
        "uint16 (48, 64, 1), 0 to 5000, as numbers, by their range",
    ),
    "board": (box(0, 1, (8, 8, 12), BYTES), "uint8 (8, 8, 12), 0 to 1, as numbers"),
    "cube": (box(-1, 1, (2, 3, 4)), "float32 (2, 3, 4), -1 to 1, as numbers"),
    "pixel": (box(0, 255, (1, 1, 3), BYTES), "uint8 (1, 1, 3), 0 to 255, as numbers, by their range"),
    "row": (box(0, 255, (2, 200, 3), BYTES), "uint8 (2, 200, 3), 0 to 255, as numbers, by their range"),
    "grid": (box(0, 255, (7, 7, 3), BYTES), "uint8 (7, 7, 3), 0 to 255, as numbers, by their range"),
    "video": (box(0, 255, (4, 8, 8, 3), BYTES), "uint8 (4, 8, 8, 3), 0 to 255, as numbers, by their range"),
    "scalar": (box(-1, 1, ()), "float32 (), -1 to 1, as numbers"),
    "open": (box(0, np.inf, (2,)), "float32 (2,), 0 to inf, as numbers"),
    "everything": (box(-np.inf, np.inf, (2,)), "float32 (2,), without bounds, as numbers"),
    "long": (box(0, 9, (2,), np.int64), "int32 (2,), 0 to 9, as numbers"),
    "counter": (box(0, 2**63 - 1, (2,), np.int64), "int32 (2,), 0 to inf, as numbers"),
    "bool": (box(0, 1, (3,), np.bool_), "bool (3,), 0 to 1, as numbers"),
    "half": (box(-1, 1, (2,), np.float16), "float32 (2,), -1 to 1, as numbers"),
    "choice": (spaces.Discrete(3, start=-1), "int32 (), choices among 3, one-hot"),
    "part empty": (spaces.Dict(a=UNIT, b=box(-1, 1, (0, 3))), "float32 (2,), -1 to 1, as numbers"),
}


def stepped(world: gymnasium.Env, steps: int = 3) -> EnvSpec:
    """Steps a world with random actions, and looks at what comes of it; returns its spec."""
    environment = Guarded(_batched("odd", 1, lambda: world))
    environment.reset(1)
    for action in sample_actions(environment.spec.action, 1, steps, seed=1):
        environment.send(action)
        environment.receive()
    return environment.spec


def acted(world: gymnasium.Env, steps: int = 3) -> None:
    """Steps a world with an untrained policy, which must never say what is not finite."""
    environment = Guarded(_batched("odd", 1, lambda: world))
    agent = build_agent(seedbed.configure("odd:World", preset="none", hidden=(8,)), environment.spec)
    params, state = agent.init(jax.random.key(0)), agent.initial_state(1)
    act, timestep = jax.jit(agent.act), environment.reset(1)
    for step in range(steps):
        output, state = act(params, jax.random.split(jax.random.key(step), 1), timestep, state)
        assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(output))
        environment.send(np.asarray(output.action, environment.spec.action.dtype))
        timestep = environment.receive()


@pytest.mark.parametrize("kind", TAKEN)
def test_observations_that_are_taken(kind):
    space, line = TAKEN[kind]
    observation, _ = observation_codec(space, "odd")
    spec = EnvSpec("odd", observation, ArraySpec((), "int32", (2,)))
    assert EnvSpec.from_json(spec.to_json()) == spec
    first = next(described(spec))
    assert first.partition(": ")[2].startswith(line)


@pytest.mark.parametrize("kind", ["first", "pixel", "part empty"])
def test_a_policy_acts_on_them(kind):
    acted(World(TAKEN[kind][0]))


def test_pictures_are_turned_and_not_reshaped():
    spec, decode = observation_codec(box(0, 255, (3, 16, 20), BYTES), "odd")
    batch = np.arange(2 * 3 * 16 * 20).reshape(2, 3, 16, 20).astype(BYTES)
    turned = decode(batch)
    assert spec.shape == (16, 20, 3) and spec.channels_first
    assert turned.flags.c_contiguous
    assert all((turned[b, y, x, c] == batch[b, c, y, x]) for b, c, y, x in [(1, 2, 3, 4), (0, 0, 15, 19)])


def test_bounds_of_each_element_are_turned_with_it():
    low = np.arange(3 * 8 * 9, dtype=np.float32).reshape(3, 8, 9)
    spec, _ = observation_codec(spaces.Box(low, low + 1), "odd")
    np.testing.assert_array_equal(spec.bounds[0], np.moveaxis(low, 0, -1))


def test_one_bound_stands_for_all():
    spec, _ = observation_codec(box(0, 1, (84, 84, 1)), "odd")
    assert (spec.low, spec.high) == ((0.0,), (1.0,))
    spec, _ = observation_codec(spaces.Box(np.float32([0, 1]), np.float32([2, np.inf])), "odd")
    assert (spec.low, spec.high) == ((0.0, 1.0), (2.0, np.inf))


REFUSED = {
    "empty": (box(-1, 1, (0,)), None, "hold no number"),
    "nothing": (spaces.Dict({}), None, "hold no number"),
    "sequence": (spaces.Dict(x=UNIT, y=spaces.Sequence(UNIT)), None, "observation y is none"),
    "mission": (spaces.Dict(x=UNIT, mission=spaces.Text(9)), None, "observation mission is none"),
    "text": (spaces.Text(9), None, "observation is none"),
    "inner text": (spaces.Dict(a=spaces.Tuple((UNIT, spaces.Text(9)))), None, "observation a/1 is none"),
    "many": (spaces.Discrete(10**7), None, "a choice among 10,000,000"),
    "many more": (spaces.Dict(x=UNIT, n=spaces.Discrete(10**6, start=-5)), None, "observation n is a choice"),
    "most": (spaces.Discrete(2**62), None, "a choice among 4,611,686,018,427,387,904"),
    "whole": (UNIT, box(0, 4, (2,), np.int32), "actions of Box"),
    "whole from -2": (UNIT, box(-2, 4, (2, 2), np.int64), "actions of Box"),
    "one whole": (UNIT, box(0, 4, (), np.int32), "actions of Box"),
    "dict": (UNIT, spaces.Dict(m=spaces.Discrete(3), f=box(-1, 1, (2,))), "actions of Dict"),
    "tuple": (UNIT, spaces.Tuple((spaces.Discrete(2), spaces.Discrete(3, start=4))), "actions of Tuple"),
    "deep": (
        UNIT,
        spaces.Dict(a=spaces.Dict(b=spaces.MultiBinary(2)), c=spaces.MultiDiscrete([2, 3])),
        "actions of Dict",
    ),
    "no action": (UNIT, box(-1, 1, (0,)), "actions of Box"),
}


@pytest.mark.parametrize("space", [spaces.Discrete(2**31), spaces.MultiDiscrete([2, 2**40])])
def test_choices_that_no_action_holds_are_refused(space):
    with pytest.raises(ConfigError, match="and 2,147,483,647 are the most: let it be chosen in parts"):
        stepped(World(UNIT, space))


def mended(error: SeedbedError, world: gymnasium.Env, number: int = 0) -> gymnasium.Env:
    """The world with a remedy of the error applied to it, as it would be typed."""
    line = str(error).split("env = ")[1 + number].partition("; or show")[0].partition(" (shown by")[0]
    names = {"gymnasium": gymnasium, "np": np, "env": world}
    exec(f"env = {line}", names)
    return names["env"]


@pytest.mark.parametrize(
    ("kind", "number"), [*((kind, 0) for kind in REFUSED), ("sequence", 1), ("mission", 1)]
)
def test_what_is_refused_is_named_and_mended(kind, number):
    observations, actions, named = REFUSED[kind]
    with pytest.raises(ConfigError, match=named) as refused:
        stepped(World(observations, actions))
    assert "\n" not in str(refused.value)
    stepped(mended(refused.value, World(observations, actions), number))


@pytest.mark.parametrize(
    "space",
    [
        box(0, 2**40, (2,), np.int64),
        box(0, 2**32 - 1, (2,), np.uint32),
        spaces.Dict(n=box(-(2**50), 2**50, (1,), np.int64)),
    ],
)
def test_whole_numbers_that_do_not_fit_are_mended(space):
    with pytest.raises(EnvironmentFault, match=r"shows -?\d+, and travels as int32") as refused:
        stepped(World(space))
    stepped(mended(refused.value, World(space)))


@pytest.mark.parametrize(
    "space",
    [
        spaces.Box(np.float32([-1, 0]), np.float32([1, 0])),
        box(0, 0, (1,)),
        box(-1, 1, ()),
        spaces.MultiBinary((2, 3)),
    ],
)
def test_a_policy_acts_in_them(space):
    acted(World(UNIT, space), 5)


@pytest.mark.parametrize(
    "space",
    [
        box(0, np.inf, (2,)),
        spaces.Discrete(1),
        spaces.MultiDiscrete([[2, 3], [4, 5]], start=[[1, 1], [1, 1]]),
        box(-0.1, 0.3, (2,), np.float64),
        box(20, 30, (2,)),
        box(-np.inf, -1000, (2,)),
        spaces.Discrete(2**31 - 1, start=2**40),
    ],
)
def test_actions_that_are_taken(space):
    stepped(World(UNIT, space), 8)


def test_keys_that_read_alike_are_refused():
    with pytest.raises(ConfigError, match="two keys that read '1'"):
        observation_codec(spaces.Dict({"1": UNIT, 1: UNIT}), "odd")
    with pytest.raises(ConfigError, match="a key that read"):
        observation_codec(spaces.Dict({"": UNIT, "a": UNIT}), "odd")
