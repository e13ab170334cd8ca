"""The program of one worker of a parameter server: ``python -m orchard.launch.worker ADDRESS --index I``.

It acts, remembers and learns as the run's desk tells it, and ends when the desk is gone.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from orchard.architectures.gorila import PATIENCE_SECONDS, GorilaWorker, shapes_of
from orchard.config.resolve import from_json
from orchard.errors import ConnectionLost, OrchardError, RunFailed
from orchard.launch.actors import GRACE_SECONDS, ThreadActor
from orchard.launch.build import build_agent
from orchard.transport.connect import connect
from orchard.transport.seam import PROTOCOL, Client, Layout, Layouts
from orchard.types import EnvSpec
from orchard.weights.server import RemoteShards

_CONNECT_SECONDS = 30.0
_REPORT_SECONDS = 0.5


def work(client: Client, token: str, index: int) -> None:
    """Works for the desk at the other end of ``client`` until that is gone, which raises."""
    job = client.ask({"kind": "join", "protocol": PROTOCOL, "token": token, "index": index})
    client.open([Layouts(Layout(()), Layout(()))])
    config = from_json(job["run"])
    spec = EnvSpec.from_json(job["spec"])
    agent = build_agent(config, spec)
    with contextlib.ExitStack() as stack:
        shards = RemoteShards(
            agent.optimizer, shapes_of(agent), job["shards"], token, patience=PATIENCE_SECONDS
        )
        stack.enter_context(contextlib.closing(shards))
        worker = GorilaWorker(config, agent, spec, server=shards, index=index, epoch=job["epoch"])
        stack.enter_context(contextlib.closing(worker))
        [address] = worker.open([f"inproc:worker-{os.getpid()}-{index}"])
        actor = ThreadActor(0, address, "", Path("the log of this worker"))
        stack.callback(actor.finish, GRACE_SECONDS)
        stack.callback(worker.close)
        reported = 0.0
        for metrics in _learned(worker, job["steps"]):
            _require_alive(worker, actor, config.safety.env_timeout)
            if time.monotonic() - reported > _REPORT_SECONDS:
                reported = time.monotonic()
                client.ask({"kind": "report", **worker.told(metrics)})
        # All its steps are made, and the others may still be at theirs.
        while True:
            client.ask({"kind": "report", **worker.told({})})
            time.sleep(_REPORT_SECONDS)


def _learned(worker: GorilaWorker, steps: int | None) -> Iterator[Mapping[str, Any]]:
    """Learns until so many steps are made; yields the metrics of updates, and none now and then."""
    if steps is not None and steps <= 0:
        return
    for metrics in worker.updates(threading.Event()):
        yield metrics or {}
        if metrics is not None and steps is not None and worker.ledger.counts()["received"] >= steps:
            return


def _require_alive(worker: GorilaWorker, actor: ThreadActor, env_timeout: float) -> None:
    """Raises :class:`RunFailed` if the environments have failed or hang."""
    if (reason := actor.ended()) is not None:
        raise RunFailed(reason)
    for _, seconds in worker.desk.stalled(env_timeout):
        raise RunFailed(
            f"its environments took more than {seconds:.0f} s for one step (--env-timeout allows more)"
        )


def main() -> None:
    """Entry; exit status 0 when the desk is gone, 3 on a fault."""
    parser = argparse.ArgumentParser(prog="orchard.launch.worker")
    parser.add_argument("address")
    parser.add_argument("--index", type=int, required=True)
    arguments = parser.parse_args()
    # The run decides when its workers stop.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    status = 0
    try:
        client = connect(arguments.address, timeout=_CONNECT_SECONDS)
        work(client, os.environ.get("ORCHARD_TOKEN", ""), arguments.index)
    except ConnectionLost as error:
        print(error, file=sys.stderr, flush=True)  # noqa: T201
    except OrchardError as error:
        traceback.print_exc()
        print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)  # noqa: T201
        status = 3
    # An environment that hangs in a thread would keep the process from ending.
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    main()
