from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fakes import COUNT, reporter
from hypothesis import given, settings
from hypothesis import strategies as st

from seedbed.acting.inference import Inference
from seedbed.acting.unrolls import OpenUnroll, step_arrays, step_fields
from seedbed.agents.vtrace import VTraceSettings, make_agent
from seedbed.envs.make import make
from seedbed.nets.network import Network
from seedbed.replay.queue import join
from seedbed.testing.agents import SPECS, at, experience
from seedbed.types import Tree

PARAMS = {"w": jnp.ones(())}
CAPACITY = 8
SIZES = (2, 4, 8)
DIARY = reporter()


@pytest.fixture(scope="module")
def shared() -> Inference:
    """One for all tests of the module, so that it compiles once; each test resets the slots that it uses."""
    inference = Inference(DIARY, COUNT, CAPACITY, SIZES, jax.devices()[0], jax.random.key(1))
    inference.warm_up(PARAMS)
    return inference


def columns(slots: Sequence[int], step: int, *, epoch: int = 0, begins: bool = False) -> np.ndarray[Any, Any]:
    rows = len(slots)
    return np.array([slots, [epoch] * rows, [step] * rows, [begins] * rows], np.int32)


def steps(slots: Sequence[int], first: bool = False) -> list[np.ndarray[Any, Any]]:
    """A step in whose observation each environment has its slot's number."""
    arrays = [np.zeros(shape, dtype) for shape, dtype in step_fields(COUNT, len(slots))]
    arrays[0][:, 0] = slots
    arrays[-1][:] = first
    return arrays


def play(
    inference: Inference, groups: Sequence[Sequence[Sequence[int]]], reset: bool = True
) -> dict[int, Any]:
    """Acts for batches of lanes, each given by its slots; what every slot recorded, step by step."""
    if reset:
        inference.reset(np.arange(CAPACITY, dtype=np.int32))
    count = dict.fromkeys(range(CAPACITY), 0)
    diaries: dict[int, Any] = {slot: [] for slot in range(CAPACITY)}
    for lanes in groups:
        batch = [(steps(slots), columns(slots, count[slots[0]])) for slots in lanes]
        action, record = inference.act(PARAMS, batch)
        row = 0
        for slot in (slot for slots in lanes for slot in slots):
            count[slot] += 1
            diaries[slot].append(
                (int(action[row]), *(leaf[row].tolist() for leaf in jax.tree.leaves(record)))
            )
            row += 1
        assert len(action) == row
    return diaries


ALONE = [[[slot]] for _ in range(3) for slot in range(CAPACITY)]


@settings(max_examples=15)
@given(data=st.data())
def test_what_a_slot_gets_does_not_depend_on_what_it_is_batched_with(shared: Inference, data: Any) -> None:
    alone = play(shared, ALONE)
    groups = []
    for _ in range(3):
        order = data.draw(st.permutations(range(CAPACITY)))
        while order:
            size = data.draw(st.integers(1, len(order)))
            group, order = order[:size], order[size:]
            groups.append([[slot] for slot in group])
    assert play(shared, groups) == alone


def test_padding_touches_no_slot(shared: Inference) -> None:
    play(shared, ALONE)
    before = shared.tables()
    shared.act(PARAMS, [(steps([3]), columns([3], 3))])
    after = shared.tables()
    others = [slot for slot in range(CAPACITY) if slot != 3]
    jax.tree.map(
        lambda a, b: np.testing.assert_array_equal(a[others], b[others]), before["states"], after["states"]
    )
    assert after["states"]["seen"][3] == before["states"]["seen"][3] + 1


def test_randomness_depends_on_slot_epoch_and_step_alone(shared: Inference) -> None:
    def drawn(slot: int, epoch: int, step: int, begins: bool = False) -> int:
        _, record = shared.act(PARAMS, [(steps([slot]), columns([slot], step, epoch=epoch, begins=begins))])
        return int(record["drawn"][0])

    names = [(slot, epoch, step) for slot in range(3) for epoch in range(3) for step in range(3)]
    first = {name: drawn(*name) for name in names}
    assert len(set(first.values())) == len(names)
    assert {name: drawn(*name, begins=True) for name in reversed(names)} == first


def test_first_states_are_those_before_the_open_unrolls_first_step(shared: Inference) -> None:
    slots = np.array([5, 2], np.int32)
    shared.reset(slots)
    for step in range(7):
        _, record = shared.act(PARAMS, [(steps([5, 2]), columns([5, 2], step, begins=step % 3 == 0))])
        begin = step - step % 3
        firsts = shared.first_states(slots)
        assert firsts["seen"].tolist() == [begin, begin]
        assert firsts["sum"].tolist() == [5.0 * begin, 2.0 * begin]
        assert record["before"].tolist() == [step, step]


def test_first_states_do_not_change_when_acting_goes_on(shared: Inference) -> None:
    slots = np.array([0, 1], np.int32)
    shared.reset(slots)
    shared.act(PARAMS, [(steps(slots.tolist()), columns(slots.tolist(), 0, begins=True))])
    kept = shared.first_states(slots)
    tables = shared.tables()
    for step in range(1, 6):
        shared.act(PARAMS, [(steps(slots.tolist()), columns(slots.tolist(), step, begins=True))])
    assert kept["seen"].tolist() == [0, 0]
    assert tables["states"]["seen"][:2].tolist() == [1, 1]


