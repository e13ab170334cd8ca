import errno
import hashlib
import io
import json
import logging
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import safetensors.numpy
from harness import PLACED, at_once, placed
from safetensors import SafetensorError

from seedbed import atomic_folder
from seedbed.errors import CheckpointError
from seedbed.learning.checkpoint import (
    Checkpoint,
    Contents,
    digest,
    flatten,
    intact_steps,
    load,
    load_latest,
    pack,
    save,
    unpack,
)
from seedbed.ops.optimizers import OptimizerSettings, make_optimizer


def params(value: float = 1.0) -> dict[str, Any]:
    return {"torso": {"kernel": jnp.full((3, 2), value), "bias": jnp.zeros(2)}, "scale": jnp.float32(value)}


def optimizer_state() -> Any:
    tree = params()
    chain = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(1e-3))
    return chain.update(tree, chain.init(tree), tree)[1]


def save_some(root: Path, step: int, value: float = 1.0, keep: int = 3) -> Path:
    return save(root, step, Contents({"params": params(value)}, {"updates": step}), keep=keep)


def restored(checkpoint: Checkpoint) -> float:
    return float(checkpoint.tree("params", params())["scale"])


def names(root: Path) -> list[str]:
    return sorted(path.name for path in root.iterdir())


# -- what is saved comes back -----------------------------------------------------------------------------


def test_trees_blobs_and_meta_come_back_bit_for_bit(tmp_path: Path) -> None:
    trees = {
        "params": params(0.1),
        "optimizer": optimizer_state(),
        "key": jax.random.key_data(jax.random.key(3)),
        "mixed": (
            np.arange(6, dtype=np.float64).reshape(2, 3).T,  # not row-major
            [jnp.ones((2, 2), jnp.bfloat16), np.array([True, False]), None],
            {"empty": np.zeros((0, 4), np.uint8), "number": 7},
        ),
    }
    blobs = {"queue": [np.arange(n, dtype=np.int32) for n in range(12)], "nothing": []}
    meta = {"updates": 3, "random": {"state": 2**120 + 1}, "text": "ü"}
    path = save(tmp_path, 1200, Contents(trees, meta, blobs))
    assert path == tmp_path / "000000001200"

    checkpoint = load_latest(tmp_path)
    assert (checkpoint.step, checkpoint.meta, checkpoint.skipped) == (1200, meta, ())
    for name, tree in trees.items():
        back = checkpoint.tree(name, tree)
        assert jax.tree.structure(back) == jax.tree.structure(tree)
        assert digest(back) == digest(tree)
        jax.tree.map(np.testing.assert_array_equal, back, tree)
    assert [a.tolist() for a in checkpoint.blob("queue")] == [list(range(n)) for n in range(12)]
    assert checkpoint.blob("nothing") == []


class Some:
    """Pieces that say when they are made, and whether they were closed."""

    def __init__(self, count: int) -> None:
        self.count, self.made, self.closed = count, 0, 0

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for number in range(self.count):
            self.made += 1
            yield {"steps/frame": np.full((2, 3), number, np.uint8), "last": np.arange(number)}

    def close(self) -> None:
        self.closed += 1


def test_pieces_come_back_one_by_one_and_are_written_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[tuple[str, int]] = []
    save_file, some = safetensors.numpy.save_file, Some(3)

    def watched(arrays: Any, path: Path) -> None:
        written.append((path.name, some.made))
        save_file(arrays, path)

    monkeypatch.setattr(safetensors.numpy, "save_file", watched)
    contents = Contents({"params": params()}, {}, pieces={"replay": some})
    save(tmp_path, 1, contents)
    assert written == [
        *((f"replay.00000{number}.safetensors", number + 1) for number in range(3)),
        ("params.safetensors", 3),
    ]
    checkpoint = load_latest(tmp_path)
    read = list(checkpoint.pieces("replay"))
    assert [piece["steps/frame"].tolist() for piece in read] == [[[n] * 3] * 2 for n in range(3)]
    assert [piece["last"].size for piece in read] == [0, 1, 2]
    assert some.closed == 0
    contents.close()
    assert some.closed == 1
    with pytest.raises(CheckpointError, match=r"has no queue\.000000\.safetensors"):
        next(checkpoint.pieces("queue"))


