"""Keys of observations that would meet in one path, and a key that JSON uses for a leaf."""

import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces
from odd_worlds import World, box

from seedbed.envs.own import _batched
from seedbed.nets import normalizer
from seedbed.types import ArraySpec, EnvSpec, leaf_values, leaves, map_leaves, rebuild

ONE, TWO = ArraySpec((1,), "float32"), ArraySpec((2,), "float32")


@pytest.mark.parametrize(
    ("tree", "paths"),
    [
        ({"a": {"b": 1}, "c": 2}, ["a/b", "c"]),
        ({"a/b": 1, "c": 2}, ["a/b", "c"]),  # as version 0.1 wrote it
        ({"a": {"b": 1}, "a/b": 2}, ["a/b", "a~1b"]),
        ({"a": {"b": 1}, "a/b": 2, "a~1b": 3}, ["a/b", "a~1b", "a~01b"]),
        ({"x": {"a": {"b/c": 1}, "a/b": {"c": 2}}}, ["x/a/b~1c", "x/a~1b/c"]),
        (5, [""]),
    ],
)
def test_leaves_have_paths_of_their_own(tree, paths):
    assert [path for path, _ in leaves(tree)] == paths
    assert leaf_values(tree) == [leaf for _, leaf in leaves(tree)]
    assert rebuild(tree, leaf_values(tree)) == tree


def test_a_path_that_is_given_stays():
    assert [path for path, _ in leaves({"a": {"b": 1}, "a/b": 2}, "x/y")] == ["x/y/a/b", "x/y/a~1b"]


@pytest.mark.parametrize(
    "observation",
    [
        {"@": ONE},
        {"@": {"@": ONE}},
        {"@": {"shape": ONE, "dtype": TWO}},
        {"a": {"@": ONE}, "@": TWO},
        ONE,
        {"a/b": ONE},
    ],
)
def test_every_key_survives_as_json(observation):
    spec = EnvSpec("odd", observation, ArraySpec((), "int32", (2,)))
    assert EnvSpec.from_json(spec.to_json()) == spec


def test_two_arrays_have_two_statistics():
    spec = {"a/b": TWO, "a": {"b": TWO}}
    shown = {"a/b": jnp.array([[[4.0, 4], [6, 6]]]), "a": {"b": jnp.array([[[-90.0] * 2, [-110] * 2]])}}
    statistics = normalizer.add_observations(normalizer.initial_statistics(spec), spec, shown)
    assert sorted(float(moments["mean"][0]) for moments in statistics.values()) == [-100, 5]
    found = normalizer.normalized_observation(statistics, spec, shown)
    np.testing.assert_allclose(found["a/b"][0, :, 0], [-1, 1], atol=1e-4)
    np.testing.assert_allclose(found["a"]["b"][0, :, 0], [1, -1], atol=1e-4)


def test_a_world_with_such_keys_shows_each_in_its_place():
    space = spaces.Dict(
        {"a/b": box(1, 1, (1,)), "a": spaces.Dict({"b": box(2, 2, (2,))}), "@": box(3, 3, (1,))}
    )
    shown = {"a/b": np.float32([1]), "a": {"b": np.float32([2, 2])}, "@": np.float32([3])}
    environment = _batched("odd", 2, lambda: World(space, show=lambda random: shown))
    step = environment.reset(1)
    firsts = map_leaves(lambda array: float(array[0, 0]), step.observation)
    assert firsts == {"a/b": 1.0, "a": {"b": 2.0}, "@": 3.0}
