"""The measurement runs and adds up; how fast it is, is not tested."""

from __future__ import annotations

import pytest

from seedbed.errors import ConfigError
from seedbed.timing.transport import ADDRESSES, measure


@pytest.mark.parametrize("carrier", ADDRESSES)
def test_measure(carrier: str) -> None:
    row = measure(carrier, 2, (4, 4), 0.05)
    assert row["frames_per_s"] == pytest.approx(2 * row["round_trips_per_s"])
    assert row["round_trips_per_s"] > 0
    assert 0 < row["processor_us"] < 1e6
    assert row["carrier"] == carrier


def test_unknown_carriers_and_sizes_are_said() -> None:
    with pytest.raises(ConfigError, match="did you mean shm"):
        measure("shmm", 1, (4, 4), 0.1)
    with pytest.raises(ConfigError, match="positive"):
        measure("shm", 0, (4, 4), 0.1)
