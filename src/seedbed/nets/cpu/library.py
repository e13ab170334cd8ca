"""Finds oneDNN and the extension, proves once per machine that they compute the same as XLA, and opens them.

oneDNN is opened while the program runs, through its public C interface: the wheel ``onednn-cpu-gomp`` brings it, or
``SEEDBED_ONEDNN`` names a file (any ``libdnnl.so.3``). ``SEEDBED_CONVOLUTIONS=xla`` does without.

Code that could end the process (an instruction that the processor lacks, a library under a false name) runs first in a
process of its own, :mod:`~seedbed.nets.cpu.proof`. Its result is kept beside the extension for as long as processor,
library and extension stay the same.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from seedbed.errors import ConfigError
from seedbed.installation import extra_line
from seedbed.nets.cpu import build

SWITCH, LIBRARY = "SEEDBED_CONVOLUTIONS", "SEEDBED_ONEDNN"
"""Environment variables: ``auto`` or ``xla``, and the path of a oneDNN of one's own."""
_WHEEL, _FILE = "onednn-cpu-gomp", "libdnnl.so.3"
_FAULTS = tuple(-fault for fault in (signal.SIGILL, signal.SIGSEGV, signal.SIGFPE))
"""Signals of faults of the machine; a process is aborted for lack of room, too, and that may pass."""
_PROOF_SECONDS = 120.0
DIFFERS = 3
"""Status of a proof that has come to other numbers than XLA."""
TARGETS = (
    "seedbed_convolve",
    "seedbed_convolution_by_images",
    "seedbed_convolution_by_kernel",
    "seedbed_max_pool",
    "seedbed_max_pool_keeping",
    "seedbed_max_pool_by_images",
)

_opening = threading.Lock()


@dataclass(frozen=True)
class Found:
    """The library of convolutions on this machine's CPU.

    Attributes:
      version: version of oneDNN; empty where it is XLA itself.
      dtypes: names of the dtypes that oneDNN convolves; none where it is XLA.
      advice: reason for XLA, and a remedy; empty where it is oneDNN.
    """

    version: str = ""
    dtypes: tuple[str, ...] = ()
    advice: str = ""

    def __str__(self) -> str:
        return f"oneDNN {self.version}, {' and '.join(self.dtypes)}" if self.dtypes else "XLA"


_portable: ContextVar[bool] = ContextVar("portable", default=False)


@contextlib.contextmanager
def portable() -> Iterator[None]:
    """Functions that are traced meanwhile are for other machines and programs: they do without the extension."""
    token = _portable.set(True)
    try:
        yield
    finally:
        _portable.reset(token)


def is_portable() -> bool:
    """Returns whether a function that is traced now is for other machines and programs."""
    return _portable.get()


def find() -> Found:
    """Returns the library of convolutions on this machine's CPU; opens it the first time.

    Raises:
      ConfigError: ``SEEDBED_CONVOLUTIONS`` is neither ``auto`` nor ``xla``, or ``SEEDBED_ONEDNN`` names no file.
    """
    if is_portable():
        return Found(advice="the function is for other machines")
    switch = os.environ.get(SWITCH, "auto")
    if switch not in ("auto", "xla"):
        raise ConfigError(f"{SWITCH} is {switch!r}, and has to be auto or xla")
    if switch == "xla":
        return Found(advice=f"{SWITCH} is xla")
    with _opening:
        return _found()


@functools.cache
def _found() -> Found:
    if sys.platform != "linux":
        return Found(advice="oneDNN is opened on Linux only")
    try:
        extension, library = build.extension(), file()
    except (OSError, metadata.PackageNotFoundError) as error:
        return Found(advice=f"what the extension is built of cannot be read: {error}")
    if library is None:
        return Found(
            advice=f"no oneDNN: {extra_line('onednn')}, where it has a wheel for this machine, and then {build.COMMAND}"
        )
    if not extension.exists():
        return Found(advice=f"the extension is not built: {build.COMMAND}")
    proof = _proof(extension, library)
    if "why" in proof:
        return Found(advice=proof["why"])
    try:
        open_library(extension, library)
    except OSError as error:
        return Found(advice=str(error))
    return Found(proof["version"], tuple(proof["dtypes"]))


