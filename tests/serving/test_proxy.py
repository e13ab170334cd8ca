"""A forward-pass server between rollout workers and an optimizer: registry, relay and thread, without processes."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fakes import COUNT, Player, reporter
from harness import until

from seedbed.acting.assignment import Assignment
from seedbed.acting.batcher import BatchRule
from seedbed.acting.inference import Inference
from seedbed.acting.lag import ExactLag, Rounds
from seedbed.acting.lag_control import BatchControl, ExactControl, FreeControl, LagControl, RoundBuffer
from seedbed.acting.meters import Meters
from seedbed.acting.opponents import ITSELF, Pool, PoolCopy, PoolSettings
from seedbed.acting.unrolls import Delivery
from seedbed.errors import Refused
from seedbed.metrics.ledger import Ledger
from seedbed.seeding import key
from seedbed.serving.actor_registry import ActorRegistry
from seedbed.serving.forward_pass import AsTold, Fetch, Newest, RemoteRecipient
from seedbed.serving.inference_service import InferenceService
from seedbed.serving.link import Link
from seedbed.serving.proxy import Proxy, ServerReporter
from seedbed.serving.unroll_service import UnrollService
from seedbed.transport.connect import connect, listen
from seedbed.transport.interface import PROTOCOL
from seedbed.weights.store import WeightStore

AGENT = reporter()
LENGTH, ROWS = AGENT.data.unroll_length, 2
WEIGHT = 10.0  # of version v: (v + 1) times that


class Stand:
    """An optimizer's registry with room for some unrolls, and one server before it."""

    def __init__(
        self,
        stack: ExitStack,
        room: int = 1000,
        lag: int | None = None,
        workers: int = 2,
        games: PoolSettings | None = None,
    ) -> None:
        self.room = room
        self.handed: list[Delivery] = []
        self.failures: list[BaseException] = []
        self.lost: list[str] = []
        assignment = Assignment("toy:count", {}, COUNT, workers, 2 * ROWS, 3, LENGTH, "secret")
        self.store = WeightStore(jax.devices()[:1], keep=1 if lag is None else lag + 2)
        self.meters, self.ledger = Meters(), Ledger()
        pace: LagControl = FreeControl(self.store, 0, self._take)
        if lag is not None:
            pace = ExactControl(
                Rounds(ExactLag(lag), 1),
                halves={0: workers, 1: workers},
                store=self.store,
                device=0,
                collect=RoundBuffer(2 * workers, self._take),
            )
        self.pool = None if games is None else Pool(games)
        self.intake = UnrollService(
            AGENT,
            pace,
            assignment,
            self.store,
            policy={"agent": "reporter"},
            fetch_steps=0,
            largest=None,
            ledger=self.ledger,
            meters=self.meters,
            on_failure=self.failures.append,
            pool=self.pool,
        )
        self.store.listen(self.intake.thread.poke)
        self.registry = ActorRegistry(assignment, [self.intake], 50)
        self.publish(0)
        self.intake.thread.start()
        self.intake.thread.begin()
        stack.callback(self.registry.stop)
        self.optimizer = stack.enter_context(closing(listen(f"inproc:optimizer-{id(self)}", self.registry)))
        self.connect = partial(connect, self.optimizer.address, timeout=5.0)

        self.held = WeightStore(jax.devices()[:1], keep=1 if lag is None else lag + 3)
        self.copy = None if games is None else PoolCopy(games)
        self.fetch = Fetch(self.held, self.copy)
        forward_pace: BatchControl = (
            Newest(BatchRule(ROWS, 0.0), self.fetch) if lag is None else AsTold(self.fetch)
        )
        inference = Inference(AGENT, COUNT, 2 * workers * ROWS, (ROWS,), jax.devices()[0], key(3, "acting"))
        self.served = Meters()
        self.forward = InferenceService(
            inference,
            forward_pace,
            assignment,
            ledger=Ledger(),
            meters=self.served,
            full_batch=ROWS,
            on_failure=self.failures.append,
            pool=self.copy,
            recipient=RemoteRecipient(inference),
        )
        self.forward.thread.start()
        self.forward.thread.begin()
        stack.callback(self.forward.thread.stop)
        self.relay = Proxy(
            self.connect,
            self.forward,
            self.fetch,
            AGENT,
            COUNT,
            capacity=2 * workers * ROWS,
            device=jax.devices()[0],
            opponents=0 if games is None else games.size,
        )
        self.reporter: ServerReporter | None = None

    def worker(self, index: int = 0) -> Player:
        return Player(self.relay, index=index).ready()

    def publish(self, version: int) -> None:
        self.store.publish({"w": jnp.full((), WEIGHT * (version + 1))}, version)

    def count(self, unrolls: int) -> list[Delivery]:
        until(lambda: len(self.handed) >= unrolls or self.failures, f"{unrolls} unrolls", 20)
        assert self.failures == []
        return self.handed

    def _take(self, delivery: Delivery) -> bool:
        if len(self.handed) >= self.room:
            return False
        self.handed.append(delivery)
        return True


