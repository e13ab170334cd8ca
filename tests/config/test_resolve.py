import dataclasses
import json
from typing import Any

import numpy as np
import pytest

from seedbed.agents.ppo import PPOSettings
from seedbed.agents.vtrace import VTraceSettings
from seedbed.architectures.checks import meaningless
from seedbed.architectures.compatibility import why_not
from seedbed.cli.train import configuration
from seedbed.config import resolve
from seedbed.config.resolve import (
    Preset,
    configure,
    defaults,
    env_options,
    flat,
    from_json,
    preset_for,
    presets,
    replace,
    to_json,
)
from seedbed.config.settings import RunConfig
from seedbed.errors import ConfigError
from seedbed.launch.build import build_agent, build_spec
from seedbed.registry import AGENTS, ARCHITECTURES

LISTENING: dict[str, Any] = {"listen": ("127.0.0.1:0",)}
OTHERS: dict[str, Any] = {
    "env": "CartPole-v1",
    "seed": 7,
    "hidden": (32, 16),
    "frames": 1000,
    "minutes": 2.5,
    "listen": ("127.0.0.1:0",),
    "max_envs": 64,
    "max_actors": 64,
    "queue_size": 40,
    "transport": "grpc",
    "training_devices": (1, 2),
    "learning_rate": 1e-3,
    "target_entropy": 0.5,
    "env_options": ("frame_skip=1",),
    "json": True,
}


def test_every_setting_has_one_name() -> None:
    names = [
        part.name
        for _, section in resolve._sections(RunConfig())
        for part in dataclasses.fields(section)
        if not dataclasses.is_dataclass(getattr(section, part.name))
    ]
    assert sorted(names) == sorted(set(names)) == sorted(flat(RunConfig()))


def test_replace_changes_what_is_named_and_nothing_else() -> None:
    config = replace(RunConfig(), **OTHERS)
    assert flat(config) == {**flat(RunConfig()), **OTHERS}
    assert flat(replace(config)) == flat(config)
    assert flat(RunConfig()) != flat(config)


@pytest.mark.parametrize("config", [RunConfig(), replace(RunConfig(), **OTHERS)], ids=["defaults", "others"])
def test_the_record_comes_back_through_json(config: RunConfig) -> None:
    record = json.loads(json.dumps(to_json(config)))
    assert from_json(record) == config
    assert hash(from_json(record)) == hash(config)


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("actor", "actors"),
        ("until_retrun", "until_return"),
        ("learningrate", "learning_rate"),
        ("Seed", "seed"),
    ],
)
def test_an_unknown_setting_is_refused_with_the_nearest_name(name: str, nearest: str) -> None:
    with pytest.raises(
        ConfigError, match=rf"unknown setting '{name}': did you mean .*\b{nearest}\b"
    ) as error:
        configure("toy:catch", **{name: 3})
    assert "\n" not in str(error.value)


def test_sections_are_not_settings() -> None:
    with pytest.raises(ConfigError, match="unknown setting 'placement'"):
        configure("toy:catch", placement=3)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"actors": "3"}, "actors is '3': it must be a whole number"),
        ({"actors": 2.5}, "actors is 2.5: it must be a whole number"),
        ({"actors": True}, "actors is True: it must be a whole number"),
        ({"actors": None}, "actors is None: it must be a whole number"),
        ({"json": 1}, "json is 1: it must be true or false"),
        ({"network": None}, "network is None: it must be text"),
        ({"learning_rate": "fast"}, "it must be a number"),
        ({"learning_rate": True}, "it must be a number"),
        ({"frames": "all"}, "it must be a whole number or none"),
        ({"transport": "tcp"}, "transport is 'tcp': it must be inproc or shm or grpc"),
        ({"arch": "sed"}, "unknown architecture 'sed': did you mean seed?"),
        ({"lag": "loose"}, "it must be a whole number or free or none"),
        ({"hidden": 3}, "hidden is 3: it must be a list of whole numbers"),
        ({"hidden": (3, "x")}, "hidden is 'x': it must be a whole number"),
        ({"listen": "127.0.0.1:0"}, "it must be a list of text"),
    ],
)
def test_wrong_types_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        configure("toy:catch", **settings)
    assert message in str(error.value)


