"""The connection of this process to a Ray cluster."""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
import warnings
from importlib import import_module
from typing import Any

from seedbed.errors import ConfigError
from seedbed.installation import extra_line

_log = logging.getLogger(__name__)
NAMESPACE = "seedbed"
_REACH_SECONDS = 5.0
"""Seconds within which the cluster's address has to take a connection."""


def connected() -> tuple[Any, bool]:
    """Returns Ray's module, connected to a cluster, and whether the connection was made here.

    Raises:
      ConfigError: Ray is not installed, there is no cluster, or it is reached through Ray Client.
    """
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
