"""Agents and architectures of other packages: what works for those of this one works for them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness import rows, tiny

import seedbed
from seedbed.architectures.compatibility import load_architecture
from seedbed.cli.compatibility import run as compatibility
from seedbed.cli.main import main
from seedbed.config.resolve import from_json, to_json
from seedbed.errors import ConfigError
from seedbed.launch.train import resume, train
from seedbed.nets.network import Network
from seedbed.registry import AGENTS
from seedbed.testing import agents as suite

EXAMPLES = Path(__file__).parents[2] / "examples"
AGENT, ARCH = "own_agent:ROBUST", "own_architecture:TOGETHER"


@pytest.fixture(autouse=True)
def examples(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    yield
    for name in ("own_agent", "own_architecture"):
        sys.modules.pop(name, None)


def test_they_are_as_short_as_the_pages_say() -> None:
    for name, most in (("own_agent", 60), ("own_architecture", 40)):
        assert len((EXAMPLES / f"{name}.py").read_text().splitlines()) <= most


CHECKS = [name for name in dir(suite) if name.startswith("check_") and name != "check_priorities"]


@pytest.mark.parametrize("check", CHECKS)
def test_the_contract_suite_takes_an_agent_of_ones_own(check: str) -> None:
    definition = AGENTS.load(AGENT)
    settings = definition.Settings(unroll_length=8, batch_size=4)
    getattr(suite, check)(suite.subject(lambda spec: definition.make(settings, spec, Network()), "vector"))  # type: ignore[attr-defined]


def test_help_shows_their_settings(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["train", "--agent", AGENT, "--arch", ARCH, "--help"])
    shown = capsys.readouterr().out
    assert "--huber-delta" in shown and "--pairs" in shown
    assert "--actors" not in shown and "--minibatches" in shown


def test_the_table_of_pairs_takes_them(capsys: pytest.CaptureFixture[str]) -> None:
    compatibility(["--agent", AGENT, "--arch", ARCH])
    head, *lines = capsys.readouterr().out.splitlines()
    assert head.split()[-1] == ARCH
    cells = {line.split()[0]: line.split()[1:] for line in lines if line}
    assert (cells[AGENT][-1], cells["dqn"][-1]) == ("yes", "yes")
    assert cells["bc"][-1].isdigit(), "nobody acts by it"


def test_a_run_of_theirs_is_trained_resumed_and_evaluated(tmp_path: Path) -> None:
    config = tiny("toy:catch", tmp_path / "run", agent=AGENT, arch=ARCH, pairs=1, huber_delta=0.5, frames=400)
    assert from_json(to_json(config)) == config
    first = train(config)
    assert (first.agent, first.arch) == (AGENT, ARCH)
    again = resume(str(tmp_path / "run"), frames=800)
    assert again.weights_version > first.weights_version
    assert rows(tmp_path / "run")[-1]["actors"] == 2, "two threads are a pair"
    assert seedbed.evaluate(tmp_path / "run", episodes=2).count == 2


def test_a_reason_not_to_run_is_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"bc does not run under {ARCH}: it learns from a data set"):
        train(tiny("toy:catch", tmp_path / "run", arch=ARCH, agent="bc"))
    with pytest.raises(ConfigError, match="unknown setting 'huber_delta'"):
        tiny("toy:catch", tmp_path / "run", huber_delta=0.5)


NO_DEFAULT = """
import dataclasses
from seedbed.agents import AgentDefinition
@dataclasses.dataclass(frozen=True)
class Settings:
    size: int
NEEDS = AgentDefinition("needs", Settings, None)
NOTHING = 3
"""


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("some_parts:NEEDS", "every field of its Settings needs a default"),
        ("some_parts:NOTHING", "is a int, and has to be an agent's definition"),
        ("some_parts:NEED", "did you mean NEEDS"),
        ("no_parts_at_all:NEEDS", "module 'no_parts_at_all' cannot be imported"),
        ("robust", "unknown agent 'robust'.*one of your own is --agent module:name"),
    ],
)
def test_what_is_no_definition_is_refused(
    name: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "some_parts.py").write_text(NO_DEFAULT)
    monkeypatch.syspath_prepend(str(tmp_path))
    sys.modules.pop("some_parts", None)
    with pytest.raises(ConfigError, match=says):
        AGENTS.load(name)


def test_every_row_is_a_definition_of_its_name() -> None:
    for name in AGENTS.names:
        assert AGENTS.load(name).name == name
    from seedbed.registry import ARCHITECTURES

    for name in ARCHITECTURES.names:
        assert load_architecture(name).name == name
