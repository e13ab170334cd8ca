import numpy as np
import pytest
from harness import thorough

from seedbed.envs.make import make
from seedbed.errors import ConfigError, EnvironmentFault
from seedbed.testing.environments import check_environment


def walk(env, steps, seed=1, action=None):
    """The stream under random actions (or always ``action``)."""
    random = np.random.default_rng(seed)
    step = env.reset(seed)
    yield step
    for _ in range(steps):
        n = env.spec.action.num_values[0]
        env.send(
            random.integers(0, n, env.num_envs).astype(np.int32)
            if action is None
            else np.full(env.num_envs, action)
        )
        yield env.receive()


@pytest.mark.parametrize(
    ("env_id", "options"),
    [
        ("ALE/Pong-v5", {"max_episode_frames": 100, "num_threads": 2}),
        *thorough(
            ("BreakoutNoFrameskip-v4", {"episodic_life": True}),
            ("BreakoutNoFrameskip-v4", {}),
            ("ALE/Breakout-v5", {"frame_skip": 1, "max_episode_frames": 60, "noop_max": 0}),
        ),
    ],
)
def test_atari_keeps_the_rules(env_id, options):
    check_environment(lambda n: make(env_id, n, options), steps=120)


def test_spec():
    spec = make("ALE/Pong-v5", 1).spec
    assert (spec.observation.shape, spec.observation.dtype) == ((84, 84, 1), "uint8")
    assert (spec.frames_per_step, spec.frame_stack) == (4, 4)
    assert spec.action.num_values == (6,)
    assert make("ALE/Pong-v5", 1, {"full_action_space": True}).spec.action.num_values == (18,)
    assert make("ALE/MsPacman-v5", 1, {"frame_stack": 1}).spec.frame_stack == 1


def test_pong_loses_21_points_unclipped_and_terminates():
    env = make("PongNoFrameskip-v4", 1)
    lost, steps = 0.0, iter(walk(env, 2000))
    for step in steps:
        lost += float(step.reward[0])
        if step.terminated[0]:
            break
    assert step.reward[0] == -1
    assert lost <= -10
    after = next(steps)
    assert after.first[0]
    assert after.reward[0] == 0


def test_rewards_are_not_clipped():
    rewards = {float(r) for step in walk(make("ALE/MsPacman-v5", 2), 150) for r in step.reward}
    assert max(rewards) >= 10


def test_stickiness_is_what_the_id_says():
    def pictures(env_id, options):
        return np.array([s.observation for s in walk(make(env_id, 1, options), 60)])

    sticky, exact = pictures("ALE/Pong-v5", {}), pictures("PongNoFrameskip-v4", {})
    assert (sticky != exact).any()
    np.testing.assert_array_equal(exact, pictures("ALE/Pong-v5", {"sticky_actions": 0.0}))
    np.testing.assert_array_equal(sticky, pictures("PongNoFrameskip-v4", {"sticky_actions": 0.25}))


@pytest.mark.parametrize(("frame_skip", "expected"), [(4, 10), (1, 40), (3, 14)])
def test_the_limit_counts_frames(frame_skip, expected):
    options = {"max_episode_frames": 40, "frame_skip": frame_skip}
    steps = list(walk(make("ALE/Pong-v5", 2, options), expected + 1))
    assert [t for t, s in enumerate(steps) if s.truncated.all()] == [expected]
    assert steps[expected + 1].first.all()
    assert not any(s.terminated.any() for s in steps)


def test_with_a_frame_skip_of_one_the_picture_moves():
    # The original wrapper showed one picture for ever: it took the maximum over frames it never captured.
    options = {"frame_skip": 1, "sticky_actions": 0.0}
    pictures = np.array([s.observation[0] for s in walk(make("BreakoutNoFrameskip-v4", 1, options), 120)])
    changes = (pictures[1:] != pictures[:-1]).any(axis=(1, 2, 3))
    assert changes.mean() > 0.8
    # Nor does the maximum pile up: what leaves the picture goes dark again.
    assert pictures.astype(int).sum(axis=(1, 2, 3)).std() < 0.02 * pictures[0].sum()


def test_the_picture_is_the_maximum_of_the_last_two_frames():
    """Four steps of one frame and one step of four frames show the same game."""
    common = {"sticky_actions": 0.0, "noop_max": 0}
    fine = [
        s.observation[0]
        for s in walk(make("PongNoFrameskip-v4", 1, {**common, "frame_skip": 1}), 80, action=2)
    ]
    coarse = [s.observation[0] for s in walk(make("PongNoFrameskip-v4", 1, common), 20, action=2)]
    for t in range(1, 20):
        lower = np.maximum(fine[4 * t], fine[4 * t - 1]).astype(int)
        # The maximum is taken before the picture is made smaller, so it is at least that of the small ones.
        assert (coarse[t].astype(int) >= lower - 1).all()
        assert np.abs(coarse[t].astype(int) - lower).mean() < 0.5


