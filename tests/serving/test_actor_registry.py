import gc
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import psutil
import pytest
from fakes import COUNT, PATIENCE, FakePeer, InstantInference, Player
from harness import until

from seedbed.acting.assignment import Assignment, lanes_of
from seedbed.acting.batcher import BatchRule
from seedbed.acting.lag import ExactLag, Rounds
from seedbed.acting.lag_control import ExactControl, FreeBatches, LagControl, RoundBuffer
from seedbed.acting.lanes import Member
from seedbed.acting.meters import Meters
from seedbed.acting.unrolls import Delivery, step_arrays, step_fields
from seedbed.envs.make import make
from seedbed.errors import ConfigError, NotNow, Refused
from seedbed.instances import START_SECONDS
from seedbed.metrics.ledger import Ledger
from seedbed.replay.queue import UnrollQueue
from seedbed.serving.actor_registry import ActorRegistry
from seedbed.serving.inference_service import InferenceService
from seedbed.serving.source import ServedActors
from seedbed.serving.violations import ALLOWED
from seedbed.testing.transport import CARRIERS, Carrier
from seedbed.transport.admission import Vouching
from seedbed.transport.connect import connect
from seedbed.transport.interface import PROTOCOL, Client, Layout, Layouts
from seedbed.types import EnvSpec, Unroll
from seedbed.weights.store import WeightStore

LENGTH = 3


class House:
    """A registry with a queue and a store behind it, one worker, a few slots."""

    def __init__(
        self,
        *,
        actors: int = 2,
        envs: int = 4,
        capacity: int = 20,
        queue: int = 1000,
        lag: int | None = None,
        max_rows: int = 2,
        wait: float = 0.0,
        workers: int = 1,
        guests: int = 0,
        start: bool = True,
        **registry: Any,
    ) -> None:
        self.assignment = Assignment(
            env="toy:count",
            options={},
            spec=COUNT,
            actors=actors,
            envs=envs,
            seed=3,
            unroll_length=LENGTH,
            token="secret",
            claim="of this session",
            keep_log=lag is not None,
            lockstep=lag is not None,
            guests=guests,
        )
        self.ledger, self.meters = Ledger(), Meters()
        self.queue = UnrollQueue(queue, batch_size=2)
        self.store = WeightStore(jax.devices()[:1], keep=10)
        self.store.publish({"w": jnp.ones(())}, 0)
        self.handed: list[tuple[Unroll, list[tuple[float, int]]]] = []
        self.came = threading.Semaphore(0)
        self.refused = threading.Semaphore(0)
        self.failures: list[BaseException] = []
        self.failed = threading.Event()
        self.joined: list[Member] = []
        self.gone: list[tuple[Member, str]] = []
        lanes, rows = lanes_of(envs)
        collect = RoundBuffer(actors * lanes, self._take)
        self.workers = []
        for _ in range(workers):
            pace: LagControl = FreeBatches(BatchRule(max_rows, wait), self.store, 0, self._take)
            if lag is not None:
                pace = ExactControl(
                    Rounds(ExactLag(lag), 1),
                    halves=dict.fromkeys(range(lanes), actors),
                    store=self.store,
                    device=0,
                    collect=collect,
                )
            inference: Any = InstantInference(capacity, max(actors * rows, max_rows))
            self.workers.append(
                InferenceService(
                    inference,
                    pace,
                    self.assignment,
                    ledger=self.ledger,
                    meters=self.meters,
                    full_batch=max_rows,
                    on_failure=self._fail,
                )
            )
        self.worker = self.workers[0]
        self.registry = ActorRegistry(
            self.assignment,
            self.workers,
            capacity,
            on_join=self.joined.append,
            on_leave=lambda member, reason: self.gone.append((member, reason)),
            **registry,
        )
        for worker in self.workers:
            self.store.listen(worker.thread.poke)
            self.queue.listen(worker.thread.poke)
            if start:
                worker.thread.start()
                worker.thread.begin()

    def _take(self, delivery: Delivery) -> bool:
        if not self.queue.offer(delivery.unroll):
            self.refused.release()
            return False
        self.handed.append((delivery.unroll, delivery.episodes))
        self.came.release()
        return True

    def _fail(self, error: BaseException) -> None:
        self.failures.append(error)
        self.failed.set()

    def wait_for_unrolls(self, count: int) -> None:
        for _ in range(count):
            assert self.came.acquire(timeout=PATIENCE)

    def settle(self) -> None:
        """Waits until the workers have done all that they were told."""
        for worker in self.workers:
            done = threading.Event()
            worker.thread.submit(done.set)
            assert done.wait(PATIENCE)


@pytest.fixture
def house() -> Iterator[Callable[..., House]]:
    built: list[House] = []

    def build(**settings: Any) -> House:
        built.append(House(**settings))
        return built[-1]

    yield build
    for each in built:
        each.registry.stop()
        if not each.failed.is_set():
            assert each.failures == []


