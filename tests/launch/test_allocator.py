"""Commands that train start themselves anew with other settings of the allocator, before they take time for more."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from seedbed.launch.allocator import with_tuning, without_tuning


def started(program: str, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A program, as the user starts it: nothing is said of the allocator but by ``environment``."""
    plain = {name: value for name, value in os.environ.items() if name != "SEEDBED_ALLOCATOR"}
    command = [sys.executable, "-c", program, *words]
    return subprocess.run(command, env={**plain, **environment}, capture_output=True, text=True, check=False)


RESTARTING = """
import os
from seedbed.launch.allocator import restart_tuned
print("begins", flush=True)
restart_tuned()
print(os.environ["SEEDBED_ALLOCATOR"], os.environ.get("GLIBC_TUNABLES"), os.environ.get("MALLOC_TOP_PAD_"))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's settings")
@pytest.mark.parametrize(
    ("environment", "says"),
    [
        ({}, ["begins", "begins", "tuned glibc.malloc.hugetlb=1 268435456"]),
        ({"MALLOC_TOP_PAD_": "7"}, ["begins", "begins", "tuned glibc.malloc.hugetlb=1 7"]),
        ({"SEEDBED_ALLOCATOR": "off"}, ["begins", "off None None"]),
    ],
)
def test_a_program_starts_anew_once_unless_it_is_told_not_to(
    environment: dict[str, str], says: list[str]
) -> None:
    done = started(RESTARTING, **environment)
    assert (done.returncode, done.stdout.splitlines()) == (0, says), done.stderr


COMMAND = """
import os, sys
from seedbed.cli.main import main
os.execve = lambda *_: sys.exit(43 if "jax" in sys.modules else 42)
main([*sys.argv[1:]])
"""


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's settings")
@pytest.mark.parametrize("words", [("train", "no:World"), ("resume", "run"), ("bench", "no:World")])
def test_a_command_starts_anew_before_it_imports_jax(words: tuple[str, ...]) -> None:
    """The import takes seconds, and would be made twice."""
    done = started(COMMAND, *words)
    assert done.returncode == 42, done.stderr


def test_what_does_not_train_is_started_without_the_settings() -> None:
    outside = {"HOME": "/home/me", "MALLOC_TOP_PAD_": "7"}
    assert without_tuning(with_tuning(outside)) == outside
    told = {**outside, "SEEDBED_ALLOCATOR": "off"}
    assert with_tuning(told) == told
