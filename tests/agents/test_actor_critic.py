"""What actor-critics share: rewards on the scale of their returns."""

import jax
import numpy as np
import pytest

from seedbed.agents.a2c import A2CSettings, make_agent
from seedbed.errors import ConfigError
from seedbed.nets.normalizer import initial_moments, mean_and_deviation
from seedbed.testing.agents import SPECS, Subject, at, experience

GAMMA = 0.9
ENDS = [(3, 0, "terminated"), (9, 1, "truncated"), (12, 0, "truncated")]


def returns(steps):
    """Discounted sums of the rewards up to each step, ``[T, B]``, one by one."""
    sums = np.zeros_like(steps.reward)
    for t in range(len(sums)):
        before = sums[t - 1] if t else 0.0
        sums[t] = np.where(steps.first[t], 0.0, GAMMA * before + steps.reward[t])
    return sums


def test_rewards_are_divided_by_the_deviation_of_the_returns_of_all_unrolls():
    spec, length = SPECS["vector"], 8
    settings = A2CSettings(unroll_length=length, batch_size=4, discount=GAMMA, scale_rewards=True)
    it = Subject(make_agent(settings, spec), spec)
    steps = experience(spec, 2 * length + 1, 4, ENDS)
    params = {**it.params, "returns": initial_moments()}
    for begin in (0, length):
        unroll = it.play(at(steps, slice(None, begin + length + 1)), skip=begin)
        params, prepared = it.agent.prepare(params, unroll)
        seen = returns(steps)[1 : begin + length + 1]
        counted = seen[~steps.first[1 : begin + length + 1]]
        _, deviation = mean_and_deviation(params["returns"])
        assert deviation == pytest.approx(counted.std(), rel=1e-4)
        np.testing.assert_allclose(prepared.timestep.reward, unroll.timestep.reward / deviation, rtol=1e-5)


def test_a_scaled_reward_is_at_most_ten():
    spec = SPECS["vector"]
    it = Subject(make_agent(A2CSettings(unroll_length=8, batch_size=4, scale_rewards=True), spec), spec)
    unroll = it.unroll()
    reward = np.zeros_like(unroll.timestep.reward)
    reward[8, 0] = -1e6
    _, prepared = it.agent.prepare(
        it.params, unroll._replace(timestep=unroll.timestep._replace(reward=reward))
    )
    assert np.asarray(prepared.timestep.reward).min() == pytest.approx(-np.sqrt(32), rel=0.05)
    assert np.abs(np.asarray(it.agent.prepare(it.params, unroll)[1].timestep.reward)).max() <= 10


@pytest.mark.parametrize("other", [{"reward_clip": 1.0}, {"previous_reward": True}])
def test_what_reads_or_clips_the_reward_itself_is_refused(other):
    with pytest.raises(ConfigError, match="off where rewards are scaled"):
        A2CSettings(scale_rewards=True, **other)


def test_statistics_are_part_of_the_params_and_get_no_gradient():
    spec = SPECS["vector"]
    it = Subject(make_agent(A2CSettings(unroll_length=8, batch_size=4, scale_rewards=True), spec), spec)
    _, _, gradient = it.gradient(it.unroll(ENDS))
    assert all(float(np.abs(leaf).max()) == 0 for leaf in jax.tree.leaves(gradient["returns"]))