def test_lanes_of() -> None:
    assert [lanes_of(envs) for envs in (1, 2, 8)] == [(1, 1), (2, 1), (2, 4)]
    with pytest.raises(ConfigError, match="use 4"):
        lanes_of(3)


# -- the registry -------------------------------------------------------------------------------------------------


def test_an_actor_is_told_what_to_make_and_its_terms(house: Callable[..., House]) -> None:
    here = house()
    player = Player(here.registry, index=1).ready()
    assert {key: player.told[key] for key in ("env", "options", "index", "rows")} == {
        "env": "toy:count",
        "options": {},
        "index": 1,
        "rows": 2,
    }
    assert len(player.told["seeds"]) == 2
    assert player.peer.terms is not None
    assert [(up.fields[0], down.fields) for up, down in player.peer.terms] == [
        (((2, 4), "int32"), (((2,), "int32"),))
    ] * 2
    assert here.joined == here.registry.members() == [Member(1, 0, player.peer, local=True)]


def test_every_environment_has_a_seed_of_its_own(house: Callable[..., House]) -> None:
    here = house(capacity=40)
    seeds: list[int] = []
    for index in (0, 1, None, None):
        player = Player(here.registry, index=index).ready()
        seeds += player.told["seeds"]
    again = Player(here.registry, index=0)
    seeds += again.told["seeds"]
    assert len(set(seeds)) == len(seeds) == 10
    assert all(0 <= seed < 1 << 30 for seed in seeds)
    assert here.registry.last_epoch == 1
    resumed = house(capacity=40, first_epoch=1).registry
    assert resumed.last_epoch == 1
    assert Player(resumed, index=0).told["seeds"] == again.told["seeds"]


@pytest.mark.parametrize(
    ("join", "reason"),
    [
        ({"token": "secre"}, "wrong token"),
        ({"token": None}, "wrong token"),
        ({"token": "\ud800"}, "wrong token"),
        ({"token": "sécret"}, "wrong token"),
        ({"protocol": PROTOCOL + 1}, f"protocol {PROTOCOL + 1}, and this one {PROTOCOL}"),
        ({"protocol": "1"}, "same version"),
        ({"index": -1}, "actor index -1"),
        ({"index": 1 << 20}, "from 0 to"),
        ({"index": "0"}, "actor index '0'"),
        ({"index": True}, "actor index True"),
        ({"envs": 3}, "1 or an even number"),
        ({"envs": 0}, "1 or an even number"),
        ({"envs": -2}, "1 or an even number"),
        ({"envs": "4"}, "'4' environments"),
        ({"kind": "hello"}, "unknown question 'hello'"),
        ({"kind": None}, "unknown question None"),
    ],
)
def test_who_is_not_let_in(join: dict[str, Any], reason: str, house: Callable[..., House]) -> None:
    here = house()
    with pytest.raises(Refused, match=reason):
        Player(here.registry, **join)
    assert here.registry.members() == []
    assert here.ledger.counts()["received"] == 0


def test_no_actor_from_elsewhere_takes_the_place_of_one_of_the_runs_own(house: Callable[..., House]) -> None:
    here = house()
    own = Player(here.registry, index=0).ready()
    with pytest.raises(Refused, match="one of the run's own actors"):
        Player(here.registry, index=0, elsewhere=True)
    assert [member.peer for member in here.registry.members()] == [own.peer]
    # Nor can one that says that it is not from elsewhere: the gate knows.
    with pytest.raises(Refused, match="one of the run's own actors"):
        Player(Vouching(here.registry, "secret"), token="", index=0, elsewhere=False)


@pytest.mark.parametrize("lag", [None, 0])
def test_one_that_this_session_has_started_takes_its_index_on_any_machine(
    lag: int | None, house: Callable[..., House]
) -> None:
    here = house(lag=lag)
    gate = Vouching(here.registry, "secret")
    first = Player(gate, token="", index=1, claim="of this session").ready()
    with pytest.raises(Refused, match="another session of this run has started this actor, and is over"):
        Player(gate, token="", index=1, claim="of the one before")
    with pytest.raises(Refused, match="one of the run's own actors"):
        Player(gate, token="", index=1, claim="")
    assert [member.peer for member in here.registry.members()] == [first.peer]
    again = Player(gate, token="", index=1, claim="of this session").ready()
    assert [(member.peer, member.local) for member in here.registry.members()] == [(again.peer, True)]
    assert first.peer.closed == ["another actor joined with the same index"]


