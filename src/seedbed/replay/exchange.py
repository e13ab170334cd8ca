"""Data sets of Minari, made of ours and read into ours (extra ``minari``).

Minari keeps whole episodes; ours keep streams, from which unrolls are cut. So one of ours is written as its episodes
(an episode that the collecting did not see the end of is marked as truncated), and one of Minari's is read once into a
data set of one stream, its episodes one after the other, in this user's cache. Numbers stay as they are: pictures are
written without loss, and choices begin at 0.
"""

from __future__ import annotations

import hashlib
import json
import os
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from seedbed.envs.spaces import action_codec, observation_codec
from seedbed.errors import ConfigError, DatasetError, SeedbedError
from seedbed.installation import extra_line
from seedbed.replay.dataset import Dataset, Decided, write
from seedbed.types import ArraySpec, EnvSpec, TimeStep, Tree, leaves, rebuild

PREFIX = "minari:"
_EPISODES_A_WRITE = 64

Array = NDArray[Any]


# -- out ------------------------------------------------------------------------------------------------------


def require_name(name: str) -> None:
    """Requires that a data set of Minari can be written under a name.

    Raises:
      ConfigError: Minari is not installed.
      DatasetError: the name has not Minari's form, there is a data set of this name, or Minari's folder cannot be made.
    """
    library = _library()
    try:
        library.parse(name)
    except (ValueError, TypeError):  # the latter where there is no version
        raise DatasetError(
            f"{name!r} is no name of a Minari data set: give NAME-vN or GROUP/NAME-vN, of letters, digits, - and _ "
            "(two or more in GROUP), such as catch/expert-v0"
        ) from None
    try:
        folder = Path(library.root(name))
    except OSError as error:
        raise DatasetError(f"cannot write the Minari data set {name}: {error}") from error
    if folder.exists():
        raise DatasetError(
            f"a Minari data set {name} exists already ({folder}): give another name or version, or remove it with "
            f"minari delete {name}"
        )


def write_episodes(dataset: Dataset, name: str) -> Path:
    """Writes the episodes of a data set as one of Minari, in its folder of data sets (``MINARI_DATASETS_PATH``).

    Args:
      dataset: the data set.
      name: Minari's name for it, such as ``catch/expert-v0``.

    Returns:
      The folder.

    Raises:
      ConfigError: Minari is not installed.
      DatasetError: there is one of this name, the name is none, or it cannot be written.
    """
    require_name(name)
    library = _library()
    buffers: list[Any] = []
    made: Any = None
    try:
        for episode in _episodes(dataset):
            buffers.append(library.buffer(**episode))
            if len(buffers) == _EPISODES_A_WRITE:
                made, buffers = _put(library, made, dataset, name, buffers), []
        if buffers:
            _put(library, made, dataset, name, buffers)
    except SeedbedError:
        raise
    except Exception as error:
        raise DatasetError(f"cannot write the Minari data set {name}: {error}") from error
    return Path(library.root(name))


def _put(library: _Library, made: Any, dataset: Dataset, name: str, buffers: list[Any]) -> Any:
    """Adds episodes to a data set of Minari, which is created with the first of them."""
    if made is not None:
        made.update_dataset_from_buffer(buffers)
        return made
    about = {entry: dataset.about.get(entry) for entry in ("env", "env_options", "version", "greedy", "seed")}
    with warnings.catch_warnings():
        # Of an author and an environment that are not named: the description says where it is from.
        warnings.simplefilter("ignore", UserWarning)
        return library.create(
            name,
            buffers,
            observation_space=_space(dataset.spec.observation),
            action_space=_space(dataset.spec.action),
            algorithm_name=str(dataset.about.get("agent", "")),
            description=f"Written by Seedbed: {json.dumps(about)}",
            jpeg_encoding=False,
        )


