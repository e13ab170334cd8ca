"""Every rule of the public suite can be broken, and says which one it is."""

import numpy as np
import pytest

from seedbed.envs.toys import Catch, Count
from seedbed.testing.environments import check_environment, sample_actions
from seedbed.types import ArraySpec, EnvSpec


class Bent(Count):
    """The counting toy with one fault: ``bend`` changes every step that leaves it."""

    def __init__(self, num_envs):
        super().__init__("toy:count", num_envs)
        self.age = 0

    def bend(self, step):
        return step

    def reset(self, seed):
        self.age = 0
        return self.bend(super().reset(seed))

    def receive(self):
        self.age += 1
        return self.bend(super().receive())


def bent(function):
    """A fault that only changes steps."""
    return type("Fault", (Bent,), {"bend": function})


class SameStep(Bent):
    """Resets in the same step, as other autoreset modes do: final observations are lost."""

    def receive(self):
        step = super().receive()
        ended = step.terminated | step.truncated
        if not ended.any():
            return step
        self._begin(np.flatnonzero(ended))
        self._stream.ended = np.zeros(self.num_envs, bool)
        return step._replace(observation=self._observe())


class LateFlag(Bent):
    """Says ``first`` in the middle of an episode."""

    def bend(self, step):
        return step._replace(first=step.first | (self.age == 7))


class Random(Bent):
    """Takes its chances from nowhere."""

    def bend(self, step):
        noise = np.random.default_rng().integers(1, 1000, self.num_envs)
        return step._replace(reward=np.where(step.first, np.float32(0), noise.astype(np.float32)))


class Unlike(Bent):
    """Differs from the batch made before it."""

    made = 0

    def __init__(self, num_envs):
        super().__init__(num_envs)
        Unlike.made += 1
        self.extra = Unlike.made

    def bend(self, step):
        return step._replace(reward=np.where(step.first, np.float32(0), step.reward + np.float32(self.extra)))


class Remembering(Bent):
    """Does not start at the same place again after a reset."""

    resets = 0

    def reset(self, seed):
        step = super().reset(seed)
        self.resets += 1
        self._time = self._time + self.resets - 1
        return step._replace(observation=self._observe())


class Twins(Catch):
    """Seeds every environment of the batch alike."""

    def __init__(self, num_envs):
        super().__init__("toy:catch", num_envs)

    def reset(self, seed):
        super().reset(seed)
        self._random = [np.random.default_rng(seed) for _ in range(self.num_envs)]
        self._begin(np.arange(self.num_envs))
        return self._stream.start(self._observe())


class ClosesOnce(Bent):
    closed = False

    def close(self):
        assert not self.closed, "closed already"
        self.closed = True


class Delayed(Bent):
    """Gives the answer to the action before the last: the step that was under way survives a reset."""

    held = None

    def send(self, action):
        super().send(self.held if self.held is not None else np.zeros_like(action))
        self.held = action


def spec_with(**changes):
    class Fault(Bent):
        def __init__(self, num_envs):
            super().__init__(num_envs)
            given = {"id": "bent", "observation": self.spec.observation, "action": self.spec.action}
            self.spec = EnvSpec(**{**given, **changes})

    return Fault


def paid(self, step):
    return step._replace(reward=step.reward + (step.first & (self.age > 0)))


def infinite(self, step):
    return step._replace(reward=np.where(step.reward > 2, np.float32("inf"), step.reward))


def both_ends(self, step):
    return step._replace(truncated=step.truncated | step.terminated)


class OverAtOnce(Bent):
    """Ends the third episode of environment 0 with its first observation."""

    def bend(self, step):
        over = step.first & (step.observation[:, 0] == 0) & (step.observation[:, 1] == 2)
        self._stream.ended = self._stream.ended | over
        return step._replace(terminated=step.terminated | over)


FAULTS = {
    "float64 rewards": (
        bent(lambda self, s: s._replace(reward=s.reward.astype(float))),
        "shape rule.*reward is float64",
    ),
    "a list": (bent(lambda self, s: s._replace(reward=list(s.reward))), "shape rule.*reward is a list"),
    "whole flags": (
        bent(lambda self, s: s._replace(first=s.first.astype(int))),
        "shape rule.*first is int64",
    ),
    "wrong dtype": (spec_with(observation=ArraySpec((4,), "uint8")), "shape rule.*is int32.*uint8"),
    "wrong shape": (spec_with(observation=ArraySpec((3,), "int32")), r"shape rule.*\(3, 4\).*\(3, 3\)"),
    "wrong tree": (
        spec_with(observation={"x": ArraySpec((4,), "int32")}),
        r"shape rule.*\[''\], not \['x'\]",
    ),
    "too large a choice": (
        spec_with(observation=ArraySpec((4,), "int32", (3, 100, 3, 3))),
        "value rule.*beyond its choices",
    ),
    "not finite": (bent(infinite), "value rule.*the reward"),
    "no first steps after reset": (
        bent(lambda self, s: s._replace(first=s.first & (self.age > 0))),
        "start rule",
    ),
    "final observations lost": (SameStep, "first rule.*after an end is not"),
    "first in the middle": (LateFlag, "first rule.*no episode ended"),
    "never first": (
        bent(lambda self, s: s._replace(first=s.first & (self.age == 0))),
        "first rule.*after an end",
    ),
    "both ends": (bent(both_ends), "end rule.*terminated wins"),
    "first and over": (OverAtOnce, "end rule.*also an end"),
    "paid for a reset": (bent(paid), "first reward rule"),
    "random from nowhere": (Random, "(reset|determinism) rule.*reward differ"),
    "another world each time": (Unlike, "determinism rule.*reward differ"),
    "remembers": (Remembering, "reset rule.*observation differ"),
    "delayed": (Delayed, "reset rule.*observation differ"),
    "twins": (Twins, "seed rule: environments 0 and 1"),
    "closes once": (ClosesOnce, "close rule"),
    "another size": (lambda n: Count("toy:count", n + 1), "size rule: 4 environments were made, 3"),
    "unbounded whole action": (
        spec_with(action=ArraySpec((), "int32")),
        "spec rule.*must have num_values",
    ),
    "bounds that do not fit": (
        spec_with(action=ArraySpec((2,), "float32", low=(0.0,), high=(1.0,))),
        "spec rule: low of the action has 1",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_broken_rule_is_named(name):
    make, message = FAULTS[name]
    with pytest.raises(AssertionError, match=message):
        check_environment(make, steps=100)


def test_the_unbent_one_passes():
    check_environment(Bent, steps=100)


def test_sampled_actions_reach_their_bounds():
    choice = np.array(sample_actions(ArraySpec((2,), "int32", (3, 2)), 4, 100, 0))
    assert choice.shape == (100, 4, 2)
    assert choice[0].max() == 0
    np.testing.assert_array_equal(choice[1], [[2, 1]] * 4)
    assert (choice.min((0, 1)) == 0).all()
    np.testing.assert_array_equal(choice.max((0, 1)), [2, 1])
    spec = ArraySpec((2,), "float32", low=(-1.0, -np.inf), high=(1.0, 3.0))
    real = np.array(sample_actions(spec, 4, 100, 0))
    assert real.dtype == np.float32
    np.testing.assert_array_equal(real.min((0, 1)), [-1, -10])
    np.testing.assert_array_equal(real.max((0, 1)), [1, 3])
