"""Examination of this machine: its abilities, and obstacles to training on it."""

from __future__ import annotations

import os
import platform
import shutil
import socket
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import psutil

from seedbed import __version__, limits
from seedbed.errors import ConfigError, SeedbedError
from seedbed.installation import extra_line, whole_line
from seedbed.launch.surroundings import programs_folder, require_devices

_NEEDED_PACKAGES = ("jax", "jaxlib", "flax", "optax", "numpy", "gymnasium", "ale-py", "grpcio")
_NEEDED_ENVIRONMENTS = ("CartPole-v1", "ALE/Pong-v5", "toy:catch")
_LEAST_OPEN_FILES = 1024

Finding = tuple[str, str, str]
"""Name of a part of the machine, its state, and advice about it or ""."""


@dataclass(frozen=True)
class Extra:
    """An optional part of the installation.

    Attributes:
      package: the package whose version is shown.
      environments: some of the environments that it brings.
    """

    package: str
    environments: tuple[str, ...] = ()


EXTRAS = {
    "envpool": Extra(
        "envpool",
        ("envpool:Pong-v5", "envpool:Basic-v1", "envpool:gfootball/academy_empty_goal_close-v1"),
    ),
    "vizdoom": Extra("vizdoom", ("vizdoom.gymnasium_wrapper:VizdoomBasic-v1",)),
    "mujoco": Extra("mujoco", ("HalfCheetah-v5",)),
    "box2d": Extra("box2d" if sys.version_info < (3, 14) else "box2d-py", ("LunarLander-v3",)),
    "gymnax": Extra("gymnax", ("gymnax:CartPole-v1",)),
    "brax": Extra("brax", ("brax:inverted_pendulum",)),
    "craftax": Extra("craftax", ("craftax:Craftax-Classic-Symbolic-v1",)),
    "pgx": Extra("pgx", ("pgx:connect_four",)),
    "jaxmarl": Extra("jaxmarl", ("jaxmarl:MPE_simple_spread_v3",)),
    "pettingzoo": Extra("pettingzoo"),
    "muzero": Extra("mctx"),
    "onnx": Extra("jax2onnx"),
    "ray": Extra("ray"),
    "store": Extra("fsspec"),
    "minari": Extra("minari"),
    "onednn": Extra("onednn-cpu-gomp"),
    "sweep": Extra("optuna"),
    "watch": Extra("starlette"),
    "wandb": Extra("wandb"),
    "mlflow": Extra("mlflow-skinny"),
    "trackio": Extra("trackio"),
}


def findings() -> Iterator[Finding]:
    """Yields a finding about each part of this machine that matters for training."""
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
    yield _programs()
    yield "allocator", "tuned by seedbed train" if sys.platform == "linux" else "system's own", ""


def _python_advice() -> str:
    return "" if sys.version_info >= (3, 12) else "3.12 or later has a JAX that is twice as fast on CPU"


def _packages() -> Iterator[Finding]:
    for name in _NEEDED_PACKAGES:
        version = version_of(name)
        yield name, version or "not installed", "" if version else f"needed: {whole_line()}"
    for extra in EXTRAS.values():
        if version := version_of(extra.package):
            yield extra.package, version, ""
    if missing := [name for name, extra in EXTRAS.items() if not version_of(extra.package)]:
        yield "extras not installed", ", ".join(missing), f"optional: {extra_line(','.join(missing))}"


def version_of(package: str) -> str | None:
    """Returns the version of an installed package; None if it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _devices() -> Iterator[Finding]:
    try:
        import jax
    except ModuleNotFoundError:
        yield "devices", "not examined", "without JAX this installation serves seedbed actor"
        return
    try:
        require_devices()
    except ConfigError as error:
        yield "devices", "none", f"needed: {error}"
        # Later examinations compute as well.
        jax.config.update("jax_platforms", "cpu")
        return
    for index, device in enumerate(jax.local_devices()):
        on_cpu = f", {limits.cores()} cores" if device.platform == "cpu" else ""
        yield f"device {index}", f"{device.platform}: {device.device_kind}{on_cpu}", ""


def _convolutions() -> Finding:
    try:
        from seedbed.nets.cpu.library import find

        found = find()
    except (ImportError, ConfigError) as error:
        return "convolutions on this CPU", "XLA", str(error)
    return "convolutions on this CPU", str(found), found.advice


def convolving(*, advised: bool = True) -> str:
    """Returns the library of this process's convolutions: XLA, or oneDNN with its version and dtypes.

    Args:
      advised: whether to add how to get a faster one, which names paths of this machine.
    """
    import jax

    if jax.default_backend() != "cpu":
        return "XLA"
    _, found, advice = _convolutions()
    return f"{found} ({advice})" if advice and advised else found


def _environments() -> Iterator[Finding]:
    for env in _NEEDED_ENVIRONMENTS:
        yield _environment(env, "needed: ")
    for extra in EXTRAS.values():
        if version_of(extra.package):
            yield from (_environment(env, "") for env in extra.environments)


def _environment(env: str, urgency: str) -> Finding:
    from seedbed.envs.make import spec_of
    from seedbed.types import leaves

    try:
        spec = spec_of(env)
    except SeedbedError as error:
        return env, "cannot be made", urgency + str(error).partition(": known are")[0]
    shown = (f"{name} {leaf.dtype}{list(leaf.shape)}".strip() for name, leaf in leaves(spec.observation))
    return env, ", ".join(shown), ""


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
    now, most = limits.open_files()
    if now is None:
        return "open files", "no limit", ""
    advice = "" if now >= _LEAST_OPEN_FILES else f"raise it for many actors: ulimit -n {_LEAST_OPEN_FILES}"
    return "open files", f"{now} (at most {most or 'any number'})", advice


def _processes() -> Finding:
    most = limits.processes()
    return "processes", "no limit" if most is None else f"at most {most}", ""


def _memory() -> Finding:
    memory = psutil.virtual_memory()
    found = f"{memory.available / 2**30:.1f} of {memory.total / 2**30:.1f} GiB free"
    most = limits.memory_bytes()
    limit = "" if most is None else f", {most / 2**30:.1f} GiB a process"
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


def _programs() -> Finding:
    told = os.environ.get("JAX_COMPILATION_CACHE_DIR")
    folder = programs_folder() if told is None else told
    return "compiled programs", f"kept in {folder}" if folder else "not kept", ""
