"""Environments that are JAX functions: their stream, their makers, and what a host makes of them."""

from __future__ import annotations

import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import gymnax
import jax
import jax.numpy as jnp
import jaxmarl
import numpy as np
import pytest
from jaxmarl.environments import spaces
from jaxmarl.environments.multi_agent_env import MultiAgentEnv

from seedbed.envs.episodes import EpisodeMeter
from seedbed.envs.make import NATIVE, make, spec_of
from seedbed.envs.on_device.batch import NativeBatch
from seedbed.envs.on_device.episodes import finish, go_on, no_episodes
from seedbed.envs.on_device.interface import advance, begin
from seedbed.envs.on_device.makers import MAKERS, _made_once, _quiet, make_native
from seedbed.envs.on_device.several import telling
from seedbed.envs.policies import KIND, OWN, option
from seedbed.envs.seeds import environment_seeds
from seedbed.errors import ConfigError, SpecError
from seedbed.testing.environments import check_environment, record, sample_actions
from seedbed.types import TimeStep

with_craftax = pytest.mark.skipif(
    sys.version_info >= (3, 14), reason="pygame has no wheel for it: decision 28"
)


@pytest.fixture(autouse=True)
def worlds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))


@pytest.mark.parametrize(
    "env",
    [
        "on_device_worlds:walk",
        "on_device_worlds:strict_doors",
        "gymnax:CartPole-v1",
        "gymnax:MountainCarContinuous-v0",
        pytest.param("gymnax:Breakout-MinAtar", marks=pytest.mark.slow),
        pytest.param("jaxmarl:MPE_simple_facmac_v1", marks=pytest.mark.slow),
        pytest.param("brax:inverted_pendulum", marks=[pytest.mark.slow, pytest.mark.thorough]),
        pytest.param(
            "craftax:Craftax-Classic-Symbolic-v1",
            marks=[pytest.mark.slow, pytest.mark.thorough, with_craftax],
        ),
    ],
)
def test_it_keeps_the_rules_of_the_stream(env: str) -> None:
    check_environment(env, num_envs=2 * spec_of(env).rows, steps=100)


def test_the_stream_of_a_walk() -> None:
    """Every step against what the environment's own functions say, by hand."""
    env = make_native("on_device_worlds:walk")
    stage, shown = begin(env, jnp.asarray([5, 6, 7], jnp.uint32))
    step = jax.jit(partial(advance, env))
    random = np.random.default_rng(0)
    place = np.asarray(shown.observation["place"])[:, 0]
    time, ended = np.zeros(3, int), np.zeros(3, bool)
    seen = set()
    for _ in range(200):
        action = random.integers(0, 2, 3)
        stage, shown = step(stage, jnp.asarray(action, jnp.int32))
        now = np.asarray(shown.observation["place"])[:, 0]
        assert set(now[ended]) <= {0, 1}
        seen |= set(now[ended])
        place = np.where(ended, now, place + 2 * action - 1)
        time = np.where(ended, 0, time + 1)
        over = ~ended & (place >= 4)
        late = ~ended & (time >= 6) & ~over
        expected = {
            "reward": np.where(ended, 0, place),
            "terminated": over,
            "truncated": late,
            "first": ended,
        }
        np.testing.assert_array_equal(now, place)
        for name, values in expected.items():
            np.testing.assert_array_equal(getattr(shown, name), values, err_msg=name)
        ended = over | late
    assert seen == {0, 1}, "each episode begins by a key of its own"


@pytest.mark.filterwarnings("ignore:scatter inputs have incompatible types:FutureWarning")
def test_planes_are_yes_and_no_and_say_what_gymnax_shows() -> None:
    ours = make_native("gymnax:Breakout-MinAtar")
    theirs, params = gymnax.make("Breakout-MinAtar")
    key = jax.random.key(1)
    _, planes = jax.jit(ours.reset)(key)
    shown, _ = jax.jit(theirs.reset_env)(key, params)
    assert ours.spec.observation.dtype == planes.dtype == "bool"
    np.testing.assert_array_equal(planes, shown)


