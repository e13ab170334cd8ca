import subprocess
import sys

import numpy as np
import pytest

from seedbed.envs.make import Guarded, make, spec_of
from seedbed.envs.seeds import environment_seeds
from seedbed.envs.toys import Count
from seedbed.errors import ConfigError, EnvironmentFault, SpecError
from seedbed.installation import extra_line


def test_an_actor_needs_neither_jax_nor_a_simulator_to_start():
    script = (
        "import sys, seedbed.envs.make, seedbed.envs.episodes\n"
        "seedbed.envs.make.make('toy:catch', 2).reset(0)\n"
        "print([m for m in ('jax', 'gymnasium', 'ale_py', 'envpool') if m in sys.modules])\n"
        "seedbed.envs.make.make('ALE/Pong-v5', 1).reset(0)\n"
        "print('jax' in sys.modules)\n"
    )
    shown = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert shown.stdout.split("\n")[:2] == ["[]", "False"]


@pytest.mark.parametrize("num_envs", [0, -1, 2.0, True])
def test_the_number_of_environments_is_checked(num_envs):
    with pytest.raises(ConfigError, match="the number of environments is"):
        make("toy:catch", num_envs)


@pytest.mark.parametrize(
    ("env_id", "options", "line"),
    [
        ("toy:cath", {}, "unknown toy 'toy:cath': did you mean toy:catch"),
        ("toy:catch", {"row": 3}, "unknown option of toy:catch 'row': did you mean rows"),
        ("toy:catch", {"rows": 1}, "rows is 1; it must be a whole number of at least 2"),
        ("toy:memory", {"length": 1}, "length is 1"),
    ],
)
def test_toys_that_do_not_exist(env_id, options, line):
    with pytest.raises(ConfigError, match=line):
        make(env_id, 2, options)


def test_seeds_of_environments_are_distinct_and_fit_an_emulator():
    seeds = np.concatenate([environment_seeds(seed, 100) for seed in range(20)])
    assert len(set(seeds.tolist())) == 2000
    assert seeds.min() >= 0
    assert seeds.max() < 2**31
    np.testing.assert_array_equal(environment_seeds(7, 3), environment_seeds(7, 9)[:3])


def test_repr_is_what_an_operator_reads():
    assert repr(make("toy:catch", 3)) == "<3 × toy:catch>"


def test_spec_of_takes_options():
    assert spec_of("toy:catch", {"rows": 4}).observation.shape == (4, 5)


def test_send_and_receive_take_turns():
    env = make("toy:count", 2)
    action = np.zeros(2, np.int32)
    with pytest.raises(EnvironmentFault, match=r"send\(\) without reset\(\)"):
        env.send(action)
    env.reset(0)
    with pytest.raises(EnvironmentFault, match=r"receive\(\) without send\(\)"):
        env.receive()
    env.send(action)
    with pytest.raises(EnvironmentFault, match=r"send\(\) without receive\(\)"):
        env.send(action)
    env.receive()
    with pytest.raises(EnvironmentFault, match=r"receive\(\) without send\(\)"):
        env.receive()


@pytest.mark.parametrize("env_id", ["toy:catch", "CartPole-v1", "ALE/Pong-v5"])
def test_reset_drops_the_step_under_way(env_id):
    env = make(env_id, 2)
    fresh = env.reset(3).observation.copy()
    env.send(np.zeros(2, np.int32))
    np.testing.assert_array_equal(env.reset(3).observation, fresh)
    env.send(np.zeros(2, np.int32))
    assert not env.receive().first.any()


def test_actions_of_another_shape_are_refused():
    env = make("toy:count", 2)
    env.reset(0)
    with pytest.raises(SpecError, match=r"actions have the shape \(3,\); \(2,\) is needed"):
        env.send(np.zeros(3, np.int32))


@pytest.mark.parametrize("method", ["reset", "send", "receive", "render", "close"])
def test_every_fault_is_named(method):
    class Faulty(Count):
        pass

    env = Faulty("mine", 2)
    guarded = Guarded(env)
    guarded.reset(0)

    def fail(*_):
        raise OSError("no such thing")

    setattr(env, method, fail)
    if method == "receive":
        guarded.send(np.zeros(2, np.int32))
    arguments = {"reset": (0,), "send": (np.zeros(2, np.int32),)}.get(method, ())
    with pytest.raises(
        EnvironmentFault, match=rf"mine failed in {method}\(\): OSError: no such thing"
    ) as error:
        getattr(guarded, method)(*arguments)
    assert isinstance(error.value.__cause__, OSError)


@pytest.mark.parametrize(
    ("env_id", "package", "extra"),
    [
        ("LunarLander-v3", "Box2D", "box2d"),
        ("gymnasium:CarRacing-v3", "Box2D", "box2d"),
        ("Hopper-v5", "mujoco", "mujoco"),
    ],
)
def test_a_package_that_gymnasium_misses_is_an_extra(env_id, package, extra, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)  # as if it were not installed
    for module in [name for name in sys.modules if name.startswith(f"gymnasium.envs.{extra}")]:
        monkeypatch.delitem(sys.modules, module)
    with pytest.raises(ConfigError) as error:
        make(env_id, 1)
    assert f"{env_id} needs a package that is not installed: {extra_line(extra)}" in str(error.value)
