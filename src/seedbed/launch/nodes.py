"""Examination of a Ray cluster before a run: its nodes, and obstacles to actors on them.

::

    seedbed doctor ─ starts ─► this module ─ Ray: a task on each node ─► node_probe ─ connects ─► a listener here

Ray may hang, and may end its process. So the examination is a process of its own, with a limit in time, and every node
has one as well.
"""

from __future__ import annotations

import json
import os
import platform
import secrets
import socket
import socketserver
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any

from seedbed import __version__
from seedbed.errors import ConfigError
from seedbed.installation import extra_line
from seedbed.launch import node_probe
from seedbed.launch.cluster_connection import cause, connected
from seedbed.launch.machine import Finding, version_of
from seedbed.launch.rendezvous import joined

ANSWER_SECONDS = 60.0
"""Seconds within which a node has to answer: Ray may first have to start a process there."""
_REACH_SECONDS = 5.0
"""Seconds for a connection from a node to the learner's address."""
_LOOK_AT_IT = (
    "'ray status' shows what lives, and raylet.err in /tmp/ray/session_latest/logs of a node what went wrong"
)
_LITTLE_SHARED_MEMORY = 128 * 2**20
"""Bytes of /dev/shm below which it is too small for environments that use it; containers have 64 MiB by default."""


def cluster_findings(seconds: float = ANSWER_SECONDS) -> Iterator[Finding]:
    """Yields a finding about the Ray cluster, about each part of it that matters for a run, and about each trouble.

    Args:
      seconds: time within which the cluster, and then each node, has to answer.
    """
    if (version := version_of("ray")) is None:
        yield "Ray", "not installed", f"needed: {extra_line('ray')}"
        return
    yield "Ray", version, ""
    command = [sys.executable, "-P", "-m", __name__, str(seconds)]
    yield from findings_of(command, 2 * seconds + 2 * _REACH_SECONDS)


def findings_of(command: Sequence[str], seconds: float) -> Iterator[Finding]:
    """Yields the findings that a program prints as lines of JSON; it is killed after some time.

    Args:
      command: the program and its arguments.
      seconds: time for all of it.
    """
    late = threading.Event()
    with (
        tempfile.TemporaryFile() as complaints,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=complaints, text=True) as process,
    ):

        def end_it() -> None:
            late.set()
            process.kill()

        limit = threading.Timer(seconds, end_it)
        limit.start()
        try:
            assert process.stdout is not None
            for line in process.stdout:
                what, found, advice = json.loads(line)
                yield what, found, advice
            status = process.wait()
        finally:
            limit.cancel()
            process.kill()
        if late.is_set():
            yield "Ray cluster", f"no answer within {seconds:g} s", f"needed: {_LOOK_AT_IT}"
        elif status:
            complaints.seek(0)
            said = complaints.read().decode(errors="replace").strip().rpartition("\n")[-1]
            yield (
                "Ray cluster",
                f"its examination ended with status {status}: {said}",
                f"needed: {_LOOK_AT_IT}",
            )


# In the process of the examination.


def main() -> None:
    """Prints findings as lines of JSON; the only argument is the time in s within which a node has to answer."""
    # Anything else that is printed here goes where errors go.
    with os.fdopen(os.dup(1), "w", buffering=1) as lines:
        os.dup2(2, 1)
        for finding in _examined(float(sys.argv[1])):
            print(json.dumps(finding), file=lines)


def _examined(seconds: float) -> Iterator[Finding]:
    try:
        ray, _ = connected()
    except ConfigError as error:
        yield "Ray cluster", "none", f"needed: {error}"
        return
    try:
        nodes = sorted((node for node in ray.nodes() if node["Alive"]), key=_order)
        context = ray.get_runtime_context()
        yield _whole(context.gcs_address, nodes)
        if not sum(node["Resources"].get("CPU", 0) for node in nodes):
            yield "Ray cluster", "no cores", "needed: actors ask Ray for a core each: ray start --num-cpus=N"
        yield from _reached(ray, nodes, context.get_node_id(), seconds)
    finally:
        ray.shutdown()


def _order(node: Mapping[str, Any]) -> tuple[str, str]:
    return node["NodeManagerHostname"], node["NodeID"]


def _whole(address: str, nodes: Sequence[Mapping[str, Any]]) -> Finding:
    total: dict[str, float] = {}
    for node in nodes:
        for name, count in node["Resources"].items():
            total[name] = total.get(name, 0) + count
    return "Ray cluster", f"{address}: {_counted(len(nodes), 'node')}, {_resources(total)}", ""


def _counted(count: float, noun: str) -> str:
    return f"{count:g} {noun}" + ("" if count == 1 else "s")


def _resources(resources: Mapping[str, float]) -> str:
    """Returns cores, memory and accelerators as Ray counts them, in words."""
    known = {"CPU", "memory", "object_store_memory"}
    others = [
        f"{count:g} {name}"
        for name, count in sorted(resources.items())
        if name not in known and not name.startswith("node:")
    ]
    memory = f"{resources.get('memory', 0) / 2**30:.1f} GiB of memory"
    return ", ".join([_counted(resources.get("CPU", 0), "core"), memory, *(others or ["no accelerators"])])