@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_piece_that_is_lost_is_damage(tmp_path: Path, number: int) -> None:
    save_some(tmp_path, 1)
    path = save(tmp_path, 2, Contents({}, {}, pieces={"replay": Some(3)}))
    (path / f"replay.00000{number}.safetensors").unlink()
    assert load_latest(tmp_path).step == 1


def test_contents_that_are_detached_stay_as_they_were() -> None:
    mine, device = np.ones(3), jnp.ones(3)
    detached = Contents({"params": {"mine": mine, "device": device}}, {"updates": 1}).detached()
    mine[:] = 2
    kept = detached.trees["params"]
    assert kept["mine"].tolist() == [1, 1, 1]
    assert isinstance(kept["device"], np.ndarray) and not np.shares_memory(kept["device"], np.asarray(device))
    assert detached.meta == {"updates": 1}


def test_shapes_alone_are_template_enough(tmp_path: Path) -> None:
    save_some(tmp_path, 1, 2.5)
    like = jax.eval_shape(params)
    assert load_latest(tmp_path).tree("params", like)["scale"] == 2.5


def test_no_file_is_a_pickle(tmp_path: Path) -> None:
    for file in save(tmp_path, 1, Contents({"params": params()}, {}, {"b": [np.ones(3)]})).iterdir():
        json.loads(file.read_bytes()) if file.suffix == ".json" else safetensors.numpy.load_file(file)


@pytest.mark.parametrize(
    ("like", "message"),
    [
        ({"torso": {"kernel": jnp.ones((3, 2)), "bias": jnp.zeros(2)}}, "leaf 'scale' too many"),
        (params() | {"head": jnp.zeros(1)}, "no leaf 'head'"),
        (params() | {"scale": jnp.zeros(1)}, r"leaf 'scale' is float32\[\], needed is float32\[1\]"),
        (params() | {"scale": jnp.int32(0)}, r"leaf 'scale' is float32\[\], needed is int32\[\]"),
        (
            params() | {"torso": {"kernel": jnp.ones((2, 3)), "bias": jnp.zeros(2)}},
            r"leaf 'torso/kernel' is float32\[3, 2\], needed is float32\[2, 3\]",
        ),
    ],
)
def test_a_template_that_differs_names_the_leaf(tmp_path: Path, like: Any, message: str) -> None:
    save_some(tmp_path, 1)
    with pytest.raises(CheckpointError, match=message):
        load_latest(tmp_path).tree("params", like)


def test_a_schedule_of_0_1_that_counted_whole_updates_goes_on(tmp_path: Path) -> None:
    before = optax.adam(optax.linear_schedule(1e-3, 0.0, 100), 0.9, 0.999, 3.125e-7)
    state = before.update(params(), before.init(params()), params())[1]
    save(tmp_path, 1, Contents({"train": state}, {}), keep=3)
    now = make_optimizer(OptimizerSettings(learning_rate=1e-3, anneal_to_zero=True), 100)
    kept = load_latest(tmp_path).tree("train", now.init(params()))
    counts = [leaf for name, leaf in flatten(kept).items() if name.endswith("count")]
    assert sorted((count.dtype.name, float(count)) for count in counts) == [("float32", 1.0), ("int32", 1.0)]


def test_what_was_not_saved_is_an_error_that_says_what_was(tmp_path: Path) -> None:
    save_some(tmp_path, 1)
    with pytest.raises(CheckpointError, match=r"no replay\.blobs\.safetensors.*params\.safetensors"):
        load_latest(tmp_path).blob("replay")


