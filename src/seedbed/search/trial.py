"""One run of a sweep, in a process of its own: ``python -m seedbed.search.trial SETTINGS``, with settings as JSON.

It is begun, or gone on with, as ``seedbed train --begin-or-resume`` does it. It saves and ends as after Ctrl-C when its
standard input ends: the process that sweeps holds the other end, and may be killed.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading

from seedbed.config.resolve import from_json
from seedbed.errors import SeedbedError
from seedbed.faults import end_command
from seedbed.launch.allocator import restart_tuned
from seedbed.metrics.say import say


def main() -> int:
    """Runs it; returns 0, or 1 after an error, whose message is printed."""
    restart_tuned()
    threading.Thread(target=_end_with_the_sweep, name="sweep", daemon=True).start()
    from seedbed.launch.train import train

    try:
        train(from_json(json.loads(sys.argv[1])))
    except SeedbedError as error:
        say(f"seedbed: {error}")
        return 1
    except KeyboardInterrupt:
        return 1
    return 0


def _end_with_the_sweep() -> None:
    while os.read(0, 1):
        pass
    os.kill(os.getpid(), signal.SIGINT)


if __name__ == "__main__":
    end_command(main())
