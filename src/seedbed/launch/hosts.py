"""Runs of several hosts: their start, the values on which they agree, and the set-up of distributed JAX.

Host 0 has the settings and sends them to the others. Without a coordinator it starts the others itself, by a launcher:
on this machine, for a trial, or each on a machine of its own that a cluster's engine finds.
"""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import json
import secrets
import socket
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, closing
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import jax

from seedbed.acting.trust import foreign_names, untrusted
from seedbed.architectures.program import Edge, Resources, Role, Task
from seedbed.config import resolve
from seedbed.config.placement import InstanceSettings, RemoteSettings
from seedbed.config.settings import RunConfig
from seedbed.errors import ConfigError, RunFailed, cause_of
from seedbed.faults import end_at_once
from seedbed.instances import Instance
from seedbed.launch.folder import RunFolder
from seedbed.launch.launcher import Launcher, launcher_on
from seedbed.launch.rendezvous import (
    Rendezvous,
    address_towards,
    free_port,
    go_to,
    joined,
    receive_hosts,
    split,
)
from seedbed.learning.checkpoint import Checkpoint, any_saved, intact_steps, load, pack, unpack
from seedbed.metrics.say import say
from seedbed.transport.admission import Invitation

_PATIENCE_SECONDS = 600.0
_RENAMED_SECONDS = 60.0
"""Seconds within which a coordinator's name becomes that of this machine, where an engine names it."""
_JAX_PATIENCE_SECONDS = 120
_OF_GLOO = "make_gloo_tcp_collectives"
"""Name of JAX's function for the connections of Gloo."""
_FAREWELL_SECONDS = 60.0
_LOOK_SECONDS, _DIAL_SECONDS = 0.05, 0.2
_KEEP_SECONDS = 1.0
_ITS_OWN = ("host", "coordinator", "on", "run_dir", "listen", "json", "video", "tls_cert")
"""Settings in which the hosts of a run may differ."""
HOST_0 = "host 0"
"""Name by which the other hosts' tasks have the address of host 0."""


class Hosts:
    """The hosts of a run, as one of them sees them.

    Args:
      index: number of this host.
      count: number of hosts.
      rendezvous: connection to the others; None if this host is alone.
    """

    def __init__(self, index: int = 0, count: int = 1, rendezvous: Rendezvous | None = None) -> None:
        self.index = index
        self.count = count
        self._rendezvous = rendezvous

    def agree(self, told: dict[str, Any]) -> list[dict[str, Any]]:
        """Exchanges JSON values with all hosts and waits for all; raises :class:`RunFailed` if a host is lost.

        Args:
          told: the values of this host.

        Returns:
          The values of every host, in the order of the hosts.
        """
        if self._rendezvous is None:
            return [told]
        return [json.loads(one) for one in self._rendezvous.exchange(json.dumps(told).encode())]

    def share(self, content: bytes | None) -> bytes:
        """Broadcasts the content of the first host that has one; raises :class:`RunFailed` if a host is lost.

        Args:
          content: the content of this host; None if it has none.

        Returns:
          The same content on every host; empty if no host has one.
        """
        if self._rendezvous is None:
            return content or b""
        return next((given for given in self._rendezvous.exchange(content or b"") if given), b"")

    def lost(self, patience: float = 0.0) -> str | None:
        """Returns the lost host and the reason, waiting up to ``patience`` s for such news; None if all are alive."""
        return self._rendezvous.wait_for_loss(patience) if self._rendezvous else None

    def watch(self, on_loss: Callable[[str], None]) -> None:
        """Registers a callback for the loss of a host; it is called in another thread, with the reason."""
        if self._rendezvous:
            self._rendezvous.watch(on_loss)

    def close(self, failure: str | None = None, status: int = 1) -> None:
        """Leaves the run: once all hosts are done, or at once if this host failed. Safe to call twice.

        Args:
          failure: the reason that the others are told; None if this host is done.
          status: exit status of this process after a failure.
        """
        rendezvous, self._rendezvous = self._rendezvous, None
        if rendezvous is None:
            return
        try:
            if failure is None:
                rendezvous.exchange(b"")  # all are done: no host waits in JAX's shutdown for one that is not
                jax.distributed.shutdown()
        except RuntimeError as error:
            failure, status = str(error), 0
        except RunFailed:
            failure, status = "a host was lost after the end", 0
        if failure is not None:
            atexit.register(end_at_once, status)  # JAX's own handler would wait for lost hosts, and abort
        rendezvous.close(failure)


# The start.