@pytest.mark.parametrize(
    ("trees", "meta", "message"),
    [
        ({"key": jax.random.key(1)}, {}, "raw data"),
        ({"words": np.array(["a"])}, {}, "only numbers"),
        ({"wide": np.ones(2, np.complex256)}, {}, "cannot write the checkpoint"),
        ({"objects": np.array([object()])}, {}, "only numbers"),
        ({"../up": np.ones(1)}, {}, "cannot name a part"),
        ({}, {"x": float("nan")}, "finite JSON"),
        ({}, {"x": object()}, "finite JSON"),
        ({"twice": {"a/b": np.ones(1), "a": {"b": np.ones(1)}}}, {}, "both called 'a/b'"),
    ],
)
def test_what_cannot_be_kept_is_refused(tmp_path: Path, trees: Any, meta: Any, message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        save(tmp_path, 1, Contents(trees, meta))
    assert names(tmp_path) == []


def test_flat_names_are_key_paths() -> None:
    assert list(flatten(params())) == ["scale", "torso/bias", "torso/kernel"]
    assert "1/0/mu/torso/kernel" in flatten(optimizer_state())


def test_a_digest_sees_names_shapes_dtypes_and_values() -> None:
    base = {"a": np.zeros((2, 2), np.float32), "b": np.ones(1, np.int32)}
    others = [
        {"c": base["a"], "b": base["b"]},
        base | {"a": np.zeros((4,), np.float32)},
        base | {"b": np.ones(1, np.uint32)},
        base | {"a": np.full((2, 2), 1e-45, np.float32)},
    ]
    assert digest(base) == digest(dict(reversed(base.items()))) == digest(jax.tree.map(jnp.asarray, base))
    assert len({digest(tree) for tree in [base, *others]}) == 5
    # Written down: a digest may not change with versions, since runs are compared by it.
    assert digest(base).startswith("e3575533ba82b897")


# -- which are kept ---------------------------------------------------------------------------------------


def test_the_newest_ones_are_kept(tmp_path: Path) -> None:
    for step in (5, 10, 100, 1000):
        save_some(tmp_path, step, keep=2)
    assert names(tmp_path) == ["000000000100", "000000001000"]
    assert load_latest(tmp_path).step == 1000


def test_the_same_step_is_replaced(tmp_path: Path) -> None:
    save_some(tmp_path, 5, 1.0)
    save_some(tmp_path, 5, 2.0)
    assert names(tmp_path) == ["000000000005"]
    assert restored(load_latest(tmp_path)) == 2.0


def test_a_damaged_later_one_does_not_push_out_good_ones(tmp_path: Path) -> None:
    save_some(tmp_path, 1)
    (save_some(tmp_path, 9) / "params.safetensors").unlink()
    for step in (2, 3):
        save_some(tmp_path, step, keep=2)
    assert load_latest(tmp_path).step == 3
    assert "000000000002" in names(tmp_path)


def test_nothing_saved_is_an_error(tmp_path: Path) -> None:
    for root in (tmp_path, tmp_path / "missing"):
        with pytest.raises(CheckpointError, match="no checkpoint in"):
            load_latest(root)


# -- damage -----------------------------------------------------------------------------------------------


def truncate(path: Path) -> None:
    os.truncate(path / "params.safetensors", (path / "params.safetensors").stat().st_size - 1)


def flip(path: Path) -> None:
    data = bytearray((path / "params.safetensors").read_bytes())
    data[-1] ^= 1
    (path / "params.safetensors").write_bytes(data)


def lose_manifest(path: Path) -> None:
    (path / "manifest.json").unlink()


def lose_file(path: Path) -> None:
    (path / "params.safetensors").unlink()


def empty_manifest(path: Path) -> None:
    (path / "manifest.json").write_bytes(b"")


def other_manifest(path: Path) -> None:
    (path / "manifest.json").write_text("[1, 2]")


def counter_changed(path: Path) -> None:
    manifest = path / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"updates": 2', '"updates": 3'))


def empty_folder(path: Path) -> None:
    shutil.rmtree(path)
    path.mkdir()


def another_steps(path: Path) -> None:
    shutil.rmtree(path)
    shutil.copytree(path.with_name("000000000001"), path)


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (truncate, "params.safetensors has"),
        (flip, "SHA-256"),
        (lose_manifest, "manifest.json: No such file"),
        (lose_file, "params.safetensors: No such file"),
        (empty_manifest, "not a manifest"),
        (other_manifest, "not a manifest"),
        (counter_changed, "manifest.json was changed"),
        (empty_folder, "manifest.json: No such file"),
        (another_steps, "that of step 1"),
    ],
)
def test_a_damaged_one_falls_back_loudly(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: Any, reason: str
) -> None:
    save_some(tmp_path, 1, 1.0)
    damage(save_some(tmp_path, 2, 2.0))
    with caplog.at_level(logging.WARNING):
        checkpoint = load_latest(tmp_path)
    assert (checkpoint.step, restored(checkpoint)) == (1, 1.0)
    (line,) = checkpoint.skipped
    assert "000000000002 is damaged" in line
    assert reason in line
    assert line in caplog.text