@pytest.mark.parametrize(
    "settings",
    [
        {"actors": -1},
        {"envs_per_actor": 0},
        {"prefetch": -1},
        {"lag": -1},
        {"queue_size": 0},
        {"inference_batch": 0},
        {"inference_wait_ms": -1.0},
        {"listen": (), "actors": 0},
        {"frames": 0},
        {"minutes": 0.0},
        {"minutes": float("nan")},
        {"lstm": -1},
        {"hidden": (64, 0)},
        {"env_timeout": 0.0},
        {"actor_restarts": -1},
        {"keep_checkpoints": 0},
        {"checkpoint_minutes": -1.0},
        {"max_skipped_updates": 0},
        {"discount": 1.5},
        {"unroll_length": 0},
        {"adam_b2": 1.0},
        {"rmsprop_momentum": -0.1},
        {"adam_eps": -1.0},
    ],
    ids=str,
)
def test_numbers_that_mean_nothing_are_refused(settings: dict[str, Any]) -> None:
    name = list(settings)[-1]
    with pytest.raises(ConfigError, match=name):
        configure("toy:catch", preset="none", **settings)


def test_numbers_at_the_edge_are_fine() -> None:
    configure(
        "toy:catch",
        preset="none",
        actors=0,
        listen=["127.0.0.1:0"],
        max_envs=1,
        prefetch=0,
        inference_wait_ms=0,
        lstm=0,
        actor_restarts=0,
    )
    configure("toy:catch", preset="none", checkpoint_minutes=0, lag=0)


def test_slots_are_judged_when_all_is_known() -> None:
    place = configure("CartPole-v1", max_envs=64, **LISTENING).placement
    assert place.slots == 64  # the preset has one actor of 64
    assert configure("toy:catch", preset="none").placement.slots == 32 + 256
    place = configure("toy:catch", preset="none", actors=3, max_actors=9, **LISTENING).placement
    assert place.most_actors == 9
    assert configure("toy:catch", preset="none", actors=3).placement.most_actors == 1027
    with pytest.raises(ConfigError, match="max_actors is 2, and has to be 3 or more"):
        _ = configure("toy:catch", preset="none", actors=3, max_actors=2, **LISTENING).placement.most_actors
    with pytest.raises(ConfigError, match="max_envs is 31, and has to be 32 or more"):
        _ = configure("toy:catch", preset="none", max_envs=31, **LISTENING).placement.slots
    with pytest.raises(ConfigError, match="max_envs is 47, and has to be 48 or more: the run's own 3 actors"):
        _ = configure("toy:catch", preset="none", max_envs=47, **LISTENING, guests=1).placement.slots
    with pytest.raises(ConfigError, match="max_actors is 4, and has to be 5 or more"):
        _ = configure("toy:catch", preset="none", max_actors=4, **LISTENING, guests=3).placement.most_actors


def test_numbers_and_lists_are_converted_without_loss() -> None:
    config = configure("toy:catch", frames=2e6, minutes=3, hidden=[8.0, 4])
    assert (config.stop.frames, config.stop.minutes, config.net.hidden) == (2_000_000, 3.0, (8, 4))
    assert isinstance(config.stop.frames, int) and isinstance(config.stop.minutes, float)


# -- presets --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("agent", AGENTS.names)
def test_every_preset_fits_every_agent_and_says_what_it_is(agent: str) -> None:
    assert {"atari", "pong", "cartpole"} <= set(presets())
    for name, preset in presets().items():
        assert preset.name == name
        assert preset.about.endswith(".")
        config = defaults("toy:catch", name, agent)
        assert (config.preset, config.agent) == (name, agent)
        for key, value in preset.settings_for(agent, config.arch).items():
            assert flat(config)[key] == _plain(value)


def test_what_a_preset_sets_for_actors_is_for_architectures_that_have_some() -> None:
    assert configure("CartPole-v1").placement.transport == "inproc"
    elsewhere = configure("CartPole-v1", arch="anakin")
    assert (elsewhere.arch, elsewhere.placement) == ("anakin", ARCHITECTURES.load("anakin").Settings())
    assert elsewhere.stop.until_return == 475


def test_a_preset_may_have_settings_of_one_agent_under_one_architecture() -> None:
    archs = {"seed": {"actors": 1, "envs_per_actor": 2, "vtrace": {"envs_per_actor": 4}}}
    preset = Preset("p", "P.", (), {"actors": 9, "frames": 5, "shards": 3}, {"vtrace": {"frames": 6}}, archs)
    assert preset.settings_for("vtrace", "seed") == {"actors": 1, "envs_per_actor": 4, "frames": 6}
    assert preset.settings_for("ppo", "seed") == {"actors": 1, "envs_per_actor": 2, "frames": 5}
    assert preset.settings_for("vtrace", "sebulba") == {"actors": 9, "frames": 6}
    assert preset.settings_for("a2c", "a3c") == {"actors": 9, "frames": 5, "shards": 3}
    assert preset.settings_for("vtrace", "anakin") == {"frames": 6}, "it has no actors"


