"""Self-play: ratings, draws, unrolls without opponents and the pool, against numbers that were made by hand."""

from __future__ import annotations

import json
from collections import Counter
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from seedbed.acting.opponents import (
    ITSELF,
    Games,
    Opponent,
    Pool,
    PoolCopy,
    PoolSettings,
    after_game,
    chances,
    expected_score,
    frozen_trees,
    marked,
    opponents_in,
    without_opponents,
)
from seedbed.errors import CheckpointError
from seedbed.serving.inference_service import InferenceService
from seedbed.types import TimeStep, Unroll, Weights


@pytest.mark.parametrize(
    ("rating", "other", "expected"), [(1000, 1000, 1 / 2), (1400, 1000, 10 / 11), (1000, 1800, 1 / 101)]
)
def test_the_expected_score_is_elos(rating: float, other: float, expected: float) -> None:
    assert expected_score(rating, other) == pytest.approx(expected)
    assert expected_score(rating, other) + expected_score(other, rating) == pytest.approx(1)


def test_points_change_hands_by_surprise() -> None:
    rating, opponent = after_game(1000.0, Opponent(7, 1400.0, 0.5, 3), 1.0)
    assert rating == pytest.approx(1000 + 4 * 10 / 11) and rating + opponent.rating == pytest.approx(2400)
    assert (opponent.version, opponent.score, opponent.games) == (7, pytest.approx(0.525), 4)
    drawn, _ = after_game(1000.0, Opponent(7, 1000.0), 0.5)
    assert drawn == 1000.0


def test_versions_are_drawn_by_their_rule() -> None:
    pool = [Opponent(0, score=0.5), Opponent(1, score=0.9), Opponent(2, score=1.0)]
    np.testing.assert_allclose(chances(pool, "uniform"), [1 / 3] * 3)
    np.testing.assert_allclose(chances(pool, "recent"), [1 / 6, 2 / 6, 3 / 6])
    np.testing.assert_allclose(chances(pool, "pfsp"), np.array([0.25, 0.01, 0.0001]) / 0.2601)


def steps(first: Any, terminated: Any, truncated: Any, reward: Any) -> TimeStep:
    flags = [np.array(each, bool).T for each in (terminated, truncated, first)]
    reward = np.array(reward, np.float32).T
    return TimeStep(np.zeros((*reward.shape, 1), np.float32), reward, *flags)


@pytest.mark.parametrize(
    "begins", [False, True], ids=["their game goes on", "a game begins with the last step"]
)
def test_an_opponents_steps_are_absent_from_unrolls(begins: bool) -> None:
    # Row 1: a game of the policy ends at step 1; an opponent plays the next one from step 2 on, and ends at step 3 or
    # plays on.
    timestep = steps(
        first=[[0, 0, 1, 0, 0], [0, 0, 1, 0, begins]],
        terminated=[[0, 1, 0, 0, 0], [0, 1, 0, 0, 0]],
        truncated=[[0, 0, 0, 0, 0], [0, 0, 0, begins, 0]],
        reward=[[1, 2, 0, 3, 4], [5, 6, 0, 7, 0 if begins else 8]],
    )
    version = np.array([[7, 7, 7, 7], [7, 7, -8, -8]], np.int32).T
    raw = Unroll(timestep, np.zeros((4, 2)), {}, {}, version)
    kept = [np.array(array) for array in timestep[1:]]
    unroll = without_opponents(raw)
    shown = unroll.timestep
    assert unroll.version.tolist() == [[7, 7]] * 4
    assert shown.first.T.astype(int).tolist() == [[0, 0, 1, 0, 0], [0, 0, 1, 1, 1]]
    assert shown.terminated.T.astype(int).tolist() == [[0, 1, 0, 0, 0], [0, 1, 1, 1, int(not begins)]]
    assert not shown.truncated.any()
    assert shown.reward.T.tolist() == [[1, 2, 0, 3, 4], [5, 6, 0, 0, 0]]
    # The next unroll shares the last steps, which stay as they were.
    for before, after in zip(kept, timestep[1:], strict=True):
        np.testing.assert_array_equal(before, after)


def test_marks_are_undone() -> None:
    players = np.array([ITSELF, 0, 12], np.int64)
    assert marked(players, 3).tolist() == [3, -4, -4]
    # Version 0 is marked too.
    assert (marked(players, 0) < 0).tolist() == [False, True, True]


