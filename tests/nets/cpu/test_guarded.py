"""The extension's arithmetic between pages that nobody may touch, and under sanitizers."""

import subprocess
from pathlib import Path

import pytest
from harness import thorough

from seedbed.nets.cpu import build, library

pytestmark = pytest.mark.skipif(not library.find().dtypes, reason="needs the extension")

SOURCE = Path(__file__).parent / "guarded.cc"


def run(tmp_path, layers, *flags):
    program = tmp_path / "guarded"
    build.compile_source(SOURCE, program, *flags)
    onednn, narrow = library.file(), [x for x in library.find().dtypes if x == "bfloat16"]
    return subprocess.run(
        [program, onednn, "0", str(layers), *narrow], capture_output=True, text=True, check=False
    )


def test_no_number_too_many_is_touched_and_all_are_right(tmp_path):
    done = run(tmp_path, 500)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 differ" in done.stdout


@pytest.mark.parametrize(("sanitizer", "layers"), thorough(("address,undefined", 300), ("thread", 60)))
def test_sanitizers_find_nothing(tmp_path, sanitizer, layers):
    done = run(tmp_path, layers, "-O1", "-g", f"-fsanitize={sanitizer}", "-fno-sanitize-recover=all")
    assert done.returncode == 0, done.stdout + done.stderr
    assert not done.stderr
