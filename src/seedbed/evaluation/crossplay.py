"""Cross-play: every policy of some runs plays every other one, in an environment of two agents.

The players are the frozen versions of the pools of opponents (:mod:`seedbed.acting.opponents`) and the final policies.
Each pair plays the same number of games, half of them on either side. Of the scores come Elo ratings, which are one
number a player and so cannot show a cycle, and the number of cyclic triples, which shows how far from a ladder the
table is.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from seedbed.acting.opponents import SIDES, START_RATING, frozen_trees
from seedbed.acting.unrolls import step_arrays, timestep_of
from seedbed.config.settings import RunConfig
from seedbed.envs.make import Guarded, make
from seedbed.envs.options import split
from seedbed.envs.policies import OWN, SHARED, option
from seedbed.errors import CheckpointError, ConfigError, SeedbedError, listed
from seedbed.evaluation.player import MAX_STEPS, Lines, Say, nobody
from seedbed.evaluation.policy import Policy
from seedbed.launch.build import build_spec
from seedbed.launch.folder import RunFolder
from seedbed.launch.listing import run_folders
from seedbed.launch.surroundings import held
from seedbed.learning.checkpoint import Checkpoint
from seedbed.seeding import integer, key
from seedbed.types import ArraySpec, EnvSpec, TimeStep, Tree, leaves

Table = NDArray[np.float64]

_MOST_ENVS, _LEAST_ENVS = 20, 10
_ELO = 400.0 / np.log(10.0)
"""Points of Elo's scale in one unit of the logistic function."""
_PRIOR_GAMES = 1.0
_NORMAL_95 = 1.96


@dataclass(frozen=True)
class CrossPlay:
    """The table of a cross-play of n players.

    Attributes:
      players: names, the oldest version of each run first.
      scores: float64 ``[n, n]``, mean score of the row's player against the column's: 1 a win, 1/2 a draw, 0 a defeat;
        NaN for a player against itself.
      ratings: float64 ``[n]``, Elo ratings, of which the mean is 1000; see :func:`ratings`.
      mean_scores: float64 ``[n]``, mean score against all others.
      cyclic, triples: number of cyclic triples and of all; see :func:`cyclic_triples`.
      margin: distance from 1/2 beyond which a score is a victory; see :func:`noise`.
      games: number of games of each pair.
      first: mean score of the environment's first agent over all games.
      env: environment.
      agents: names of its two agents.
      cut: games that had not ended after ``max_steps`` steps, which count by their returns up to there.
      max_steps: the most steps of a game.
      notes: lines for people: versions that are left out.
    """

    players: tuple[str, ...]
    scores: Table
    ratings: Table
    mean_scores: Table
    cyclic: int
    triples: int
    margin: float
    games: int
    first: float
    env: str
    agents: tuple[str, ...]
    cut: int
    max_steps: int
    notes: tuple[str, ...] = ()


# -- the arithmetic ----------------------------------------------------------------------------------------


