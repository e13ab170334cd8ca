"""A bound on actors from elsewhere that send what cannot be learned from: no supervisor restarts them within a budget.

An actor is known by the machine that it comes from. Its index, its process and its name are what it says itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

ALLOWED = 3
"""Number of times that actors of a machine may be sent away and come back at once."""
FORGOTTEN_SECONDS = 600.0
"""Time without another violation after which those of a machine are forgotten."""
FIRST_SECONDS, LONGEST_SECONDS = 10.0, 600.0
_MOST_PLACES = 1024


@dataclass
class _Place:
    """The violations from one place.

    Attributes:
      count: number of violations that are not forgotten.
      over: time (monotonic, s) until which its actors are refused; that of the last violation if they are not.
    """

    count: int = 0
    over: float = float("-inf")


class Violations:
    """A record of the actors from elsewhere that were sent away for what they sent, by place.

    Args:
      clock: seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._places: dict[str, _Place] = {}

    def note(self, place: str) -> str:
        """Notes that an actor from a place was sent away.

        Returns:
          A line if the place's actors are refused from now on, twice as long as the last time; else an empty one.
        """
        found, now = self._places.pop(place, _Place()), self._clock()
        if now > found.over + FORGOTTEN_SECONDS:
            found = _Place()
        self._places[place] = found  # the last place of the dictionary: the one that broke a rule last
        if len(self._places) > _MOST_PLACES:
            del self._places[next(iter(self._places))]
        found.count += 1
        beyond = found.count - ALLOWED
        wait = min(FIRST_SECONDS * 2.0 ** min(beyond - 1, 32), LONGEST_SECONDS) if beyond > 0 else 0.0
        found.over = max(found.over, now + wait)
        return f"actors from {place or 'this machine'} are refused for {wait:.0f} s" if wait else ""

    def refusal(self, place: str) -> str | None:
        """Returns the reason why an actor from a place may not join now; None if it may."""
        found, now = self._places.get(place), self._clock()
        if found is None or now >= found.over:
            return None
        return (
            f"actors from {place or 'this machine'} were sent away {found.count} times for what they sent: none is let "
            f"in for {found.over - now:.0f} s"
        )
