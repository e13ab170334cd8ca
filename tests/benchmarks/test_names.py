"""Names of the scripts in ``benchmarks``."""

import re
import sys
from pathlib import Path

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
