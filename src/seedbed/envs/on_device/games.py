"""Games of Pgx, ``pgx:NAME``: against an opponent that is part of the environment, or with every player an agent.

Without an opponent, each player is an agent and has a row, as in :mod:`seedbed.envs.many_agents`: at every step all of
them are shown the game from their side, and whether it is their turn; all but the one to move are allowed one action,
which does nothing. With an opponent the environment plays the other players, and a step leads from one decision of the
agent to its next one.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from seedbed.envs.on_device.interface import NativeEnvironment
from seedbed.envs.options import Options, arguments, taken_by, whole
from seedbed.errors import ConfigError, unknown_name
from seedbed.installation import extra_line
from seedbed.types import ACTION_MASK, ArraySpec, EnvSpec, Tree

PREFIX = "pgx:"
TURN = "turn"
"""Key of the leaf that says whether it is the agent's turn, which boards often do not show."""
_WITHOUT_A_MASK = "minatar-"
"""Beginning of the names of games in which every action is allowed at any time."""
_MOST_ENDS = 20_000
"""Most positions that an opponent may look at before a move."""
_CELLS = 9

Move = Callable[[Any, Any], Any]
"""``(state, key) -> action`` of the player to move."""


def make_game(env_id: str, options: Options) -> NativeEnvironment:
    """Makes a game of Pgx; for options see :class:`GameOptions`.

    Raises:
      ConfigError: there is no such game, Pgx is missing, or an option is wrong.
    """
    try:
        import pgx
    except ImportError as error:
        raise ConfigError(f"{env_id} needs pgx ({error}): {extra_line('pgx')}") from error
    name = env_id.removeprefix(PREFIX)
    if name not in pgx.available_envs():
        raise ConfigError(unknown_name("game of pgx", name, pgx.available_envs()))
    given = arguments(env_id, options, taken_by(GameOptions))
    asked = GameOptions(**given)
    if asked.opponent != "lookahead" and "depth" in given:
        raise ConfigError(
            f"{env_id}: depth is of opponent=lookahead, and the opponent is {asked.opponent}: leave one out"
        )
    limit = whole(env_id, "max_steps", asked.max_steps, 0) or None
    game = Game(pgx.make(name), masked=not name.startswith(_WITHOUT_A_MASK))
    if game.players == 1 or asked.opponent != "none":
        return _against(env_id, game, _opponent(env_id, game, asked), limit)
    return _of_all(env_id, game, limit)


@dataclass(frozen=True)
class GameOptions:
    """Options of a game.

    Attributes:
      opponent: ``none`` (every player is an agent), ``random`` (any allowed move), ``lookahead`` (the best move within
        ``depth`` moves, by minimax; a random one of several), or ``perfect`` (tic-tac-toe alone: never loses).
      depth: moves that ``lookahead`` looks ahead, its own one included.
      max_steps: steps after which a game is truncated; 0 for no limit.
    """

    opponent: str = "none"
    depth: int = 2
    max_steps: int = 0


class Game:
    """The functions of a game that are needed here, with raw keys.

    Args:
      game: the game as Pgx makes it.
      masked: whether an action may be forbidden.
    """

    def __init__(self, game: Any, *, masked: bool) -> None:
        self._game, self.masked = game, masked
        self.players = int(game.num_players)
        state = jax.eval_shape(game.init, _raw(jax.random.key(0)))
        self.actions = int(state.legal_action_mask.shape[0])
        seen = jax.eval_shape(self._seen, state, 0)
        dtype = "float32" if np.issubdtype(seen.dtype, np.floating) else str(seen.dtype)
        board = ArraySpec(seen.shape, dtype)
        mask = {"observation": board, ACTION_MASK: ArraySpec((self.actions,), "bool")}
        turn = {TURN: ArraySpec((), "bool")} if self.players > 1 else {}
        self.observation: Tree = {**mask, **turn} if masked else board

    def begin(self, key: Any) -> Any:
        """Returns the state at the beginning."""
        return self._game.init(_raw(key))

    def move(self, state: Any, action: Any, key: Any) -> Any:
        """Returns the state after a move of the player to move."""
        return self._game.step(state, action, _raw(key))

    def allowed(self, state: Any) -> Any:
        """Returns the actions that the player to move may take, bool ``[actions]``."""
        return state.legal_action_mask

    def over(self, state: Any) -> Any:
        """Returns whether the game has ended."""
        return state.terminated | state.truncated

    def shown(self, state: Any, player: Any) -> Tree:
        """Returns the observation of a player; one that waits may take action 0 alone."""
        board = self._seen(state, player)
        if not self.masked:
            return board
        turn, waits = state.current_player == player, jnp.arange(self.actions) == 0
        shown = {"observation": board, ACTION_MASK: jnp.where(turn, state.legal_action_mask, waits)}
        return {**shown, TURN: turn} if self.players > 1 else shown

    def _seen(self, state: Any, player: Any) -> Any:
        with warnings.catch_warnings():
            # It is to be replaced, and there is nothing yet to replace it with.
            warnings.filterwarnings("ignore", ".*player_id.*", DeprecationWarning)
            return self._game.observe(state, player)


