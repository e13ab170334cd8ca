"""Self-play of two-player games: a pool of frozen versions of the policy, their ratings, and the choice among them.

At the beginning of each game it is drawn whether the policy plays both sides, or one side against a version from the
pool (OpenAI et al. 2019, "Dota 2 with Large Scale Deep Reinforcement Learning", section 3.4: 80% and 20%). Steps of
frozen versions are taken out of unrolls: there, the side that they play is absent.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import astuple, dataclass, field, fields, replace
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from seedbed.errors import SeedbedError
from seedbed.seeding import generator
from seedbed.types import TimeStep, Tree, Unroll, Weights

Rule = Literal["uniform", "recent", "pfsp"]
"""The rules by which a version is drawn from the pool."""

START_RATING = 1000.0
RATING_STEP = 4.0
"""Points that change hands where a game that was certain to be won is lost; small, since games are many."""
SCORE_STEP = 0.05
"""Share of the newest game in the mean score against a version."""
SIDES = 2
"""Agents of a game, which are as many rows of a batch."""
FAMILY = "elo/"
"""Beginning of the names of the ratings of frozen versions among the metrics."""
ITSELF = -1
"""In place of a version: the policy itself plays."""


@dataclass(frozen=True)
class Opponent:
    """A frozen version and its record.

    Attributes:
      version: version of the weights.
      rating: Elo rating.
      score: mean score of the policy against it in the newest games: 1 a win, 1/2 a draw, 0 a defeat.
      games: number of games against it.
    """

    version: int
    rating: float = START_RATING
    score: float = 0.5
    games: int = 0


COLUMNS = len(fields(Opponent))
"""Numbers in a row of a table of versions."""


def expected_score(rating: float, other: float) -> float:
    """Returns the expected score of a player against another one (Elo 1978): ``1 / (1 + 10^((R' - R) / 400))``."""
    return 1.0 / (1.0 + 10.0 ** ((other - rating) / 400.0))


def after_game(rating: float, opponent: Opponent, score: float) -> tuple[float, Opponent]:
    """Returns the policy's rating and the opponent after a game, whose points the two exchange.

    ``R <- R + K (S - E)``, with K = :data:`RATING_STEP`, S the policy's score and E the expected one.
    """
    moved = RATING_STEP * (score - expected_score(rating, opponent.rating))
    mean = opponent.score + SCORE_STEP * (score - opponent.score)
    return rating + moved, replace(
        opponent, rating=opponent.rating - moved, score=mean, games=opponent.games + 1
    )


def chances(pool: Sequence[Opponent], rule: Rule) -> NDArray[np.float64]:
    """Returns the probability ``[n]`` of each of the versions, the oldest first.

    ``uniform``: all alike. ``recent``: in proportion to 1, 2, …, n. ``pfsp``: in proportion to ``(1 - p)^2`` of the
    policy's score p against it (prioritized fictitious self-play; Vinyals et al. 2019, "Grandmaster level in StarCraft
    II", methods, ``f_hard``), so that it meets those that beat it.
    """
    if rule == "recent":
        weights = np.arange(1.0, len(pool) + 1)
    elif rule == "pfsp":
        # A little more than nothing, so that one that is always beaten is not forgotten.
        weights = np.array([max(1.0 - each.score, 0.01) ** 2 for each in pool])
    else:
        weights = np.ones(len(pool))
    return np.asarray(weights / weights.sum())


def draw(
    settings: PoolSettings, pool: Sequence[Opponent], slot: int, epoch: int, count: int
) -> tuple[int, int]:
    """Draws who plays a game: ``(version, side)`` of an opponent, or ``(ITSELF, 0)``.

    Args:
      settings: settings of the pool.
      pool: versions, the oldest first.
      slot: number of the first of the game's rows.
      epoch: number of actors that had the row before.
      count: number of decisions there so far.
    """
    random = generator(settings.seed, f"opponents/slot {slot}/epoch {epoch}", count)
    if not pool or random.random() >= settings.share:
        return ITSELF, 0
    index = int(random.choice(len(pool), p=chances(pool, settings.rule)))
    return pool[index].version, int(random.integers(SIDES))


def marked(players: NDArray[np.int64], version: int) -> NDArray[np.int32]:
    """Returns the versions ``[rows]`` that an open unroll keeps of decisions; see :func:`without_opponents`."""
    return np.where(players == ITSELF, version, -1 - version).astype(np.int32)


def without_opponents(unroll: Unroll) -> Unroll:
    """Returns an unroll ``[T+1, B, ...]`` in which rows are absent at the steps that an opponent decided.

    Opponents' decisions have the versions ``-1 - v``, v that of the policy at that time, which they get back.
    """
    theirs = np.asarray(unroll.version) < 0
    if not theirs.any():
        return unroll
    step = unroll.timestep
    # The last step is not decided yet: it is theirs if their game goes on.
    absent = np.concatenate([theirs, theirs[-1:] & ~step.first[-1:]])
    shown = step._replace(
        reward=np.where(absent, np.float32(0), step.reward),
        terminated=step.terminated | absent,
        truncated=step.truncated & ~absent,
        first=step.first | absent,
    )
    # A step after one of theirs begins an episode, which the first step of the next game does anyway.
    return unroll._replace(timestep=shown, version=np.where(theirs, -1 - unroll.version, unroll.version))


@dataclass(frozen=True)
class PoolSettings:
    """The settings of a pool.

    Attributes:
      size: most frozen versions; the oldest one gives way.
      every: updates between two of them.
      share: share of games against a version from the pool.
      rule: rule by which it is drawn.
      seed: root of the draws.
    """

    size: int
    every: int
    share: float
    rule: Rule
    seed: int


class Opponents(Protocol):
    """A pool as a thread that acts and its games see it.

    Attributes:
      steps: number of steps that frozen versions have decided.
    """

    steps: int

    def meet(self, weights: Weights, playing: Callable[[], Collection[int]]) -> None:
        """Takes the policy's weights for the next batch: if they are new, the table may change.

        Args:
          weights: weights with which the policy acts from now on.
          playing: function that returns the versions that play a game.
        """

    def draw(self, slot: int, epoch: int, count: int) -> tuple[int, int]:
        """Draws who plays a game; see :func:`draw`."""

    def played(self, version: int, score: float) -> None:
        """Takes the policy's score in a game against a version."""

    def params(self, version: int) -> Tree | None:
        """Returns the parameters of a version; None if it is gone."""


@dataclass
class Pool:
    """The frozen versions, and the policy's rating; changed by one thread, read by any.

    The table changes only with the policy's version: in lockstep all games of a round are over by then, and neither
    their order nor the machine's timing has an influence.

    Attributes:
      settings: settings.
      rating: rating of the policy.
      opponents: versions, the oldest first.
      steps: number of steps that they have decided.
    """

    settings: PoolSettings
    rating: float = START_RATING
    opponents: list[Opponent] = field(default_factory=list)
    steps: int = 0
    _version: int = -1
    _params: dict[int, Tree] = field(default_factory=dict, repr=False)
    _scores: dict[int, list[float]] = field(default_factory=dict, repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    def meet(self, weights: Weights, playing: Callable[[], Collection[int]]) -> None:
        """Takes weights that act from now on: if they are new, settles the games before, and freezes them if due.

        See :class:`Opponents`.
        """
        if weights.version == self._version:
            return
        with self._lock:
            self._version = weights.version
            self._settle()
            if not self.opponents or weights.version - self.opponents[-1].version >= self.settings.every:
                self._params[weights.version] = weights.params
                self.opponents.append(Opponent(weights.version, self.rating))
                self.opponents = self.opponents[-self.settings.size :]
                wanted = {each.version for each in self.opponents} | {*playing()}
                self._params = {v: params for v, params in self._params.items() if v in wanted}

    def _settle(self) -> None:
        """Counts the games since the last time, each with their mean score."""
        for index, opponent in enumerate(self.opponents):
            scores = self._scores.pop(opponent.version, [])
            for _ in scores:
                mean = sum(scores) / len(scores)
                self.rating, self.opponents[index] = after_game(self.rating, self.opponents[index], mean)
        self._scores.clear()

    def draw(self, slot: int, epoch: int, count: int) -> tuple[int, int]:
        """See :class:`Opponents`."""
        return draw(self.settings, self.opponents, slot, epoch, count)

    def played(self, version: int, score: float) -> None:
        """See :class:`Opponents`."""
        with self._lock:  # a checkpoint may be reading them
            self._scores.setdefault(version, []).append(score)

    def params(self, version: int) -> Tree | None:
        """See :class:`Opponents`."""
        return self._params.get(version)

    def table(self) -> NDArray[np.float64]:
        """Returns the versions and their records, float64 ``[size, 4]``; see :func:`opponents_in`."""
        rows = [astuple(each) for each in self.opponents]
        return np.array(rows + [_NO_ROW] * (self.settings.size - len(rows)), np.float64)

    def meters(self) -> dict[str, float]:
        """Returns the table as metrics."""
        with self._lock:
            scores = [each.score for each in self.opponents if each.games]
            return {
                "elo": self.rating,
                "opponents": len(self.opponents),
                "steps_opponents": self.steps,
                **({"opponent_score": float(np.mean(scores))} if scores else {}),
                **{f"{FAMILY}{each.version}": each.rating for each in self.opponents},
            }

    # Checkpoints.

    def kept(self) -> tuple[dict[str, Tree], dict[str, Any]]:
        """Returns the parameters by the names of their trees in a checkpoint, and the rest as JSON values."""
        with self._lock:
            return {_tree(version): params for version, params in self._params.items()}, {
                "rating": self.rating,
                "steps": self.steps,
                "version": self._version,
                "table": [[*astuple(each)] for each in self.opponents],
                "scores": [[version, [*scores]] for version, scores in self._scores.items()],
                "versions": [*self._params],
            }

    def restore(
        self, kept: Mapping[str, Any], load: Callable[[str], Tree], say: Callable[[str], object]
    ) -> None:
        """Restores a result of :meth:`kept`; a version that cannot be loaded is left out, which is said.

        Args:
          kept: all but the parameters.
          load: function that returns parameters by the name of their tree; raises
            :class:`~seedbed.errors.SeedbedError` if it cannot.
          say: function that takes a line.
        """
        for version in kept["versions"]:
            try:
                self._params[int(version)] = load(_tree(int(version)))
            except SeedbedError as error:
                say(f"version {version} is no opponent any more, since it cannot be loaded: {error}")
        self.rating, self.steps = float(kept["rating"]), int(kept["steps"])
        self._version = int(kept["version"])
        self._scores = {int(version): [*map(float, scores)] for version, scores in kept["scores"]}
        table = map(_opponent, kept["table"])
        self.opponents = [each for each in table if each.version in self._params][-self.settings.size :]


_NO_ROW = (ITSELF, 0.0, 0.0, 0)
"""Row of a table that has no version yet."""


def _opponent(row: Sequence[float]) -> Opponent:
    version, rating, score, games = row
    return Opponent(int(version), float(rating), float(score), int(games))


def opponents_in(table: NDArray[np.float64]) -> list[Opponent]:
    """Returns the versions in a :meth:`Pool.table`, the oldest first."""
    return [_opponent(row) for row in table.tolist() if row[0] != ITSELF]


@dataclass
class PoolCopy:
    """A copy of a pool that is in another process: draws as the pool does, and leaves the games to it.

    The table comes with the policy's weights, and changes where the policy does. Weights whose table names versions
    that are not here wait for these. Used by one thread.

    Attributes:
      settings: settings of the pool.
      opponents: versions, the oldest first.
      steps: number of steps that they have decided here.
    """

    settings: PoolSettings
    opponents: list[Opponent] = field(default_factory=list)
    steps: int = 0
    _newest: int = -1
    _coming: Weights | None = None
    _tables: dict[int, list[Opponent]] = field(default_factory=dict)
    _params: dict[int, Tree] = field(default_factory=dict, repr=False)

    def take(self, weights: Weights, table: NDArray[np.float64]) -> Weights | None:
        """Takes weights, the policy's or those of a version that was :meth:`missing`.

        Args:
          weights: the weights.
          table: a :meth:`Pool.table`, of the time at which they were sent.

        Returns:
          The policy's weights that have all opponents of their table from now on; None if there are no such ones.
        """
        if weights.version in self._all_missing():
            self._params[weights.version] = weights.params
        elif weights.version >= self._newest:  # older ones are late
            self._newest, self._coming = weights.version, weights
            self._tables[weights.version] = opponents_in(table)
            if weights.version in self._all_missing():
                self._params[weights.version] = weights.params
        if self._coming is None or self._all_missing():
            return None
        complete, self._coming = self._coming, None
        return complete

    def missing(self) -> int | None:
        """Returns the newest version that the policy's weights wait for; None if they wait for none."""
        return max(self._all_missing(), default=None)

    def _all_missing(self) -> set[int]:
        if self._coming is None:
            return set()
        return {each.version for each in self._tables[self._coming.version]} - self._params.keys()

    def meet(self, weights: Weights, playing: Callable[[], Collection[int]]) -> None:
        """Takes up the table of these weights, and forgets versions that neither play nor will; see :class:`Opponents`.

        Weights without a table of their own change nothing.
        """
        if (table := self._tables.pop(weights.version, None)) is None:
            return
        self.opponents = table
        self._tables = {version: one for version, one in self._tables.items() if version > weights.version}
        named = {each.version for one in (table, *self._tables.values()) for each in one}
        wanted = named | {*playing()}
        self._params = {version: params for version, params in self._params.items() if version in wanted}

    def draw(self, slot: int, epoch: int, count: int) -> tuple[int, int]:
        """See :class:`Opponents`."""
        return draw(self.settings, self.opponents, slot, epoch, count)

    def played(self, version: int, score: float) -> None:
        """Does nothing: the pool counts games by their unrolls."""

    def params(self, version: int) -> Tree | None:
        """See :class:`Opponents`."""
        return self._params.get(version)


_TREE = "opponent_"


def _tree(version: int) -> str:
    return f"{_TREE}{version}"


def frozen_trees(files: Collection[str]) -> dict[int, str]:
    """Returns the names of the trees of frozen versions among the files of a checkpoint, by version, oldest first."""
    trees = [name.partition(".")[0] for name in files if name.startswith(_TREE)]
    found = {int(tree.removeprefix(_TREE)): tree for tree in trees if tree.removeprefix(_TREE).isdecimal()}
    return dict(sorted(found.items()))


class Games:
    """The games of a lane: who plays its rows, which are two for each environment.

    Args:
      pool: pool of the frozen versions.
      slots: number of each row among the rows of all hosts.
      epoch: number of actors that had the rows before.
      records: whether it records who decides each step; see :meth:`recorded`.

    Attributes:
      players: int64 ``[rows]``, version that plays each row; :data:`ITSELF` for the policy.
    """

    def __init__(self, pool: Opponents, slots: Sequence[int], epoch: int, *, records: bool = False) -> None:
        self._pool, self._slots, self._epoch = pool, slots, epoch
        self._recorded: list[NDArray[np.int32]] | None = [] if records else None
        self.players: NDArray[np.int64] = np.full(len(slots), ITSELF, np.int64)
        self._ends = np.zeros(len(slots))  # return of each row that has ended in the game that goes on
        self._between = np.full(len(slots) // SIDES, True)  # no game goes on in these environments

    def state(self) -> dict[str, list[Any]]:
        """Returns the games that go on as JSON values, for an exact resumption."""
        return {
            "players": self.players.tolist(),
            "ends": self._ends.tolist(),
            "between": self._between.tolist(),
        }

    def restore(self, kept: Mapping[str, list[Any]]) -> None:
        """Goes on with the games of :meth:`state`; earlier versions kept the players alone."""
        self.players[:] = kept["players"]
        self._ends[:] = kept.get("ends", 0.0)
        self._between[:] = kept.get("between", False)

    def step(self, step: TimeStep, returns: NDArray[np.float64], count: int) -> None:
        """Takes a step ``[rows]`` before it is decided: draws for games that begin; see :meth:`follow`.

        A game begins with the first agent that comes after the one before is over; the other may come later.

        Args:
          step: the step.
          returns: float64 ``[rows]``, rewards of each row's episode so far.
          count: number of decisions so far.
        """
        begins, players = step.first & ~step.absent, self.players.copy()
        for game, row in enumerate(range(0, len(players), SIDES)):
            sides = slice(row, row + SIDES)
            if begins[sides].all() or (self._between[game] and begins[sides].any()):
                self._between[game] = False
                players[sides] = ITSELF
                version, side = self._pool.draw(int(self._slots[row]), self._epoch, count)
                players[row + side] = version
        self.follow(step, returns, players)
        if self._recorded is not None:
            self._recorded.append(players.astype(np.int32))

    def recorded(self) -> NDArray[np.int32]:
        """Returns the players of the steps since the last call, int32 ``[T, rows]``; only where they are recorded."""
        assert self._recorded is not None
        recorded, self._recorded = self._recorded, []
        return np.stack(recorded)

    def follow(self, step: TimeStep, returns: NDArray[np.float64], players: NDArray[np.integer[Any]]) -> None:
        """Counts the games that are over with a step ``[rows]``, and takes up the players that decide it.

        A game is over when neither agent is left in it; either may end before the other. The opponents' decisions are
        added to their steps, but for those that only reset.

        Args:
          step: the step.
          returns: float64 ``[rows]``, rewards of each row's episode so far.
          players: int ``[rows]``, version that plays each row from this step on; see :attr:`players`.
        """
        gone = step.terminated | step.truncated
        ended = gone & ~step.absent
        self._ends = np.where(ended, returns, self._ends)
        for game, row in enumerate(range(0, len(self.players), SIDES)):
            sides = slice(row, row + SIDES)
            if not (gone[sides].all() and ended[sides].any()):
                continue
            theirs = np.flatnonzero(self.players[sides] != ITSELF)
            if theirs.size:
                other = row + int(theirs[0])
                won = float(np.sign(self._ends[_other_side(other)] - self._ends[other]))
                self._pool.played(int(self.players[other]), 0.5 + 0.5 * won)
            self._ends[sides] = 0.0
            self._between[game] = True
        self.players[:] = players
        self._pool.steps += int(np.count_nonzero((self.players != ITSELF) & ~ended & ~step.absent))

    def counts(self, row: int) -> bool:
        """Returns whether the row's episode counts: the policy's own, against another version."""
        return bool(self.players[row] == ITSELF and self.players[_other_side(row)] != ITSELF)


def _other_side(row: int) -> int:
    return row ^ 1
