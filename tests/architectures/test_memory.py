"""Whole runs on a replay: what is kept and what is not, who waits, and what survives the end of a run."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from harness import balanced, refusal, rows, thorough, tiny, until

from seedbed.acting.unrolls import Delivery
from seedbed.agents import r2d2
from seedbed.errors import ConfigError
from seedbed.launch.build import build_agent, build_spec
from seedbed.launch.train import resume, train
from seedbed.learning import checkpoint as saving
from seedbed.learning.checkpoint import intact_steps, load_latest
from seedbed.learning.learner import Learner
from seedbed.learning.loop import LearnerLoop
from seedbed.learning.memory import QueueMemory, ReplayMemory, rounds
from seedbed.metrics.ledger import Ledger
from seedbed.replay.limiter import RateLimiter
from seedbed.replay.replay import Replay
from seedbed.types import DataPlan, ReplayPlan

REPLAY: dict[str, Any] = {
    "transport": "inproc",
    "head_size": 8,
    "batch_size": 10,
    "target_period": 5,
    "replay_size": 2_000,
    "replay_min_size": 40,
    "replay_ratio": 1.0,
}
DQN = {**REPLAY, "agent": "dqn"}
R2D2 = {**REPLAY, "agent": "r2d2", "lstm": 8, "burn_in": 3, "batch_size": 4}


def test_environments_that_evaluate_feed_no_replay_and_theirs_are_the_returns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fed: set[int] = set()
    offer = Replay.offer

    def watch(self: Replay, unroll: Any, streams: Any, *arguments: Any) -> Any:
        fed.update(int(stream) & 0xFFFFFFFF for stream in streams)
        return offer(self, unroll, streams, *arguments)

    monkeypatch.setattr(Replay, "offer", watch)
    run = train(tiny("toy:catch", tmp_path / "run", **DQN, eval_envs=3, frames=1_600)).to_json()
    # Of the actors' eight environments the last three.
    assert fed == {0, 1, 2, 3, 4}
    assert balanced(run)
    assert run["steps_trained"] > 0
    assert run["steps_dropped"] >= 3 / 8 * (run["steps_received"] - run["steps_open"]) - 3 * 5
    # An episode of catch has nine transitions, and one more step leads into the next.
    most = 3 * (run["steps_received"] / 8 / 10 + 1)
    assert 0 < run["episodes"] <= most


@pytest.mark.parametrize(("lag", "batch_size"), [(0, 5), ("free", 4)])
def test_environments_that_evaluate_are_in_no_batch_of_a_queue(
    lag: Any, batch_size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    versions: list[int] = []
    take = QueueMemory.take

    def watch(self: QueueMemory, timeout: float) -> Any:
        batch = take(self, timeout)
        versions.extend([batch.version.size] if batch else [])
        return batch

    monkeypatch.setattr(QueueMemory, "take", watch)
    settings = {"agent": "pqn", "batch_size": batch_size, "minibatches": 1, "reuse": 1, "lag": lag}
    run = train(tiny("toy:catch", tmp_path / "run", **settings, eval_envs=3, frames=1_600)).to_json()
    assert balanced(run)
    assert 0 < run["steps_trained"] <= sum(versions)
    # Three of eight environments; under a free lag some run ahead of others.
    ended = run["steps_trained"] + run["steps_dropped"] + run["steps_queued"]
    assert run["steps_dropped"] == pytest.approx(3 / 8 * ended, abs=3 * 5 if lag == 0 else 0.2 * ended)
    assert run["episodes"] > 0


@pytest.mark.parametrize("arch", ["seed", "anakin"])
def test_an_annealed_rate_ends_with_the_run_though_resets_earn_samples_too(arch: str, tmp_path: Path) -> None:
    """Every second decision of the world of counts only resets, one in ten of the catch of bsuite."""
    settings: dict[str, Any] = {**DQN, "anneal_to_zero": True, "frames": 1_600}
    env, share = "toy:count", 1 / 2
    if arch == "seed":
        settings |= {"lag": 0, "env_options": ("longest=1",)}
    else:
        env, share = "gymnax:Catch-bsuite", 9 / 10
        settings = {name: value for name, value in settings.items() if name != "transport"}
    run = train(tiny(env, tmp_path / "run", **{**settings, "arch": arch}))
    state = load_latest(tmp_path / "run/checkpoints")._load("train.safetensors")
    counts = [
        float(leaf) for name, leaf in state.items() if name.endswith("count") and leaf.dtype == np.float32
    ]
    planned = (1_600 - 40) / 10
    assert counts == [pytest.approx(planned, rel=0.06)]
    assert run.weights_version * share == pytest.approx(planned, rel=0.15), "so many were made"


def test_agents_of_one_environment_evaluate_together() -> None:
    settings = {**DQN, "eval_envs": 1, "env_options": ()}
    says = refusal(
        lambda: build_spec(tiny("pettingzoo:parallel_worlds:Meeting", Path("nowhere"), **settings))
    )
    assert says is not None and "eval_envs is 1" in says and "multiple of 2" in says


def test_what_is_sampled_gives_the_values_that_the_actors_had(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Through inference, transport, unrolls and replay, over ends of episodes, while the weights stay the same."""
    config = tiny("toy:memory", tmp_path / "run", **R2D2, learning_rate=1e-30, frames=1_600)
    agent = build_agent(config, build_spec(config))
    model = next(
        c.cell_contents for c in agent.loss.__closure__ or () if hasattr(c.cell_contents, "num_actions")
    )
    again = jax.jit(lambda params, unroll: r2d2.values_after_burn_in(model, params["network"], unroll, 3))
    differences: list[float] = []
    crossed: list[bool] = []
    learn = LearnerLoop._train

    def compare(self: LearnerLoop, batch: Any, sampled: Any) -> Any:
        (unroll,) = sampled.unrolls
        q = again(self.learner.params, unroll)
        differences.append(float(np.max(np.abs(q[:-1] - unroll.record["q"][3:]))))
        crossed.append(bool(unroll.timestep.first[1:].any()))
        return learn(self, batch, sampled)

    monkeypatch.setattr(LearnerLoop, "_train", compare)
    train(config)
    assert len(differences) > 20 and any(crossed)
    assert max(differences) < 1e-6