def settled(forward: InferenceService) -> bool:
    """Has its thread come round."""
    done = threading.Event()
    forward.thread.submit(done.set)
    return done.wait(20)


@pytest.fixture
def stands() -> Iterator[Any]:
    with ExitStack() as stack:
        built: list[Stand] = []

        def build(**settings: Any) -> Stand:
            built.append(Stand(stack, **settings))
            return built[-1]

        yield build
        for each in built:
            assert each.failures == []


def test_a_worker_joins_its_optimizer_through_the_server_and_acts_nothing_itself(stands: Any) -> None:
    stand = stands()
    worker = stand.worker(1)
    assert "policy" not in worker.told
    direct = Player(stand.registry, index=1)  # whose place at the optimizer it takes
    assert {name: value for name, value in direct.told.items() if name not in ("policy", "seeds")} == {
        name: value for name, value in worker.told.items() if name != "seeds"
    }
    assert worker.told["index"] == 1
    until(lambda: worker.peer.closed, "the worker that was replaced to be told", 20)


def test_unrolls_come_to_the_optimizer_with_what_was_computed_for_them(stands: Any) -> None:
    stand = stands(workers=1)
    worker = stand.worker().begin(0).play(2 * LENGTH)
    one, two = stand.count(2)
    for delivery in (one, two):
        unroll = delivery.unroll
        assert unroll.action.shape == (LENGTH, ROWS)
        np.testing.assert_array_equal(unroll.record["observation"], unroll.timestep.observation[:-1])
        np.testing.assert_array_equal(unroll.record["drawn"] % 3, unroll.action)
        assert np.all(unroll.version == 0)
        np.testing.assert_array_equal(unroll.state["seen"], unroll.record["before"][0])
    np.testing.assert_array_equal(one.unroll.timestep.observation[-1], two.unroll.timestep.observation[0])
    assert (one.counted, two.end) == (LENGTH * ROWS, 2 * LENGTH)
    assert stand.ledger.counts()["queued"] == 2 * LENGTH * ROWS
    # To whom it is a sum, weighted with the weights that came from the optimizer.
    first = one.unroll.timestep.observation[:, :, 0].astype(np.float32)
    np.testing.assert_allclose(one.unroll.record["sum"], WEIGHT * first[:-1].cumsum(axis=0))
    assert worker.peer.closed == []


