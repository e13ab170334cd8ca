"""Where steps are kept: how they are counted, and that each is kept once."""

from dataclasses import replace

import numpy as np
import pytest
from streams import arrays, example, plan_of, stretch

from seedbed.errors import ConfigError
from seedbed.replay.chunks import Chunks, Geometry
from seedbed.replay.replay import Replay, bytes_per_step, replay_bytes
from seedbed.types import DataPlan, Unroll


@pytest.mark.parametrize(
    ("kind", "length", "overlap", "items", "own", "ends", "hops"),
    [
        ("sequences", 4, 0, 1, 4, [3], [1]),
        ("sequences", 4, 3, 1, 4, [3], [1]),
        ("sequences", 4, 4, 1, 4, [3], [2]),
        ("transitions", 4, 0, 4, 1, [0, 1, 2, 3], [1, 0, 0, 0]),
        ("transitions", 4, 2, 4, 1, [0, 1, 2, 3], [1, 1, 1, 0]),
        ("transitions", 4, 4, 4, 1, [0, 1, 2, 3], [2, 1, 1, 1]),
        ("transitions", 1, 1, 1, 1, [0], [2]),
    ],
)
def test_how_items_are_counted(
    kind: str, length: int, overlap: int, items: int, own: int, ends: list[int], hops: list[int]
) -> None:
    geometry = Geometry.of(plan_of(kind, length=length, overlap=overlap, capacity=42))
    assert (geometry.items, geometry.own, geometry.unroll) == (items, own, overlap + length)
    assert (geometry.ends.tolist(), geometry.hops.tolist()) == (ends, hops)
    # A new segment needs as many chunks as its pairs fill, and no item of its last one reaches out of them.
    assert geometry.most_hops + 1 == -(-(overlap + length + 1) // length)


def test_plans_that_cannot_be_kept_are_refused() -> None:
    plan = plan_of("sequences", length=4, overlap=2, capacity=40)
    assert plan.replay is not None
    for wrong, message in (
        (replace(plan, replay=None, overlap=0), "has no replay"),
        (replace(plan, overlap=5), "an overlap of 5 with unrolls of 4"),
        (replace(plan, unroll_length=0), "1 transition at least"),
        (
            replace(plan, replay=replace(plan.replay, window=4)),
            r"has to be 6 \(sequences\) or 3 \(transitions\)",
        ),
        (replace(plan, replay=replace(plan.replay, start=6)), "start has to be from 0 to 5"),
    ):
        with pytest.raises(ConfigError, match=message):
            Geometry.of(wrong)


@pytest.mark.parametrize("kind", ["sequences", "transitions"])
def test_bytes_are_those_of_the_arrays(kind: str) -> None:
    plan = plan_of(kind, length=4, overlap=2, capacity=42)
    chunks = Chunks(Geometry.of(plan), example(plan))
    index = (chunks.generation, chunks.status, chunks.stream, chunks.end)
    held = sum(x.nbytes for x in (*chunks.stored().values(), *index))
    held += sum(x[:-1].nbytes for x in (chunks.previous, chunks.next))
    assert Chunks.bytes_of(chunks.geometry, example(plan)) == held
    replay = Replay(plan, example(plan), batch_size=2, largest_insert=8, seed=0)
    assert replay.bytes_needed == replay_bytes(plan, example(plan))
    assert replay.bytes_needed == held + replay._tree._nodes.nbytes + replay._seen.nbytes
    assert bytes_per_step(plan, example(plan)) == replay.bytes_needed / 44


def frames(plan: DataPlan) -> Unroll:
    """An example with frames of Atari."""
    unroll = example(plan)
    frame = np.zeros((*unroll.timestep.reward.shape, 84, 84), np.uint8)
    return unroll._replace(timestep=unroll.timestep._replace(observation=frame))


@pytest.mark.parametrize(
    "plan",
    [
        plan_of("sequences", length=80, overlap=40, capacity=8000),
        plan_of("transitions", length=20, overlap=6, capacity=8000),
    ],
    ids=["sequences", "transitions"],
)
def test_a_frame_is_kept_once_though_many_windows_show_it(plan: DataPlan) -> None:
    frame = 84 * 84
    assert frame < bytes_per_step(plan, frames(plan)) < 1.02 * frame
    stored = Chunks(Geometry.of(plan), frames(plan)).stored()
    assert stored["steps/observation"].dtype == np.uint8
    assert stored["steps/observation"].nbytes == 8000 * frame


def test_unrolls_that_follow_each_other_share_their_overlap() -> None:
    plan = plan_of("sequences", length=3, overlap=1, capacity=30)
    replay = Replay(plan, example(plan), batch_size=1, largest_insert=3, seed=0)
    accepted = [replay.offer(stretch([7], end, 4), np.array([7]), end) for end in (4, 7, 10)]
    assert accepted == [4, 3, 3]
    who = replay._chunks.stored()["steps/observation/who"][..., 1].ravel() - 1000
    assert who[1:12].tolist() == list(range(11)), "as in the picture of the chunks"
    assert arrays(stretch([7], 4, 4))["who"].shape == (5, 1, 2)
