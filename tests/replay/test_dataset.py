"""Data sets: what is written comes back, every unroll once, in an order that can be gone on with; damage is found."""

from __future__ import annotations

import errno
import json
import math
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from harness import PLACED, at_once, placed

from seedbed import atomic_folder
from seedbed.errors import DatasetError
from seedbed.replay.dataset import Batches, Dataset, Decided, write
from seedbed.types import ArraySpec, DataPlan, EnvSpec, TimeStep, Unroll

SPEC = EnvSpec(
    "test/numbers",
    {"camera": ArraySpec((2, 2, 1), "uint8"), "goal": ArraySpec((), "float32")},
    ArraySpec((), "int32", (1000,)),
    frames_per_step=4,
)
STREAMS, LENGTH = 3, 41
PLAN = DataPlan(5, 4, overlap=2, dataset=True)
"""Unrolls of 7 transitions: 7 from each stream of 40, and 3 transitions are left over."""


def steps(length: int = LENGTH, streams: int = STREAMS) -> Iterator[Decided]:
    """Step ``s`` of stream ``b`` shows ``100 b + s`` in every array; arrays are written over, as environments do."""
    number = np.zeros(streams, np.int64)
    camera = np.zeros((streams, 2, 2, 1), np.uint8)
    for step in range(length):
        number[:] = 100 * np.arange(streams) + step
        camera[:] = number[:, None, None, None] % 256
        ended = np.full(streams, step % 10 == 9)
        yield Decided(
            TimeStep(
                {"camera": camera, "goal": number.astype(np.float32)},
                number.astype(np.float32) / 2,
                ended & (number % 20 == 9),
                ended & (number % 20 != 9),
                np.full(streams, step % 10 == 0),
            ),
            number.astype(np.int32),
            {"policy": np.stack([number, -number], axis=-1).astype(np.float32)},
        )


def written(path: Path, **changes: Any) -> Dataset:
    settings: dict[str, Any] = {"most_bytes": 700, **changes}
    return write(path, SPEC, steps(), lambda: {"version": 7, "env_options": {"speed": 2}}, **settings)


def batches(dataset: Dataset, index: int = 0, count: int = 1, seed: int = 0, position: Any = None) -> Batches:
    return dataset.shard(index, count).batches(
        PLAN, lambda size: {"core": np.zeros((size, 2))}, seed=seed, position=position
    )


def trained(unrolls: list[Unroll]) -> list[int]:
    """The actions that unrolls of :data:`PLAN` train on, in order."""
    return [int(a) for unroll in unrolls for a in unroll.action[PLAN.overlap :].T.ravel()]


# -- what is written comes back ---------------------------------------------------------------------------


@pytest.mark.parametrize("most_bytes", [1, 700, 10**9])
def test_every_array_comes_back_also_across_files(tmp_path: Path, most_bytes: int) -> None:
    dataset = written(tmp_path / "data", most_bytes=most_bytes)
    assert len(list((tmp_path / "data").glob("*.safetensors"))) == {1: 41, 700: 6, 10**9: 1}[most_bytes]
    assert (dataset.streams, dataset.length, dataset.spec) == (STREAMS, LENGTH, SPEC)
    # 40 transitions in each of 3 streams, of which 4 lead into a new episode: they only reset, and were counted before.
    assert (dataset.about["frames"], dataset.about["transitions"]) == (432, 108)
    unroll = dataset.unroll([(1, 5), (0, 33)], 7, {})
    numbers = np.array([range(105, 113), range(33, 41)]).T
    assert unroll.timestep.observation["camera"].dtype == np.uint8
    assert (unroll.timestep.observation["camera"] == numbers[..., None, None, None]).all()
    assert (unroll.timestep.observation["goal"] == numbers).all()
    assert (unroll.timestep.reward == numbers / 2).all()
    assert np.argwhere(unroll.timestep.terminated).tolist() == [[4, 0]]
    assert np.argwhere(unroll.timestep.truncated).tolist() == [[6, 1]]
    assert np.argwhere(unroll.timestep.first).tolist() == [[5, 0], [7, 1]]
    assert (unroll.action == numbers[:-1]).all() and unroll.action.dtype == np.int32
    assert (unroll.record["policy"] == np.stack([numbers, -numbers], -1)[:-1]).all()
    assert (unroll.version == 7).all() and unroll.version.shape == (7, 2)


