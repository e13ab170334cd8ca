"""What a summary and a log say of the origin of a run's numbers."""

import dataclasses
import json
import shlex
from typing import Any

import pytest

from seedbed.cli.train import configuration
from seedbed.config.resolve import configure, replace
from seedbed.launch.outcome import origin_of


@pytest.mark.parametrize(
    "settings",
    [
        {"env": "CartPole"},
        {"env": "CartPole-v1", "agent": "vtrace", "hidden": (32, 32), "video": False, "frames": 7},
        {"env": "ALE/Pong-v5", "preset": "none", "lstm": 8, "lag": "free"},
        {"env": "my_world:World", "env_options": {"title": "two words $HOME", "list": [1, 2]}},
    ],
)
def test_the_command_makes_the_same_configuration(settings: dict[str, Any]) -> None:
    config = configure(**settings)
    program, verb, *words = shlex.split(origin_of(config)["command"])
    assert (program, verb) == ("seedbed", "train")
    assert configuration(words) == config


def test_a_preset_that_is_gone_is_spelled_out() -> None:
    config = dataclasses.replace(configure("CartPole-v1"), preset="of-another-version")
    words = shlex.split(origin_of(config)["command"])[2:]
    assert configuration(words) == replace(config, preset="none")


def test_options_of_any_bytes_can_be_written() -> None:
    origin = origin_of(configure("my_world:World", env_options=["name=\udcff"]))
    json.dumps(origin, ensure_ascii=False).encode()