class World(NamedTuple):
    """A game against an opponent.

    Attributes:
      state: state of the game.
      agent: int32, number of the player that is the agent.
    """

    state: Any
    agent: Any


def _raw(key: Any) -> Any:
    return jax.random.key_data(key)


def _of_all(env_id: str, game: Game, limit: int | None) -> NativeEnvironment:
    """Every player is an agent."""
    players = jnp.arange(game.players)
    names = tuple(f"player_{player}" for player in range(game.players))

    def shown(state: Any) -> Tree:
        return jax.vmap(lambda player: game.shown(state, player))(players)

    def reset(key: Any) -> tuple[Any, Tree]:
        state = game.begin(key)
        return state, shown(state)

    def step(state: Any, key: Any, action: Any) -> tuple[Any, Tree, Any, Any]:
        after = game.move(state, action[state.current_player], key)
        return after, shown(after), after.rewards, game.over(after)

    action = ArraySpec((), "int32", (game.actions,))
    spec = EnvSpec(env_id, game.observation, action, agents=names)
    return NativeEnvironment(spec, reset, step, time_limit=limit)


def _against(env_id: str, game: Game, opponent: Move, limit: int | None) -> NativeEnvironment:
    """One player is the agent, drawn anew for each game; the opponent plays all others."""

    def reply(state: Any, agent: Any, reward: Any, key: Any) -> tuple[Any, Any]:
        """Plays until the agent is to move; returns the state, and the agent's reward so far."""

        def waits(carry: tuple[Any, Any, Any]) -> Any:
            state, _, _ = carry
            return (state.current_player != agent) & ~game.over(state)

        def move(carry: tuple[Any, Any, Any]) -> tuple[Any, Any, Any]:
            state, reward, count = carry
            chosen, chance = jax.random.split(jax.random.fold_in(key, count))
            state = game.move(state, opponent(state, chosen), chance)
            return state, reward + state.rewards[agent], count + 1

        state, reward, _ = jax.lax.while_loop(waits, move, (state, reward, 0))
        return state, reward

    def reset(key: Any) -> tuple[World, Tree]:
        begins, side, replies = jax.random.split(key, 3)
        agent = jax.random.randint(side, (), 0, game.players, jnp.int32)
        state, _ = reply(game.begin(begins), agent, jnp.float32(0), replies)
        return World(state, agent), game.shown(state, agent)

    def step(world: World, key: Any, action: Any) -> tuple[World, Tree, Any, Any]:
        chance, replies = jax.random.split(key)
        state = game.move(world.state, action, chance)
        state, reward = reply(state, world.agent, state.rewards[world.agent], replies)
        return World(state, world.agent), game.shown(state, world.agent), reward, game.over(state)

    spec = EnvSpec(env_id, game.observation, ArraySpec((), "int32", (game.actions,)))
    return NativeEnvironment(spec, reset, step, time_limit=limit)


# Opponents.


def _opponent(env_id: str, game: Game, asked: GameOptions) -> Move:
    if game.players == 1 and asked.opponent == "none":
        return _random(game)  # which never has a turn
    if game.players == 1:
        raise ConfigError(f"{env_id} has one player: leave out opponent={asked.opponent}")
    if asked.opponent == "random":
        return _random(game)
    if asked.opponent == "lookahead":
        depth = whole(env_id, "depth", asked.depth, 1)
        if game.actions**depth > _MOST_ENDS:
            raise ConfigError(
                f"{env_id}: a look {depth} moves ahead has {game.actions}^{depth} = {game.actions**depth:,} positions "
                f"to judge before a move; at most {_MOST_ENDS:,} are, so give a smaller depth, or opponent=random"
            )
        return _lookahead(game, depth)
    if asked.opponent == "perfect":
        if env_id != f"{PREFIX}tic_tac_toe":
            raise ConfigError(f"{env_id}: opponent=perfect knows tic_tac_toe alone; take opponent=lookahead")
        return _perfect(game)
    raise ConfigError(
        unknown_name(f"opponent of {env_id}", asked.opponent, ("none", "random", "lookahead", "perfect"))
    )