def test_what_is_recorded_may_be_nothing_and_one_observation_needs_no_name(tmp_path: Path) -> None:
    spec = EnvSpec("test/lone", ArraySpec((), "float32"), SPEC.action)
    lone = (
        Decided(step.timestep._replace(observation=step.timestep.reward), step.action, {}) for step in steps()
    )
    unroll = write(tmp_path / "data", spec, lone, dict).unroll([(2, 3)], 4, {})
    assert unroll.record == {}
    assert unroll.timestep.observation[:, 0].tolist() == [101.5, 102, 102.5, 103, 103.5]


def test_no_file_is_larger_than_it_may_be_and_memory_does_not_grow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    save_file = safetensors.numpy.save_file

    def watched(arrays: Any, path: Path) -> None:
        sizes.append(sum(x.nbytes for x in arrays.values()))
        save_file(arrays, path)

    monkeypatch.setattr(safetensors.numpy, "save_file", watched)
    write(tmp_path / "data", SPEC, steps(1000), dict, most_bytes=5000)
    assert max(sizes) <= 5000 and len(sizes) > 10


# -- every unroll once, in an order of its own ------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 2, 4, 21])
def test_shards_are_disjoint_complete_and_equal(tmp_path: Path, count: int) -> None:
    dataset = written(tmp_path / "data")
    shards = [dataset.shard(index, count).unrolls(PLAN) for index in range(count)]
    assert sorted(number for shard in shards for number in shard) == list(range(21))
    assert max(map(len, shards)) - min(map(len, shards)) <= 1


def test_an_epoch_shows_every_unroll_once_and_then_in_another_order(tmp_path: Path) -> None:
    one = batches(written(tmp_path / "data"))
    # 21 unrolls, 4 in a batch: four epochs are 21 batches.
    columns = np.array(trained([next(one) for _ in range(21)])).reshape(4, 21, 5)
    for epoch in columns:
        assert sorted(epoch.ravel().tolist()) == sorted(100 * b + s for b in range(3) for s in range(2, 37))
    assert len({tuple(epoch[:, 0]) for epoch in columns}) == 4
    assert columns[0, :, 0].tolist() != sorted(columns[0, :, 0].tolist())


def test_an_unroll_begins_with_what_is_before_the_transitions_that_it_trains_on(tmp_path: Path) -> None:
    unroll = next(batches(written(tmp_path / "data")))
    assert unroll.action.shape == (7, 4) and unroll.timestep.reward.shape == (8, 4)
    assert (np.diff(unroll.action, axis=0) == 1).all()
    assert unroll.state["core"].shape == (4, 2)


def test_the_same_seed_has_the_same_order_and_another_seed_or_shard_another(tmp_path: Path) -> None:
    dataset = written(tmp_path / "data")

    def order(seed: int) -> list[int]:
        one = batches(dataset, seed=seed)
        return trained([next(one) for _ in range(8)])

    assert order(3) == order(3) != order(4)


def test_a_shard_smaller_than_a_batch_fills_it_over_and_over(tmp_path: Path) -> None:
    one = batches(written(tmp_path / "data"), 0, 21)
    assert len(set(trained([next(one)]))) == 5


@pytest.mark.parametrize("after", range(12))
def test_it_goes_on_exactly_where_it_was(tmp_path: Path, after: int) -> None:
    dataset = written(tmp_path / "data")
    one = batches(dataset, 1, 2, seed=5)
    for _ in range(after):
        next(one)
    position = json.loads(json.dumps(one.position))
    resumed = batches(Dataset.open(dataset.path), 1, 2, seed=5, position=position)
    assert trained([next(resumed) for _ in range(8)]) == trained([next(one) for _ in range(8)])


def test_a_position_of_another_shard_is_refused(tmp_path: Path) -> None:
    dataset = written(tmp_path / "data")
    with pytest.raises(DatasetError, match=r"cannot go on .* number of replicas"):
        batches(dataset, 0, 2, position=batches(dataset, 1, 2).position)


def test_too_few_unrolls_are_refused(tmp_path: Path) -> None:
    dataset = written(tmp_path / "data")
    with pytest.raises(DatasetError, match=r"has 21 unrolls .* 22 replicas need one each"):
        dataset.shard(0, 22).unrolls(PLAN)
    with pytest.raises(DatasetError, match="has 0 unrolls of 100 transitions"):
        dataset.shard(0, 1).unrolls(DataPlan(100, 4, dataset=True))
    with pytest.raises(DatasetError, match="shards count from 0"):
        dataset.shard(2, 2)