def a_pool(**settings: Any) -> Pool:
    return Pool(
        PoolSettings(**{"size": 2, "every": 10, "share": 1.0, "rule": "uniform", "seed": 0, **settings})
    )


def meet(pool: Pool, *versions: int, playing: set[int] = frozenset()) -> list[int]:  # type: ignore[assignment]
    for version in versions:
        pool.meet(Weights({"w": np.float32(version)}, version), lambda: playing)
    return [each.version for each in pool.opponents]


def test_versions_are_frozen_now_and_then_and_the_oldest_gives_way() -> None:
    pool = a_pool()
    assert meet(pool, 0, 5, 9) == [0]
    assert meet(pool, 11) == [0, 11]
    # Who is in a game plays it to its end.
    assert meet(pool, 20, 25, playing={0}) == [11, 25]
    assert pool.params(0) == {"w": 0} and pool.params(11) == {"w": 11}
    assert meet(pool, 40) == [25, 40]
    assert pool.params(0) is None and pool.params(11) is None


def test_the_table_changes_with_the_version_alone_and_in_no_order() -> None:
    one, other = a_pool(), a_pool()
    for pool, scores in ((one, [1.0, 0.0, 1.0]), (other, [1.0, 1.0, 0.0])):
        meet(pool, 0)
        for score in scores:
            pool.played(0, score)
        meet(pool, 0)
        assert pool.rating == 1000.0 and pool.opponents[0].games == 0
        meet(pool, 1)
    assert one.rating == other.rating > 1000.0
    assert one.opponents == other.opponents and one.opponents[0].games == 3
    assert one.rating + one.opponents[0].rating == pytest.approx(2000)


def test_games_against_versions_have_their_share_and_both_sides() -> None:
    pool = a_pool(share=0.2, size=3)
    meet(pool, 0, 10, 20)
    drawn = [pool.draw(slot, 0, count) for slot in range(40) for count in range(50)]
    assert drawn == [pool.draw(slot, 0, count) for slot in range(40) for count in range(50)]
    counted = Counter(version for version, _ in drawn)
    # Five standard deviations of a share of 0.2, and of a third of that, in 2000 games.
    assert abs(2000 - counted[ITSELF] - 400) < 90
    assert all(abs(counted[version] - 133) < 56 for version in (0, 10, 20)), counted
    sides = Counter(side for version, side in drawn if version != ITSELF)
    assert abs(sides[0] - sides[1]) < 100, sides
    assert {a_pool(share=0.0).draw(slot, 0, 0) for slot in range(99)} == {(ITSELF, 0)}


def test_a_game_is_counted_for_who_has_more() -> None:
    pool = a_pool()
    meet(pool, 0)
    games = Games(pool, [0, 1, 2, 3], epoch=0)
    begins = steps([[1]] * 4, [[0]] * 4, [[0]] * 4, [[0]] * 4)
    games.step(one_of(begins), np.zeros(4), 0)
    theirs = np.flatnonzero(games.players == 0)
    assert len(theirs) == 2 and theirs[0] < 2 <= theirs[1]
    assert [games.counts(row) for row in range(4)] == [row not in theirs for row in range(4)]
    # Both agents of a game end at once; the policy has more in the first game, and as much in the second one.
    returns = np.array([3.0, 3.0, 1.0, 1.0])
    returns[theirs[0]] = -3.0
    games.step(one_of(steps([[0]] * 4, [[1]] * 4, [[0]] * 4, [[0]] * 4)), returns, 1)
    assert pool._scores == {0: [1.0, 0.5]}
    assert pool.steps == 2  # of the first step alone: at the end nothing is carried out


@pytest.mark.parametrize("loser", [0, 1])
def test_a_game_whose_agents_end_one_after_the_other_is_counted_at_its_end(loser: int) -> None:
    """The beaten one goes first; its row is absent, and its return 0 again, when the winner ends."""
    pool = a_pool()
    meet(pool, 0)
    games = Games(pool, [0, 1], epoch=0)

    def step(first: list[int], over: list[int], returns: list[float], count: int) -> None:
        flags = [[each] for each in first], [[each] for each in over]
        games.step(one_of(steps(*flags, [[0]] * 2, [[0]] * 2)), np.array(returns), count)

    def of(theirs: Any, others: Any) -> list[Any]:
        return [theirs, others] if loser == 0 else [others, theirs]

    counts = []
    for game in range(2):
        step([1, 1], [0, 0], [0.0, 0.0], 4 * game)
        (other,) = np.flatnonzero(games.players == 0)
        counts.append(0.0 if other != loser else 1.0)
        step([0, 0], of(1, 0), of(-1.0, 0.5), 4 * game + 1)
        assert len(pool._scores.get(0, [])) == game, "the game goes on"
        step(of(1, 0), of(1, 0), of(0.0, 0.25), 4 * game + 2)
        step(of(1, 0), of(1, 1), of(0.0, -0.5), 4 * game + 3)
        assert pool._scores == {0: counts}