def _one_of(allowed: Any, key: Any) -> Any:
    """Draws one of the actions that are True in ``allowed``, bool ``[actions]``."""
    return jax.random.categorical(key, jnp.where(allowed, 0.0, -jnp.inf)).astype(jnp.int32)


def _random(game: Game) -> Move:
    return lambda state, key: _one_of(game.allowed(state), key)


def _lookahead(game: Game, depth: int) -> Move:
    """Returns the move of minimax: rewards of the next ``depth`` moves, if everybody plays for the mover's or against.

    Chance, if there is any, falls in it as it would in the game.
    """

    def values(state: Any, mover: Any, key: Any, depth: int) -> Any:
        """Returns the mover's best rewards by the next action, float32 ``[actions]``; NaN where it is forbidden."""

        def value(action: Any) -> Any:
            after = game.move(state, action, key)
            reward = after.rewards[mover]
            if depth == 1:
                return reward
            later = values(after, mover, jax.random.fold_in(key, depth), depth - 1)
            best = jnp.where(after.current_player == mover, jnp.nanmax(later), jnp.nanmin(later))
            return reward + jnp.where(game.over(after), 0.0, best)

        found = jax.vmap(value)(jnp.arange(game.actions))
        return jnp.where(game.allowed(state), found, jnp.nan)

    def move(state: Any, key: Any) -> Any:
        chance, draw = jax.random.split(key)
        found = values(state, state.current_player, chance, depth)
        return _one_of(found >= jnp.nanmax(found), draw)

    return move


def _perfect(game: Game) -> Move:
    """Returns the move of tic-tac-toe's perfect player: a random one of those that keep what the position is worth."""
    powers = jnp.asarray(3 ** np.arange(_CELLS), jnp.int32)
    table = jnp.asarray(best_moves())

    def move(state: Any, key: Any) -> Any:
        planes = game.shown(state, state.current_player)
        mine, theirs = (planes["observation"][..., side].reshape(_CELLS) for side in (0, 1))
        return _one_of(table[jnp.dot(powers, mine + 2 * theirs)], key)

    return move


@cache
def best_moves() -> NDArray[np.bool_]:
    """Returns the best moves of tic-tac-toe, bool ``[3^9, 9]``, by ``sum_i 3^i c_i``.

    The cell ``c_i`` is 0 if it is free, 1 with a stone of the player to move, and 2 with one of the other player.
    Positions after the end, and those that cannot be reached, have no best moves.
    """
    lines = [line for line in combinations(range(_CELLS), 3) if _in_line(line)]
    table = np.zeros((3**_CELLS, _CELLS), np.bool_)
    known: dict[tuple[int, ...], int] = {}

    def worth(cells: tuple[int, ...]) -> int:
        """Returns 1, 0 or -1 for the player to move."""
        if cells not in known:
            known[cells] = _judge(cells)
        return known[cells]

    def _judge(cells: tuple[int, ...]) -> int:
        if any(all(cells[cell] == 2 for cell in line) for line in lines):
            return -1
        free = [cell for cell in range(_CELLS) if cells[cell] == 0]
        if not free:
            return 0
        values = {cell: -worth(_turned(cells, cell)) for cell in free}
        best = max(values.values())
        code = sum(3**index * value for index, value in enumerate(cells))
        table[code, [cell for cell in free if values[cell] == best]] = True
        return best

    worth((0,) * _CELLS)
    return table


def _turned(cells: tuple[int, ...], cell: int) -> tuple[int, ...]:
    """Returns the position after a move, as the other player sees it."""
    swapped = [(0, 2, 1)[value] for value in cells]
    swapped[cell] = 2
    return tuple(swapped)


def _in_line(cells: Sequence[int]) -> bool:
    rows, columns = zip(*(divmod(cell, 3) for cell in cells), strict=True)
    diagonal = {row - column for row, column in zip(rows, columns, strict=True)} == {0}
    other = {row + column for row, column in zip(rows, columns, strict=True)} == {2}
    return len(set(rows)) == 1 or len(set(columns)) == 1 or diagonal or other
