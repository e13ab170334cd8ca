"""A replay on an accelerator, against the one of the host and against what every stream contains."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats
from streams import arrays, example, plan_of, stretch

from seedbed.errors import ConfigError
from seedbed.replay.queue import select
from seedbed.replay.replay import Replay
from seedbed.replay.ring import Drawn, Held, Ring, find
from seedbed.types import DataPlan, Unroll

ENVS, T = 4, 3
KINDS: dict[str, dict[str, Any]] = {
    "sequences": {"kind": "sequences", "overlap": 2},
    "sequences without overlap": {"kind": "sequences", "overlap": 0},
    "transitions": {"kind": "transitions", "overlap": 3, "start": 1},
    "single transitions": {"kind": "transitions", "overlap": 0},
}


def plan_for(kind: str, chunks: int = 5) -> DataPlan:
    exponents = {"priority_exponent": 0.6, "importance_exponent": 0.5}
    return plan_of(**KINDS[kind], length=T, capacity=ENVS * chunks * T, **exponents)  # type: ignore[arg-type]


def raw(items: int) -> Any:
    """Priorities of an unroll's items that follow from what was decided; some are no numbers."""

    def priorities(unroll: Unroll) -> Any:
        of = unroll.action[-items:].astype(jnp.float32)
        return jnp.where(of == 17, jnp.nan, of % 5 + 0.5)

    return priorities


