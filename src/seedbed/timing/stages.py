"""Timing every stage alone and the whole, and the bound that follows from the stages.

The box's cores are shared by three kinds of work for every agent step: stepping the environment, inference, and
training. A stage that could use all cores alone at ``r`` steps/s takes ``1/r`` of the box for one step, so

    bound = 1 / (1/environment + 1/inference + 1/learner),    efficiency = whole / bound

A step is a decision here, also one at the end of an episode, which only resets and costs a stage the same. Speeds of
the whole run are in agent steps, as everywhere; its efficiency is computed from its decisions.

On a machine with an accelerator the accelerator's work and the cores' overlap, and the bound is that of the
slower of the two (under IMPALA and Ape-X inference is the cores' work). Under Anakin environment and
inference are one stage, and everything is on the same devices.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any

import jax
import numpy as np

from seedbed import limits
from seedbed.acting.assignment import lanes_of
from seedbed.acting.batcher import buckets
from seedbed.acting.example import example_unroll
from seedbed.acting.inference import Inference
from seedbed.acting.policy_actor import device_of
from seedbed.acting.rollout import CompiledPolicy, Rollout
from seedbed.acting.unrolls import step_fields
from seedbed.architectures.compatibility import load_architecture, require_fit
from seedbed.architectures.devices import pick
from seedbed.architectures.interface import Setup
from seedbed.architectures.parts import trains_at_once
from seedbed.config.placement import TransportSettings
from seedbed.config.resolve import replace, to_json
from seedbed.config.settings import RunConfig
from seedbed.errors import ConfigError, RunFailed
from seedbed.launch.build import build_agent, build_spec
from seedbed.launch.machine import convolving
from seedbed.launch.signals import ending_as_by_ctrl_c
from seedbed.launch.software import commit, versions
from seedbed.launch.surroundings import held
from seedbed.learning.learner import Learner
from seedbed.learning.update import Update
from seedbed.metrics.reports import read_summary
from seedbed.metrics.sinks import read_rows
from seedbed.replay.queue import join, select
from seedbed.seeding import key
from seedbed.timing.children import children
from seedbed.timing.transport import ADDRESSES, measure
from seedbed.types import Agent, EnvSpec, leaves

_WINDOWS = 3
_LONGER = 6


@dataclass(frozen=True)
class Stage:
    """One row of the table.

    Attributes:
      name: name of the stage.
      steps_per_second: decisions a second when the stage has the machine to itself; median of windows. The whole run's
        are agent steps: decisions that environments carried out.
      low, high: the slowest and the fastest window.
      about: conditions of the measurement.
      rows: number of environments in a call of the policy; 0 for other stages.
      device: kind of the device that the policy runs on; empty for other stages.
      cores: cores that this process kept busy meanwhile; 0 where others worked.
      crowd: processes that kept a core busy meanwhile.
    """

    name: str
    steps_per_second: float
    low: float
    high: float
    about: str
    rows: int = 0
    device: str = ""
    cores: float = 0.0
    crowd: int = 0


def _timed_stage(name: str, run: Callable[[], float], seconds: float, about: str, **more: Any) -> Stage:
    """Times work of this process, over windows of ``seconds`` s each; ``run`` returns its steps."""
    rates = []
    begun, processor = time.perf_counter(), time.process_time()
    for _ in range(_WINDOWS):
        begin, steps = time.perf_counter(), 0.0
        while (elapsed := time.perf_counter() - begin) < seconds:
            steps += run()
        rates.append(steps / elapsed)
    cores = (time.process_time() - processor) / (time.perf_counter() - begun)
    return Stage(name, statistics.median(rates), min(rates), max(rates), about, cores=cores, **more)


def environment_stage(config: RunConfig, spec: EnvSpec, seconds: float) -> Stage:
    """Stepping with random actions, by as many processes as there are cores."""
    rates = []
    with children() as started:
        processes = [
            started.start(
                "seedbed.timing.step_environment",
                _environment_job(config, seconds),
                env={**os.environ, "JAX_PLATFORMS": "cpu"},  # as actors have it
            )
            for _ in range(limits.cores())
        ]
        for process in processes:
            output, _ = process.communicate()
            if process.returncode:
                raise RunFailed(
                    f"bench: the environment stage of {config.env} ended with {process.returncode}"
                )
            rates.append(json.loads(output))
    totals = [sum(window) for window in zip(*rates, strict=True)]
    return Stage(
        "environment",
        statistics.median(totals),
        min(totals),
        max(totals),
        f"{limits.cores()} processes of {config.placement.envs_per_actor} environments, random actions",
    )


def _environment_job(config: RunConfig, seconds: float) -> dict[str, Any]:
    return {
        "env": config.env,
        "options": list(config.making),
        "envs": config.placement.envs_per_actor,
        "seconds": seconds,
        "windows": _WINDOWS,
    }


def transport_stages(config: RunConfig, spec: EnvSpec, seconds: float) -> list[Stage]:
    """Every carrier with the run's observations, one lane's environments a message."""
    envs = max(1, config.placement.envs_per_actor // 2)
    observation = sum(
        int(np.prod(leaf.shape)) * np.dtype(leaf.dtype).itemsize for _, leaf in leaves(spec.observation)
    )
    stages = []
    for carrier in ADDRESSES:
        rates = [
            float(measure(carrier, envs, (observation,), seconds)["frames_per_s"]) for _ in range(_WINDOWS)
        ]
        about = f"{envs} observations of {observation} bytes a message, one client"
        stages.append(Stage(f"transport {carrier}", statistics.median(rates), min(rates), max(rates), about))
    return stages


def inference_stages(config: RunConfig, agent: Agent, spec: EnvSpec, seconds: float) -> Iterator[Stage]:
    """The policy on batches of the size that the run fills, then beside busy cores, then of its other sizes."""
    planned = config.placement.actors * config.placement.envs_per_actor
    lane = lanes_of(config.placement.envs_per_actor)[1]
    # Of one server, where several share the actors.
    own = load_architecture(config.arch).policy == "actor"
    rows = lane  # each actor decides for its own
    if not own:
        servers = getattr(config.placement, "forward_servers", 1)
        rows = config.placement.inference_batch or max(1, planned // 2 // servers)
    device = device_of("cpu") if own else pick("inference", config.placement.inference_devices)[0]
    params = jax.device_put(agent.init(key(0, "bench")), device)

    def timed(name: str, rows: int, seconds: float, **more: Any) -> Stage:
        inference = Inference(agent, spec, planned, (rows,), device, key(0, "bench"))
        inference.warm_up(params)
        arrays = [np.zeros(shape, dtype) for shape, dtype in step_fields(spec, rows)]
        columns = np.zeros((4, rows), np.int32)
        columns[0] = np.arange(rows)

        def act() -> int:
            inference.act(params, [(arrays, columns)])
            return rows

        kind = device.device_kind
        about = f"batches of {rows} on {kind}"
        if crowd := more.get("crowd"):
            about += f", beside {crowd} busy processes"
        return _timed_stage(name, act, seconds, about, rows=rows, device=kind, **more)

    yield timed("inference", rows, seconds)
    shorter = min(seconds, 1.0)
    with _busy_cores() as crowd:
        yield timed("crowded inference", rows, shorter, crowd=crowd)
    for size in buckets(min(lane, rows), rows)[:-1]:
        yield timed(f"inference {size}", size, shorter)


@contextlib.contextmanager
def _busy_cores() -> Iterator[int]:
    """Keeps every core busy with another process; yields their number."""
    with children() as started:
        processes = [started.start("seedbed.timing.keep_busy", {}) for _ in range(limits.cores())]
        for process in processes:
            assert process.stdout is not None
            process.stdout.readline()
        yield len(processes)


def join_stage(config: RunConfig, agent: Agent, spec: EnvSpec, seconds: float) -> Stage:
    """The unrolls of a batch, as lanes hand them over, joined and put on the training devices."""
    devices = pick("training", config.placement.training_devices)
    learner = Learner(agent, devices, key(0, "bench"))
    plan, rows = agent.data, lanes_of(config.placement.envs_per_actor)[1]
    count = -(-plan.batch_size // rows)
    parts = [example_unroll(agent, spec, plan.trained_length, rows) for _ in range(count)]

    def put() -> float:
        jax.block_until_ready(learner.put(select(join(parts), 0, plan.batch_size)))
        return plan.acted_a_batch

    put()
    return _timed_stage(
        "join", put, seconds, f"batches of {plan.batch_size} of unrolls of {rows} environments"
    )


def rollout_stages(config: RunConfig, agent: Agent, spec: EnvSpec, seconds: float) -> Iterator[Stage]:
    """The policy of one thread under Sebulba, its unrolls included; then beside busy cores."""
    rows = config.placement.envs_per_actor
    device = pick("inference", config.placement.inference_devices)[0]
    program = CompiledPolicy(agent, spec, rows, key(0, "bench"))
    rollout = Rollout(program, device, np.arange(rows, dtype=np.int32), 0)
    params = jax.device_put(agent.init(key(0, "bench")), device)
    example = example_unroll(agent, spec, 1, rows).timestep
    timestep = jax.tree.map(lambda leaf: leaf[0], example)

    def act() -> int:
        if rollout.full:
            rollout.cut(timestep, 0)
        rollout.act(params, timestep, 0)
        return rows

    for _ in range(program.length + 1):  # compiles
        act()
    about, where = (
        f"one thread's {rows} rows on {device.device_kind}",
        {"rows": rows, "device": device.device_kind},
    )
    yield _timed_stage("inference", act, seconds, about, **where)
    with _busy_cores() as crowd:
        beside = f"{about}, beside {crowd} busy processes"
        yield _timed_stage("crowded inference", act, min(seconds, 1.0), beside, crowd=crowd, **where)


def acting_stage(config: RunConfig, agent: Agent, spec: EnvSpec, seconds: float) -> Stage:
    """Environments and policy in one program, without the updates."""
    setup = Setup(config, agent, spec, agent_with=partial(build_agent, config, spec))
    run: Any = load_architecture(config.arch).build(setup)
    act = run.acting_alone()
    length = agent.data.unroll_length
    about = f"{act() // length} environments for {length} steps a call"
    return _timed_stage("acting", act, seconds, about)


def learner_stage(config: RunConfig, agent: Agent, spec: EnvSpec, seconds: float) -> Stage:
    """All updates with one batch that is already on the device; every transition that is acted counts once."""
    devices = pick("training", config.placement.training_devices)
    learner = Learner(agent, devices, key(0, "bench"), at_once=trains_at_once(config, spec))
    plan = agent.data
    batch = learner.put(example_unroll(agent, spec, plan.trained_length, plan.batch_size))
    passes = jax.jit(Update(agent, devices).passes)
    last = jax.tree.map(itemgetter(-1), batch.record) if agent.prepare else None

    def one_by_one() -> float:
        for _ in learner.updates(batch):
            pass
        return plan.acted_a_batch

    def in_one_program() -> float:
        learner.state, _ = jax.block_until_ready(passes(learner.state, batch, last))
        return plan.acted_a_batch

    update = in_one_program if load_architecture(config.arch).policy == "program" else one_by_one
    update()
    what = "items" if plan.replay else "unrolls"
    about = f"batches of {plan.batch_size} {what} of {plan.trained_length} on {len(devices)} device(s)"
    if plan.updates_a_batch > 1:
        about += f", {plan.updates_a_batch} updates each"
    return _timed_stage("learner", update, seconds, about)


def leave_memory() -> None:
    """Has JAX take an accelerator's memory as it needs it; call it before JAX is used.

    Otherwise it takes most of it at once, and the whole run, a process of its own, finds too little.
    """
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")


def finished_run(config: RunConfig) -> tuple[dict[str, Any], list[dict[str, float]]]:
    """A run to its end, in a process of its own: its summary and its metrics."""
    settings = to_json(config)
    with tempfile.TemporaryDirectory(prefix="seedbed-bench-") as folder:
        settings.update(run_dir=f"{folder}/run", store=None, json=True, video=False)
        with children() as started:
            run = started.start("seedbed.timing.train_once", settings, stderr=subprocess.PIPE)
            _, said = run.communicate()
        if run.returncode:
            # Without the path of its log, which is about to be removed.
            last = said.strip().rpartition("\n")[2].partition(" (log: ")[0]
            raise RunFailed(
                f"bench: the whole run failed: {last}; 'seedbed train' with the same settings says more"
            )
        return read_summary(Path(folder) / "run/summary.json"), read_rows(Path(folder) / "run/metrics.jsonl")


def whole_run(config: RunConfig, seconds: float) -> tuple[dict[str, Any], list[dict[str, float]]]:
    """A run of so many seconds, in a process of its own: its summary, and the metrics of its second half.

    One that makes no second update within them, since its actors take long to start, gets several times as many.
    """
    for longer in (seconds, _LONGER * seconds):
        summary, rows = finished_run(replace(config, frames=None, minutes=longer / 60, until_return=None))
        if summary["agent_steps_per_second"] is not None and summary["policy_lag_mean"] is not None:
            return summary, _steady(rows)
    raise RunFailed(f"bench: the whole run made no second update within {longer:g} s: give more --seconds")


def _steady(rows: list[dict[str, float]]) -> list[dict[str, float]]:
    """Returns the rows of a run's second half, by its time: at first rows come sooner, and tell of the start."""
    return [row for row in rows if 2 * row["seconds"] >= rows[-1]["seconds"]]