def test_what_is_drawn_is_drawn_as_if_the_policy_were_at_the_optimizer(stands: Any) -> None:
    """The numbers of environments are those that the optimizer gave, whatever their slots are here."""
    stand = stands()
    worker = stand.worker(1).begin(0).play(LENGTH)  # which has the first slots here
    there = Inference(AGENT, COUNT, 8, (ROWS,), jax.devices()[0], key(3, "acting"))
    (delivery,) = stand.count(1)
    for step in range(LENGTH):
        slots = np.array([4, 5], np.int32)  # worker 1's first half
        columns = np.stack([slots, 0 * slots, 0 * slots + step, 0 * slots]).astype(np.int32)
        flags = [getattr(delivery.unroll.timestep, name)[step] for name in ("reward", "first")]
        flags += [delivery.unroll.timestep.terminated[step], delivery.unroll.timestep.truncated[step]]
        arrays = [delivery.unroll.timestep.observation[step], *flags]
        action, _ = there.act({"w": jnp.zeros(())}, [(arrays, columns)])
        np.testing.assert_array_equal(action, delivery.unroll.action[step])
    assert worker.peer.closed == []


def test_every_step_is_decided_with_the_newest_weights(stands: Any) -> None:
    stand = stands(workers=1)
    worker = stand.worker().begin(0).play(1)
    stand.publish(4)
    until(lambda: stand.held.versions == [4], "the weights to arrive", 20)
    worker.play(LENGTH - 1)
    (delivery,) = stand.count(1)
    # The second step may have been decided before they came.
    assert delivery.unroll.version[0, 0] == 0
    assert delivery.unroll.version[-1, 0] == 4


def test_a_lane_whose_unroll_finds_no_room_waits_and_the_other_goes_on(stands: Any) -> None:
    stand = stands(room=0, workers=1)
    worker = stand.worker().begin()
    seen = []
    for _ in range(2 * LENGTH):  # all that both can do before they are held
        seen.append(worker.peer.next())
        worker.step(*seen[-1])
    assert [lane for lane, _ in seen].count(0) == LENGTH
    until(lambda: all(lane.outbox for lane in stand.intake.lanes), "both unrolls to wait", 20)
    assert worker.peer.silent
    stand.room = 1
    stand.intake.thread.poke()
    lane, _ = worker.peer.next()
    assert len(stand.handed) == 1
    assert worker.peer.silent, f"lane {1 - lane} is held"


