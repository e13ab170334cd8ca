"""The recorder of a session: rows of metrics, counts for the summary, and lines for the user."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import psutil

from seedbed.acting.lanes import Member
from seedbed.errors import RunFailed
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
"""Seconds of training after which a run warns that no episode has ended yet."""
_OF_VARIANTS = ("episodes", "mean_return", "best_mean_return", "episode_length", "skipped_updates")


class TrainingTime:
    """A clock of the time that a run has trained, over all of its sessions, without the pauses between them.

    Args:
      before: seconds of training in earlier sessions.

    Attributes:
      begun: whether this session has begun to train.
    """

    def __init__(self, before: float) -> None:
        self._before = before
        self._since: float | None = None

    def begin(self) -> None:
        """Starts the clock."""
        self._since = time.monotonic()

    @property
    def begun(self) -> bool:
        """True once this session has begun to train."""
        return self._since is not None

    @property
    def seconds(self) -> float:
        """Seconds of training so far."""
        return self._before + (0.0 if self._since is None else time.monotonic() - self._since)


class Recorder:
    """A writer of a session's rows and lines.

    It is used by one thread, except for :meth:`standing`, :meth:`joined` and :meth:`left`.

    Args:
      folder: run folder.
      sinks: sinks of the rows.
      note: callback for each line for the user.
      clock: time that the run has trained.
      session: number of resumptions.
      episodes: whether the run has episodes; one that reads a data set has none.
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
        """Starts the clock of training."""
        self._clock.begin()
        self._row_at = self._begun = time.monotonic()

    def steady(self, run: Run) -> None:
        """Starts the measurement of the mean rate, once all is compiled and actors act; later calls do nothing."""
        self._steady.start(run.books.agent_steps)

    def standing(self, run: Run) -> dict[str, Any]:
        """Returns the counts that change while actors act, all of one moment, by their names in the summary."""
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
            "books": {**{f"steps_{name}": value for name, value in books.items()}, **run.books.beside()},
        }

    # Rows.

    def write_if_due(self, run: Run, metrics: Mapping[str, Any]) -> None:
        """Writes a row if one is due: at most one a second, sooner at the beginning of a run."""
        now = time.monotonic()
        # The first rows come sooner: a run of a second has a curve too.
        sooner = max(_FIRST_ROW_SECONDS, (now - self._begun) / 10) if run.version else _ROW_SECONDS
        if now - self._row_at >= min(_ROW_SECONDS, sooner):
            self._row_at = now
            self.write(run, metrics)

    def write(self, run: Run, metrics: Mapping[str, Any]) -> None:
        """Writes a row, with the metrics of an update (scalars on the device).

        Raises:
          RunFailed: another session has taken the run over.
        """
        if (reason := self._folder.overtaken()) is not None:
            raise RunFailed(reason)
        self._tell_of_skipped(run)
        self._write_row(run, {**self._row(run), **jax.device_get(dict(metrics))})

    def write_where_it_begins(self, run: Run) -> None:
        """Writes the first row of a resumed run, which invalidates later rows of an earlier session."""
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
        """Logs that an actor has joined; notes it for the user if it is remote. May be called from any thread."""
        _log.info("actor %d joined (%s)", member.index, member.peer.name)
        if not member.local:
            self._note(f"actor {member.index} joined from elsewhere ({member.peer.name})")

    def left(self, member: Member, reason: str) -> None:
        """Logs that an actor has left; notes it for the user if it is remote. May be called from any thread."""
        _log.info("actor %d left: %s", member.index, reason)
        if not member.local:
            self._note(f"actor {member.index} left: {reason}")

    def _tell_of_skipped(self, run: Run) -> None:
        """Warns once if more than a few updates were skipped."""
        line = None if self._told_of_skipped else many_skipped(run.skipped, run.version)
        if line is not None:
            self._told_of_skipped = True
            self._warn(line)

    def _say_if_no_episode_ends(self, meters: Mapping[str, float]) -> None:
        """Warns once if no episode has ended after a minute: there is no mean return then."""
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
    """Yields gauges of ``process`` and its children; a gauge that the system refuses is left out."""
    gauges: dict[str, Callable[[psutil.Process], float]] = {
        "memory_bytes": lambda process: process.memory_info().rss,
        "actors_memory_bytes": _memory_of_children,
        "cpu_seconds": _processor_time,
    }
    for name, gauge in gauges.items():
        with contextlib.suppress(OSError, psutil.Error):  # no descriptor may be left to open its files
            yield name, gauge(process)


def _processor_time(process: psutil.Process) -> float:
    """Returns the CPU seconds of ``process`` and all its descendants, including ended ones."""
    total = 0.0
    for each in [process, *process.children(recursive=True)]:
        with contextlib.suppress(psutil.Error):
            times = each.cpu_times()
            total += times.user + times.system + times.children_user + times.children_system
    return total


def _memory_of_children(process: psutil.Process) -> int:
    """Returns the resident bytes of all descendants of ``process``; one that ends meanwhile counts 0."""
    total = 0
    for child in process.children(recursive=True):
        with contextlib.suppress(psutil.Error):
            total += child.memory_info().rss
    return total