def test_guests_of_the_run_have_indices_and_slots_of_their_own(house: Callable[..., House]) -> None:
    here = house(guests=2, capacity=20)
    gate = Vouching(here.registry, "secret")
    stranger = Player(gate, token="", place="10.0.0.5").ready()
    assert stranger.told["index"] == 4, "2 and 3 are the guests', who may come later"
    with pytest.raises(Refused, match="one of the run's own actors"):
        Player(gate, token="", index=3)
    first = Player(gate, token="", index=3, claim="of this session").ready()
    again = Player(gate, token="", index=3, claim="of this session").ready()
    assert first.peer.closed == ["another actor joined with the same index"]
    slots = {member.index: here.registry._joined[member.peer].slots for member in here.registry.members()}
    assert slots == {3: [12, 13, 14, 15], 4: [16, 17, 18, 19]}, "no slot is shared, and none is left over"
    assert {member.index: member.local for member in here.registry.members()} == {3: True, 4: False}
    assert here.registry.elsewhere() == {4: "10.0.0.5"}
    stranger.begin(), again.begin()
    assert set(here.registry.owes()) == {3}, "the run's supervisor watches its own guests only"
    again.leave("its machine is gone")
    assert [member.index for member in here.registry.members()] == [4]
    assert here.registry._free == [], "its slots wait for it"
    assert not any(map(here.assignment.evaluates, range(8, 20)))


def test_a_run_whose_actors_are_all_here_admits_no_claim(house: Callable[..., House]) -> None:
    here = house()
    here.registry.assignment = replace(here.assignment, claim="")
    with pytest.raises(Refused, match="another session"):
        Player(here.registry, index=0, elsewhere=True, claim="anything")


def test_a_join_that_is_refused_replaces_nobody(house: Callable[..., House]) -> None:
    here = house()
    player = Player(here.registry, index=5).ready()
    with pytest.raises(Refused):
        Player(here.registry, index=5, envs=3)
    assert (player.peer.closed, len(here.registry.members())) == ([], 1)


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        (None, "cannot be read"),
        ([], "cannot be read"),
        ({}, "cannot be read"),
        ({**COUNT.to_json(), "observation": 5}, "cannot be read"),
        ({**COUNT.to_json(), "frames_per_step": float("inf")}, "cannot be read"),
        ({**COUNT.to_json(), "frames_per_step": 4}, "same version of the environment"),
        (EnvSpec("toy:count", COUNT.action, COUNT.action).to_json(), "the learner needs"),
        (
            replace(COUNT, observation=replace(COUNT.observation, dtype="float64")).to_json(),
            "the learner needs",
        ),
    ],
)
def test_environments_that_look_different_are_refused(
    spec: Any, reason: str, house: Callable[..., House]
) -> None:
    here = house()
    player = Player(here.registry)
    with pytest.raises(Refused, match=reason):
        here.registry.answer(player.peer, {"kind": "ready", "spec": spec})
    with pytest.raises(Refused, match="cannot be read"):
        here.registry.answer(player.peer, {"kind": "ready"})
    assert here.registry.members() == []


def test_ready_comes_once_and_after_join(house: Callable[..., House]) -> None:
    here = house()
    ready = {"kind": "ready", "spec": COUNT.to_json()}
    with pytest.raises(Refused, match="once, after 'join'"):
        here.registry.answer(FakePeer(), ready)
    player = Player(here.registry).ready()
    with pytest.raises(Refused, match="once, after 'join'"):
        here.registry.answer(player.peer, ready)


def test_join_comes_once(house: Callable[..., House]) -> None:
    here = house()
    player = Player(here.registry).ready()
    with pytest.raises(Refused, match="comes once"):
        here.registry.answer(player.peer, {"kind": "join", "protocol": PROTOCOL, "token": "secret"})
    assert len(here.registry.members()) == 1
    player.leave()
    here.settle()
    assert here.worker.lanes == [], "no lane of it is left behind"


def test_liars_from_elsewhere_are_refused_for_a_while(house: Callable[..., House]) -> None:
    here = house(actors=1, capacity=20)

    def lie(**join: Any) -> None:
        player = Player(here.registry, **join).ready().begin()
        here.settle()
        # A reward that is not finite.
        lane, action = player.peer.next()
        player.lanes[lane].send(action)
        step = player.lanes[lane].receive()
        step.reward[0] = np.nan
        here.registry.deliver(player.peer, lane, step_arrays(step))
        here.settle()
        assert "not finite" in player.peer.closed[0]
        player.leave(player.peer.closed[0])

    honest = Player(here.registry, place="10.0.0.5").ready()
    for _ in range(ALLOWED):
        lie(place="10.0.0.5")
    assert not any("refused" in reason for _, reason in here.gone)
    lie(place="10.0.0.5")
    assert "not finite" in here.gone[-1][1]
    assert here.gone[-1][1].endswith("; actors from 10.0.0.5 are refused for 10 s")
    for index in (None, 7):  # whatever it calls itself
        with pytest.raises(
            NotNow, match=r"actors from 10\.0\.0\.5 were sent away 4 times .* none is let in for 10 s"
        ):
            Player(here.registry, place="10.0.0.5", index=index)
    Player(here.registry, place="10.0.0.6").ready()
    Player(here.registry, index=0).ready()
    assert honest.peer.closed == [], "actors that are there stay"