# -- damage -----------------------------------------------------------------------------------------------


def flip(file: Path, place: int = -1) -> None:
    content = bytearray(file.read_bytes())
    content[place] ^= 1
    file.write_bytes(content)


def test_a_flipped_bit_in_any_file_is_found(tmp_path: Path) -> None:
    folder = written(tmp_path / "data").path
    for file in sorted(folder.iterdir()):
        whole = file.read_bytes()
        flip(file, len(whole) // 2)
        with pytest.raises(DatasetError, match=rf"is damaged: {file.name}"):
            Dataset.open(folder)
        file.write_bytes(whole)
    Dataset.open(folder)


@pytest.mark.parametrize("verify", [True, False])
def test_a_file_that_was_cut_off_or_lost_is_found_without_reading_it(tmp_path: Path, verify: bool) -> None:
    file = sorted(written(tmp_path / "data").path.glob("*.safetensors"))[2]
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(DatasetError, match=r"000002.safetensors has \d+ bytes instead of"):
        Dataset.open(tmp_path / "data", verify=verify)
    file.unlink()
    with pytest.raises(DatasetError, match=r"000002.safetensors: No such file"):
        Dataset.open(tmp_path / "data", verify=verify)


def resealed(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """A manifest that says of itself that it is as it was written."""
    manifest = json.loads((folder / "dataset.json").read_text())
    manifest.pop("sha256")
    change(manifest)
    atomic_folder.seal(folder, "dataset.json", manifest)


def renamed(old: str, new: str) -> Callable[[dict[str, Any]], object]:
    def change(manifest: dict[str, Any]) -> None:
        manifest["files"][new] = manifest["files"].pop(old)

    return change


def told(name: str, *place: str, **values: Any) -> Callable[[dict[str, Any]], object]:
    def change(manifest: dict[str, Any]) -> None:
        for each in place:
            manifest = manifest[each]
        manifest.update({name: values["value"]})

    return change


FIRST = "steps-000000.safetensors"


@pytest.mark.parametrize(
    "name",
    ["../elsewhere/" + FIRST, "/" + FIRST, "./" + FIRST, "..", ".", "", "a/../" + FIRST, "a\0b", "..\\x"],
)
def test_a_manifest_cannot_leave_its_folder(name: str, tmp_path: Path) -> None:
    folder = written(tmp_path / "data").path
    # What the name leads to, and what it leads to without its folders, are both as the manifest says.
    other = tmp_path / "elsewhere"
    other.mkdir()
    (other / FIRST).write_bytes((folder / FIRST).read_bytes())
    resealed(folder, renamed(FIRST, name if name != "/" + FIRST else str(other / FIRST)))
    for verify in (True, False):
        with pytest.raises(DatasetError, match=r"is damaged: .* is no name of a file in this folder"):
            Dataset.open(folder, verify=verify)


@pytest.mark.parametrize("kind", PLACED)
@pytest.mark.parametrize("name", ["dataset.json", FIRST])
def test_what_is_no_file_is_refused_at_once(name: str, kind: str, tmp_path: Path) -> None:
    folder = written(tmp_path / "data").path
    (folder / name).rename(tmp_path / "kept")
    placed(kind, folder / name)
    if kind == "link":
        (folder / "aim").write_bytes((tmp_path / "kept").read_bytes())
    for verify in (True, False):
        with pytest.raises(DatasetError, match=f"{name}.*({PLACED[kind]})"):
            at_once(lambda: Dataset.open(folder, verify=verify))  # noqa: B023


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (told("sha256", "files", FIRST, value=None), "has no SHA-256"),
        (told("sha256", "files", FIRST, value="0" * 63), "has no SHA-256"),
        (lambda manifest: manifest["files"][FIRST].pop("sha256"), "has no SHA-256"),
        (lambda manifest: manifest["files"][FIRST].pop("bytes"), "has no size"),
        (told("bytes", "files", FIRST, value=True), "has no size"),
        (told(FIRST, "files", value=7), "has no size"),
        (lambda manifest: manifest["files"].pop("steps-000003.safetensors"), "its files are"),
        (
            renamed("steps-000003.safetensors", "steps-000007.safetensors"),
            "steps-000007.safetensors: No such file",
        ),
        (renamed(FIRST, "others.safetensors"), "others.safetensors"),
        (told("files", value={}), "its files are none"),
        (told("files", value=[FIRST]), "its list of files"),
        (lambda manifest: manifest.pop("files"), "files"),
        (told("steps", "files", FIRST, value=-7), "steps is -7"),
        (told("steps", "files", FIRST, value=10**30), "steps is 10"),
        (told("steps", "files", FIRST, value=1.5), "steps is 1.5"),
        (told("steps", "files", FIRST, value=6), "is .* instead of"),
        (told("streams", value=2), "is .* instead of"),
        (told("streams", value="3"), "streams is '3'"),
        (told("version", value=[1]), r"version is \[1\]"),
        (told("version", value=2**31), "version is"),
        (told("dtype", "spec", "action", value="int64"), "action is int32.* instead of int64"),
        (told("shape", "spec", "action", value=[2]), "action is"),
        (told("goal", "spec", "observation", value=None), "spec"),
        (lambda manifest: manifest["spec"]["observation"].pop("goal"), "observation/goal is nothing"),
        (told("spec", value=3), "spec"),
        (told("format", value="1"), "format 1"),
    ],
)
def test_a_hostile_manifest_is_one_error(
    change: Callable[[dict[str, Any]], object], says: str, tmp_path: Path
) -> None:
    folder = written(tmp_path / "data").path
    resealed(folder, change)
    with pytest.raises(DatasetError, match=f"data set {folder} .*{says}"):
        Dataset.open(folder)


