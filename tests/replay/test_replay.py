"""The replay beside a slow and simple one, its books, its flow, and threads that pull at it from both sides."""

import itertools
import json
import threading
import tracemalloc
from collections import Counter
from time import monotonic
from typing import Any

import numpy as np
import pytest
from fakes import PATIENCE
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from naive_replay import NaiveReplay
from numpy.typing import NDArray
from scipy import stats
from streams import arrays, column, example, plan_of, stretch

from seedbed.errors import CheckpointError, ConfigError, SpecError
from seedbed.replay import replay as module
from seedbed.replay.replay import Replay, Sample
from seedbed.types import DataPlan, Unroll


def replay_of(plan: DataPlan, *, rows: int = 4, batch: int = 3, seed: int = 0, **more: Any) -> Replay:
    insert = rows * plan.unroll_length
    return Replay(plan, example(plan), batch_size=batch, largest_insert=insert, seed=seed, **more)


def offer(replay: Replay, streams: list[int], end: int, **more: Any) -> int | None:
    geometry = replay._geometry
    unroll = stretch(streams, end, geometry.unroll)
    return replay.offer(unroll, np.array(streams, np.int64), end, **more)


def snapshot_of(replay: Replay) -> tuple[list[dict[str, NDArray[Any]]], dict[str, Any]]:
    pieces, meta = replay.snapshot()
    return list(pieces), meta