def lead(config: RunConfig, folder: RunFolder, stack: ExitStack, *, resumed: bool) -> Hosts:
    """Brings the hosts together, as host 0: waits for the others, and starts them if no coordinator is set.

    Args:
      config: settings of the run.
      folder: run folder.
      stack: stops the hosts that were started here.
      resumed: whether the run is a resumed one.

    Raises:
      ConfigError: the coordinator is no address of this machine.
      RunFailed: a host did not join in time.
    """
    cluster = config.cluster
    others, for_jax = None, ""
    if cluster.coordinator is not None:
        address = cluster.coordinator
        gate = folder.gate(cluster, [address])
        invitation = gate.invitation(address)
        if config.begin_or_resume:  # by an engine, which keeps what its jobs print
            invitation = dataclasses.replace(invitation, token=folder.token_in_a_shell)
        say(f"on the others, unless they share this disk: export SEEDBED_JOIN={invitation}")
    else:
        launcher = stack.enter_context(closing(launcher_on(cluster.on)(folder, "shm")))
        here = launcher.listens[0].rpartition(":")[0].strip("[]") if launcher.listens else "127.0.0.1"
        address = joined(here, free_port(here))
        gate = folder.gate(cluster, [address])
        others = _Others(launcher, config, address)
        stack.callback(others.end)
        others.start(gate.invitation(address))

    def welcome() -> dict[str, Any]:
        nonlocal for_jax
        host, _ = split(address)
        for_jax = joined(host, free_port(host))
        return {"settings": mine, "run_dir": str(folder.given), "resumed": resumed, "jax": for_jax}

    mine = resolve.to_json(config)
    waiting: dict[str, Any] = {"renamed": _RENAMED_SECONDS if config.begin_or_resume else 0.0}
    if others is not None:
        waiting |= {"look": others.look, "advice": launcher.advice}
    rendezvous = receive_hosts(
        address,
        cluster.hosts,
        gate=gate,
        timeout=cluster.host_timeout,
        patience=_PATIENCE_SECONDS,
        judge=lambda hello: _difference(mine, hello.get("settings")),
        welcome=welcome,
        **waiting,
    )
    if others is not None:
        others.report_losses_to(rendezvous.lose)
    hosts = Hosts(0, cluster.hosts, rendezvous)
    stack.enter_context(failing_together(hosts))
    _join_jax(hosts, for_jax, for_jax, cluster.host_timeout)
    if others is not None:
        others.keep()  # until here none of them has anything to save
    return hosts


def follow(
    address: str,
    index: int,
    config: RunConfig | None,
    stack: ExitStack,
    *,
    invitation: Callable[[], Invitation],
    trust: Collection[str] | None,
) -> tuple[Hosts, RunConfig, Path, bool]:
    """Joins host 0, as any other host.

    Args:
      address: address of host 0.
      index: number of this host.
      config: this host's settings, which host 0 compares with its own; None to take host 0's.
      stack: closes the connections that are opened.
      invitation: gives this host's credentials; called once host 0 listens.
      trust: names ``module:name`` that host 0 may have this host import; None for any.

    Returns:
      The hosts, the settings, the run folder of host 0, and whether the run goes on from checkpoints.

    Raises:
      ConfigError: host 0 refused this host; the message has the reason.
      RunFailed: host 0 did not listen in time.
    """
    hello = {} if config is None else {"hosts": config.cluster.hosts, "settings": resolve.to_json(config)}
    rendezvous, told = go_to(address, index, invitation=invitation, patience=_PATIENCE_SECONDS, hello=hello)
    if unknown := untrusted(foreign_names(told["settings"]), trust):
        rendezvous.close("the settings name modules that this host was not told to import")
        raise ConfigError(
            f"host 0 has this host import {unknown}, which it was not told to: if you know what that does, add --trust "
            f"{unknown}"
        )
    own = config.cluster.tls_cert if config is not None else ()
    settings = resolve.replace(
        resolve.from_json(told["settings"]),
        host=index,
        coordinator=address,
        on="here",
        video=False,
        tls_cert=own,
    )
    if config is not None and isinstance(config.placement, RemoteSettings):
        settings = resolve.replace(settings, listen=config.placement.listen)
    hosts = Hosts(index, settings.cluster.hosts, rendezvous)
    stack.enter_context(failing_together(hosts))
    relay = stack.enter_context(_relayed(told["jax"]))
    _join_jax(hosts, relay, told["jax"], settings.cluster.host_timeout)
    return hosts, settings, Path(told["run_dir"]), bool(told["resumed"])


@contextlib.contextmanager
def failing_together(hosts: Hosts) -> Iterator[None]:
    """Leaves the other hosts at the end of the block; if the block fails, tells them the reason at once."""
    try:
        yield
    except BaseException as error:
        told = cause_of(error) if isinstance(error, Exception) else type(error).__name__
        # The same exit statuses as the command line's: wrong usage, Ctrl-C twice, a failure.
        statuses = {ConfigError: 2, KeyboardInterrupt: 130}
        hosts.close(told, next((code for kind, code in statuses.items() if isinstance(error, kind)), 1))
        raise
    hosts.close()


