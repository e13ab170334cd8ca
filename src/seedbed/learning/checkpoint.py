"""Checkpoints: all state that the next update depends on, in a folder that is there whole or not at all.

::

    checkpoints/000001200000/
    ├── train.safetensors         one file a tree: its leaves by their paths
    ├── tables_0.safetensors
    ├── actions.blobs.safetensors one file a blob: a list of arrays
    ├── replay.000000.safetensors one file a piece of an object that is too large to be copied at once
    └── manifest.json             format, step, meta, size and SHA-256 of every file; written last

A checkpoint is written into a hidden folder, synced file by file, and then renamed: a listing of the folders
shows finished checkpoints only. Damage that comes later (a bad disk, a copy that was cut off) is found by the
hashes (the manifest has one of itself), and the checkpoint before is loaded instead.

Alternatives weighed: pickle (loading it runs the code that it contains), Orbax (arrays only, asynchronous
machinery of its own, and no hash to detect a flipped bit), one big file (a queue of unrolls is no tree).
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import itertools
import json
import logging
import re
import zipfile
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import safetensors.numpy
from numpy.typing import NDArray
from safetensors import SafetensorError

from seedbed import atomic_folder, regular_files
from seedbed.errors import CheckpointError, Damaged
from seedbed.types import Tree

FORMAT = 3
_MANIFEST = "manifest.json"
_FINISHED = re.compile(r"\d{12}")
_REPLACED = ".replaced-"
_LEFTOVERS = (".writing-", ".pruned-")
_NAME = re.compile(r"[a-z][a-z0-9_]*")
_log = logging.getLogger(__name__)

Array = NDArray[Any]


class Pieces(Protocol):
    """Arrays that are made while they are written, some at a time; can be iterated over once."""

    def __iter__(self) -> Iterator[Mapping[str, Array]]:
        """Yields the pieces, each a mapping of arrays by name."""

    def close(self) -> None:
        """Ends reading, so that the source need not keep the rest; safe to call twice."""


@dataclass(frozen=True)
class Contents:
    """The contents of a checkpoint.

    Attributes:
      trees: trees of arrays by name, of any structure; random keys as their raw data.
      meta: JSON values: counters, random states, settings.
      blobs: lists of arrays by name, for state without a fixed structure (queued unrolls).
      pieces: iterables of arrays by name, for state that is too large to be copied at once (a replay).
    """

    trees: Mapping[str, Tree]
    meta: Mapping[str, Any]
    blobs: Mapping[str, Sequence[Array]] = field(default_factory=dict)
    pieces: Mapping[str, Pieces] = field(default_factory=dict)

    def close(self) -> None:
        """Closes all pieces: nothing more will be read from them."""
        for each in self.pieces.values():
            each.close()

    def detached(self) -> Contents:
        """Returns a copy whose trees are NumPy arrays of its own, independent of the arrays on the devices."""
        import jax

        return replace(self, trees=jax.tree.map(np.array, jax.device_get(dict(self.trees))))


# -- trees ------------------------------------------------------------------------------------------------


def flatten(tree: Tree) -> dict[str, Any]:
    """Returns the leaves of any JAX pytree (dicts, tuples, optax states) by path, like ``"0/mu/kernel"``."""
    from jax import tree_util

    named = [
        (tree_util.keystr(path, simple=True, separator="/"), leaf)
        for path, leaf in tree_util.tree_flatten_with_path(tree)[0]
    ]
    flat = dict(named)
    if len(flat) != len(named):
        twice = next(name for name, _ in named if [other for other, _ in named].count(name) > 1)
        raise CheckpointError(f"two leaves of a tree are both called {twice!r}: rename one of the keys")
    return flat


def digest(tree: Tree) -> str:
    """Returns the SHA-256, in hex, of a tree's leaves (path, dtype, shape, bytes), in the order of their paths."""
    total = hashlib.sha256()
    for name, array in sorted(_arrays(flatten(tree)).items()):
        total.update(json.dumps([name, array.dtype.name, array.shape]).encode())
        total.update(array.reshape(-1).view(np.uint8))
    return total.hexdigest()


