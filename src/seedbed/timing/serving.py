"""The served path alone: real carriers, registry and acting thread, simulated actors, and a policy of no cost.

The actors are other processes (:mod:`seedbed.timing.replay_steps`); as they have the same cores, the rates are of this
machine as a whole, and the costs are processor time of each end.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seedbed import limits
from seedbed.acting.assignment import lanes_of
from seedbed.acting.batcher import BatchRule
from seedbed.acting.lag_control import FreeBatches
from seedbed.acting.meters import Meters
from seedbed.architectures.compatibility import with_settings
from seedbed.architectures.parts import assignment_of
from seedbed.config.placement import InferenceSettings, RemoteSettings, TransportSettings
from seedbed.config.resolve import replace, to_json
from seedbed.config.settings import RunConfig
from seedbed.errors import ConfigError, RunFailed, listed
from seedbed.launch.build import build_agent, build_spec
from seedbed.launch.signals import ending_as_by_ctrl_c
from seedbed.launch.surroundings import require_files
from seedbed.metrics.ledger import Ledger
from seedbed.serving.actor_registry import ActorRegistry
from seedbed.serving.inference_service import InferenceService
from seedbed.serving.source import ServedActors
from seedbed.timing.children import children
from seedbed.timing.stages import provenance
from seedbed.types import Tree, Weights

ADDRESSES = {"shm": "shm:{folder}/socket", "grpc": "unix:{folder}/socket"}
"""Address of each carrier that can be timed."""
_START_SECONDS = 120.0
_SETTLE = 0.25
"""Share of the measured time that passes before it."""


class NoPolicy:
    """A policy of no cost: the first action for everybody; counts what it was asked.

    Attributes:
      largest: number of rows in the largest batch.
      calls, messages, rows: numbers of batches, of lanes and of environments in them so far.
    """

    def __init__(self, largest: int, action: tuple[tuple[int, ...], str]) -> None:
        self.largest = largest
        self.calls = self.messages = self.rows = 0
        shape, dtype = action
        self._actions = np.zeros((largest, *shape), dtype)

    def reset(self, slots: NDArray[np.int32]) -> None:
        """Does nothing: there is no state."""

    def act(self, params: Tree, batch: Sequence[tuple[Any, NDArray[np.int32]]]) -> tuple[NDArray[Any], Tree]:
        """Returns the same actions always."""
        del params
        rows = sum(columns.shape[1] for _, columns in batch)
        self.calls, self.messages, self.rows = self.calls + 1, self.messages + len(batch), self.rows + rows
        return self._actions[:rows], {}

    def first_states(self, slots: NDArray[np.int32]) -> Tree:
        """Returns no state."""
        return {}


class _OneVersion:
    """A store with one version of weights that are none."""

    def newest(self, device: int) -> Weights:
        """Returns it."""
        del device
        return Weights({}, 0)


@dataclass(frozen=True)
class Measured:
    """The served path with some actors.

    Attributes:
      steps_per_second: environment steps that were decided.
      messages_per_second: messages of lanes.
      batch: lanes in a batch, mean.
      server_us_a_message: processor time of the server's process for one message, in µs.
      server_us_a_row: the same for one environment.
      actor_us_a_message: processor time of the actors' processes for one message, in µs.
      wait_p50, wait_p99: ms from sending a step to having its actions.
      joins_per_second: actors that joined a second.
      descriptors_an_actor: open files of the server for one actor; None where that is not known.
      bytes_an_actor: resident memory of the server for one actor, once it has played; None where that is not known.
      cores: cores that the server kept busy.
    """

    steps_per_second: float
    messages_per_second: float
    batch: float
    server_us_a_message: float
    server_us_a_row: float
    actor_us_a_message: float
    wait_p50: float
    wait_p99: float
    joins_per_second: float
    descriptors_an_actor: float | None
    bytes_an_actor: float | None
    cores: float


def require_served(config: RunConfig) -> None:
    """Raises :class:`ConfigError` if the run has no served path whose ends are processes of this machine."""
    place: Any = config.placement
    groups = (RemoteSettings, InferenceSettings, TransportSettings)
    if not all(isinstance(place, group) for group in groups):
        served = listed(with_settings(*groups), "or")
        raise ConfigError(f"--serve times central inference, and {config.arch} has none: use --arch {served}")
    if place.transport not in ADDRESSES:
        raise ConfigError(
            f"--serve times actors in processes of their own, and transport is {place.transport}: use --transport "
            "shm or grpc"
        )
    if place.actors < 1:
        raise ConfigError("--serve needs actors: give --actors 1 or more")


@ending_as_by_ctrl_c()
def serve(config: RunConfig, seconds: float, say: Callable[[Measured], None]) -> dict[str, Any]:
    """Times the served path; returns the row for ``benchmarks/results/``.

    A second, shorter measurement with one environment a message tells the work for a message from the work for each of
    its environments.

    Args:
      config: settings of the run, of which the environments' spec, the actors and the carrier count.
      seconds: length of the measurement.
      say: takes the measurement.
    """
    require_served(config)
    row = provenance()
    found = measure(config, seconds)
    say(found)
    rows = lanes_of(config.placement.envs_per_actor)[1]
    message, each = found.server_us_a_message, 0.0
    if rows > 1:
        lanes = lanes_of(config.placement.envs_per_actor)[0]
        single = measure(replace(config, envs_per_actor=lanes), seconds / 2)
        each = max(0.0, (message - single.server_us_a_message) / (rows - 1))
        message -= rows * each
    from seedbed.planning.costs import ASSUMED_SERVED

    carrier = config.placement.transport
    return {
        "served": {
            carrier: {
                "message": 1e-6 * max(message, 0.0),
                "row": 1e-6 * each,
                "sent": 1e-6 * found.actor_us_a_message,
                "delay": ASSUMED_SERVED[carrier].delay,
            }
        },
        "serving": vars(found),
        "settings": to_json(config),
        **row,
    }


def measure(config: RunConfig, seconds: float) -> Measured:
    """Measures the served path with the run's actors for ``seconds`` s, after they have settled.

    Raises:
      RunFailed: the actors did not join, or the server failed.
    """
    spec = build_spec(config)
    place = config.placement
    policy = NoPolicy(place.full_batch(0), (spec.action.shape, spec.action.dtype))
    token = secrets.token_hex(16)
    with (
        tempfile.TemporaryDirectory(prefix="seedbed-") as folder,
        serving(config, spec, policy, token) as server,
    ):
        (address,) = server.open([ADDRESSES[place.transport].format(folder=folder)])
        server.begin()
        before = _held()
        with children() as started:
            numbers = range(place.actors)
            count = min(place.actors, limits.cores())
            job = {"address": address, "token": token, "spec": spec.to_json()}
            actors = [
                started.start(
                    "seedbed.timing.replay_steps",
                    {**job, "indices": list(numbers[first::count])},
                    env={**os.environ, "JAX_PLATFORMS": "cpu"},
                )
                for first in range(count)
            ]
            _until(lambda: len(server.registry.members()) == place.actors, [each.poll for each in actors])
            time.sleep(_SETTLE * seconds)
            begin, busy = time.perf_counter(), time.process_time()
            calls, messages, rows = policy.calls, policy.messages, policy.rows
            time.sleep(seconds)
            passed, busy = time.perf_counter() - begin, time.process_time() - busy
            calls, messages, rows = policy.calls - calls, policy.messages - messages, policy.rows - rows
            during = _held()
            server.close()
            told = [json.loads(each.communicate()[0] or "null") for each in actors]
    if not messages or None in told:
        raise RunFailed("bench: the simulated actors sent nothing, or failed; their errors stand above")
    waits = np.sort(np.concatenate([each["waits"] for each in told]))
    sent = sum(each["messages"] for each in told)
    held = [
        None if one is None or other is None else (other - one) / place.actors
        for one, other in zip(before, during, strict=True)
    ]
    return Measured(
        steps_per_second=rows / passed,
        messages_per_second=messages / passed,
        batch=messages / calls,
        server_us_a_message=1e6 * busy / messages,
        server_us_a_row=1e6 * busy / rows,
        actor_us_a_message=1e6 * sum(each["processor_seconds"] for each in told) / sent,
        wait_p50=1e3 * float(np.quantile(waits, 0.5)),
        wait_p99=1e3 * float(np.quantile(waits, 0.99)),
        joins_per_second=place.actors / max(each["join_seconds"] for each in told),
        descriptors_an_actor=held[0],
        bytes_an_actor=held[1],
        cores=busy / passed,
    )


@contextlib.contextmanager
def serving(
    config: RunConfig, spec: Any, policy: Any, token: str, ledger: Ledger | None = None
) -> Iterator[ServedActors]:
    """Yields the registry and the acting thread of a run, whose unrolls are thrown away.

    Args:
      config: settings of the run.
      spec: spec of the environments.
      policy: policy that decides, such as :class:`NoPolicy`.
      token: token that actors say.
      ledger: ledger in which steps are booked.
    """
    place = config.placement
    require_files(place.actors, place.most_actors)
    agent, meters, store = build_agent(config, spec), Meters(), _OneVersion()
    assignment = assignment_of(config, agent, spec, token)
    rule = BatchRule(policy.largest, place.inference_wait_ms / 1e3)
    failed: list[BaseException] = []
    service = InferenceService(
        policy,
        FreeBatches(rule, store, 0, lambda delivery: True),  # type: ignore[arg-type]
        assignment,
        ledger=ledger or Ledger(),
        meters=meters,
        full_batch=policy.largest,
        on_failure=failed.append,
    )
    registry = ActorRegistry(assignment, [service], place.slots)
    server = ServedActors(registry, [service], meters, patience=_START_SECONDS, most=place.most_actors)
    try:
        yield server
    finally:
        server.close()
    if failed:
        raise RunFailed(f"bench: the acting thread failed: {failed[0]!r}") from failed[0]


def _until(ready: Callable[[], bool], ended: Sequence[Callable[[], int | None]]) -> None:
    """Waits for a condition; raises :class:`RunFailed` if it does not come, or if a process has ended meanwhile."""
    deadline, pause = time.monotonic() + _START_SECONDS, threading.Event()
    while not ready():
        if any(each() is not None for each in ended):
            raise RunFailed("bench: a process of simulated actors has ended; its error stands above")
        if time.monotonic() > deadline:
            raise RunFailed(f"bench: the simulated actors did not join within {_START_SECONDS:g} s")
        pause.wait(0.01)


def _held() -> tuple[float | None, float | None]:
    """Returns the open files and the resident bytes of this process; None where the system does not tell."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return float(sum(1 for _ in Path("/proc/self/fd").iterdir())), float(
            pages * os.sysconf("SC_PAGE_SIZE")
        )
    except OSError:
        return None, None
