"""The actor: one program that steps environments for whoever acts, over any carrier. It imports no JAX.

``python -m orchard.acting.actor ADDRESS`` is how a run starts the actors of its own machine; people use
``orchard actor ADDRESS``, which is the same with help and colours.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import sys
import time
import traceback
from collections import deque
from collections.abc import Callable
from typing import Any

from orchard.acting.meters import Latencies
from orchard.acting.unrolls import step_arrays, step_fields
from orchard.envs.interface import Environment
from orchard.envs.make import make
from orchard.errors import ConnectionLost, OrchardError
from orchard.transport.connect import connect
from orchard.transport.seam import PROTOCOL, Client, Layout, Layouts

CONNECT_SECONDS = 10.0
REPORT_SECONDS = 1.0
FIRST_RETRY_SECONDS, LONGEST_RETRY_SECONDS = 1.0, 15.0


def act(client: Client, *, token: str, index: int | None = None, envs: int | None = None) -> None:
    """Joins, makes the environments that it is told to, and steps them until the conversation ends.

    Args:
      client: a fresh connection.
      token: what the learner printed.
      index: the place to take among the actors; None to be given one.
      envs: environments to step; None for as many as the learner's own actors.

    Raises:
      Refused: the learner does not want this actor; its reason.
      ConnectionLost: the learner is gone.
      EnvironmentFault: an environment raised.
    """
    recipe = client.ask(
        {
            "kind": "join",
            "protocol": PROTOCOL,
            "token": token,
            "index": index,
            "envs": envs,
            "host": socket.gethostname(),
            "pid": os.getpid(),
        }
    )
    lanes: list[Environment] = []
    try:
        for _ in recipe["seeds"]:
            lanes.append(make(recipe["env"], recipe["rows"], recipe["options"]))
        spec = lanes[0].spec
        client.ask({"kind": "ready", "spec": spec.to_json()})
        rows = recipe["rows"]
        down = Layout((((rows, *spec.action.shape), spec.action.dtype),))
        client.open([Layouts(Layout(step_fields(spec, rows)), down)] * len(lanes))
        for lane, (environment, seed) in enumerate(zip(lanes, recipe["seeds"], strict=True)):
            client.send(lane, step_arrays(environment.reset(seed)))
        _step_forever(client, lanes)
    finally:
        for environment in lanes:
            try:
                environment.close()
            except Exception:
                # The others are closed too, and what ended the actor is what it reports.
                traceback.print_exc()


def _step_forever(client: Client, lanes: list[Environment]) -> None:
    """Lets one half step while the other waits for its actions; ends by an error."""
    stepping: deque[int] = deque()
    diary = Diary(client)
    sent = [time.monotonic()] * len(lanes)
    while True:
        diary.report_if_due()
        while (reply := client.receive(wait=not stepping)) is not None:
            lane, (action,) = reply
            diary.waits.add(time.monotonic() - sent[lane])
            lanes[lane].send(action)
            stepping.append(lane)
        lane = stepping.popleft()
        step = step_arrays(lanes[lane].receive())
        sent[lane] = time.monotonic()
        client.send(lane, step)


class Diary:
    """What an actor reports of itself, every second while it acts.

    Attributes:
      waits: how long its environments waited for actions.
    """

    def __init__(self, client: Client) -> None:
        self.waits = Latencies()
        self._client = client
        self._due = time.monotonic() + REPORT_SECONDS

    def report_if_due(self) -> None:
        """Tells the learner, if a second has passed since the last time."""
        now = time.monotonic()
        if now < self._due:
            return
        self._due = now + REPORT_SECONDS
        self._client.ask({"kind": "report", "waits": self.waits.take()})


def act_and_reconnect(address: str, *, say: Callable[[str], None], **join: Any) -> None:
    """Acts for a learner that may go and come back; ends when the learner refuses or an environment fails.

    Args:
      address: where the learner listens.
      say: takes one line for people.
      **join: as for :func:`act`.
    """
    retry = FIRST_RETRY_SECONDS
    while True:
        try:
            client = connect(address, timeout=CONNECT_SECONDS)
        except ConnectionLost as error:
            say(f"{error}; trying again in {retry:.0f} s")
            time.sleep(retry)
            retry = min(2 * retry, LONGEST_RETRY_SECONDS)
            continue
        begun = time.monotonic()
        try:
            say(f"acting for {address}")
            act(client, **join)
        except ConnectionLost as error:
            say(f"the learner is gone ({error}); waiting for it to come back")
            # One that drops whoever comes is not asked every second for ever.
            lasted = time.monotonic() - begun > LONGEST_RETRY_SECONDS
            retry = FIRST_RETRY_SECONDS if lasted else retry
            time.sleep(retry)
            retry = min(2 * retry, LONGEST_RETRY_SECONDS)
        finally:
            client.close()


def main() -> None:
    """Entry of the actors that a run starts itself; exit status 0 when the learner is gone, 3 on a fault."""
    parser = argparse.ArgumentParser(prog="orchard.acting.actor")
    parser.add_argument("address")
    parser.add_argument("--index", type=int, required=True)
    arguments = parser.parse_args()
    # The learner decides when its actors stop.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        client = connect(arguments.address, timeout=CONNECT_SECONDS)
        act(client, token=os.environ.get("ORCHARD_TOKEN", ""), index=arguments.index)
    except ConnectionLost as error:
        print(error, file=sys.stderr, flush=True)  # noqa: T201
    except OrchardError as error:
        traceback.print_exc()
        print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)  # noqa: T201
        raise SystemExit(3) from None


if __name__ == "__main__":
    main()
