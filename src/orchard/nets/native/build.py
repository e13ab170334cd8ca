"""``python -m orchard.nets.native.build``: compiles the extension, and proves it on this machine.

It needs a C++ compiler, and the headers that jaxlib brings. The file stands beside its source and carries their digest
and jaxlib's version in its name: what was built of others is not opened, but asked for anew.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from importlib import metadata
from pathlib import Path

from orchard.errors import ConfigError

_FOLDER = Path(__file__).parent
SOURCE = _FOLDER / "layers.cc"
SOURCES = (SOURCE, *sorted(_FOLDER.glob("*.h")))
COMMAND = f"{Path(sys.executable).name} -m orchard.nets.native.build"
_COMPILERS = ("c++", "g++", "clang++")
_SECONDS = 600.0


def extension() -> Path:
    """Where the extension is, once it is built, for this source, this jaxlib and this machine's kind."""
    digest = hashlib.sha256(f"{metadata.version('jaxlib')} {platform.machine()}".encode())
    for source in SOURCES:
        digest.update(source.read_bytes())
    return _FOLDER / f"_layers-{digest.hexdigest()[:16]}.so"


def compiler() -> str | None:
    """The C++ compiler of this machine: ``CXX``, else the first of the usual ones; None if there is none."""
    return next(filter(None, map(shutil.which, (os.environ.get("CXX", ""), *_COMPILERS))), None)


def compile_extension(to: Path, *flags: str) -> None:
    """Compiles the extension, whole or not at all.

    Args:
      to: the file.
      *flags: more of the compiler's.

    Raises:
      ConfigError: there is no compiler, or it refused; the message has what it said.
    """
    import jax

    found = compiler()
    if found is None:
        raise ConfigError(
            f"no C++ compiler (looked for CXX, {', '.join(_COMPILERS)}): install one, as g++, to convolve by oneDNN"
        )
    with tempfile.TemporaryDirectory(dir=to.parent) as scratch:
        draft = Path(scratch) / to.name
        command = [found, "-std=c++17", "-O3", "-g0", "-shared", "-fPIC", "-Wall", "-Wextra", *flags]
        command += ["-isystem", jax.ffi.include_dir(), str(SOURCE), "-o", str(draft), "-ldl", "-pthread"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_SECONDS)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise ConfigError(f"{found} did not compile {SOURCE.name}: {error}") from error
        if done.returncode:
            raise ConfigError(f"{found} did not compile {SOURCE.name}: {done.stderr.strip()}")
        draft.replace(to)


def main() -> None:
    """Builds what is not built, forgets what was built of other sources, and says what convolves from now on."""
    from orchard.nets.native import library

    wanted = extension()
    if not wanted.exists():
        try:
            compile_extension(wanted)
        except (ConfigError, OSError) as error:
            print(f"Convolutions stay XLA's own: {error}")  # noqa: T201
            return
    for other in _FOLDER.glob("_layers-*.so"):
        if other != wanted:
            other.unlink()
    library.forget_proofs()
    found = library.find()
    print(f"Convolutions on this CPU: {found}" + (f" ({found.advice})" if found.advice else ""))  # noqa: T201


if __name__ == "__main__":
    main()
