"""``python -m orchard.launch.host ADDRESS INDEX``: one more host of a run whose host 0, on this machine, started it."""

from __future__ import annotations

import sys

from orchard.errors import OrchardError

if __name__ == "__main__":
    from orchard.launch.run import take_part

    try:
        take_part(sys.argv[1], int(sys.argv[2]))
    except OrchardError as error:
        raise SystemExit(f"orchard: {error}") from None
