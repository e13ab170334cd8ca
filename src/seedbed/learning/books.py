"""The books of a run: counters of steps, episodes and lag, of this host and, as last reported, of all hosts."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from seedbed.metrics.ledger import Ledger, carried_out
from seedbed.metrics.meters import Episodes, EpisodesOfSeveral, Tally


class Books:
    """The counters of one host, and their exchange with the other hosts of a run.

    Args:
      host: index of this host.
      hosts: number of hosts.
      episodes: counter of episodes; None for that of a single agent.

    Attributes:
      ledger: counts of this host's steps in unrolls, by their whereabouts.
      episodes: the episodes of all hosts, in the same order on each host.
      policy_lag: number of updates between the weights that acted and the weights that were updated.
      batch_lag: number of batches between the weights that acted and the first update on the step's own batch.
      beside: function that returns further metrics of the run, by name.
    """

    def __init__(
        self, host: int = 0, hosts: int = 1, *, episodes: Episodes | EpisodesOfSeveral | None = None
    ) -> None:
        self.ledger = Ledger()
        self.episodes = episodes or Episodes()
        self.policy_lag, self.batch_lag = Tally(), Tally()
        self.beside: Callable[[], dict[str, float]] = dict
        self._host, self._hosts = host, hosts
        self._untold: deque[tuple[float, int]] = deque()
        self._reported: list[dict[str, int]] = [self.ledger.counts()] * hosts
        self._others_epoch = 0

    def count(self, episodes: Iterable[tuple[float, int]]) -> None:
        """Counts episodes that ended on this host; thread-safe.

        With several hosts they are counted by :meth:`merge`, after they were reported to all.
        """
        if self._hosts > 1:
            self._untold.extend(episodes)
        else:
            self._add(episodes)

    def _add(self, episodes: Iterable[tuple[float, int]]) -> None:
        assert isinstance(self.episodes, Episodes), "several agents count their own"
        for episode_return, length in episodes:
            self.episodes.add(episode_return, length)

    def report(self, last_epoch: int) -> dict[str, Any]:
        """Returns this host's ledger, and the episodes that ended since the last report; empty for a single host."""
        if self._hosts == 1:
            return {}
        # Episodes that other threads add meanwhile are for the next report.
        told = [self._untold.popleft() for _ in range(len(self._untold))]
        return {"ledger": self.ledger.counts(), "episodes": told, "last_epoch": last_epoch}

    def merge(self, reports: Sequence[Mapping[str, Any]]) -> None:
        """Counts the episodes of all hosts, in the same order on each, so that all compute the same mean returns."""
        if self._hosts == 1:
            return
        self._reported = [dict(report["ledger"]) for report in reports]
        self._others_epoch = max(report["last_epoch"] for report in reports)
        for report in reports:
            self._add(report["episodes"])

    def ledgers(self) -> list[dict[str, int]]:
        """Returns the ledger of each host, as last reported; for a single host, its own as it is now."""
        return [self.ledger.counts()] if self._hosts == 1 else self._reported

    def counts(self) -> dict[str, int]:
        """Returns the counts of the steps in unrolls of all hosts, by their whereabouts."""
        ledgers = self.ledgers()
        return {name: sum(ledger.get(name, 0) for ledger in ledgers) for name in self.ledger.counts()}

    @property
    def agent_steps(self) -> int:
        """Number of actions that the environments of all hosts have carried out so far."""
        return carried_out(self.counts())

    def progress(self, version: int, frames_per_step: int) -> dict[str, float]:
        """Returns the run's progress at this version of the weights, by the names of the metrics."""
        steps, lag, batches = self.counts(), self.policy_lag.take(), self.batch_lag.take()
        return {
            **self.episodes.row(),
            **({"policy_lag_mean": lag[0], "policy_lag_max": lag[1]} if lag else {}),
            **({"policy_lag_batches": batches[0]} if batches else {}),
            "agent_steps": carried_out(steps),
            "env_frames": carried_out(steps) * frames_per_step,
            "updates": version,
            "weights_version": version,
            **{f"steps_{name}": value for name, value in steps.items()},
            **self.beside(),
        }

    def last_epoch(self, own: int) -> int:
        """Returns the highest epoch of an actor on any host, given this host's ``own``."""
        return max(own, self._others_epoch)

    # Checkpoints.

    def look(self) -> None:
        """Replaces this host's reported ledger by its present one, for a checkpoint; only while acting rests."""
        self._reported[self._host] = self.ledger.counts()

    def kept(self, version: int) -> dict[str, Any]:
        """Returns the books' part of a checkpoint at this version, as JSON values."""
        return {
            "version": version,
            "ledgers": self.ledgers(),
            "episodes": self.episodes.to_json(),
            "lag": self.policy_lag.to_json(),
        }

    def restore(self, meta: Mapping[str, Any], *, open_steps: bool, queued: int | None = None) -> None:
        """Restores a result of :meth:`kept`.

        Args:
          meta: the checkpoint's meta.
          open_steps: whether the steps of open and waiting unrolls are resumed; otherwise they count as dropped.
          queued: number of steps that a restored replay holds untrained; None: take the ledger's count.
        """
        self.episodes.restore(meta["episodes"])
        self.policy_lag.restore(meta["lag"])
        counts = dict(meta["ledgers"][self._host])
        if not open_steps:
            counts["open"] = 0
        if queued is not None or not open_steps:
            counts["queued"] = queued or 0
        counts["dropped"] = counts["received"] - counts["trained"] - counts["queued"] - counts["open"]
        self.ledger.restore(counts)
        self._reported = meta["ledgers"]

    @property
    def untold(self) -> list[tuple[float, int]]:
        """Episodes that were not reported to the other hosts yet."""
        return list(self._untold)

    @untold.setter
    def untold(self, episodes: Iterable[Sequence[Any]]) -> None:
        self._untold.extend((episode_return, length) for episode_return, length in episodes)
