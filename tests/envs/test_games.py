"""Games of Pgx: whose turn it is, what each side sees, who wins, and opponents that are part of the environment."""

from __future__ import annotations

from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pgx
import pytest
from harness import thorough

from seedbed.envs.make import make
from seedbed.envs.on_device.games import TURN, best_moves
from seedbed.envs.on_device.interface import advance, begin
from seedbed.envs.on_device.makers import make_native
from seedbed.envs.seeds import environment_seeds
from seedbed.errors import ConfigError
from seedbed.testing.environments import check_environment, record, sample_actions
from seedbed.types import ACTION_MASK, TimeStep

TIC_TAC_TOE = "pgx:tic_tac_toe"


@pytest.mark.parametrize(
    ("env", "options", "envs"),
    [
        (TIC_TAC_TOE, {}, 4),
        pytest.param(TIC_TAC_TOE, {"opponent": "perfect"}, 3, marks=pytest.mark.slow),
        pytest.param("pgx:kuhn_poker", {"opponent": "random", "max_steps": 1}, 2, marks=pytest.mark.slow),
        *thorough(("pgx:2048", {}, 2), ("pgx:backgammon", {"opponent": "random"}, 2)),
    ],
)
def test_games_keep_the_rules_of_the_stream(env: str, options: dict[str, Any], envs: int) -> None:
    check_environment(lambda count: make(env, count, options), num_envs=envs, steps=60)


def test_both_sides_see_the_game_as_pgx_has_it() -> None:
    """Every step of two games against Pgx itself, played one move after the other."""
    env = make(TIC_TAC_TOE, 4)
    assert env.spec.agents == ("player_0", "player_1")
    game = pgx.make("tic_tac_toe")
    move, judge = jax.jit(game.step), jax.jit(game.init)
    shown, states, ended, over = env.reset(3), [None, None], [True, True], 0
    random = np.random.default_rng(0)
    for _ in range(40):
        actions = np.zeros(4, np.int32)
        for number in range(2):
            sides = slice(2 * number, 2 * number + 2)
            mask, board = shown.observation[ACTION_MASK][sides], shown.observation["observation"][sides]
            if ended[number]:
                assert shown.first[sides].all() and not board.any()
                mover = int(np.flatnonzero(mask.sum(1) == 9)[0])
                states[number] = judge(jax.random.key(0)).replace(current_player=jnp.int32(mover))
            state: Any = states[number]
            mover = int(state.current_player)
            # The stones of one side are the other's of the other side.
            np.testing.assert_array_equal(board[0], board[1][..., ::-1])
            if not state.terminated:
                np.testing.assert_array_equal(board[mover], state.observation)
                np.testing.assert_array_equal(mask[mover], state.legal_action_mask)
                np.testing.assert_array_equal(np.flatnonzero(mask[1 - mover]), [0])
                np.testing.assert_array_equal(shown.observation[TURN][sides], np.arange(2) == mover)
            assert shown.terminated[sides].tolist() == [bool(state.terminated)] * 2
            if not ended[number]:
                np.testing.assert_array_equal(shown.reward[sides], state.rewards)
            ended[number] = bool(state.terminated)
            over += ended[number]
            actions[2 * number + mover] = random.choice(np.flatnonzero(mask[mover]))
            # The action of a side that waits goes nowhere.
            actions[2 * number + 1 - mover] = 8
            if not ended[number]:
                states[number] = move(state, int(actions[2 * number + mover]))
        env.send(actions)
        shown = env.receive()
    assert over >= 6


