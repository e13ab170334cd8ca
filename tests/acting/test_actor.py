"""The actor's loop, against a client and environments that write down the order of calls."""

from __future__ import annotations

from collections import deque
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fakes import COUNT
from hypothesis import given
from hypothesis import strategies as st

from seedbed import plugins
from seedbed.acting import actor
from seedbed.acting.trust import foreign_names
from seedbed.envs.make import make
from seedbed.envs.options import Parameter, Takes, arguments
from seedbed.errors import ConfigError, ConnectionLost, Refused
from seedbed.testing.transport import PATIENCE, FakeHandler
from seedbed.transport.admission import Invitation
from seedbed.transport.connect import connect, listen

ROUNDS = 4


class Told:
    """Environments that tell what is done with them."""

    def __init__(self, lane: int, events: list[tuple[str, int]]) -> None:
        self._environment = make("toy:count", 2)
        self._lane, self._events = lane, events
        self.spec = self._environment.spec
        self.closed = False

    def reset(self, seed: int) -> Any:
        return self._environment.reset(seed)

    def send(self, action: Any) -> None:
        self._events.append(("step", self._lane))
        self._environment.send(action)

    def receive(self) -> Any:
        self._events.append(("wait", self._lane))
        return self._environment.receive()

    def close(self) -> None:
        self.closed = True


class Script:
    """A learner that answers both halves at once, whenever both have sent."""

    def __init__(self, events: list[tuple[str, int]]) -> None:
        self._events = events
        self._sent: list[int] = []
        self._replies: deque[int] = deque()
        self._rounds = 0

    def ask(self, question: dict[str, Any]) -> dict[str, Any]:
        return {
            "env": "toy:count",
            "rows": 2,
            "options": {},
            "seeds": [1, 2],
            "unroll_length": 5,
            "overlap": 0,
        }

    def open(self, lanes: Any) -> None:
        assert len(lanes) == 2

    def send(self, lane: int, arrays: Any) -> None:
        self._events.append(("send", lane))
        self._sent.append(lane)
        if len(self._sent) == 2:
            self._replies.extend(self._sent)
            self._sent = []

    def receive(self, *, wait: bool) -> Any:
        if self._replies:
            return self._replies.popleft(), [np.zeros(2, COUNT.action.dtype)]
        if not wait:
            return None
        raise ConnectionLost("the end")


def test_both_halves_step_before_either_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[tuple[str, int]] = []
    made: list[Told] = []

    def make_told(*_: Any, first: int) -> Told:
        assert first == 2 * len(made), "they are numbered over both halves"
        made.append(Told(len(made), events))
        return made[-1]

    client = Script(events)
    receive = client.receive
    answered = 0

    def receive_some(*, wait: bool) -> Any:
        nonlocal answered
        if answered == 2 * ROUNDS:
            raise ConnectionLost("the end")
        reply = receive(wait=wait)
        answered += reply is not None
        return reply

    monkeypatch.setattr(actor, "make", make_told)
    monkeypatch.setattr(client, "receive", receive_some)
    with pytest.raises(ConnectionLost):
        actor.act(client, token="", make_agent=lambda policy, spec: None)  # type: ignore
    assert events[:2] == [("send", 0), ("send", 1)]
    turn = [("step", 0), ("step", 1), ("wait", 0), ("send", 0), ("wait", 1), ("send", 1)]
    assert events[2:] == (turn * ROUNDS)[: len(events) - 2]
    assert len(events) > 2 + 6 * (ROUNDS - 1)
    assert all(environment.closed for environment in made)


class Impostor(Script):
    """A learner that knows the token and tells the actor to make anything."""

    def __init__(self, **told: Any) -> None:
        super().__init__([])
        self._told = told

    def ask(self, question: dict[str, Any]) -> dict[str, Any]:
        return {**super().ask(question), **self._told}