def _arrays(named: Mapping[str, Any]) -> dict[str, Array]:
    arrays = {}
    for name, leaf in named.items():
        try:
            arrays[name] = np.asarray(leaf, order="C")
        except TypeError as error:
            raise CheckpointError(
                f"leaf {name!r} is no array of numbers ({error}): pass its raw data"
            ) from error
        if arrays[name].dtype.hasobject or arrays[name].dtype.kind in "USM":
            raise CheckpointError(f"leaf {name!r} has dtype {arrays[name].dtype}: only numbers can be kept")
    return arrays


# -- writing ----------------------------------------------------------------------------------------------


def save(root: Path, step: int, contents: Contents, *, keep: int = 3, spared: Collection[int] = ()) -> Path:
    """Writes a checkpoint; when this returns it is complete on the disk and survives a power failure.

    One process writes at a time. A checkpoint of the same step is replaced.

    Args:
      root: the folder of all checkpoints of a run.
      step: number that orders the checkpoints (a run uses the version of the weights), 0 or more.
      contents: contents of the checkpoint.
      keep: number of checkpoints up to ``step`` that stay; older ones are removed.
      spared: steps of older ones that stay all the same, since they are being read.

    Returns:
      The checkpoint's folder.

    Raises:
      CheckpointError: the checkpoint cannot be written (full disk, a value that cannot be kept); earlier ones are
        intact.
    """
    if keep < 1 or not 0 <= step < 10**12:
        raise CheckpointError(f"keep={keep}, step={step}: keep must be at least 1, step between 0 and 10^12")
    files = {f"{_checked(name)}.safetensors": _arrays(flatten(tree)) for name, tree in contents.trees.items()}
    for name, arrays in contents.blobs.items():
        listed = {f"{index:09d}": array for index, array in enumerate(arrays)}
        files[f"{_checked(name)}.blobs.safetensors"] = _arrays(listed)
    # Pieces come first: other threads may be waiting for their source.
    streamed = itertools.chain(_piecewise(contents.pieces), files.items())
    final, draft = root / f"{step:012d}", root / f".writing-{step:012d}"
    with _told(root, step):
        root.mkdir(parents=True, exist_ok=True)
        _clean(root)
        try:
            _write(draft, streamed, step, contents.meta)
        except BaseException:
            regular_files.remove(draft)  # a full disk needs its space back
            raise
        _put(draft, final)
        _prune(root, step, keep, spared)
    return final


def _piecewise(pieces: Mapping[str, Pieces]) -> Iterator[tuple[str, dict[str, Array]]]:
    for name, each in pieces.items():
        for index, arrays in enumerate(each):
            yield _piece_file(_checked(name), index), _arrays(arrays)


def _piece_file(name: str, index: int) -> str:
    return f"{name}.{index:06d}.safetensors"