def ratings(scores: Table, games: int) -> Table:
    """Returns the Elo ratings ``[n]`` under which the scores are most likely, shifted to a mean of 1000.

    In the model of Bradley and Terry (1952), player i scores ``1 / (1 + 10^((R_j - R_i) / 400))`` against player j; a
    draw is half a win. The prior is one drawn game of each player against an average one, so that a player that has
    never lost has a finite rating.

    Args:
      scores: mean scores ``[n, n]``; the diagonal is not read.
      games: number of games of each pair.
    """
    from scipy.optimize import minimize  # here: it takes as long to import as JAX

    count = len(scores)
    others = ~np.eye(count, dtype=bool)
    won = np.where(others, scores, 0.0)

    def surprise(strength: Table) -> float:
        """The negative logarithm of the likelihood and the prior; ``log(1 + e^-x)`` is a victory's surprise."""
        losses = np.logaddexp(0.0, -(strength[:, None] - strength[None, :]))
        average = np.logaddexp(0.0, -strength) + np.logaddexp(0.0, strength)
        return float(games * (won * losses).sum() + _PRIOR_GAMES / 2 * average.sum())

    def gradient(strength: Table) -> Table:
        expected = np.where(others, _logistic(strength[:, None] - strength[None, :]), 0.0)
        return np.asarray(
            games * (expected - won).sum(axis=1) + _PRIOR_GAMES * (_logistic(strength) - 0.5), np.float64
        )

    def curvature(strength: Table) -> Table:
        expected = _logistic(strength[:, None] - strength[None, :])
        pairs = games * np.where(others, expected * (1 - expected), 0.0)
        prior = _PRIOR_GAMES * _logistic(strength) * (1 - _logistic(strength))
        return np.asarray(np.diag(pairs.sum(axis=1) + prior) - pairs, np.float64)

    found = minimize(
        surprise, np.zeros(count), jac=gradient, hess=curvature, method="trust-exact", options={"gtol": 1e-9}
    )
    strength = np.asarray(found.x, np.float64)
    return np.asarray(START_RATING + _ELO * (strength - strength.mean()), np.float64)


def _logistic(x: Table) -> Table:
    return np.asarray(0.5 + 0.5 * np.tanh(x / 2), np.float64)


def mean_scores(scores: Table) -> Table:
    """Returns the mean score ``[n]`` of each player against all others; the diagonal is not read."""
    others = ~np.eye(len(scores), dtype=bool)
    return np.asarray(np.where(others, scores, 0.0).sum(axis=1) / (len(scores) - 1), np.float64)


def noise(games: int) -> float:
    """Returns half the width of the 95% interval of a score of 1/2 after so many games, none of them drawn."""
    return float(_NORMAL_95 * np.sqrt(0.25 / games))


def cyclic_triples(scores: Table, margin: float) -> tuple[int, int]:
    """Counts the triples in which A beats B, B beats C and C beats A, and all triples.

    Args:
      scores: mean scores ``[n, n]``; the diagonal is not read.
      margin: distance from 1/2 beyond which a score is a victory.
    """
    count = len(scores)
    beats = (np.where(np.eye(count, dtype=bool), 0.0, scores) > 0.5 + margin).astype(np.int64)
    # Each cycle of three is a closed path of three steps from each of its players.
    return int(np.trace(beats @ beats @ beats)) // 3, count * (count - 1) * (count - 2) // 6


# -- the players -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Run:
    """A run whose policies play."""

    name: str
    config: RunConfig
    spec: EnvSpec
    checkpoint: Checkpoint


@dataclass(frozen=True)
class _Entrant:
    """One player.

    Attributes:
      name: name in the table.
      params: parameters.
      decide: ``(params, key, step, arrays of a step, state) -> (actions, state)``, compiled; one for all of a run.
      begin: function that makes the state of so many rows before their first step.
    """

    name: str
    params: Tree
    decide: Callable[..., tuple[Any, Tree]]
    begin: Callable[[int], Tree]


def _read(folder: RunFolder, name: str, trust: Collection[str] | None) -> _Run:
    config = folder.config(trust)
    try:
        checkpoint = folder.newest()
    except CheckpointError as error:
        raise ConfigError(f"{folder.given} has no policy to play: {error}") from error
    return _Run(name, config, folder.spec() or build_spec(config), checkpoint)


def _names(folders: Sequence[RunFolder]) -> list[str]:
    """Short names of the runs: of their folders, or the whole paths where two folders have the same name."""
    short = [folder.path.name for folder in folders]
    return short if len({*short}) == len(short) else [str(folder.given) for folder in folders]


