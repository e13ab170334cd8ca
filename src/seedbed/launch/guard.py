"""What outlives a learner that is killed: it ends the actors that the learner can no longer stop.

A learner that ends in an ordinary way stops its actors itself. One that is killed (``kill -9``, no memory left) says
nothing; its actors lose their connection, close their environments and end. This program waits a moment for
that and then kills, with everything that their environments have started, those that hang. It is run as a file by
an interpreter without packages: a small process, of its own group, that only waits.
"""

import contextlib
import os
import signal
import sys
import time


def main() -> None:
    """Keeps the process groups that standard input names, ``+GROUP`` or ``-GROUP`` a line; kills them at its end."""
    seconds = float(sys.argv[1])
    groups: set[int] = set()
    for line in sys.stdin:
        change = groups.add if line[0] == "+" else groups.discard
        change(int(line[1:]))
    over = time.monotonic() + seconds
    while groups and time.monotonic() < over:
        time.sleep(0.05)
        groups = {group for group in groups if _lives(group)}
    for group in groups:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)


def _lives(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


if __name__ == "__main__":
    main()