def _checked(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise CheckpointError(f"{name!r} cannot name a part of a checkpoint: use small letters, digits and _")
    return name


@contextmanager
def _told(root: Path, step: int) -> Iterator[None]:
    """Turns an error of the disk into a :class:`CheckpointError` of one line."""
    try:
        yield
    except atomic_folder.WRITING_FAILS as error:
        reason = atomic_folder.reason(error, "free space or pass another run folder")
        try:
            newest = next((path.name for _, path in _candidates(root)), "none")
        except OSError:
            newest = "unknown, since the folder cannot be read"
        raise CheckpointError(
            f"cannot write the checkpoint of step {step} to {root}: {reason}; newest one kept: {newest}"
        ) from error


def _write(
    draft: Path, files: Iterable[tuple[str, dict[str, Array]]], step: int, meta: Mapping[str, Any]
) -> None:
    draft.mkdir()
    entries = {name: atomic_folder.write_arrays(draft / name, arrays) for name, arrays in files}
    try:
        atomic_folder.seal(
            draft, _MANIFEST, {"format": FORMAT, "step": step, "meta": dict(meta), "files": entries}
        )
    except (TypeError, ValueError) as error:
        raise CheckpointError(
            f"the meta of a checkpoint must be plain finite JSON values: {error}"
        ) from error


def _put(draft: Path, final: Path) -> None:
    """Renames ``draft`` to ``final``; at every moment the old or the new checkpoint can be found."""
    replaced = final.with_name(_REPLACED + final.name)
    if final.exists():
        final.rename(replaced)
    draft.rename(final)
    atomic_folder.sync(final.parent)
    regular_files.remove(replaced)


def _clean(root: Path) -> None:
    """Removes leftovers of dead writers; a replaced checkpoint whose successor never came gets its name back."""
    for path in root.iterdir():
        if path.name.startswith(_LEFTOVERS):
            regular_files.remove(path)
        elif path.name.startswith(_REPLACED):
            final = path.with_name(path.name.removeprefix(_REPLACED))
            if final.exists():
                regular_files.remove(path)
            else:
                path.rename(final)


def _prune(root: Path, step: int, keep: int, spared: Collection[int]) -> None:
    # Later checkpoints stay and are not counted: a run that resumed from an earlier one found them damaged.
    for old, path in [found for found in _candidates(root) if found[0] <= step][keep:]:
        if old in spared:
            continue
        # Renamed first, so that a half-removed checkpoint is never taken for a damaged one.
        doomed = path.with_name(f".pruned-{path.name}")
        path.rename(doomed)
        regular_files.remove(doomed)


# -- reading ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint whose files have been compared with their hashes.

    Attributes:
      path: folder of the checkpoint.
      step: step under which it was saved.
      meta: the JSON values that were saved.
      files: names of the compared files; no other is read.
      skipped: reason for which each newer checkpoint was passed over, one line each; empty if this is the newest.
    """

    path: Path
    step: int
    meta: Mapping[str, Any] = field(repr=False)
    files: frozenset[str] = field(repr=False)
    skipped: tuple[str, ...] = ()

    def tree(self, name: str, like: Tree) -> Tree:
        """Loads the tree ``name`` in the structure of ``like``, with NumPy arrays as leaves.

        Args:
          name: name under which the tree was saved.
          like: a tree of arrays, of ``jax.ShapeDtypeStruct`` or of numbers with the expected structure, shapes and
            dtypes.

        Raises:
          CheckpointError: there is no such tree, or a leaf is missing, too many, or of other shape or dtype.
        """
        return self._rebuilt(self._load(f"{name}.safetensors"), like, self.path / name)

    def subtree(self, name: str, path: str, like: Tree) -> Tree:
        """Returns the part at ``path`` of the tree ``name``; see :meth:`tree`."""
        return self._rebuilt(self.leaves(name, path), like, self.path / name / path)

    def leaves(self, name: str, path: str) -> dict[str, Array]:
        """Returns the leaves at ``path`` of the tree ``name``, by their paths behind it."""
        kept = self._load(f"{name}.safetensors")
        below = f"{path}/"
        return {leaf.removeprefix(below): array for leaf, array in kept.items() if leaf.startswith(below)}

    def _rebuilt(self, named: dict[str, Array], like: Tree, where: Path) -> Tree:
        from jax import tree_util

        wanted = flatten(like)
        kept = _counts_as_now(named, wanted)
        _compare(where, {leaf: _form(array) for leaf, array in kept.items()}, wanted)
        return tree_util.tree_unflatten(tree_util.tree_structure(like), [kept[leaf] for leaf in wanted])

    def blob(self, name: str) -> list[Array]:
        """Loads the list of arrays ``name``; raises :class:`CheckpointError` if there is none of that name."""
        kept = self._load(f"{name}.blobs.safetensors")
        return [kept[index] for index in sorted(kept)]

    def pieces(self, name: str) -> Iterator[dict[str, Array]]:
        """Yields the pieces ``name``, each loaded on demand.

        Raises:
          CheckpointError: there are none of that name.
        """
        index = 0
        while index == 0 or _piece_file(name, index) in self.files:
            yield self._load(_piece_file(name, index))
            index += 1

    def _load(self, file: str) -> dict[str, Array]:
        path = self.path / file
        if file not in self.files:
            raise CheckpointError(
                f"checkpoint {self.path} has no {file}: it was saved with other settings "
                f"(it has {', '.join(sorted(self.files))})"
            )
        try:
            regular_files.require(path)
            return dict(safetensors.numpy.load_file(path))
        except (OSError, SafetensorError, KeyError, ValueError, TypeError) as error:
            raise CheckpointError(f"cannot read {path}: {error}") from error


def _form(leaf: Any) -> tuple[tuple[int, ...], str]:
    """Returns shape and dtype name of an array, of a ``jax.ShapeDtypeStruct``, or of a number."""
    described = leaf if hasattr(leaf, "shape") and hasattr(leaf, "dtype") else np.asarray(leaf)
    return tuple(described.shape), str(np.dtype(described.dtype))


def _counts_as_now(kept: dict[str, Array], wanted: Mapping[str, Any]) -> dict[str, Array]:
    """Converts counts of schedules to float32 where these are wanted: version 0.1 saved them as int32."""

    def whole(leaf: str) -> bool:
        was, now = kept[leaf].dtype.name, _form(wanted[leaf])[1]
        return leaf.endswith("/count") and (was, now) == ("int32", "float32")

    return kept | {leaf: kept[leaf].astype(np.float32) for leaf in kept.keys() & wanted.keys() if whole(leaf)}


def _compare(where: Path, kept: Mapping[str, tuple[tuple[int, ...], str]], wanted: Mapping[str, Any]) -> None:
    for leaf, expected in wanted.items():
        if leaf not in kept:
            raise CheckpointError(f"{where} has no leaf {leaf!r}: it was saved with another agent or network")
        if kept[leaf] != _form(expected):
            (shape, dtype), (shape2, dtype2) = kept[leaf], _form(expected)
            raise CheckpointError(
                f"{where}: leaf {leaf!r} is {dtype}{list(shape)}, needed is {dtype2}{list(shape2)}: "
                "it was saved with another agent or network"
            )
    for leaf in kept:
        if leaf not in wanted:
            raise CheckpointError(
                f"{where} has a leaf {leaf!r} too many: it was saved with another agent or network"
            )


def load_latest(root: Path) -> Checkpoint:
    """Loads the newest intact checkpoint; damaged ones are passed over, with a warning that gives the reason.

    Changes nothing on the disk, so that a run may be read while it goes on.

    Raises:
      CheckpointError: there is no checkpoint, or none is intact.
    """
    skipped: list[str] = []
    for step, path in _candidates(root):
        try:
            found = _verified(path, step)
        except CheckpointError as error:
            skipped.append(str(error))
            _log.warning("%s; trying the checkpoint before it", error)
            continue
        return replace(found, skipped=tuple(skipped))
    if skipped:
        raise CheckpointError(f"no checkpoint in {root} is intact: {'; '.join(skipped)}")
    raise CheckpointError(f"no checkpoint in {root}: the run stopped before the first one, start it again")


def intact_steps(root: Path) -> list[int]:
    """Returns the steps of all intact checkpoints, oldest first."""
    steps = []
    for step, path in _candidates(root):
        with contextlib.suppress(CheckpointError):
            _verified(path, step)
            steps.append(step)
    return sorted(steps)


def load(root: Path, step: int) -> Checkpoint:
    """Loads the checkpoint of that step; raises :class:`CheckpointError` if it is not there, or not intact."""
    for found, path in _candidates(root):
        if found == step:
            return _verified(path, step)
    raise CheckpointError(f"no checkpoint of step {step} in {root}")


def pack(checkpoint: Checkpoint) -> bytes:
    """Packs a checkpoint into a ZIP archive, to be sent to another host; see :func:`unpack`."""
    whole = io.BytesIO()
    with zipfile.ZipFile(whole, "w") as archive:
        for name in sorted({*checkpoint.files, _MANIFEST}):
            archive.write(checkpoint.path / name, name)
    return whole.getvalue()


def unpack(root: Path, step: int, content: bytes) -> Checkpoint:
    """Writes a checkpoint that :func:`pack` made into ``root``, and loads it.

    Raises:
      CheckpointError: it cannot be written, or is not intact.
    """
    final, draft = root / f"{step:012d}", root / f".writing-{step:012d}"
    with _told(root, step):
        root.mkdir(parents=True, exist_ok=True)
        _clean(root)
        try:
            draft.mkdir()
            _extract(content, draft)
            _verified(draft, step)
        except BaseException:
            regular_files.remove(draft)
            raise
        _put(draft, final)
    return load(root, step)


def _extract(content: bytes, folder: Path) -> None:
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            for each in archive.infolist():
                if each.compress_type != zipfile.ZIP_STORED:
                    raise zipfile.BadZipFile(f"{each.filename} is compressed, and may become any size")
                # Into this folder only, for any name in the archive.
                file = folder / (Path(each.filename).name or "_")
                file.write_bytes(archive.read(each))
                atomic_folder.sync(file)
    except (zipfile.BadZipFile, RuntimeError) as error:  # RuntimeError: it wants a password
        raise CheckpointError(f"a checkpoint came damaged from another host: {error}") from error
    atomic_folder.sync(folder)


def files_of(root: Path, step: int) -> dict[str, dict[str, Any]]:
    """Returns the entries of all files of a checkpoint by name, its manifest last; only sizes are compared.

    Raises:
      CheckpointError: there is no such checkpoint, or it is damaged.
    """
    path = root / f"{step:012d}"
    try:
        files = atomic_folder.read(path, _MANIFEST)["files"]
        atomic_folder.verify(path, files, contents=False)
        return {**files, _MANIFEST: atomic_folder.entry_of(path / _MANIFEST)}
    except (Damaged, KeyError, OSError) as error:
        raise CheckpointError(f"checkpoint {path} cannot be copied: {error}") from error


def any_saved(root: Path) -> bool:
    """Returns whether there is any checkpoint, intact or not."""
    return bool(_candidates(root))


def _candidates(root: Path) -> list[tuple[int, Path]]:
    """Lists the finished checkpoints, newest first, as ``(step, folder)``."""
    names = {path.name for path in root.iterdir()} if root.is_dir() else set()
    steps = sorted({name.removeprefix(_REPLACED) for name in names}, reverse=True)
    return [
        (int(step), root / (step if step in names else _REPLACED + step))
        for step in steps
        if _FINISHED.fullmatch(step)
    ]


def _verified(path: Path, step: int) -> Checkpoint:
    """Compares every file with the manifest and returns the checkpoint; raises :class:`CheckpointError`."""
    try:
        if path.is_symlink():
            raise Damaged("it is a link, and has to be a folder")
        manifest = atomic_folder.read(path, _MANIFEST)
        if manifest["format"] != FORMAT:
            raise CheckpointError(
                f"checkpoint {path} has format {manifest['format']}, this version of Seedbed reads {FORMAT}"
            )
        if manifest["step"] != step:
            raise Damaged(f"it is that of step {manifest['step']}")
        atomic_folder.verify(path, manifest["files"])
        return Checkpoint(path, step, dict(manifest["meta"]), frozenset(manifest["files"]))
    except Damaged as error:
        raise CheckpointError(f"checkpoint {path} is damaged: {error}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(
            f"checkpoint {path} is damaged: {_MANIFEST} is not a manifest ({error})"
        ) from error
