"""Every setting has a help text of one line."""

import ast
import dataclasses
import importlib
import inspect
import textwrap
import typing
from collections.abc import Iterator
from typing import Any

import pytest

from seedbed.cli.main import VERBS
from seedbed.config.settings import RunConfig
from seedbed.registry import AGENTS, ARCHITECTURES

MOST_CHARACTERS = 100


def kinds() -> Iterator[type]:
    """Every dataclass of settings: of the run, of each command, agent and architecture, and of their bases."""
    direct: list[Any] = [RunConfig, *typing.get_type_hints(RunConfig).values()]
    direct += [
        registry.load(name).Settings for registry in (AGENTS, ARCHITECTURES) for name in registry.names
    ]
    for verb in VERBS:
        module = importlib.import_module(f"seedbed.cli.{verb}")
        direct += [kind for kind in vars(module).values() if inspect.isclass(kind)]
    bases = {base for kind in direct if inspect.isclass(kind) for base in kind.__mro__}
    yield from sorted(filter(dataclasses.is_dataclass, bases), key=lambda kind: kind.__qualname__)


def helps(kind: type) -> dict[str, str]:
    """The strings below the fields that a dataclass declares itself, as they stand in the source; "" for none."""
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    assert isinstance(tree, ast.ClassDef)
    found = {}
    for field, below in zip(tree.body, [*tree.body[1:], None], strict=True):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
            text = ast.literal_eval(below.value) if isinstance(below, ast.Expr) else ""
            found[field.target.id] = str(text)
    fields = {field.name for field in dataclasses.fields(kind)}
    return {name: text for name, text in found.items() if name in fields}


SECTIONS = {"net", "stop", "safety", "placement", "settings", "run"}


@pytest.mark.parametrize("kind", [*kinds()], ids=lambda kind: kind.__qualname__)
def test_every_setting_has_a_help_text_of_one_line(kind: type) -> None:
    wrong = {
        name: text
        for name, text in helps(kind).items()
        if name not in SECTIONS and (not text or "\n" in text or len(text) > MOST_CHARACTERS)
    }
    assert not wrong


def test_settings_of_every_kind_are_looked_at() -> None:
    looked_at = {name for kind in kinds() for name in helps(kind)}
    assert {"env", "frames", "gradient_clip", "replay_ratio", "shards", "until_return", "rounds"} <= looked_at
