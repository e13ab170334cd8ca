"""Meters: they turn events into the numbers of a row.

Time comes from a clock that is passed in, so that a test sets it. Meters that several threads may feed have
a lock; each says so.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

Clock = Callable[[], float]
"""Returns seconds that only ever grow."""


class Rate:
    """The growth of a total per second, over the last ``window`` seconds. Used by one thread.

    >>> now = 0.0
    >>> rate = Rate(10.0, clock=lambda: now)
    >>> rate.observe(0)
    >>> now = 2.0
    >>> rate.observe(100)
    >>> rate.per_second
    50.0
    """

    def __init__(self, window: float, clock: Clock = time.monotonic) -> None:
        self._window = window
        self._clock = clock
        self._points: deque[tuple[float, float]] = deque()

    def observe(self, total: float) -> None:
        """Tells the meter the present total."""
        now = self._clock()
        # Many observations in a moment count as the last of them: a bound on memory, whoever calls how often.
        if len(self._points) > 1 and now - self._points[-2][0] < self._window / 100:
            self._points.pop()
        self._points.append((now, total))
        # The newest point that is older than the window stays: from it on the window is covered.
        while len(self._points) > 2 and self._points[1][0] <= now - self._window:
            self._points.popleft()

    @property
    def per_second(self) -> float:
        """The growth a second; 0 until there are two observations at different times."""
        if len(self._points) < 2:
            return 0.0
        (start, first), (end, last) = self._points[0], self._points[-1]
        return (last - first) / (end - start) if end > start else 0.0


class SteadyRate:
    """The mean rate of a whole run from the moment on at which everything is compiled. Used by one thread."""

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        self._start: tuple[float, float] | None = None

    @property
    def started(self) -> bool:
        """True once :meth:`start` was called."""
        return self._start is not None

    def start(self, total: float) -> None:
        """Begins to measure at this total; later calls change nothing."""
        if self._start is None:
            self._start = (self._clock(), total)

    def per_second(self, total: float) -> float | None:
        """Growth a second from the start to now; None before the start."""
        if self._start is None:
            return None
        start, first = self._start
        elapsed = self._clock() - start
        return (total - first) / elapsed if elapsed > 0 else None


class Episodes:
    """Returns and lengths of the last episodes. Safe to use from several threads.

    Both are arrays: Anakin's window is as long as it has environments, and is taken over many times a second.
    """

    def __init__(self, window: int = 100) -> None:
        self._lock = threading.Lock()
        self._window = window
        self._returns: NDArray[np.float64] = np.empty(0)
        self._lengths: NDArray[np.int64] = np.empty(0, np.int64)
        self._count = 0
        self._best: float | None = None

    def add(self, episode_return: float, length: int) -> None:
        """Counts an episode that ended: its undiscounted return and its length in agent steps."""
        with self._lock:
            self._returns = np.append(self._returns, float(episode_return))[-self._window :]
            self._lengths = np.append(self._lengths, int(length))[-self._window :]
            self._count += 1
            self._note_best()

    def show(self, returns: ArrayLike, lengths: ArrayLike, count: int) -> None:
        """Takes over a window that was counted elsewhere (on a device), in any order.

        Args:
          returns, lengths: values of the last episodes, as many as the window has; the first ``count`` are looked at.
          count: episodes that ended since the run began.
        """
        known = min(count, self._window)
        with self._lock:
            # Copies: what the device has shown it may overwrite.
            self._returns = np.array(np.asarray(returns)[:known], np.float64)
            self._lengths = np.array(np.asarray(lengths)[:known], np.int64)
            self._count = count
            self._note_best()

    def _note_best(self) -> None:
        if self._is_full() and (mean := self._mean()) is not None:
            self._best = mean if self._best is None else max(self._best, mean)

    def _mean(self) -> float | None:
        mean = float(np.mean(self._returns)) if self._returns.size else math.nan
        return mean if math.isfinite(mean) else None

    def _is_full(self) -> bool:
        return len(self._returns) == self._window

    @property
    def count(self) -> int:
        """Episodes that ended since the run began."""
        with self._lock:
            return self._count

    @property
    def full(self) -> bool:
        """True if the mean is over a whole window; a goal is not reached before."""
        with self._lock:
            return self._is_full()

    @property
    def mean_return(self) -> float | None:
        """Mean return over the window, or its filled part; None before the first episode's end, and if it is not
        finite, as an environment's rewards may make it."""
        with self._lock:
            return self._mean()

    @property
    def mean_length(self) -> float | None:
        """Mean length over the window, in agent steps; None before the first episode's end."""
        with self._lock:
            return float(np.mean(self._lengths)) if self._lengths.size else None

    @property
    def best_mean_return(self) -> float | None:
        """The highest mean over a whole window; until one was whole, the mean return."""
        best = self._best
        return self.mean_return if best is None else best

    def row(self) -> dict[str, float]:
        """Returns the metrics of this meter that are known so far."""
        values = {
            "episodes": float(self.count),
            "mean_return": self.mean_return,
            "best_mean_return": self.best_mean_return,
            "episode_length": self.mean_length,
        }
        return {name: value for name, value in values.items() if value is not None}

    def to_json(self) -> dict[str, Any]:
        """Everything that a checkpoint must keep."""
        with self._lock:
            return {
                # JSON knows no return that is not finite.
                "returns": [value if math.isfinite(value) else None for value in self._returns.tolist()],
                "lengths": self._lengths.tolist(),
                "count": self._count,
                "best": self._best,
            }

    def restore(self, value: Mapping[str, Any]) -> None:
        """Takes over a result of :meth:`to_json`."""
        with self._lock:
            returns = [math.nan if one is None else one for one in value["returns"]]
            self._returns = np.array(returns, np.float64)[-self._window :]
            self._lengths = np.array(value["lengths"], np.int64)[-self._window :]
            self._count = int(value["count"])
            self._best = value["best"]


