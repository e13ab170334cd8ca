"""What scripts in ``benchmarks`` and those of their peers take from each other's environments: nothing."""

import importlib
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "benchmarks"


def test_no_script_hides_a_package_that_something_here_imports_or_advises_to_install() -> None:
    """A script's folder comes first where Python looks for modules, also in the environments that it makes."""
    read = [*FOLDER.rglob("*.py"), *ROOT.glob("docs/**/*.md"), ROOT / "pyproject.toml"]
    advised = [words for file in read for words in re.findall(r"pip install ([^\n`]+)", file.read_text())]
    required = re.findall(
        r'"([\w.-]+)(?:\[[\w,]+\])?(?:[<>=;!~].*?)?"', (ROOT / "pyproject.toml").read_text()
    )
    packages = {
        name.lower().replace("-", "_") for name in [*re.findall(r"[\w-]+", " ".join(advised)), *required]
    }
    assert {"minatar", "bsuite", "stable_baselines3", "numpy", "ray", "ale_py"} <= packages, (
        "none of them was found"
    )
    scripts = {file.stem for file in FOLDER.rglob("*.py")}
    assert scripts and not scripts & (packages | sys.stdlib_module_names)


def test_a_peer_is_given_no_path_of_packages_and_all_the_rest(
    results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    side_by_side = importlib.import_module("side_by_side")
    said = "import json, os, sys; print(json.dumps([os.environ.get('PYTHONPATH'), os.environ['MORE'], sys.argv[1:]]))"
    (tmp_path / "peer.py").write_text(said)
    monkeypatch.setattr(side_by_side, "PEERS", tmp_path)
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    monkeypatch.setenv("MORE", "stays")
    assert side_by_side.peers_line(sys.executable, "peer.py", "--seed", "1") == [
        None,
        "stays",
        ["--seed", "1"],
    ]
