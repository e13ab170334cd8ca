import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from seedbed.envs.make import Guarded, make, spec_of
from seedbed.envs.standard import GymnasiumBatch
from seedbed.errors import ConfigError, EnvironmentFault
from seedbed.testing.environments import check_environment


def balance(step):
    """Keeps CartPole upright for 500 steps: push towards where the pole falls."""
    position, speed, angle, turning = step.observation.T
    return (angle + 0.5 * turning + 0.05 * position + 0.1 * speed > 0).astype(np.int32)


def walk(env, policy, steps, seed=1):
    step = env.reset(seed)
    yield step
    for _ in range(steps):
        env.send(policy(step))
        step = env.receive()
        yield step


@pytest.mark.parametrize(
    "env_id", ["CartPole-v1", "Pendulum-v1", "MountainCarContinuous-v0", "Blackjack-v1", "Acrobot-v1"]
)
def test_gymnasium_keeps_the_rules(env_id):
    check_environment(env_id, steps=450 if env_id == "Pendulum-v1" else 300)


def test_cartpole_steps_through_its_vector_entry_point():
    env = make("CartPole-v1", 4)
    assert isinstance(env, Guarded)
    assert "CartPoleVectorEnv" in repr(env._environment._env)


@pytest.mark.parametrize("render", [False, True], ids=["vector", "one by one"])
def test_cartpole_is_truncated_after_500_steps(render):
    steps = list(walk(make("CartPole-v1", 2, render=render), balance, 1003))
    assert [t for t, s in enumerate(steps) if s.truncated.all()] == [500, 1001]
    assert [t for t, s in enumerate(steps) if s.first.all()] == [0, 501, 1002]
    assert not any(s.terminated.any() for s in steps)
    final, first = steps[500], steps[501]
    assert final.reward.tolist() == [1, 1]
    assert first.reward.tolist() == [0, 0]
    assert np.abs(first.observation).max() <= 0.05


def test_cartpole_terminates_with_the_fallen_pole():
    steps = list(walk(make("CartPole-v1", 3), lambda step: np.ones(3, np.int32), 60))
    ends = [(s, i) for s in steps for i in np.flatnonzero(s.terminated)]
    assert len(ends) > 10
    assert all(abs(s.observation[i, 2]) > 0.2 and s.reward[i] == 1 for s, i in ends)


def test_termination_wins_over_truncation():
    # Pushed to one side, a pole falls within 11 steps; the limit is put where the first one does.
    fallen = next(
        t
        for t, s in enumerate(walk(make("CartPole-v1", 1), lambda s: np.ones(1, np.int32), 20))
        if s.terminated.any()
    )
    env = make("CartPole-v1", 1, {"max_episode_steps": fallen})
    *_, last = walk(env, lambda s: np.ones(1, np.int32), fallen)
    assert last.terminated.all()
    assert not last.truncated.any()


def test_time_limit_is_an_option():
    steps = list(
        walk(make("Pendulum-v1", 2, {"max_episode_steps": 7}), lambda s: np.zeros((2, 1), np.float32), 30)
    )
    assert [t for t, s in enumerate(steps) if s.truncated.all()] == [7, 15, 23]


@pytest.mark.parametrize("unlimited", [-1, None, ("max_episode_steps=none",), ("max_episode_steps=-1",)])
@pytest.mark.parametrize(
    ("env_id", "render"),
    [("CartPole-v1", False), ("CartPole-v1", True), ("Pendulum-v1", False)],
    ids=["vector", "pictures", "one by one"],
)
def test_no_time_limit_is_none_of_a_vector_environment_too(unlimited, env_id, render):
    options = unlimited if isinstance(unlimited, tuple) else {"max_episode_steps": unlimited}
    env = make(env_id, 2, options, render=render)
    policy = balance if env_id == "CartPole-v1" else lambda s: np.zeros((2, 1), np.float32)
    assert not any((s.truncated | s.terminated).any() for s in walk(env, policy, 600))
    assert ("CartPoleVectorEnv" in repr(env._environment._env)) is (env_id == "CartPole-v1" and not render)