class EpisodesOfSeveral:
    """The episodes of agents that are trained side by side: means over the agents. Used by one thread.

    Args:
      each: the episodes of one agent each.
    """

    def __init__(self, each: Sequence[Episodes]) -> None:
        self.each = tuple(each)
        self._best: float | None = None

    def look(self) -> None:
        """Notes the mean over all, once each has a whole window."""
        mean = self.mean_return
        if self.full and mean is not None:
            self._best = mean if self._best is None else max(self._best, mean)

    @property
    def full(self) -> bool:
        """True if the mean of each is over a whole window."""
        return all(one.full for one in self.each)

    @property
    def mean_return(self) -> float | None:
        """Mean of the agents' mean returns; None before each has one."""
        means = [one.mean_return for one in self.each]
        known = [mean for mean in means if mean is not None]
        return float(np.mean(known)) if len(known) == len(means) else None

    @property
    def best(self) -> int:
        """Index of the agent with the highest mean return; the first while none has one."""
        means = [-math.inf if one.mean_return is None else one.mean_return for one in self.each]
        return means.index(max(means))

    def row(self) -> dict[str, float]:
        """The metrics, as :meth:`Episodes.row` has them; means over the agents."""
        rows = [one.row() for one in self.each]
        names = set.intersection(*(set(row) for row in rows))
        values = {name: float(np.mean([row[name] for row in rows])) for name in sorted(names)}
        if self._best is not None:
            values["best_mean_return"] = self._best
        return values

    def to_json(self) -> dict[str, Any]:
        """Everything that a checkpoint must keep."""
        return {"each": [one.to_json() for one in self.each], "best": self._best}

    def restore(self, value: Mapping[str, Any]) -> None:
        """Takes over a result of :meth:`to_json`."""
        for one, kept in zip(self.each, value["each"], strict=True):
            one.restore(kept)
        self._best = value["best"]


class Tally:
    """Mean and maximum of numbers, since the last row and over the whole run. Threads may share it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._since: tuple[int, float, float] = (0, 0.0, -np.inf)
        self._whole: tuple[int, float, float] = (0, 0.0, -np.inf)

    def add(self, values: ArrayLike) -> None:
        """Counts one number, or every element of an array."""
        array = np.asarray(values, np.float64)
        if not array.size:
            return
        self.add_many(array.size, float(array.sum()), float(array.max()))

    def add_many(self, count: int, total: float, most: float) -> None:
        """Counts so many numbers, 1 or more, with this sum and maximum."""
        with self._lock:
            self._since = self._sum(self._since, count, total, most)
            self._whole = self._sum(self._whole, count, total, most)

    @staticmethod
    def _sum(to: tuple[int, float, float], count: int, total: float, most: float) -> tuple[int, float, float]:
        return to[0] + count, to[1] + total, max(to[2], most)

    def take(self) -> tuple[float, float] | None:
        """``(mean, maximum)`` since the last call, or None if nothing came; begins anew."""
        with self._lock:
            (count, total, most), self._since = self._since, (0, 0.0, -np.inf)
        return (total / count, most) if count else None

    @property
    def mean(self) -> float | None:
        """Mean over the whole run; None if nothing came."""
        with self._lock:
            count, total, _ = self._whole
        return total / count if count else None

    @property
    def maximum(self) -> float | None:
        """Maximum over the whole run; None if nothing came."""
        with self._lock:
            count, _, most = self._whole
        return most if count else None

    def to_json(self) -> dict[str, Any]:
        """Everything that a checkpoint must keep: the tally of the whole run."""
        with self._lock:
            count, total, most = self._whole
        return {"count": count, "total": total, "maximum": most if count else None}

    def restore(self, value: Mapping[str, Any]) -> None:
        """Takes over a result of :meth:`to_json`."""
        most = -np.inf if value["maximum"] is None else float(value["maximum"])
        with self._lock:
            self._whole = (int(value["count"]), float(value["total"]), most)


class Ratio:
    """A ratio of two sums; any thread may :meth:`take` it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._of, self._each = 0.0, 0.0

    def add(self, of: float, each: float) -> None:
        """Counts so much of the one, and of the other."""
        with self._lock:
            self._of += of
            self._each += each

    def take(self) -> float | None:
        """Their ratio since the last call; begins anew. None, and nothing is begun anew, while there is none."""
        with self._lock:
            if not self._each:
                return None
            ratio = self._of / self._each
            self._of, self._each = 0.0, 0.0
            return ratio


class Share:
    """The share of time that one thread spends inside ``with share:``; any thread may :meth:`take` it."""

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self._lock = threading.Lock()
        self._clock = clock
        self._taken = clock()
        self._entered: float | None = None
        self._inside = 0.0

    def __enter__(self) -> Self:
        with self._lock:
            self._entered = self._clock()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            self._settle(self._clock())
            self._entered = None

    def _settle(self, now: float) -> None:
        if self._entered is not None:
            self._inside += now - self._entered
            self._entered = now

    def take(self) -> float:
        """The share since the last call (or since construction), between 0 and 1; begins anew."""
        with self._lock:
            now = self._clock()
            self._settle(now)
            elapsed, inside = now - self._taken, self._inside
            self._taken, self._inside = now, 0.0
        return inside / elapsed if elapsed > 0 else 0.0