@pytest.mark.parametrize("lag", [0, 1])
def test_in_lockstep_a_lane_acts_with_the_version_that_it_was_told(stands: Any, lag: int) -> None:
    stand = stands(lag=lag, workers=1)
    worker = stand.worker().begin()
    rounds = 4
    for version in range(rounds):
        worker.play(2 * LENGTH)
        stand.count(2 * (version + 1))
        if version >= lag:
            assert stand.ledger.counts()["received"] == (version + 1) * 2 * LENGTH * ROWS
        # Not before it is published: those that act are exactly so many rounds behind.
        if version + 1 > lag:
            assert worker.peer.silent
            stand.publish(version + 1 - lag)
    for at, delivery in enumerate(stand.handed):
        assert set(delivery.unroll.version.flat) == {max(0, at // 2 - lag)}


GAMES = PoolSettings(size=3, every=2, share=1.0, rule="recent", seed=0)


def test_a_server_acts_once_the_whole_pool_is_here_and_plays_its_versions(stands: Any) -> None:
    stand = stands(workers=1, games=GAMES)
    for version in (0, 2, 4, 5):  # games that were before this server was
        stand.publish(version)
        stand.pool.meet(stand.store.newest(), tuple)
    stand.worker().begin(0).play(LENGTH)
    (delivery,) = stand.count(1)
    frozen = [each.version for each in stand.copy.opponents]
    assert frozen == [0, 2, 4] and stand.copy.opponents == stand.pool.opponents
    assert [float(stand.copy.params(version)["w"]) for version in frozen] == [WEIGHT, 3 * WEIGHT, 5 * WEIGHT]
    unroll, players = delivery.unroll, stand.forward.lanes[0].games.players
    (theirs,), (ours,) = np.flatnonzero(players != ITSELF), np.flatnonzero(players == ITSELF)
    assert players[theirs] in frozen
    # Each row is decided by the weights of its player.
    weight = WEIGHT * (np.where(players == ITSELF, 5, players) + 1)
    seen = unroll.timestep.observation[:-1, :, 0].astype(np.float32)
    np.testing.assert_allclose(unroll.record["sum"], weight * seen.cumsum(axis=0))
    # To the optimizer the policy has decided all of it, and the opponent is not there.
    assert set(unroll.version.flat) == {5}
    absent = (unroll.timestep.first & unroll.timestep.terminated)[:-1]
    assert absent[:, theirs].all() and not absent[:, ours].any()
    # Decisions at final steps only reset.
    environment, episode, step, _ = np.moveaxis(unroll.timestep.observation[:-1], -1, 0)
    carried_out = np.count_nonzero(step != 1 + (environment + episode) % 5, axis=0)
    assert stand.pool.steps == carried_out[theirs] > 0
    counts = stand.ledger.counts()
    assert counts["received"] - counts["resets"] == carried_out[ours]


@pytest.mark.parametrize(("off", "sent_away"), [(0, False), (1, True), (-1, True)])
def test_players_that_cannot_be_are_refused(
    stands: Any, monkeypatch: pytest.MonkeyPatch, off: int, sent_away: bool
) -> None:
    send = Link.send
    monkeypatch.setattr(
        Link, "send", lambda link, lane, unroll, players: send(link, lane, unroll, players + off)
    )
    stand = stands(workers=1, games=GAMES)
    worker = stand.worker().begin(0).play(LENGTH)
    until(lambda: worker.peer.closed or stand.handed, "the unroll to arrive", 20)
    assert not (sent_away and stand.handed)
    assert sent_away == any("versions play that do not exist" in reason for reason in worker.peer.closed)


def test_who_leaves_frees_its_place_here_and_at_the_optimizer(stands: Any) -> None:
    stand = stands(workers=1)  # room for two workers
    for epoch in range(5):
        worker = stand.worker().begin().play(3)
        until(lambda: len(stand.registry.members()) == 1, "it to have joined", 20)
        assert stand.registry.members()[0].epoch == epoch
        worker.leave()
        until(lambda: not stand.registry.members(), "the optimizer to hear of it", 20)
    until(lambda: not stand.forward.lanes, "the lanes to leave", 20)
    (again, one_more) = stand.worker(), Player(stand.relay, index=1)
    with pytest.raises(Refused, match="no room for 4 more environments"):
        Player(stand.relay).ready().peer.closed.append(Player(stand.relay).ready())
    assert again.peer.closed == one_more.peer.closed == []


def test_weights_come_by_another_worker_when_the_one_that_asked_has_left(stands: Any) -> None:
    stand = stands()
    first, second = stand.worker(0).begin().play(2), stand.worker(1).begin().play(2)
    asker = stand.fetch.asked
    assert asker is not None
    first.leave()
    until(lambda: stand.fetch.asked not in (asker, None), "the other's to be asked", 20)
    stand.publish(9)
    until(lambda: stand.held.versions == [9], "the weights", 20)
    second.leave()


def test_a_worker_may_leave_in_two_steps(stands: Any) -> None:
    """As long as a lane of its link is there, nothing more is asked by that."""
    stand = stands(workers=1)
    stand.worker().begin().play(2)
    first, second = stand.forward.lanes
    asked = stand.fetch.asked
    assert asked is first.link is second.link
    stand.forward.leave(first)
    until(lambda: stand.forward.lanes == [second], "one lane to leave", 20)
    for _ in range(2):
        stand.forward.thread.poke()
        assert settled(stand.forward)
    assert stand.fetch.asked is asked
    stand.forward.leave(second)
    until(lambda: stand.fetch.asked is None, "the other to leave", 20)


def test_a_thread_that_does_not_come_round_gives_no_sign_of_life(stands: Any) -> None:
    stand = stands()
    go_on, busy = threading.Event(), threading.Event()
    assert stand.forward.thread.beats()
    until(stand.forward.thread.beats, "it to come round", 20)

    def hang() -> None:
        busy.set()
        go_on.wait(20)

    stand.forward.thread.submit(hang)
    assert busy.wait(20)
    stand.forward.thread.beats()
    assert not any(stand.forward.thread.beats() for _ in range(3))
    go_on.set()
    until(stand.forward.thread.beats, "it to come round again", 20)


def test_a_link_whose_weights_cannot_be_taken_ends_its_workers_conversation(
    stands: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> Any:
        raise RuntimeError("RESOURCE_EXHAUSTED")

    monkeypatch.setattr("seedbed.acting.codec.WeightsCodec.unpack", full)
    stand = stands()
    worker = stand.worker()
    until(lambda: worker.peer.closed, "the worker to be told", 20)
    assert worker.peer.closed == ["RuntimeError: RESOURCE_EXHAUSTED"]


def test_an_optimizer_that_is_gone_sends_the_workers_home(stands: Any) -> None:
    stand = stands()
    worker = stand.worker().begin().play(2)
    stand.reporter = ServerReporter(stand.connect, "secret", 0, lambda: {}, stand.lost.append)
    stand.optimizer.close()
    until(lambda: worker.peer.closed, "the worker to be told", 20)
    with pytest.raises(Refused, match="the optimizer is gone"):
        Player(stand.relay, index=1)
    until(lambda: stand.lost, "the reporter to notice", 20)
    stand.reporter.close()
    worker.leave()


def test_the_optimizers_refusal_is_the_workers(stands: Any) -> None:
    stand = stands()
    with pytest.raises(Refused, match="wrong token"):
        Player(stand.relay, token="another", index=0)
    worker = Player(stand.relay, index=0)
    with pytest.raises(Refused, match="spec cannot be read"):
        stand.relay.answer(worker.peer, {"kind": "ready", "spec": {"observation": 3}})
    with pytest.raises(Refused, match="'join' comes once"):
        stand.relay.answer(worker.peer, {"kind": "join"})
    for question in ({"kind": "report", "waits": {}}, {"kind": "leave"}, {}):
        with pytest.raises(Refused, match="a rollout worker asks 'join', then 'ready'"):
            stand.relay.answer(worker.peer, question)


def test_a_server_reports_what_it_did_and_who_is_alive(stands: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("seedbed.serving.proxy.REPORT_SECONDS", 0.01)
    stand = stands()
    worker = stand.worker(1).begin().play(4)
    until(lambda: stand.served.batches >= 4, "four batches", 20)
    assert stand.relay.answer(worker.peer, {"kind": "report", "waits": {"7": 3}}) == {}

    def tell() -> dict[str, Any]:
        return {"heard": stand.relay.heard(), **stand.served.hand_on()}

    joined = next(iter(stand.registry._joined.values()))
    before = joined.heard
    with closing(ServerReporter(stand.connect, "secret", 2, tell, stand.lost.append)):
        until(lambda: stand.registry.servers_heard().get(2), "a report", 20)
    assert joined.heard > before
    assert 0 not in stand.registry.servers_heard()
    taken = stand.meters.take()
    assert taken["inference_batch"] == ROWS
    assert taken["bytes_from_actors"] > 0
    assert "action_wait_p50" in taken
    assert stand.lost == []


@pytest.mark.parametrize(
    "wrong",
    [
        {"token": "another"},
        {"protocol": 0},
        {"server": "0"},
        {"heard": None},
        {"waits": 3},
        {"served": 3},
        {"served": {"lock": 1}},
        {"served": {"rows": -1}},
        {"served": {"rows": 1.5}},
        {"served": {"seconds": float("nan")}},
    ],
    ids=str,
)
def test_other_reports_are_refused_and_nothing_of_them_is_counted(stands: Any, wrong: dict[str, Any]) -> None:
    stand = stands()
    fine = {"protocol": PROTOCOL, "token": "secret", "server": 0, "heard": [], "waits": {"1": 1}}
    report = {"kind": "server report", **fine, "served": {"rows": 1, "seconds": 0.5}, **wrong}
    with pytest.raises(Refused):
        stand.registry.answer(object(), report)
    assert stand.meters.take() == {}
    assert 0 not in stand.registry.servers_heard()