@pytest.mark.parametrize("settings", [R2D2, *thorough(DQN)], ids=["r2d2", "dqn"])
def test_a_run_goes_on_with_what_its_replay_held(settings: dict[str, Any], tmp_path: Path) -> None:
    held: list[dict[str, float]] = []
    restore = ReplayMemory.restore

    with pytest.MonkeyPatch.context() as patch:

        def watch(self: ReplayMemory, *arguments: Any) -> int:
            waiting = restore(self, *arguments)
            held.append({**self.meters(), "waiting": waiting})
            return waiting

        patch.setattr(ReplayMemory, "restore", watch)
        first = train(tiny("toy:catch", tmp_path / "run", **settings, frames=800)).to_json()
        second = resume(str(tmp_path / "run"), frames=1_200).to_json()
    (before,) = held
    assert before["replay_transitions"] > 600
    assert 0 < before["waiting"] < before["replay_transitions"]
    assert balanced(second)
    # It learns from the first step on, though the replay's smallest size is not reached again by new ones.
    assert second["weights_version"] > first["weights_version"]


def test_a_run_learns_while_its_checkpoint_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, update = saving._write, Learner.update
    updates, during = [0], []

    def counted(self: Learner, *given: Any) -> Any:
        updates[0] += 1
        return update(self, *given)

    def slow(*arguments: Any) -> None:
        if not during:
            begun = updates[0]
            until(lambda: updates[0] >= begun + 5, "updates while a checkpoint is written")
            during.append(int(arguments[2]))
        write(*arguments)

    monkeypatch.setattr(saving, "_write", slow)
    monkeypatch.setattr(Learner, "update", counted)
    run = train(
        tiny(
            "toy:catch", tmp_path / "run", **DQN, frames=1_600, checkpoint_minutes=1e-6, keep_checkpoints=999
        )
    ).to_json()
    assert balanced(run)
    written = intact_steps(tmp_path / "run/checkpoints")
    assert during[0] == written[0] < written[-1] == run["weights_version"]
    assert rows(tmp_path / "run")[-1]["checkpoint_pause_seconds"] >= 0
    # The one that was written while the run went on is whole.
    for later in written[1:]:
        shutil.rmtree(tmp_path / f"run/checkpoints/{later:012d}")
    again = resume(str(tmp_path / "run"), frames=2_000).to_json()
    assert balanced(again) and again["weights_version"] > written[0]


