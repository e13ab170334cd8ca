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
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from seedbed.errors import ConfigError
from seedbed.faults import stuck
from seedbed.installation import extra_line

_log = logging.getLogger(__name__)
NAMESPACE = "seedbed"
_REACH_SECONDS = 5.0
"""Seconds within which the cluster's address has to take a connection."""
_LOOK_SECONDS = 2.0
HEAD_SECONDS = 45.0
"""Seconds without an answer of the cluster's head after which it is lost; a node ends itself after 60."""
_STOOD_STILL_SECONDS = 5.0
_MISSES = 2
"""Answers in a row without this machine's node among the living, after which it is lost."""
_SAVING_SECONDS = 600
"""Seconds after the loss of the head at which Ray ends this process, instead of 60: its run has to be saved first."""
_RAYS_LIMIT = "RAY_gcs_rpc_server_reconnect_timeout_s"
_bound = threading.Event()
"""Set when this process is bound to a cluster that is lost."""


@contextmanager
def _patient() -> Iterator[None]:
    """Has Ray, if the block is the first to import it, leave time to save a run after the loss of its head."""
    given = _RAYS_LIMIT in os.environ
    os.environ.setdefault(_RAYS_LIMIT, str(_SAVING_SECONDS))
    try:
        yield
    finally:
        if not given:  # nodes that are started from here keep their own limit
            del os.environ[_RAYS_LIMIT]


def connected() -> tuple[Any, bool]:
    """Returns Ray's module, connected to a cluster, and whether the connection was made here.

    Raises:
      ConfigError: Ray is not installed, there is no cluster, or it is reached through Ray Client.
    """
    try:
        with _patient():
            import ray
    except ImportError as error:
        raise ConfigError(f"on is ray, and Ray is not installed: {extra_line('ray')}") from error
    if _bound.is_set():
        raise ConfigError(
            "this process is bound to a Ray cluster that is lost, or did not let it go: start another process"
        )
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
            _require_listener(_resolved(address), ray.util.get_node_ip_address())
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


def end_without_ray(ray: Any) -> None:
    """Notes that Ray cannot end its part of this process: without a head it waits for that, and crashes afterwards."""
    atexit.unregister(ray.shutdown)
    _bound.set()
    stuck.set()


class ClusterWatch:
    """A watch over the connection to the cluster.

    One thread asks for the nodes, since an answer of Ray's may take minutes; another one judges the answers.

    Args:
      nodes: function that returns the nodes of the cluster, as ``ray.nodes`` does.
      node: id of this machine's node.
      clock: seconds.

    Attributes:
      lost: reason why the cluster is lost, with a remedy; None while it is there. It stays when it is set.
    """

    def __init__(
        self,
        nodes: Callable[[], list[dict[str, Any]]],
        node: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.lost: str | None = None
        self._nodes = nodes
        self._node = node
        self._clock = clock
        self._heard = self._judged = clock()
        self._missed = 0
        self._closing = threading.Event()

    def begin(self, on_loss: Callable[[str], None]) -> None:
        """Starts the threads; ``on_loss`` is called once, by one of them, with the reason."""
        for repeat in (self.ask, lambda: self.judge(on_loss)):
            threading.Thread(target=self._repeat, args=(repeat,), name="cluster watch", daemon=True).start()

    def close(self) -> None:
        """Has the threads end; does not wait for them."""
        self._closing.set()

    def _repeat(self, step: Callable[[], None]) -> None:
        while not self._closing.wait(_LOOK_SECONDS):
            step()

    def ask(self) -> None:
        """Asks for the nodes once, and notes the answer."""
        try:
            alive = {each["NodeID"]: each["Alive"] for each in self._nodes()}
        except Exception as error:  # whatever Ray raises while its head is away
            _log.info("no list of the cluster's nodes: %s", cause(error))
            return
        self._missed = 0 if alive.get(self._node) else self._missed + 1
        self._heard = self._clock()

    def judge(self, on_loss: Callable[[str], None]) -> None:
        """Tells the loss of the cluster, if it has been lost since the last call."""
        now = self._clock()
        if now - self._judged > _STOOD_STILL_SECONDS:
            self._heard = now  # this process stood still (Ctrl-Z), and whoever asks with it
        self._judged = now
        if self.lost is not None:
            return
        silent = now - self._heard
        if self._missed >= _MISSES:
            self.lost = (
                "this machine is no node of the Ray cluster any more, so all that the run had placed is lost: start "
                "the node again ('ray start --address=HEAD:PORT'), then 'seedbed resume' goes on"
            )
        elif silent > HEAD_SECONDS:
            self.lost = (
                f"the head of the Ray cluster has not answered for {silent:.0f} s: look at its machine and at the "
                "network between; 'seedbed resume' goes on once the cluster is there again"
            )
        if self.lost is not None:
            on_loss(self.lost)


def _resolved(address: str) -> str:
    """Returns the address that Ray takes for ``auto``; it may be of a head that is gone.

    The name is private to Ray: where it is gone, ``auto`` stays, and Ray itself waits for the head.
    """
    find = getattr(import_module("ray._private.services"), "canonicalize_bootstrap_address", None)
    return (find(address) if find is not None and address == "auto" else None) or address


def _require_listener(address: str, here: str) -> None:
    """Raises :class:`OSError` if nothing listens at ``HOST:PORT``: Ray would wait for it, and then end this process.

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
