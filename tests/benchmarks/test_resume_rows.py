"""The benchmark of kills and resumptions compares what it says."""

from __future__ import annotations

import importlib
from pathlib import Path

import numpy as np


def test_digests_see_every_value_and_not_the_pieces(results: Path) -> None:
    script = importlib.import_module("resume")
    whole = {"frame": np.arange(12, dtype=np.uint8).reshape(4, 3), "reward": np.arange(4.0)}
    halves = [{name: array[part] for name, array in whole.items()} for part in (slice(0, 1), slice(1, None))]
    assert script.digests([whole]) == script.digests(halves)
    for name, array in whole.items():
        other = {**whole, name: array.copy()}
        other[name].reshape(-1)[-1] += 1
        assert script.digests([other])[name] != script.digests([whole])[name]