def test_agents_of_jaxmarl_are_rows_in_its_order() -> None:
    """Two environments of three agents against JaxMARL itself, with other actions of each agent."""
    native = make_native("jaxmarl:MPE_simple_spread_v3")
    theirs: Any = jaxmarl.make("MPE_simple_spread_v3")
    assert native.spec.agents == ("agent_0", "agent_1", "agent_2") and native.time_limit == 25
    key = jax.random.key(1)
    world, shown = jax.jit(native.reset)(key)
    expected, state = theirs.reset(jax.random.key_data(key))
    step, their_step = jax.jit(native.step), jax.jit(theirs.step_env)
    for count in range(3):
        for row, agent in enumerate(theirs.agents):
            np.testing.assert_array_equal(shown[row], expected[agent])
        action = (np.arange(3) + count) % 5
        world, shown, reward, ended = step(world, key, jnp.asarray(action, jnp.int32))
        chosen = dict(zip(theirs.agents, action.tolist(), strict=True))
        expected, state, rewards, _, _ = their_step(jax.random.key_data(key), state, chosen)
        np.testing.assert_allclose(reward, [rewards[agent] for agent in theirs.agents], rtol=1e-5)
        assert not ended


def test_kinds_of_agents_are_padded_for_policies_of_their_own() -> None:
    """The speaker sees 3 numbers and has 3 actions, the listener 11 and 5."""
    native = make_native("jaxmarl:MPE_simple_speaker_listener_v4", (option(OWN),))
    theirs: Any = jaxmarl.make("MPE_simple_speaker_listener_v4")
    key = jax.random.key(1)
    world, shown = jax.jit(native.reset)(key)
    expected, state = theirs.reset(jax.random.key_data(key))
    assert shown["agent_index"].tolist() == [0, 1]
    assert shown["action_mask"].tolist() == [[True] * 3 + [False] * 2, [True] * 5]
    np.testing.assert_array_equal(shown["observation"][0], [*expected["speaker_0"], *[0] * 8])
    np.testing.assert_array_equal(shown["observation"][1], expected["listener_0"])
    # An action beyond the speaker's own, which its mask forbids, is its last one.
    _, shown, reward, _ = jax.jit(native.step)(world, key, jnp.asarray([4, 4], jnp.int32))
    chosen = {"speaker_0": 2, "listener_0": 4}
    expected, _, rewards, _, _ = jax.jit(theirs.step_env)(jax.random.key_data(key), state, chosen)
    np.testing.assert_allclose(shown["observation"][1], expected["listener_0"], rtol=1e-5)
    np.testing.assert_allclose(reward, [rewards["speaker_0"], rewards["listener_0"]], rtol=1e-5)


def test_agents_of_one_kind_have_equal_spaces() -> None:
    native = make_native("jaxmarl:MPE_simple_speaker_listener_v4", (option(KIND),))
    assert native.spec.tells_agents, "they are of two kinds"
    alike = replace(native, spec=replace(native.spec, agents=("agent_0", "agent_1")))
    with pytest.raises(
        ConfigError, match=r"observations of its agents differ .* kind 'agent' are to share a policy"
    ):
        telling(alike, KIND)


def test_policies_of_their_own_need_several_agents() -> None:
    with pytest.raises(ConfigError, match="pgx:2048 has one agent"):
        make_native("pgx:2048", (option(OWN),))


def test_a_limit_of_jaxmarl_truncates_all_agents() -> None:
    env = make("jaxmarl:switch_riddle", 6)
    shown = env.reset(0)
    for _ in range(6):
        env.send(np.zeros(6, np.int32))
        shown = env.receive()
    assert shown.truncated.tolist() == [True] * 6 and not shown.terminated.any()


class Counting(MultiAgentEnv):
    """Two agents see how many physical steps there were, and begin anew by themselves at the limit, as Brax does."""

    def __init__(self, episode_length: int = 1000, action_repeat: int = 1, auto_reset: bool = True) -> None:
        super().__init__(num_agents=2)
        self.agents = ["left", "right"]
        self.episode_length, self.action_repeat, self.auto_reset = episode_length, action_repeat, auto_reset
        self.observation_spaces = {agent: spaces.Box(0, 99, (1,)) for agent in self.agents}
        self.action_spaces = {agent: spaces.Box(-1.0, 1.0, (1,)) for agent in self.agents}

    def reset(self, key: Any) -> Any:
        return self.get_obs(jnp.int32(0)), jnp.int32(0)

    def step_env(self, key: Any, state: Any, actions: Any) -> Any:
        state = state + self.action_repeat
        over = state >= self.episode_length
        rewards = {agent: actions[agent][0] for agent in self.agents}
        return (
            self.get_obs(jnp.where(over & self.auto_reset, 0, state)),
            jnp.where(over & self.auto_reset, 0, state),
            rewards,
            {"__all__": over},
            {},
        )

    def get_obs(self, state: Any) -> Any:
        return {agent: jnp.float32(state)[None] for agent in self.agents}


