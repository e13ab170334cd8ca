"""The program of one forward-pass server: ``python -m seedbed.launch.forward_pass JOB``.

It acts for rollout workers until its optimizer is gone, or it is ended.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

from seedbed import faults
from seedbed.architectures.rapid import ForwardServer
from seedbed.config.resolve import from_json
from seedbed.errors import ConnectionLost
from seedbed.launch.build import build_agent
from seedbed.types import EnvSpec


def serve(job: dict[str, Any], token: str, over: threading.Event) -> None:
    """Serves until ``over`` is set or the optimizer is gone; raises what ended acting otherwise."""
    config, spec = from_json(job["run"]), EnvSpec.from_json(job["spec"])
    failed: list[BaseException] = []

    def fail(error: BaseException) -> None:
        failed.append(error)
        over.set()

    def lose(reason: str) -> None:
        print(reason, file=sys.stderr, flush=True)  # noqa: T201
        over.set()

    server = ForwardServer(
        config,
        build_agent(config, spec),
        spec,
        index=job["index"],
        optimizer=job["optimizer"],
        token=token,
        on_failure=fail,
        on_lost=lose,
    )
    with contextlib.closing(server):
        server.open(job["address"])
        over.wait()
    for error in failed:
        raise error


def main() -> None:
    """Entry; exit status 0 when it is told to end or the optimizer is gone, 3 on a fault."""
    parser = argparse.ArgumentParser(prog="seedbed.launch.forward_pass")
    parser.add_argument("job", type=Path)
    over = threading.Event()
    # The run decides when its servers stop.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: over.set())
    try:
        serve(json.loads(parser.parse_args().job.read_text()), os.environ.get("SEEDBED_TOKEN", ""), over)
    except ConnectionLost as error:
        print(error, file=sys.stderr, flush=True)  # noqa: T201
    except BaseException as error:
        raise SystemExit(faults.leave(error)) from None


if __name__ == "__main__":
    main()
