"""The meters of acting: batches of the policy, waits for actions, bytes that travelled."""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from seedbed.errors import Refused
from seedbed.metrics.final_info import FinalInfo

_SHORTEST, _LONGEST = 1e-6, 1e3
_WIDTH = math.log(1.05)
"""Width of a bucket, as a logarithm: neighbouring buckets are 5% apart, which is the accuracy of a quantile."""
_BUCKETS = math.ceil(math.log(_LONGEST / _SHORTEST) / _WIDTH)
_MOST = 1 << 40


_SERVED = ("batches", "rows", "padded", "seconds", "up", "down")
"""Names of the counters of a process that runs the policy."""


class Latencies:
    """A histogram of the times that actors waited for actions; owned by one thread."""

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}

    def add(self, seconds: float, count: int = 1) -> None:
        """Counts ``count`` waits of ``seconds`` s."""
        bucket = int(math.log(min(max(seconds, _SHORTEST), _LONGEST) / _SHORTEST) / _WIDTH)
        self._counts[bucket] = self._counts.get(bucket, 0) + count

    def merge(self, counts: Mapping[str, Any]) -> None:
        """Adds a result of :meth:`take`; raises :class:`Refused` on anything else."""
        for bucket, count in counts.items():
            known = len(bucket) <= 4 and bucket.isdecimal() and int(bucket) <= _BUCKETS
            if not (known and type(count) is int and 0 <= count < _MOST):
                raise Refused(f"{count!r} waits in bucket {bucket[:20]!r}: not what an actor reports")
        for bucket, count in counts.items():
            self._counts[int(bucket)] = self._counts.get(int(bucket), 0) + count

    def take(self) -> dict[str, int]:
        """Returns the counts by bucket, as JSON values, and resets them."""
        counts, self._counts = self._counts, {}
        return {str(bucket): count for bucket, count in counts.items()}

    def quantile(self, share: float) -> float | None:
        """Returns the quantile of the waits at ``share`` (from 0 to 1), in s; None if there were none."""
        left = share * sum(self._counts.values())
        for bucket in sorted(self._counts):
            left -= self._counts[bucket]
            if left <= 0:
                return _SHORTEST * math.exp((bucket + 0.5) * _WIDTH)
        return None

    def __len__(self) -> int:
        return sum(self._counts.values())


@dataclass
class Meters:
    """The counters of acting since they were last read (of bytes: since its start); guarded by a lock.

    Attributes:
      batches: number of batches of the policy.
      rows: number of environments in these batches, in sum.
      padded: number of environments that full batches would have had, in sum.
      seconds: time in s that the policy took for them.
      latencies: times that actors waited for actions.
      up, down: bytes of arrays that came from actors, and that went to them.
      info: statistics of environments at the ends of episodes.
      lock: lock that guards the others.
    """

    batches: int = 0
    rows: int = 0
    padded: int = 0
    seconds: float = 0.0
    latencies: Latencies = field(default_factory=Latencies)
    up: int = 0
    down: int = 0
    info: FinalInfo = field(default_factory=FinalInfo)
    lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def add(self, rows: int, size: int, seconds: float, batches: int = 1) -> None:
        """Counts batches of ``rows`` together, in full batches of ``size`` together."""
        with self.lock:
            self.batches += batches
            self.rows += rows
            self.padded += size
            self.seconds += seconds

    def travel(self, *, up: int = 0, down: int = 0) -> None:
        """Counts bytes of arrays that came from actors, and that went to them."""
        with self.lock:
            self.up += up
            self.down += down

    def tell(self, info: Mapping[str, Any]) -> None:
        """Adds statistics of environments at the ends of episodes, a result of :meth:`FinalInfo.take`."""
        with self.lock:
            self.info.merge(info)

    def report(self, told: Mapping[str, Any]) -> None:
        """Adds the report of an actor, or of a forward-pass server.

        Args:
          told: report with ``waits``, a result of :meth:`Latencies.take`, and ``info``, a result of
            :meth:`FinalInfo.take`; a server's is a result of :meth:`hand_on`.

        Raises:
          Refused: ``told`` is no report.
        """
        waits, served, info = told.get("waits"), told.get("served", {}), told.get("info", {})
        if not isinstance(waits, dict):
            raise Refused(f"a report without 'waits': {str(told)[:200]}")
        if not (isinstance(served, dict) and all(_counts(name, served[name]) for name in served)):
            raise Refused(f"not what a forward-pass server reports: {str(served)[:200]}")
        if not isinstance(info, dict):
            raise Refused(f"not what environments tell: {str(info)[:200]}")
        with self.lock:
            self.latencies.merge(waits)
            self.info.merge(info)
            for name, number in served.items():
                setattr(self, name, getattr(self, name) + number)

    def hand_on(self) -> dict[str, Any]:
        """Returns all counters as JSON values, for :meth:`report` in another process, and resets them."""
        with self.lock:
            served = {name: getattr(self, name) for name in _SERVED}
            self.batches, self.rows, self.padded, self.seconds, self.up, self.down = 0, 0, 0, 0.0, 0, 0
            return {"waits": self.latencies.take(), "served": served, "info": self.info.take()}

    def take_info(self) -> dict[str, list[float]]:
        """Returns the statistics of environments since the last call, a result of :meth:`FinalInfo.take`."""
        with self.lock:
            return self.info.take()

    def take(self) -> dict[str, float]:
        """Returns means and quantiles since the last call, and bytes, by the names of metrics, without empty ones."""
        with self.lock:
            taken = self.info.means()
            if self.up:
                taken |= {"bytes_from_actors": self.up, "bytes_to_actors": self.down}
            if self.batches:
                taken["inference_batch"] = self.rows / self.batches
                taken["batch_fill"] = self.rows / self.padded
                taken["inference_milliseconds"] = 1e3 * self.seconds / self.batches
            for name, share in (("action_wait_p50", 0.5), ("action_wait_p99", 0.99)):
                if (seconds := self.latencies.quantile(share)) is not None:
                    taken[name] = 1e3 * seconds
            self.batches, self.rows, self.padded, self.seconds = 0, 0, 0, 0.0
            self.latencies = Latencies()
            return taken


def _counts(name: str, number: object) -> bool:
    """Returns whether ``number`` is possible for the counter ``name`` of a forward-pass server."""
    kinds = (int, float) if name == "seconds" else (int,)
    return name in _SERVED and type(number) in kinds and 0 <= number < _MOST  # type: ignore[operator]