@pytest.mark.parametrize("late", [0, 1])
def test_a_game_begins_with_the_agent_that_comes_first_and_is_no_other_when_the_other_comes(
    late: int,
) -> None:
    pool = a_pool(share=1.0)
    meet(pool, 0)
    games, again = (Games(pool, [0, 1], epoch=0) for _ in range(2))

    def step(here: tuple[int, int], other: tuple[int, int], returns: list[float], count: int) -> list[int]:
        """Takes a step: first and terminated of the agent that is there from the start, and of the late one."""
        first, over = ([[a], [b]] if late else [[b], [a]] for a, b in zip(here, other, strict=True))
        games.step(one_of(steps(first, over, [[0]] * 2, [[0]] * 2)), np.array(returns), count)
        again.restore(json.loads(json.dumps(games.state())))
        assert again.state() == games.state()
        return games.players.tolist()

    absent, begins, plays, ends = (1, 1), (1, 0), (0, 0), (0, 1)
    for game in range(2):
        drawn = step(begins, absent, [0.0, 0.0], 10 * game)
        assert sorted(drawn) == [ITSELF, 0], "an opponent plays from the first step on"
        assert step(plays, absent, [0.0, 0.0], 10 * game + 1) == drawn
        assert step(plays, begins, [0.0, 0.0], 10 * game + 2) == drawn
        assert step(plays, plays, [0.0, 0.0], 10 * game + 3) == drawn
        step(ends, ends, [1.0, 0.0], 10 * game + 4)
        assert len(pool._scores[0]) == game + 1


def one_of(timestep: TimeStep) -> TimeStep:
    return TimeStep(timestep.observation[0], *(field[0] for field in timestep[1:]))


def test_a_pool_is_restored_but_for_what_cannot_be_loaded() -> None:
    pool = a_pool(size=3)
    meet(pool, 0, 10, 20)
    pool.played(10, 1.0)
    meet(pool, 21)
    pool.played(20, 0.5)
    trees, kept = pool.kept()

    def load(name: str) -> Any:
        if name == "opponent_10":
            raise CheckpointError("a leaf is missing")
        return trees[name]

    whole, part, said = a_pool(size=3), a_pool(size=3), []
    whole.restore(kept, trees.__getitem__, said.append)
    assert whole == pool and not said
    part.restore(kept, load, said.append)
    assert [each.version for each in part.opponents] == [0, 20] and part.rating == pool.rating
    assert said == ["version 10 is no opponent any more, since it cannot be loaded: a leaf is missing"]


def test_a_table_has_the_versions_that_there_are_and_their_records() -> None:
    pool = a_pool(size=4)
    meet(pool, 0, 10)
    pool.played(10, 1.0)
    meet(pool, 11)
    assert pool.table().shape == (4, 4)
    assert opponents_in(pool.table()) == pool.opponents and len(pool.opponents) == 2
    assert opponents_in(a_pool(size=4).table()) == []


def weights(version: int) -> Weights:
    return Weights({"w": np.float32(version)}, version)


def test_a_copy_draws_as_the_pool_from_the_weights_on_with_which_a_table_came() -> None:
    pool, copy = a_pool(size=3, rule="pfsp"), PoolCopy(a_pool(size=3, rule="pfsp").settings)
    drawn = {}
    for version in (0, 10, 20, 21):
        for each in pool.opponents:
            pool.played(each.version, float(each.version > 0))
        meet(pool, version)
        assert copy.take(weights(version), pool.table()) == weights(version)
        before = [copy.draw(slot, 1, 7) for slot in range(50)]
        assert version == 0 or before == drawn
        copy.meet(weights(version), set)
        drawn = [copy.draw(slot, 1, 7) for slot in range(50)]
        assert drawn == [pool.draw(slot, 1, 7) for slot in range(50)]
    assert [copy.params(version) for version in (0, 10, 20)] == [{"w": 0}, {"w": 10}, {"w": 20}]


