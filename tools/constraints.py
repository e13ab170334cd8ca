"""Writes constraints.txt: the exact versions that Seedbed is installed with on each Python.

    .venv/bin/python tools/constraints.py PYTHON3.11 PYTHON3.12 PYTHON3.13

Each interpreter resolves the project with all its extras in a clean venv, without installing anything. Where
they come to different versions, the lines carry markers.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
EXTRAS = (
    "test,check,docs,cuda,envpool,vizdoom,mujoco,box2d,onednn,gymnax,brax,craftax,pettingzoo,pgx,jaxmarl,muzero,onnx,"
    "minari,ray,sweep,watch,wandb,mlflow,trackio"
)
HEADER = """\
# The versions that Seedbed is installed with and tested on. Written by tools/constraints.py; do not edit.
"""

Versions = dict[str, str]


def resolve(python: str) -> tuple[str, Versions]:
    """Returns ``python``'s version (``"3.12"``) and what a clean venv of it would install."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        subprocess.run([python, "-m", "venv", f"{folder}/venv"], check=True)
        pip = [f"{folder}/venv/bin/python", "-m", "pip", "install", "--quiet", "--dry-run"]
        subprocess.run([*pip, "--report", str(report), f"{ROOT}[{EXTRAS}]"], check=True)
        found = json.loads(report.read_text())
    versions = {_normal(item["metadata"]["name"]): item["metadata"]["version"] for item in found["install"]}
    versions.pop("seedbed")
    return ".".join(found["environment"]["python_full_version"].split(".")[:2]), versions


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def lines(found: dict[str, Versions]) -> list[str]:
    """The lines of the file, from what each Python version came to."""
    pythons = sorted(found, key=lambda python: int(python.split(".")[1]))
    result = []
    for name in sorted(set().union(*found.values())):
        groups: dict[str, list[str]] = {}
        for python in pythons:
            if name in found[python]:
                groups.setdefault(found[python][name], []).append(python)
        result += [f"{name}=={version}{_marker(group, pythons)}" for version, group in groups.items()]
    return result


def _marker(group: list[str], pythons: list[str]) -> str:
    """Picks the Python versions of ``group``; open at both ends, so that others take the nearest."""
    first, last = pythons.index(group[0]), pythons.index(group[-1])
    parts = [f"python_version >= '{group[0]}'"] if first else []
    if last + 1 < len(pythons):
        parts.append(f"python_version < '{pythons[last + 1]}'")
    return f"; {' and '.join(parts)}" if parts else ""


def main() -> None:
    found = dict(resolve(python) for python in sys.argv[1:])
    if not found:
        sys.exit(
            "name the interpreters to resolve for: tools/constraints.py PYTHON3.11 PYTHON3.12 PYTHON3.13"
        )
    (ROOT / "constraints.txt").write_text(HEADER + "\n".join(lines(found)) + "\n")


if __name__ == "__main__":
    main()
