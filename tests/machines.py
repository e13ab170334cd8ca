"""Machines of their own on this one: each has its network, its processes and its folder of Ray; a cable joins two."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil
import pytest
from harness import Command, until, words_of

RAY = str(Path(sys.executable).parent / "ray")
HEAD_PORT = 6379
_QUICK = (
    '{"health_check_period_ms": 1000, "health_check_timeout_ms": 2000, "health_check_failure_threshold": 3}'
)
"""A lost machine is missed after some 10 s instead of a minute."""


def may_unshare(*flags: str) -> bool:
    """Whether this user may have namespaces of these kinds on this machine."""
    if shutil.which("unshare") is None:
        return False
    return subprocess.run(["unshare", *flags, "true"], check=False, capture_output=True).returncode == 0


_FIRST = "import signal, sys; signal.signal(signal.SIGCHLD, signal.SIG_IGN); sys.stdin.read()"
"""The first process of a machine: those are forgotten that end and are nobody's children, and all others end with it,
at the latest when the tests do."""
_ENTER = """
import ctypes, os, signal, subprocess, sys
libc, here = ctypes.CDLL(None, use_errno=True), os.getcwd()
for space in [os.open(f"/proc/{sys.argv[1]}/ns/{kind}", os.O_RDONLY) for kind in ("net", "pid", "mnt")]:
    if libc.setns(space, 0):
        raise OSError(ctypes.get_errno(), "setns")
os.chdir(here)
child = subprocess.Popen(sys.argv[2:])
for each in (signal.SIGINT, signal.SIGTERM):
    signal.signal(each, lambda *_: None)  # the child has it, too
status = child.wait()
sys.exit(status if status >= 0 else 128 - status)
"""
"""Starts a command on the machine of a process, and ends as it does."""


class Machine:
    """Namespaces of the network, of processes and of mounts, in which commands are started.

    Args:
      name: name of its network namespace.
      address: its address on the cable.
    """

    def __init__(self, name: str, address: str) -> None:
        self.name = name
        self.address = address
        with ExitStack() as undone:
            _ip("netns", "add", name)
            undone.callback(_ip, "netns", "del", name)
            _ip("-n", name, "link", "set", "lo", "up")
            apart = ["unshare", "--pid", "--fork", "--kill-child", "--mount", "--mount-proc"]
            first = ["ip", "netns", "exec", name, *apart, sys.executable, "-c", _FIRST]
            self._keeper = psutil.Popen(first, stdin=subprocess.PIPE)
            undone.callback(self._keeper.wait)
            undone.callback(self._keeper.kill)
            self._init = until(self._first, "the first process of a machine")
            subprocess.run(
                self.within("sh", "-c", "mkdir -p /tmp/ray && mount -t tmpfs none /tmp/ray"), check=True
            )
            self._undone = undone.pop_all()

    def _first(self) -> int | None:
        """The id, here, of the process that has its number 1, once it is there."""
        found = self._keeper.children()
        is_python = bool(found) and words_of(found[0])[:1] == [sys.executable]
        return found[0].pid if is_python else None

    def within(self, *words: str) -> list[str]:
        """Returns a command that executes ``words`` on this machine, in the current folder of who starts it."""
        return [sys.executable, "-I", "-S", "-c", _ENTER, str(self._init), *words]

    def node(self, folder: Path, *, head: str | None = None) -> Command:
        """Starts Ray's node with one core on this machine.

        Args:
          folder: folder of what it prints.
          head: address of the machine with the cluster's head; none: it is this one's.
        """
        folder.mkdir(parents=True, exist_ok=True)
        if head is None:
            of = [
                "--head",
                "--port",
                str(HEAD_PORT),
                "--include-dashboard",
                "false",
                "--system-config",
                _QUICK,
            ]
        else:
            of = ["--address", f"{head}:{HEAD_PORT}"]
        words = ["start", "--block", "--node-ip-address", self.address, "--num-cpus", "1", *of]
        small = ["--object-store-memory", "80000000"]
        node = Command(*words, *small, cwd=folder, command=self.within(RAY), RAY_USAGE_STATS_ENABLED="0")
        node.says("Ray runtime started")
        return node

    def processes(self) -> list[psutil.Process]:
        """All that runs on it, but its first process."""
        return [each for each in psutil.process_iter() if each.pid != self._init and self._has(each)]

    def _has(self, process: psutil.Process) -> bool:
        with contextlib.suppress(OSError):  # it has ended
            one, other = (Path(f"/proc/{pid}/ns/pid").readlink() for pid in (process.pid, self._init))
            return one == other
        return False

    def close(self) -> None:
        """Ends all that runs on it."""
        self._undone.close()


class Cable:
    """A cable between two machines."""

    def __init__(self, one: Machine, other: Machine) -> None:
        self._one = one
        _ip(
            "link",
            "add",
            "port",
            "netns",
            one.name,
            "type",
            "veth",
            "peer",
            "name",
            "port",
            "netns",
            other.name,
        )
        for machine in (one, other):
            _ip("-n", machine.name, "addr", "add", f"{machine.address}/30", "dev", "port")
            _ip("-n", machine.name, "link", "set", "port", "up")

    def pull(self) -> None:
        """Has nothing that is sent arrive, and nobody told."""
        _ip("-n", self._one.name, "link", "set", "port", "down")

    def plug(self) -> None:
        """Has messages arrive again."""
        _ip("-n", self._one.name, "link", "set", "port", "up")


@contextmanager
def two_machines() -> Iterator[tuple[Machine, Machine, Cable]]:
    """Two machines and the cable between them."""
    if shutil.which("ip") is None or not may_unshare("--net", "--pid", "--fork", "--mount", "--mount-proc"):
        pytest.skip("this user may have no machines of this kind: they take ip, unshare and root")
    with ExitStack() as stack:
        made = []
        for number in (1, 2):
            machine = Machine(f"seedbed{os.getpid()}-{number}", f"10.213.7.{number}")
            stack.callback(machine.close)
            made.append(machine)
        yield made[0], made[1], Cable(*made)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)