def test_a_preset_may_name_the_agent_of_runs_that_name_none(monkeypatch: pytest.MonkeyPatch) -> None:
    preset = Preset("p", "P.", ("world",), {"frames": 5}, {"dqn": {"frames": 6}}, agent="dqn")
    monkeypatch.setattr(resolve, "presets", lambda: {"p": preset})
    assert configure("world") == configure("world", agent="dqn")
    assert (configure("world").agent, configure("world").stop.frames) == ("dqn", 6)
    assert (configure("world", agent="ppo").agent, configure("world", agent="ppo").stop.frames) == ("ppo", 5)
    assert configure("another", preset="p").agent == "dqn"
    for without in (configure("world", preset="none"), configure("another")):
        assert without.agent == RunConfig.agent


def test_presets_name_agents_that_there_are_and_that_they_have_tuned() -> None:
    named = {preset.name: preset.agent for preset in presets().values() if preset.agent}
    assert named["pong"] == "ppo"
    for name, agent in named.items():
        assert presets()[name].agents[agent], f"{name} sets nothing for {agent}"


def test_another_agent_brings_its_own_settings() -> None:
    config = configure("CartPole-v1", agent="ppo", minibatches=2)
    assert isinstance(config.settings, PPOSettings)
    assert (config.settings.minibatches, config.settings.learning_rate, config.settings.clip) == (
        2,
        2e-3,
        0.2,
    )
    with pytest.raises(
        ConfigError, match="clip_rho is a setting of vtrace, and the agent of this run is ppo"
    ):
        configure("CartPole-v1", agent="ppo", clip_rho=2.0)
    with pytest.raises(ConfigError, match="unknown agent 'pppo': did you mean ppo"):
        configure("CartPole-v1", agent="pppo")
    with pytest.raises(ConfigError, match="settings is a VTraceSettings, and has to be a PPOSettings"):
        RunConfig(agent="ppo", settings=VTraceSettings())