class Both:
    """A ring and a replay of the host that are given the same."""

    def __init__(self, plan: DataPlan) -> None:
        self.plan = plan
        whole = plan.overlap + plan.unroll_length
        self.ring = Ring.of(plan, example(plan), ENVS, raw(plan.items))
        self.held: Held = self.ring.empty(ENVS)
        self.replay = Replay(plan, example(plan), batch_size=4, largest_insert=2 * T, seed=0)
        self.length = whole
        self.insert = jax.jit(self.ring.insert)
        self.take = jax.jit(self.ring.take)
        self.renew = jax.jit(self.ring.renew)

    def offer(
        self, columns: list[int], streams: list[int], end: int, begins: bool, absent: Sequence[int] = ()
    ) -> None:
        unroll = stretch(streams, end, self.length)
        unroll.timestep.first[:, list(absent)] = True
        self.held = self.insert(self.held, unroll, np.array(columns, np.int32), np.bool_(begins))
        given = np.asarray(raw(self.plan.items)(unroll), np.float32)
        assert self.replay.offer(unroll, np.array(streams, np.int64), end, given) is not None

    def at(self, points: NDArray[np.float64]) -> Drawn:
        """Takes the items at some points; ones that come twice, since one program serves all numbers, count once."""
        padded = np.full(self.held.leaf.size, points[0], np.float32)
        padded[: len(points)] = points
        self.held, drawn = self.take(self.held, padded)
        rows = slice(len(points))
        cut = jax.tree.map(np.asarray, jax.device_get(drawn))
        return Drawn(select(cut.unroll, 0, len(points)), cut.items[rows], cut.numbers[rows], cut.fresh)

    def middles(self) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Every live item, and the middle of its part of the line."""
        leaf = np.asarray(self.held.leaf, np.float64).ravel()
        ends = np.cumsum(leaf)
        there = np.flatnonzero(leaf)
        return there, (ends - leaf / 2)[there] / ends[-1]

    def live(self) -> tuple[NDArray[np.int64], Drawn]:
        """Every live item, and its window; none of them counts as seen by it."""
        there, points = self.middles()
        before = self.held
        drawn = self.at(points)
        np.testing.assert_array_equal(drawn.items, there)
        self.held = before
        return there, drawn

    def change(self, drawn: Drawn, priorities: NDArray[np.float32]) -> tuple[Held, int, int]:
        """Gives items new priorities, the last one again and again; counts of what changed nothing are of each once."""
        more = self.held.leaf.size - len(priorities)

        def padded(values: Any) -> Any:
            return np.append(values, np.repeat(values[-1:], more))

        held, late, bad = self.renew(
            self.held, padded(drawn.items), padded(drawn.numbers), padded(priorities)
        )
        last_is_late = int(held.number.reshape(-1)[drawn.items[-1] // self.ring.geometry.items]) != int(
            drawn.numbers[-1]
        )
        return held, int(late) - more * last_is_late, int(bad)


def told(unroll: Unroll, leaves: Any) -> dict[tuple[Any, ...], list[bytes]]:
    """Of each row, by its leaf, stream and last step, all that it holds."""
    columns = {name: np.asarray(x) for name, x in arrays(unroll).items()}
    columns["who"] = columns["who"].astype(np.int32)  # JAX has no larger ones here
    rows = range(columns["h"].shape[0])
    return {
        (*columns["who"][-1, row].tolist(), round(float(leaves[row]), 3)): [
            (x[row] if name == "h" else x[:, row]).tobytes() for name, x in sorted(columns.items())
        ]
        for row in rows
    }


@pytest.mark.parametrize("kind", KINDS)
def test_in_lockstep_it_holds_what_the_host_holds(kind: str) -> None:
    both, compared = Both(plan_for(kind)), 0
    for count in range(9):
        for lane in ([0, 1], [2, 3]):
            both.offer(lane, lane, both.length + count * T, begins=count == 0)
        # The host's first chunks, several of each environment, are overwritten one environment after the other.
        first = ENVS * (both.ring.geometry.most_hops + 1)
        if 0 < first + ENVS * count - ENVS * both.ring.geometry.chunks < first:
            continue
        compared += 1
        there, drawn = both.live()
        host = np.flatnonzero(both.replay._tree.leaves)
        theirs = both.replay._chunks.read(host, both.replay._chunks.places(host))
        leaf = np.asarray(both.held.leaf).ravel()[there]
        assert told(drawn.unroll, leaf) == told(theirs, both.replay._tree.leaves[host])
        assert len(both.replay) == len(there) * both.ring.geometry.own
        # Half of it is sampled, and has other priorities from then on.
        sampled = both.at(both.middles()[1][::2])
        np.testing.assert_array_equal(sampled.items, there[::2])
        key = {row[:2]: item for item, row in zip(host, told(theirs, np.zeros(len(host))), strict=True)}
        same = np.array([key[row[:2]] for row in told(sampled.unroll, np.zeros(len(sampled.items)))])
        assert int(sampled.fresh) == both.replay._see(same)
        both.held, late, bad = both.change(sampled, np.full(len(same), 2.0 + count, np.float32))
        assert (late, bad) == (0, 0)
        generations = both.replay._chunks.generation[same // both.ring.geometry.items]
        both.replay.update(same, generations, np.full(len(same), 2.0 + count))
        assert int(np.sum(both.held.dropped)) == both.replay._dropped
    assert compared >= 7


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_sampled_of_an_agent_that_was_absent(kind: str) -> None:
    both = Both(plan_for(kind))
    for count in range(3):
        both.offer([0, 1], [0, 1], both.length + count * T, begins=count == 0, absent=[1] if count else [])
    there, drawn = both.live()
    whole, row = both.length, np.asarray(drawn.unroll.timestep.observation["who"])[-1]
    # Of stream 1 windows are there whose own transition is in the first unroll, and which show what followed.
    assert max(int(end) for stream, end in row if stream == 1) <= 1000 + whole + both.plan.overlap
    assert max(int(end) for stream, end in row if stream == 0) >= 1000 + whole + 2 * T - both.plan.overlap
    host = np.flatnonzero(both.replay._tree.leaves)
    assert len(host) == len(there)
    assert int(np.sum(both.held.dropped)) == both.replay._dropped >= 2 * T


@pytest.mark.parametrize("kind", KINDS)
def test_no_window_mixes_streams_when_an_environment_begins_anew(kind: str) -> None:
    both = Both(plan_for(kind, chunks=6))
    epoch, since = {0: 0, 2: 0}, {0: 0, 2: 0}
    offered = 0
    for count in range(16):
        for lane in (0, 2):
            # Lanes begin anew at different times, the second one also twice in a row.
            begins = count == 0 or (lane == 0 and count == 7) or (lane == 2 and count in (4, 5))
            epoch[lane] += begins
            since[lane] = 0 if begins else since[lane] + 1
            streams = [10 * epoch[lane] + lane, 10 * epoch[lane] + lane + 1]
            end = both.length + since[lane] * T
            unroll = stretch(streams, end, both.length)
            both.held = both.insert(both.held, unroll, np.array([lane, lane + 1], np.int32), np.bool_(begins))
            offered += 2 * (T + (both.plan.overlap if begins else 0))
            there, drawn = both.live()
            who = np.asarray(drawn.unroll.timestep.observation["who"])
            assert (who[..., 0] == who[0, :, 0]).all(), "of one stream"
            assert (np.diff(who[..., 1], axis=0) == 1).all(), "without a gap"
            window = both.ring.geometry.window
            for row in range(0, len(there), 3):
                whole = arrays(stretch([int(who[0, row, 0])], int(who[-1, row, 1]) - 1000, window))
                for name, array in arrays(drawn.unroll).items():
                    if name != "h":
                        np.testing.assert_array_equal(array[:, row], whole[name][:, 0], err_msg=name)
            # Nothing was sampled: all that was offered is there, or was dropped.
            dropped = int(np.sum(both.held.dropped))
            assert offered == dropped + len(there) * both.ring.geometry.own


def test_priorities_that_come_late_or_are_no_numbers_change_nothing() -> None:
    both = Both(plan_for("transitions", chunks=3))
    for count in range(2):
        both.offer([0, 1], [0, 1], both.length + count * T, begins=count == 0)
    there, drawn = both.live()
    before = np.asarray(both.held.leaf).ravel()
    given = np.full(len(there), 5.0, np.float32)
    given[[0, 1]] = [np.nan, -1.0]
    held, late, bad = both.change(drawn, given)
    after = np.asarray(held.leaf).ravel()
    assert (late, bad) == (0, 2)
    np.testing.assert_array_equal(after[there[:2]], before[there[:2]])
    np.testing.assert_allclose(after[there[2:]], 5.0**0.6, rtol=1e-5)
    # Of one that comes twice, the last stays.
    rows = np.array([4, 5, 4])
    twice = Drawn(drawn.unroll, drawn.items[rows], drawn.numbers[rows], 0)
    held, *_ = both.change(twice, np.array([1.0, 2.0, 3.0], np.float32))
    np.testing.assert_allclose(np.asarray(held.leaf).ravel()[there[[4, 5]]], [3**0.6, 2**0.6], rtol=1e-5)
    for count in range(2, 5):
        both.offer([0, 1], [0, 1], both.length + count * T, begins=False)
    held, late, _ = both.change(drawn, np.full(len(there), 9.0, np.float32))
    assert late == len(there)
    np.testing.assert_array_equal(held.leaf, both.held.leaf)


def test_draws_are_in_proportion_and_weights_undo_that() -> None:
    both = Both(plan_for("transitions"))
    for count in range(3):
        both.offer([0, 1], [0, 1], both.length + count * T, begins=count == 0)
    leaf = np.asarray(both.held.leaf, np.float64).ravel()
    _, drawn = jax.jit(both.ring.draw, static_argnums=2)(both.held, jax.random.key(1), 20_000)
    items = np.asarray(drawn.items)
    counts = np.bincount(items, minlength=leaf.size)
    assert not counts[leaf == 0].any()
    live = leaf > 0
    expected = leaf[live] / leaf[live].sum() * counts[live].sum()
    assert stats.chisquare(counts[live], expected).pvalue > 0.01
    weight = np.asarray(drawn.unroll.weight)
    np.testing.assert_allclose(weight * np.sqrt(leaf[items] / leaf.sum() * leaf.size), 1.0, rtol=1e-4)


@pytest.mark.parametrize("size", [1, 2, 7, 1_000, 40_003])
def test_a_point_is_found_where_a_slow_search_finds_it(size: int) -> None:
    random = np.random.default_rng(size)
    leaves = random.choice([0.0, 0.0, 1.0, 2.0, 40.0], size).astype(np.float32)
    leaves[random.integers(size)] = 1.0
    points = random.random(500).astype(np.float32)
    # Whole numbers are summed exactly, so both find the same.
    items, total = jax.jit(find)(leaves, points)
    assert float(total) == leaves.sum(dtype=np.float64)
    distance = points * np.float32(total)
    np.testing.assert_array_equal(
        items, np.searchsorted(np.cumsum(leaves, dtype=np.float64), distance, "right")
    )
    # However sums round, nothing that is 0 is found.
    odd = np.where(leaves > 0, random.random(size) * 10.0 ** random.integers(-12, 9, size), 0).astype(
        np.float32
    )
    edges = np.append(points, [0.0, np.nextafter(np.float32(1), np.float32(0))]).astype(np.float32)
    assert (odd[np.asarray(jax.jit(find)(odd, edges)[0])] > 0).all()


def test_one_that_is_too_small_is_refused() -> None:
    plan = plan_of("transitions", length=T, overlap=2, capacity=100, min_size=97)
    with pytest.raises(ConfigError, match=r"4 environments have 8 unrolls of 3 .* use --replay-size"):
        Ring.of(plan, example(plan), 4)


def test_one_of_more_items_than_random_numbers_can_choose_among_is_refused() -> None:
    def ring(kind: str, capacity: int, envs: int) -> Ring:
        plan = plan_of(kind, length=T, overlap=2, capacity=capacity, min_size=97)
        return Ring.of(plan, example(plan), envs)

    for envs in (1, 4, 7, 64):
        with pytest.raises(
            ConfigError, match=r"has 4,194,304 items at most, .* --replay-size 4194303 or less"
        ):
            ring("transitions", 5_000_000, envs)
        assert ring("transitions", 4_194_303, envs).geometry.items == T, "what is advised is taken"
    assert ring("sequences", 5_000_000, 4).geometry.items == 1, "fewer items than transitions"
