"""Commands that stay go on serving when the reader of their lines has left (``| head -1``)."""

import contextlib
import io
import os
import signal
import socket
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from harness import PATIENCE, until
from untrained import untrained

import seedbed
from seedbed.cli import serve, watch
from seedbed.launch.folder import RunFolder


@contextlib.contextmanager
def without_a_reader(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Standard output is a pipe that nobody reads."""
    reading, writing = os.pipe()
    os.close(reading)
    with io.open(writing, "w") as stream, monkeypatch.context() as patch:  # noqa: UP020
        patch.setattr(sys, "stdout", stream)
        yield


@contextlib.contextmanager
def meanwhile(ready: Callable[[], bool], use: Callable[[], None]) -> Iterator[list[BaseException]]:
    """Uses a command's service from another thread once it is ready, and then interrupts the command in this one."""
    faults: list[BaseException] = []
    over = threading.Event()

    def work() -> None:
        try:
            until(lambda: over.is_set() or ready(), "the service")
            if not over.is_set():
                use()
        except BaseException as fault:
            faults.append(fault)
        if not over.is_set():
            os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield faults
    finally:
        over.set()
        thread.join(PATIENCE)


def test_serve_admits_clients(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, place = untrained("toy:catch", tmp_path / "run", agent="vtrace"), tmp_path / "s"
    acted: list[int] = []

    def use() -> None:
        join = str(RunFolder.open(folder).invitation(insecure=False))
        for _ in range(2):  # each is told of as it comes and as it leaves
            policy = seedbed.connect(f"unix:{place}", join=join)
            action, _ = policy.act(np.zeros(policy.observation_spec.shape, np.float32))
            acted.append(int(action))
            policy.close()

    with (
        without_a_reader(monkeypatch),
        meanwhile(place.exists, use) as faults,
        pytest.raises(KeyboardInterrupt),
    ):
        serve.run([str(folder), "--listen", f"unix:{place}", "--inference-batch", "1"])
    assert not faults and len(acted) == 2


def test_watch_shows_its_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = untrained("toy:catch", tmp_path / "run", agent="vtrace")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shown: list[int] = []

    def answers() -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return True
        return False

    def use() -> None:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=PATIENCE) as answer:
            shown.append(answer.status)

    with without_a_reader(monkeypatch), meanwhile(answers, use) as faults:
        watch.run([str(folder), "--port", str(port)])
    assert not faults and shown == [200]