def test_actors_wait_for_a_learner_that_stands_still(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loops: list[Any] = []
    stood: list[int] = []
    update, begin = Learner.update, LearnerLoop.open

    def know(self: LearnerLoop, *addresses: Any) -> list[str]:
        loops.append(self)
        return begin(self, *addresses)

    def stand_still(self: Learner, *given: Any) -> Any:
        if not stood:
            workers = loops[0].source.registry.services
            until(
                lambda: all(len(w.lanes) == 4 and all(lane.outbox for lane in w.lanes) for w in workers),
                "every lane to hold an unroll that finds no room",
            )
            stood.append(loops[0].books.ledger.counts()["received"])
        return update(self, *given)

    monkeypatch.setattr(LearnerLoop, "open", know)
    monkeypatch.setattr(Learner, "update", stand_still)
    run = train(tiny("toy:catch", tmp_path / "run", **DQN, frames=1_600)).to_json()
    # The smallest size, what the tolerance of 2 * (10 + 20) lets in, what is prefetched, and what the lanes hold.
    assert 40 < stood[0] <= 40 + 60 + 10 + 2 * 8 * (5 + 2)
    assert run["steps_received"] >= 1_600 and balanced(run)


def test_with_an_exact_lag_a_round_is_inserted_as_a_whole_by_the_one_who_samples() -> None:
    replay = _Replay(batches=2)
    memory = ReplayMemory([replay], _agent(), Ledger(), round_size=3)  # type: ignore[arg-type]
    memory._ledger.decide(60)
    memory._ledger.cut(60)
    for end in range(5):
        assert memory.offer(_delivery(end))
    assert replay.said == []
    assert memory.take(0.0) is not None and memory.take(0.0) is not None
    assert replay.said == ["offer 0", "offer 1", "offer 2", "take", "take"]
    # The next round is not complete.
    assert memory.take(0.0) is None
    threading.Thread(target=memory.offer, args=(_delivery(5),)).start()
    assert memory.take(60.0) is not None
    assert replay.said[5:] == ["offer 3", "offer 4", "offer 5", "take"]


def test_a_host_does_not_take_another_ones_replay_for_its_own() -> None:
    """Two hosts with the same contents and the same draws would train twice on each item."""
    replay = _Replay(batches=1)
    memory = ReplayMemory([replay], _agent(), Ledger(), number=1)  # type: ignore[arg-type]
    of: Any = lambda number: type(  # noqa: E731
        "Checkpoint", (), {"meta": {"replay": {}, "replay_number": number}, "pieces": lambda *_: iter(())}
    )()
    assert (memory.restore(of(0), None), replay.said) == (0, [])
    assert memory.restore(of(1), None) == 48


def test_what_was_lost_on_the_way_to_a_checkpoint_is_not_booked_twice() -> None:
    replay, ledger = _Replay(batches=0), Ledger()
    memory = ReplayMemory([replay], _agent(), ledger)  # type: ignore[arg-type]
    checkpoint: Any = type("Checkpoint", (), {"meta": {"replay": {}}, "pieces": lambda *_: iter(())})()
    assert memory.restore(checkpoint, None) == 48
    # The books of the run have what the replay did not keep among the dropped; here they begin with this unroll.
    ledger.decide(10)
    ledger.cut(10)
    assert memory.offer(_delivery(0))
    books = {"received": 10, "trained": 0, "queued": 10, "open": 0, "dropped": 0, "resets": 0}
    assert ledger.counts() == books


class _Replay:
    """Gives ``batches`` after every three offers."""

    def __init__(self, batches: int) -> None:
        self.said: list[str] = []
        self._batches, self._credit = batches, 0.0
        self._dropped, self.unsampled = 0, 48

    def restore(self, pieces: Any, meta: Any) -> None:
        self._dropped = 14  # overwritten while it was saved

    def listen(self, wake: Any) -> None: ...

    def close(self) -> None: ...

    def has_room(self, rows: int) -> bool:
        return True

    def take_dropped(self) -> int:
        dropped, self._dropped = self._dropped, 0
        return dropped

    def offer(self, unroll: Any, streams: Any, end: int, priorities: Any) -> int:
        self.said.append(f"offer {end}")
        self._credit += self._batches / 3
        return 10

    def may_sample(self) -> bool:
        return self._credit > 0.99

    def take(self, timeout: float) -> Any:
        if not self.may_sample():
            return None
        self._credit -= 1
        self.said.append("take")
        return type("Sample", (), {"unroll": _delivery(0).unroll, "fresh": 0})()


def _agent() -> Any:
    plan = DataPlan(5, 4, replay=ReplayPlan(100, 0, 1.0, window=5, start=0))
    return type("Agent", (), {"data": plan, "priorities": None})()


def _delivery(end: int) -> Delivery:
    zeros = np.zeros((5, 2), np.int32)
    timestep = type("TimeStep", (), {"first": np.zeros((6, 2), bool)})()
    unroll: Any = type("Unroll", (), {"version": zeros, "action": zeros, "timestep": timestep})()
    return Delivery(unroll, [], np.arange(2), end, np.ones(2, bool), counted=10)


def plan(window: int = 3, ratio: float | None = 1.0, min_size: int = 0) -> DataPlan:
    return DataPlan(5, 10, overlap=2, replay=ReplayPlan(1_000, min_size, ratio, window=window, start=2))


def test_rounds_that_fill_and_batches_a_round() -> None:
    # Eight environments bring 40 transitions, or 8 sequences.
    assert rounds(plan(), 8, 10) == (0, 4)
    assert rounds(plan(min_size=1), 8, 10) == (0, 4)
    assert rounds(plan(min_size=40), 8, 10) == (0, 4)
    assert rounds(plan(min_size=41), 8, 10) == (1, 4)
    assert rounds(plan(window=7, min_size=41), 8, 4) == (1, 2)
    assert rounds(plan(window=7, ratio=0.5), 8, 4) == (0, 1)


@pytest.mark.parametrize("ratio", [0.05, 0.35, 0.7, 1.15, 1.4, 2.3, 4.1, 4.6, 5.1, 2.28571, 1.01333])
def test_every_round_earns_the_same_batches_for_ever(ratio: float) -> None:
    # 2.28571 and 1.01333 are what a refusal would print of ratios that come out even.
    acting, batch = {2.28571: (28, 32), 1.01333: (30 * 20, 32)}.get(ratio, (640, 32))
    filling, batches = rounds(plan(window=7, ratio=ratio), acting, batch)
    exact = batches * batch / acting
    limiter = RateLimiter(
        exact, filling * acting, batch, acting, tolerance=(batches + 2) * batch + exact * acting
    )
    for _ in range(2_000):
        limiter.insert(acting)
        sampled = 0
        while limiter.may_sample():
            limiter.sample()
            sampled += 1
        assert sampled == batches


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"ratio": 0.9}, r"makes 3.6 batches of 10 .* use --replay-ratio 1"),
        ({"ratio": 0.1}, r"use --replay-ratio 0.25"),
        ({"ratio": None}, r"an exact lag needs a number: give --replay-ratio"),
    ],
)
def test_a_ratio_that_does_not_come_out_even_is_refused_in_lockstep(
    settings: dict[str, Any], says: str
) -> None:
    with pytest.raises(ConfigError, match=says):
        rounds(plan(**settings), 8, 10)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"agent": "dqn", "arch": "impala"}, "dqn does not run under impala: it samples from a replay"),
        (
            {"agent": "pqn", "arch": "sebulba", "eval_envs": 2},
            "eval_envs is 2, but threads hand over unrolls of all their environments: leave it out",
        ),
        (
            {"agent": "sac"},
            "actions of toy:catch are int32.* use --agent ppo or vtrace, or dqn for one choice",
        ),
        ({"eval_envs": 2}, "eval_envs is 2, but vtrace has no use for it: leave it out"),
        ({**DQN, "replay_size": 10**13}, r"a replay of 10000000000000 transitions needs \d+ bytes"),
        ({**R2D2, "lstm": 0}, "r2d2 is an agent with a memory"),
        ({**DQN, "replay_size": 50}, "--replay-size"),
    ],
)
def test_what_does_not_go_together_is_refused(settings: dict[str, Any], says: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=says):
        train(tiny("toy:catch", tmp_path / "run", **settings))


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"hosts": 2}, None),
        ({"hosts": 2, "batch_size": 5}, "2 training devices (1 on each of 2 hosts): use --batch-size 6"),
        (
            {"replay_parts": 2, "batch_size": 5},
            "parts of the replay cannot share it equally: use --batch-size 6",
        ),
        ({"hosts": 2, "replay_parts": 3}, "2 hosts cannot share them equally: use --replay-parts 2"),
        ({"replay_parts": 2}, None),
        ({"replay_parts": 2, "actors": 3}, "give --actors 2 or a multiple of it"),
        ({"replay_parts": 2, "eval_envs": 1}, "leave --eval-envs out"),
        ({"replay_parts": 2, "arch": "a2c"}, "no replay of a2c has parts: leave it out"),
        ({"replay_parts": 2, "arch": "gorila"}, "no replay of gorila has parts: leave it out"),
    ],
)
def test_parts_of_a_replay_have_equal_shares(
    settings: dict[str, Any], says: str | None, tmp_path: Path
) -> None:
    here = {**DQN, "batch_size": 10, **settings}
    if "arch" in settings:
        del here["transport"]
    reason = refusal(lambda: tiny("toy:catch", tmp_path / "run", **here))
    assert reason is None if says is None else says in str(reason)


