"""``python -m seedbed.timing.keep_busy JOB``: keeps a core busy until it is ended; says so first, in one line."""

from __future__ import annotations

import sys

if __name__ == "__main__":
    sys.stdout.write("busy\n")
    sys.stdout.flush()
    while True:
        pass
