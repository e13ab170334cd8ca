"""``python -m seedbed.nets.cpu.build``: compiles the extension, and proves it on this machine.

It needs a C++ compiler, and the headers that jaxlib brings. It is compiled for the processor that it is compiled on.
The file stands beside its source, and its name has digests of the processor, of jaxlib's version and of the source:
an extension that was built from or for others is not opened, but asked for anew.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from importlib import metadata
from pathlib import Path

from seedbed.errors import ConfigError

_FOLDER = Path(__file__).parent
SOURCE = _FOLDER / "handlers.cc"
SOURCES = (SOURCE, *sorted(_FOLDER.glob("*.h")))
COMMAND = f"{sys.executable or 'python'} -m seedbed.nets.cpu.build"
_COMPILERS = ("c++", "g++", "clang++")
_FLAGS = ("-std=c++17", "-O3", "-g0", "-march=native", "-Wall", "-Wextra", "-Wno-psabi")
_SECONDS = 600.0


def processor() -> str:
    """The kind of this machine's processor, with all that it can do."""
    said = {platform.machine()}
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        said |= {line for line in lines if line.startswith(("model", "flags", "Features"))}
    return "\n".join(sorted(said))


def extension() -> Path:
    """Returns the path of the extension, once it is built, for this machine's processor, this source and jaxlib."""
    source = [*_FLAGS, *(file.read_text(encoding="utf-8") for file in SOURCES)]
    return _FOLDER / f"{_of_this_machine()}-{_digest(*source)}.so"


def _of_this_machine() -> str:
    """Returns the prefix of the names of extensions for this processor and this jaxlib."""
    return f"_handlers-{_digest(processor())}-{_digest(metadata.version('jaxlib'))}"


def _digest(*texts: str) -> str:
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:12]


def compiler() -> str | None:
    """The C++ compiler of this machine: ``CXX``, else the first of the usual ones; None if there is none."""
    named = os.environ.get("CXX")
    return next(filter(None, map(shutil.which, [named] if named else _COMPILERS)), None)


def compile_extension(to: Path, *flags: str) -> None:
    """Compiles the extension; arguments and errors as for :func:`compile_source`."""
    import jax

    compile_source(SOURCE, to, "-shared", "-fPIC", "-isystem", jax.ffi.include_dir(), *flags)


def compile_source(source: Path, to: Path, *flags: str) -> None:
    """Compiles C++ for this machine's processor, whole or not at all.

    Args:
      source: file to compile; it may include the extension's headers.
      to: file to make.
      *flags: further flags of the compiler.

    Raises:
      ConfigError: there is no compiler, or it refused; the message has its output.
    """
    found = compiler()
    if found is None:
        named = os.environ.get("CXX")
        what = (
            f"CXX is {named!r}, which is no command"
            if named
            else f"no C++ compiler ({', '.join(_COMPILERS)})"
        )
        raise ConfigError(f"{what}: install one, as g++, to convolve by oneDNN, and then {COMMAND}")
    with tempfile.TemporaryDirectory(dir=to.parent) as scratch:
        draft = Path(scratch) / to.name
        command = [found, *_FLAGS, f"-I{_FOLDER}", *flags, str(source), "-o", str(draft), "-ldl", "-pthread"]
        try:
            done = subprocess.run(
                command,
                capture_output=True,
                encoding="utf-8",
                errors="replace",
                check=False,
                timeout=_SECONDS,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise ConfigError(f"{found} did not compile {source.name}: {error}") from error
        if done.returncode:
            raise ConfigError(f"{found} did not compile {source.name}: {done.stderr.strip()}")
        draft.replace(to)


def main() -> None:
    """Builds the extension if it is missing, removes older ones, and prints the way of convolutions from now on."""
    from seedbed.nets.cpu import library

    wanted = extension()
    try:
        if os.access(_FOLDER, os.W_OK):
            # To be without a oneDNN comes first: whoever cannot have one needs no compiler.
            if library.file() is not None and not wanted.exists():
                compile_extension(wanted)
            # Those of other processors and other versions of jaxlib may be in use where this folder is shared.
            for other in _FOLDER.glob(f"{_of_this_machine()}-*"):
                if other != wanted:
                    other.unlink(missing_ok=True)
            library.forget_proofs()
        elif not wanted.exists():
            raise ConfigError(f"nothing can be written to {_FOLDER}: have its owner call {COMMAND}")
        found = library.find()
    except (ConfigError, OSError) as error:
        print(f"Convolutions stay XLA's own: {error}")  # noqa: T201
        return
    print(f"Convolutions on this CPU: {found}" + (f" ({found.advice})" if found.advice else ""))  # noqa: T201


if __name__ == "__main__":
    main()