def _plain(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def test_the_preset_that_fits_most_closely_is_chosen() -> None:
    chosen = {
        env: preset and preset.name
        for env, preset in (
            (env, preset_for(env)) for env in ("ALE/Pong-v5", "ALE/Breakout-v5", "CartPole-v1")
        )
    }
    assert chosen == {"ALE/Pong-v5": "pong", "ALE/Breakout-v5": "atari", "CartPole-v1": "cartpole"}


def test_an_environment_that_nobody_made_a_preset_for_has_the_general_one() -> None:
    for env in ("Acrobot-v1", "my_world:World", "gymnax:Acrobot-v1"):
        assert (found := preset_for(env)) is not None and found.name == "general"
    assert configure("my_world:World").agent == "ppo"
    assert configure("my_world:World", preset="none").agent == "vtrace"
    for arch in ("seed", "impala", "rapid", "sebulba"):
        config = configure("my_world:World", arch=arch)
        assert config.placement.planned == config.settings.batch_size, "nothing is trained on late"
        assert config.settings.batch_size % config.settings.minibatches == 0, "with a memory, too"


@pytest.mark.parametrize(
    ("env", "name"),
    [
        ("CartPole", "cartpole"),
        ("Pendulum", "pendulum"),
        ("ALE/Pong", "pong"),
        ("ALE/Breakout", "atari"),
        ("Hopper", "mujoco"),
        ("CartPole-v0", "general"),
        ("Pole", "general"),
    ],
)
def test_an_id_without_a_version_has_the_preset_of_its_newest_one(env: str, name: str | None) -> None:
    assert getattr(preset_for(env), "name", None) == name


def test_the_longest_pattern_wins_whatever_the_order(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [
        Preset("wide", "W.", ("A*", "*"), {}),
        Preset("near", "N.", ("AB*",), {}),
        Preset("far", "F.", (), {}),
    ]
    for order in (found, found[::-1]):
        monkeypatch.setattr(resolve, "presets", lambda order=order: {preset.name: preset for preset in order})
        assert [getattr(preset_for(env), "name", None) for env in ("ABC", "AC", "ab")] == [
            "near",
            "wide",
            "wide",
        ]


def test_settings_go_over_the_presets_and_those_over_the_defaults() -> None:
    preset = presets()["cartpole"].settings
    assert flat(configure("CartPole-v1"))["until_return"] == preset["until_return"]
    assert flat(configure("CartPole-v1", until_return=3.0))["until_return"] == 3.0
    assert configure("CartPole-v1", preset="none") == RunConfig(env="CartPole-v1", preset="none")
    with pytest.raises(ConfigError, match="unknown preset 'cartpol': did you mean cartpole"):
        configure("CartPole-v1", preset="cartpol")


# -- options of the environment -------------------------------------------------------------------------------


def test_env_options_are_read_as_json_or_text() -> None:
    config = configure(
        "toy:catch",
        env_options=("a=1", "b=0.5", "c=true", "d=[1, 2]", "e=word", "f=x=y", "g=", 'h="1"', "i=null"),
    )
    assert env_options(config) == {
        "a": 1,
        "b": 0.5,
        "c": True,
        "d": [1, 2],
        "e": "word",
        "f": "x=y",
        "g": "",
        "h": "1",
        "i": None,
    }


@pytest.mark.parametrize("item", ["sticky", "=1", ""])
def test_env_options_without_a_name_are_refused(item: str) -> None:
    with pytest.raises(ConfigError, match="write name=value"):
        env_options(configure("toy:catch", env_options=(item,)))


@pytest.mark.parametrize(
    ("settings", "lag"),
    [
        ({"agent": "ppo"}, 0),
        ({"agent": "a2c"}, 0),
        ({"agent": "pqn"}, 0),
        ({"agent": "ppo", "correction": "vtrace"}, "free"),
        ({"agent": "ppo", "correction": "vtrace", "lag": 0}, 0),
        ({"agent": "vtrace"}, "free"),
        ({"agent": "dqn"}, "free"),
        ({"agent": "ppo", "lag": "free"}, "free"),
        ({"agent": "ppo", "lag": 2}, 2),
        ({"agent": "ppo", "listen": ("127.0.0.1:0",)}, "free"),
        ({"agent": "vtrace", "deterministic": True}, 0),
        ({"agent": "ppo", "arch": "sebulba"}, 0),
    ],
)
def test_an_agent_brings_its_own_lag_where_none_is_asked_for(settings: dict[str, Any], lag: object) -> None:
    assert configure("toy:catch", preset="none", **settings).lag.setting == lag


@pytest.mark.parametrize("env", ["toy:catch", "toy:memory", "CartPole-v1", "ALE/Pong-v5", "ALE/Breakout-v5"])
@pytest.mark.parametrize("agent", ["vtrace", "ppo", "a2c", "pqn"])
def test_what_a_preset_says_of_an_agent_starts_under_the_first_architecture(env: str, agent: str) -> None:
    """Their rounds and batches come out even, whatever lag the agent brings."""
    config = configure(env, agent=agent)
    assert why_not(config, build_agent(config, build_spec(config))) is None


def test_an_environment_is_given_by_its_name() -> None:
    with pytest.raises(ConfigError, match=r"env is <class 'int'>: give its name, an id or module:name"):
        configure(int)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"lr": 1e-3}, "unknown setting 'lr': did you mean learning_rate? (docs/coming-from.md"),
        ({"total_timesteps": 7}, "did you mean frames?"),
        ({"n_envs": 7}, "did you mean envs_per_actor?"),
        ({"agent": "ppo", "clip_range": 0.1}, "did you mean clip?"),
        (
            {"agent": "vtrace", "clip_range": 0.1},
            "'clip_range': clip is a setting of ppo, and the agent of this",
        ),
        ({"agent": "ppo", "buffer_size": 7}, "'buffer_size': replay_size is a setting of dqn"),
        ({"arch": "anakin", "n_workers": 7}, "'n_workers': actors is a setting of"),
    ],
)
def test_settings_by_the_names_of_other_systems_lead_to_ours(given: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError) as error:
        configure("toy:catch", **given)
    assert says in str(error.value)


@pytest.mark.parametrize("preset", presets())
def test_no_preset_has_a_setting_that_an_agent_under_an_architecture_has_no_use_for(preset: str) -> None:
    for agent in AGENTS.names:
        for arch in ARCHITECTURES.names:
            assert meaningless(defaults("CartPole-v1", preset, agent, arch)) is None, (agent, arch)


def test_a_setting_that_the_agent_does_not_read_is_refused_from_python_too() -> None:
    with pytest.raises(
        ConfigError, match="rmsprop_decay means nothing where optimizer is adam: give --optimizer rmsprop"
    ):
        configure("toy:catch", optimizer="adam", rmsprop_decay=0.5)
    assert configure("toy:catch", optimizer="rmsprop", rmsprop_decay=0.5).settings.rmsprop_decay == 0.5
    # At its default it says nothing, as in settings that a program passes on whole.
    assert configure("toy:catch", optimizer="adam", rmsprop_decay=0.99).settings.rmsprop_decay == 0.99


