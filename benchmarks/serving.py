"""Times the decisions of a served policy at 1, 16 and 256 clients, each of one environment.

``.venv/bin/python benchmarks/serving.py RUN [SECONDS]`` serves the run in a process of its own (``seedbed serve``) at a
socket file, asks from this one, prints a line a number of clients and appends a row to
``benchmarks/results/serving.jsonl``. A client asks again as soon as it has its action; its time is from sending an
observation to having the action, with what this process adds.
"""

from __future__ import annotations

import json
import select
import shlex
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from seedbed.acting.unrolls import step_fields
from seedbed.timing.stages import provenance
from seedbed.transport.interface import PROTOCOL, Layout, Layouts
from seedbed.transport.sockets import SocketClient
from seedbed.types import EnvSpec

CLIENTS = (1, 16, 256)
_START_SECONDS = 600.0


def main() -> None:
    run, seconds = Path(sys.argv[1]), float(sys.argv[2]) if len(sys.argv) > 2 else 5.0
    with tempfile.TemporaryDirectory(prefix="seedbed-") as folder:
        address = f"socket:unix:{folder}/s"
        command = [sys.executable, "-m", "seedbed", "serve", str(run), "--greedy", "--listen", address]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
            try:
                assert server.stdout is not None
                about, line = server.stdout.readline().strip(), server.stdout.readline()
                token = line.split('join="')[1].split('"')[0]
                print(about, flush=True)
                measured = [measure(address, token, clients, seconds) for clients in CLIENTS]
            finally:
                server.terminate()
                server.communicate()
    row = {"command": shlex.join(["benchmarks/serving.py", *sys.argv[1:]]), "policy": about}
    row |= {"measured": measured, **provenance()}
    with (Path(__file__).parent / "results" / "serving.jsonl").open("a") as file:
        file.write(json.dumps(row) + "\n")


def measure(address: str, token: str, count: int, seconds: float) -> dict[str, Any]:
    """Asks with ``count`` clients at once for ``seconds``; the first tenth is left out."""
    with ExitStack() as stack:
        clients, arrays = {}, []
        for _ in range(count):
            client, arrays = joined(address, token)
            stack.callback(client.close)
            clients[client.fileno()] = client
        poll = select.poll()
        for number in clients:
            poll.register(number, select.POLLIN)
        begun, sent, waits = time.perf_counter(), {}, []
        for number, client in clients.items():
            sent[number] = time.perf_counter()
            client.send(0, arrays)
        while (now := time.perf_counter()) < begun + seconds:
            for number, _ in poll.poll(1000):
                if clients[number].receive(wait=False) is None:
                    continue
                now = time.perf_counter()
                if now > begun + seconds / 10:
                    waits.append(now - sent[number])
                sent[number] = now
                clients[number].send(0, arrays)
    p50, p99 = np.percentile(waits, [50, 99]) * 1e3
    found = {
        "clients": count,
        "decisions_per_s": len(waits) / (0.9 * seconds),
        "p50_ms": p50,
        "p99_ms": p99,
        "seconds": seconds,
    }
    print(
        f"{count:>4} clients: p50 {p50:.2f} ms, p99 {p99:.2f} ms, {found['decisions_per_s']:,.0f} decisions/s",
        flush=True,
    )
    return found


def joined(address: str, token: str) -> tuple[SocketClient, list[Any]]:
    """A client of one environment, and the arrays of a step of it."""
    client = SocketClient(address, timeout=_START_SECONDS)
    told = client.ask({"kind": "join", "protocol": PROTOCOL, "token": token, "envs": 1})
    spec = EnvSpec.from_json(told["spec"])
    client.ask({"kind": "ready", "spec": spec.to_json()})
    up = Layout(step_fields(spec, 1))
    client.open([Layouts(up, Layout((((1, *spec.action.shape), spec.action.dtype),)))])
    return client, [np.zeros(shape, dtype) for shape, dtype in up.fields]


if __name__ == "__main__":
    main()
