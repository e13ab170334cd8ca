"""The program of a host that host 0 starts on its own machine: ``python -m seedbed.launch.host ADDRESS INDEX``."""

from __future__ import annotations

import sys

from seedbed.errors import SeedbedError

if __name__ == "__main__":
    from seedbed.launch.train import take_part

    try:
        take_part(sys.argv[1], int(sys.argv[2]), trust=None)  # as host 0 itself, whose process it is
    except SeedbedError as error:
        raise SystemExit(f"seedbed: {error}") from None
