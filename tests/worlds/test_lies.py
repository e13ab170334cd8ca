"""What an environment shows against what it declares: the suite names each lie, and training refuses it as well."""

import numpy as np
import pytest
from odd_worlds import LIES

from seedbed.envs.make import make
from seedbed.envs.rules import value_rule
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
