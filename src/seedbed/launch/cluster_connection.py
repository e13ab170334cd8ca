"""The connection of this process to a Ray cluster, and the watch over it."""

from __future__ import annotations

import atexit
import logging
import os
import signal
import socket
import threading
import time
import warnings
from collections.abc import Callable
from importlib import import_module
from typing import Any

from seedbed.errors import ConfigError
from seedbed.faults import end_at_once
from seedbed.installation import extra_line

_log = logging.getLogger(__name__)
NAMESPACE = "seedbed"
_REACH_SECONDS = 5.0
"""Seconds within which the cluster's address has to take a connection."""
_LOOK_SECONDS = 2.0
HEAD_SECONDS = 45.0
"""Seconds without an answer of the cluster's head after which it is lost; a node ends itself after 60."""
_STOOD_STILL_SECONDS = 5.0


def connected() -> tuple[Any, bool]:
    """Returns Ray's module, connected to a cluster, and whether the connection was made here.

    Raises:
      ConfigError: Ray is not installed, there is no cluster, or it is reached through Ray Client.
    """
    # Ray ends a process whose head has been away for a minute: here the run has to be saved first.
    os.environ.setdefault("RAY_gcs_rpc_server_reconnect_timeout_s", "3600")
    try:
        import ray
    except ImportError as error:
        raise ConfigError(f"on is ray, and Ray is not installed: {extra_line('ray')}") from error
    if ray.is_initialized():
        return ray, False
    address = os.environ.get("RAY_ADDRESS") or "auto"
    if address.startswith("ray://"):
        raise ConfigError(
            f"RAY_ADDRESS is {address}, and the learner has to run inside of the cluster: start this command on one of "
            "its machines, or by 'ray job submit'"
        )
    in_main = threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGTERM)
    # An environment for each run would be built by uv on every machine.
    os.environ.setdefault("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
    # Nobody waits for the answers of most calls: the next report shows what came of them.
    os.environ.setdefault("RAY_IGNORE_UNHANDLED_ERRORS", "1")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            _hush()
            _require_listener(address, ray.util.get_node_ip_address())
            ray.init(address=address, namespace=NAMESPACE, log_to_driver=False, logging_level=logging.ERROR)
    except (OSError, RuntimeError, ValueError) as error:
        raise ConfigError(
            f"on is ray, and there is no Ray cluster at {address!r} ({cause(error)}): start one by 'ray start "
            "--head', or set RAY_ADDRESS to HOST:PORT of one"
        ) from error
    finally:
        if in_main:
            signal.signal(signal.SIGTERM, before)  # Ray's own handler would end the run without a checkpoint
    return ray, True


def leave_without_goodbye() -> None:
    """Has this process end, when it does, as a failed one and at once.

    Ray's own end waits for the lost head, for as long as it may be away, and crashes without.
    """
    atexit.register(end_at_once, 1)


class ClusterWatch:
    """A watch over the connection: a thread asks now and then, since an answer of Ray's may take minutes.

    Args:
      nodes: function that returns the nodes of the cluster, as ``ray.nodes`` does.
      node: id of this machine's node.
      clock: seconds.
    """

    def __init__(
        self,
        nodes: Callable[[], list[dict[str, Any]]],
        node: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._nodes = nodes
        self._node = node
        self._clock = clock
        self._answered = self._asked = clock()
        self._left = False
        self._closing = threading.Event()
        threading.Thread(target=self._run, name="cluster watch", daemon=True).start()

    def trouble(self) -> str | None:
        """Returns the trouble with the connection, None if there is none; to be called a few times a second."""
        now = self._clock()
        if now - self._asked > _STOOD_STILL_SECONDS:
            self._answered = now  # this process stood still (Ctrl-Z), and the thread with it
        self._asked = now
        if self._left:
            return "this machine is no node of the Ray cluster any more (its raylet has ended, or was missed)"
        if (silent := now - self._answered) > HEAD_SECONDS:
            return f"the head of the Ray cluster has not answered for {silent:.0f} s"
        return None

    def close(self) -> None:
        """Has the thread end after its next look; does not wait for it."""
        self._closing.set()

    def _run(self) -> None:
        while not self._closing.wait(_LOOK_SECONDS):
            try:
                alive = {each["NodeID"]: each["Alive"] for each in self._nodes()}
            except Exception as error:  # whatever Ray raises while its head is away
                _log.info("no list of the cluster's nodes: %s", cause(error))
                continue
            self._answered = self._clock()
            self._left = not alive.get(self._node, False)


def _require_listener(address: str, here: str) -> None:
    """Raises :class:`OSError` if nothing listens at ``HOST:PORT``: Ray would end this process after a minute.

    Args:
      address: address of the cluster.
      here: address of this machine, which Ray takes in the place of loopback's.
    """
    host, colon, port = address.rpartition(":")
    if colon and port.isdecimal():
        host = here if host in ("localhost", "127.0.0.1", "[::1]") else host.strip("[]")
        socket.create_connection((host, int(port)), timeout=_REACH_SECONDS).close()


def _hush() -> None:
    """Has what Ray says about lost processes and machines go into the log of the run, in one line.

    It would print pages into the run's display, and has no setting for that. The name is private to Ray: where it is
    gone, nothing changes.
    """
    worker: Any = import_module("ray._private.worker")
    if hasattr(worker, "print_to_stdstream"):
        worker.print_to_stdstream = lambda data, **_: _log.info("Ray: %s", " ".join(data["lines"])[:300])


def cause(error: BaseException) -> str:
    """Returns the first lines of an error of Ray's in one, which may have many."""
    return " ".join(str(error).split())[:300]
