"""Every script in examples/ runs, as its first line says."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest
from harness import shortened

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.py"))
FIRST = [path for path in EXAMPLES if path.stem in ("train", "own_environment")]


def test_examples_say_how_to_run_them() -> None:
    assert EXAMPLES
    for path in EXAMPLES:
        text = ast.get_docstring(ast.parse(path.read_text()))
        assert text, path
        assert f"python examples/{path.name}" in text


@pytest.mark.slow
@pytest.mark.parametrize("path", shortened(EXAMPLES, FIRST), ids=lambda path: path.stem)
def test_example(path: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(path), str(tmp_path / "run")],
        cwd=tmp_path,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "run" / "summary.json").exists()
    assert "mean return" in done.stdout