def test_every_flipped_byte_is_noticed(tmp_path: Path) -> None:
    save_some(tmp_path, 1)
    path = save_some(tmp_path, 2)
    for file in sorted(path.iterdir()):
        whole = file.read_bytes()
        for position in range(0, len(whole), 7):
            data = bytearray(whole)
            data[position] ^= 0x10
            file.write_bytes(data)
            found = load_latest(tmp_path)
            # Blanks between the manifest's words mean nothing; whatever means something must be as it was.
            assert found.step == 1 or (found.meta == {"updates": 2} and file.name == "manifest.json")
        file.write_bytes(whole)
    assert load_latest(tmp_path).step == 2


def test_if_all_are_damaged_each_is_named(tmp_path: Path) -> None:
    for step in (1, 2):
        flip(save_some(tmp_path, step))
    with pytest.raises(CheckpointError, match=r"no checkpoint .* is intact: .*0002 .*; .*0001 "):
        load_latest(tmp_path)


def test_a_manifest_cannot_reach_out_of_its_folder(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("x")
    path = save_some(tmp_path / "c", 1)
    manifest = json.loads((path / "manifest.json").read_text())
    manifest.pop("sha256")
    manifest["files"]["../../secret"] = {"bytes": 1, "sha256": hashlib.sha256(b"x").hexdigest()}
    atomic_folder.seal(path, "manifest.json", manifest)
    with pytest.raises(CheckpointError, match=r"'../../secret' is no name of a file in this folder"):
        load_latest(tmp_path / "c")


def test_a_file_that_the_manifest_does_not_list_is_not_read(tmp_path: Path) -> None:
    path = save(tmp_path, 1, Contents({"params": params(1.0)}, {}, pieces={"replay": Some(2)}))
    shutil.copy(path / "replay.000001.safetensors", path / "replay.000002.safetensors")
    shutil.copy(path / "params.safetensors", path / "others.safetensors")
    checkpoint = load_latest(tmp_path)
    assert len(list(checkpoint.pieces("replay"))) == 2
    with pytest.raises(CheckpointError, match=r"has no others\.safetensors"):
        checkpoint.tree("others", params())
    assert len(zipfile.ZipFile(io.BytesIO(pack(checkpoint))).namelist()) == 4


@pytest.mark.parametrize("kind", PLACED)
@pytest.mark.parametrize("name", ["manifest.json", "params.safetensors"])
def test_what_is_no_file_is_damage_at_once(name: str, kind: str, tmp_path: Path) -> None:
    save_some(tmp_path, 1)
    path = save_some(tmp_path, 2)
    (path / name).rename(tmp_path / "kept")
    placed(kind, path / name)
    if kind == "link":
        shutil.copy(tmp_path / "kept", path / "aim")  # the right content, from elsewhere
    found = at_once(lambda: load_latest(tmp_path))
    assert found.step == 1 and re.search(PLACED[kind], found.skipped[0])


def test_a_checkpoint_that_is_a_link_is_not_read(tmp_path: Path) -> None:
    save_some(tmp_path / "theirs", 2)
    save_some(tmp_path / "mine", 1)
    (tmp_path / "mine/000000000002").symlink_to(tmp_path / "theirs/000000000002")
    assert load_latest(tmp_path / "mine").step == 1


@pytest.mark.parametrize(
    "leftover", [".writing-000000000002", ".pruned-000000000000", ".replaced-000000000001"]
)
def test_a_leftover_that_is_a_link_is_removed_and_its_aim_stays(leftover: str, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/file").touch()
    save_some(tmp_path / "c", 1)
    (tmp_path / "c" / leftover).symlink_to(tmp_path / "mine")
    save_some(tmp_path / "c", 2)
    assert names(tmp_path / "c") == ["000000000001", "000000000002"]
    assert (tmp_path / "mine/file").exists()


@pytest.mark.parametrize(
    "entry", [None, 3, {}, {"bytes": 1}, {"bytes": "1", "sha256": "0" * 64}, {"bytes": 1, "sha256": None}]
)
def test_an_entry_without_size_or_hash_is_damage(entry: Any, tmp_path: Path) -> None:
    path = save_some(tmp_path, 1)
    manifest = json.loads((path / "manifest.json").read_text())
    manifest.pop("sha256")
    (path / "more.safetensors").touch()
    manifest["files"]["more.safetensors"] = entry
    atomic_folder.seal(path, "manifest.json", manifest)
    with pytest.raises(CheckpointError, match=r"more\.safetensors has no (size|SHA-256) in the manifest"):
        load_latest(tmp_path)


def test_what_was_packed_may_not_become_any_size(tmp_path: Path) -> None:
    whole = io.BytesIO()
    with zipfile.ZipFile(whole, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("params.safetensors", bytes(1 << 24))
    with pytest.raises(CheckpointError, match="is compressed, and may become any size"):
        unpack(tmp_path, 1, whole.getvalue())
    assert not list(tmp_path.iterdir())


# -- writers that die -------------------------------------------------------------------------------------


def test_a_half_written_folder_is_ignored_and_then_removed(tmp_path: Path) -> None:
    save_some(tmp_path, 1)
    for leftover in (".writing-000000000002", ".pruned-000000000000"):
        shutil.copytree(tmp_path / "000000000001", tmp_path / leftover)
    assert load_latest(tmp_path).step == 1
    assert len(names(tmp_path)) == 3  # reading changes nothing
    save_some(tmp_path, 3)
    assert names(tmp_path) == ["000000000001", "000000000003"]


def test_a_death_in_mid_replacement_loses_nothing(tmp_path: Path) -> None:
    save_some(tmp_path, 1, 1.0)
    save_some(tmp_path, 2, 2.0).rename(tmp_path / ".replaced-000000000002")
    assert restored(load_latest(tmp_path)) == 2.0
    save_some(tmp_path, 3, 3.0)
    assert names(tmp_path) == ["000000000001", "000000000002", "000000000003"]


def test_a_kill_at_any_moment_leaves_an_intact_checkpoint(tmp_path: Path) -> None:
    program = (
        "import sys, pathlib, itertools, numpy as np\n"
        "from seedbed.learning.checkpoint import Contents, save\n"
        "for n in itertools.count(1):\n"
        "    trees = {'params': {'x': np.full(1 << 18, n)}}\n"
        "    save(pathlib.Path(sys.argv[1]), n // 2, Contents(trees, {'n': n}), keep=2)\n"
        "    print(n, flush=True)\n"
    )
    for after in (1, 4):
        child = subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE)
        assert child.stdout
        for _ in range(after):
            seen = int(child.stdout.readline())
        os.kill(child.pid, signal.SIGKILL)
        child.wait()
        child.stdout.close()
        checkpoint = load_latest(tmp_path)
        assert checkpoint.skipped == ()
        assert checkpoint.meta["n"] >= seen
        assert (checkpoint.tree("params", {"x": np.zeros(1 << 18, int)})["x"] == checkpoint.meta["n"]).all()
        shutil.rmtree(tmp_path)


# -- disks that are full ----------------------------------------------------------------------------------

ONE_LINE = r"^cannot write the checkpoint of step 2 to .*: the disk is full: .*newest one kept: 000000000001$"


FULL: list[Exception] = [
    OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)),
    OSError(errno.EDQUOT, os.strerror(errno.EDQUOT)),
    SafetensorError("I/O error: No space left on device (os error 28)"),
    SafetensorError("I/O error: Disk quota exceeded (os error 122)"),
]


