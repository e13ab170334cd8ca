"""The program of one worker of a parameter server: ``python -m seedbed.launch.worker ADDRESS --index I``.

It learns as the run's registry tells it, and ends when the registry is gone.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

from seedbed import faults
from seedbed.architectures.distbelief import Replica
from seedbed.architectures.gorila import GorilaWorker
from seedbed.architectures.with_shards import PATIENCE_SECONDS, shapes_of
from seedbed.config.resolve import from_json
from seedbed.config.settings import RunConfig
from seedbed.errors import ConnectionLost, RunFailed
from seedbed.launch.actors import GRACE_SECONDS, ThreadActor
from seedbed.launch.build import build_agent
from seedbed.parameter_server.pushing import PushingLearner
from seedbed.parameter_server.server import RemoteShards
from seedbed.transport.connect import connect
from seedbed.transport.interface import PROTOCOL, Client, Layout, Layouts
from seedbed.types import Agent, EnvSpec

_CONNECT_SECONDS = 30.0
_REPORT_SECONDS = 0.5


class Work(Protocol):
    """What a worker does: one of :class:`GorilaWorker` and :class:`Replica`."""

    learner: PushingLearner

    def enough(self, steps: int) -> bool:
        """Whether so many steps of the environments, or of the data set, are enough of them for now."""

    def updates(self, stop: threading.Event) -> Iterator[Mapping[str, Any] | None]:
        """Learns; yields metrics after updates, and None now and then."""

    def told(self, metrics: Mapping[str, Any]) -> dict[str, Any]:
        """What is reported, and not reported again."""


def work(client: Client, token: str, index: int) -> None:
    """Works for the registry at the other end of ``client`` until that is gone, which raises."""
    job = client.ask({"kind": "join", "protocol": PROTOCOL, "token": token, "index": index})
    client.open([Layouts(Layout(()), Layout(()))])
    config, spec = from_json(job["run"]), EnvSpec.from_json(job["spec"])
    agent = build_agent(config, spec)
    shards = RemoteShards(agent.optimizer, shapes_of(agent), job["shards"], token, patience=PATIENCE_SECONDS)
    begin = _distbelief if agent.data.dataset else _gorila
    with contextlib.closing(shards), begin(config, agent, spec, shards, job) as (mine, require_alive):
        reported = 0.0
        for metrics in _learned(mine, job["steps"]):
            require_alive()
            if time.monotonic() - reported > _REPORT_SECONDS:
                reported = time.monotonic()
                client.ask({"kind": "report", **mine.told(metrics)})
        mine.learner.flush()
        # All its steps are made, and the others may still be at theirs.
        while True:
            client.ask({"kind": "report", **mine.told({})})
            time.sleep(_REPORT_SECONDS)


def _learned(mine: Work, steps: int | None) -> Iterator[Mapping[str, Any]]:
    """Learns until so many steps are made; yields the metrics of updates, and none now and then."""
    if steps is not None and mine.enough(steps):
        return
    for metrics in mine.updates(threading.Event()):
        yield metrics or {}
        if metrics is not None and steps is not None and mine.enough(steps):
            return


_Begun = Iterator[tuple[Work, Callable[[], None]]]


@contextlib.contextmanager
def _gorila(
    config: RunConfig, agent: Agent, spec: EnvSpec, shards: RemoteShards, job: Mapping[str, Any]
) -> _Begun:
    """A worker that acts, and what raises :class:`RunFailed` if its environments have failed, or hang."""
    mine = GorilaWorker(config, agent, spec, server=shards, index=job["index"], epoch=job["epoch"])
    [address] = mine.loop.open([f"inproc:worker-{os.getpid()}"])
    actor = ThreadActor(0, address, "", Path("the log of this worker"))

    def require_alive() -> None:
        if (reason := actor.ended()) is not None:
            raise RunFailed(reason)
        for _, seconds in mine.source.registry.stalled(config.safety.env_timeout):
            raise RunFailed(
                f"its environments took more than {seconds:.0f} s for one step (--env-timeout allows more)"
            )

    try:
        yield mine, require_alive
    finally:
        mine.loop.close()
        actor.finish(GRACE_SECONDS)


@contextlib.contextmanager
def _distbelief(
    config: RunConfig, agent: Agent, spec: EnvSpec, shards: RemoteShards, job: Mapping[str, Any]
) -> _Begun:
    """A worker that reads."""
    yield (
        Replica(config, agent, spec, server=shards, index=job["index"], position=job["position"]),
        lambda: None,
    )


def main() -> None:
    """Entry; exit status 0 when the registry is gone, 3 on a fault."""
    parser = argparse.ArgumentParser(prog="seedbed.launch.worker")
    parser.add_argument("address")
    parser.add_argument("--index", type=int, required=True)
    arguments = parser.parse_args()
    # The run decides when its workers stop.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    status = 0
    try:
        client = connect(arguments.address, timeout=_CONNECT_SECONDS)
        work(client, os.environ.get("SEEDBED_TOKEN", ""), arguments.index)
    except ConnectionLost as error:
        print(error, file=sys.stderr, flush=True)  # noqa: T201
    except BaseException as error:
        status = faults.leave(error)
    # An environment that hangs in a thread would keep the process from ending.
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    main()
