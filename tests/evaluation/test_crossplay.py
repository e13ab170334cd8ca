"""Tables of every policy against every other one: arithmetic by hand, and short runs of self-play."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_runs import run

from seedbed.acting.opponents import expected_score, frozen_trees
from seedbed.cli.main import main
from seedbed.errors import ConfigError
from seedbed.evaluation import crossplay as module
from seedbed.evaluation.crossplay import (
    CrossPlay,
    Tally,
    crossplay,
    cyclic_triples,
    mean_scores,
    noise,
    ratings,
)
from seedbed.evaluation.crossplay_report import draw, table
from seedbed.learning.checkpoint import Contents, load_latest, save
from seedbed.types import TimeStep

NIM = "pettingzoo:parallel_worlds:Nim"
SELF_PLAY = {
    "env": NIM,
    "arch": "seed",
    "transport": "inproc",
    "actors": 1,
    "envs_per_actor": 8,
    "lag": 0,
    "unroll_length": 6,
    "frames": 400,
    "opponents": 3,
    "opponents_every": 2,
}

ROCK_PAPER_SCISSORS = np.array([[0.5, 0.0, 1.0], [1.0, 0.5, 0.0], [0.0, 1.0, 0.5]])


# -- arithmetic --------------------------------------------------------------------------------------------


def test_rock_paper_scissors_is_one_cyclic_triple_of_equal_ratings() -> None:
    assert cyclic_triples(ROCK_PAPER_SCISSORS, noise(100)) == (1, 1)
    assert cyclic_triples(ROCK_PAPER_SCISSORS.T, noise(100)) == (1, 1)
    assert ratings(ROCK_PAPER_SCISSORS, 100) == pytest.approx([1000, 1000, 1000])
    assert mean_scores(ROCK_PAPER_SCISSORS) == pytest.approx([0.5, 0.5, 0.5])


def test_cycles_are_counted_among_all_triples_and_beyond_the_noise_only() -> None:
    # Rock, paper, scissors twice over, and one that beats all six: of 3 in a row, 8 triples have one of each kind.
    scores = np.ones((7, 7))
    scores[:6, :6] = np.kron(np.ones((2, 2)), ROCK_PAPER_SCISSORS)
    scores[:6, 6] = 0.0
    assert cyclic_triples(scores, noise(100)) == (8, 35)
    # 0.98 / sqrt(100) on either side of a half: 0.59 may be chance.
    near = 0.5 + 0.09 * (2 * ROCK_PAPER_SCISSORS - 1)
    assert noise(100) == pytest.approx(0.098)
    assert cyclic_triples(near, noise(100)) == (0, 1)
    assert cyclic_triples(near, noise(400)) == (1, 1)


def test_a_ladder_has_no_cycle() -> None:
    scores = np.triu(np.ones((5, 5)), 1)
    assert cyclic_triples(scores, 0.1) == (0, 10)
    assert mean_scores(scores) == pytest.approx([1, 0.75, 0.5, 0.25, 0])


def test_ratings_come_back_from_the_scores_that_they_mean() -> None:
    true = np.array([800.0, 950.0, 1000.0, 1250.0])
    scores = np.array([[expected_score(one, other) for other in true] for one in true])
    np.fill_diagonal(scores, np.nan)
    # Of a million games the prior's one does not count.
    assert ratings(scores, 1_000_000) == pytest.approx(true, abs=0.01)


def test_a_player_that_never_lost_has_a_finite_rating_of_a_known_size() -> None:
    up, down = ratings(np.array([[np.nan, 1.0], [0.0, np.nan]]), 10)
    assert up + down == pytest.approx(2000)
    # With x half of the distance, the likelihood's slope 10 (1 - p(2x)) is that of the prior's drawn game, p(x) - 1/2.
    x = (up - down) / 2 / (400 / np.log(10))
    assert 10 / (1 + np.exp(2 * x)) == pytest.approx(1 / (1 + np.exp(-x)) - 0.5, abs=1e-6)
    further = ratings(np.array([[np.nan, 1.0], [0.0, np.nan]]), 1000)
    assert 100 < up - down < further[0] - further[1] < 1500


@pytest.mark.parametrize(
    ("games", "envs", "quota"), [(1, 2, 1), (2, 2, 1), (7, 8, 1), (100, 20, 5), (94, 16, 6), (400, 20, 20)]
)
def test_environments_are_even_and_play_as_many_games_each(games: int, envs: int, quota: int) -> None:
    assert module._shares(games) == (envs, quota)
    assert games <= envs * quota


# -- the tally ---------------------------------------------------------------------------------------------


def a_step(**rows: Any) -> TimeStep:
    """A step of two environments: rewards, and letters of their four rows (f first, t terminated, a absent, . none)."""
    letters = rows["rows"]
    reward = np.array(rows.get("reward", [0, 0, 0, 0]), np.float32)
    return TimeStep(
        None,
        reward,
        np.array([each in "ta" for each in letters]),
        np.zeros(4, np.bool_),
        np.array([each in "fa" for each in letters]),
    )


def test_a_game_is_over_when_neither_agent_is_left_and_its_whole_returns_count() -> None:
    tally = Tally(2, 1, 100)
    assert tally.add(a_step(rows="aaaa")), "nobody has come yet: no game is over"
    assert tally.add(a_step(rows="ffff"))
    assert tally.add(a_step(rows="t...", reward=[1, 0, 0, 1]))
    # The second agent of the first environment goes on alone, and overtakes; the other environment ends.
    assert tally.add(a_step(rows="a.tt", reward=[0, 1, 0.5, 0]))
    assert not tally.add(a_step(rows="atff", reward=[0, 1, 0, 0]))
    assert tally.scores.tolist() == [[0.0], [0.0]] and tally.complete and tally.cut == 0


def test_each_environment_has_its_quota_and_short_games_are_not_favoured() -> None:
    tally = Tally(2, 2, 100)
    tally.add(a_step(rows="ffff"))
    for _ in range(3):  # games of one step, which the first agent wins, beside one long game
        tally.add(a_step(rows="tt..", reward=[1, -1, 0, 0]))
        assert tally.add(a_step(rows="ff.."))
    tally.add(a_step(rows="..tt", reward=[0, 0, -1, 1]))
    assert not tally.complete
    tally.add(a_step(rows="..ff"))
    assert not tally.add(a_step(rows="..tt", reward=[0, 0, 0, 0]))
    assert tally.scores.tolist() == [[1.0, 1.0], [0.0, 0.5]]


def test_a_game_that_is_cut_counts_by_its_returns_so_far_and_begins_anew_with_all() -> None:
    tally = Tally(2, 2, 2)
    tally.add(a_step(rows="ffff"))
    tally.add(a_step(rows="..tt", reward=[1, 0, 0, 1]))
    assert tally.add(a_step(rows="..ff"))  # cut: two steps
    # What the environment that was cut goes on with is none of the quota.
    assert not tally.add(a_step(rows="tttt", reward=[-9, 9, 0, 1]))
    assert tally.cut == 1 and not tally.complete
    tally.begin()
    tally.add(a_step(rows="ffff"))
    assert not tally.add(a_step(rows="tt..", reward=[0, 1, 0, 0]))
    assert tally.scores.tolist() == [[1.0, 0.0], [0.0, 0.0]] and tally.cut == 1


# -- runs --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def nim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("nim") / "nim"
    run(folder, **SELF_PLAY)
    return folder


@pytest.fixture(scope="module")
def played(nim: Path) -> CrossPlay:
    return crossplay([nim], games=20)


def test_the_table_of_one_run_has_its_pool_and_its_final_policy(nim: Path, played: CrossPlay) -> None:
    checkpoint = load_latest(nim / "checkpoints")
    versions = [
        version for version in frozen_trees(checkpoint.files) if version != checkpoint.meta["version"]
    ]
    assert len(versions) >= 2
    assert played.players == (*map(str, versions), f"final {checkpoint.meta['version']}")
    count = len(played.players)
    assert played.scores.shape == (count, count) and np.isnan(np.diag(played.scores)).all()
    others = ~np.eye(count, dtype=bool)
    assert (played.scores + played.scores.T)[others] == pytest.approx(1)
    # Whole games of 20: no draws in Nim.
    assert (played.scores[others] * 20) % 1 == pytest.approx(0)
    assert played.games == 20 and played.cut == 0 and played.env == NIM
    assert played.triples == count * (count - 1) * (count - 2) // 6
    assert played.ratings == pytest.approx(ratings(played.scores, 20))


def test_the_same_seed_plays_the_same_games_and_another_seed_others(nim: Path, played: CrossPlay) -> None:
    again, other = crossplay([nim], games=20), crossplay([nim], games=20, seed=1)
    np.testing.assert_array_equal(again.scores, played.scores)
    assert again.first == played.first
    assert (other.scores != played.scores)[~np.eye(len(played.players), dtype=bool)].any()


@pytest.mark.slow
def test_the_final_policies_of_two_runs_play_by_their_folders_names(nim: Path, tmp_path: Path) -> None:
    # A recurrent network against one without, by another agent.
    run(
        tmp_path / "lstm",
        **{**SELF_PLAY, "agent": "vtrace", "lstm": 8, "previous_action": True, "frames": 200},
    )
    found = crossplay([nim, tmp_path / "lstm"], games=4, final=True)
    finals = [load_latest(path / "checkpoints").meta["version"] for path in (nim, tmp_path / "lstm")]
    assert found.players == (f"nim final {finals[0]}", f"lstm final {finals[1]}")
    assert found.triples == 0 and found.scores[0, 1] + found.scores[1, 0] == 1


@pytest.mark.slow
def test_a_run_of_one_agent_plays_in_the_environment_of_two(nim: Path, tmp_path: Path) -> None:
    alone = {"env": "parallel_worlds:NimAlone", "frames": 100}
    plain = {name: value for name, value in SELF_PLAY.items() if not name.startswith("opponents")}
    run(tmp_path / "alone", **{**plain, **alone})
    found = crossplay([tmp_path / "alone", nim], games=4, final=True)
    assert found.env == NIM and [name.split()[0] for name in found.players] == ["alone", "nim"]


@pytest.mark.slow
def test_policies_of_their_own_play_for_their_side(tmp_path: Path) -> None:
    run(tmp_path / "own", **{**SELF_PLAY, "policies": "own", "frames": 200})
    found = crossplay([tmp_path / "own"], games=4)
    assert len(found.players) > 1 and found.env == NIM
    again = crossplay([tmp_path / "own"], games=4, env=NIM)
    np.testing.assert_array_equal(again.scores, found.scores)


def test_runs_of_one_agent_play_in_an_environment_that_is_named(nim: Path, tmp_path: Path) -> None:
    both = [a_copy(nim, tmp_path / name, env="parallel_worlds:NimAlone") for name in ("alone", "other")]
    with pytest.raises(
        ConfigError, match=r"need an environment of two agents, and .*Alone of alone has 1.*--env"
    ):
        crossplay(both, games=4, trust=None)
    found = crossplay(both, games=4, final=True, env=NIM, env_options=["stones=10"], trust=None)
    assert found.env == NIM and [name.split()[0] for name in found.players] == ["alone", "other"]
    # The environment of the first run that has two agents; of equal weights neither is far ahead.
    assert crossplay([both[0], nim], games=4, final=True, trust=None).env == NIM
    with pytest.raises(
        ConfigError,
        match=r"alone cannot play in .*Nim, .*observation left is float32\[12\].*there float32\[6\]",
    ):
        crossplay(both, games=4, env=NIM, env_options=["stones=4"], trust=None)


def a_copy(run: Path, to: Path, env: str = NIM) -> Path:
    """A copy of a run, said to be one of another environment with the same spaces."""
    shutil.copytree(run, to)
    record = json.loads((to / "config.json").read_text())
    (to / "config.json").write_text(json.dumps({**record, "env": env}))
    spec = json.loads((to / "spec.json").read_text())
    agents = spec["agents"] if env == NIM else []
    (to / "spec.json").write_text(json.dumps({**spec, "id": env, "agents": agents}))
    return to


# -- players by hand ---------------------------------------------------------------------------------------


def a_player(name: str, choose: Any) -> module._Entrant:
    """A player that chooses by a function of the stones ``[B]`` and the masks ``[B, 3]``."""

    def decide(params: Any, root: Any, step: Any, arrays: Any, state: Any) -> tuple[Any, Any]:
        mask, left = arrays[:2]
        return choose(left[:, :-1].argmax(axis=1), mask, step), state

    return module._Entrant(name, None, decide, lambda rows: None)


PERFECT = a_player(
    "perfect", lambda left, mask, step: np.where(mask[:, 1] > 0, np.maximum(left % 4 - 1, 0), 0)
)
SLOW = a_player("slow", lambda left, mask, step: np.zeros(len(left), np.int64))
MOST = a_player("most", lambda left, mask, step: mask.argmax(axis=1) + mask.sum(axis=1).astype(np.int64) - 1)


def matches(players: list[module._Entrant], stones: int, max_steps: int = 100) -> tuple[Any, float, int]:
    environment = module.make(NIM, 12, [f"stones={stones}"])
    try:
        return module._matches(players, environment, (6, 2, max_steps), 0, lambda line: None)
    finally:
        environment.close()


def test_perfect_play_beats_all_and_itself_by_the_first_move() -> None:
    """With 10 stones the first player wins, and with 9 by taking one; with 8 the second one does."""
    scores, first, cut = matches([PERFECT, SLOW, MOST], 10)
    assert scores[0, 1:].tolist() == [1.0, 1.0] and scores[1:, 0].tolist() == [0.0, 0.0] and cut == 0
    assert 0 < first < 1
    assert matches([PERFECT, PERFECT], 10)[0][0, 1] == 0.5, "each is the first one in half of the games"
    assert matches([PERFECT, PERFECT], 10)[1] == 1.0
    assert matches([PERFECT, PERFECT], 8)[1] == 0.0


def test_games_that_are_cut_are_draws_where_nobody_has_a_reward_yet() -> None:
    scores, first, cut = matches([PERFECT, SLOW], 10, max_steps=2)
    assert scores[0, 1] == scores[1, 0] == first == 0.5 and cut == 12


def test_a_recurrent_state_stays_with_its_row() -> None:
    """Players that count their own turns see them grow by one a step, from 0 on after every reset."""
    seen = []

    def decide(params: Any, root: Any, step: Any, arrays: Any, state: Any) -> tuple[Any, Any]:
        seen.append((params, step, state.tolist()))
        return np.zeros(len(state), np.int64), state + params

    players = [module._Entrant(str(one), one, decide, np.arange) for one in (1, 100)]
    matches(players, 4)
    for params, step, state in seen:
        assert state == [row + params * step for row in range(6)]
    assert {params for params, *_ in seen} == {1, 100}


# -- the command -------------------------------------------------------------------------------------------


def told(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(["crossplay", *arguments])
    out, err = capsys.readouterr()
    return int(ended.value.code or 0), out, err


def test_the_command_prints_writes_and_draws(
    nim: Path, played: CrossPlay, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = [str(tmp_path / name) for name in ("t.csv", "t.png")]
    status, out, err = told(
        [str(nim), "--games", "20", "--json", "--csv", files[0], "--out", files[1]], capsys
    )
    assert status == 0 and all(file in err for file in files)
    found = json.loads(out)
    assert found["players"] == [*played.players] and found["scores"][0][0] is None
    assert found["scores"][0][1] == played.scores[0, 1] and found["cyclic_triples"] == played.cyclic
    header, first, *_ = csv.reader((tmp_path / "t.csv").read_text().splitlines())
    assert header == ["player", "elo", "mean_score", *played.players]
    assert first[0] == played.players[0] and float(first[1]) == played.ratings[0] and first[3] == ""
    assert (tmp_path / "t.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("width", [20, 40, 80, 200])
def test_the_table_has_every_score_at_any_width(width: int) -> None:
    count = 12
    scores = np.arange(count * count).reshape(count, count) / 200
    np.fill_diagonal(scores, np.nan)
    names = tuple(f"[run]/{index:,} of a long name" for index in range(count))
    given = CrossPlay(
        names,
        scores,
        np.full(count, 1000.0),
        np.full(count, 0.5),
        3,
        220,
        0.1,
        100,
        0.5,
        "e",
        ("a", "b"),
        7,
        9,
    )
    text = table(given, width)
    for score in scores[~np.isnan(scores)]:
        assert f"{score:.2f}" in text
    assert "[run]" in text and "3 of 220" in text and "7 games were cut after 9 steps" in text
    assert width < 40 or max(map(len, text.split("\n\n")[0].splitlines())) <= width
    if width == 200:
        assert names[0][: width // 3] in text


@pytest.mark.parametrize("ending", ["svg", "pdf"])
def test_pictures_of_other_formats(ending: str, played: CrossPlay, tmp_path: Path) -> None:
    draw(played, tmp_path / f"new/table.{ending}")
    assert (tmp_path / f"new/table.{ending}").stat().st_size > 1000
    with pytest.raises(ConfigError, match="cannot draw"):
        draw(played, tmp_path / "table.ending")


# -- refusals ----------------------------------------------------------------------------------------------


def test_a_version_that_cannot_be_read_is_left_out_and_named(nim: Path, tmp_path: Path) -> None:
    a_copy(nim, tmp_path / "run")
    kept = load_latest(tmp_path / "run/checkpoints")
    trees = {name.partition(".")[0]: kept._load(name) for name in kept.files}
    version, broken = next(iter(frozen_trees(kept.files).items()))
    trees[broken] = {"other": np.zeros(3, np.float32)}
    save(tmp_path / "run/checkpoints", kept.step + 1, Contents(_nested(trees), kept.meta))
    lines: list[str] = []
    found = crossplay([tmp_path / "run"], games=2, say=lines.append, trust=None)
    assert str(version) not in found.players and len(found.players) == len(frozen_trees(kept.files))
    assert found.notes == (*lines,) and len(lines) == 1
    assert f"version {version} of run, which cannot be loaded" in lines[0]


def _nested(trees: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Trees whose leaves are named by paths, as trees of dicts."""
    found: dict[str, Any] = {}
    for name, leaves in trees.items():
        for path, leaf in leaves.items():
            *above, last = (name, *path.split("/"))
            place = found
            for part in above:
                place = place.setdefault(part, {})
            place[last] = leaf
    return found


def test_refusals(nim: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert told([], capsys)[0] == 2
    assert "give run folders" in told([], capsys)[2]
    for said, arguments in {
        "0 games: give at least 1": {"games": 0},
        "0 steps: give at least 1": {"max_steps": 0},
        "is the only player": {"final": True},
        "of two agents, and .*Scripted has 3": {"env": "pettingzoo:parallel_worlds:Scripted"},
        "of two agents, and toy:catch has 1": {"env": "toy:catch"},
        "nim cannot play in .*; action is int32.* of 3 values, and there .* of 4 values; observation number is none": {
            "env": "pettingzoo:parallel_worlds:Masked"
        },
    }.items():
        with pytest.raises(ConfigError, match=said):
            crossplay([nim], **arguments)
    with pytest.raises(ConfigError, match="no run folder"):
        crossplay([tmp_path])
    begun = tmp_path / "begun"
    begun.mkdir()
    (begun / "config.json").write_bytes((nim / "config.json").read_bytes())
    with pytest.raises(ConfigError, match=r"begun has no policy to play: no checkpoint"):
        crossplay([nim, begun], trust=None)
