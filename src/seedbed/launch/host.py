"""``python -m seedbed.launch.host ADDRESS INDEX``: one more host of a run whose host 0, on this machine, started it."""

from __future__ import annotations

import sys

from seedbed.errors import SeedbedError

if __name__ == "__main__":
    from seedbed.launch.train import take_part

    try:
        take_part(sys.argv[1], int(sys.argv[2]), trust=None)  # as host 0 itself, whose process it is
    except SeedbedError as error:
        raise SystemExit(f"seedbed: {error}") from None
