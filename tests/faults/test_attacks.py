"""The table of attacks: that a wrong outcome is one, and the short form of what no other test does."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from seedbed.registry import AGENTS

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


def test_fuzzed_conversations_are_those_of_their_seed_and_all_kinds_of_wrong() -> None:
    from attacks.fuzz import conversation

    chance = random.Random(1)
    made = [conversation(chance, "token" * 4, 300) for _ in range(20)]
    chance = random.Random(1)
    assert made == [conversation(chance, "token" * 4, 300) for _ in range(20)]
    frames = [frame for each in made for frame in each]
    assert len(set(frames)) > 500
    assert {frame[3] for frame in frames if frame[:2] == b"Sd" and len(frame) > 15} > {1, 5}, "asks and steps"
    assert any(frame[:2] != b"Sd" for frame in frames)
    assert not any(b"token" * 4 in frame for frame in conversation(chance, None, 300))


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
