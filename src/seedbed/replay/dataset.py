"""Data sets: the experience of one policy in one environment, kept on the disk, and read again as shuffled unrolls.

::

    DIR/
    ├── steps-000000.safetensors   the first steps of every stream
    ├── steps-000001.safetensors   the steps that follow
    └── dataset.json               its origin, size and SHA-256 of every file; written last

A *stream* is the experience of one environment without a gap. A file holds the same consecutive steps of all streams,
each array stream-major, ``[streams, steps, ...]``, in the dtype in which it travels: a time step, the action that was
decided there and, where the policy recorded it, the action's distribution. (The action of the very last step was never
taken.) No step is kept twice and nothing depends on a network: frames are not stacked, and unrolls are cut where they
are read, in whatever length an agent wants, also across files.

Files are mapped into memory and only what is sampled is read, so that a data set may be larger than memory. A stretch
of one stream is contiguous in its file, which is why the arrays are not time-major.

The folder is an atomic one (:mod:`seedbed.atomic_folder`), written under another name: a writer that is killed leaves
nothing that looks whole.
"""

from __future__ import annotations

import itertools
import os
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from seedbed import atomic_folder, regular_files
from seedbed.envs.rules import StepRules
from seedbed.errors import Damaged, DatasetError, SpecError
from seedbed.seeding import generator
from seedbed.types import DataPlan, EnvSpec, TimeStep, Tree, Unroll, leaves, map_leaves, rebuild

FORMAT = 1
MOST_BYTES = 64 << 20
"""Largest file of a data set, unless one step of all streams is larger."""
_MANIFEST = "dataset.json"
_RECORD = "record/"
_FILE = "steps-{:06d}.safetensors"
_LARGEST = 2**31 - 1

Array = NDArray[Any]


class Decided(NamedTuple):
    """One step of all streams, with the decision there.

    Attributes:
      timestep: ``[B, ...]``.
      action: ``[B, *action shape]``.
      record: dict of arrays ``[B, ...]``, the kept part of the policy's record; empty for nothing.
    """

    timestep: TimeStep
    action: Any
    record: Mapping[str, Any]


# -- writing ----------------------------------------------------------------------------------------------


def write(
    path: str | Path,
    spec: EnvSpec,
    steps: Iterable[Decided],
    about: Callable[[], Mapping[str, Any]],
    *,
    most_bytes: int = MOST_BYTES,
) -> Dataset:
    """Writes a data set; it exists completely, also after a power failure, when this returns.

    About twice ``most_bytes`` of memory are needed, however long it becomes.

    Args:
      path: its folder, which must not exist, or be empty.
      spec: spec of the environments.
      steps: consecutive steps, two or more, all of the same shapes; read once.
      about: called after the last step for further entries of the manifest, in JSON values.
      most_bytes: largest file.

    Raises:
      DatasetError: there is something already, another process is writing there, or the disk is full; earlier files
        are untouched, and nothing is left that looks whole.
    """
    final = Path(path)
    require_room(final)
    with _told(final), _draft(final) as draft:
        entries, streams, resets = {}, 0, 0
        for number, arrays in enumerate(_pieces(steps, most_bytes)):
            name = _FILE.format(number)
            streams, length = arrays["reward"].shape
            # No transition leads to the very first step.
            resets += int(np.count_nonzero(arrays["first"][:, 0 if number else 1 :]))
            entries[name] = {"steps": length, **atomic_folder.write_arrays(draft / name, arrays)}
        length = sum(entry["steps"] for entry in entries.values())
        if length < 2:
            raise DatasetError(f"{length} steps for the data set {final}: a transition needs 2")
        body = {
            "format": FORMAT,
            "env": spec.id,
            "spec": spec.to_json(),
            "streams": streams,
            "transitions": streams * (length - 1) - resets,
            "frames": (streams * (length - 1) - resets) * spec.frames_per_step,
            **about(),
            "files": entries,
        }
        try:
            atomic_folder.seal(draft, _MANIFEST, body)
        except (TypeError, ValueError) as error:
            raise DatasetError(
                f"what the data set {final} says of itself must be finite JSON values: {error}"
            ) from error
        draft.rename(final)
        atomic_folder.sync(final.parent)
    return Dataset.open(final, verify=False)