def _entrants(run: _Run, *, alone: bool, final: bool, greedy: bool, note: Say) -> Iterator[_Entrant]:
    """Yields the frozen versions of a run, unless the final policy alone is wanted, and the final policy."""
    policy = Policy(run.config, run.spec, run.checkpoint, greedy=greedy)
    decide, begin = _compiled(policy), policy.agent.initial_state
    before = "" if alone else f"{run.name} "
    frozen = {} if final else frozen_trees(run.checkpoint.files)
    for version, tree in frozen.items():
        if version == policy.version:
            continue  # the final policy itself
        try:
            params = jax.device_put(run.checkpoint.tree(tree, policy.params))
        except SeedbedError as error:
            note(f"left out: version {version} of {run.name}, which cannot be loaded: {error}")
            continue
        yield _Entrant(f"{before}{version:,}", params, decide, begin)
    yield _Entrant(f"{before}final {policy.version:,}", jax.device_put(policy.params), decide, begin)


def _compiled(policy: Policy) -> Callable[..., tuple[Any, Tree]]:
    """Compiles a policy's decisions with the parameters as an argument: once for all versions of a run."""
    agent, spec = policy.decider, policy.spec

    @jax.jit
    def decide(params: Tree, root: Any, step: Any, arrays: list[Any], state: Tree) -> tuple[Any, Tree]:
        keys = jax.random.split(jax.random.fold_in(root, step), arrays[-1].shape[0])
        output, state = agent.act(params, keys, timestep_of(spec, arrays), state)
        return output.action, state

    return decide


# -- the environment ---------------------------------------------------------------------------------------


def _environment(runs: Sequence[_Run], env: str, options: Sequence[str], rows: int) -> Guarded:
    """Makes the environment in which all play: of that id, or that of the first run that has two agents."""
    own = any(run.config.policies != SHARED for run in runs)
    values: dict[str, Any] = split((option(OWN),)) if own else {}
    if not env:
        run = next((run for run in runs if run.spec.rows == SIDES), None)
        if run is None:
            told = listed([f"{run.spec.id} of {run.name} has {run.spec.rows}" for run in runs])
            raise ConfigError(f"games need an environment of two agents, and {told}: give one by --env")
        env, values = run.config.env, split(run.config.making)
    values |= split(options)
    # Whole games are played, also by an agent that was trained on single lives.
    values.pop("episodic_life", None)
    environment = make(env, rows, values, rounded_up=True)
    try:
        if environment.spec.rows != SIDES:
            raise ConfigError(
                f"games need an environment of two agents, and {env} has {environment.spec.rows}: give one by --env"
            )
        for run in runs:
            _require_alike(run, environment.spec)
    except SeedbedError:
        environment.close()
        raise
    return environment


def _require_alike(run: _Run, spec: EnvSpec) -> None:
    """Raises :class:`ConfigError` if a run's policy sees or does other things than the environment has."""
    ours, theirs = _parts(run.spec), _parts(spec)
    differ = [
        f"{name} is {_looks(ours.get(name))}, and there {_looks(theirs.get(name))}"
        for name in dict.fromkeys([*ours, *theirs])
        if _looks(ours.get(name)) != _looks(theirs.get(name))
    ]
    if differ:
        raise ConfigError(
            f"{run.name} cannot play in {spec.id}, since it was trained in {run.spec.id}: {'; '.join(differ)}"
        )


def _parts(spec: EnvSpec) -> dict[str, ArraySpec]:
    return {
        **{f"observation {path}".strip(): leaf for path, leaf in leaves(spec.observation)},
        "action": spec.action,
    }


def _looks(spec: ArraySpec | None) -> str:
    """Describes all that two arrays have to have in common."""
    if spec is None:
        return "none"
    if spec.num_values:
        return f"{spec.dtype}{list(spec.shape)} of {' × '.join(map(str, spec.num_values))} values"
    low, high = spec.bounds
    within = [_number(bound) for bound in (low, high)]
    return f"{spec.dtype}{list(spec.shape)} from {within[0]} to {within[1]}"


def _number(bound: Any) -> str:
    values = np.unique(bound).tolist()
    return f"{values[0]:g}" if len(values) == 1 else f"{np.asarray(bound).tolist()}"