def test_the_same_name_twice_is_refused(tmp_path: Path) -> None:
    folder = written(tmp_path / "data").path
    text = (folder / "dataset.json").read_text()
    entry = f'"{FIRST}": {{"bytes": 1, "sha256": "{"0" * 64}", "steps": 1}},'
    (folder / "dataset.json").write_text(text.replace('"files": {', f'"files": {{{entry}'))
    with pytest.raises(DatasetError, match=f"'{FIRST}' is there twice"):
        Dataset.open(folder)


def test_the_hash_of_another_file_is_not_its_own(tmp_path: Path) -> None:
    folder = written(tmp_path / "data").path

    def swap(manifest: dict[str, Any]) -> None:
        files = manifest["files"]
        files[FIRST], files["steps-000001.safetensors"] = files["steps-000001.safetensors"], files[FIRST]

    resealed(folder, swap)
    with pytest.raises(DatasetError, match="does not have the SHA-256"):
        Dataset.open(folder)


def test_arrays_that_an_environment_does_not_show_are_refused_also_without_hashes(tmp_path: Path) -> None:
    folder = written(tmp_path / "data").path
    arrays = safetensors.numpy.load_file(folder / FIRST)
    for change, says in (
        ({"more": arrays["reward"]}, "more is nothing that an environment shows"),
        ({"reward": arrays["reward"].astype(np.float64)}, "reward is float64"),
        ({"record/policy": arrays["reward"][:, :2]}, "record/policy is float32"),
        ({"reward": None}, "it has no reward"),
    ):
        changed = {name: array for name, array in {**arrays, **change}.items() if array is not None}  # type: ignore[dict-item]
        entry = atomic_folder.write_arrays(folder / FIRST, changed)
        resealed(folder, lambda manifest: manifest["files"][FIRST].update(entry))  # noqa: B023
        with pytest.raises(DatasetError, match=says):
            Dataset.open(folder)
        with pytest.raises(DatasetError, match=says):
            Dataset.open(folder, verify=False).read(0, 0, 3)