@pytest.mark.parametrize("failure", FULL, ids=str)
@pytest.mark.parametrize("call", ["fsync", "rename", "write_text", "save_file"])
def test_a_disk_that_is_full_at_any_call_leaves_the_earlier_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, failure: Exception
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise failure

    save_some(tmp_path, 1)
    owner: Any = {"fsync": os, "rename": Path, "write_text": Path, "save_file": safetensors.numpy}[call]
    with monkeypatch.context() as patch:
        patch.setattr(owner, call, full)
        with pytest.raises(CheckpointError, match=ONE_LINE):
            save_some(tmp_path, 2)
    assert load_latest(tmp_path).step == 1
    save_some(tmp_path, 3)
    assert names(tmp_path) == ["000000000001", "000000000003"]


@pytest.fixture
def small_disk() -> Iterator[Path]:
    """A real file system of one megabyte, where this machine lets us mount one."""
    folder = Path(tempfile.mkdtemp())
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode:
        folder.rmdir()
        pytest.skip("cannot mount a small file system here; the injected failures above stand in for it")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)
        folder.rmdir()


def test_a_disk_that_is_really_full_leaves_the_earlier_ones(small_disk: Path) -> None:
    save_some(small_disk, 1)
    free = shutil.disk_usage(small_disk).free
    with pytest.raises(CheckpointError, match=ONE_LINE):
        save(small_disk, 2, Contents({"params": {"x": np.ones(1 << 18)}}, {}))
    assert names(small_disk) == ["000000000001"]
    assert shutil.disk_usage(small_disk).free == free
    assert load_latest(small_disk).step == 1
    save_some(small_disk, 3)
    assert load_latest(small_disk).step == 3


