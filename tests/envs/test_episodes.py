import numpy as np

from seedbed.envs.episodes import EpisodeMeter
from seedbed.envs.make import make
from seedbed.types import TimeStep


def step(reward, terminated=(), truncated=(), first=(), n=2):
    flags = [np.isin(np.arange(n), rows) for rows in (terminated, truncated, first)]
    return TimeStep(None, np.asarray(reward, np.float32), *flags)


def test_returns_are_those_of_the_transitions():
    meter = EpisodeMeter(2)
    assert meter.add(step([0, 0], first=(0, 1))) == []
    assert meter.add(step([1, 5])) == []
    assert meter.add(step([2, 5], terminated=(0,))) == [(3.0, 2)]
    assert meter.add(step([0, 5], first=(0,), truncated=(1,))) == [(15.0, 3)]
    assert meter.add(step([-7, 0], first=(1,), terminated=(0,))) == [(-7.0, 1)]


def test_an_episode_seen_from_its_middle_is_not_reported():
    meter = EpisodeMeter(2)
    assert meter.add(step([1, 1], terminated=(0,))) == []
    assert meter.add(step([0, 1], first=(0,), truncated=(1,))) == []
    assert meter.add(step([4, 0], first=(1,), terminated=(0,))) == [(4.0, 1)]


def test_it_agrees_with_the_counting_toy():
    env, meter = make("toy:count", 3), EpisodeMeter(3)
    finished = meter.add(env.reset(0))
    for _ in range(40):
        env.send(np.zeros(3, np.int32))
        finished += meter.add(env.receive())
    assert len(finished) > 20
    assert all(total == length * (length + 1) / 2 for total, length in finished)