def test_a_host_steps_the_same_games_as_a_program() -> None:
    env = make(TIC_TAC_TOE, 6)
    recording = record(env, 3, sample_actions(env.spec.action, 6, 40, 0))
    native = make_native(TIC_TAC_TOE)
    stage, first = begin(native, jnp.asarray(environment_seeds(3, 3), jnp.uint32))

    def step(stage: Any, action: Any) -> tuple[Any, TimeStep]:
        return advance(native, stage, action)

    _, rest = jax.jit(lambda stage, actions: jax.lax.scan(step, stage, actions))(
        stage, np.stack(recording.actions)
    )
    whole = jax.tree.map(lambda a, b: np.concatenate([a[None], b]), first, rest)
    seen = jax.tree.map(lambda *arrays: np.stack(arrays), *recording.steps)
    for ours, theirs in zip(jax.tree.leaves(whole), jax.tree.leaves(seen), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert seen.terminated.sum() > 6


def scores(opponent: str, policy: Any, *, games: int = 200, env: str = TIC_TAC_TOE, **options: Any) -> Any:
    """Returns the agent's scores in its first games, of a policy ``(observation, random) -> action``."""
    native = make_native(env, {"opponent": opponent, **options})
    count = 64
    stage, shown = begin(native, jnp.arange(count, dtype=jnp.uint32))
    step, random, found = jax.jit(partial(advance, native)), np.random.default_rng(0), []
    while len(found) < games:
        observations = jax.device_get(shown.observation)
        actions = [
            policy({name: leaf[i] for name, leaf in observations.items()}, random) for i in range(count)
        ]
        stage, shown = step(stage, jnp.asarray(actions, jnp.int32))
        found += np.asarray(shown.reward)[np.asarray(shown.terminated)].tolist()
    return np.asarray(found)


def at_random(shown: Any, random: Any) -> int:
    return int(random.choice(np.flatnonzero(shown[ACTION_MASK])))


@cache
def worth(mine: frozenset[int], theirs: frozenset[int]) -> int:
    """The worth of a position for the player to move, by plain search."""
    if any(line <= theirs for line in LINES):
        return -1
    free = set(range(9)) - mine - theirs
    return max((-worth(theirs, mine | {cell}) for cell in free), default=0)


LINES = [
    *({3 * row + column for column in range(3)} for row in range(3)),
    *({3 * row + column for row in range(3)} for column in range(3)),
    {0, 4, 8},
    {2, 4, 6},
]


def perfect(shown: Any, random: Any) -> int:
    del random
    planes = np.asarray(shown["observation"]).reshape(9, 2)
    mine, theirs = (frozenset(np.flatnonzero(planes[:, side]).tolist()) for side in (0, 1))
    allowed = np.flatnonzero(shown[ACTION_MASK]).tolist()
    if set(allowed) & (mine | theirs):
        return allowed[0]  # The game is over.
    return int(max(allowed, key=lambda cell: -worth(theirs, mine | {cell})))


def test_the_perfect_player_never_loses() -> None:
    by_chance = scores("perfect", at_random)
    assert by_chance.max() == 0 and by_chance.min() == -1
    assert by_chance.mean() < -0.6
    assert set(scores("perfect", perfect)) == {0}


def test_the_table_of_best_moves_is_that_of_a_plain_search() -> None:
    table, powers, checked = best_moves(), 3 ** np.arange(9), 0
    for code in np.flatnonzero(table.any(1)):
        cells = code // powers % 3
        mine, theirs = (frozenset(np.flatnonzero(cells == side).tolist()) for side in (1, 2))
        values = {cell: -worth(theirs, mine | {cell}) for cell in np.flatnonzero(cells == 0).tolist()}
        best = [cell for cell, value in values.items() if value == max(values.values())]
        assert np.flatnonzero(table[code]).tolist() == best, cells
        checked += 1
    assert checked == 4520, "all positions that can be reached and are not over"


@pytest.mark.thorough
@pytest.mark.slow
def test_an_opponent_that_looks_ahead_takes_a_win_and_prevents_one() -> None:
    """A player at random wins less often against it the farther it looks."""
    chance = scores("random", at_random).mean()
    one = scores("lookahead", at_random, depth=1).mean()
    two = scores("lookahead", at_random, depth=2).mean()
    assert abs(chance) < 0.2
    assert one < chance - 0.3
    assert two < one - 0.1


def test_lookahead_finds_the_only_moves() -> None:
    """Three in a row of connect four, by hand: it completes its own, and closes the other one's."""
    from seedbed.envs.on_device.games import Game, _lookahead

    game = Game(pgx.make("connect_four"), masked=True)
    move = jax.jit(_lookahead(game, 2))

    def after(*columns: int) -> Any:
        state = game.begin(jax.random.key(0))
        step = jax.jit(game.move)
        for column in columns:
            state = step(state, column, jax.random.key(0))
        return state

    for seed in range(5):
        key = jax.random.key(seed)
        assert int(move(after(0, 6, 0, 6, 0, 6), key)) == 0, "it wins rather than prevents"
        assert int(move(after(0, 6, 0, 5, 0), key)) == 0, "it prevents"


def test_a_reply_belongs_to_the_same_step() -> None:
    """Between two decisions of the agent there is one stone of each."""
    native = make_native(TIC_TAC_TOE, {"opponent": "random"})
    stage, shown = begin(native, jnp.arange(50, dtype=jnp.uint32))
    stones = np.asarray(shown.observation["observation"]).sum((1, 2))
    assert set(stones[:, 0]) == {0}
    assert set(stones[:, 1]) == {0, 1}, "the agent begins in some games, and not in others"
    mask = np.asarray(shown.observation[ACTION_MASK])
    _, later = jax.jit(partial(advance, native))(stage, jnp.asarray(mask.argmax(1), jnp.int32))
    more = np.asarray(later.observation["observation"]).sum((1, 2))
    np.testing.assert_array_equal(more - stones, np.ones((50, 2)))


def test_a_limit_truncates_a_game() -> None:
    env = make(TIC_TAC_TOE, 2, {"max_steps": 2})
    shown = env.reset(0)
    for _ in range(2):
        env.send(shown.observation[ACTION_MASK].argmax(1).astype(np.int32))
        shown = env.receive()
    assert shown.truncated.all() and not shown.terminated.any()


def test_the_board_is_drawn_and_not_the_mask() -> None:
    env = make(TIC_TAC_TOE, 2, render=True)
    env.reset(0)
    assert env.render().shape == (48, 48, 3)


@pytest.mark.parametrize(
    ("env", "options", "says"),
    [
        ("pgx:tictactoe", {}, "unknown game of pgx 'tictactoe': did you mean tic_tac_toe"),
        (TIC_TAC_TOE, {"opponent": "prefect"}, "did you mean perfect"),
        (TIC_TAC_TOE, {"oponent": "random"}, "did you mean opponent"),
        ("pgx:connect_four", {"opponent": "perfect"}, "knows tic_tac_toe alone"),
        ("pgx:chess", {"opponent": "lookahead"}, r"4672\^2 = 21,827,584 positions"),
        (
            TIC_TAC_TOE,
            {"opponent": "lookahead", "depth": 0},
            "depth is 0; it must be a whole number of at least 1",
        ),
        (
            TIC_TAC_TOE,
            {"opponent": "random", "depth": 3},
            "depth is of opponent=lookahead, and the opponent is random",
        ),
        (TIC_TAC_TOE, ["depth=2"], "depth is of opponent=lookahead, and the opponent is none"),
        (TIC_TAC_TOE, {"max_steps": -1}, "max_steps is -1"),
        ("pgx:2048", {"opponent": "random"}, "has one player"),
    ],
)
def test_refusals(env: str, options: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        make_native(env, options)


def test_rows_that_are_no_whole_number_of_games_are_refused() -> None:
    with pytest.raises(ConfigError, match="no whole number of environments"):
        make(TIC_TAC_TOE, 3)
    assert make(TIC_TAC_TOE, 3, rounded_up=True).num_envs == 4