def test_places_are_taken_and_given_back(house: Callable[..., House]) -> None:
    here = house(actors=1, envs=4, capacity=10, max_rows=4)
    first = Player(here.registry, envs=4).ready()
    second = Player(here.registry, envs=2).ready()
    assert (first.told["index"], second.told["index"]) == (1, 2)
    with pytest.raises(NotNow, match="no room for 1 more environments, 0 places are left"):
        Player(here.registry, envs=1).ready()
    first.leave()
    third = Player(here.registry, envs=4).ready()
    assert third.told["index"] == 1
    with pytest.raises(Refused, match="inference takes at most 4 a half"):
        Player(here.registry, envs=10).ready()
    Player(here.registry, index=0).ready()
    here.settle()
    slots = sorted(slot for lane in here.worker.lanes for slot in lane.slots.tolist())
    assert slots == list(range(10)), "no slot is held twice"


def test_places_that_pass_to_another_actor_never_see_an_epoch_twice(house: Callable[..., House]) -> None:
    # What is drawn depends on (slot, epoch, step): the same epoch would draw the same numbers again.
    here = house(actors=1, envs=2, capacity=2 + 4, first_epoch=3)
    own = Player(here.registry, index=0).ready()
    seen = []
    for index in (7, 9, 7, None):
        visitor = Player(here.registry, envs=4, **({} if index is None else {"index": index})).ready()
        seen += [member.epoch for member in here.registry.members() if member.index != 0]
        visitor.leave()
        here.settle()
    assert seen == [3, 4, 5, 6]
    own.leave()
    Player(here.registry, index=0).ready()
    assert [member.epoch for member in here.registry.members()] == [4], "its own slots count for themselves"
    assert here.registry.last_epoch == 6


def visit(client: Client, index: int | None, stays: int) -> None:
    """What an actor does, up to its joining, its being ready or, in mid-unroll, its second step."""
    told = client.ask({"kind": "join", "protocol": PROTOCOL, "token": "secret", "index": index, "envs": 2})
    if stays == 0:
        return
    client.ask({"kind": "ready", "spec": COUNT.to_json()})
    client.open([Layouts(Layout(step_fields(COUNT, 1)), Layout((((1,), COUNT.action.dtype),)))] * 2)
    if stays == 1:
        return
    environment = make("toy:count", 1)
    client.send(0, step_arrays(environment.reset(told["seeds"][0])))
    reply = client.receive()
    assert reply is not None
    environment.send(reply[1][0])
    client.send(0, step_arrays(environment.receive()))


def held() -> tuple[int, int, int]:
    """File descriptors, threads and shared memory of this process."""
    gc.collect()
    maps = Path("/proc/self/maps")
    shared = maps.read_text().count("memfd:") if maps.exists() else 0
    return psutil.Process().num_fds(), threading.active_count(), shared


# Through a gate nobody takes the place of one of the run's own actors.
OPEN = [carrier for carrier in CARRIERS if not carrier.name.endswith("tls")]


@pytest.mark.parametrize("carrier", OPEN, ids=lambda carrier: carrier.name)
def test_actors_that_come_and_go_leave_nothing(
    carrier: Carrier, house: Callable[..., House], tmp_path: Path
) -> None:
    here = house(actors=1, envs=2, capacity=6, max_rows=1)
    visits = 0

    def come_and_go(times: int) -> None:
        nonlocal visits
        for number in range(times):
            with closing(carrier.connect(server.address, PATIENCE)) as client:
                visit(client, index=(None, 0)[number % 2], stays=number % 3)
        visits += times
        until(lambda: not here.registry._joined, "the last to be missed")
        here.settle()

    with closing(carrier.listen(tmp_path, here.registry)) as server:
        come_and_go(6)  # what is made once
        before = held()
        come_and_go(18)
        until(lambda: all(now <= then for now, then in zip(held(), before, strict=True)), f"{before} again")
        assert len(here.gone) == visits
        assert here.registry.members() == here.worker.lanes == []
        assert sorted(here.registry._free) == [2, 3, 4, 5]
        counts = here.ledger.counts()
        assert counts["open"] == 0
        assert counts["received"] == counts["dropped"] > 0


def test_an_actor_that_left_before_it_was_ready_held_nothing(house: Callable[..., House]) -> None:
    here = house(actors=1, capacity=6)
    for _ in range(5):
        Player(here.registry, envs=2).leave()
    Player(here.registry, envs=2).ready()
    here.registry.left(FakePeer(), "never asked anything that was understood")
    assert here.registry.members()[0].epoch == 5


def test_an_exact_lag_has_no_room_for_actors_from_elsewhere(house: Callable[..., House]) -> None:
    here = house(actors=1, lag=0)
    for index in (None, 1):
        with pytest.raises(Refused, match="exact lag"):
            Player(here.registry, index=index)
    Player(here.registry, index=0).ready()


