"""The table of attacks: that a wrong outcome is one, and the short form of what no other test does."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from seedbed.acting.meters import Meters
from seedbed.registry import AGENTS
from seedbed.transport.framing import Kind, decode, limits_up, unpack
from seedbed.transport.interface import Layout

TOOLS = Path(__file__).parents[2] / "tools"


@pytest.fixture(autouse=True)
def _tools(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(TOOLS))


def test_the_table_has_a_row_for_every_outcome(tmp_path: Path) -> None:
    from attacks.table import Attack, Impossible, Scale, Scene, run_all, shown

    def right(scene: Scene) -> None:
        scene.times += 1234
        assert scene.folder.is_dir()

    def wrong(scene: Scene) -> None:
        raise AssertionError("a step is missing\nin row 3")

    def not_here(scene: Scene) -> None:
        raise Impossible("no compiler")

    rows = [Attack(each.__name__, "what", "outcome", each) for each in (right, wrong, not_here)]
    told = run_all(rows, tmp_path, Scale.short())
    assert [each.right for each in told] == [True, False, True]
    lines = shown(told).splitlines()
    assert lines[2] == "| right | what | 1,234 | as it should | outcome |"
    assert lines[3] == "| wrong | what | 0 | WRONG: AssertionError: a step is missing | outcome |"
    assert "not tried: no compiler" in lines[4]
    assert "3 attacks, 1 with a wrong outcome" in lines[-1]


def test_every_agent_that_acts_is_resumed_exactly_in_an_attack() -> None:
    from attacks.exactness import PAIRED

    assert {*AGENTS.names} - {*PAIRED} == {"bc"}


def test_names_choose_attacks_and_a_wrong_outcome_is_the_status(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import attack
    from attacks import table

    names = [each.name for each in table.load()]
    assert len(names) == len(set(names)) > 15
    with pytest.raises(SystemExit) as stop:
        attack.main(["--only", "nothing of that name"])
    assert stop.value.code == 2
    assert attack.main(["--list", "--only", "chaos"]) == 0
    listed = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in listed] == [name for name in names if name[:5] == "chaos"]

    def outcome(right: bool) -> None:
        told = [table.Told(table.ATTACKS[0], 1, "", 0.0, right)]
        monkeypatch.setattr(attack, "run_all", lambda *_: told)

    for right in (True, False):
        outcome(right)
        assert attack.main(["--short"]) == (not right)


def test_which_pairs_promise_an_exact_resumption_is_asked() -> None:
    from attacks.exactness import promised

    found = [name for name, _ in promised()]
    assert {"seed vtrace", "seed r2d2", "a2c ppo", "sebulba pqn", "anakin a2c"} <= set(found)
    assert not [name for name in found if name.split()[0] in ("impala", "rapid", "gorila", "a3c")]


def test_fuzzed_conversations_are_those_of_their_seed_and_are_read_to_their_last_frame() -> None:
    from attacks.fuzz import Way, conversation

    layout = Layout((((1, 10, 5), "float32"), ((1,), "float32"), ((1,), "bool")))
    friend, stranger = (Way("socket file", lambda talks: None, token) for token in ("token" * 4, None))
    chance = random.Random(1)
    made = [conversation(chance, friend, layout) for _ in range(40)]
    chance = random.Random(1)
    assert made == [conversation(chance, friend, layout) for _ in range(40)]
    frames = [frame for each in made for frame in each.frames]
    assert sum(each.read for each in made) == len(frames) > 1000
    assert len(set(frames)) > 500
    assert any(frame[:2] != b"Sd" for frame in frames), "not all are frames at all"
    # Whatever stands before the last frame is taken: it is a step, or a report that breaks no rule.
    limits, meters, kinds = limits_up(1 << 20), Meters(), set()
    for frame in (unpack(one, limits) for each in made for one in each.frames[2:-1]):
        kinds.add(frame.kind)
        if frame.kind == Kind.ASK:
            meters.report(decode(frame.body))
        else:
            assert len(frame.body) == layout.nbytes and frame.lane < 2
    assert kinds == {Kind.ASK, Kind.STEP}
    short = [conversation(chance, stranger, layout) for _ in range(40)]
    assert {each.read for each in short} == {1} and max(len(each.frames) for each in short) == 2
    assert not any(b"token" * 4 in frame for each in short for frame in each.frames)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fuzz", "liar", "strangers hold", "clock jumps", "crowd"])
def test_an_attack_in_its_short_form(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import attack

    # What was compiled for the other tests serves here too.
    monkeypatch.setattr(attack, "private_surroundings", lambda folder: {})
    assert attack.main(["--short", "--only", name]) == 0, capsys.readouterr().err
    assert "0 with a wrong outcome" in capsys.readouterr().out