def test_reset_gives_these_slots_the_initial_state_and_no_others(shared: Inference) -> None:
    play(shared, ALONE)
    shared.reset(np.array([6, 1, 4], np.int32))
    seen = shared.tables()["states"]["seen"][:CAPACITY]
    assert seen.tolist() == [3, 0, 3, 3, 0, 3, 0, 3]


def test_tables_bring_everything_back(shared: Inference) -> None:
    other = Inference(DIARY, COUNT, CAPACITY, SIZES, jax.devices()[0], jax.random.key(1))
    halfway = play(shared, [[[0, 1], [2]], [[1, 2]]])
    kept = shared.tables()
    rest = play(shared, ALONE, reset=False)
    other.restore(kept)
    assert play(other, ALONE, reset=False) == rest
    shared.restore(kept)
    shared.restore(shared.tables())
    assert play(shared, ALONE, reset=False) == rest
    assert halfway[0][0] != rest[0][0]


def test_nothing_is_compiled_after_warm_up(caplog: pytest.LogCaptureFixture) -> None:
    params = jax.device_put(PARAMS, jax.devices()[0])
    inference = Inference(reporter(), COUNT, CAPACITY, (2, 4), jax.devices()[0], jax.random.key(1))
    inference.warm_up(params)
    with jax.log_compiles(), caplog.at_level("WARNING", logger="jax"):
        for _ in range(2):
            for rows in (1, 2, 3, 4):
                slots = list(range(rows))
                inference.reset(np.array(slots, np.int32))
                inference.act(params, [(steps(slots), columns(slots, 0, begins=True))])
                inference.first_states(np.array(slots, np.int32))
        assert [r.getMessage()[:80] for r in caplog.records if "Compiling" in r.getMessage()] == []
        jax.jit(lambda x: x + 17)(1.0)
    assert any("Compiling" in record.getMessage() for record in caplog.records), "the log shows compilations"


def test_a_replayed_unroll_reproduces_what_the_actor_recorded() -> None:
    spec, length, rows = SPECS["image"], 4, 4
    agent = make_agent(
        VTraceSettings(unroll_length=length, previous_action=True, previous_reward=True),
        spec,
        Network(network="mlp", hidden=(8,), lstm=4),
    )
    params = jax.jit(agent.init)(jax.random.key(0))
    inference = Inference(agent, spec, rows, (2, 4), jax.devices()[0], jax.random.key(1))
    ends = [(2, 0, "terminated"), (3, 1, "truncated"), (4, 2, "terminated"), (6, 3, "truncated")]
    stream = experience(spec, 3 * length + 1, rows, ends)  # type: ignore[arg-type]
    halves = [OpenUnroll(spec, 2, length) for _ in range(2)]
    slots = [np.array([0, 1], np.int32), np.array([2, 3], np.int32)]
    unrolls: list[list[Any]] = [[], []]
    for t in range(3 * length + 1):
        for half, lane in enumerate(halves):
            if lane.observe(step_arrays(at(stream, (t, slice(2 * half, 2 * half + 2))))):
                unrolls[half].append(lane.cut(inference.first_states(slots[half])))
        # Together or one by one: it must not matter.
        order = [[0, 1]] if t % 2 else [[1], [0]]
        for group in order:
            lanes = [
                (halves[h].observed, columns(slots[h].tolist(), t, begins=t % length == 0)) for h in group
            ]
            action, record = inference.act(params, lanes)
            for i, h in enumerate(group):
                part = slice(2 * i, 2 * i + 2)
                halves[h].decide(action[part], jax.tree.map(lambda x, p=part: x[p], record), 0)

    loss = jax.jit(agent.loss)
    for pieces in zip(*unrolls, strict=True):
        _, (metrics, _) = loss(params, None, join(pieces), jax.random.key(2))
        assert abs(float(metrics["kl"])) < 1e-6
        assert float(metrics["rho"]) == pytest.approx(1.0, abs=1e-5)
    spoiled = join([u._replace(state=jax.tree.map(_other, u.state)) for u in (unrolls[0][1], unrolls[1][1])])
    _, (metrics, _) = loss(params, None, spoiled, jax.random.key(2))
    assert abs(float(metrics["kl"])) > 1e-6, "the state matters, or this test shows nothing"


def _other(state: Tree) -> Tree:
    return state + np.ones((), state.dtype) * 3


def test_toy_lanes_of_unequal_size_share_a_batch(shared: Inference) -> None:
    shared.reset(np.arange(5, dtype=np.int32))
    environments = [make("toy:count", rows, {"first_index": start}) for rows, start in ((3, 0), (2, 3))]
    batch = [
        (step_arrays(environments[0].reset(0)), columns([0, 1, 2], 0)),
        (step_arrays(environments[1].reset(0)), columns([3, 4], 0)),
    ]
    action, record = shared.act(PARAMS, batch)
    assert record["observation"][:, 0].tolist() == [0, 1, 2, 3, 4]
    assert record["sum"].tolist() == [0, 1, 2, 3, 4]
    assert action.shape == (5,)
