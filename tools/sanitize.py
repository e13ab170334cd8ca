"""Builds the extension with AddressSanitizer and UndefinedBehaviorSanitizer and runs its tests under them.

    .venv/bin/python tools/sanitize.py

Needs GCC with both (Debian: they come with g++). oneDNN's own machine code is not instrumented: what is checked is
what the extension hands it, and all that it does itself (``tests/nets/cpu/guarded.cc`` sees oneDNN's too). What was
built before is put back at the end.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from seedbed.nets.cpu import build, library

TESTS = ("tests/nets/cpu/test_against_xla.py", "tests/nets/cpu/test_refusals.py")
FLAGS = ("-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer")
ROOT = Path(__file__).parent.parent


def runtime(name: str) -> str:
    """The file of a sanitizer's runtime, which has to be loaded before Python's own libraries."""
    compiler = build.compiler()
    assert compiler is not None, "needs a C++ compiler"
    return subprocess.check_output([compiler, f"-print-file-name={name}"], text=True).strip()


def main() -> int:
    """The exit status of the tests."""
    # Ended from outside it puts back what was there, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    extension = build.extension()
    kept = extension.with_suffix(".kept")
    if extension.exists():
        extension.rename(kept)
    environment = {
        **os.environ,
        "LD_PRELOAD": f"{runtime('libasan.so')} {runtime('libubsan.so')}",
        # Python and XLA keep memory to the end; of what is watched, nothing may be wrong while it runs.
        "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=1",
        "UBSAN_OPTIONS": "print_stacktrace=1",
        "XLA_FLAGS": "--xla_backend_optimization_level=0",
        "JAX_PLATFORMS": "cpu",
    }
    try:
        build.compile_extension(extension, *FLAGS)
        library.forget_proofs()
        # The proof is the first to run it; were it ended there, all tests would be of XLA, and pass.
        program = "from seedbed.nets.cpu import library; found = library.find(); print(found, found.advice)"
        said = subprocess.run(
            [sys.executable, "-c", program], env=environment, stdout=subprocess.PIPE, text=True, check=True
        ).stdout
        if not said.startswith("oneDNN"):
            print(f"under sanitizers, convolutions are {said}")
            return 1
        # With what a test came to not hidden: a sanitizer's last words go to standard error.
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-s", *TESTS, *sys.argv[1:]]
        return subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode
    finally:
        extension.unlink(missing_ok=True)
        if kept.exists():
            kept.rename(extension)
        library.forget_proofs()


if __name__ == "__main__":
    sys.exit(main())