def _difference(mine: Mapping[str, Any], theirs: Mapping[str, Any] | None) -> str | None:
    if theirs is None:
        return None
    # Through JSON, which turns tuples into lists.
    for name, value in json.loads(json.dumps(mine)).items():
        if name not in _ITS_OWN and theirs.get(name) != value:
            return (
                f"{name} is {theirs.get(name)!r} there and {value!r} on host 0: give all hosts the same flags"
            )
    return None


class _Others:
    """The other hosts, which host 0 starts by a launcher.

    Args:
      launcher: the launcher, which stays the caller's.
      config: settings of the run.
      address: address of host 0.
    """

    def __init__(self, launcher: Launcher, config: RunConfig, address: str) -> None:
        self._launcher = launcher
        self._role = _role(config)
        self._address = address
        self._instances: dict[int, Instance] = {}
        self._over = threading.Event()
        self._keeper: threading.Thread | None = None
        self._lost: str | None = None
        self._report: Callable[[str], None] | None = None

    def start(self, invitation: Invitation) -> None:
        """Starts all of them, which join by this invitation."""
        role = self._role
        assert role.entry is not None
        self._launcher.watch(self._lose)
        self._launcher.meet(invitation, secrets.token_hex(16), ())
        self._launcher.reach_head([self._address])
        for index in range(1, role.count + 1):
            task = Task(role.name, index, role.entry, {}, {}, {HOST_0: [self._address]})
            self._instances[index] = self._launcher.start(role, task)

    def look(self) -> None:
        """Does what is due until all have joined; raises :class:`RunFailed` if one has ended before."""
        if self._lost is not None:
            raise RunFailed(self._lost)
        for line in self._launcher.look_after():
            say(line)
        for index, instance in self._instances.items():
            if (fault := instance.ended()) is not None:
                raise RunFailed(f"host {index} ended before it began: {fault} (log: {instance.log})")

    def report_losses_to(self, report: Callable[[str], None]) -> None:
        """Has the loss of all of them reported, from another thread or at once if they are lost already."""
        self._report = report
        if self._lost is not None:
            report(self._lost)

    def _lose(self, reason: str) -> None:
        self._lost = reason
        if self._report is not None:
            self._report(reason)

    def keep(self) -> None:
        """Does what is due once all train together, in a thread; losses are the rendezvous's to notice."""
        self._keeper = threading.Thread(target=self._keep, name="others", daemon=True)
        self._keeper.start()

    def _keep(self) -> None:
        while not self._over.wait(_KEEP_SECONDS):
            for line in self._launcher.look_after():
                say(line)

    def end(self) -> None:
        """Waits for their ends, and kills those that hang, and all that have not joined."""
        over = time.monotonic()
        if self._keeper is not None:
            self._over.set()
            self._keeper.join(_FAREWELL_SECONDS)  # a launcher's call may wait for machines that are lost
            over += _FAREWELL_SECONDS  # hosts end when host 0 leaves, with a checkpoint
        for instance in self._instances.values():
            instance.finish(max(0.0, over - time.monotonic()))


def _role(config: RunConfig) -> Role:
    """Returns the other hosts as a role: instances that begin together, and end together when one is lost."""
    place = config.placement
    actors = place.actors if isinstance(place, InstanceSettings) else 0
    return Role(
        "host",
        config.cluster.hosts - 1,
        "seedbed.launch.host:run",
        needs=Resources(cores=1 + actors),
        dials=(Edge(HOST_0),),
        grace=_FAREWELL_SECONDS,
        has_machine=True,
    )


def _join_jax(hosts: Hosts, address: str, known_as: str, timeout: float) -> None:
    """Initializes distributed JAX and its devices.

    Args:
      hosts: the hosts of the run.
      address: JAX's coordinator, as this process reaches it.
      known_as: the coordinator's address, as all hosts know it.
      timeout: seconds without a heartbeat after which a host counts as lost.

    Raises:
      RunFailed: JAX could not connect the hosts, or a host was lost meanwhile.
    """
    # Signals are handled by seedbed.launch.signals.
    jax.config.update("jax_enable_preemption_service", False)
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    _have_gloo_listen_towards(known_as)
    failed: list[Exception] = []

    def join() -> None:
        try:
            jax.distributed.initialize(
                address,
                hosts.count,
                hosts.index,
                # A host has one process, which uses all its devices; a cluster's scheduler may say otherwise.
                cluster_detection_method="deactivate",
                initialization_timeout=_JAX_PATIENCE_SECONDS,
                coordinator_bind_address=None if hosts.index else address,
                # The rendezvous notices a lost host first, and reports it instead of aborting the process.
                heartbeat_timeout_seconds=max(100, int(10 * timeout)),
                shutdown_timeout_seconds=int(_FAREWELL_SECONDS),
            )
            # Hosts tell each other their devices here, and wait for all. Whether there are any is asked for later.
            with contextlib.suppress(Exception):
                jax.local_devices()
        except Exception as error:
            failed.append(error)

    # In a thread of its own, since neither call can be cancelled when a host is lost.
    joining = threading.Thread(target=join, name="join", daemon=True)
    joining.start()
    while joining.is_alive():
        if lost := hosts.lost(_LOOK_SECONDS):
            raise RunFailed(lost)
    if failed:
        raise RunFailed(
            f"JAX did not come together with the other hosts at {known_as}, "
            f"an address that all of them have to reach: {cause_of(failed[0])}"
        ) from failed[0]