def whole_stage(config: RunConfig, seconds: float) -> tuple[Stage, float]:
    """Times the run itself in steady state, after compilation; returns also its decisions a second."""
    summary, rows = whole_run(config, seconds)
    rates = [row["agent_steps_per_second"] for row in rows]
    carrier = f"{config.placement.transport}, " if isinstance(config.placement, TransportSettings) else ""
    about = f"{config.arch}, {carrier}lag {summary['policy_lag_mean']:.1f} updates"
    first, last = rows[0], rows[-1]
    rate = float(summary["agent_steps_per_second"])
    if (
        last["seconds"] > first["seconds"]
    ):  # the summary counts from the first update on, when actors still start
        rate = (last["agent_steps"] - first["agent_steps"]) / (last["seconds"] - first["seconds"])
    stage = Stage("whole", rate, min(rates, default=rate), max(rates, default=rate), about)
    return stage, rate * last["steps_received"] / last["agent_steps"]


def bound(environment: float, inference: float, training: float, *, shared: bool) -> float:
    """Most steps/s that the stages allow: see the module.

    Args:
      environment, inference, training: steps/s of the stages alone.
      shared: whether all of them run on the same cores; otherwise inference and training share an accelerator.
    """
    accelerator = 1 / inference + 1 / training
    return 1 / (1 / environment + accelerator) if shared else min(environment, 1 / accelerator)