class Passing(MultiAgentEnv):
    """One that passes on the names of another one, as SMAX does with an enemy of its own."""

    def __init__(self) -> None:
        self._env = Counting(1000, 1, False)
        self._env.max_steps = 3  # type: ignore[attr-defined]
        self.agents, self.num_agents = self._env.agents, 2
        self.observation_spaces, self.action_spaces = self._env.observation_spaces, self._env.action_spaces

    def __getattr__(self, name: str) -> Any:
        return getattr(self._env, name)

    def reset(self, key: Any) -> Any:
        return self._env.reset(key)

    def step_env(self, key: Any, state: Any, actions: Any) -> Any:
        observations, state, rewards, _, _ = self._env.step_env(key, state, actions)
        return observations, state, rewards, {"__all__": state >= self._env.max_steps}, {}


@pytest.mark.parametrize(
    ("env_id", "kind", "options", "repeat"),
    [
        # Options that no other test has: what is made of a library is kept.
        ("jaxmarl:ant_4x2", Counting, {"episode_length": 5, "action_repeat": 2}, 2),
        ("jaxmarl:ant_4x2", Counting, {"episode_length": 3, "auto_reset": True}, 1),
        ("jaxmarl:HeuristicEnemySMAX", Passing, {}, 1),
    ],
)
def test_a_limit_that_jaxmarl_books_as_an_end_truncates(
    env_id: str, kind: type, options: dict[str, Any], repeat: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jaxmarl, "make", lambda name, **settings: kind(**settings))
    _made_once.cache_clear()
    env = make(env_id, 4, options)
    shown = [env.reset(0)]
    for _ in range(4):
        env.send(np.zeros((4, 1), np.float32))
        shown.append(jax.tree.map(np.array, env.receive()))
    _made_once.cache_clear()
    assert [step.truncated.all() for step in shown] == [False, False, False, True, False]
    assert not any(step.terminated.any() for step in shown)
    assert shown[4].first.all()
    assert [step.observation.max() for step in shown] == [0, repeat, 2 * repeat, 3 * repeat, 0]


@pytest.mark.slow
def test_the_limit_of_a_team_of_brax_truncates_and_shows_the_last_world() -> None:
    options = {"episode_length": 2, "homogenisation_method": "max"}
    env = make("jaxmarl:hopper_3x1", 3, options)
    first, shown = jax.tree.map(np.array, env.reset(0)), []
    for _ in range(3):
        env.send(np.ones((3, 1), np.float32))
        shown.append(jax.tree.map(np.array, env.receive()))
    assert [step.truncated.all() for step in shown] == [False, True, False]
    assert not any(step.terminated.any() for step in shown) and shown[2].first.all()
    assert (shown[1].observation != first.observation).any()


def test_a_host_steps_the_same_stream_as_a_program() -> None:
    env = make("gymnax:CartPole-v1", 4)
    actions = sample_actions(env.spec.action, 4, 60, 0)
    recording = record(env, 3, actions)
    native = make_native("gymnax:CartPole-v1")
    stage, first = begin(native, jnp.asarray(environment_seeds(3, 4), jnp.uint32))

    def step(stage: Any, action: Any) -> tuple[Any, TimeStep]:
        return advance(native, stage, action)

    _, rest = jax.jit(lambda stage, actions: jax.lax.scan(step, stage, actions))(stage, np.stack(actions))
    whole = jax.tree.map(lambda a, b: np.concatenate([a[None], b]), first, rest)
    for name in TimeStep._fields:
        given = np.stack([getattr(shown, name) for shown in recording.steps])
        np.testing.assert_allclose(getattr(whole, name), given, rtol=1e-5, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("options", [{}, {"rooms": 3, "doors": 2}])
def test_the_toy_of_doors_is_the_same_on_a_device(options: dict[str, Any]) -> None:
    host = make("toy:doors", 4, options)
    recording = record(host, 3, sample_actions(host.spec.action, 4, 60, 0))
    native = make_native("toy:doors", options)
    assert native.spec == host.spec
    stage, shown = begin(native, jnp.asarray(environment_seeds(3, 4), jnp.uint32))
    step = jax.jit(partial(advance, native))
    for action, seen in zip([*recording.actions, None], recording.steps, strict=True):
        for ours, theirs in zip(jax.tree.leaves(shown), jax.tree.leaves(seen), strict=True):
            np.testing.assert_array_equal(ours, theirs)
        if action is not None:
            stage, shown = step(stage, action)
    assert sum(seen.terminated.sum() for seen in recording.steps) > 20


@pytest.mark.parametrize(("limit", "name"), [(3, "truncated"), (500, "terminated")])
def test_a_time_limit_truncates(limit: int, name: str) -> None:
    env = make("gymnax:CartPole-v1", 2, {"max_steps_in_episode": limit})
    env.reset(0)
    for _ in range(100):
        env.send(np.zeros(2, np.int32))  # always to the left: the pole falls after some ten steps
        shown = env.receive()
        if (shown.truncated | shown.terminated).any():
            break
    assert getattr(shown, name).any()


@pytest.mark.parametrize("window", [7, 100])
def test_the_window_of_episodes_is_what_a_meter_counts(window: int) -> None:
    random = np.random.default_rng(1)
    rows = 5
    sums, last = no_episodes(rows, window)
    meter, known = EpisodeMeter(rows), []
    first = np.ones(rows, bool)
    # Many ends in a batch, a few, and none.
    for steps in (3, 1, 300, 40, 1, 2, 40, 1, 1, 90):
        batch, ends = [], []
        for _ in range(steps):
            over = ~first & (random.random(rows) < 0.2)
            reward = np.where(first, 0, random.integers(-3, 4, rows)).astype(np.float32)
            shown = TimeStep(None, reward, over, np.zeros(rows, bool), first)
            known += meter.add(shown)
            sums = go_on(sums, jax.tree.map(jnp.asarray, shown))
            batch.append(sums)
            ends.append(over)
            first = over
        stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *batch)
        last = finish(last, stacked, jnp.asarray(np.stack(ends)))
        assert int(last.count) == len(known)
        count = min(len(known), window)
        told = zip(last.returns[:count].tolist(), last.lengths[:count].tolist(), strict=True)
        assert sorted(told) == sorted(known[-count:] if count else [])
    assert len(known) > 3 * window