def test_a_lost_life_ends_the_episode_but_not_the_game():
    env = make("BreakoutNoFrameskip-v4", 1, {"episodic_life": True})
    emulator = env._environment._env
    lives, episodes = [], 0
    receive = emulator.recv

    def spy():
        result = receive()
        lives.append(int(result[4]["lives"][0]))
        return result

    emulator.recv = spy
    for step in walk(env, 400):
        episodes += int(step.first[0])
        if lives and lives[-1] == 0:
            break
    assert sorted(set(lives), reverse=True) == [5, 4, 3, 2, 1, 0]
    assert episodes == 5
    assert step.terminated[0]


def test_a_limit_reached_while_an_episode_opens_ends_it_one_step_later():
    """For every frame limit around a lost life, no transition leads from one game into the next."""
    env_id, options = "BreakoutNoFrameskip-v4", {"episodic_life": True, "noop_max": 0, "frame_skip": 4}
    died = next(
        t for t, step in enumerate(walk(make(env_id, 1, options), 300, action=0)) if step.terminated[0]
    )
    for limit in range(died, died + 3):
        env = make(env_id, 1, {**options, "max_episode_frames": 4 * limit})
        reset = env.reset(1).observation
        for step in list(walk(env, 3 * died, action=0))[1:]:
            # The picture that begins a game follows an end, never an action.
            if (step.observation == reset).all():
                assert step.first[0], f"limit {limit}"
    guilty = {**options, "max_episode_frames": 4 * (died + 1)}
    check_environment(lambda n: make(env_id, n, guilty), num_envs=2, steps=2 * died)


def test_after_a_lost_life_fire_serves_the_ball():
    """With ``fire_reset``, an agent that never fires still loses every life: each was served."""

    def ends(fire_reset):
        env = make("BreakoutNoFrameskip-v4", 1, {"episodic_life": True, "fire_reset": fire_reset})
        return sum(int(s.terminated[0]) for s in walk(env, 300, action=0))

    assert ends(True) >= 5
    assert ends(False) == 0


def test_environments_of_a_batch_differ_and_do_not_depend_on_threads():
    one, four = (list(walk(make("ALE/Breakout-v5", 4, {"num_threads": n}), 100)) for n in (1, 4))
    for a, b in zip(one, four, strict=True):
        np.testing.assert_array_equal(a.observation, b.observation)
        np.testing.assert_array_equal(a.reward, b.reward)
    rows = [np.array([s.observation[i] for s in one]) for i in range(4)]
    assert not any((rows[0] == other).all() for other in rows[1:])


@pytest.mark.parametrize("episodic_life", [False, True])
def test_the_picture_for_people_stays_in_step(episodic_life):
    env = make("ALE/Breakout-v5", 2, {"episodic_life": episodic_life, "max_episode_frames": 900}, render=True)
    grey = np.array([0.299, 0.587, 0.114])
    for t, step in enumerate(walk(env, 500)):
        if t % 50 == 0:
            picture = env.render()
            assert (picture.shape, picture.dtype) == ((210, 160, 3), np.uint8)
            # Areas of 210/84 × 160/84 pixels are averaged: compare coarse means of the two pictures.
            small = (picture @ grey).reshape(10, 21, 10, 16).mean((1, 3))[:, 1:-1]
            shown = np.repeat(np.repeat(step.observation[0, :, :, 0], 5, 0), 40, 1).astype(float)
            shown = shown.reshape(10, 42, 10, 336).mean((1, 3))[:, 1:-1]
            assert np.abs(small - shown).max() < 8


def test_no_picture_without_render():
    env = make("ALE/Pong-v5", 1)
    env.reset(0)
    with pytest.raises((ConfigError, EnvironmentFault), match="gives no picture"):
        env.render()


@pytest.mark.parametrize(
    ("env_id", "options", "line"),
    [
        ("ALE/Pog-v5", {}, "unknown Atari environment 'ALE/Pog-v5': did you mean ALE/Pong-v5"),
        ("PongNoFrameskip-v9", {}, "did you mean PongNoFrameskip-v4"),
        (
            "ALE/Pong-v5",
            {"frameskip": 4},
            "unknown option of ALE/Pong-v5 'frameskip': did you mean frame_skip",
        ),
        ("ALE/Pong-v5", {"frame_skip": 0}, "frame_skip is 0; it must be a whole number of at least 1"),
        ("ALE/Pong-v5", {"frame_skip": "4"}, "frame_skip is '4'"),
        ("ALE/Pong-v5", {"sticky_actions": 2}, "sticky_actions is 2; it must be a probability"),
    ],
)
def test_what_cannot_be_made_says_why(env_id, options, line):
    with pytest.raises(ConfigError, match=line):
        make(env_id, 1, options)


def test_close_ends_the_threads():
    import psutil

    process = psutil.Process()
    before = process.num_threads()
    env = make("ALE/Pong-v5", 4, {"num_threads": 3})
    env.reset(0)
    assert process.num_threads() > before
    env.close()
    env.close()
    assert process.num_threads() <= before


@pytest.mark.parametrize(("noop_max", "differ"), [(0, False), (30, True)])
def test_games_begin_with_a_random_number_of_no_ops(noop_max, differ):
    def game(seed):
        env = make("PongNoFrameskip-v4", 1, {"noop_max": noop_max})
        return np.stack([step.observation for step in walk(env, 60, seed, action=2)])

    first, *others = [game(seed) for seed in range(4)]
    assert any((first != other).any() for other in others) == differ