def file() -> Path | None:
    """The file of oneDNN; None if there is none."""
    if named := os.environ.get(LIBRARY):
        if not Path(named).is_file():
            raise ConfigError(
                f"{LIBRARY} is {named!r}, and there is no such file: give the path of a {_FILE}"
            )
        return Path(named).resolve()
    with contextlib.suppress(metadata.PackageNotFoundError):
        for entry in metadata.files(_WHEEL) or ():
            path = Path(str(entry.locate()))
            if entry.name == _FILE and path.is_file():
                return path.resolve()
    return None


def open_library(extension: Path, library: Path) -> ctypes.CDLL:
    """Opens both and makes the extension's functions known to XLA; raises :class:`OSError` with why it cannot."""
    import jax

    opened = ctypes.CDLL(str(extension))
    opened.seedbed_open.restype = ctypes.c_char_p
    why = opened.seedbed_open(os.fsencode(library))
    if why is not None:
        raise OSError(why.decode(errors="replace"))
    for target in TARGETS:
        jax.ffi.register_ffi_target(target, jax.ffi.pycapsule(getattr(opened, target)), platform="cpu")
    return opened


def _proof(extension: Path, library: Path) -> dict[str, Any]:
    """Returns the result of :mod:`~seedbed.nets.cpu.proof` on this processor; kept, where that can be written."""
    kept = extension.with_suffix(f".{_digest_of(library)}.json")
    with contextlib.suppress(OSError, ValueError):
        known: Any = json.loads(kept.read_text())
        if isinstance(known, dict) and ("why" in known or {"version", "dtypes"} <= known.keys()):
            return known
    proof, lasts = _prove(extension, library)
    if lasts:
        with contextlib.suppress(OSError):
            draft = kept.with_suffix(f".{os.getpid()}")
            draft.write_text(json.dumps(proof))
            draft.replace(kept)
    return proof


def _digest_of(library: Path) -> str:
    """A digest of all that a proof depends on beside the extension, whose name has the processor in it."""
    file = library.stat()
    settings = sorted(x for x in os.environ.items() if x[0].startswith(("ONEDNN_", "DNNL_")))
    proven_by = [(build.SOURCE.parent / name).read_bytes() for name in ("operations.py", "proof.py")]
    parts = (str(library), file.st_size, file.st_mtime_ns, settings, proven_by)
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:12]


def _prove(extension: Path, library: Path) -> tuple[dict[str, Any], bool]:
    """Runs the proof in a process of its own.

    Returns:
      ``{"version", "dtypes"}`` or ``{"why"}``, and whether it would come to the same again: a time that ran out, or a
      library that another one lacks, is no property of the machine.
    """
    command = [sys.executable, "-P", "-m", "seedbed.nets.cpu.proof", str(extension), str(library)]
    ours = {"JAX_PLATFORMS": "cpu", "JAX_ENABLE_X64": "0", "XLA_FLAGS": "", SWITCH: "xla"}
    try:
        done = subprocess.run(
            command,
            env={**os.environ, **ours},
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            check=False,
            timeout=_PROOF_SECONDS,
        )
        if done.returncode == 0:
            return json.loads(done.stdout.splitlines()[-1]), True
        said = (done.stderr.strip().splitlines() or [""])[-1]
        why = f"oneDNN's proof on this machine ended with status {done.returncode}: {said}"
        return {"why": f"{why} ({build.COMMAND} tries it anew)"}, done.returncode in (DIFFERS, *_FAULTS)
    except (OSError, ValueError, IndexError, subprocess.TimeoutExpired) as error:
        return {"why": f"oneDNN's proof on this machine did not end: {error}"}, False


def forget_proofs() -> None:
    """Has the next process that asks prove everything anew."""
    extension = build.extension()
    for kept in extension.parent.glob(f"{extension.stem}.*.json"):
        kept.unlink(missing_ok=True)
    _found.cache_clear()
