"""The lag: how far the weights that act may be behind the newest ones.

Free: acting never waits for an update; the queue and the environments bound the lag. Exact: unrolls come in rounds,
one of every lane, and round ``r`` acts with the weights after the updates on the first ``r - rounds`` rounds. Both
answer the same questions; :mod:`seedbed.acting.lag_control` holds lanes to it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from seedbed.errors import ConfigError

Setting = int | Literal["free"]
"""The lag as it is given: a number of rounds, or free."""


@dataclass(frozen=True)
class FreeLag:
    """Acting goes on with the newest weights and waits for no update."""

    exact = False
    setting: Literal["free"] = "free"

    def snapshots_kept(self, batches: int) -> int:
        """Versions of the weights that are kept: the newest."""
        del batches
        return 1

    def queue_capacity(self, unrolls: int, asked: int) -> int:
        """Unrolls that may wait for the learner: as many as asked for."""
        del unrolls
        return asked

    def ahead(self, asked: int) -> int:
        """Batches that are assembled ahead of time: as many as asked for."""
        return asked

    def every(self, asked: int) -> int:
        """Updates after which weights are published, or steps after which they are fetched: as many as asked for."""
        return asked

    def __str__(self) -> str:
        return self.setting


@dataclass(frozen=True)
class ExactLag:
    """Acting is ``rounds`` rounds of unrolls ahead of learning, exactly.

    Its runs are reproducible, so it admits no actors from elsewhere, replaces none, and batches nothing ahead.
    """

    rounds: int
    exact = True

    @property
    def setting(self) -> int:
        """The lag as it is given."""
        return self.rounds

    def snapshots_kept(self, batches: int) -> int:
        """Versions of the weights that are kept; a round has ``batches`` batches, each with a version of its own."""
        return 1 + (self.rounds + 1) * batches

    def queue_capacity(self, unrolls: int, asked: int) -> int:
        """Unrolls that may wait for the learner; a round has ``unrolls``."""
        del asked
        return unrolls * (self.rounds + 1)

    def ahead(self, asked: int) -> int:
        """Batches that are assembled ahead of time: none."""
        del asked
        return 0

    def every(self, asked: int) -> int:
        """Updates after which weights are published: each batch's."""
        del asked
        return 0

    def __str__(self) -> str:
        return str(self.rounds)


Lag = FreeLag | ExactLag


def lag_of(setting: Setting) -> Lag:
    """Returns the lag that is meant by ``free`` or a number of rounds."""
    return FreeLag() if setting == "free" else ExactLag(setting)


@dataclass(frozen=True)
class Rounds:
    """Rounds of unrolls and the updates on them, under an exact lag.

    Attributes:
      lag: the lag.
      updates: updates on the unrolls of one round.
      filling: rounds at the beginning that are not learned from: they fill a replay.
      base: the version that round 0 acts with.
    """

    lag: ExactLag
    updates: int
    filling: int = 0
    base: int = 0

    def version(self, number: int) -> int:
        """Returns the version of the weights that round ``number`` acts with."""
        return self.base + max(0, number - self.lag.rounds - self.filling) * self.updates


def batches_per_round(rows: int, batch_size: int) -> int:
    """Returns the number of batches that use up one round of ``rows`` unrolls.

    Raises:
      ConfigError: it is not a whole number.
    """
    if rows == 0:
        raise ConfigError("an exact lag needs actors that this run starts itself: use --actors 1 or more")
    if rows % batch_size:
        raise ConfigError(
            f"with an exact lag, the {rows} environments must be a multiple of the batch size {batch_size}: "
            f"use --batch-size {rows}, or another number of --actors or --envs-per-actor"
        )
    return rows // batch_size
