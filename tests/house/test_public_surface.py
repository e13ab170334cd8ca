"""The names that other people's code may rely on: declared, documented, typed, and cheap to import."""

import ast
import importlib
import inspect
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from seedbed.registry import AGENTS

ROOT = Path(__file__).parents[2]
SURFACE = (
    "seedbed",
    "seedbed.types",
    "seedbed.ops",
    "seedbed.nets",
    "seedbed.agents",
    "seedbed.testing",
    "seedbed.architectures",
)
CHEAP = ("seedbed", "seedbed.types", "seedbed.nets", "seedbed.testing", "seedbed.architectures")
"""Modules that are imported where no JAX is."""


def documented(module: str) -> list[str]:
    """The names in the module's row of the table of stable names."""
    page = (ROOT / "docs" / "own-parts.md").read_text()
    row = re.search(rf"^\| `{re.escape(module)}` \| (.*) \|$", page, re.M)
    return re.findall(r"`(\w+)`", row[1]) if row else []


@pytest.mark.parametrize("name", SURFACE)
def test_stable_names_exist_and_are_on_the_page(name: str) -> None:
    module = importlib.import_module(name)
    assert module.__all__ == sorted(module.__all__, key=_as_linted)
    for public in module.__all__:
        assert getattr(module, public) is not None
        assert public in dir(module)
    assert documented(name) == [public for public in module.__all__ if not public.startswith("__")]


def _as_linted(name: str) -> tuple[int, str]:
    """Constants, then classes, then functions, as the linter sorts ``__all__``."""
    return (0 if name.isupper() else 1 if name[0].isupper() else 2), name


@pytest.mark.parametrize("name", SURFACE)
def test_stable_names_explain_themselves(name: str) -> None:
    module = importlib.import_module(name)
    for public in (getattr(module, each) for each in module.__all__):
        if isinstance(public, ModuleType) or inspect.isroutine(public) or inspect.isclass(public):
            assert inspect.getdoc(public), public


@pytest.mark.parametrize("name", SURFACE)
def test_type_checkers_see_what_is_imported_lazily(name: str) -> None:
    module = importlib.import_module(name)
    source = Path(str(module.__file__)).read_text()
    for node in ast.parse(source).body:
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            seen = {
                alias.asname or alias.name
                for line in node.body
                if isinstance(line, ast.ImportFrom)
                for alias in line.names
            }
            assert seen == {each for each in module.__all__ if not each.startswith("__")}
            return
    assert "lazily" not in source


@pytest.mark.parametrize("name", CHEAP)
def test_importing_costs_no_jax(name: str) -> None:
    program = f"import sys, {name}; sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    for name in CHEAP:
        with pytest.raises(AttributeError, match=f"module '{name}' has no attribute 'nosuch'"):
            importlib.import_module(name).nosuch  # noqa: B018


def test_python_runs_the_package_as_the_command(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "seedbed", "--version"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout.split()[0]) == (0, "seedbed"), done.stderr
    assert subprocess.run([sys.executable, "-m", "seedbed", "nosuch"], check=False).returncode == 2


@pytest.mark.parametrize("name", AGENTS.names)
def test_the_module_of_each_agent_has_its_definition(name: str) -> None:
    module = importlib.import_module(f"seedbed.agents.{name}")
    assert getattr(module, name.upper()) is AGENTS.load(name)