def _episodes(dataset: Dataset) -> Iterator[dict[str, Any]]:
    """Yields each episode that has a transition, as the arguments of a buffer of Minari."""
    for stream in range(dataset.streams):
        begin = 0
        first = dataset.read(stream, 0, dataset.length)["first"]
        for end in [*(np.flatnonzero(first[1:]) + 1).tolist(), dataset.length]:
            steps = dataset.read(stream, begin, end)
            if end - begin > 1:
                truncated = steps["truncated"][1:].copy()
                truncated[-1] |= not steps["terminated"][-1]
                names = [path for path, _ in leaves({"observation": dataset.spec.observation})]
                shown = rebuild({"observation": dataset.spec.observation}, [steps[each] for each in names])
                yield {
                    "observations": shown["observation"],
                    "actions": steps["action"][:-1],
                    "rewards": steps["reward"][1:],
                    "terminations": steps["terminated"][1:],
                    "truncations": truncated,
                }
            begin = end


def _space(spec: Tree) -> Any:
    """Returns Gymnasium's space of a tree of array specs."""
    from gymnasium import spaces

    if isinstance(spec, Mapping):
        return spaces.Dict({key: _space(child) for key, child in spec.items()})
    assert isinstance(spec, ArraySpec)
    if not spec.num_values:
        low, high = (_cast(np.broadcast_to(bound, spec.shape), np.dtype(spec.dtype)) for bound in spec.bounds)
        return spaces.Box(low, high, spec.shape, np.dtype(spec.dtype).type)
    if spec.shape == ():
        return spaces.Discrete(spec.num_values[0])
    return spaces.MultiDiscrete(np.reshape(spec.num_values, spec.shape), dtype=np.dtype(spec.dtype).type)


def _cast(bound: Array, dtype: np.dtype[Any]) -> Array:
    """Returns bounds, float64 ``[...]``, in the dtype; beyond the range of an integer one, the end of the range."""
    if dtype.kind not in "iu":
        return bound.astype(dtype)
    least, greatest = np.iinfo(dtype).min, np.iinfo(dtype).max
    # As a float64, the greatest of 64 bits is one more than it is: only what is less can be cast.
    inside = np.where((bound > least) & (bound < greatest), bound, 0).astype(dtype)
    upwards = np.where(bound >= greatest, np.array(greatest, dtype), inside)
    return np.where(bound <= least, np.array(least, dtype), upwards)


# -- in -------------------------------------------------------------------------------------------------------


def located(dataset: str, spec: EnvSpec) -> Path:
    """Returns the folder of a data set; one of Minari is read into this user's cache, if it is not there.

    Args:
      dataset: a folder, or ``minari:NAME``, or ``minari:FOLDER`` of one of Minari.
      spec: spec of the environments that it has to be of.

    Raises:
      ConfigError: Minari is not installed.
      DatasetError: there is none of that name here, it is of another environment, or the cache cannot be written.
    """
    if not dataset.startswith(PREFIX):
        return Path(dataset)
    name = dataset.removeprefix(PREFIX)
    library = _library()
    places = (Path(name, "data"), Path(name), Path(library.root(name), "data"))
    data = next((folder for folder in places if _holds(folder)), None)
    if data is None:
        raise DatasetError(
            f"no Minari data set {name} here: download it with minari download {name}, or give minari:FOLDER"
        )
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = home / "seedbed" / "datasets" / _digest(data, spec)
    if not (folder / "dataset.json").exists():
        read_episodes(library.open(data), name, spec, folder)
    return folder


def _holds(folder: Path) -> bool:
    return (folder / "metadata.json").is_file()


def _digest(data: Path, spec: EnvSpec) -> str:
    """Returns a name for the contents of a folder, by their sizes and times, and for the spec they are read by."""
    files = sorted(file for file in data.rglob("*") if file.is_file())
    found = [[str(file.resolve()), file.stat().st_size, file.stat().st_mtime_ns] for file in files]
    return hashlib.sha256(json.dumps([found, spec.to_json()]).encode()).hexdigest()[:32]


