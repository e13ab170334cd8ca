"""Environments of other packages train by the commands of ``docs/other-packages.md``; asked for by ``-m installs``."""

from __future__ import annotations

import json
import math
import os
import re
import shlex
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "other-packages.md").read_text()
(FACTORIES,) = re.findall(r"<!-- file: worlds.py -->\n```python\n(.*?)^```$", PAGE, re.M | re.S)
ROWS = re.findall(r"^\| `([^`]+)` \| `seedbed (train [^`]+)` \|", PAGE, re.M)
FOR_A_MOMENT = (
    "--preset none --agent ppo --unroll-length 16 --batch-size 4 --minibatches 2 --reuse 1 --frames 128 "
    "--transport inproc --actors 1 --envs-per-actor 4 --env-timeout 600 --no-video --run-dir run"
)


@pytest.fixture
def fresh(tmp_path: Path) -> Path:
    """A Python of a new virtual environment that finds what is installed here, and installs beside it."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
    here = {sysconfig.get_path(kind) for kind in ("purelib", "platlib")}
    (there,) = (tmp_path / "venv" / "lib").glob("python*/site-packages")
    (there / "here.pth").write_text("".join(f"import site; site.addsitedir({path!r})\n" for path in here))
    return tmp_path / "venv" / "bin" / "python"


def test_the_page_has_ten_packages() -> None:
    assert len({package for package, _ in ROWS}) >= 10


@pytest.mark.installs
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(("package", "command"), ROWS, ids=[package for package, _ in ROWS])
def test_a_package_alone_trains(package: str, command: str, fresh: Path, tmp_path: Path) -> None:
    install = [fresh, "-m", "pip", "install", "--quiet", "-c", ROOT / "constraints.txt", package]
    subprocess.run(install, check=True)
    (tmp_path / "worlds.py").write_text(FACTORIES)
    words = [*shlex.split(command), *shlex.split(FOR_A_MOMENT)]
    done = subprocess.run(
        [fresh, "-m", "seedbed", *words],
        cwd=tmp_path,
        env={**os.environ, "SEEDBED_ALLOCATOR": "off"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["agent_steps"] >= 128 and summary["weights_version"] >= 4
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert all(math.isfinite(row["loss/policy_loss"]) for row in rows if "loss/policy_loss" in row)
