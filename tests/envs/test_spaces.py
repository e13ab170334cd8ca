import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector.utils import batch_space

from seedbed.envs.spaces import action_codec, observation_codec
from seedbed.errors import ConfigError
from seedbed.types import ArraySpec, leaves


@pytest.mark.parametrize(
    ("space", "spec"),
    [
        (spaces.Box(0, 255, (84, 84, 1), np.uint8), ArraySpec((84, 84, 1), "uint8")),
        (spaces.Box(-1, 1, (3,), np.float64), ArraySpec((3,), "float32", low=(-1.0,), high=(1.0,))),
        (spaces.Box(0, 9, (2,), np.int64), ArraySpec((2,), "int32", low=(0.0,), high=(9.0,))),
        (spaces.Discrete(6, start=-2), ArraySpec((), "int32", (6,))),
        (spaces.MultiDiscrete([3, 2]), ArraySpec((2,), "int32", (3, 2))),
        (spaces.MultiDiscrete([[3, 2], [4, 5]]), ArraySpec((2, 2), "int32", (3, 2, 4, 5))),
        (spaces.MultiBinary(3), ArraySpec((3,), "int8", (2, 2, 2))),
    ],
)
def test_observations_of_one_array(space, spec):
    found, decode = observation_codec(space, "test")
    assert found == spec
    batch = decode(batch_space(space, 5).sample())
    assert batch.dtype == spec.dtype
    assert batch.shape == (5, *spec.shape)


def test_choices_start_at_zero_inside():
    _, decode = observation_codec(spaces.Discrete(3, start=5), "test")
    np.testing.assert_array_equal(decode(np.array([5, 7])), [0, 2])
    _, decode = observation_codec(spaces.MultiDiscrete([3, 2], start=[1, -1]), "test")
    np.testing.assert_array_equal(decode(np.array([[3, -1]])), [[2, 0]])
    _, encode = action_codec(spaces.Discrete(3, start=5), "test")
    np.testing.assert_array_equal(encode(np.array([0, 2], np.int32)), [5, 7])
    _, encode = action_codec(spaces.MultiDiscrete([3, 2], start=[1, -1]), "test")
    np.testing.assert_array_equal(encode(np.array([[2, 0]])), [[3, -1]])


def test_nested_observations_become_dicts():
    space = spaces.Dict(
        {
            "picture": spaces.Box(0, 255, (4, 4, 3), np.uint8),
            "rest": spaces.Tuple((spaces.Discrete(3), spaces.Dict({"x": spaces.Box(-1, 1, (2,))}))),
        }
    )
    spec, decode = observation_codec(space, "test")
    assert [path for path, _ in leaves(spec)] == ["picture", "rest/0", "rest/1/x"]
    batch = dict(leaves(decode(batch_space(space, 2).sample())))
    assert {path: (a.shape, a.dtype.name) for path, a in batch.items()} == {
        "picture": ((2, 4, 4, 3), "uint8"),
        "rest/0": ((2,), "int32"),
        "rest/1/x": ((2, 2), "float32"),
    }


def test_pictures_are_not_copied():
    _, decode = observation_codec(spaces.Box(0, 255, (8, 8), np.uint8), "test")
    batch = np.zeros((2, 8, 8), np.uint8)
    assert decode(batch) is batch


def test_continuous_actions_are_clipped_and_cast():
    spec, encode = action_codec(
        spaces.Box(np.array([-1.0, 0.0]), np.array([1.0, np.inf]), dtype=np.float64), "test"
    )
    assert spec == ArraySpec((2,), "float32", low=(-1.0, 0.0), high=(1.0, np.inf))
    acted = encode(np.array([[-3, -3], [0.5, 1e6]], np.float32))
    assert acted.dtype == np.float64
    np.testing.assert_array_equal(acted, [[-1, 0], [0.5, 1e6]])


@pytest.mark.parametrize(
    "space", [spaces.Discrete(4, start=2), spaces.MultiDiscrete([3, 2]), spaces.MultiBinary(3)]
)
def test_encoded_choices_are_actions_of_the_space(space):
    spec, encode = action_codec(space, "test")
    random = np.random.default_rng(0)
    batch = random.integers(0, np.array(spec.num_values).reshape(spec.shape), (5, *spec.shape)).astype(
        np.int32
    )
    assert batch_space(space, 5).contains(encode(batch))


@pytest.mark.parametrize("space", [spaces.Text(5), spaces.Sequence(spaces.Discrete(2))])
def test_other_observations_are_refused_in_one_line(space):
    with pytest.raises(
        ConfigError, match=r"my-env: observations of \w+ are not supported; Seedbed takes Box,.*"
    ) as e:
        observation_codec(spaces.Dict({"x": space}), "my-env")
    assert "\n" not in str(e.value)


@pytest.mark.parametrize("space", [spaces.Box(0, 9, (2,), np.int64), spaces.Tuple((spaces.Discrete(2),))])
def test_other_actions_are_refused(space):
    with pytest.raises(ConfigError, match=r"my-env: actions of .* are not supported; Seedbed takes Discrete"):
        action_codec(space, "my-env")