@pytest.mark.parametrize(
    ("agent", "name", "value", "other", "needed"),
    [
        ("vtrace", "entropy_adjustment_speed", 3.0, "target_entropy", 0.5),
        ("dqn", "epsilon_start", 0.5, "epsilon_steps", 100),
        ("r2d2", "epsilon_start", 0.5, "epsilon_steps", 100),
        ("dqn", "importance_exponent", 0.5, "priority_exponent", 0.5),
        ("r2d2", "importance_exponent", 0.5, "priority_exponent", 0.5),
        ("r2d2", "priority_eta", 0.5, "priority_exponent", 0.5),
    ],
)
def test_a_setting_that_needs_another_one_is_refused_without_it(
    agent: str, name: str, value: float, other: str, needed: float
) -> None:
    def refused(by: str, said: str) -> Any:
        hint = f"--{other.replace('_', '-')}"
        return pytest.raises(
            ConfigError, match=f"^{by} means nothing where {said}: give {hint}, or leave it out$"
        )

    none = {"preset": "none", "agent": agent}
    flag, hint = (f"--{each.replace('_', '-')}" for each in (name, other))
    off = None if other == "target_entropy" else 0
    with refused(name, f"{other} is {'none' if off is None else '0(.0)?'}"):
        configure("toy:catch", **none, **{name: value, other: off})
    words = ["toy:catch", "--preset", "none", "--agent", agent, flag, str(value)]
    with refused(flag, f"{other} is {'none' if off is None else '0(.0)?'}"):
        configuration([*words, hint, str(off)])
    assert configuration([*words, hint, str(needed)]) == configure(
        "toy:catch", **none, **{name: value, other: needed}
    )


def test_a_setting_that_needs_another_one_is_taken_where_that_is_on_by_default() -> None:
    words = ["toy:catch", "--agent", "pqn", "--epsilon-start", "0.5"]
    assert configuration(words).settings.epsilon_steps > 0
    with pytest.raises(ConfigError, match=r"^--epsilon-start means nothing where epsilon_steps is 0: give "):
        configuration([*words, "--epsilon-steps", "0"])


@pytest.mark.parametrize(
    ("name", "value", "idle", "other"),
    [
        ("opponents_every", 9, "opponents is 0", {"opponents": 1}),
        ("opponents_share", 0.5, "opponents is 0", {"opponents": 1}),
        ("opponents_by", "recent", "opponents is 0", {"opponents": 1}),
        ("host_timeout", 9.0, "hosts is 1", {"hosts": 2}),
        ("coordinator", "127.0.0.1:9", "hosts is 1", {"hosts": 2}),
        ("max_envs", 900, "listen is empty", LISTENING),
        ("max_actors", 900, "listen is empty", LISTENING),
        ("insecure", True, "listen is empty, hosts is 1 and on is here", LISTENING),
        ("insecure", True, "listen is empty, hosts is 1 and on is here", {"hosts": 2}),
    ],
)
def test_a_setting_that_means_nothing_is_refused_and_an_older_record_of_it_is_read(
    name: str, value: Any, idle: str, other: dict[str, Any]
) -> None:
    with pytest.raises(ConfigError, match=f"^{name} means nothing where {idle}: give --.*, or leave it out$"):
        configure("CartPole-v1", preset="none", **{name: value})
    flag = f"--{name.replace('_', '-')}"
    said = [flag] if value is True else [flag, str(value)]
    with pytest.raises(ConfigError, match=f"^{flag} means nothing where {idle}: give --"):
        configuration(["CartPole-v1", *said])
    with_other = configure("CartPole-v1", preset="none", **other, **{name: value})
    words = [word for each, given in other.items() for word in (f"--{each}", *map(str, np.atleast_1d(given)))]
    given = configuration(["CartPole-v1", "--preset", "none", *words, *said])
    assert given == with_other
    plain = to_json(configure("CartPole-v1", preset="none"))
    assert to_json(from_json({**plain, name: value}))[name] == value
    assert to_json(configure(**plain)) == plain, "with its default it is no matter"


@pytest.mark.parametrize(
    ("arch", "said"),
    [
        (
            "seed",
            "where listen is empty, hosts is 1 and on is here: give --listen, --hosts or --on, or leave it out",
        ),
        ("sebulba", "where hosts is 1 and on is here: give --hosts or --on, or leave it out"),
        ("gorila", "where on is here: give --on, or leave it out"),
    ],
)
def test_what_would_give_a_setting_a_meaning_is_what_the_architecture_has(arch: str, said: str) -> None:
    agent = ["--agent", "dqn"] if arch == "gorila" else []
    with pytest.raises(ConfigError, match=f"^--insecure means nothing {said}$"):
        configuration(["CartPole-v1", "--arch", arch, *agent, "--insecure"])
