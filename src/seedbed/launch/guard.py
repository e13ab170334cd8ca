"""The guard, a process that outlives a killed learner and ends the actors that the learner can no longer stop.

A learner that ends in an ordinary way stops its actors itself. If it is killed (``kill -9``, no memory left), its
actors lose their connection, close their environments and end. This program waits a moment for that, then kills the
actors that hang, with all processes that their environments have started. It is run as a file by an interpreter
without packages: a small process, in a process group of its own, that only waits.
"""

import contextlib
import os
import signal
import sys
import time


def main() -> None:
    """Reads process groups from standard input, ``+GROUP`` or ``-GROUP`` a line; kills the remaining ones at its end.

    The first argument of the command line is the time that they have to end by themselves, in seconds.
    """
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
