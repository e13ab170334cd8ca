"""Addresses, and what stands at the places they name."""

from __future__ import annotations

import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from seedbed.errors import ConfigError, ConnectionLost
from seedbed.testing.transport import CARRIERS, PATIENCE, Carrier, FakeHandler, process
from seedbed.transport.connect import connect, listen, seen_from_elsewhere

WRONG = [
    "",
    "shm",
    "shm:",
    "inproc:",
    "unix:",
    "host",
    "host:",
    "host:port",
    "host:70000",
    "http://x:1",
    "a b:1",
    "socket:",
    "socket:unix:",
    "socket:host",
    "socket:shm:x",
]


@pytest.mark.parametrize("address", WRONG)
def test_a_wrong_address_names_the_forms(address: str) -> None:
    for reach in (lambda: listen(address, FakeHandler()), lambda: connect(address, timeout=0.1)):
        with pytest.raises(ConfigError, match=r"inproc:NAME(.|\n)*HOST:PORT"):
            reach()


@pytest.mark.parametrize(
    ("bound", "dialled"),
    [
        ("0.0.0.0:7700", f"{socket.gethostname()}:7700"),
        ("[::]:7700", f"{socket.gethostname()}:7700"),
        ("socket:0.0.0.0:7700", f"socket:{socket.gethostname()}:7700"),
        ("socket:unix:/x:1", "socket:unix:/x:1"),
        ("127.0.0.1:7700", "127.0.0.1:7700"),
        ("learner.example:7700", "learner.example:7700"),
    ],
)
def test_every_interface_is_no_place_to_dial(bound: str, dialled: str) -> None:
    assert seen_from_elsewhere(bound) == dialled


@pytest.mark.parametrize(
    "form",
    ["inproc:nobody", "shm:{0}/s", "unix:{0}/s", "127.0.0.1:1", "socket:unix:{0}/s", "socket:127.0.0.1:1"],
)
def test_nobody_there_is_said_in_time(form: str, tmp_path: Path) -> None:
    address = form.format(tmp_path)
    with pytest.raises(ConnectionLost, match=r"cannot reach .* within 0.2 s: is the learner running"):
        connect(address, timeout=0.2)


def test_port_0_is_a_free_one_and_a_taken_one_is_refused() -> None:
    server = listen("127.0.0.1:0", FakeHandler())
    try:
        assert not server.address.endswith(":0")
        with pytest.raises(ConfigError, match=r"cannot listen at .*port free"):
            listen(server.address, FakeHandler())
    finally:
        server.close()


@pytest.mark.parametrize("carrier", CARRIERS, ids=lambda carrier: carrier.name)
def test_one_server_an_address(carrier: Carrier, tmp_path: Path) -> None:
    server = carrier.listen(tmp_path, FakeHandler())
    try:
        if carrier.name not in ("tcp", "tls", "socket-tls"):
            with pytest.raises(ConfigError, match="already"):
                carrier.listen(tmp_path, FakeHandler())
        client = carrier.connect(server.address, PATIENCE)
        assert client.ask({"x": 1}) == {"x": 1}
        client.close()
    finally:
        server.close()


@pytest.mark.parametrize("prefix", ["shm", "unix", "socket:unix"])
def test_one_client_too_many_is_refused(prefix: str, tmp_path: Path) -> None:
    server = listen(f"{prefix}:{tmp_path}/socket", FakeHandler(), most=1)
    try:
        first = connect(server.address, timeout=PATIENCE)
        assert first.ask({"x": 1}) == {"x": 1}
        second = connect(server.address, timeout=PATIENCE)
        with pytest.raises(ConnectionLost, match="1 peers already"):
            second.ask({"x": 2})
        assert first.ask({"x": 3}) == {"x": 3}
        second.close()
        first.close()
    finally:
        server.close()


def test_grpc_takes_no_path_with_a_comma(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="has a comma"):
        listen(f"unix:{tmp_path}/a,b", FakeHandler())
    with pytest.raises(ConfigError, match="has a comma"):
        connect(f"unix:{tmp_path}/a,b", timeout=0.0)


@pytest.mark.parametrize("prefix", ["shm", "unix", "socket:unix"])
class TestSocketFiles:
    def test_private_and_removed(self, prefix: str, tmp_path: Path) -> None:
        folder = tmp_path / "lr=1 100%"
        folder.mkdir()
        server = listen(f"{prefix}:{folder}/socket", FakeHandler())
        try:
            mode = (folder / "socket").stat().st_mode
            assert stat.S_ISSOCK(mode)
            assert stat.S_IMODE(mode) == 0o600
            client = connect(server.address, timeout=PATIENCE)
            assert client.ask({"x": 1}) == {"x": 1}
            client.close()
        finally:
            server.close()
        assert list(folder.iterdir()) == []

    def test_a_dead_servers_is_replaced(self, prefix: str, tmp_path: Path) -> None:
        with process("server", f"{prefix.partition(':')[0]}:{tmp_path}") as dead:
            assert dead.stdout is not None
            dead.stdout.readline()
            with pytest.raises(ConfigError, match="already"):
                listen(f"{prefix}:{tmp_path}/socket", FakeHandler())
            dead.kill()
            dead.wait(PATIENCE)
        assert (tmp_path / "socket").exists()
        server = listen(f"{prefix}:{tmp_path}/socket", FakeHandler())
        server.close()

    def test_what_is_no_socket_is_left_alone(self, prefix: str, tmp_path: Path) -> None:
        (tmp_path / "socket").write_text("precious")
        with pytest.raises(ConfigError, match="no socket"):
            listen(f"{prefix}:{tmp_path}/socket", FakeHandler())
        assert (tmp_path / "socket").read_text() == "precious"

    def test_a_successors_is_not_removed(self, prefix: str, tmp_path: Path) -> None:
        server = listen(f"{prefix}:{tmp_path}/socket", FakeHandler())
        (tmp_path / "socket").unlink()
        with socket.socket(socket.AF_UNIX) as successor:
            successor.bind(str(tmp_path / "socket"))
            server.close()
            assert (tmp_path / "socket").exists()

    def test_long_paths_and_missing_directories_are_said(self, prefix: str, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match="shorter directory"):
            listen(f"{prefix}:{tmp_path}/{'x' * 120}", FakeHandler())
        with pytest.raises(ConfigError, match="shorter directory"):
            connect(f"{prefix}:{tmp_path}/{'x' * 120}", timeout=1)
        with pytest.raises(ConfigError, match="create"):
            listen(f"{prefix}:{tmp_path}/missing/socket", FakeHandler())


def test_actors_need_neither_jax_nor_grpc_to_start() -> None:
    code = (
        "import sys, seedbed.transport.connect; assert not {'jax', 'grpc'} & set(sys.modules);"
        "import seedbed.transport.streams; assert 'jax' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=PATIENCE)
