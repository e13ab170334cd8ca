"""The trial of a run's first environments, which yields their spec, from the side of the learner's process.

:mod:`seedbed.envs.first` is the trial itself; decision 0056 has the choice between a process and a thread.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
import threading
import time
from concurrent.futures import Future, wait
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from seedbed import errors
from seedbed.config.settings import RunConfig
from seedbed.envs import first
from seedbed.errors import ConfigError, SeedbedError
from seedbed.faults import Fault
from seedbed.launch.processes import Guard, ProcessInstance
from seedbed.seeding import integer
from seedbed.types import EnvSpec

_START_SECONDS = 60.0
"""Seconds within which Python has to start."""
_LOOK_SECONDS = 0.01
_MOMENTS = ("made", "reset", "stepped")
"""The next stage of the trial, by the number of stages that have passed."""


def in_a_process(config: RunConfig, num_envs: int) -> EnvSpec:
    """Makes, resets, steps and closes environments in a process of their own, and returns their spec.

    Args:
      config: settings of the run.
      num_envs: number of environments.

    Raises:
      ConfigError: an environment cannot be made, fails, breaks the contract, or one call takes more than
        ``env_timeout`` seconds.
    """
    with tempfile.TemporaryDirectory(prefix="seedbed-") as name, contextlib.closing(Guard()) as guard:
        folder = Path(name)
        job = _job(config, num_envs)
        (folder / first.JOB).write_text(json.dumps(job))
        process = ProcessInstance([first.__name__, name], folder / "output", guard)
        try:
            fault = _ended(process, folder / first.MOMENTS, config)
        finally:
            process.kill()
        # The file is complete only once the process has ended; a fault after it was written does not matter.
        with contextlib.suppress(OSError, ValueError):
            return EnvSpec.from_json(json.loads((folder / first.SPEC).read_text()))
        raise _refusal(config.env, fault, _moment(folder / first.MOMENTS))


def in_a_thread(config: RunConfig, num_envs: int) -> EnvSpec:
    """Makes, resets, steps and closes environments in a thread of this process, and returns their spec.

    The current folder is restored. If an environment hangs, the processes that it has started are killed.

    Args:
      config: settings of the run.
      num_envs: number of environments.

    Raises:
      ConfigError: as for :func:`in_a_process`.
    """
    here, own = Path.cwd(), set(psutil.Process().children(recursive=True))
    moments: list[None] = []
    found: Future[EnvSpec] = Future()

    def look() -> None:
        try:
            found.set_result(first.look(**_job(config, num_envs), passed=partial(moments.append, None)))
        except BaseException as error:
            found.set_exception(error)

    # A thread that hangs cannot be stopped; as a daemon it does not keep the process from ending.
    threading.Thread(target=look, name="first environment", daemon=True).start()
    passed = -1
    while passed < len(moments) and not found.done():
        passed = len(moments)
        wait([found], config.safety.env_timeout)
    os.chdir(here)
    if not found.done():
        for process in set(psutil.Process().children(recursive=True)) - own:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        raise _late(config, _MOMENTS[min(passed, 2)])
    if (error := found.exception()) is not None:
        raise _refusal(config.env, Fault.of(error), "") from error
    return found.result()


def _job(config: RunConfig, num_envs: int) -> dict[str, Any]:
    """Returns the arguments of :func:`seedbed.envs.first.look`; the seed is new unless the run is deterministic."""
    moment = 0 if config.deterministic else time.time_ns()
    seed = integer(config.seed, "first environment", moment, bits=31)
    return {"env_id": config.env, "options": config.making, "num_envs": num_envs, "seed": seed}


def _ended(process: ProcessInstance, moments: Path, config: RunConfig) -> Fault:
    """Waits until the process ends and returns the fault; raises :class:`ConfigError` if one call takes too long."""
    passed, since = None, time.monotonic()
    while (fault := process.ended()) is None:
        now = _count(moments)
        if now != passed:
            passed, since = now, time.monotonic()
        allowed = _START_SECONDS if passed is None else config.safety.env_timeout
        if time.monotonic() - since > allowed:
            raise _late(config, _moment(moments))
        time.sleep(_LOOK_SECONDS)
    return fault


def _count(moments: Path) -> int | None:
    """Returns the number of stages that have passed; None if Python has yet to start."""
    try:
        return moments.stat().st_size
    except OSError:
        return None


def _moment(moments: Path) -> str:
    """Returns the stage that was under way."""
    return ("made", "reset", "stepped")[min(_count(moments) or 0, 2)]


def _refusal(env: str, fault: Fault, moment: str) -> ConfigError:
    if not fault.kind:
        return ConfigError(f"{env} ended its process when it was to be {moment}: {fault}")
    kind, said = getattr(errors, fault.kind, None), str(replace(fault, step=None))
    ours = isinstance(kind, type) and issubclass(kind, SeedbedError)
    return ConfigError(said.removeprefix(f"{fault.kind}: ") if ours else f"{env}: {said}")


def _late(config: RunConfig, moment: str) -> ConfigError:
    return ConfigError(
        f"{config.env} was not {moment} within {config.safety.env_timeout:g} s: mend it if it hangs, or allow it more "
        "time with --env-timeout"
    )