def test_parts_are_of_the_environments_in_their_order_and_weigh_as_one_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fed: dict[int, set[int]] = {}
    constants: list[list[float]] = []
    offer, take = Replay.offer, ReplayMemory.take

    def watch(self: Replay, unroll: Any, streams: Any, *arguments: Any) -> Any:
        fed.setdefault(id(self), set()).update(int(stream) & 0xFFFFFFFF for stream in streams)
        return offer(self, unroll, streams, *arguments)

    def keep(self: ReplayMemory, timeout: float) -> Any:
        if (batch := take(self, timeout)) is not None:
            assert [unroll.version.shape[1] for unroll in batch.unrolls] == [5, 5]
            # Each part gives half of a batch: the weight of an item times its probability is the same in both.
            found = [
                unroll.weight * part._tree.get(sample.items) / part._tree.total
                for unroll, sample, part in zip(batch.unrolls, batch.samples, self._parts, strict=True)
            ]
            constants.append(np.concatenate(found).tolist())
        return batch

    monkeypatch.setattr(Replay, "offer", watch)
    monkeypatch.setattr(ReplayMemory, "take", keep)
    settings = {**DQN, "replay_parts": 2, "importance_exponent": 1.0, "lag": 0, "frames": 800}
    run = train(tiny("toy:catch", tmp_path / "run", **settings)).to_json()
    assert balanced(run) and run["steps_trained"] > 0
    assert sorted(map(sorted, fed.values())) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert len(constants) > 20
    for found in constants:
        np.testing.assert_allclose(found, found[0], rtol=1e-5)
    again = resume(str(tmp_path / "run"), frames=1_000).to_json()
    assert balanced(again) and again["weights_version"] > run["weights_version"]
    with pytest.raises(ConfigError, match="give the --replay-parts that the run had"):
        resume(str(tmp_path / "run"), frames=1_200, replay_parts=1)


def test_at_least_one_environment_has_to_explore(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="eval_envs is 8, and has to be less than the 8 environments"):
        tiny("toy:catch", tmp_path / "run", **DQN, eval_envs=8)