def require_room(path: Path) -> None:
    """Raises :class:`DatasetError` if a data set cannot be written to ``path`` because there is something already."""
    if path.is_dir() and not any(path.iterdir()):
        return
    if path.exists() or path.is_symlink():
        what = "holds a data set" if (path / _MANIFEST).exists() else "exists"
        raise DatasetError(f"{path} {what} already: remove it, or choose another folder with --out")


@contextmanager
def _told(path: Path) -> Iterator[None]:
    """Translates errors of the disk into one line."""
    try:
        yield
    except atomic_folder.WRITING_FAILS as error:
        reason = atomic_folder.reason(error, "free space, or choose another folder with --out")
        raise DatasetError(f"cannot write the data set {path}: {reason}; nothing was kept") from error


@contextmanager
def _draft(final: Path) -> Iterator[Path]:
    """An empty folder beside ``final`` that is this process's own; removed, if it is still there at the end."""
    final.parent.mkdir(parents=True, exist_ok=True)
    draft = final.with_name(f".writing-{final.name}")
    draft.mkdir(exist_ok=True)
    # Not through a link that a stranger has put there: what is in it is removed.
    handle = os.open(draft, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        _hold(handle, draft)
        for leftover in draft.iterdir():  # of a writer that was killed
            regular_files.remove(leftover)
        try:
            yield draft
        finally:
            regular_files.remove(draft)  # what a full disk needs most is its space back
    finally:
        os.close(handle)


def _hold(handle: int, draft: Path) -> None:
    busy = DatasetError(
        f"another process is writing to {draft}: wait for it, or choose another folder with --out"
    )
    try:
        regular_files.lock(handle)
    except BlockingIOError as error:
        raise busy from error
    # It may have been finished, and got its final name, just before it could be held.
    if not draft.exists() or not os.path.samestat(os.fstat(handle), draft.stat()):
        raise busy


def _pieces(steps: Iterable[Decided], most_bytes: int) -> Iterator[dict[str, Array]]:
    """Consecutive steps by name, stream-major ``[B, L, ...]``; arrays that are written over by the next piece."""
    held: dict[str, Array] = {}
    length = count = 0
    for step in steps:
        named = _named(step)
        if not held:
            length = max(1, most_bytes // sum(array.nbytes for array in named.values()))
            held = {name: np.empty((len(x), length, *x.shape[1:]), x.dtype) for name, x in named.items()}
        for name, array in named.items():
            held[name][:, count] = array
        count += 1
        if count == length:
            yield held
            count = 0
    if count:
        yield {name: array[:, :count] for name, array in held.items()}


def _named(step: Decided) -> dict[str, Array]:
    tree = {**step.timestep._asdict(), "action": step.action, "record": dict(step.record)}
    return {path: np.asarray(array) for path, array in leaves(tree)}


# -- reading ----------------------------------------------------------------------------------------------


class Dataset:
    """A data set on the disk.

    Attributes:
      path: its folder.
      spec: spec of its environment.
      about: everything that its manifest says but for the files: ``env``, ``env_options``, ``agent``, ``run``,
        ``version``, ``greedy``, ``seed``, ``frames``, ``transitions``, ``episodes``, ``mean_return``, ….
      streams: number of streams.
      length: steps in each of them, one more than transitions.
    """

    def __init__(self, path: Path, manifest: Mapping[str, Any]) -> None:
        self.path = path
        self.about = {name: value for name, value in manifest.items() if name != "files"}
        self.spec = EnvSpec.from_json(manifest["spec"])
        self.streams = _whole(manifest, "streams")
        _whole({"version": 0, **manifest}, "version", 0)
        self._files = sorted(manifest["files"])
        if self._files != [_FILE.format(number) for number in range(len(self._files) or 1)]:
            raise Damaged(
                f"its files are {', '.join(self._files) or 'none'}, and not {_FILE.format(0)} and on"
            )
        self._lengths = [_whole(manifest["files"][name], "steps") for name in self._files]
        self._ends = list(itertools.accumulate(self._lengths))
        self.length: int = self._ends[-1]
        self._opened: dict[int, Any] = {}
        self._rules = StepRules(self.spec)
        self._arrays = _arrays_of(self.spec)

    @staticmethod
    def open(path: str | Path, *, verify: bool = True) -> Dataset:
        """Opens a data set.

        Args:
          path: its folder.
          verify: whether to read every file and compare its SHA-256; otherwise only sizes are compared, which is
            enough where another process has just verified it.

        Raises:
          DatasetError: there is none, it is damaged, or it is of a format of another version.
        """
        folder = Path(path)
        if not os.path.lexists(folder / _MANIFEST):
            raise DatasetError(
                f"{folder} is not a data set (no {_MANIFEST} in it): make one with seedbed collect RUN --out {folder}"
            )
        try:
            manifest = atomic_folder.read(folder, _MANIFEST)
            if manifest["format"] != FORMAT:
                raise DatasetError(
                    f"the data set {folder} has format {manifest['format']}, this version of Seedbed reads {FORMAT}"
                )
            atomic_folder.verify(folder, manifest["files"], contents=verify)
            dataset = Dataset(folder, manifest)
            for number in range(len(dataset._files) if verify else 0):
                dataset._file(number)
            return dataset
        except Damaged as error:
            raise _damaged(folder, error) from error
        except (LookupError, TypeError, ValueError, AttributeError, RecursionError, SpecError) as error:
            raise _damaged(folder, f"{_MANIFEST} is not that of a data set ({error})") from error

    def require(self, spec: EnvSpec) -> None:
        """Raises :class:`DatasetError` unless the data set is of environments of ``spec``."""
        mine, theirs = self.spec.to_json(), _as_kept(spec, self.spec).to_json()
        for name in ("id", "observation", "action", "frame_stack", "frames_per_step"):
            if mine[name] != theirs[name]:
                raise DatasetError(
                    f"the data set {self.path} is of another environment: its {name} is {mine[name]}, that of the run "
                    f"is {theirs[name]}; give the environment and the options that it was collected with "
                    f"({self.spec.id}, {self.about.get('env_options') or 'no options'}), or another --dataset"
                )

    def shard(self, index: int, count: int) -> Shard:
        """The part of replica ``index`` of ``count``, which count from 0.

        Raises:
          DatasetError: there is no such replica.
        """
        if not 0 <= index < count:
            raise DatasetError(f"shard {index} of {count}: shards count from 0")
        return Shard(self, index, count)

    def read(self, stream: int, start: int, stop: int) -> dict[str, Array]:
        """The steps ``start … stop-1`` of a stream by name, ``[stop - start, ...]``, in memory of their own.

        Raises:
          DatasetError: a file cannot be read.
        """
        parts: list[dict[str, Array]] = []
        for number in range(bisect_right(self._ends, start), len(self._files)):
            begin = self._ends[number - 1] if number else 0
            if begin >= stop:
                break
            parts.append(
                self._read(number, stream, max(start - begin, 0), min(stop, self._ends[number]) - begin)
            )
        if len(parts) == 1:
            return parts[0]
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

    def _read(self, number: int, stream: int, start: int, stop: int) -> dict[str, Array]:
        file = self._file(number)
        try:
            return {name: file.get_slice(name)[stream, start:stop] for name in file.keys()}  # noqa: SIM118
        except (OSError, SafetensorError) as error:
            raise _damaged(self.path, f"{self._files[number]}: {error}") from error

    def _file(self, number: int) -> Any:
        """A file, mapped into memory, that has the arrays of the manifest's spec; raises :class:`DatasetError`."""
        if number not in self._opened:
            name = self._files[number]
            try:
                regular_files.require(self.path / name)
                file = safe_open(self.path / name, framework="numpy")
                self._require_arrays(file, (self.streams, self._lengths[number]))
            except (OSError, SafetensorError, LookupError, ValueError, TypeError, Damaged) as error:
                raise _damaged(self.path, f"{name}: {error}") from error
            self._opened[number] = file
        return self._opened[number]

    def _require_arrays(self, file: Any, steps: tuple[int, int]) -> None:
        """Raises :class:`Damaged` unless a file holds so many streams and steps, and the arrays of the spec."""
        names = set(file.keys())
        if missing := sorted(self._arrays.keys() - names):
            raise Damaged(f"it has no {missing[0]}")
        for name in sorted(names):
            piece = file.get_slice(name)
            shape, dtype = tuple(piece.get_shape()), piece[:0].dtype
            if name.startswith(_RECORD):
                wanted = (*steps, *shape[2:]), dtype
            elif name in self._arrays:
                inner, wanted_dtype = self._arrays[name]
                wanted = (*steps, *inner), np.dtype(wanted_dtype)
            else:
                raise Damaged(f"{name} is nothing that an environment shows")
            if (shape, dtype) != wanted:
                raise Damaged(f"{name} is {dtype}{list(shape)} instead of {wanted[1]}{list(wanted[0])}")

    def unroll(self, columns: Sequence[tuple[int, int]], length: int, state: Tree) -> Unroll:
        """Returns an unroll ``[length + 1, B, ...]`` of pieces of streams.

        Args:
          columns: B pairs of a stream and of the step with which its piece begins.
          length: transitions.
          state: ``[B, ...]``, the agent's state of the unroll.

        Raises:
          DatasetError: a file cannot be read, or a number in it breaks :mod:`seedbed.envs.rules`.
        """
        parts = [self.read(stream, start, start + length + 1) for stream, start in columns]
        whole = {name: np.stack([part[name] for part in parts], axis=1) for name in parts[0]}
        observation = {"observation": self.spec.observation}
        steps = TimeStep(
            rebuild(observation, [whole[path] for path, _ in leaves(observation)])["observation"],
            *(whole[name] for name in TimeStep._fields[1:]),
        )
        self._require_rules(steps, columns)
        return Unroll(
            steps,
            whole["action"][:-1],
            {name.removeprefix(_RECORD): x[:-1] for name, x in whole.items() if name.startswith(_RECORD)},
            state,
            np.full((length, len(columns)), self.about.get("version", 0), np.int32),
        )

    def _require_rules(self, steps: TimeStep, columns: Sequence[tuple[int, int]]) -> None:
        if (found := self._rules.breach(steps)) is None:
            return
        field, breach = found
        stream, start = columns[breach.at[1]]
        raise DatasetError(
            f"the data set {self.path} cannot be learned from: the {field} of step {start + breach.at[0]} of stream "
            f"{stream} {breach.text}; collect it again"
        )


def _as_kept(spec: EnvSpec, kept: EnvSpec) -> EnvSpec:
    """``spec``, without the bounds of observations of which ``kept`` has none: version 0.1 did not keep them."""
    before = dict(leaves(kept.observation))
    bare = [
        replace(leaf, low=(), high=())
        if path in before and not (before[path].low or before[path].high)
        else leaf
        for path, leaf in leaves(spec.observation)
    ]
    return replace(spec, observation=rebuild(spec.observation, bare))


def _whole(values: Mapping[str, Any], name: str, least: int = 1) -> int:
    """A number of a manifest; raises :class:`Damaged` if it is none, or out of range."""
    value = values.get(name)
    if type(value) is not int or not least <= value <= _LARGEST:
        raise Damaged(f"{name} is {value!r} in {_MANIFEST}")
    return value


def _arrays_of(spec: EnvSpec) -> dict[str, tuple[tuple[int, ...], str]]:
    """Shape and dtype of one step of every array that a file has, by name."""
    shown = leaves({"observation": spec.observation, "action": spec.action})
    told = {"reward": "float32", "terminated": "bool", "truncated": "bool", "first": "bool"}
    return {path: (leaf.shape, leaf.dtype) for path, leaf in shown} | {
        name: ((), dtype) for name, dtype in told.items()
    }


def _damaged(path: Path, reason: object) -> DatasetError:
    return DatasetError(f"the data set {path} is damaged: {reason}; copy it again, or collect a new one")


@dataclass(frozen=True)
class Shard:
    """A part of a data set: a stretch of time of all streams, so that few files are read for it.

    Attributes:
      dataset: the whole data set.
      index, count: number of the part, and number of parts.
    """

    dataset: Dataset
    index: int
    count: int

    def unrolls(self, plan: DataPlan) -> range:
        """Returns the numbers of its unrolls, as ``plan`` wants them.

        Unroll ``i * streams + b`` trains on the T transitions of stream ``b`` from ``overlap + i * T`` on; the rest of
        a stream, fewer than T, is in none. The shards share all of them, and differ by one at most.

        Raises:
          DatasetError: the data set has fewer unrolls than there are shards.
        """
        usable = self.dataset.length - 1 - plan.overlap
        total = max(usable // plan.unroll_length, 0) * self.dataset.streams
        if total < self.count:
            raise DatasetError(
                f"the data set {self.dataset.path} has {total} unrolls of {plan.trained_length} transitions (in "
                f"{self.dataset.streams} streams of {self.dataset.length - 1}), and {self.count} replicas need one "
                "each or more: collect more frames, or use a smaller --unroll-length"
            )
        first, last = (total * index // self.count for index in (self.index, self.index + 1))
        return range(first, last)

    def batches(
        self,
        plan: DataPlan,
        initial_state: Callable[[int], Tree],
        *,
        seed: int,
        position: Mapping[str, Any] | None = None,
    ) -> Batches:
        """Shuffled batches without end; see :class:`Batches`."""
        return Batches(self, plan, initial_state(plan.batch_size), seed, position)


class Batches(Iterator[Unroll]):
    """Batches ``[overlap + T + 1, B, ...]`` of a shard: all of its unrolls in a random order, then in another one, ….

    The orders follow from seed and shard alone. Where an order ends within a batch, the next one fills it up.

    Args:
      shard: part of a data set.
      plan: the agent's plan: T, overlap and B.
      state: ``[B, ...]``, given to every unroll: a data set has no state of the agent that reads it.
      seed: the root of the orders.
      position: earlier value of :attr:`position` to go on from; None: the beginning.

    Raises:
      DatasetError: there are too few unrolls, or the position is not one of this shard cut as planned.
    """

    def __init__(
        self, shard: Shard, plan: DataPlan, state: Tree, seed: int, position: Mapping[str, Any] | None = None
    ) -> None:
        self._shard = shard
        self._plan = plan
        self._state = map_leaves(np.asarray, state)
        self._seed = seed
        self._unrolls = shard.unrolls(plan)
        self._epoch = self._taken = 0
        if position is not None:
            self._go_to(position)
        self._order = self._shuffled()

    def _go_to(self, position: Mapping[str, Any]) -> None:
        here = [self._unrolls.start, self._unrolls.stop]
        if position["unrolls"] != here or not 0 <= position["taken"] <= len(self._unrolls):
            raise DatasetError(
                f"cannot go on at {dict(position)} in unrolls {here} of the data set {self._shard.dataset.path}: "
                "resume with the data set, the unroll length and the number of replicas that the run had"
            )
        self._epoch, self._taken = position["epoch"], position["taken"]

    @property
    def position(self) -> dict[str, Any]:
        """The present position, in JSON values: the order, the number of unrolls taken of it, and the unrolls."""
        here = [self._unrolls.start, self._unrolls.stop]
        return {"epoch": self._epoch, "taken": self._taken, "unrolls": here}

    def _shuffled(self) -> Array:
        shard = self._shard
        random = generator(self._seed, f"order of shard {shard.index} of {shard.count}", self._epoch)
        return self._unrolls.start + random.permutation(len(self._unrolls))

    def __next__(self) -> Unroll:
        columns = [self._column() for _ in range(self._plan.batch_size)]
        return self._shard.dataset.unroll(columns, self._plan.trained_length, self._state)

    def _column(self) -> tuple[int, int]:
        """The stream and the first step of the next unroll."""
        if self._taken == len(self._order):
            self._epoch, self._taken = self._epoch + 1, 0
            self._order = self._shuffled()
        number = int(self._order[self._taken])
        self._taken += 1
        return (
            number % self._shard.dataset.streams,
            number // self._shard.dataset.streams * self._plan.unroll_length,
        )
