"""Actors on Windows, as far as Linux can tell: nothing of Seedbed that they run uses what Windows does not have."""

import socket
import sys
from pathlib import Path

import pytest
from harness import Command, summary, thorough

from seedbed.errors import ConfigError
from seedbed.transport.connect import connect

WINDOWS = str(Path(__file__).with_name("windows"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("env", "architecture", "listen"),
    [
        ("CartPole-v1", "impala", "127.0.0.1:0"),  # the actor runs the policy
        *thorough(("toy:catch", "seed", "127.0.0.1:0"), ("CartPole-v1", "seed", "socket:127.0.0.1:0")),
    ],
)
def test_an_actor_on_windows_acts_for_a_learner_elsewhere(
    tmp_path: Path, env: str, architecture: str, listen: str
) -> None:
    options = ["--arch", architecture, "--preset", "none", "--actors", "0", "--listen", listen]
    whole = [env, *options, "--frames", "4000", "--until-return", "none", "--run-dir", "run"]
    with Command("train", *whole, cwd=tmp_path) as learner:
        line = learner.pasted()
        with Command(*line, cwd=tmp_path, PYTHONPATH=WINDOWS) as actor:
            assert actor.wait() == 0, actor.output
            assert "the run is over" in actor.output
        assert learner.wait() == 0, learner.output
    assert summary(tmp_path / "run")["agent_steps"] >= 4000


@pytest.mark.parametrize("taken", ["import fcntl", "import os; os.getuid()", "import socket; socket.AF_UNIX"])
def test_what_windows_lacks_is_lacking_in_these_tests(tmp_path: Path, taken: str) -> None:
    inside = f"exec({taken!r}, {{'__name__': 'seedbed.trial'}})"
    with Command("-c", inside, cwd=tmp_path, command=[sys.executable], PYTHONPATH=WINDOWS) as program:
        assert program.wait() == 1 and "on Windows" in program.last_line, program.output


@pytest.mark.parametrize("address", ["unix:place", "shm:place", "socket:unix:place"])
def test_a_system_without_unix_sockets_says_which_address_it_takes(
    monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    monkeypatch.delattr(socket, "AF_UNIX")
    with pytest.raises(ConfigError, match=r"no Unix sockets; .*HOST:PORT"):
        connect(address, timeout=1.0)