def _have_gloo_listen_towards(address: str) -> None:
    """Has Gloo listen at the address from which this host reaches the coordinator.

    By itself it takes the one of the machine's name, which is loopback's in the ``/etc/hosts`` of many systems, and no
    other host reaches that. JAX has no setting for it. The name is private to JAX: where it is gone, nothing changes.
    """
    library: Any = getattr(import_module("jax._src.xla_bridge"), "_jax", None)
    make = getattr(library, _OF_GLOO, None)
    with contextlib.suppress(OSError):  # the coordinator is not reached then, which is told by who dials it
        if make is not None:
            setattr(library, _OF_GLOO, partial(make, hostname=address_towards(address)))


@contextlib.contextmanager
def _relayed(address: str) -> Iterator[str]:
    """Yields an address of this process that forwards to ``address``, and stays open when ``address`` is gone.

    JAX aborts a process as soon as its connection to host 0 breaks, before it could save anything; while the connection
    is merely silent, JAX waits.
    """
    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=_relay, args=(server, address), name="relay", daemon=True).start()
        yield f"127.0.0.1:{server.getsockname()[1]}"


def _relay(server: socket.socket, address: str) -> None:
    kept = []  # open as long as the process lives
    with contextlib.suppress(OSError):
        while True:
            near, _ = server.accept()
            # Host 0 may not have begun to listen for JAX yet.
            far = _dial(address, time.monotonic() + _JAX_PATIENCE_SECONDS)
            far.settimeout(None)
            kept += [near, far]
            for source, sink, last in ((near, far, True), (far, near, False)):
                threading.Thread(
                    target=_pass_on, args=(source, sink, last), name="relay", daemon=True
                ).start()


def _dial(address: str, over: float) -> socket.socket:
    """Connects to ``address``, which may not listen yet.

    Args:
      address: ``HOST:PORT``.
      over: deadline, in seconds of :func:`time.monotonic`.

    Raises:
      OSError: no connection was possible before the deadline.
    """
    while True:
        try:
            return socket.create_connection(split(address), timeout=max(0.1, over - time.monotonic()))
        except OSError:
            if time.monotonic() + _DIAL_SECONDS > over:
                raise
            time.sleep(_DIAL_SECONDS)


def _pass_on(source: socket.socket, sink: socket.socket, ends_too: bool) -> None:
    with contextlib.suppress(OSError):
        while content := source.recv(1 << 16):
            sink.sendall(content)
    if ends_too:
        with contextlib.suppress(OSError):
            sink.shutdown(socket.SHUT_RDWR)


# Checkpoints.


def common_checkpoint(hosts: Hosts, root: Path, *, own: bool) -> Checkpoint | None:
    """Loads the checkpoint from which all hosts go on; returns None if there is none.

    Args:
      hosts: the hosts of the run.
      root: folder of this host's checkpoints.
      own: whether every host needs a checkpoint of its own, with the state that only this host has: then the newest one
        that all have is taken. Otherwise the newest one of any host is taken, and sent to the others.

    Raises:
      ConfigError: there are checkpoints, but none is intact, or none is common to all hosts where ``own`` is set.
    """
    told = hosts.agree({"steps": intact_steps(root), "any": any_saved(root)})
    steps = [set(each["steps"]) for each in told]
    everyones, anyones = set.intersection(*steps), set.union(*steps)
    if not anyones:
        if any(each["any"] for each in told):
            raise ConfigError(f"no checkpoint in {root} or with the other hosts is intact")
        return None
    if own:
        if not everyones:
            raise ConfigError(
                "no checkpoint that every host has: a deterministic run needs those of all its hosts"
            )
        return load(root, max(everyones))
    newest = max(anyones)
    if newest in everyones:
        return load(root, newest)
    # The first of those that have it sends it: host 0 holds what all send, and sends all of it to all.
    first = next(index for index, each in enumerate(steps) if newest in each)
    content = hosts.share(pack(load(root, newest)) if hosts.index == first else None)
    return load(root, newest) if newest in steps[hosts.index] else unpack(root, newest, content)
