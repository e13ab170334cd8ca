"""Writes docs/settings.md from the configuration and the presets. Run without arguments; ``--check`` only compares."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import sys
import textwrap
import typing
from collections.abc import Container, Iterator, Mapping
from pathlib import Path
from typing import Any

from seedbed.config.placement import NEEDS
from seedbed.config.resolve import presets
from seedbed.config.settings import RunConfig
from seedbed.registry import AGENTS, ARCHITECTURES

PAGE = Path(__file__).parent.parent / "docs" / "settings.md"
HEAD = """\
# Settings

<!-- Written by tools/settings_page.py from src/seedbed/config; do not edit. -->

Every setting of a run: its name in Python and in `config.json`, which is its flag too (`envs_per_actor` is
`--envs-per-actor`; `env` stands without a flag), its built-in default, and what it does. A preset of the
environment comes over the built-in defaults; see [configuration](configuration.md).
"""


def documented(kind: type) -> Iterator[tuple[str, str]]:
    """Names of the fields of a dataclass with the strings that stand below them, its own last."""
    for base in reversed(kind.__mro__):
        if dataclasses.is_dataclass(base):
            yield from _documented_here(base)


def _documented_here(kind: type) -> Iterator[tuple[str, str]]:
    body = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0]
    assert isinstance(body, ast.ClassDef)
    for field, below in zip(body.body, [*body.body[1:], None], strict=True):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
            text = (
                below.value.value
                if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant)
                else ""
            )
            yield field.target.id, " ".join(str(text).split())


def table(kind: type) -> str:
    """One section's settings."""
    lines = ["| name | values | default | meaning |\n", "|---|---|---|---|\n"]
    hints = typing.get_type_hints(kind)
    fields = {field.name: field for field in dataclasses.fields(kind)}
    for name, text in dict(documented(kind)).items():  # what is said last counts
        part = fields.get(name)
        if part is None or part.default is dataclasses.MISSING or name in ("placement", "settings"):
            continue  # a constant, or a section
        meaning = " ".join((text, *_conditions(part, fields)))
        lines.append(f"| `{name}` | {_values(hints[name])} | {_shown(part.default)} | {meaning} |\n")
    return "".join(lines)


def _conditions(part: dataclasses.Field[Any], others: Container[str]) -> Iterator[str]:
    """What other settings must be for one to mean something."""
    for name, needed in part.metadata.items():
        if name == NEEDS:
            yield f"Needs `{needed}`."
        elif name in others:
            values = needed if isinstance(needed, tuple) else (needed,)
            yield f"Needs {' or '.join(f'`{name}={value}`' for value in values)}."


def _values(hint: Any) -> str:
    arguments = typing.get_args(hint)
    if typing.get_origin(hint) is typing.Literal:
        return ", ".join(f"`{value}`" for value in arguments)
    if typing.get_origin(hint) is tuple:
        return f"{_values(arguments[0])}, any number of them"
    if arguments:
        return " or ".join(_values(argument) for argument in arguments)
    names = {int: "whole number", float: "number", bool: "true or false", str: "text", type(None): "none"}
    return names[hint]


def _shown(value: Any) -> str:
    if value is None or value == ():
        return "none"
    return f"`{' '.join(map(str, value)) if isinstance(value, tuple) else value}`"


def _pairs(settings: Mapping[str, Any]) -> str:
    return ", ".join(f"`{key}={value}`" for key, value in settings.items())


def page() -> str:
    """The whole page."""
    parts = [HEAD, "\n## Run\n\n", table(RunConfig)]
    hints = typing.get_type_hints(RunConfig)
    for name, kind in hints.items():
        if dataclasses.is_dataclass(kind):
            first = (kind.__doc__ or "").splitlines()[0]
            parts += [
                f"\n## `{name}`: {first[0].lower()}{first[1:].rstrip('.')}\n\n",
                table(typing.cast(type, kind)),
            ]
    for section, registry in (("placement", ARCHITECTURES), ("settings", AGENTS)):
        for name in registry.names:
            kind = registry.load(name).Settings
            parts += [f"\n## `{section}` with `{registry.flag} {name}`\n\n", table(kind)]
    parts.append("\n## Presets\n\n| preset | chosen for | about | settings |\n|---|---|---|---|\n")
    for name, preset in sorted(presets().items()):
        match = ", ".join(f"`{pattern}`" for pattern in preset.match) or "only by name"
        agent = {"agent": preset.agent} if preset.agent else {}
        values = _pairs(agent | dict(preset.settings))
        for part, settings in [*preset.archs.items(), *preset.agents.items()]:
            values += f"; with `{part}` {_pairs(settings)}"
        parts.append(f"| `{name}` | {match} | {preset.about} | {values} |\n")
    return "".join(parts)


def main() -> None:
    if "--check" not in sys.argv:
        PAGE.write_text(page())
    elif PAGE.read_text() != page():
        sys.exit("docs/settings.md is out of date: run .venv/bin/python tools/settings_page.py")


if __name__ == "__main__":
    main()