# -- the games ---------------------------------------------------------------------------------------------


class Tally:
    """The results of games of two: as many of each environment, so that short games are not favoured.

    Args:
      envs: number of environments, each with two rows of a batch.
      quota: number of games of each.
      max_steps: steps after which a game is cut, and counts by its returns up to there.

    Attributes:
      cut: number of cut games.
    """

    def __init__(self, envs: int, quota: int, max_steps: int) -> None:
        self._won: list[list[float]] = [[] for _ in range(envs)]
        self._quota, self._max_steps = quota, max_steps
        self.cut = 0
        self.begin()

    @property
    def scores(self) -> Table:
        """Scores of the first agent, ``[envs, quota]``, once they are complete."""
        return np.array(self._won, np.float64)

    @property
    def complete(self) -> bool:
        """True if no environment owes a game."""
        return all(len(won) >= self._quota for won in self._won)

    def begin(self) -> None:
        """Begins anew in all environments: only a reset of all ends a game that was cut."""
        envs = len(self._won)
        self._returns = np.zeros((envs, SIDES))
        self._lengths = np.zeros(envs, np.int64)
        self._begins = np.ones(envs, np.bool_)
        self._plays = np.array([len(won) < self._quota for won in self._won])

    def add(self, step: TimeStep) -> bool:
        """Takes a step ``[2 * envs]``; returns whether a game of the quota goes on or is to begin.

        A game is over when neither agent is left in it; either may end before the other.
        """
        gone = (np.asarray(step.terminated) | np.asarray(step.truncated)).reshape(-1, SIDES)
        reward = np.asarray(step.reward, np.float64).reshape(-1, SIDES)
        begins = self._begins
        self._returns = np.where(begins[:, None], 0.0, self._returns + reward)
        self._lengths = np.where(begins, 0, self._lengths + 1)
        self._begins = gone.all(axis=1)
        over = self._begins & ~begins
        late = ~self._begins & (self._lengths >= self._max_steps)
        for env in np.flatnonzero(self._plays & (over | late)).tolist():
            self._won[env].append(0.5 + 0.5 * float(np.sign(self._returns[env, 0] - self._returns[env, 1])))
            self._plays[env] = len(self._won[env]) < self._quota and not late[env]
            self.cut += int(late[env])
        return bool(self._plays.any())


