"""Once a run is warm, nothing is traced or compiled any more, whoever comes and goes."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from threading import Thread
from typing import Any

import jax
import pytest
from harness import balanced, thorough, tiny, until

from seedbed.errors import ConnectionLost
from seedbed.launch.actor import act
from seedbed.launch.folder import RunFolder
from seedbed.launch.train import train
from seedbed.learning.learner import Learner
from seedbed.serving.inference_service import InferenceService
from seedbed.transport.connect import connect

WARM = 6  # updates
VISITORS = (1, 2, 4)  # environments of actors from elsewhere
TRACED = "/jax/core/compile/jaxpr_trace_duration"


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {
            "lstm": 8,
            "prefetch": 0,
            "agent": "ppo",
            "minibatches": 2,
            "normalize_observations": True,
            "lag": "free",
        },
    ],
    ids=["vtrace", "ppo-lstm"],
)
def test_nothing_is_compiled_in_steady_state(
    settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "run"
    update, serve = Learner.update, InferenceService._serve
    served: set[int] = set()
    stopped: list[bool] = []
    traced: list[str] = []
    updates, visitors = [0], []

    def note(event: str, seconds: float, **more: Any) -> None:
        if event == TRACED and updates[0] >= WARM:
            traced.append(str(more))

    def visit(envs: int) -> None:
        # Another size of batch, as an actor from elsewhere with few environments makes it.
        client = connect(f"inproc:{RunFolder(folder).socket()}", timeout=10)
        try:
            act(client, token=RunFolder(folder).token(), envs=envs)
        except ConnectionLost:
            pass
        finally:
            client.close()

    def counted(self: Learner, *given: Any) -> Any:
        updates[0] += 1
        if updates[0] == WARM + 2:
            for envs in VISITORS:
                visitors.append(Thread(target=visit, args=(envs,), name="visitor"))
                visitors[-1].start()
        if updates[0] > 4 * WARM and len(served) == 2 + len(VISITORS) and not stopped:
            stopped.append(True)
            os.kill(os.getpid(), signal.SIGINT)
        return update(self, *given)

    def watched(self: InferenceService, lanes: Any) -> None:
        served.update(lane.member.index for lane in lanes if lane.steps > 4)
        serve(self, lanes)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Learner, "update", counted)
    monkeypatch.setattr(InferenceService, "_serve", watched)
    jax.monitoring.register_event_duration_secs_listener(note)
    try:
        # A checkpoint after every update, too.
        config = tiny(
            "toy:catch", folder, transport="inproc", inference_batch=16, checkpoint_minutes=1e-6, **settings
        )
        run = train(config).to_json()
        seen = list(traced)
        jax.jit(lambda x: x + 1)(1.0)
        assert len(traced) > len(seen), f"{TRACED} is not what this JAX calls it: the test sees nothing"
    finally:
        jax.monitoring.unregister_event_duration_listener(note)
    until(lambda: not any(visitor.is_alive() for visitor in visitors), "the visitors to end")
    assert run["stopped_because"] == "interrupted" and balanced(run)
    assert not seen


def test_threads_of_environments_that_fill_no_batch_compile_nothing_in_steady_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    update = Learner.update
    updates, traced = [0], []

    def note(event: str, seconds: float, **more: Any) -> None:
        if event == TRACED and 2 * WARM > updates[0] >= WARM:
            traced.append(str(more))

    def counted(self: Learner, *given: Any) -> Any:
        updates[0] += 1
        return update(self, *given)

    monkeypatch.setattr(Learner, "update", counted)
    jax.monitoring.register_event_duration_secs_listener(note)
    try:
        # Batches of 8 are of two unrolls and a part of a third, cut at another place each time, three in turn. What is
        # under way at the end counts as spent.
        threads = {"arch": "sebulba", "actors": 3, "envs_per_actor": 3}
        train(tiny("toy:catch", tmp_path / "run", frames=(2 * WARM + 5) * 8 * 5, **threads))
    finally:
        jax.monitoring.unregister_event_duration_listener(note)
    assert updates[0] >= 2 * WARM
    assert not traced


@pytest.mark.parametrize("arch", ["sebulba", *thorough("seed")])
def test_memory_does_not_grow(arch: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    update = Learner.update
    held: list[tuple[int, int]] = []

    def counted(self: Learner, *given: Any) -> Any:
        metrics = update(self, *given)
        alive = [leaf for leaf in jax.live_arrays() if not leaf.is_deleted()]
        held.append((len(alive), sum(leaf.nbytes for leaf in alive)))
        return metrics

    monkeypatch.setattr(Learner, "update", counted)
    # In lockstep, so that as much is under way at each update as at the one before.
    settings = {"lag": 0, "prefetch": 0, "lstm": 8, "frames": 30 * 8 * 5}
    if arch == "seed":
        settings["transport"] = "inproc"
    train(tiny("toy:catch", tmp_path / "run", arch=arch, **settings))
    # Of ten decisions in catch the last only resets: 34 batches of 40 places are worth 1,200 steps, 33 are not.
    assert len(held) == 34
    # The least of several: the numbers that a row tells are held for a moment longer than others.
    assert min(held[-6:]) <= min(held[2:8])