@pytest.mark.parametrize("written", [0, 2])
def test_a_disk_that_is_full_at_any_piece_leaves_the_earlier_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: int
) -> None:
    save_some(tmp_path, 1)
    save_file, some = safetensors.numpy.save_file, Some(3)

    def fills_up(arrays: Any, path: Path) -> None:
        if some.made > written:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        save_file(arrays, path)

    with monkeypatch.context() as patch:
        patch.setattr(safetensors.numpy, "save_file", fills_up)
        with pytest.raises(CheckpointError, match=ONE_LINE):
            save(tmp_path, 2, Contents({}, {}, pieces={"replay": some}))
    assert some.made == written + 1
    assert names(tmp_path) == ["000000000001"]


def test_a_disk_that_fails_leaves_the_earlier_ones_and_is_told_even_if_it_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    save_some(tmp_path, 1)
    with monkeypatch.context() as patch:
        patch.setattr(safetensors.numpy, "save_file", fail)
        with pytest.raises(
            CheckpointError, match=r"step 2 .*Input/output error; newest one kept: 000000000001"
        ):
            save_some(tmp_path, 2)
        patch.setattr(Path, "iterdir", fail)
        with pytest.raises(
            CheckpointError, match=r"Input/output error; newest one kept: unknown, since the folder"
        ):
            save_some(tmp_path, 2)
    assert load_latest(tmp_path).step == 1


def test_a_root_that_cannot_be_made_is_told_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="cannot write the checkpoint of step 1"):
        save_some(tmp_path / "file", 1)


# -- sent to another host ---------------------------------------------------------------------------------


def test_a_packed_checkpoint_is_the_same_elsewhere(tmp_path: Path) -> None:
    save_some(tmp_path / "here", 10, 2.5)
    there = unpack(tmp_path / "there", 10, pack(load(tmp_path / "here", 10)))
    assert restored(there) == 2.5
    assert there.meta == {"updates": 10}
    assert restored(load_latest(tmp_path / "there")) == 2.5


def test_what_was_packed_and_then_damaged_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    path = save_some(tmp_path / "here", 10)
    taken = load(tmp_path / "here", 10)
    file = path / "params.safetensors"
    damaged = bytearray(file.read_bytes())
    damaged[-1] ^= 1
    file.write_bytes(damaged)
    for content in (pack(taken), b"", b"PK nonsense"):
        with pytest.raises(CheckpointError):
            unpack(tmp_path / "there", 10, content)
        assert not intact_steps(tmp_path / "there")


def test_a_packed_checkpoint_writes_into_its_folder_only(tmp_path: Path) -> None:
    whole = io.BytesIO()
    with zipfile.ZipFile(whole, "w") as archive:
        archive.writestr("../../outside", "x")
    with pytest.raises(CheckpointError):
        unpack(tmp_path / "there", 10, whole.getvalue())
    assert not list(tmp_path.rglob("outside"))


def test_intact_steps_are_those_that_can_be_loaded(tmp_path: Path) -> None:
    assert intact_steps(tmp_path) == []
    for step in (10, 20, 30):
        path = save_some(tmp_path, step)
    (path / "manifest.json").write_text("{}")
    assert intact_steps(tmp_path) == [10, 20]
    assert load(tmp_path, 20).step == 20
    for step in (30, 40):
        with pytest.raises(CheckpointError):
            load(tmp_path, step)