def test_a_new_actor_replaces_the_one_with_its_index(house: Callable[..., House]) -> None:
    here = house()
    old = Player(here.registry, index=1).ready().begin()
    old.play(2)
    new = Player(here.registry, index=1).ready()
    assert old.peer.closed == ["another actor joined with the same index"]
    assert here.gone == [(Member(1, 0, old.peer, local=True), "replaced by a new actor with the same index")]
    old.step(0, np.zeros(2, np.int32))  # what was still on its way is dropped
    old.leave()
    assert len(here.gone) == 1
    new.begin().play(4)
    here.settle()
    assert [lane.member.epoch for lane in here.worker.lanes] == [1, 1]
    assert here.registry.members() == [Member(1, 1, new.peer, local=True)]


def test_actors_are_shared_out_over_the_workers(house: Callable[..., House]) -> None:
    here = house(actors=3, workers=2, capacity=12)
    players = [Player(here.registry, index=index).ready().begin() for index in range(3)]
    for player in players:
        player.play(2)
    here.settle()
    assert [{lane.member.index for lane in worker.lanes} for worker in here.workers] == [{0, 2}, {1}]


# -- from steps to unrolls ------------------------------------------------------------------------------------


def test_every_step_is_in_one_unroll_in_its_place(house: Callable[..., House]) -> None:
    here = house(actors=2, envs=4)
    players = [Player(here.registry, index=index).ready().begin() for index in range(2)]
    rounds = 4
    for _ in range(rounds * LENGTH):
        for player in players:
            player.play(2)
    here.wait_for_unrolls(rounds * 4)
    streams: dict[int, list[Any]] = {}
    for unroll, _ in here.handed:
        assert unroll.version.max() == 0
        observation = unroll.timestep.observation
        np.testing.assert_array_equal(unroll.record["observation"], observation[:-1])
        np.testing.assert_array_equal(unroll.state["seen"], unroll.record["before"][0])
        for column in range(2):
            env = int(observation[0, column, 0])
            seen = streams.setdefault(env, [])
            if seen:
                assert seen.pop() == observation[0, column].tolist(), "the last step is shared"
            seen += observation[:, column].tolist()
            actions = [step[3] for step in observation[1:, column].tolist()]
            taken = unroll.action[:, column] * ~unroll.timestep.first[1:, column]
            assert actions == taken.tolist(), "the action that was recorded is the one that was taken"
    assert sorted(streams) == [0, 1, 2, 3, 100, 101, 102, 103]
    for env, seen in streams.items():
        assert len(seen) == rounds * LENGTH + 1
        assert [step[:3] for step in seen] == count(env, len(seen))
    counts = here.ledger.counts()
    assert counts["queued"] == rounds * LENGTH * 8
    assert counts["received"] == counts["queued"] + counts["open"]


def count(env: int, steps: int) -> list[list[int]]:
    """The stream of ``toy:count``, from its description."""
    stream, episode = [], 0
    while len(stream) < steps:
        stream += [[env, episode, step] for step in range(2 + (env + episode) % 5)]
        episode += 1
    return stream[:steps]


def test_a_lane_that_never_answers_stalls_nobody(house: Callable[..., House]) -> None:
    wait = 0.05
    here = house(actors=2, envs=1, wait=wait)
    silent, prompt = (Player(here.registry, index=index).ready().begin() for index in range(2))
    silent.peer.next()
    reply = prompt.peer.next()
    for _ in range(2 * LENGTH):
        sent = time.monotonic()
        prompt.step(*reply)
        reply = prompt.peer.next()  # though nothing has come since
        assert time.monotonic() - sent >= wait, "the other might have come to fill the batch"
    here.wait_for_unrolls(2)
    assert silent.peer.silent


def test_episodes_are_told_with_the_unroll_that_holds_their_end(house: Callable[..., House]) -> None:
    here = house(actors=1, envs=1, max_rows=1)
    player = Player(here.registry, index=0).ready().begin()
    player.play(5 * LENGTH)
    here.wait_for_unrolls(5)
    told = [episode for _, episodes in here.handed for episode in episodes]
    steps = count(0, 5 * LENGTH + 1)
    ended = [i for i in range(1, len(steps)) if i + 1 == len(steps) or steps[i + 1][2] == 0]
    lengths = [steps[i][2] for i in ended if steps[i][2] == 1 + steps[i][1] % 5]
    assert [length for _, length in told] == lengths
    assert [total for total, _ in told] == [sum(range(length + 1)) for length in lengths]
    for i, (_, episodes) in enumerate(here.handed):
        ends = np.concatenate(
            [here.handed[i][0].timestep.terminated, here.handed[i][0].timestep.truncated], 1
        )[1:]
        assert len(episodes) == ends.sum()


