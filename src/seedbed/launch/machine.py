"""What this machine can do, and what stands in the way of training on it."""

from __future__ import annotations

import os
import platform
import resource
import shutil
import socket
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import psutil

from seedbed import __version__
from seedbed.errors import ConfigError, SeedbedError, extra_line
from seedbed.launch.surroundings import require_devices

_OPTIONAL_PACKAGES = {
    "envpool": "envpool",
    "vizdoom": "vizdoom",
    "mujoco": "mujoco",
    "gymnax": "gymnax",
    "brax": "brax",
    "craftax": "craftax",
    "onednn-cpu-gomp": "onednn",
}
"""With the extra that brings them."""
_PACKAGES = ("jax", "jaxlib", "flax", "optax", "numpy", "gymnasium", "ale-py", "grpcio", *_OPTIONAL_PACKAGES)
_NEEDED_ENVIRONMENTS = ("CartPole-v1", "ALE/Pong-v5", "toy:catch")
_OPTIONAL_ENVIRONMENTS = (
    "envpool:Pong-v5",
    "envpool:Basic-v1",
    "envpool:gfootball/academy_empty_goal_close-v1",
    "vizdoom.gymnasium_wrapper:VizdoomBasic-v1",
    "gymnax:CartPole-v1",
    "brax:inverted_pendulum",
    "craftax:Craftax-Classic-Symbolic-v1",
    "HalfCheetah-v5",
)
_LEAST_OPEN_FILES = 1024

Finding = tuple[str, str, str]
"""What was looked at, what was found, and "" or what to do about it."""


def findings() -> Iterator[Finding]:
    """Everything that is looked at, one by one."""
    yield (
        "seedbed",
        f"{__version__}, Python {platform.python_version()}, {platform.system()}",
        _python_advice(),
    )
    yield from _packages()
    yield from _devices()
    yield _convolutions()
    yield from _environments()
    yield _shared_memory()
    yield _open_files()
    yield _processes()
    yield _memory()
    yield _ports()
    yield _disk()
    yield "allocator", "tuned by seedbed train" if sys.platform == "linux" else "system's own", ""


def _python_advice() -> str:
    return "" if sys.version_info >= (3, 12) else "3.12 or later has a JAX that is twice as fast on CPU"


def _packages() -> Iterator[Finding]:
    for name in _PACKAGES:
        try:
            yield name, metadata.version(name), ""
        except metadata.PackageNotFoundError:
            extra = _OPTIONAL_PACKAGES.get(name)
            advice = f"optional: {extra_line(extra)}" if extra else "needed: make install"
            yield name, "not installed", advice


def _devices() -> Iterator[Finding]:
    import jax

    try:
        require_devices()
    except ConfigError as error:
        yield "devices", "none", f"needed: {error}"
        # What else is looked at computes as well.
        jax.config.update("jax_platforms", "cpu")
        return
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    for index, device in enumerate(jax.local_devices()):
        on_cpu = f", {cores} cores" if device.platform == "cpu" else ""
        yield f"device {index}", f"{device.platform}: {device.device_kind}{on_cpu}", ""


def _convolutions() -> Finding:
    try:
        from seedbed.nets.cpu.library import find

        found = find()
    except (ImportError, ConfigError) as error:
        return "convolutions on this CPU", "XLA", str(error)
    return "convolutions on this CPU", str(found), found.advice


def convolving() -> str:
    """What convolves where this process computes: XLA, or oneDNN with its version and dtypes."""
    import jax

    if jax.default_backend() != "cpu":
        return "XLA"
    _, found, advice = _convolutions()
    return f"{found} ({advice})" if advice else found


def _environments() -> Iterator[Finding]:
    from seedbed.envs.make import spec_of
    from seedbed.types import leaves

    for env in (*_NEEDED_ENVIRONMENTS, *_OPTIONAL_ENVIRONMENTS):
        try:
            spec = spec_of(env)
            yield (
                env,
                ", ".join(
                    f"{name} {leaf.dtype}{list(leaf.shape)}".strip()
                    for name, leaf in leaves(spec.observation)
                ),
                "",
            )
        except SeedbedError as error:
            cause = str(error).partition(": known are")[0]
            yield env, "cannot be made", f"needed: {cause}" if env in _NEEDED_ENVIRONMENTS else cause


def _shared_memory() -> Finding:
    kind = "memfd" if hasattr(os, "memfd_create") else "unlinked temporary files"
    if not Path("/dev/shm").is_dir():
        return "shared memory", kind, ""
    free = shutil.disk_usage("/dev/shm").free
    return (
        "shared memory",
        f"{kind}; /dev/shm, which some environments use, has {free / 2**30:.1f} GiB free",
        "",
    )


def _open_files() -> Finding:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    advice = "" if soft >= _LEAST_OPEN_FILES else f"raise it for many actors: ulimit -n {_LEAST_OPEN_FILES}"
    return "open files", f"{soft} (at most {hard})", advice


def _processes() -> Finding:
    soft, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    return "processes", "no limit" if soft == resource.RLIM_INFINITY else f"at most {soft}", ""


def _memory() -> Finding:
    memory = psutil.virtual_memory()
    found = f"{memory.available / 2**30:.1f} of {memory.total / 2**30:.1f} GiB free"
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    limit = "" if soft == resource.RLIM_INFINITY else f", {soft / 2**30:.1f} GiB a process"
    return "memory", found + limit, "" if memory.available > 2**30 else "a run from pixels takes about 1 GiB"


def _ports() -> Finding:
    try:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            return "ports", f"can listen (tried 127.0.0.1:{probe.getsockname()[1]})", ""
    except OSError as error:
        return "ports", "cannot listen", f"remote actors cannot join: {error.strerror}"


def _disk() -> Finding:
    free = shutil.disk_usage(".").free
    return "disk", f"{free / 2**30:.1f} GiB free here", "" if free > 2**30 else "runs need about 1 GiB"
