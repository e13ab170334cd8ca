"""The wheel, made of the sdist, is enough: it trains in an environment and a folder that know of no clone."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from email import message_from_string
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = (
    "pyproject.toml",
    "README.md",
    "LICENSE",
    "CHANGELOG.md",
    "constraints.txt",
    "MANIFEST.in",
    "clients",
    "src",
)
BUILD = "import sys; from setuptools import build_meta; print(getattr(build_meta, sys.argv[1])(sys.argv[2]))"


def built(kind: str, folder: Path, to: Path) -> Path:
    """The sdist or the wheel of a source folder; what is installed here builds it."""
    command = [sys.executable, "-c", BUILD, f"build_{kind}", str(to)]
    done = subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True)
    return to / done.stdout.splitlines()[-1]


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An unpacked sdist of a copy of the sources, without what was built in them."""
    place = tmp_path_factory.mktemp("sdist")
    (place / "clone").mkdir()
    for name in SOURCE:
        if (ROOT / name).is_dir():
            unwanted = shutil.ignore_patterns("__pycache__", "*.egg-info", "_handlers-*")
            shutil.copytree(ROOT / name, place / "clone" / name, ignore=unwanted)
        else:
            shutil.copy(ROOT / name, place / "clone" / name)
    with tarfile.open(built("sdist", place / "clone", place)) as archive:
        archive.extractall(place / "unpacked", filter="data")
    (unpacked,) = (place / "unpacked").iterdir()
    return unpacked


@pytest.fixture(scope="module")
def wheel(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built("wheel", sdist, tmp_path_factory.mktemp("wheel"))


def test_the_sdist_has_the_clients_of_the_wire(sdist: Path) -> None:
    def files(folder: Path) -> set[Path]:
        return {path.relative_to(folder) for path in (folder / "clients").rglob("*") if path.is_file()}

    assert files(sdist) == files(ROOT) != set()


def test_it_has_all_that_is_read_or_compiled(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = {*archive.namelist()}
        (metadata,) = (archive.read(name).decode() for name in names if name.endswith("dist-info/METADATA"))
        (scripts,) = (archive.read(name).decode() for name in names if name.endswith("entry_points.txt"))
    here = {
        str(path.relative_to(ROOT / "src"))
        for path in (ROOT / "src" / "seedbed").rglob("*")
        if path.is_file() and path.suffix != ".pyc" and not path.name.startswith("_handlers-")
    }
    assert here - names == set() and "seedbed/py.typed" in here
    assert any(name.endswith("dist-info/licenses/LICENSE") for name in names)
    assert "seedbed = seedbed.cli.main:main" in scripts
    fields = message_from_string(metadata)
    assert fields["License-Expression"] == "Apache-2.0"
    assert {"Documentation", "Source", "Changelog", "Issues"} <= {
        url.partition(",")[0] for url in fields.get_all("Project-URL") or []
    }


@pytest.mark.slow
def test_it_trains_elsewhere_and_advises_what_works_there(wheel: Path, tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
    bin_, (packages,) = tmp_path / "venv" / "bin", (tmp_path / "venv" / "lib").glob("python*/site-packages")
    # Dependencies are found beside it; a clone that is installed there is not, as a file of its own names it.
    (packages / "beside.pth").write_text(sysconfig.get_path("purelib") + "\n")
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}

    def ran(*words: str | Path) -> str:
        done = subprocess.run(
            words, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    ran(bin_ / "python", "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", wheel)
    assert str(packages) in ran(bin_ / "python", "-c", "import seedbed; print(seedbed.__file__)")
    said = ran(bin_ / "seedbed", "train", "CartPole-v1", "--frames", "2000", "--run-dir", "run", "--no-video")
    assert "stopped: 2000 frames spent" in said
    program = (
        "from seedbed.installation import clone, extra_line, whole_line\n"
        "from seedbed.cli.bench import BenchFlags, _results\n"
        "print(clone(), _results(BenchFlags(), 'bench'), extra_line('envpool'), whole_line())"
    )
    advice = ran(bin_ / "python", "-c", program).strip()
    assert advice == "None None pip install 'seedbed[envpool]' pip install seedbed"
    assert {path.name for path in tmp_path.iterdir()} == {"venv", "run"}
