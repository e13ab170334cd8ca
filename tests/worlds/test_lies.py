"""What an environment shows against what it declares: the suite names each lie, and training refuses it as well."""

import numpy as np
import pytest
from gymnasium import spaces
from odd_worlds import LIES, UNIT, Batch, box

from seedbed.envs.make import Guarded, make
from seedbed.envs.own import _batched
from seedbed.envs.rules import value_rule
from seedbed.envs.toys import TOYS
from seedbed.errors import EnvironmentFault
from seedbed.testing.environments import check_environment
from seedbed.types import ArraySpec

NAMED = {
    "shape": r"observation is an array of float32 \(4,\), and the space declares Box\(-1.0, 1.0, \(3,\)",
    "rank": r"an array of float32 \(1, 3\)",
    "reals": r"observation shows 0.7, .* the space declares Box\(0, 255",
    "above": r"observation shows 300, .* the space declares Box\(0, 255",
    "outside": r"observation of environment 0 has 50.0, and -1 to 1 is declared",
    "board": r"observation of environment 0 has 255, and 0 to 1 is declared",
    "choice": r"observation is 3, a int, and the space declares Discrete\(3\)",
    "start": r"observation is 1, a int, and the space declares Discrete\(3, start=2\)",
    "choices": r"observation of environment 0 has 3, beyond its choices",
    "binary": r"observation of environment 0 has 2, beyond its choices",
    "missing": r"the keys \['a'\], and the space declares \['a', 'b'\]",
    "extra": r"the keys \['a', 'b'\], and the space declares \['a'\]",
    "short": r"a tuple, and the space declares Tuple",
    "lists": r"a list, and the space declares Box.*np.asarray\(o, np.float32\)",
    "wide": r"observation shows 3000000000",
    "far": r"observation shows 1e\+300",
    "none": r"observation is None, and the space declares Box",
    "words": r"observation is '0.5', a str",
    "deep": r"observation a/0 is an array of float32 \(3,\)",
}


@pytest.mark.parametrize("lie", LIES)
@pytest.mark.parametrize(("after", "moment"), [(0, "reset"), (3, "step")])
def test_a_lie_is_named_with_its_moment(lie, after, moment):
    options = {"lie": lie, "after": after}
    with pytest.raises(AssertionError, match=NAMED[lie]) as found:
        check_environment(lambda n: make("odd_worlds:liar", n, options), num_envs=2, steps=20)
    assert f"{moment}()" in str(found.value)
    environment = make("odd_worlds:liar", 2, options)
    with pytest.raises(EnvironmentFault, match=NAMED[lie]):
        environment.reset(1)
        for _ in range(20):
            environment.send(np.zeros(2, np.int32))
            environment.receive()


@pytest.mark.parametrize(
    ("spec", "shown", "broken"),
    [
        (ArraySpec((2,), "uint8"), [0, 255], None),
        (ArraySpec((2,), "uint8", low=(0.0,), high=(1.0,)), [0, 2], None),
        (ArraySpec((2,), "uint8", low=(0.0,), high=(1.0,)), [0, 3], "has 3"),
        (ArraySpec((2,), "int32", low=(-3.0,), high=(3.0,)), [-9, 9], None),
        (ArraySpec((2,), "int32", low=(-3.0,), high=(3.0,)), [-10, 0], "has -10"),
        (ArraySpec((2,), "float32", low=(-1.0, -np.inf), high=(1.0, np.inf)), [2.9, 1e9], None),
        (ArraySpec((2,), "float32", low=(-1.0, -np.inf), high=(1.0, np.inf)), [3.1, 0], "has 3.1"),
        (ArraySpec((2,), "float32"), [0, np.nan], "is not finite"),
        (ArraySpec((2,), "float32"), [np.inf, 0], "is not finite"),
        (ArraySpec((2,), "float32", low=(0.0,)), [-5, 0], None),
        (ArraySpec((2,), "float32", low=(-1.7e308,), high=(1.7e308,)), [-5, 0], None),
        (ArraySpec((2,), "float32", low=(0.0,), high=(1.7e308,)), [5, 0], None),
        (ArraySpec((2,), "int32", (2, 3)), [1, 2], None),
        (ArraySpec((2,), "int32", (2, 3)), [2, 0], "has 2, beyond"),
        (ArraySpec((2,), "int8", (2, 2)), [-1, 0], "has -1, beyond"),
    ],
)
def test_numbers_may_pass_their_bounds_by_as_much_as_those_are_apart(spec, shown, broken):
    with np.errstate(all="raise", under="ignore"):
        rule = value_rule(spec)
        found = rule(np.array([shown], spec.dtype)) if rule else None
    assert (found is None) if broken is None else broken in found.text


def test_bytes_that_use_all_their_range_are_not_looked_at():
    assert value_rule(ArraySpec((84, 84, 1), "uint8")) is None
    assert value_rule(ArraySpec((10, 10, 4), "bool")) is None


