"""The books of a run of one agent: steps, episodes and lag, of this host and, as they were last told, of all hosts."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from seedbed.metrics.ledger import Ledger, carried_out
from seedbed.metrics.meters import Episodes, EpisodesOfSeveral, Tally


class Books:
    """Counters of one host, and their exchange with the other hosts of a run.

    Args:
      host: index of this host.
      hosts: number of hosts.
      episodes: counter of episodes; None for one of a single agent.

    Attributes:
      ledger: the steps of this host's environments.
      episodes: the episodes of all hosts, in one order on each of them.
      policy_lag: updates between the weights that acted and those that were updated.
    """

    def __init__(
        self, host: int = 0, hosts: int = 1, *, episodes: Episodes | EpisodesOfSeveral | None = None
    ) -> None:
        self.ledger = Ledger()
        self.episodes = episodes or Episodes()
        self.policy_lag = Tally()
        self._host, self._hosts = host, hosts
        self._untold: deque[tuple[float, int]] = deque()
        self._reported: list[dict[str, int]] = [self.ledger.counts()] * hosts
        self._others_epoch = 0

    def count(self, episodes: Iterable[tuple[float, int]]) -> None:
        """Counts episodes that ended here; where there are several hosts, once all of them are told. Thread-safe."""
        if self._hosts > 1:
            self._untold.extend(episodes)
        else:
            self._add(episodes)

    def _add(self, episodes: Iterable[tuple[float, int]]) -> None:
        assert isinstance(self.episodes, Episodes), "several agents count their own"
        for episode_return, length in episodes:
            self.episodes.add(episode_return, length)

    def report(self, last_epoch: int) -> dict[str, Any]:
        """Returns this host's ledger, and the episodes that ended since the last report; nothing if it is alone."""
        if self._hosts == 1:
            return {}
        # Those that others add meanwhile are for the next time.
        told = [self._untold.popleft() for _ in range(len(self._untold))]
        return {"ledger": self.ledger.counts(), "episodes": told, "last_epoch": last_epoch}

    def merge(self, reports: Sequence[Mapping[str, Any]]) -> None:
        """Counts all hosts' episodes, in the same order on each of them, so that all see the same returns."""
        if self._hosts == 1:
            return
        self._reported = [dict(report["ledger"]) for report in reports]
        self._others_epoch = max(report["last_epoch"] for report in reports)
        for report in reports:
            self._add(report["episodes"])

    def ledgers(self) -> list[dict[str, int]]:
        """Returns the ledger of each host, as it was last reported; where there is one, its own as it is now."""
        return [self.ledger.counts()] if self._hosts == 1 else self._reported

    def counts(self) -> dict[str, int]:
        """Returns the counts of places in unrolls of all hosts, by where they went."""
        ledgers = self.ledgers()
        return {name: sum(ledger.get(name, 0) for ledger in ledgers) for name in self.ledger.counts()}

    @property
    def agent_steps(self) -> int:
        """Decisions that the environments of all hosts have carried out so far."""
        return carried_out(self.counts())

    def progress(self, version: int, frames_per_step: int) -> dict[str, float]:
        """Returns how far a run has come at this version of the weights, by the names of the metrics."""
        steps, lag = self.counts(), self.policy_lag.take()
        return {
            **self.episodes.row(),
            **({"policy_lag_mean": lag[0], "policy_lag_max": lag[1]} if lag else {}),
            "agent_steps": carried_out(steps),
            "env_frames": carried_out(steps) * frames_per_step,
            "updates": version,
            "weights_version": version,
            **{f"steps_{name}": value for name, value in steps.items()},
        }

    def last_epoch(self, own: int) -> int:
        """Returns the highest epoch of an actor on any host, where ``own`` is this one's."""
        return max(own, self._others_epoch)

    # Checkpoints.

    def look(self) -> None:
        """Takes this host's ledger as it is now for the one that is kept; only while acting rests."""
        self._reported[self._host] = self.ledger.counts()

    def kept(self, version: int) -> dict[str, Any]:
        """Returns what a checkpoint at this version holds of them, as JSON values."""
        return {
            "version": version,
            "ledgers": self.ledgers(),
            "episodes": self.episodes.to_json(),
            "lag": self.policy_lag.to_json(),
        }

    def restore(self, meta: Mapping[str, Any], *, open_steps: bool, queued: int | None = None) -> None:
        """Takes over what :meth:`kept` gave.

        Args:
          meta: of the checkpoint.
          open_steps: whether steps that were not trained on yet are kept; otherwise they count as dropped.
          queued: steps that wait, where a replay has kept them; None if the ledger knows.
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
        """Episodes that the other hosts were not told of yet."""
        return list(self._untold)

    @untold.setter
    def untold(self, episodes: Iterable[Sequence[Any]]) -> None:
        self._untold.extend((episode_return, length) for episode_return, length in episodes)