class Beside(RuleBasedStateMachine):
    """Does the same with both, and looks at everything after each step."""

    @initialize(
        kind=st.sampled_from(["sequences", "transitions"]),
        length=st.integers(1, 5),
        overlap=st.integers(0, 5),
        start=st.integers(0, 3),
        spare=st.integers(0, 60),
        exponent=st.sampled_from([0.0, 0.6, 1.0]),
    )
    def begin(self, kind: str, length: int, overlap: int, start: int, spare: int, exponent: float) -> None:
        overlap = min(overlap, length)
        needed = 1 + 4 * length * (-(-(overlap + 1) // length) + 1)
        self.plan = plan_of(
            kind,
            length=length,
            overlap=overlap,
            capacity=max(needed, 3 * length + 1) + spare,
            start=start,
            priority_exponent=exponent,
            importance_exponent=0.5,
        )
        self.replay, self.naive = replay_of(self.plan), NaiveReplay(self.plan)
        self.lives: Counter[int] = Counter()
        self.ends: dict[int, int] = {}
        self.samples: list[Sample] = []
        self.told_dropped = self.late = 0

    @rule(
        lane=st.sampled_from([[0], [1, 2], [3, 4, 5]]),
        away=st.sampled_from([None] * 9 + [0, 1, 2]),
        gap=st.sampled_from([0] * 9 + [1, -1]),
        drawn=st.integers(0, 2**32 - 1),
        plain=st.booleans(),
        times=st.integers(1, 3),
    )
    def offer(self, lane: list[int], away: int | None, gap: int, drawn: int, plain: bool, times: int) -> None:
        # The environments of a lane go on together; now and then there is a gap, or one of them is away.
        streams = [stream for number, stream in enumerate(lane) if number != away] or lane
        for time in range(times):
            self.offer_once(streams, gap if time == 0 else 0, drawn + time, plain)
            self.the_same_is_in_both()

    def offer_once(self, streams: list[int], gap: int, drawn: int, plain: bool) -> None:
        end = max(self.ends.get(stream, 0) for stream in streams) + self.plan.unroll_length + gap
        for stream in streams:
            if self.ends.get(stream, 0) + self.plan.unroll_length != end:
                self.lives[stream] += 1
            self.ends[stream] = end
        shape = (self.naive.per_chunk, len(streams))
        priorities = np.random.default_rng(drawn).choice([0.0, 0.1, 1.0, 7.5], shape).astype(np.float32)
        given = None if plain else priorities
        unroll = stretch(
            streams, end, self.plan.overlap + self.plan.unroll_length, [self.lives[s] for s in streams]
        )
        expected = self.naive.offer(unroll, streams, end, np.ones(shape) if plain else priorities)
        assert self.replay.offer(unroll, np.array(streams, np.int64), end, given) == expected
        for array in arrays(unroll).values():
            array[...] = 0  # what was given was copied

    @property
    def can_be_sampled(self) -> bool:
        """Whether an item is there, and as many steps that were carried out as one has."""
        return bool(self.naive.items) and self.naive.earned > 1 - 1e-6

    @rule()
    def take(self) -> None:
        sample = self.replay.take(0.0)
        assert (sample is None) == (not self.can_be_sampled)
        if sample is None:
            return
        self.samples.append(sample)
        self.compare(sample.unroll, sample.items)
        assert sample.fresh == self.naive.see(sample.items.tolist())
        leaf = self.naive.leaves()
        density = leaf[sample.items] / leaf.sum() * np.count_nonzero(leaf)
        weight = density**-0.5 / (density**-0.5).max()
        assert sample.unroll.weight.dtype == np.float32
        np.testing.assert_allclose(sample.unroll.weight, weight, rtol=1e-6)

    @precondition(lambda self: self.samples)
    @rule(data=st.data(), values=st.lists(st.sampled_from([0.0, 0.3, 1.0, 50.0]), min_size=3, max_size=3))
    def update(self, data: st.DataObject, values: list[float]) -> None:
        """Of any sample ever taken: of an old one many items are gone, or others by now."""
        sample = data.draw(st.sampled_from(self.samples))
        for item, generation, value in zip(sample.items, sample.generations, values, strict=True):
            kept = self.naive.items.get(int(item))
            if kept is not None and self.times_taken(int(item)) == generation:
                kept.leaf = max(float(np.float32(value)) ** self.naive.replay.priority_exponent, 1e-12)
            else:
                self.late += 1
        self.replay.update(sample.items, sample.generations, np.array(values, np.float32))

    def times_taken(self, item: int) -> int:
        """How often the chunk of an item has been taken from the pool by now."""
        chunk = item // self.naive.per_chunk
        return (self.naive.taken - chunk + self.naive.count - 1) // self.naive.count

    @rule()
    def dropped(self) -> None:
        self.told_dropped += self.replay.take_dropped()

    @rule()
    def go_on_from_a_snapshot(self) -> None:
        kept, meta = self.replay.snapshot()
        meta = json.loads(json.dumps(meta))
        before, self.replay = self.replay, replay_of(self.plan, seed=99)
        self.replay.restore(kept, meta)
        if self.can_be_sampled:  # both draw the same from here on
            ours, theirs = self.replay.take(0.0), before.take(0.0)
            assert ours is not None
            assert theirs is not None
            for name, array in arrays(ours.unroll, weight=True).items():
                np.testing.assert_array_equal(array, arrays(theirs.unroll, weight=True)[name])
            assert ours.items.tolist() == theirs.items.tolist()
            assert ours.fresh == theirs.fresh == self.naive.see(ours.items.tolist())
            self.samples.append(ours)

    def compare(self, unroll: Unroll, items: NDArray[np.int64]) -> None:
        for row, name in enumerate(items.tolist()):
            item = self.naive.items[name]
            for key, array in column(unroll, row).items():
                expected = item.state if key == "h" else item.window[key]
                assert array.dtype == expected.dtype
                np.testing.assert_array_equal(array, expected, err_msg=key)

    @invariant()
    def the_same_is_in_both(self) -> None:
        if not hasattr(self, "replay"):
            return
        np.testing.assert_allclose(self.replay._tree.leaves, self.naive.leaves(), rtol=1e-12)
        items = np.array(sorted(self.naive.items), np.int64)
        chunks = self.replay._chunks
        self.compare(chunks.read(items, chunks.places(items)), items)
        assert len(self.replay) == len(items) * self.naive.own
        seen = [self.naive.items[name].seen for name in items.tolist()]
        assert self.replay._seen[items].tolist() == seen

    @invariant()
    def books_balance(self) -> None:
        if hasattr(self, "replay"):
            assert self.told_dropped + self.replay._dropped == self.naive.dropped
            naive = self.naive
            assert naive.offered == naive.fresh + naive.dropped + naive.unseen
            assert self.replay.late == self.late


Beside.TestCase.settings = settings(max_examples=40, stateful_step_count=40)
TestBeside = Beside.TestCase


# -- what is drawn, and how often ------------------------------------------------------------------------------


def test_items_are_drawn_in_proportion_to_their_priorities() -> None:
    plan = plan_of(
        "sequences", length=2, overlap=1, capacity=4001, priority_exponent=0.5, importance_exponent=1.0
    )
    replay = replay_of(plan, batch=2000)
    priorities = np.array([[1.0, 4.0, 9.0, 16.0]], np.float32)
    offer(replay, [0, 1, 2, 3], 3, priorities=priorities)
    sample = replay.take(0.0)
    assert sample is not None
    drawn, weight = sample.unroll.timestep.observation["who"][0, :, 0], sample.unroll.weight
    counts = np.bincount(drawn, minlength=4)
    assert stats.chisquare(counts, 2000 * np.array([1, 2, 3, 4]) / 10).pvalue > 0.01
    expected = 1 / np.array([1, 2, 3, 4])
    np.testing.assert_allclose(weight, expected[drawn], rtol=1e-6)
    assert sample.fresh == 8, "four sequences, however often they were drawn"


@pytest.mark.parametrize("kind", ["sequences", "transitions"])
def test_without_an_exponent_all_are_alike(kind: str) -> None:
    plan = plan_of(kind, length=4, overlap=2, capacity=17000)
    replay = replay_of(plan, batch=4000)
    for end in range(6, 30, 4):
        offer(replay, [0, 1, 2], end, priorities=np.full((replay._geometry.items, 3), 1e-3 * end))
    sample = replay.take(0.0)
    assert sample is not None
    live = np.flatnonzero(replay._tree.leaves)
    counts = np.bincount(sample.items, minlength=replay._tree.capacity)
    assert counts.sum() == counts[live].sum()
    assert stats.chisquare(counts[live]).pvalue > 0.01
    assert (sample.unroll.weight == 1).all()


def test_the_same_seed_draws_the_same() -> None:
    plan = plan_of("transitions", length=4, overlap=2, capacity=100)
    drawn = []
    for seed in (1, 1, 2):
        replay = replay_of(plan, seed=seed, batch=16)
        offer(replay, [0, 1, 2], 6)
        sample = replay.take(0.0)
        assert sample is not None
        drawn.append(sample.items.tolist())
    assert drawn[0] == drawn[1] != drawn[2]


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), -1.0])
def test_what_is_no_priority_is_ignored_and_counted(wrong: float) -> None:
    plan = plan_of("sequences", length=2, overlap=1, capacity=64, priority_exponent=0.9)
    replay = replay_of(plan)
    offer(replay, [0, 1, 2], 3, priorities=np.array([[wrong, 2.0, 0.0]]))
    leaves = replay._tree.leaves
    live = np.flatnonzero(leaves)
    assert leaves[live] == pytest.approx([1.0, 2.0**0.9, 1e-12])
    assert replay.ignored == 1
    generations = np.ones(3, np.int64)
    replay.update(live, generations, np.array([3.0, wrong, 1e300]))
    assert leaves[live] == pytest.approx([3.0**0.9, 2.0**0.9, 1e30])
    assert replay.ignored == 2
    replay.update(live[[0, 1, 0, 0]], generations[[0, 1, 0, 0]], np.array([5.0, 6.0, 7.0, wrong]))
    assert leaves[live[:2]] == pytest.approx([7.0**0.9, 6.0**0.9]), "of two, the last one that is a number"
    assert np.isfinite(replay._tree.total)