def require_stages(config: RunConfig) -> None:
    """Raises :class:`ConfigError` if the run is none whose stages could be timed alone, here."""
    if load_architecture(config.arch).policy is None:
        raise ConfigError(
            f"bench cannot time the stages of {config.arch} alone: use --compare all --frames N"
        )
    if config.population.seeds > 1 or config.population.sweep:
        raise ConfigError("bench times one agent: leave --seeds and --sweep out")
    if config.cluster.hosts > 1:
        raise ConfigError("bench times one host: leave --hosts out")
    if len(acting := _devices(config, "inference")) > 1:
        raise ConfigError(
            f"bench times one device that acts, and inference_devices has {len(acting)}: give one of them"
        )


def _devices(config: RunConfig, role: str) -> tuple[int, ...]:
    """The devices that act, or train; the first where the architecture does not choose."""
    devices: tuple[int, ...] = getattr(config.placement, f"{role}_devices", (0,))
    return devices


@ending_as_by_ctrl_c()
@held()
def bench(
    config: RunConfig, seconds: float = 3.0, say: Callable[[Stage], None] = lambda stage: None
) -> dict[str, Any]:
    """Times the stages and the whole; returns the row for ``benchmarks/results/``.

    Args:
      config: settings of the run to time; its limits are ignored.
      seconds: length of a window of each stage; the whole runs ten times as long.
      say: takes each stage as it is known.
    """
    require_stages(config)
    leave_memory()
    row = provenance()
    # An annealed learning rate needs a run of stated length, which these are not.
    config = replace(config, frames=None, anneal_to_zero=False)
    for role in ("inference", "training"):
        pick(role, _devices(config, role))  # a wrong one is named before anything is timed
    spec = build_spec(config)
    agent = build_agent(config, spec)
    require_fit(config, agent)
    stages: dict[str, Stage] = {}

    def rate(stage: Stage) -> float:
        stages[stage.name] = stage
        say(stage)
        return stage.steps_per_second

    limit, parts = _timed(config, agent, spec, seconds, rate)
    stage, decisions = whole_stage(config, 10 * seconds)
    whole = rate(stage)
    return {
        "stages": {name: vars(stage) for name, stage in stages.items()},
        "bound_steps_per_second": limit,
        "efficiency": decisions / limit,
        "bottleneck": max(parts, key=lambda name: 1 / parts[name]),
        "frames_per_second": whole * spec.frames_per_step,
        "settings": to_json(config),
        **row,
    }


