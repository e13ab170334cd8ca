"""The record of a session while it goes on: rows of metrics, its standing, and lines for people."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import psutil

from seedbed.acting.lanes import Member
from seedbed.launch.folder import RunFolder
from seedbed.learning.run import Run
from seedbed.metrics.ledger import carried_out
from seedbed.metrics.meters import Rate, SteadyRate
from seedbed.metrics.reports import many_skipped
from seedbed.metrics.sinks import JsonLines, Record

_log = logging.getLogger(__name__)
_ROW_SECONDS, _FIRST_ROW_SECONDS = 1.0, 0.05
_RATE_WINDOW_SECONDS = 10.0
_FIRST_EPISODE_SECONDS = 60.0
"""Training after which a run says that no episode has ended yet."""
_OF_VARIANTS = ("episodes", "mean_return", "best_mean_return", "episode_length", "skipped_updates")


class TrainingTime:
    """The time that a run has trained, over all of its sessions, without the pauses between them.

    Args:
      before: seconds of the sessions before this one.

    Attributes:
      begun: whether this session has begun to train.
    """

    def __init__(self, before: float) -> None:
        self._before = before
        self._since: float | None = None

    def begin(self) -> None:
        """Begins to count."""
        self._since = time.monotonic()

    @property
    def begun(self) -> bool:
        """Whether this session has begun to train."""
        return self._since is not None

    @property
    def seconds(self) -> float:
        """Seconds of training so far."""
        return self._before + (0.0 if self._since is None else time.monotonic() - self._since)


class Recorder:
    """Writes rows and lines of a session; used by one thread, but for :meth:`standing` and
    the actors' coming and going.

    Args:
      folder: of the run.
      sinks: takes the rows.
      note: takes one line for people.
      clock: the time that the run has trained.
      session: number of resumptions.
      episodes: whether episodes are to be expected.
      more: further metrics of the session, by name.
    """

    def __init__(
        self,
        folder: RunFolder,
        sinks: Record,
        note: Callable[[str], None],
        clock: TrainingTime,
        *,
        session: int,
        episodes: bool,
        more: Callable[[], Mapping[str, float]],
    ) -> None:
        self._folder = folder
        self._sinks = sinks
        self._note = note
        self._clock = clock
        self._session = session
        self._awaits_episodes = episodes
        self._more = more
        self._rate, self._steady = Rate(_RATE_WINDOW_SECONDS), SteadyRate()
        self._process = psutil.Process()
        self._variants: dict[int, Record] = {}
        self._row_at = time.monotonic()
        self._begun = self._row_at
        self._told_of_skipped = False

    def begin(self) -> None:
        """Says that training begins now."""
        self._clock.begin()
        self._row_at = self._begun = time.monotonic()

    def steady(self, run: Run) -> None:
        """Says that all is compiled, and actors act: the mean rate is measured from the first such moment on."""
        self._steady.start(run.books.agent_steps)

    def standing(self, run: Run) -> dict[str, Any]:
        """Returns all that changes while actors act, of one moment, by the names of the summary."""
        books, episodes = run.books.counts(), run.books.episodes.row()
        steps = carried_out(books)
        return {
            "seconds": self._clock.seconds,
            "agent_steps": steps,
            "env_frames": steps * run.frames_per_step,
            "agent_steps_per_second": self._steady.per_second(steps),
            "mean_return": episodes.get("mean_return"),
            "best_mean_return": episodes.get("best_mean_return"),
            "episodes": int(episodes["episodes"]),
            "books": {f"steps_{name}": value for name, value in books.items()},
        }

    # Rows.

    def write_if_due(self, run: Run, metrics: Mapping[str, Any]) -> None:
        """Writes a row if it is time for one."""
        now = time.monotonic()
        # What was learned first is told sooner: a run of a second has a curve too.
        sooner = max(_FIRST_ROW_SECONDS, (now - self._begun) / 10) if run.version else _ROW_SECONDS
        if now - self._row_at >= min(_ROW_SECONDS, sooner):
            self._row_at = now
            self.write(run, metrics)

    def write(self, run: Run, metrics: Mapping[str, Any]) -> None:
        """Writes a row, with the metrics of an update (scalars on the device)."""
        self._tell_of_skipped(run)
        self._write_row(run, {**self._row(run), **jax.device_get(dict(metrics))})

    def write_where_it_begins(self, run: Run) -> None:
        """Writes the row of a run that goes on: rows of a session before that went further are history no more."""
        progress = run.books.progress(run.version, run.frames_per_step)
        self._write_row(run, {**progress, "seconds": self._clock.seconds, "session": self._session})

    def _write_row(self, run: Run, row: Mapping[str, Any]) -> None:
        self._sinks.write(row)
        for index, variant in enumerate(run.variants()):
            known = {name: row[name] for name in ("seconds", "agent_steps", "env_frames", "session")}
            returns = {name: variant[name] for name in _OF_VARIANTS if name in variant}
            if index not in self._variants:
                self._variants[index] = Record([JsonLines(self._folder.metrics_of(index))], self._note)
            self._variants[index].write({**known, **returns})

    def close(self) -> None:
        """Closes the files of the variants; safe to call twice."""
        for record in self._variants.values():
            record.close()

    def _row(self, run: Run) -> dict[str, Any]:
        meters = run.meters()
        self._say_if_no_episode_ends(meters)
        self._rate.observe(meters["agent_steps"])
        per_second = self._rate.per_second
        return {
            **meters,
            **self._more(),
            "seconds": self._clock.seconds,
            "session": self._session,
            "agent_steps_per_second": per_second,
            "frames_per_second": per_second * run.frames_per_step,
            **dict(_of_processes(self._process)),
        }

    # Lines.

    def joined(self, member: Member) -> None:
        """Tells of an actor that has joined; from any thread."""
        _log.info("actor %d joined (%s)", member.index, member.peer.name)
        if not member.local:
            self._note(f"actor {member.index} joined from elsewhere ({member.peer.name})")

    def left(self, member: Member, reason: str) -> None:
        """Tells of an actor that has left; from any thread."""
        _log.info("actor %d left: %s", member.index, reason)
        if not member.local:
            self._note(f"actor {member.index} left: {reason}")

    def _tell_of_skipped(self, run: Run) -> None:
        """Says once that updates are skipped, if they are more than a few."""
        line = None if self._told_of_skipped else many_skipped(run.skipped, run.version)
        if line is not None:
            self._told_of_skipped = True
            self._warn(line)

    def _say_if_no_episode_ends(self, meters: Mapping[str, float]) -> None:
        """Says it once: without an end there is no return, and no goal is reached."""
        seconds = self._clock.seconds
        if not self._awaits_episodes or seconds < _FIRST_EPISODE_SECONDS:
            return
        self._awaits_episodes = False
        if not meters["episodes"]:
            self._warn(
                f"no episode has ended yet, after {seconds:.0f} s and {meters['agent_steps']:,.0f} agent steps: until "
                "one does there is no mean return. If episodes have no end, give the environment a time limit "
                "(gymnasium.wrappers.TimeLimit)"
            )

    def _warn(self, line: str) -> None:
        _log.warning(line)
        self._note(line)


def _of_processes(process: psutil.Process) -> Iterator[tuple[str, float]]:
    """Yields what the system tells of ``process`` and those below it; what it does not tell now is missing."""
    gauges: dict[str, Callable[[psutil.Process], float]] = {
        "memory_bytes": lambda process: process.memory_info().rss,
        "actors_memory_bytes": _memory_of_children,
        "cpu_seconds": _processor_time,
    }
    for name, gauge in gauges.items():
        with contextlib.suppress(OSError, psutil.Error):  # no descriptor may be left to open its files
            yield name, gauge(process)


def _processor_time(process: psutil.Process) -> float:
    """Returns the seconds that ``process`` has computed, and all below it, those that have ended too."""
    total = 0.0
    for each in [process, *process.children(recursive=True)]:
        with contextlib.suppress(psutil.Error):
            times = each.cpu_times()
            total += times.user + times.system + times.children_user + times.children_system
    return total


def _memory_of_children(process: psutil.Process) -> int:
    """Returns the resident bytes of all processes below ``process``; one that ends meanwhile counts as none."""
    total = 0
    for child in process.children(recursive=True):
        with contextlib.suppress(psutil.Error):
            total += child.memory_info().rss
    return total