# -- flow ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["sequences", "transitions"])
@pytest.mark.parametrize("ratio", [0.5, 4.0])
def test_acting_and_learning_keep_the_ratio_and_never_stall(kind: str, ratio: float) -> None:
    plan = plan_of(kind, length=4, overlap=2, capacity=200, min_size=48, ratio=ratio)
    # By places, as with an exact lag; the next test counts those that were carried out.
    replay = replay_of(plan, by_places=True)
    own = replay._geometry.own
    random = np.random.default_rng(0)
    ends, taken, offered, fresh, first = [6] * 3, 0, 0, 0, 0
    for _ in range(600):
        lane = int(random.integers(3))
        accepted = None
        if random.random() < 0.7:
            accepted = offer(replay, [10 * lane + row for row in range(1 + lane)], ends[lane])
        if accepted is not None:
            ends[lane] += 4
            offered += accepted
            continue
        sample = replay.take(0.0)
        if sample is None:
            assert offer(replay, [99], 6) is not None, "neither may go on"
            offered += 6
            continue
        first = first or offered
        taken, fresh = taken + len(sample.items), fresh + sample.fresh
    assert first >= 48
    assert taken * own / (offered - 48) == pytest.approx(ratio, rel=0.15)
    unseen = own * int(np.sum((replay._tree.leaves > 0) & ~replay._seen))
    assert offered == fresh + replay.take_dropped() + unseen
    assert replay.take_dropped() == 0


@pytest.mark.parametrize("kind", ["sequences", "transitions"])
def test_a_transition_that_only_resets_earns_no_sample(kind: str) -> None:
    plan = plan_of(kind, length=4, overlap=2, capacity=400, min_size=8, ratio=2.0)
    replay, own = replay_of(plan, tolerance=1000), 4 if kind == "sequences" else 1
    carried = np.zeros(0)
    for end in range(6, 62, 4):
        unroll = stretch([0, 1, 2], end, 6)
        assert replay.offer(unroll, np.arange(3), end) is not None
        # Transitions have the window 3: the first of an unroll leads to its step 1 (start 0), the last to its step 4.
        own_steps = unroll.timestep.first[1:5] if kind == "transitions" else unroll.timestep.first[3:]
        carried = np.append(carried, np.sum(~own_steps) / own)
    assert 0 < carried.sum() * own < 14 * 3 * 4, "some reset, some do not"
    assert replay.credit == pytest.approx(2.0 * (carried.sum() - 8 / own))
    state = replay._limiter.state()
    replay._limiter.restore(state)
    assert replay._limiter.state() == state