def _play(pair: Sequence[_Entrant], environment: Guarded, tally: Tally, seed: int) -> Iterator[int]:
    """Plays the games of a pair: the first player is the first agent in the first half of the environments.

    Yields how many steps it has taken since all games began.
    """
    envs = environment.num_envs // SIDES
    side = (np.arange(envs) >= envs // 2).astype(np.int64)
    sides = [SIDES * np.arange(envs) + side, SIDES * np.arange(envs) + 1 - side]
    role = f"crossplay/{'/'.join(each.name for each in pair)}"
    for begun in itertools.takewhile(lambda _: not tally.complete, itertools.count()):
        roots = jax.random.split(key(seed, role, begun), SIDES)
        states = [each.begin(envs) for each in pair]
        step = environment.reset(integer(seed, role, begun, bits=30))
        tally.begin()
        count = 0
        while tally.add(step):
            arrays = step_arrays(step)
            actions = np.zeros(
                (environment.num_envs, *environment.spec.action.shape), environment.spec.action.dtype
            )
            for index, (each, rows) in enumerate(zip(pair, sides, strict=True)):
                theirs = [array[rows] for array in arrays]
                decided, states[index] = each.decide(each.params, roots[index], count, theirs, states[index])
                actions[rows] = np.asarray(decided)
            environment.send(actions)
            step = environment.receive()
            count += 1
            yield count


def _shares(games: int) -> tuple[int, int]:
    """Returns an even number of environments and the games of each, which make ``games`` or a few more."""
    least = min(_LEAST_ENVS, games + games % 2)
    most = min(_MOST_ENVS, games + games % 2)
    envs = min(range(least, most + 1, 2), key=lambda envs: (-(-games // envs) * envs, -envs))
    return envs, -(-games // envs)


@held()
def crossplay(
    paths: Sequence[str | Path],
    *,
    games: int = 100,
    final: bool = False,
    greedy: bool = False,
    seed: int = 0,
    env: str = "",
    env_options: Sequence[str] = (),
    max_steps: int = MAX_STEPS,
    trust: Collection[str] | None = (),
    say: Say = nobody,
) -> CrossPlay:
    """Plays every policy in the newest checkpoints of some runs against every other one.

    Args:
      paths: run folders, or folders of runs.
      games: number of games of each pair; rounded up so that all environments play as many.
      final: whether of each run the final policy alone plays.
      greedy: take the policies' most likely actions instead of drawing from them.
      seed: root of the randomness.
      env: environment of two agents; empty: that of the first run that has two.
      env_options: its options ``name=value``; without ``env`` in place of the run's of these names.
      max_steps: the most steps of a game.
      trust: names ``module:name`` that runs may have imported that this user did not begin here; None for any.
      say: takes a line every 10 s, and one for each version that is left out.

    Raises:
      ConfigError: there is no such run, no checkpoint or no environment of two agents, a run does not fit the
        environment, or fewer than two players, one game or one step are asked for.
    """
    for name, given in (("games", games), ("steps", max_steps)):
        if given < 1:
            raise ConfigError(f"{given} {name}: give at least 1")
    folders = run_folders(paths)
    runs = [_read(folder, name, trust) for folder, name in zip(folders, _names(folders), strict=True)]
    envs, quota = _shares(games)
    environment = _environment(runs, env, env_options, SIDES * envs)
    notes: list[str] = []
    try:
        entrants = [
            each
            for run in runs
            for each in _entrants(run, alone=len(runs) == 1, final=final, greedy=greedy, note=notes.append)
        ]
        for line in notes:
            say(line)
        if len(entrants) < SIDES:
            raise ConfigError(
                f"{listed([each.name for each in entrants])} is the only player, and a table needs two: give a run "
                "with a pool (--opponents), or several runs"
            )
        scores, first, cut = _matches(entrants, environment, (envs, quota, max_steps), seed, say)
    finally:
        environment.close()
    margin = noise(envs * quota)
    cyclic, triples = cyclic_triples(scores, margin)
    return CrossPlay(
        tuple(each.name for each in entrants),
        scores,
        ratings(scores, envs * quota),
        mean_scores(scores),
        cyclic,
        triples,
        margin,
        envs * quota,
        first,
        environment.spec.id,
        environment.spec.agents,
        cut,
        max_steps,
        tuple(notes),
    )


def _matches(
    entrants: Sequence[_Entrant], environment: Guarded, limits: tuple[int, int, int], seed: int, say: Say
) -> tuple[Table, float, int]:
    """Plays all pairs; returns the scores, the mean score of the environment's first agent, and the cut games."""
    scores = np.full((len(entrants),) * 2, np.nan)
    pairs = [*itertools.combinations(range(len(entrants)), 2)]
    firsts, cut, lines = [], 0, Lines(say)
    for done, (one, other) in enumerate(pairs):
        tally = Tally(*limits)
        for count in _play((entrants[one], entrants[other]), environment, tally, seed):
            lines.maybe(lambda done=done, count=count: _how_far(done, len(pairs), count))  # type: ignore[misc]
        won = tally.scores.mean(axis=1)
        half = len(won) // 2
        scores[one, other] = np.concatenate([won[:half], 1 - won[half:]]).mean()
        scores[other, one] = 1 - scores[one, other]
        firsts.append(won.mean())
        cut += tally.cut
    return scores, float(np.mean(firsts)), cut


def _how_far(done: int, pairs: int, count: int) -> str:
    return f"playing: pair {done + 1:,} of {pairs:,}, {count:,} steps since its games began"
