"""The speed of a carrier on this machine: steps up and actions down between two processes.

``measure`` serves in this process and starts the client as another one, as an actor is
(``python -m seedbed.timing.transport``). Nothing is computed at either end: the carrier alone is measured.
"""

from __future__ import annotations

import json
import secrets
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seedbed.errors import ConfigError, Refused, TransportError, unknown_name
from seedbed.transport.admission import Gate, Invitation
from seedbed.transport.connect import connect, listen
from seedbed.transport.interface import Client, Layout, Layouts, Peer
from seedbed.transport.tls import Identity

ADDRESSES = {
    "inproc": "inproc:measure",
    "shm": "shm:{directory}/socket",
    "unix": "unix:{directory}/socket",
    "tcp": "127.0.0.1:0",
    "tls": "0.0.0.0:0",  # an address of the network, which is dialled by loopback
}
"""The carriers, by the name that ``measure`` takes."""

_CONNECT_SECONDS = 30.0


def measure(
    carrier: str, envs: int, obs_shape: Sequence[int], seconds: float, *, lanes: int = 2
) -> dict[str, Any]:
    """Measures one carrier with one client.

    Args:
      carrier: ``"inproc"`` (the client is a thread then), ``"shm"``, ``"unix"``, ``"tcp"`` or ``"tls"`` (TCP,
        encrypted).
      envs: environments a lane, so observations a message.
      obs_shape: shape of one observation, uint8.
      seconds: length of the measurement.
      lanes: messages in flight.

    Returns:
      ``carrier, envs, obs_shape, lanes, seconds``, and ``round_trips_per_s`` (messages), ``frames_per_s``
      (observations), ``megabytes_per_s`` (10⁶ bytes, both ways) and ``processor_us`` (processor time of both ends, µs a
      round trip, which depends less than the others on what else the machine does).

    Raises:
      ConfigError: no such carrier, or a number that is not positive.
      TransportError: the client failed; the message says how.
    """
    if carrier not in ADDRESSES:
        raise ConfigError(unknown_name("carrier", carrier, ADDRESSES))
    if envs < 1 or seconds <= 0:
        raise ConfigError(f"envs={envs} and seconds={seconds} must be positive")
    question = {"envs": envs, "obs_shape": list(obs_shape), "lanes": lanes}
    with tempfile.TemporaryDirectory(prefix="seedbed-") as directory:
        gate = Gate(secrets.token_hex(16), Identity.make()) if carrier == "tls" else None
        server = listen(ADDRESSES[carrier].format(directory=directory), _Echo(), gate=gate)
        invitation = str(gate.invitation(server.address)) if gate else ""
        address = server.address.replace("0.0.0.0", "127.0.0.1")
        try:
            run = _run_as_thread if carrier == "inproc" else _run_as_process
            begin = time.process_time()
            round_trips, passed, busy = run(address, invitation, question, seconds)
            busy += time.process_time() - begin
        finally:
            server.close()
    one = _terms(question)[0]
    return {
        "carrier": carrier,
        **question,
        "seconds": passed,
        "round_trips_per_s": round_trips / passed,
        "frames_per_s": round_trips * envs / passed,
        "megabytes_per_s": round_trips * one.nbytes / passed / 1e6,
        "processor_us": 1e6 * busy / round_trips,
    }


class _Echo:
    """Replies at once to every step, with the same actions."""

    def __init__(self) -> None:
        self._actions: dict[Peer, list[NDArray[Any]]] = {}

    def answer(self, peer: Peer, message: dict[str, Any]) -> dict[str, Any]:
        try:
            lanes = _terms(message)
        except (KeyError, TypeError, ValueError) as error:
            raise Refused(f"not a measurement: {error}") from error
        peer.open(lanes)
        self._actions[peer] = [np.zeros(shape, dtype) for shape, dtype in lanes[0].down.fields]
        return {}

    def deliver(self, peer: Peer, lane: int, arrays: list[NDArray[Any]]) -> None:
        peer.reply(lane, self._actions[peer])

    def left(self, peer: Peer, reason: str) -> None:
        self._actions.pop(peer, None)


def _terms(question: dict[str, Any]) -> list[Layouts]:
    envs = int(question["envs"])
    observation = (envs, *(int(n) for n in question["obs_shape"]))
    flag = ((envs,), "bool")
    up = Layout(((observation, "uint8"), ((envs,), "float32"), flag, flag, flag))
    return [Layouts(up, Layout((((envs,), "int32"),)))] * int(question["lanes"])


_Found = tuple[int, float, float]
"""Round trips, the seconds that they took, and the client's processor time in s where it is another process."""


def _run_as_thread(address: str, invitation: str, question: dict[str, Any], seconds: float) -> _Found:
    found: list[_Found] = []
    thread = threading.Thread(target=lambda: found.append(_run(address, invitation, question, seconds)))
    thread.start()
    thread.join()
    if not found:
        raise TransportError("the measuring client failed: its error was printed above")
    round_trips, passed, _ = found[0]
    return round_trips, passed, 0.0


def _run_as_process(address: str, invitation: str, question: dict[str, Any], seconds: float) -> _Found:
    words = [address, invitation, json.dumps(question), str(seconds)]
    command = [sys.executable, "-P", "-m", __spec__.name, *words]
    limit = seconds + 2 * _CONNECT_SECONDS
    try:
        done = subprocess.run(
            command, capture_output=True, encoding="utf-8", errors="replace", timeout=limit, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise TransportError(f"the measuring client did not end within {limit:g} s") from error
    if done.returncode:
        raise TransportError(f"the measuring client failed:\n{done.stderr}")
    round_trips, passed, busy = json.loads(done.stdout)
    return int(round_trips), float(passed), float(busy)


def _run(address: str, invitation: str, question: dict[str, Any], seconds: float) -> _Found:
    invited = Invitation.parse(invitation) if invitation else None
    client = connect(address, timeout=_CONNECT_SECONDS, invitation=invited)
    try:
        begin = time.process_time()
        client.ask(question)
        terms = _terms(question)
        client.open(terms)
        arrays = [np.zeros(shape, dtype) for shape, dtype in terms[0].up.fields]
        for lane in range(len(terms)):
            client.send(lane, arrays)
        return (*_alternate(client, arrays, seconds), time.process_time() - begin)
    finally:
        client.close()


def _alternate(client: Client, arrays: list[NDArray[Any]], seconds: float) -> tuple[int, float]:
    begin = time.perf_counter()
    for count in range(sys.maxsize):
        reply = client.receive()
        assert reply is not None
        passed = time.perf_counter() - begin
        if passed >= seconds:
            return count + 1, passed
        client.send(reply[0], arrays)
    raise AssertionError("unreachable")


def _main() -> None:
    address, invitation, question, seconds = sys.argv[1:]
    sys.stdout.write(json.dumps(_run(address, invitation, json.loads(question), float(seconds))))


if __name__ == "__main__":
    _main()