def _timed(
    config: RunConfig, agent: Agent, spec: EnvSpec, seconds: float, rate: Callable[[Stage], float]
) -> tuple[float, dict[str, float]]:
    """Times each stage alone: the bound that follows, and the steps/s of the stages that take part in it."""
    architecture = load_architecture(config.arch)
    if architecture.policy == "program":
        acting = rate(acting_stage(config, agent, spec, seconds))
        learner = rate(learner_stage(config, agent, spec, seconds))
        return 1 / (1 / acting + 1 / learner), {"acting": acting, "learner": learner}
    placed = architecture.place(config)
    environment = rate(environment_stage(placed, spec, seconds))
    if isinstance(config.placement, TransportSettings):
        for transport in transport_stages(config, spec, min(seconds, 2.0)):
            rate(transport)
    if architecture.policy == "thread":
        inference, _ = [rate(stage) for stage in rollout_stages(placed, agent, spec, seconds)]
    else:
        inference, *_ = [rate(stage) for stage in inference_stages(placed, agent, spec, seconds)]
        rate(join_stage(placed, agent, spec, min(seconds, 1.0)))
    learner = rate(learner_stage(placed, agent, spec, seconds))
    shared = jax.default_backend() == "cpu"
    if architecture.policy == "actor" and not shared:  # the cores step and decide, the accelerator trains
        limit = min(1 / (1 / environment + 1 / inference), learner)
    else:
        limit = bound(environment, inference, learner, shared=shared)
    return limit, {"environment": environment, "inference": inference, "learner": learner}


def provenance() -> dict[str, Any]:
    """Returns machine, commit and versions, without which a row means nothing later. Call it before measuring."""
    return {
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "machine": {
            "processor": _processor(),
            "cores": limits.cores(),
            "devices": [device.device_kind for device in jax.local_devices()],
            "convolutions": convolving(advised=False),
            "load_before": os.getloadavg()[0],
        },
        "commit": commit() or "unknown",
        "versions": versions(),
    }


def _processor() -> str:
    """The processor's name, and its widest vector instructions: they decide the speed of convolutions."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.processor()
    pairs = (line.split(":", 1) for line in text.splitlines() if ":" in line)
    fields = {name.strip(): value.strip() for name, value in pairs}
    name = fields.get("model name", platform.processor())
    family = f"family {fields.get('cpu family')} model {fields.get('model')}"
    vectors = [flag for flag in ("avx2", "avx512f", "avx512_bf16") if flag in fields.get("flags", "").split()]
    return f"{name}, {family}, {' '.join(vectors)}"
