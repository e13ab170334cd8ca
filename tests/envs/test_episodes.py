import numpy as np
from hypothesis import given
from hypothesis import strategies as st

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


FLAGS = st.tuples(st.integers(-9, 9), st.booleans(), st.booleans(), st.booleans())


@given(st.lists(st.tuples(FLAGS, FLAGS), max_size=12))
def test_any_steps_are_counted_as_one_by_one(steps):
    meter, open_episodes = EpisodeMeter(2), [None, None]
    for rows in steps:
        expected, final = [], 0
        for row, (reward, terminated, truncated, first) in enumerate(rows):
            ended = terminated or truncated
            if first:
                # A step that begins and ends at once is an agent that is not there.
                open_episodes[row] = open_episodes[row] if ended else []
                if ended and open_episodes[row] is not None:
                    open_episodes[row] = []
            elif open_episodes[row] is not None:
                open_episodes[row].append(reward)
            if ended:
                final += 1
                if open_episodes[row] is not None:
                    expected.append((row, sum(open_episodes[row]), len(open_episodes[row])))
                open_episodes[row] = None
        rewards, *flags = (np.array(column) for column in zip(*rows, strict=True))
        told = meter.add(TimeStep(None, rewards.astype(np.float32), *flags))
        assert [(row, *episode) for row, episode in zip(meter.finished, told, strict=True)] == expected
        assert meter.ended == final