def _reached(ray: Any, nodes: Sequence[Mapping[str, Any]], here: str, seconds: float) -> Iterator[Finding]:
    """Yields the findings about all nodes, each of which is given a task and has to reach a listener here."""
    host = str(ray.util.get_node_ip_address())
    word = secrets.token_hex(8)
    try:
        listener = _Listener(host, word)
    except OSError as error:
        yield "learner's address", f"cannot listen at {host}: {error}", "needed: it has to be this machine's"
        return
    with listener:
        answers = [_asked(ray, node["NodeID"], (host, listener.port, word, _REACH_SECONDS)) for node in nodes]
        ready, _ = ray.wait(answers, num_returns=len(answers), timeout=seconds)
        for node, answer in zip(nodes, answers, strict=True):
            name = f"node {node['NodeManagerHostname']} {node['NodeID'][:6]}"
            name += " (here)" if node["NodeID"] == here else ""
            if answer not in ready:
                yield name, f"no answer within {seconds:g} s", f"needed: {_LOOK_AT_IT}"
                continue
            try:
                told = ray.get(answer)
            except ray.exceptions.RayError as error:
                yield name, f"its task failed: {cause(error)}", f"needed: {_LOOK_AT_IT}"
                continue
            yield from _findings_about(name, node["Resources"], told, joined(host, listener.port))


def _asked(ray: Any, node: str, arguments: tuple[Any, ...]) -> Any:
    """Returns the coming answer of a node to :func:`node_probe.probe`; a node whose cores are busy answers too."""
    ray.cloudpickle.register_pickle_by_value(node_probe)
    affinity = import_module("ray.util.scheduling_strategies").NodeAffinitySchedulingStrategy
    task = ray.remote(node_probe.probe).options(
        num_cpus=0, max_retries=0, scheduling_strategy=affinity(node, soft=False)
    )
    return task.remote(*arguments)


class _Listener(socketserver.ThreadingTCPServer):
    """A listener that says a word to everybody who connects.

    Args:
      host: address of this machine.
      word: the word.

    Attributes:
      port: its port.

    Raises:
      OSError: nothing can listen at that address.
    """

    daemon_threads = True

    def __init__(self, host: str, word: str) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._word = word
        super().__init__((host, 0), socketserver.BaseRequestHandler)
        self.port: int = self.server_address[1]
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    def finish_request(self, request: Any, client_address: Any) -> None:
        """Says the word."""
        request.sendall(f"{self._word}\n".encode())

    def __exit__(self, *_: object) -> None:
        """Stops listening."""
        self.shutdown()
        self.server_close()


def _findings_about(
    name: str, resources: Mapping[str, float], told: Mapping[str, Any], address: str
) -> Iterator[Finding]:
    """Yields the state of a node in a line, then a line for each trouble.

    Args:
      name: name of the node for the user.
      resources: its resources as Ray counts them.
      told: answer of the node, see :func:`node_probe.probe`.
      address: the learner's address, which the node had to reach.
    """
    shared = told["shared_memory"]
    facts = [
        f"Seedbed {told['seedbed'] or 'missing'}, Ray {told['ray']}, Python {told['python']}",
        _resources(resources),
        f"niceness {told['niceness']}",
        f"/dev/shm {shared[0] / 2**30:.1f} of {shared[1] / 2**30:.1f} GiB free" if shared else "no /dev/shm",
        f"{'cannot reach' if told['learner'] else 'reaches'} the learner's address",
    ]
    yield name, "; ".join(facts), ""
    yield from ((name, found, advice) for found, advice in _troubles(told, address))


def _troubles(told: Mapping[str, Any], address: str) -> Iterator[tuple[str, str]]:
    if told["broken"]:
        yield (
            f"Seedbed cannot be imported ({told['broken']})",
            f"needed: Seedbed {__version__} for the Python of Ray's processes there",
        )
    import ray

    python = platform.python_version()
    same = told["python"].split(".")[:2] == python.split(".")[:2]
    if told["python"] != python:
        yield f"Python {told['python']}", f"{'here it is' if same else 'needed: as here,'} {python}"
    for noun, there, here in (
        ("Ray", told["ray"], ray.__version__),
        ("Seedbed", told["seedbed"], __version__),
    ):
        if there and there != here:
            yield f"{noun} {there}", f"needed: as here, {here}"
    if told["learner"]:
        yield (
            f"cannot reach {address} ({told['learner']})",
            "needed: the learner listens at a free port there: let this node through",
        )
    if told["niceness"] > os.getpriority(os.PRIO_PROCESS, 0):  # actors get that of this machine's processes
        yield (
            f"niceness {told['niceness']} of Ray's processes",
            "actors of a superuser take it back themselves"
            if told["superuser"]
            else "its actors wait for everything else there: RAY_worker_niceness=0 ray start …",
        )
    if told["shared_memory"] and told["shared_memory"][1] < _LITTLE_SHARED_MEMORY:
        yield (
            f"/dev/shm of {told['shared_memory'][1] / 2**20:.0f} MiB",
            "some environments need more: give its container a larger --shm-size",
        )


if __name__ == "__main__":
    main()
