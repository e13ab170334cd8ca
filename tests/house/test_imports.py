"""Tests, tools, benchmarks and examples import from one another what is there: no type checker reads them."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("tests", "tools", "benchmarks", "examples")
ROOTS = [ROOT / name for name in ("src", "tests", "tools", "benchmarks", "tests/house")]
"""Where a module's name begins, besides the folder of the file that imports it."""
FILES = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))


def module(name: str, importer: Path) -> Path | None:
    """The file of a module of this repository; none for a library's."""
    for root in (importer.parent, *ROOTS):
        path = root.joinpath(*name.split("."))
        for file in (path.with_suffix(".py"), path / "__init__.py"):
            if file.is_file():
                return file
    return None


@cache
def names(file: Path) -> frozenset[str]:
    """All that a module binds outside its functions and classes."""
    return frozenset(bound(ast.parse(file.read_text())))


def bound(node: ast.AST) -> Iterator[str]:
    for child in ast.iter_child_nodes(node):
        match child:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.alias(name=name, asname=asname):
                yield (asname or name).split(".")[0]
            case ast.Name(id=name, ctx=ast.Store()):
                yield name
            case _:
                yield from bound(child)


def absent(importer: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(importer.read_text())):
        if not isinstance(node, ast.ImportFrom) or node.level or node.module is None:
            continue
        file = module(node.module, importer)
        if file is None or "__getattr__" in names(file):
            continue
        for each in node.names:
            if each.name not in names(file) and module(f"{node.module}.{each.name}", importer) is None:
                yield f"line {node.lineno}: {node.module} has no {each.name}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_what_is_imported_is_there(path: Path) -> None:
    assert list(absent(path)) == []


def test_a_name_that_has_moved_is_seen(tmp_path: Path) -> None:
    file = tmp_path / "moved.py"
    file.write_text(
        "from harness import SLEEPY, Elsewhere\nfrom seedbed.errors import Nothing\nfrom os import x"
    )
    assert list(absent(file)) == ["line 1: harness has no Elsewhere", "line 2: seedbed.errors has no Nothing"]
