"""Folders of arrays that are there whole or not at all, and tell whether they are still as they were written.

An atomic folder holds safetensors files and, written last, a manifest in JSON: size and SHA-256 of every file, and one
of itself. It is written under another name, brought to the disk file by file, and then renamed. Checkpoints and data
sets are atomic folders.

A folder may be damaged, or a stranger's. So its files are the ones of the manifest, by plain names, each with its size
and its hash; a file that the manifest does not list is never read, and no link is followed.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
from numpy.typing import NDArray
from safetensors import SafetensorError

from seedbed import regular_files
from seedbed.errors import Damaged

_FULL = (errno.ENOSPC, errno.EDQUOT)
_NAME = re.compile(r"\w[\w.-]*", re.ASCII)
_SHA256 = re.compile(r"[0-9a-f]{64}")
WRITING_FAILS = (OSError, SafetensorError)
"""Exceptions that writing into a folder may raise; :func:`reason` puts them into words."""


def reason(error: Exception, advice: str) -> str:
    """Returns the reason why writing failed; with ``advice`` if the disk is full."""
    # Of an error of safetensors only the text is known.
    words = [f"os error {number})" for number in _FULL]
    full = error.errno in _FULL if isinstance(error, OSError) else any(map(str(error).__contains__, words))
    return f"the disk is full: {advice}" if full else str(error)


def write_arrays(path: Path, arrays: Mapping[str, NDArray[Any]]) -> dict[str, Any]:
    """Writes arrays of numbers as one safetensors file and waits until it is on the disk; returns its entry.

    Raises:
      OSError, SafetensorError: it cannot be written.
    """
    # Row-major: safetensors writes the bytes of any other order without a word, as if they were.
    safetensors.numpy.save_file({name: np.asarray(array, order="C") for name, array in arrays.items()}, path)
    sync(path)
    return entry_of(path)


def entry_of(path: Path) -> dict[str, Any]:
    """Returns the entry of a file in a manifest, its size and its hash; raises :class:`OSError`."""
    return {"bytes": path.stat().st_size, "sha256": file_digest(path)}


def entry(content: bytes) -> dict[str, Any]:
    """Returns the entry of a file with this content."""
    return {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}


def seal(folder: Path, manifest: str, body: Mapping[str, Any]) -> None:
    """Writes the manifest ``body``, whose ``"files"`` are the entries by name: now the folder is whole.

    Raises:
      TypeError, ValueError: the body is not made of plain finite JSON values.
      OSError: it cannot be written.
    """
    path = folder / manifest
    path.write_text(sealed(body))
    sync(path)
    sync(folder)


def sealed(body: Mapping[str, Any]) -> str:
    """Returns the text of a manifest, with a hash of itself.

    Raises:
      TypeError, ValueError: the body is not made of plain finite JSON values.
    """
    return json.dumps({**body, "sha256": _digest(body)}, indent=1, allow_nan=False)


def read(folder: Path, manifest: str) -> dict[str, Any]:
    """The manifest's body; raises :class:`Damaged` if it is not there or not as it was written."""
    try:
        return unsealed(regular_files.read(folder / manifest), manifest)
    except OSError as error:
        raise Damaged(f"{manifest}: {error.strerror}") from error


def unsealed(text: bytes, manifest: str) -> dict[str, Any]:
    """Returns the body of a manifest of that name; raises :class:`Damaged` if it is not as :func:`sealed` made it."""
    try:
        body = regular_files.object_of(text)
        if body.pop("sha256") != _digest(body):
            raise Damaged(f"{manifest} was changed")
        return body
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise Damaged(f"{manifest} is not a manifest ({error})") from error


def verify(folder: Path, files: Mapping[str, Mapping[str, Any]], *, contents: bool = True) -> None:
    """Compares files with their entries.

    Args:
      folder: folder of the files.
      files: entries of :func:`write_arrays`, by name, as a manifest has them: nothing is taken for granted.
      contents: whether to read them all; else only their sizes are compared.

    Raises:
      Damaged: an entry is none, or names a file that is not in this folder; or a file differs, or is none.
    """
    if not isinstance(files, Mapping):
        raise Damaged(f"its list of files is {files!r}")
    for name, entry in files.items():
        if not _NAME.fullmatch(name):
            raise Damaged(f"{name!r} is no name of a file in this folder")
        require_entry(name, entry)
        try:
            size = regular_files.require(folder / name).st_size
            if size != entry["bytes"]:
                raise Damaged(f"{name} has {size} bytes instead of {entry['bytes']}")
            if contents and file_digest(folder / name) != entry["sha256"]:
                raise Damaged(f"{name} does not have the SHA-256 that it was saved with")
        except OSError as error:
            raise Damaged(f"{name}: {error.strerror}") from error


def require_entry(name: str, entry: Any) -> None:
    """Raises :class:`Damaged` unless the entry of a file has its size and its hash."""
    if not isinstance(entry, Mapping) or type(size := entry.get("bytes")) is not int or size < 0:
        raise Damaged(f"{name} has no size in the manifest")
    if not (isinstance(entry.get("sha256"), str) and _SHA256.fullmatch(entry["sha256"])):
        raise Damaged(f"{name} has no SHA-256 in the manifest")


def sync(path: Path) -> None:
    """Waits until a file, or the list of names in a folder, is on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def file_digest(path: Path) -> str:
    """SHA-256 of a file, in hex."""
    with regular_files.open_to_read(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _digest(body: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True, allow_nan=False).encode()).hexdigest()