def test_an_offer_that_is_refused_changes_nothing_and_room_is_announced() -> None:
    plan = plan_of("sequences", length=2, overlap=1, capacity=64, min_size=2, ratio=1.0)
    replay = replay_of(plan, rows=2, batch=2, tolerance=4)
    ends = itertools.count(3, 2)
    end = next(ends)
    while offer(replay, [0, 1], end) is not None:
        end = next(ends)
    kept, meta = snapshot_of(replay)
    assert offer(replay, [0, 1], end) is None
    again, same = snapshot_of(replay)
    assert meta == same
    for before, after in zip(kept, again, strict=True):
        # Places that were never written may hold anything, also numbers that are not equal to themselves.
        assert all(before[name].tobytes() == after[name].tobytes() for name in before)
    heard: list[int | None] = []
    replay.listen(lambda: heard.append(offer(replay, [0, 1], end)))
    assert replay.take(0.0) is not None
    assert heard == [4], "it goes on where it was refused"


def test_what_others_are_copying_counts_for_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_of("sequences", length=2, overlap=1, capacity=64, ratio=1.0)
    replay = replay_of(plan, rows=2, batch=2, tolerance=4, by_places=True)
    offer(replay, [0, 1], 3)
    stopped = Stopped(replay, [0, 1], 5, monkeypatch)
    assert replay.credit == 1
    assert offer(replay, [2, 3], 3) is None, "5 items in all, with those that are on their way"
    stopped.go_on()
    assert (stopped.accepted, replay.credit) == (4, 3)


def test_the_first_batch_waits_for_the_plans_transitions() -> None:
    for kind, more, first in (
        ("sequences", {}, 5),  # 9 transitions are 4.5 sequences
        ("transitions", {}, 5),
        ("sequences", {"base": 1}, 1),
    ):
        replay = replay_of(
            plan_of(kind, length=2, overlap=1, capacity=64, min_size=9), by_places=True, **more
        )
        for number in range(1, 8):
            assert (replay.take(0.0) is not None) == (number > first)
            offer(replay, [0], 1 + 2 * number)


def test_take_waits_for_a_batch() -> None:
    replay = replay_of(plan_of("transitions", length=2, overlap=1, capacity=64, min_size=8))
    taken: list[Sample | None] = []
    waits = threading.Event()
    taker = threading.Thread(target=lambda: (waits.set(), taken.append(replay.take(PATIENCE))))
    taker.start()
    assert waits.wait(PATIENCE)
    for end in (3, 5, 7, 9):
        offer(replay, [3, 4, 5], end)
    taker.join(PATIENCE)
    assert taken[0] is not None


def test_settling_lets_a_batch_wait_for_new_inserts() -> None:
    replay = replay_of(plan_of("sequences", length=2, overlap=1, capacity=64, ratio=1.0), by_places=True)
    offer(replay, [0, 1, 2, 3], 3)
    assert replay.credit == 3
    replay.settle()
    assert replay.credit == 0
    assert replay.take(0.0) is None


def test_close_wakes_whoever_waits_and_is_final() -> None:
    replay = replay_of(plan_of("sequences", length=2, overlap=1, capacity=64))
    taken: list[Any] = []
    takers = [threading.Thread(target=lambda: taken.append(replay.take())) for _ in range(2)]
    for taker in takers:
        taker.start()
    replay.close()
    for taker in takers:
        taker.join(PATIENCE)
    assert taken == [None, None]
    offer(replay, [1, 2], 3)
    assert replay.take(0.0) is None


# -- what happens while arrays are copied ------------------------------------------------------------------------


def consistent(sample: Sample) -> None:
    """Every window is one piece of one stream, bit for bit."""
    for row in range(len(sample.items)):
        found = column(sample.unroll, row)
        who = found["who"]
        length = len(who) - 1
        expected = column(stretch([int(who[0, 0])], int(who[-1, 1]) - 1000, length), 0)
        for name in found.keys() - {"h"}:
            np.testing.assert_array_equal(found[name], expected[name], err_msg=name)