def test_pictures() -> None:
    own = make("on_device_worlds:blinking", 2, render=True)
    own.reset(0)
    assert own.render().max() == 0
    own.send(np.zeros(2, np.int32))
    own.receive()
    assert own.render().min() == 255
    planes = make("gymnax:Breakout-MinAtar", 2, render=True)
    planes.reset(0)
    picture = planes.render()
    assert picture.shape == (160, 160, 3)
    assert len(np.unique(picture.reshape(-1, 3), axis=0)) == 4, "paddle, ball, bricks and the ground"
    numbers = make("gymnax:CartPole-v1", 1, render=True)
    numbers.reset(0)
    assert numbers.render().shape == (16, 64, 3)


@pytest.mark.parametrize(
    ("env", "options", "says"),
    [
        ("gymnax:CartPole-v2", {}, "did you mean CartPole-v1"),
        ("brax:hoper", {}, "unknown brax environment 'hoper': did you mean hopper"),
        ("brax:hopper", {"episode_length": 0}, "episode_length"),
        pytest.param("craftax:Craftax-v1", {}, "unknown craftax environment", marks=with_craftax),
        ("gymnax:CartPole-v1", {"max_steps": 3}, "max_steps_in_episode"),
        ("jaxmarl:MPE_simple_sprad_v3", {}, "did you mean MPE_simple_spread_v3"),
        ("jaxmarl:MPE_simple_spread_v3", {"num_agent": 3}, "did you mean num_agents"),
        (
            "jaxmarl:MPE_simple_speaker_listener_v4",
            {},
            r"observations of its agents differ \(speaker_0: float32\[3\]; listener_0: float32\[11\]\) and actions "
            r"of its agents differ \(speaker_0: int32\[3\]; listener_0: int32\[5\]\), and one policy decides for all",
        ),
        ("gymnax:CartPole-v1", {"max_steps_in_episode": 0}, "at least 1"),
        ("ALE/Pong-v5", {}, "no JAX-native environment"),
        ("toy:catch", {}, "no JAX-native environment"),
        ("envpool:Pong-v5", {}, "no JAX-native environment"),
        ("on_device_worlds:no_world", {}, "no JAX-native environment"),
        ("on_device_worlds:walk", {"lenght": 3}, "did you mean length"),
        ("on_device_worlds:spoiled", {"how": "structure"}, "walk: the world after a step is"),
        (
            "on_device_worlds:spoiled",
            {"how": "shape"},
            r"the world has shape \(1,\) after a step, and \(\) after a reset",
        ),
        ("on_device_worlds:spoiled", {"how": "key"}, "which no checkpoint can keep"),
        (
            "on_device_worlds:spoiled",
            {"how": "reward"},
            r"walk: step gives a reward of shape \(1,\), needed is \(\)",
        ),
        ("on_device_worlds:spoiled", {"how": "observation"}, "walk: step shows observations of shapes"),
        ("toy:doors", {"rums": 3}, "did you mean rooms"),
        ("on_device_worlds:wrong_mask", {}, r"odd: observation action_mask is bool \(4,\), and no mask"),
        ("on_device_worlds:spoiled", {"how": "error"}, "cannot be made: RuntimeError: out of order"),
    ],
)
def test_what_cannot_be_made_is_named(env: str, options: dict[str, Any], says: str) -> None:
    with pytest.raises((ConfigError, SpecError), match=says):
        make_native(env, options)


