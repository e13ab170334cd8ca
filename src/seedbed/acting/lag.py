"""The policy lag: the number of updates by which the weights that act are behind the newest ones.

Free: acting never waits for an update; the queue and the environments bound the lag. Exact: unrolls come in rounds,
one of every lane, and round ``r`` acts with the weights after the updates on the first ``r - rounds`` rounds. Both
classes have the same methods; :mod:`seedbed.acting.lag_control` makes lanes keep the lag.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from seedbed.errors import ConfigError

Setting = int | Literal["free"]
"""The lag as it is given on the command line: a number of rounds, or ``free``."""


@dataclass(frozen=True)
class FreeLag:
    """A free lag: acting goes on with the newest weights and waits for no update."""

    exact = False
    setting: Literal["free"] = "free"

    def snapshots_kept(self, batches: int) -> int:
        """Returns the number of versions of the weights that are kept: the newest one."""
        del batches
        return 1

    def queue_capacity(self, unrolls: int, asked: int) -> int:
        """Returns the number of unrolls that may wait for the learner: as many as asked for."""
        del unrolls
        return asked

    def ahead(self, asked: int) -> int:
        """Returns the number of batches that are assembled ahead of time: as many as asked for."""
        return asked

    def every(self, asked: int) -> int:
        """Returns the updates between publications, or the steps between fetches, of weights: as many as asked for."""
        return asked

    def __str__(self) -> str:
        return self.setting


@dataclass(frozen=True)
class ExactLag:
    """An exact lag: acting is ``rounds`` rounds of unrolls ahead of learning.

    Runs are reproducible, so no actors from elsewhere are admitted, none is replaced, and no batch is made ahead.
    """

    rounds: int
    exact = True

    @property
    def setting(self) -> int:
        """The lag as it is given on the command line."""
        return self.rounds

    def snapshots_kept(self, batches: int) -> int:
        """Returns the number of versions of the weights that are kept, where a round makes ``batches`` versions."""
        return 1 + (self.rounds + 1) * batches

    def queue_capacity(self, unrolls: int, asked: int) -> int:
        """Returns the number of unrolls that may wait for the learner, where a round has ``unrolls``."""
        del asked
        return unrolls * (self.rounds + 1)

    def ahead(self, asked: int) -> int:
        """Returns the number of batches that are assembled ahead of time: 0."""
        del asked
        return 0

    def every(self, asked: int) -> int:
        """Returns 0: weights are published after every batch, and fetched for every round."""
        del asked
        return 0

    def __str__(self) -> str:
        return str(self.rounds)


Lag = FreeLag | ExactLag


def lag_of(setting: Setting) -> Lag:
    """Makes the lag of a setting: ``free`` or a number of rounds."""
    return FreeLag() if setting == "free" else ExactLag(setting)


@dataclass(frozen=True)
class Rounds:
    """The schedule of rounds of unrolls and of the updates on them, under an exact lag.

    Attributes:
      lag: the exact lag.
      updates: number of updates on the unrolls of one round.
      filling: number of rounds at the beginning that only fill a replay, before the first update.
      base: version of the weights that round 0 acts with.
    """

    lag: ExactLag
    updates: int
    filling: int = 0
    base: int = 0

    def version(self, number: int) -> int:
        """Returns the version of the weights that round ``number`` acts with."""
        return self.base + max(0, number - self.lag.rounds - self.filling) * self.updates


def batches_per_round(rows: int, batch_size: int) -> int:
    """Returns the number of batches in one round of ``rows`` unrolls.

    Raises:
      ConfigError: the number is not whole, or there are no unrolls.
    """
    if rows == 0:
        raise ConfigError("an exact lag needs actors that this run starts itself: use --actors 1 or more")
    if rows % batch_size:
        raise ConfigError(
            f"with an exact lag, the {rows} environments must be a multiple of the batch size {batch_size}: "
            "give another batch size, or another number of --actors or --envs-per-actor"
        )
    return rows // batch_size