def test_an_actor_that_leaves_drops_exactly_its_open_steps(house: Callable[..., House]) -> None:
    here = house(actors=2, envs=4)
    leaver, stayer = (Player(here.registry, index=index).ready().begin() for index in range(2))
    leaver.play(2 * LENGTH + 3)  # one unroll of each half, then 2 decisions of one and 1 (or 2) of the other
    leaver.peer.next()
    leaver.peer.next()
    stayer.play(2)
    stayer.peer.next()
    stayer.peer.next()
    here.settle()
    before = here.ledger.counts()
    opened = sum(lane.open.transitions for lane in here.worker.lanes if lane.member.index == 0)
    others = sum(lane.open.transitions for lane in here.worker.lanes if lane.member.index == 1)
    assert opened > 0 and others > 0
    leaver.leave()
    here.settle()
    after = here.ledger.counts()
    assert after["dropped"] == opened
    assert after["open"] == others == before["open"] - opened
    assert after["queued"] == before["queued"] == 2 * LENGTH * 2
    assert here.gone[0][1] == "gone"


@pytest.mark.parametrize("paid", [np.nan, 1e30])
def test_an_actor_from_elsewhere_that_lies_is_sent_away_and_its_steps_are_dropped(
    paid: float, house: Callable[..., House]
) -> None:
    here = house(actors=1, envs=4, capacity=8)
    own, liar = Player(here.registry, index=0).ready().begin(), Player(here.registry, envs=4).ready().begin()
    for player in (own, liar):
        player.play(2 * LENGTH + 2)
        here.settle()
    lane, action = liar.peer.next()
    liar.lanes[lane].send(action)
    step = liar.lanes[lane].receive()
    reward = np.array([0.0, paid], np.float32)
    here.registry.deliver(liar.peer, lane, step_arrays(step._replace(reward=reward)))
    here.settle()
    (reason,) = liar.peer.closed
    assert reason.startswith(f"the reward of environment {2 * lane + 1} is ")
    # What it sends before it hears that is taken no more.
    here.registry.deliver(liar.peer, lane, step_arrays(step))
    liar.leave(reason)
    here.settle()
    after = here.ledger.counts()
    assert after["dropped"] > 0
    assert after["open"] == sum(lane.open.transitions for lane in here.worker.lanes)
    assert after["received"] == after["queued"] + after["open"] + after["dropped"]
    assert [lane.member.index for lane in here.worker.lanes] == [0, 0]
    assert here.gone == [(Member(1, 0, liar.peer), reason)]
    own.play(2)
    here.settle()
    assert own.peer.closed == []


def test_what_a_runs_own_actor_has_looked_at_is_not_looked_at_again(house: Callable[..., House]) -> None:
    here = house(actors=1, envs=4)
    own = Player(here.registry, index=0).ready().begin()
    lane, action = own.peer.next()
    own.lanes[lane].send(action)
    step = own.lanes[lane].receive()
    here.registry.deliver(own.peer, lane, step_arrays(step._replace(reward=np.full(2, 1e30, np.float32))))
    here.settle()
    assert own.peer.closed == []


def test_a_held_unroll_is_dropped_with_its_lane(house: Callable[..., House]) -> None:
    here = house(actors=1, envs=1, queue=2, max_rows=1)
    player = Player(here.registry, index=0).ready().begin()
    player.play(3 * LENGTH)
    assert here.refused.acquire(timeout=PATIENCE)
    player.leave()
    here.settle()
    assert here.ledger.counts() == {
        "received": 3 * LENGTH,
        "trained": 0,
        "queued": 2 * LENGTH,
        "open": 0,
        "dropped": LENGTH,
        "resets": 3,  # its episodes of 1, 2 and 3 steps end where decisions 1, 4 and 8 are made
    }


def test_a_full_queue_holds_a_lane_until_there_is_room(house: Callable[..., House]) -> None:
    here = house(actors=1, envs=1, queue=2, max_rows=1)
    player = Player(here.registry, index=0).ready().begin()
    player.play(3 * LENGTH)
    here.wait_for_unrolls(2)
    assert here.refused.acquire(timeout=PATIENCE)
    here.settle()
    assert player.peer.silent, "it is not served while its unroll has no room"
    assert here.worker.lanes[0].outbox is not None
    assert here.queue.take(0.0) is not None
    here.wait_for_unrolls(1)
    player.play(LENGTH)


def test_whoever_waited_longest_finds_the_room_first(house: Callable[..., House]) -> None:
    here = house(actors=3, envs=1, queue=2, max_rows=1)
    players = [Player(here.registry, index=index).ready() for index in range(3)]
    for index in (2, 1):  # fill the queue
        players[index].begin().play(LENGTH)
        here.wait_for_unrolls(1)
    held = []
    for index in (2, 0, 1):  # each completes one more, which is held
        player = players[index]
        (player.begin() if index == 0 else player).play(LENGTH)
        held.append(100 * index)
        while len([lane for lane in here.worker.lanes if lane.outbox is not None]) < len(held):
            here.settle()
    for _ in range(2):
        assert here.queue.take(0.0) is not None
        here.settle()
    here.wait_for_unrolls(3)
    assert [int(u.timestep.observation[0, 0, 0]) for u, _ in here.handed[2:]] == held


