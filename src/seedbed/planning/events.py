"""Simulated time, cores that threads share, and lines in which jobs wait for one another.

All times are in seconds. Nothing here knows reinforcement learning.
"""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Callable

Then = Callable[[], None]
Job = Callable[[Then], None]
"""A job of a line: it is begun by a call, and calls its argument when it is over."""
_MOMENT = 1e-10
"""Seconds below which two ends of work are one moment; rounding makes them differ."""


class Clock:
    """The time, and the calls that are due."""

    def __init__(self) -> None:
        self.now = 0.0
        self._due: list[tuple[float, int, Then]] = []
        self._count = itertools.count()

    def after(self, delay: float, then: Then) -> None:
        """Calls ``then`` after ``delay`` s."""
        heapq.heappush(self._due, (self.now + delay, next(self._count), then))

    def step(self) -> bool:
        """Makes the next call that is due; returns False if there is none."""
        if not self._due:
            return False
        self.now, _, then = heapq.heappop(self._due)
        then()
        return True


class Cores:
    """Cores that all threads on them share equally; no thread has more than one.

    Attributes:
      count: number of cores.
      busy: core-seconds of work so far, up to the last change.
    """

    def __init__(self, clock: Clock, count: float) -> None:
        self.count, self.busy = count, 0.0
        self._clock = clock
        # Work is counted in virtual time, which passes for every thread at the same rate.
        self._virtual = self._at = self._threads = 0.0
        self._jobs: list[tuple[float, int, float, Then]] = []
        self._order, self._plan_number = itertools.count(), 0

    @property
    def crowd(self) -> float:
        """Share of the cores that have a thread now; at most 1."""
        return min(1.0, self._threads / self.count)

    def run(self, seconds: float, then: Then, threads: float = 1.0) -> None:
        """Has ``threads`` threads work for ``seconds`` s each, if every one has a core; then calls ``then``."""
        self._advance()
        heapq.heappush(self._jobs, (self._virtual + seconds, next(self._order), threads, then))
        self._threads += threads
        self._plan()

    def settle(self) -> None:
        """Brings ``busy`` up to now."""
        self._advance()

    def _rate(self) -> float:
        return min(1.0, self.count / self._threads) if self._threads > _MOMENT else 1.0

    def _advance(self) -> None:
        passed = self._clock.now - self._at
        self._virtual += passed * self._rate()
        self.busy += passed * min(self.count, self._threads)
        self._at = self._clock.now

    def _plan(self) -> None:
        self._plan_number += 1
        if self._jobs:
            number = self._plan_number
            left = max(0.0, self._jobs[0][0] - self._virtual)
            self._clock.after(left / self._rate(), lambda: self._end(number))

    def _end(self, number: int) -> None:
        if number != self._plan_number:
            return  # somebody has come or gone since
        self._advance()
        ended = []
        while self._jobs and self._jobs[0][0] <= self._virtual + _MOMENT:
            _, _, threads, then = heapq.heappop(self._jobs)
            self._threads -= threads
            ended.append(then)
        self._plan()
        for then in ended:
            then()


class Line:
    """Jobs one after the other, first come, first served.

    Attributes:
      busy: seconds with a job so far, up to the last change.
    """

    def __init__(self, clock: Clock) -> None:
        self.busy = 0.0
        self._clock = clock
        self._waiting: deque[tuple[Job, Then]] = deque()
        self._begun: float | None = None

    def run(self, job: Job, then: Then) -> None:
        """Begins ``job`` when all earlier ones are over, and calls ``then`` after it."""
        self._waiting.append((job, then))
        if self._begun is None:
            self._next()

    def settle(self) -> None:
        """Brings ``busy`` up to now."""
        if self._begun is not None:
            self.busy += self._clock.now - self._begun
            self._begun = self._clock.now

    def _next(self) -> None:
        if not self._waiting:
            return
        job, then = self._waiting.popleft()
        self._begun = self._clock.now

        def over() -> None:
            assert self._begun is not None
            self.busy += self._clock.now - self._begun
            self._begun = None
            then()
            if self._begun is None:
                self._next()

        job(over)
