"""A run, whatever its architecture: the protocol, and what is common in its records."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from seedbed.acting.actor_threads import ActorThreads
from seedbed.learning.checkpoint import Contents
from seedbed.learning.update import TrainState
from seedbed.metrics.ledger import Ledger, carried_out
from seedbed.metrics.meters import Episodes, EpisodesOfSeveral, Tally
from seedbed.serving.actor_registry import ActorRegistry


class Run(Protocol):
    """The parts of one run, put together; used by one thread but for :meth:`fail`."""

    ledger: Ledger
    lag: Tally

    @property
    def episodes(self) -> Episodes | EpisodesOfSeveral:
        """Returns and lengths of the last episodes."""

    @property
    def registry(self) -> ActorRegistry | None:
        """Where actors report; None if none come."""

    @property
    def threads(self) -> ActorThreads | None:
        """The actor threads, to be started; None if there are none."""

    @property
    def train_state(self) -> TrainState:
        """Parameters, optimizer and counters."""

    @property
    def version(self) -> int:
        """Updates so far; known whatever has failed."""

    @property
    def skipped(self) -> int:
        """How many of them were skipped; known whatever has failed."""

    @property
    def frames_per_step(self) -> int:
        """Environment frames in one agent step."""

    def open(self, addresses: list[str]) -> list[str]:
        """Compiles, and lets actors in at these addresses; returns them as actors can reach them."""

    def updates(self, stop: threading.Event) -> Iterator[Mapping[str, Any] | None]:
        """Learns until ``stop`` is set: yields metrics (scalars on the device) after some of the updates, and None
        now and then while there is nothing to learn from.

        Raises:
          RunFailed: a part of the run failed.
        """

    def report(self) -> dict[str, Any]:
        """What the other hosts of the run have to know of this one now, as JSON values."""

    def merge(self, reports: Sequence[Mapping[str, Any]]) -> None:
        """Takes over what all hosts reported after the same update, in their order, this one's too."""

    def ledgers(self) -> list[dict[str, int]]:
        """The books of each host, as they were last reported; where there is one, its own as they are now."""

    def meters(self) -> dict[str, float]:
        """Metrics since the last call, by name."""

    def variants(self) -> list[dict[str, Any]]:
        """The agents that are trained side by side: what each of them is, and how it does. Empty if there is one."""

    def snapshot(self, *, alone: bool = False) -> Contents:
        """What a checkpoint is made of; ``meta["exact"]`` says whether it holds the environments too.

        All hosts take it after the same update. ``alone``: another host is gone, and with it what only it had.
        """

    def fail(self, error: BaseException) -> None:
        """Ends the run with this error; from any thread."""

    def close(self) -> None:
        """Stops everything; safe to call twice."""


def counts(run: Run) -> dict[str, int]:
    """Where the places in unrolls of all hosts went."""
    return {name: sum(ledger.get(name, 0) for ledger in run.ledgers()) for name in run.ledger.counts()}


def agent_steps(run: Run) -> int:
    """Decisions that the environments of all hosts have carried out so far."""
    return carried_out(counts(run))


def env_frames(run: Run) -> int:
    """Environment frames of all hosts so far."""
    return agent_steps(run) * run.frames_per_step


def progress(run: Run) -> dict[str, float]:
    """How far a run has come, by the names of the metrics: what every architecture reports alike."""
    steps, lag = counts(run), run.lag.take()
    return {
        **run.episodes.row(),
        **({"policy_lag_mean": lag[0], "policy_lag_max": lag[1]} if lag else {}),
        "agent_steps": carried_out(steps),
        "env_frames": carried_out(steps) * run.frames_per_step,
        "updates": run.version,
        "weights_version": run.version,
        **{f"steps_{name}": value for name, value in steps.items()},
    }


def records(run: Run) -> dict[str, Any]:
    """What every architecture keeps in a checkpoint beside its arrays."""
    return {
        "version": run.version,
        "ledgers": run.ledgers(),
        "episodes": run.episodes.to_json(),
        "lag": run.lag.to_json(),
    }


def restore(
    run: Run, meta: Mapping[str, Any], *, open_steps: bool, host: int = 0, queued: int | None = None
) -> None:
    """Takes over what :func:`records` gave; steps that were not trained on yet are kept (``open_steps``) or dropped.

    ``queued``: how many wait, where a replay has kept them.
    """
    run.episodes.restore(meta["episodes"])
    run.lag.restore(meta["lag"])
    books = dict(meta["ledgers"][host])
    if not open_steps:
        books["open"] = 0
    if queued is not None or not open_steps:
        books["queued"] = queued or 0
    books["dropped"] = books["received"] - books["trained"] - books["queued"] - books["open"]
    run.ledger.restore(books)
