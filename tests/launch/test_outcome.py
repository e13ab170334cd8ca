"""What a summary and a log say of the origin of a run's numbers."""

import dataclasses
import json
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest

from seedbed.cli.train import configuration
from seedbed.config.placement import NetworkSettings
from seedbed.config.resolve import configure, replace
from seedbed.launch.folder import RunFolder
from seedbed.launch.outcome import invitations, origin_of
from seedbed.transport.admission import Gate
from seedbed.transport.tls import Identity


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


@pytest.mark.parametrize(
    ("env", "consent"), [("my_world:World", " --trust my_world:World"), ("toy:catch", "")]
)
def test_the_line_to_paste_consents_to_what_an_actor_has_to_import(env: str, consent: str) -> None:
    gate = Gate("5ecret5ecret5ecret", Identity.make())
    (line,) = invitations(configure(env, preset="none"), gate, ["somewhere.example:7777"])
    invitation = gate.invitation("somewhere.example:7777")
    assert line == f"more actors: seedbed actor somewhere.example:7777 --join {invitation}{consent}"


def test_engines_keep_no_token_of_what_a_run_prints(tmp_path: Path) -> None:
    folder = RunFolder.create(configure("toy:catch", run_dir=str(tmp_path / "a run")))
    gate = folder.gate(NetworkSettings(), ["somewhere.example:7777"])
    (line,) = invitations(configure("toy:catch"), gate, ["somewhere.example:7777"], folder.token_in_a_shell)
    assert folder.token() not in line
    said = subprocess.run(["bash", "-c", f"echo {line}"], capture_output=True, text=True, check=True).stdout
    (plain,) = invitations(configure("toy:catch"), gate, ["somewhere.example:7777"])
    assert said == f"{plain}\n"


def test_options_of_any_bytes_can_be_written() -> None:
    origin = origin_of(configure("my_world:World", env_options=["name=\udcff"]))
    json.dumps(origin, ensure_ascii=False).encode()