def test_a_writer_does_not_follow_a_link_in_the_place_of_its_folder(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/file").touch()
    (tmp_path / ".writing-data").symlink_to("mine")
    with pytest.raises(DatasetError, match="cannot write the data set"):
        written(tmp_path / "data")
    assert (tmp_path / "mine/file").exists()


def test_a_folder_without_a_manifest_is_no_data_set(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match=r"is not a data set .* seedbed collect RUN"):
        Dataset.open(tmp_path)


def test_another_environment_is_refused_by_what_differs(tmp_path: Path) -> None:
    dataset = written(tmp_path / "data")
    dataset.require(SPEC)
    with pytest.raises(DatasetError, match=r"its id is test/numbers, that of the run is test/other"):
        dataset.require(EnvSpec("test/other", SPEC.observation, SPEC.action))
    with pytest.raises(DatasetError, match=r"its frame_stack is 1, .* is 4; .*'speed': 2"):
        dataset.require(EnvSpec(SPEC.id, SPEC.observation, SPEC.action, frame_stack=4))


# -- whole or not at all ----------------------------------------------------------------------------------


def test_what_is_there_is_never_overwritten(tmp_path: Path) -> None:
    written(tmp_path / "data")
    before = (tmp_path / "data" / "dataset.json").read_bytes()
    with pytest.raises(DatasetError, match="holds a data set already: remove it"):
        written(tmp_path / "data")
    assert (tmp_path / "data" / "dataset.json").read_bytes() == before
    (tmp_path / "notes").write_text("mine")
    with pytest.raises(DatasetError, match="exists already"):
        written(tmp_path / "notes")
    (tmp_path / "empty").mkdir()
    assert written(tmp_path / "empty").length == LENGTH


def test_an_environment_that_fails_or_nothing_to_write_leaves_nothing(tmp_path: Path) -> None:
    def failing() -> Iterator[Decided]:
        yield from steps(30)
        raise RuntimeError("the environment broke")

    with pytest.raises(RuntimeError, match="broke"):
        write(tmp_path / "data", SPEC, failing(), dict, most_bytes=700)
    with pytest.raises(DatasetError, match="1 steps for the data set"):
        write(tmp_path / "data", SPEC, steps(1), dict)
    with pytest.raises(DatasetError, match="must be finite JSON values"):
        write(tmp_path / "data", SPEC, steps(), lambda: {"mean_return": math.nan})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("call", ["fsync", "rename", "write_text", "save_file"])
def test_a_full_disk_is_told_in_one_line_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    owner: Any = {"fsync": os, "rename": Path, "write_text": Path, "save_file": safetensors.numpy}[call]
    with monkeypatch.context() as patch:
        patch.setattr(owner, call, full)
        with pytest.raises(
            DatasetError, match=r"^cannot write the data set .*: the disk is full: free space"
        ):
            written(tmp_path / "data")
    assert list(tmp_path.iterdir()) == []


KILLED = """
import sys
from replay.test_dataset import SPEC, steps
from seedbed.replay.dataset import write

def some():
    yield from steps(30)
    print("thirty steps", flush=True)
    sys.stdin.read()

write(sys.argv[1], SPEC, some(), dict, most_bytes=700)
"""


def test_a_writer_that_is_killed_leaves_nothing_that_looks_whole(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    child = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([*sys.path, str(Path(__file__).parents[1])])},
    )
    assert child.stdin and child.stdout
    with child.stdin, child.stdout:
        assert child.stdout.readline() == b"thirty steps\n"
        with pytest.raises(DatasetError, match="another process is writing to"):
            written(folder)
        os.kill(child.pid, signal.SIGKILL)
        child.wait()
    assert not folder.exists()
    assert len(list((tmp_path / ".writing-data").iterdir())) > 1
    with pytest.raises(DatasetError, match="is not a data set"):
        Dataset.open(tmp_path / ".writing-data")
    assert written(folder).length == LENGTH
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("reward", np.nan, "the reward of step 23 of stream 1 is not finite"),
        ("reward", 1e30, "the reward of step 23 of stream 1 is 1e"),
        ("goal", -np.inf, "the observation goal of step 23 of stream 1 is not finite"),
    ],
)
def test_numbers_that_nothing_can_be_learned_from_are_named(
    field: str, value: float, says: str, tmp_path: Path
) -> None:
    def spoilt() -> Iterator[Decided]:
        for number, decided in enumerate(steps()):
            if number == 23:
                step = decided.timestep
                (step.reward if field == "reward" else step.observation["goal"])[1] = value
            yield decided

    data = write(tmp_path / "data", SPEC, spoilt(), lambda: {"version": 7})
    with pytest.raises(DatasetError, match=says):
        for _ in range(10):
            next(data.shard(0, 1).batches(PLAN, lambda batch: {}, seed=1))
    batches = data.shard(0, 1).batches(PLAN, lambda batch: {}, seed=1)
    with pytest.raises(DatasetError, match=rf"the data set {tmp_path}/data cannot be learned from: {says}"):
        for _ in range(10):
            next(batches)