def test_weights_wait_for_the_versions_of_their_table() -> None:
    pool, copy = a_pool(size=2), PoolCopy(a_pool(size=2).settings)
    meet(pool, 0, 10, 12)
    assert copy.take(weights(12), pool.table()) is None and copy.missing() == 10
    assert copy.take(weights(10), pool.table()) is None and copy.missing() == 0
    # The oldest one has given way meanwhile: the newest weights come in its place, of which one more is missing.
    meet(pool, 20, 21)
    assert copy.take(weights(21), pool.table()) is None and copy.missing() == 20
    assert copy.take(weights(20), pool.table()) == weights(21) and copy.missing() is None
    copy.meet(weights(21), set)
    assert copy.opponents == pool.opponents and [each.version for each in pool.opponents] == [10, 20]
    # Late ones: that of a link which was given up, and older weights.
    assert copy.take(weights(10), pool.table()) is copy.take(weights(12), pool.table()) is None
    assert copy.missing() is None


def test_a_copy_keeps_what_plays_or_will() -> None:
    pool, copy = a_pool(size=1), PoolCopy(a_pool(size=1).settings)
    for version in (0, 10, 20):
        meet(pool, version)
        assert copy.take(weights(version), pool.table()) == weights(version)
        copy.meet(weights(version), lambda: {ITSELF, 0} if version == 10 else {ITSELF})  # noqa: B023
        assert [v for v in (0, 10, 20) if copy.params(v)] == {0: [0], 10: [0, 10], 20: [20]}[version]


def test_games_that_are_followed_count_as_where_they_were_drawn() -> None:
    drawn, counted = a_pool(size=3, share=0.7), a_pool(size=3, share=0.7)
    meet(drawn, 0, 10, 20), meet(counted, 0, 10, 20)
    there, here = Games(drawn, range(4), 2), Games(counted, range(4), 2)
    random = np.random.default_rng(0)
    for at in range(60):
        first = np.full(4, at % 3 == 0)
        over = np.repeat(random.random(2) < 0.5, 2) & ~first
        step = TimeStep({}, np.zeros(4), over, np.zeros(4, bool), first)
        returns = random.integers(-1, 2, 4).astype(float)
        there.step(step, returns, at)
        here.follow(step, returns, there.players.astype(np.int32))
        assert here.players.tolist() == there.players.tolist()
    assert counted._scores == drawn._scores and sum(map(len, counted._scores.values())) > 5
    assert counted.steps == drawn.steps > 20


def test_each_version_decides_for_its_own_rows_the_policy_first() -> None:
    calls = []

    def act(params: Any, batch: Any) -> Any:
        ((arrays, columns),) = (
            batch
            if len(batch) == 1
            else [
                (
                    [np.concatenate(x) for x in zip(*[a for a, _ in batch], strict=True)],
                    np.concatenate([c for _, c in batch], axis=1),
                )
            ]
        )
        calls.append((float(params["w"]), arrays[0].tolist(), columns[0].tolist()))
        return arrays[0] * 0 + params["w"], {"seen": arrays[0]}

    pool = a_pool(size=3)
    meet(pool, 0, 10)
    service = InferenceService.__new__(InferenceService)
    service._pool, service.inference = pool, SimpleNamespace(act=act)  # type: ignore[assignment]
    lanes = [
        SimpleNamespace(
            open=SimpleNamespace(observed=[np.array(rows, np.float32)]),
            columns=lambda s=slots: np.array([s] * 4),
        )
        for rows, slots in (([1, 2], [4, 5]), ([3, 4, 5, 6], [0, 1, 2, 3]))
    ]
    players = np.array([ITSELF, 0, 10, ITSELF, 0, ITSELF], np.int64)
    weights = Weights({"w": np.float32(99)}, 20)
    actions, record = service._act(lanes, weights, players)  # type: ignore[arg-type]
    assert actions.tolist() == [99, 0, 10, 99, 0, 99]
    assert record["seen"].tolist() == [1, 2, 3, 4, 5, 6]
    assert calls == [(99, [1, 4, 6], [4, 1, 3]), (10, [3], [0]), (0, [2, 5], [5, 2])]


def test_trees_of_frozen_versions_are_found_among_a_checkpoints_files_oldest_first() -> None:
    pool = a_pool(size=3, every=1)
    meet(pool, 9, 10, 200)
    kept, _ = pool.kept()
    files = [f"{name}.safetensors" for name in kept]
    found = frozen_trees([*files, "train.safetensors", "opponent_x.safetensors", "tables_0.safetensors"])
    assert [*found] == [9, 10, 200] and {*found.values()} == {*kept}
