import numpy as np
import pytest

from seedbed.envs.episodes import EpisodeMeter
from seedbed.envs.make import make
from seedbed.errors import ConfigError, EnvironmentFault
from seedbed.testing.environments import check_environment


def play(env, policy, steps, seed=1):
    """Returns of the episodes that ``policy`` (time step -> actions) finishes."""
    meter, step, finished = EpisodeMeter(env.num_envs), env.reset(seed), []
    meter.add(step)
    for _ in range(steps):
        env.send(policy(step))
        step = env.receive()
        finished += meter.add(step)
    return finished


@pytest.mark.parametrize("env_id", ["toy:catch", "toy:memory", "toy:doors", "toy:count"])
@pytest.mark.parametrize("num_envs", [2, 7])
def test_toys_keep_the_rules(env_id, num_envs):
    check_environment(env_id, num_envs)


@pytest.mark.parametrize("pixels", [0, 4])
def test_catch_is_solved_by_following_the_ball(pixels):
    env = make("toy:catch", 4, {"cell_pixels": pixels})

    def follow(step):
        board = step.observation if not pixels else step.observation[:, ::4, ::4, 0]
        ball = board[:, :-1].max(1).argmax(1)
        return (1 + np.sign(ball - board[:, -1].argmax(1))).astype(np.int32)

    finished = play(env, follow, 100)
    assert len(finished) == 4 * 10
    assert set(finished) == {(1.0, 9)}


def test_catch_as_an_image():
    env = make("toy:catch", 2, {"cell_pixels": 3, "rows": 6, "columns": 4})
    assert env.spec.observation.shape == (18, 12, 1)
    picture = env.reset(1).observation
    assert picture.dtype == np.uint8
    assert set(np.unique(picture)) == {0, 255}
    assert env.render().shape == (18 * 16, 12 * 16, 3)


def test_memory_pays_those_who_remember():
    env, cue = make("toy:memory", 5, {"length": 6, "cues": 3}), np.zeros(5, np.int64)

    def remember(step):
        cue[step.first] = step.observation[step.first, :-1].argmax(1)
        return cue.astype(np.int32)

    assert set(play(env, remember, 60)) == {(1.0, 6)}


def test_memory_shows_nothing_of_the_cue_after_the_first_step():
    env = make("toy:memory", 64, {"length": 4})
    step = env.reset(3)
    assert len(np.unique(step.observation, axis=0)) == 2
    for _ in range(4):
        env.send(np.zeros(64, np.int32))
        assert len(np.unique(env.receive().observation, axis=0)) == 1


def test_doors_pay_for_each_room_and_end_where_the_way_is_lost():
    env = make("toy:doors", 3, {"rooms": 4, "doors": 5})
    assert env.spec.action_mask.shape == (5,)
    right = np.array([1, 4, 2, 0, 0])  # 3 * room + 1, in a circle of five

    def lead(step):
        room = np.where(step.observation["room"].any(1), step.observation["room"].argmax(1), 4)
        return right[room].astype(np.int32)

    assert set(play(env, lead, 50)) == {(4.0, 4)}

    def stray(step):
        """Goes astray in room 2."""
        action = lead(step)
        there = step.observation["room"][:, 2] == 1
        others = (step.observation["action_mask"] & (np.arange(5) != 2)).argmax(1)
        return np.where(there, others, action).astype(np.int32)

    assert set(play(env, stray, 50)) == {(2.0, 3)}


def test_locked_doors_are_masked_and_refused():
    env = make("toy:doors", 2)
    step, locked = env.reset(0), []
    for room in range(8):
        mask = step.observation["action_mask"]
        right = (3 * room + 1) % 5
        assert mask[0, right] and 3 <= mask[0].sum() < 5
        locked.append(np.flatnonzero(~mask[0]))
        env.send(np.full(2, right, np.int32))
        step = env.receive()
    assert len({tuple(doors) for doors in locked}) > 2
    assert step.terminated.all() and not step.observation["action_mask"].any()
    env.send(np.full(2, 4, np.int32))  # goes nowhere
    assert env.receive().first.all()
    env.send(np.array([1, 0], np.int32))
    words = r"toy:doors: action 0 is forbidden by the action_mask of environment 1, \[0, 1, 0, 1, 1\]"
    with pytest.raises(EnvironmentFault, match=words):
        env.receive()
    with pytest.raises(ConfigError, match="at least 2"):
        make("toy:doors", 1, {"doors": 1})


def test_count_names_every_step():
    env = make("toy:count", 3, {"first_index": 10, "longest": 4})
    episode, time = np.zeros((2, 3), int)
    step, last = env.reset(0), np.zeros(3, int)
    random, ends = np.random.default_rng(0), {"terminated": 0, "truncated": 0}
    for _ in range(60):
        np.testing.assert_array_equal(step.observation, np.stack([[10, 11, 12], episode, time, last], 1))
        ended = step.terminated | step.truncated
        ends["terminated"] += step.terminated.sum()
        ends["truncated"] += step.truncated.sum()
        action = random.integers(0, 3, 3).astype(np.int32)
        env.send(action)
        step = env.receive()
        episode, time = episode + ended, np.where(ended, 0, time + 1)
        last = np.where(ended, 0, action)
    assert min(ends.values()) > 10
    np.testing.assert_array_equal(env.reset(5).observation[:, 1:], np.zeros((3, 3)))


def test_what_an_environment_draws_does_not_depend_on_its_batch():
    small, large = make("toy:catch", 2), make("toy:catch", 5)
    a, b = small.reset(4), large.reset(4)
    for _ in range(50):
        np.testing.assert_array_equal(a.observation, b.observation[:2])
        small.send(np.ones(2, np.int32))
        large.send(np.ones(5, np.int32))
        a, b = small.receive(), large.receive()