ROWS = np.zeros((2, 2), np.float32)
BATCHES = {
    "shape": (UNIT, np.zeros((2, 4), np.float32), "observation is float32 (2, 4); it must be float32 (2, 2)"),
    "none": (
        UNIT,
        np.full((2, 2), None),
        "observation is an array of object (2, 2); it must be numbers that float32",
    ),
    "words": (UNIT, np.array([["a", "b"]] * 2), "observation is an array of <U1 (2, 2); it must be numbers"),
    "complex": (UNIT, ROWS + 1j, "observation is an array of complex64 (2, 2); it must be numbers"),
    "missing": (
        spaces.Dict(a=UNIT, b=UNIT),
        {"a": ROWS},
        "the keys ['a'], and the space declares ['a', 'b']",
    ),
    "extra": (
        spaces.Dict(a=UNIT),
        {"a": ROWS, "b": ROWS},
        "the keys ['a', 'b'], and the space declares ['a']",
    ),
    "no dict": (spaces.Dict(a=UNIT), ROWS, "an array of float32 (2, 2), and the space declares Dict"),
    "short": (spaces.Tuple((UNIT, UNIT)), (ROWS,), "a tuple, and the space declares Tuple"),
    "long": (spaces.Dict(a=spaces.Tuple((UNIT,))), {"a": (ROWS, ROWS)}, "observation a is (array"),
    "reals": (box(0, 255, (2,), np.uint8), np.full((2, 2), 0.7), "environment 0: observation shows 0.7"),
    "half a choice": (
        spaces.Discrete(3),
        np.array([1.0, 1.7]),
        "environment 1: observation shows 1.7, and travels as",
    ),
    "far choice": (
        spaces.Discrete(3),
        np.array([1, 2**32 + 1]),
        "environment 1: observation shows 4294967297",
    ),
    "far choices": (
        spaces.MultiDiscrete([3, 3]),
        np.full((2, 2), 2**32),
        "environment 0: observation shows 4294967296",
    ),
    "binary": (spaces.MultiBinary(2), np.array([[0, 1], [257, 0]]), "environment 1: observation shows 257"),
    "below": (
        spaces.MultiDiscrete([3, 3], np.uint8, start=[5, 5]),
        np.full((2, 2), 2, np.uint8),
        "has -3, beyond its",
    ),
}


@pytest.mark.parametrize("lie", BATCHES)
@pytest.mark.parametrize(("after", "moment"), [(0, "reset"), (3, "step")])
def test_a_lie_of_a_batch_is_named_too(lie: str, after: int, moment: str) -> None:
    space, shown, words = BATCHES[lie]
    environment = Guarded(_batched("odd", 2, lambda: Batch(space, shown, after)))
    with pytest.raises(EnvironmentFault) as fault:
        environment.reset(1)
        for _ in range(5):
            environment.send(np.zeros(2, np.int32))
            environment.receive()
    assert words in str(fault.value)
    assert f"{moment}()" in str(fault.value)


@pytest.mark.parametrize(
    ("space", "shown", "right"),
    [
        (spaces.Discrete(2), np.array([True, False]), [1, 0]),
        (spaces.Discrete(3, start=2**40), np.array([2**40, 2**40 + 2]), [0, 2]),
        (spaces.Discrete(3, start=-1), np.array([-1.0, 1.0]), [0, 2]),
        (UNIT, [[0, 1], [0, 1]], [[0, 1], [0, 1]]),
    ],
)
def test_what_a_batch_shows_in_another_dtype_is_the_same_number(space, shown, right):
    step = _batched("odd", 2, lambda: Batch(space, shown)).reset(1)
    assert np.asarray(step.observation).tolist() == right


STEPS = {
    "a tuple": (tuple, "gave (array("),
    "nothing": (lambda step: None, "gave None; it must give a seedbed.types.TimeStep"),
    "a pair": (lambda step: (step, {}), "a tuple; it must give a seedbed.types.TimeStep"),
    "no reward": (
        lambda step: step._replace(reward=None),
        "reward of a step is a NoneType; it must be float32 (2,)",
    ),
    "long reward": (lambda step: step._replace(reward=np.zeros(2)), "reward of a step is float64 (2,)"),
    "column": (lambda step: step._replace(reward=step.reward[:, None]), "reward of a step is float32 (2, 1)"),
    "whole end": (
        lambda step: step._replace(terminated=np.zeros(2, int)),
        "terminated of a step is int64 (2,)",
    ),
    "no first": (
        lambda step: step._replace(first=[False] * 2),
        "first of a step is a list; it must be bool (2,)",
    ),
    "no dict": (lambda step: step._replace(observation=None), "observation is a NoneType; it must be"),
}


@pytest.mark.parametrize("kind", STEPS)
@pytest.mark.parametrize("moment", ["reset", "receive"])
def test_an_environment_of_ones_own_gives_steps_alone(kind: str, moment: str) -> None:
    change, words = STEPS[kind]
    world = TOYS["toy:catch"]("toy:catch", 2)
    given = getattr(world, moment)
    setattr(world, moment, lambda *seed: change(given(*seed)))
    environment = Guarded(_batched("odd", 2, lambda: world))
    with pytest.raises(EnvironmentFault) as fault:
        environment.reset(1)
        environment.send(np.zeros(2, np.int32))
        environment.receive()
    assert words in str(fault.value)