def read_episodes(source: Any, name: str, spec: EnvSpec, folder: Path) -> Dataset:
    """Writes a data set of one stream with the episodes of a ``minari.MinariDataset``.

    Args:
      source: the data set of Minari.
      name: its name, for messages.
      spec: spec that its observations and actions have to fit.
      folder: folder to write.

    Raises:
      DatasetError: it does not fit, or cannot be read or written.
    """
    shown, convert = observation_codec(source.observation_space, name)
    acted, _ = action_codec(source.action_space, name)
    pairs = [
        *zip(_outlined(shown, "observation"), _outlined(spec.observation, "observation"), strict=False),
        (_outline(acted, "action"), _outline(spec.action, "action")),
    ]
    wrong = next((pair for pair in pairs if pair[0] != pair[1]), None)
    if wrong or len(leaves(shown)) != len(leaves(spec.observation)):
        found, needed = wrong or (f"{len(leaves(shown))} arrays", f"{len(leaves(spec.observation))}")
        raise DatasetError(f"the Minari data set {name} has {found}, and {spec.id} has {needed}")
    start = np.asarray(getattr(source.action_space, "start", 0))
    returns: list[float] = []

    def steps() -> Iterator[Decided]:
        for episode in source.iterate_episodes():
            returns.append(float(np.sum(episode.rewards)))
            yield from _stream(episode, convert, start, spec)

    def about() -> dict[str, Any]:
        return {
            "minari": name,
            "agent": str(source.storage.metadata.get("algorithm_name") or ""),
            "episodes": len(returns),
            "mean_return": float(np.mean(returns)) if returns else None,
        }

    return write(folder, spec, steps(), about)


def _outlined(tree: Tree, name: str) -> list[str]:
    return [_outline(leaf, path) for path, leaf in leaves(tree, name)]


def _outline(spec: ArraySpec, name: str) -> str:
    choices = f" of {list(spec.num_values)}" if spec.num_values else ""
    return f"{name} {spec.dtype}{list(spec.shape)}{choices}"


def _stream(episode: Any, convert: Any, start: Array, spec: EnvSpec) -> Iterator[Decided]:
    """Yields the steps of an episode, ``[1, ...]``: of its first observation, and of what followed each action."""
    shown = [np.asarray(leaf) for _, leaf in leaves(convert(episode.observations))]
    actions = (np.asarray(episode.actions) - start).astype(spec.action.dtype)
    terminated = np.asarray(episode.terminations, np.bool_)
    truncated = np.asarray(episode.truncations, np.bool_) & ~terminated
    truncated[-1:] |= ~terminated[-1:]  # the data set ends it there
    count = len(actions)
    for step in range(count + 1):
        before = slice(step - 1, step)
        none = np.zeros(1, np.bool_)
        timestep = TimeStep(
            rebuild(spec.observation, [leaf[step : step + 1] for leaf in shown]),
            np.asarray(episode.rewards[before], np.float32) if step else np.zeros(1, np.float32),
            terminated[before] if step else none,
            truncated[before] if step else none,
            ~none if step == 0 else none,
        )
        # The decision at the last observation goes nowhere.
        at = min(step, count - 1)
        yield Decided(timestep, actions[at : at + 1], {})


class _Library(NamedTuple):
    """The part of Minari that is used.

    Attributes:
      create: function that makes a data set of buffers.
      open: function that opens the one in a folder.
      buffer: class of an episode's buffer.
      root: function from a name to a folder.
      parse: function that takes a name apart, and raises ValueError or TypeError if it has not the form of one.
    """

    create: Any
    open: Any
    buffer: Any
    root: Any
    parse: Any


def _library() -> _Library:
    """Returns Minari; raises :class:`ConfigError` without it."""
    try:
        import minari
        from minari.data_collector import EpisodeBuffer
        from minari.dataset.minari_dataset import parse_dataset_id
        from minari.storage import get_dataset_path
    except ImportError as error:
        raise ConfigError(f"data sets of Minari need minari ({error}): {extra_line('minari')}") from error
    return _Library(
        minari.create_dataset_from_buffers,
        minari.MinariDataset,
        EpisodeBuffer,
        get_dataset_path,
        parse_dataset_id,
    )