def set_clock(monkeypatch: pytest.MonkeyPatch, clock: SimpleNamespace) -> None:
    """What the registry and the workers take for the time from now on: ``clock.now``, in s."""
    for module in ("actor_registry", "inference_service", "command_thread"):
        monkeypatch.setattr(f"seedbed.serving.{module}.time", SimpleNamespace(monotonic=lambda: clock.now))


def test_actors_that_owe_a_step_are_named(
    house: Callable[..., House], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = SimpleNamespace(now=100.0)
    set_clock(monkeypatch, clock)
    here = house(actors=2, envs=4, queue=2)
    idle, busy = Player(here.registry, index=0), Player(here.registry, index=1)
    member = {
        player.told["index"]: Member(player.told["index"], 0, player.peer, True) for player in (idle, busy)
    }
    clock.now = 100.0 + START_SECONDS
    busy.ready()
    assert here.registry.stalled(6.0) == [], "they make their environments, and compile"
    assert here.registry.owes() == {}, "they are not there yet"
    busy.begin()
    replies = [busy.peer.next(), busy.peer.next()]
    assert here.registry.owes() == {1: clock.now}
    clock.now += 3.0
    late = (member[0], START_SECONDS + 3.0)
    assert here.registry.stalled(5.0) == [late]
    assert here.registry.stalled(2.0) == [late, (member[1], 3.0)]
    busy.step(*replies[0])
    reply = busy.peer.next()
    assert (member[1], 3.0) in here.registry.stalled(2.0), "the other half owes one still"
    busy.step(*replies[1])
    busy.peer.next()
    assert here.registry.stalled(2.0) == [late]
    assert reply[0] == replies[0][0]
    here.registry.dismiss(member[0], "too slow")
    assert idle.peer.closed == ["too slow"]


Owing = tuple[House, Player, list[tuple[int, Any]]]


@pytest.fixture
def owing(house: Callable[..., House], monkeypatch: pytest.MonkeyPatch) -> Owing:
    """A house whose worker stands still, an actor that owes two steps for 100 s, and the replies before them."""
    clock = SimpleNamespace(now=100.0)
    set_clock(monkeypatch, clock)
    here = house(actors=1, envs=4)
    player = Player(here.registry, index=0).ready().begin()
    replies = [player.peer.next(), player.peer.next()]
    here.worker.thread.stop()
    clock.now = 200.0
    return here, player, replies


def test_a_step_that_waits_for_the_worker_is_not_owed(owing: Owing) -> None:
    here, player, replies = owing
    assert [seconds for _, seconds in here.registry.stalled(2.0)] == [100.0]
    for reply in replies:
        player.step(*reply)
    assert here.registry.stalled(2.0) == []


def test_a_step_that_nobody_has_looked_for_is_not_owed(owing: Owing, monkeypatch: pytest.MonkeyPatch) -> None:
    here, _, _ = owing
    # It acts for others for 99 s, say: the steps may lie in their sockets since then.
    monkeypatch.setattr(here.worker.thread, "unheard", lambda: 99.0)
    assert [seconds for _, seconds in here.registry.stalled(0.5)] == [1.0]
    assert here.registry.stalled(2.0) == []
    assert here.registry.owes() == {0: 199.0}


def test_nothing_is_owed_for_the_time_in_which_the_learner_compiles(
    house: Callable[..., House], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = SimpleNamespace(now=100.0)
    set_clock(monkeypatch, clock)
    here = house(actors=1, envs=4, start=False)
    here.worker.thread.start()
    Player(here.registry, index=0).ready().begin(0)
    clock.now = 500.0
    assert here.registry.stalled(6.0) == []
    here.worker.thread.begin()
    clock.now = 505.0
    assert here.registry.stalled(6.0) == []
    clock.now = 507.0
    assert [seconds for _, seconds in here.registry.stalled(6.0)] == [7.0], "the other half has sent nothing"


@pytest.mark.parametrize(("workers", "itself"), [(1, True), (2, False)])
def test_one_service_alone_hears_its_actors_itself(
    house: Callable[..., House], tmp_path: Path, workers: int, itself: bool
) -> None:
    here = house(workers=workers, start=False)
    source = ServedActors(here.registry, here.workers, here.meters, patience=PATIENCE)
    with closing(source):
        addresses = source.open([f"shm:{tmp_path}/{name}" for name in "ab"])
        names = {thread.name for thread in threading.enumerate()}
        assert names.isdisjoint(addresses) == itself
        for index, address in enumerate(addresses):
            with closing(connect(address, timeout=PATIENCE)) as client:
                about = {"protocol": PROTOCOL, "token": "secret", "host": "here", "pid": 1}
                assert client.ask({"kind": "join", "index": index, **about})["rows"] == 2
    source.close()


def test_actors_make_their_environments_while_the_learner_compiles(house: Callable[..., House]) -> None:
    here, compiled = house(actors=1, envs=2, max_rows=4, start=False), threading.Event()
    source = ServedActors(here.registry, here.workers, here.meters, patience=PATIENCE, warm_up=compiled.set)
    with closing(source):
        source.open([])
        player = Player(here.registry, index=0).ready().begin()
        assert here.registry.owes() == {0: None}, "it has sent its first steps"
        assert player.peer.silent and not compiled.is_set()
        source.begin()
        assert compiled.is_set()
        player.play(4)


def test_meters_are_means_since_they_were_last_read(house: Callable[..., House]) -> None:
    meters = Meters()
    assert meters.take() == {}
    meters.add(4, 8, 0.010)
    meters.add(8, 8, 0.030)
    assert meters.take() == pytest.approx(
        {"inference_batch": 6.0, "batch_fill": 0.75, "inference_milliseconds": 20.0}
    )
    assert meters.take() == {}
    here = house(actors=1, envs=2, max_rows=4)
    Player(here.registry, index=0).ready().begin(0).peer.next()
    here.settle()
    taken = here.meters.take()
    assert (taken["inference_batch"], taken["batch_fill"]) == (1.0, 0.25)


def test_what_breaks_in_a_worker_is_told(house: Callable[..., House]) -> None:
    here = house()
    player = Player(here.registry, index=0).ready()
    here.registry.deliver(player.peer, 0, [])
    assert here.failed.wait(PATIENCE)
    assert isinstance(here.failures[0], ValueError)


# -- in lockstep ----------------------------------------------------------------------------------------------


def test_in_lockstep_a_round_acts_with_its_version_and_waits_for_it(house: Callable[..., House]) -> None:
    here = house(actors=2, envs=2, lag=1)
    players = [Player(here.registry, index=index).ready().begin() for index in range(2)]
    for version in range(1, 4):
        for _ in range(LENGTH if version > 1 else 2 * LENGTH):
            for player in players:
                player.play(2)
        here.wait_for_unrolls(8 if version == 1 else 4)
        assert here.worker.wait_blocked(PATIENCE)
        assert all(player.peer.silent for player in players)
        here.store.publish({"w": jnp.full((), float(version))}, version)
        assert not here.worker.wait_blocked(0.0)
    versions = [int(unroll.version[0, 0]) for unroll, _ in here.handed]
    assert versions == [0] * 4 + [0] * 4 + [1] * 4 + [2] * 4
    names = [int(unroll.timestep.observation[0, 0, 0]) for unroll, _ in here.handed]
    assert names == [0, 1, 100, 101] * 4, "in the order of the lanes, whoever came first"


def test_wait_blocked_is_false_without_lockstep(house: Callable[..., House]) -> None:
    assert not house().worker.wait_blocked(0.0)


def test_a_lane_is_brought_back_by_its_actions_and_keeps_its_state(house: Callable[..., House]) -> None:
    before = house(actors=1, envs=2, lag=0)
    player = Player(before.registry, index=0).ready().begin()
    player.play(2 * LENGTH)
    before.wait_for_unrolls(2)
    assert before.worker.wait_blocked(PATIENCE)
    states, tables = before.registry.lane_states(), before.worker.inference.tables()
    assert sorted(states) == [(0, 0), (0, 1)]
    assert states[0, 0]["actions"].shape == (LENGTH, 1)
    before.store.publish({"w": jnp.ones(())}, 1)
    player.play(2 * LENGTH)
    before.wait_for_unrolls(2)

    after = house(actors=1, envs=2, lag=0, resumable=states)
    after.worker.inference.restore(tables)
    after.store.publish({"w": jnp.ones(())}, 1)
    again = Player(after.registry, index=0).ready().begin()
    again.play(4 * LENGTH)  # as many replayed as acted anew
    after.wait_for_unrolls(2)
    for (unroll, episodes), (expected, expected_episodes) in zip(
        after.handed, before.handed[2:], strict=True
    ):
        jax.tree.map(np.testing.assert_array_equal, unroll, expected)
        assert episodes == expected_episodes
    assert after.ledger.counts()["received"] == 2 * LENGTH, "replayed steps are not counted again"
    assert after.worker.wait_blocked(PATIENCE)
    assert after.registry.lane_states()[0, 1]["actions"].shape == (2 * LENGTH, 1)


def test_a_world_that_does_not_come_back_is_an_error(house: Callable[..., House]) -> None:
    before = house(actors=1, envs=1, lag=0)
    Player(before.registry, index=0).ready().begin().play(LENGTH)
    before.wait_for_unrolls(1)
    assert before.worker.wait_blocked(PATIENCE)
    states = before.registry.lane_states()
    states[0, 0]["digest"] ^= 1
    after = house(actors=1, envs=1, lag=0, resumable=states)
    Player(after.registry, index=0).ready().begin().play(LENGTH)
    assert after.failed.wait(PATIENCE)
    assert "does not come back" in str(after.failures[0])