@pytest.mark.parametrize(
    ("told", "named"),
    [
        ({"env": "subprocess:getoutput", "options": ["cmd=touch run"]}, "subprocess:getoutput"),
        ({"env": "antigravity:Id-v0"}, "antigravity:Id-v0"),
        ({"policy": {"network": "mypkg.nets:Big"}}, "mypkg.nets:Big"),
        ({"policy": {"agent": "brax:Agent"}}, "brax:Agent"),
        ({"policy": {"agent": "a:b", "arch": "c:d", "env": "e:f"}}, "a:b c:d e:f"),
        ({"env": "GymV21Environment-v0", "options": ["env_id=antigravity:Id-v0"]}, "antigravity:Id-v0"),
    ],
)
def test_nothing_is_imported_that_only_the_learner_names(
    told: dict[str, Any], named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(plugins, "import_module", lambda name: pytest.fail(f"{name} was imported"))
    never: Any = lambda *_: pytest.fail("an agent was made")  # noqa: E731
    first, *others = named.split()
    for trust in ((), ["subprocess:run", *others]):
        with pytest.raises(Refused, match=f"import {first}.* add --trust {first}"):
            actor.act(Impostor(**told), token="", make_agent=never, trust=trust)  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("env", ["toy:count", "envpool:Pong-v5", "brax:ant", "ALE/Pong-v5", "CartPole-v1"])
def test_known_schemes_name_no_module(env: str) -> None:
    assert foreign_names({"env": env, "arch": "seed", "agent": "ppo", "network": "auto"}) == set()


@pytest.mark.parametrize(
    ("options", "names"),
    [
        (["speed=2", "name=north", "at=12:30", "on=localhost:7777", "file=maps/a.xml", "map=/tmp/x:y"], ""),
        (["of=https://example.com/a.b", "dtype=float32", "version=1.2.3", "level=nosuchmodule.one"], ""),
        (["x=evil:f"], "evil:f"),
        (["x=evil:2048-v0", "y= evil-one:f "], "evil-one:f evil:2048-v0"),
        (["x=dm_env:evil.pkg:load"], "dm_env:evil.pkg:load"),
        (["x=[a, evil:f]", "y=(1,evil.g:h)"], "evil.g:h evil:f"),
        (['x:={"a": [1, {"evil:key": "b"}]}'], "evil:key"),
        (['x:="evil\\u003af"'], "evil:f"),
        (["x={'a': 'evil\\x3af'}"], "evil:f"),
        (["x=os.system", "y=json.decoder.JSONDecoder"], "json.decoder.JSONDecoder os.system"),
        (["x=local_module_of_mine.f"], "local_module_of_mine.f"),
        ({"x": "evil:f", "y": [{"z": "os.system"}]}, "evil:f os.system"),
        (['x:=["evil\\u003af", NaN]', 'y=["os\\u002esystem", NaN]'], "evil:f os.system"),
        (["x=[nan, ('evil' ':f')]"], "evil:f"),
        (["evil:f=1"], "evil:f"),
    ],
)
def test_options_name_modules_too(
    options: Any, names: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "local_module_of_mine.py").write_text("raise SystemExit('it was imported')")
    assert " ".join(sorted(foreign_names({"env": "CartPole-v1", "options": options}))) == names


ELEMENTS = (
    '"os\\u003asystem"',
    "'os\\x3asystem'",
    '("os" ":system")',
    "os:system",
    '{"a": "os\\u003asystem"}',
    "NaN",
    "1",
    "[",
    '"',
)
BRACKETS = ("[{}]", "({})", '{{"k": [{}]}}', "{}", "({},)")


@given(
    st.lists(st.sampled_from(ELEMENTS), min_size=1, max_size=3).map(", ".join),
    st.sampled_from(BRACKETS),
    st.sampled_from((":=", "=")),
    st.sampled_from((Any, str, list[str], list[Any], tuple[str, ...], dict[str, Any], Path, list[str] | str)),
)
def test_no_reading_of_an_option_has_a_name_that_was_not_found(
    elements: str, brackets: str, equals: str, kind: Any
) -> None:
    options = [f"x{equals}{brackets.format(elements)}"]
    try:
        read = arguments("CartPole-v1", options, Takes({"x": Parameter(kind)}))
    except ConfigError:
        return
    named = {text for text in every_text(read) if text == "os:system"}
    assert named <= foreign_names({"env": "CartPole-v1", "options": options})


def every_text(value: Any) -> list[str]:
    if isinstance(value, str | Path):
        return [str(value)]
    if isinstance(value, dict):
        return [text for each in (*value, *value.values()) for text in every_text(each)]
    return [text for each in value for text in every_text(each)] if isinstance(value, list | tuple) else []


deep: Any = "evil:f"
for _ in range(9_999):
    deep = [deep]


@pytest.mark.parametrize(
    "options", ["x=evil:f", [3], [{"x": "evil:f"}], 7, ["x:=" + "[" * 99_999], {"x": deep}]
)
def test_options_that_are_none_are_refused(options: Any) -> None:
    with pytest.raises(ConfigError, match="option"):
        foreign_names({"env": "CartPole-v1", "options": options})


def test_an_actor_imports_what_it_was_told_to(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []

    def make_none(env: str, *_: Any, first: int) -> Any:
        made.append(env)
        raise ConnectionLost("made")

    monkeypatch.setattr(actor, "make", make_none)
    for trust in (None, ["worlds:mine"]):
        with pytest.raises(ConnectionLost, match="made"):
            actor.act(Impostor(env="worlds:mine"), token="", make_agent=None, trust=trust)  # type: ignore[arg-type]
    assert made == ["worlds:mine"] * 2


def test_an_actor_that_finds_its_learner_full_tries_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(actor, "FIRST_RETRY_SECONDS", 0.01)
    address, said = f"shm:{tmp_path}/socket", []

    def say(line: str) -> None:
        said.append(line)
        if "1 peers already" in line:
            first.close()  # now there is room

    with closing(listen(address, FakeHandler(), most=1)) as server:
        first = connect(server.address, timeout=PATIENCE)
        first.ask({})
        # The handler refuses whoever is let in, which ends the actor.
        with pytest.raises(KeyError):
            actor.act_and_reconnect(
                lambda: (address, Invitation("0123456789abcdef")), say=say, make_agent=None, trust=()
            )
    assert said[0] == said[-1] == f"acting for {address}"
    assert sum("1 peers already" in line for line in said) >= 1
