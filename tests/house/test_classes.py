"""The rules for classes: how deep they are, and what a class may change of another module's private part."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

SOURCE = Path(__file__).parents[2] / "src" / "seedbed"


class Found(NamedTuple):
    """A class: its module, the names of its bases, and its methods."""

    module: str
    name: str
    bases: list[str]
    methods: set[str]


def classes() -> dict[str, list[Found]]:
    """All classes of the source, by name."""
    found: dict[str, list[Found]] = {}
    for path in sorted(SOURCE.rglob("*.py")):
        module = ".".join(path.relative_to(SOURCE).with_suffix("").parts)
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                bases = [ast.unparse(base).partition("[")[0].rpartition(".")[2] for base in node.bases]
                methods = {each.name for each in node.body if isinstance(each, ast.FunctionDef)}
                found.setdefault(node.name, []).append(Found(module, node.name, bases, methods))
    return found


ALL = classes()


def above(one: Found) -> Iterator[Found]:
    """The classes of the source that a class derives from."""
    for base in one.bases:
        candidates = [each for each in ALL.get(base, []) if each is not one]
        here = [each for each in candidates if each.module == one.module]
        for each in (here or candidates)[:1]:
            yield each
            yield from above(each)


def depth(one: Found) -> int:
    """Number of classes of the source in the longest line from a class upwards."""
    parents = {each.name for each in above(one)} & set(one.bases)
    return 1 + max((depth(each) for name in parents for each in above(one) if each.name == name), default=0)


def test_private_methods_are_changed_in_other_modules_where_a_record_says_so() -> None:
    changed: dict[str, set[str]] = {}
    for one in (each for same in ALL.values() for each in same):
        for base in above(one):
            if base.module != one.module:
                private = {name for name in one.methods & base.methods if name[0] == "_" != name[1]}
                changed.setdefault(f"{base.module}.{base.name}", set()).update(private)
    # docs/decisions/0119: what a carrier adds to an end of a conversation.
    both = {"_transmit", "_arrays_of", "_furnish"}
    assert {base: names for base, names in changed.items() if names} == {
        "transport.conversation.Conversation": {*both, "_transmit_reply", "_hang_up"},
        "transport.conversation.Caller": {*both, "_transmit_step", "_next", "_shut"},
    }


def test_no_class_is_more_than_two_deep_but_errors_settings_and_a_lane() -> None:
    deep = {
        one.name
        for same in ALL.values()
        for one in same
        if depth(one) > 2
        and not any("Settings" in each.name or each.name == "SeedbedError" for each in (one, *above(one)))
    }
    assert deep == {"ProxiedLane"}