def test_what_a_limit_shows_is_as_it_was() -> None:
    """bsuite's chain shows the share of its time that is over."""
    env = make("gymnax:DiscountingChain-bsuite", 1)
    env.reset(0)
    for _ in range(10):
        env.send(np.zeros(1, np.int32))
        shown = env.receive()
    assert shown.observation[0, 1] == pytest.approx(10 / 100)


def test_a_factory_may_ask_for_the_number_of_environments() -> None:
    assert make_native("on_device_worlds:counted").spec.id == "walk"


def test_every_library_is_known_to_hosts_too() -> None:
    assert set(NATIVE) == set(MAKERS)


NOT_IMPORTED = """
import sys
from seedbed.envs.on_device.makers import make_native

make_native("gymnax:CartPole-v1")
assert not any(name.partition(".")[0] in ("seaborn", "pandas") for name in sys.modules)
from gymnax.environments.misc import pong

assert len(pong.sns.color_palette("cubehelix", 3)) == 3
import seaborn

assert seaborn.color_palette is pong.sns.color_palette
"""


QUIET = """
import io, sys
out, err = sys.stdout, sys.stderr
sys.stdout = sys.stderr = held = io.StringIO()
from seedbed.envs.on_device.makers import make_native

make_native("jaxmarl:switch_riddle")
assert sys.stdout is sys.stderr is held and (sys.__stdout__, sys.__stderr__) == (out, err)
assert "ubmodule" not in held.getvalue()
"""


def test_jaxmarl_says_nothing_and_leaves_the_streams_alone() -> None:
    done = subprocess.run([sys.executable, "-c", QUIET], check=False, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


def test_what_only_draws_is_imported_when_something_is_drawn() -> None:
    done = subprocess.run([sys.executable, "-c", NOT_IMPORTED], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_threads_that_make_environments_at_once_hear_no_warning_either() -> None:
    """Filters of warnings are those of all threads: one that ends its own must not end another's."""
    entered, left = threading.Event(), threading.Event()

    def first() -> None:
        _quiet(lambda: entered.wait(0.2))()  # in vain, since the other is kept out
        left.set()

    def second() -> None:
        def warn() -> None:
            entered.set()
            left.wait(5)
            warnings.warn("scatter inputs have incompatible types: …", FutureWarning, stacklevel=1)

        _quiet(warn)()

    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        threads = [threading.Thread(target=each) for each in (first, second)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert [str(each.message) for each in heard] == []


@contextmanager
def compilations() -> Iterator[list[str]]:
    """The names of the functions that are compiled meanwhile, in any thread."""
    names: list[str] = []

    def hear(event: str, _: float, **of: Any) -> None:
        if event == "/jax/core/compile/backend_compile_duration":
            names.append(of["fun_name"])

    jax.monitoring.register_event_duration_secs_listener(hear)
    try:
        yield names
    finally:
        jax.monitoring.unregister_event_duration_listener(hear)


def test_an_environment_of_a_library_is_made_and_compiled_once() -> None:
    options = {"rooms": 5, "doors": 4}
    made = make_native("toy:doors", options)
    assert make_native("toy:doors", dict(reversed(options.items()))) is made
    assert make_native("toy:doors", {**options, "doors": 3}) is not made
    first = NativeBatch(made, 3).reset(5)
    with compilations() as compiled:
        again = NativeBatch(make_native("toy:doors", options), 3).reset(5)
        assert not compiled
        NativeBatch(made, 4).reset(5)
        assert compiled
    jax.tree.map(np.testing.assert_array_equal, first, again)


def test_batches_that_begin_at_once_compile_one_step() -> None:
    made = make_native("toy:doors", {"rooms": 4})
    batches = [NativeBatch(made, 11) for _ in range(4)]
    with compilations() as compiled, ThreadPoolExecutor(len(batches)) as threads:
        first, *others = threads.map(lambda batch: batch.reset(5), batches)
    assert sum("advance" in name for name in compiled) == 1, compiled
    for other in others:
        jax.tree.map(np.testing.assert_array_equal, first, other)