@pytest.mark.parametrize("render", [False, True], ids=["vector", "one by one"])
def test_a_time_limit_of_a_vector_environment_may_be_longer_than_its_own(render):
    steps = list(walk(make("CartPole-v1", 2, ("max_episode_steps=510",), render=render), balance, 600))
    assert [t for t, s in enumerate(steps) if s.truncated.all()] == [510]


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1"])
@pytest.mark.parametrize("limit", [0, -2, True, 2.5, "many"])
def test_a_time_limit_that_is_none_is_refused(env_id, limit):
    said = r"max_episode_steps is .*; it must be a whole number of at least 1, or -1 or none for no limit"
    with pytest.raises(ConfigError, match=said):
        make(env_id, 2, {"max_episode_steps": limit})


def test_a_vector_environment_that_is_told_of_no_limit_gives_way_to_single_ones():
    def of_few_arguments(num_envs, sutton_barto_reward=False):
        return gymnasium.make_vec("CartPole-v1", num_envs, "vector_entry_point")

    single = "gymnasium.envs.classic_control.cartpole:CartPoleEnv"
    gymnasium.register("Limitless-v0", single, vector_entry_point=of_few_arguments)
    try:
        assert "CartPoleVectorEnv" in repr(make("Limitless-v0", 2)._environment._env)
        steps = list(walk(make("Limitless-v0", 2, ("max_episode_steps=9",)), balance, 12))
        assert [t for t, s in enumerate(steps) if s.truncated.all()] == [9]
        assert not any(
            s.truncated.any() for s in walk(make("Limitless-v0", 2, {"max_episode_steps": -1}), balance, 12)
        )
    finally:
        gymnasium.registry.pop("Limitless-v0")


def test_options_reach_the_constructor():
    step = list(
        walk(make("CartPole-v1", 1, {"sutton_barto_reward": True}), lambda s: np.ones(1, np.int32), 3)
    )[-1]
    assert step.reward.tolist() == [0]


def test_actions_beyond_the_bounds_are_clipped():
    one, other = make("Pendulum-v1", 2), make("Pendulum-v1", 2)
    for env, torque in ((one, 2.0), (other, 99.0)):
        env.reset(1)
        env.send(np.full((2, 1), torque, np.float32))
    np.testing.assert_array_equal(one.receive().observation, other.receive().observation)


def test_pictures():
    env = make("CartPole-v1", 2, render=True)
    env.reset(0)
    assert env.render().shape == (400, 600, 3)
    with pytest.raises(EnvironmentFault, match="gives no picture"):
        plain = make("MountainCar-v0", 1)
        plain.reset(0)
        plain.render()


@pytest.mark.parametrize(
    ("env_id", "options", "line"),
    [
        ("CartPol-v1", {}, "unknown environment 'CartPol-v1': did you mean CartPole-v1"),
        ("Pong-v4", {}, "ALE/Pong-v5|PongNoFrameskip-v4"),
        ("nowhere:Env-v0", {}, "module 'nowhere' cannot be imported"),
        ("CartPole-v1", {"sutton_barto": True}, "did you mean sutton_barto_reward"),
        ("CartPole-v1", {"num_envs": 3}, "unknown option of CartPole-v1 'num_envs'"),
        ("FrozenLake-v1", {"map_name": "9x9"}, "FrozenLake-v1 cannot be made with {'map_name': '9x9'}"),
    ],
)
def test_what_cannot_be_made_says_why(env_id, options, line):
    with pytest.raises(ConfigError, match=line) as error:
        make(env_id, 2, options)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, AutoresetMode.DISABLED])
def test_other_autoreset_modes_are_refused(mode):
    batch = gymnasium.vector.SyncVectorEnv([lambda: gymnasium.make("CartPole-v1")], autoreset_mode=mode)
    with pytest.raises(ConfigError, match=f"autoreset mode {mode.value}; Seedbed needs NextStep"):
        GymnasiumBatch("mine", batch)


def test_spec_of():
    spec = spec_of("CartPole-v1")
    assert (spec.id, spec.observation.shape, spec.action.num_values) == ("CartPole-v1", (4,), (2,))