def once(replay: Replay, method: str, first: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Does something before the next call of a method of the chunks, and then no more."""
    real = getattr(replay._chunks, method)

    def hooked(*args: Any) -> Any:
        monkeypatch.setattr(replay._chunks, method, real)
        first()
        return real(*args)

    monkeypatch.setattr(replay._chunks, method, hooked)


@pytest.mark.parametrize("kind", ["sequences", "transitions"])
def test_what_is_overwritten_while_it_is_gathered_is_drawn_again(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    replay = replay_of(plan_of(kind, length=3, overlap=2, capacity=60), batch=16)
    ends = itertools.count(5, 3)
    for _ in range(5):
        offer(replay, [0, 1, 2, 3], next(ends))
    for _ in range(30):
        # Half of the memory is overwritten between the choice and the copy.
        once(replay, "read", lambda: [offer(replay, [0, 1, 2, 3], next(ends)) for _ in range(2)], monkeypatch)
        sample = replay.take(0.0)
        assert sample is not None
        assert len(sample.items) == 16
        consistent(sample)
        assert (replay._chunks.generation[sample.items // replay._geometry.items] == sample.generations).all()
        assert (replay._tree.get(sample.items) > 0).all()


def test_if_nothing_is_left_there_is_no_batch_and_its_credit_comes_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plan = plan_of("transitions", length=1, overlap=0, capacity=12, ratio=1.0)
    replay = replay_of(plan, tolerance=7, by_places=True)
    end = next(e for e in range(50) if not stretch([0, 1, 2, 3], e, 1).timestep.first[1].any())
    offer(replay, [0, 1, 2, 3], end)
    credit = replay.credit
    nothing = stretch([0, 1, 2, 3], 100, 1)
    nothing.timestep.first[:] = True

    def overwrite() -> None:
        replay._limiter.tolerance = 1000
        for later in range(100, 110, 2):
            replay.offer(nothing, np.arange(4), later)
        replay._limiter.tolerance = 7

    once(replay, "read", overwrite, monkeypatch)
    assert replay.take(0.0) is None
    assert len(replay) == 0
    assert replay.credit == credit + 20
    assert replay.take_dropped() == 4 + 20
    assert offer(replay, [0, 1, 2, 3], end) == 4, "an insert is what helps"
    assert replay.take(0.0) is not None


def test_an_offer_whose_copy_fails_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    replay = replay_of(plan_of("transitions", length=2, overlap=1, capacity=64))
    offer(replay, [0, 1], 3)
    live = len(replay)

    def fail() -> None:
        raise MemoryError

    once(replay, "write", fail, monkeypatch)
    with pytest.raises(MemoryError):
        offer(replay, [0, 1], 5)
    assert (len(replay), replay._pending, replay.take_dropped()) == (live, 0, 2 + 4 - live)
    assert offer(replay, [0, 1], 5) == 6, "what it would continue was never written"
    sample = replay.take(0.0)
    assert sample is not None
    consistent(sample)


class Stopped:
    """An offer of another thread that stands still while it copies, until it may go on."""

    def __init__(self, replay: Replay, streams: list[int], end: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self._copying, self._go = threading.Event(), threading.Event()
        once(replay, "write", lambda: (self._copying.set(), self._go.wait(PATIENCE)), monkeypatch)
        self.accepted: int | None = None
        self._thread = threading.Thread(target=self._offer, args=(replay, streams, end))
        self._thread.start()
        assert self._copying.wait(PATIENCE)

    def _offer(self, replay: Replay, streams: list[int], end: int) -> None:
        self.accepted = offer(replay, streams, end)

    def go_on(self) -> None:
        self._go.set()
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive()


def test_an_unroll_whose_beginning_is_overwritten_while_it_is_copied_has_no_whole_window(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Chunks 0 and 1 are the first unroll of stream 0; 2 continues it, and is being written. 3 to 6 and then 0 and 1
    # are taken by others meanwhile.
    replay = replay_of(plan_of("sequences", length=2, overlap=1, capacity=14), rows=2)
    offer(replay, [0], 3)
    stopped = Stopped(replay, [0], 5, monkeypatch)
    for stream, live in ((1, 4), (2, 6), (3, 6)):
        offer(replay, [stream], 3)
        assert len(replay) == live
    stopped.go_on()
    assert stopped.accepted == 2
    # The overlap of each stream, the first unroll that was overwritten, and the one that was never whole.
    assert (len(replay), replay.take_dropped()) == (6, 4 + 2 + 2)
    for _ in range(10):
        sample = replay.take(0.0)
        assert sample is not None
        consistent(sample)


def test_an_unroll_continues_only_what_is_there_as_far_back_as_its_windows_reach() -> None:
    # One place a chunk, and windows over three of them: 0 1 2 are stream 0, 3 4 5 stream 1, 6 continues stream 0, and
    # others take 7 8 9 and then 0 1 2. The last chunk of stream 0 is there, and the one before it is not.
    replay = replay_of(plan_of("transitions", length=1, overlap=1, capacity=10), rows=2)
    accepted = [offer(replay, [s], end) for s, end in ((0, 2), (1, 2), (0, 3), (2, 2), (3, 2), (0, 4))]
    assert accepted == [2, 2, 1, 2, 2, 2]


def test_only_the_items_die_that_reach_into_what_is_overwritten() -> None:
    # Windows of three transitions on chunks of two places: of the items of chunk 2 the first shows one step of chunk 0.
    replay = replay_of(plan_of("transitions", length=2, overlap=2, capacity=14), rows=1)
    unroll = stretch([0], 4, 4)
    unroll.timestep.first[:] = False
    for stream, end, live in ((0, 4, [4, 5]), (0, 6, [4, 5, 6, 7]), (1, 4, [4, 5, 6, 7, 12, 13])):
        replay.offer(unroll, np.array([stream]), end)
        assert np.flatnonzero(replay._tree.leaves).tolist() == live
    replay.offer(unroll, np.array([1]), 6)
    assert np.flatnonzero(replay._tree.leaves).tolist() == [0, 1, 5, 6, 7, 12, 13]


def test_a_stream_whose_end_was_overwritten_continues_nobody_elses() -> None:
    # Where stream 0 ended there is now the end of stream 4, with the same number.
    replay = replay_of(plan_of("sequences", length=2, overlap=1, capacity=16), rows=2)
    assert [offer(replay, [stream], 3) for stream in range(5)] == [3] * 5
    assert offer(replay, [0], 5) == 3


def test_offers_wait_for_what_they_would_overwrite_or_continue_to_be_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plan = plan_of("sequences", length=2, overlap=1, capacity=14)
    for streams, end, gain in (([0], 5, 2), ([1, 2, 3], 3, 9)):
        replay = replay_of(plan, rows=2 if len(streams) == 1 else 3)
        stopped = Stopped(replay, [0], 3, monkeypatch)
        waits = threading.Event()
        monkeypatch.setattr(replay._changed, "wait", lambda _, waits=waits, r=replay: (waits.set(), real(r)))

        def real(replay: Replay) -> None:
            threading.Condition.wait(replay._changed, PATIENCE)

        accepted: list[int | None] = []
        second = threading.Thread(
            target=lambda s=streams, e=end, r=replay, a=accepted: a.append(offer(r, s, e))
        )
        second.start()
        assert waits.wait(PATIENCE)
        assert accepted == []
        stopped.go_on()
        second.join(PATIENCE)
        assert accepted == [gain]
        sample = replay.take(0.0)
        assert sample is not None
        consistent(sample)


@pytest.mark.parametrize("kind", ["sequences", "transitions"])
def test_threads_insert_while_others_sample(kind: str) -> None:
    plan = plan_of(kind, length=3, overlap=3, capacity=120, start=1, priority_exponent=1.0)
    replay = replay_of(plan, batch=16)
    stop, broken = threading.Event(), []
    booked, offered = Counter[str](), [0, 0, 0]

    def insert(lane: int) -> None:
        end, streams = 6, [10 * lane + row for row in range(lane + 1)]
        while not stop.is_set():
            end += 3 if end % 7 else 10
            offered[lane] += offer(replay, streams, end) or 0

    def learn() -> None:
        random = np.random.default_rng(0)
        previous = None
        for _ in range(60):
            sample = replay.take(PATIENCE)
            assert sample is not None
            consistent(sample)
            booked["fresh"] += sample.fresh
            replay.update(sample.items, sample.generations, random.random(16))
            if previous is not None:  # late, as from another machine
                replay.update(previous.items, previous.generations, random.random(16))
            previous = sample
            booked["dropped"] += replay.take_dropped()

    def guarded(work: Any, *args: Any) -> None:
        try:
            work(*args)
        except BaseException as error:
            broken.append(error)
            raise
        finally:
            if work is learn:
                stop.set()

    threads = [threading.Thread(target=guarded, args=(insert, lane)) for lane in range(3)]
    threads.append(threading.Thread(target=guarded, args=(learn,)))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert not broken
    unseen = replay._geometry.own * int(np.sum((replay._tree.leaves > 0) & ~replay._seen))
    assert sum(offered) == booked["fresh"] + booked["dropped"] + replay.take_dropped() + unseen
    assert replay._live == np.count_nonzero(replay._tree.leaves)


# -- checkpoints -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["sequences", "transitions"])
def test_a_snapshot_is_the_replay_as_it_was_while_threads_insert_and_sample(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PIECE_BYTES", 1)  # a chunk at a time
    plan = plan_of(kind, length=3, overlap=3, capacity=150, start=1, priority_exponent=1.0)
    replay = replay_of(plan, batch=16)
    stop, broken = threading.Event(), []
    index, was = replay._chunks.index, dict[str, NDArray[Any]]()

    def copied() -> dict[str, NDArray[Any]]:
        """All that there is, at the moment that the lock is held for the index."""
        found = index()
        used = found["chunk"]
        was.update({name: array[used] for name, array in replay._chunks.stored().items()})
        was.update(leaves=replay._tree.leaves.copy(), seen=replay._seen.copy())
        return found

    monkeypatch.setattr(replay._chunks, "index", copied)

    def insert(lane: int) -> None:
        end, streams = 6, [10 * lane + row for row in range(lane + 1)]
        while not stop.is_set():
            end += 3 if end % 7 else 10
            offer(replay, streams, end)

    def learn() -> None:
        random = np.random.default_rng(0)
        while not stop.is_set():
            sample = replay.take(0.01)
            if sample is not None:
                replay.update(sample.items, sample.generations, random.random(16))

    def guarded(work: Any, *args: Any) -> None:
        try:
            work(*args)
        except BaseException as error:
            broken.append(error)

    threads = [threading.Thread(target=guarded, args=(insert, lane)) for lane in range(3)]
    threads.append(threading.Thread(target=guarded, args=(learn,)))
    for thread in threads:
        thread.start()
    overwritten, deadline = 0, monotonic() + PATIENCE
    while not broken and overwritten < 100 and monotonic() < deadline:
        restored = replay_of(plan, batch=16)
        pieces, meta = replay.snapshot()
        expected, generations = dict(was), replay._chunks.generation.copy()
        restored.restore(pieces, meta)
        overwritten += int(np.sum(replay._chunks.generation != generations))
        kept = restored._chunks.index()["chunk"]
        for name, array in restored._chunks.stored().items():
            np.testing.assert_array_equal(array[kept], expected[name], err_msg=name)
        np.testing.assert_array_equal(restored._tree.leaves, expected["leaves"])
        alive = expected["leaves"] > 0
        np.testing.assert_array_equal(restored._seen[alive], expected["seen"][alive])
    stop.set()
    for thread in threads:
        thread.join(PATIENCE)
    assert not broken
    assert overwritten >= 100, "inserts went on while it was read"


class Offering:
    """An offer of another thread that has to wait for what is being copied."""

    def __init__(self, replay: Replay, streams: list[int], end: int, monkeypatch: pytest.MonkeyPatch) -> None:
        waits = threading.Event()

        def wait(_: float) -> None:
            waits.set()
            threading.Condition.wait(replay._changed, PATIENCE)

        monkeypatch.setattr(replay._changed, "wait", wait)
        self._accepted: list[int | None] = []
        self._thread = threading.Thread(target=lambda: self._accepted.append(offer(replay, streams, end)))
        self._thread.start()
        assert waits.wait(PATIENCE)
        monkeypatch.undo()

    @property
    def waits(self) -> bool:
        return self._thread.is_alive() and not self._accepted

    def accepted(self) -> int | None:
        self._thread.join(PATIENCE)
        return self._accepted[0]


@pytest.fixture
def full() -> Replay:
    """Of ten chunks; streams 0 to 4 have two each, and those of stream 0 are overwritten next."""
    replay = replay_of(plan_of("sequences", length=2, overlap=1, capacity=20), rows=2)
    for stream in range(5):
        offer(replay, [stream], 3)
    return replay


def test_a_place_is_not_overwritten_before_it_was_copied(
    full: Replay, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = {name: array.copy() for name, array in full._chunks.stored().items()}
    with monkeypatch.context() as patch:
        patch.setattr(module, "PIECE_BYTES", 1)
        kept, meta = full.snapshot()
        pieces = iter(kept)
        offering = Offering(full, [7], 3, pytest.MonkeyPatch())
        read = [next(pieces)]
        assert offering.waits, "it needs two, and one was copied"
        assert full.take(0.0) is not None, "sampling waits for nobody"
        read.append(next(pieces))
        assert offering.accepted() == 3
        assert not full._chunks.held[:2].any() and full._chunks.held[2:].all()
        read += pieces
    assert not full._chunks.held.any()
    restored = replay_of(plan_of("sequences", length=2, overlap=1, capacity=20), rows=2)
    restored.restore(read, meta)
    for name, array in restored._chunks.stored().items():
        np.testing.assert_array_equal(array, expected[name])


def test_a_snapshot_that_is_given_up_holds_nobody_and_cannot_be_read(full: Replay) -> None:
    given_up, _ = full.snapshot()
    offering = Offering(full, [7], 3, pytest.MonkeyPatch())
    given_up.close()
    assert offering.accepted() == 3
    earlier, _ = full.snapshot()
    later, _ = full.snapshot()
    assert len(list(later)) == 2
    read, _ = full.snapshot()
    assert len(list(read)) == 2
    for pieces in (given_up, earlier, read):
        with pytest.raises(CheckpointError, match="given up"):
            list(pieces)
        pieces.close()


def test_an_offer_that_waits_for_a_snapshot_ends_with_the_replay(full: Replay) -> None:
    pieces, _ = full.snapshot()
    offering = Offering(full, [7], 3, pytest.MonkeyPatch())
    full.close()
    assert offering.accepted() is None
    assert len(list(pieces)) == 2, "what was begun can be finished"


def test_reading_a_snapshot_takes_the_memory_of_a_few_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PIECE_BYTES", 1 << 16)
    replay = replay_of(plan_of("sequences", length=100, overlap=0, capacity=100_000), rows=10)
    for end in range(100, 10_100, 100):
        offer(replay, list(range(10)), end)
    assert replay.fill == 1
    restored = replay_of(plan_of("sequences", length=100, overlap=0, capacity=100_000), rows=10)
    size = sum(array.nbytes for array in replay._chunks.stored().values())
    tracemalloc.start()
    try:
        restored.restore(*replay.snapshot())
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < size / 10


def test_what_is_being_written_is_not_in_a_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_of("sequences", length=2, overlap=1, capacity=40)
    replay, restored = replay_of(plan), replay_of(plan)
    offer(replay, [0, 1], 3)
    stopped = Stopped(replay, [0, 1], 5, monkeypatch)
    restored.restore(*replay.snapshot())
    stopped.go_on()
    assert (len(replay), len(restored)) == (8, 4)
    assert offer(restored, [0, 1], 5) == 6, "a new segment: what came between is not here"
    sample = restored.take(0.0)
    assert sample is not None
    consistent(sample)


def test_a_snapshot_has_no_more_than_what_is_used() -> None:
    replay = replay_of(plan_of("sequences", length=2, overlap=1, capacity=4000))
    offer(replay, [0, 1], 3)
    kept, meta = snapshot_of(replay)
    assert {len(array) for piece in kept for array in piece.values()} == {4}
    assert json.loads(json.dumps(meta)) == meta


def test_a_snapshot_of_something_else_is_refused() -> None:
    plan = plan_of("sequences", length=2, overlap=1, capacity=40)
    replay = replay_of(plan)
    offer(replay, [0, 1], 3)
    (index, kept), meta = snapshot_of(replay)
    with pytest.raises(CheckpointError, match=r"'chunks': 20.*'chunks': 21"):
        replay_of(plan_of("sequences", length=2, overlap=1, capacity=42)).restore([index, kept], meta)
    missing = {name: array for name, array in kept.items() if not name.endswith("action")}
    with pytest.raises(CheckpointError, match="decided/action in the checkpoint is missing"):
        replay_of(plan).restore([index, missing], meta)
    other = {
        name: array.astype(np.int8) if array.dtype == np.uint8 else array for name, array in kept.items()
    }
    with pytest.raises(CheckpointError, match=r"frame in the checkpoint is int8 .* needs uint8"):
        replay_of(plan).restore([index, other], meta)


# -- what cannot work --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (
            {"memory_limit": 1000},
            r"needs \d+ bytes .* 1000 .* are available beside .*: use --replay-size \d+ or less",
        ),
        ({"batch": 500}, "use --replay-size 1001 or more"),
        ({"rows": 17}, r"one insert takes up to 68: use --replay-size 69 or more"),
        ({"tolerance": 6.0}, "need a tolerance of 7 or more"),
    ],
)
def test_a_replay_that_could_not_work_is_refused(more: dict[str, Any], message: str) -> None:
    plan = plan_of("sequences", length=2, overlap=1, capacity=64, ratio=1.0)
    with pytest.raises(ConfigError, match=message):
        replay_of(plan, **more)


def test_the_size_that_a_refusal_names_is_enough() -> None:
    plan = plan_of("sequences", length=2, overlap=1, capacity=1001)
    assert replay_of(plan, batch=500).capacity == 1002


def test_an_unroll_of_something_else_is_refused() -> None:
    replay = replay_of(plan_of("sequences", length=2, overlap=1, capacity=64), rows=2)
    streams = np.arange(2)
    good = stretch([0, 1], 3, 3)
    with pytest.raises(SpecError, match=r"action is .*int64.*keeps .*int32"):
        replay.offer(good._replace(action=good.action.astype(np.int64)), streams, 3)
    with pytest.raises(SpecError, match=r"unroll's .* is"):
        replay.offer(stretch([0, 1], 3, 4), streams, 3)
    with pytest.raises(SpecError, match="made for 1 to 2"):
        offer(replay, [0, 1, 2], 3)
    with pytest.raises(SpecError, match="as many different streams"):
        replay.offer(good, np.array([3, 3]), 3)
    assert len(replay) == replay._pending == 0


def test_an_operator_can_read_it() -> None:
    replay = replay_of(plan_of("sequences", length=2, overlap=1, capacity=64))
    assert (replay.capacity, len(replay), replay.fill) == (64, 0, 0)
    offer(replay, [0, 1, 2, 3], 3)
    assert (len(replay), replay.fill) == (8, 0.25)
    assert repr(replay).startswith("Replay(8 of 64 transitions in windows of 3 transitions, 25% of ")
    assert "4 items inserted, 0 sampled" in repr(replay)
