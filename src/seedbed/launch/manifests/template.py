"""Templates of manifests: texts in which ``{{name}}`` stands for a value."""

from __future__ import annotations

import re
from importlib import resources
from typing import Any

_PLACE = re.compile(r"\{\{(\w+)\}\}")


def filled(template: str, values: dict[str, Any]) -> str:
    """Returns a template of this folder with its values.

    Args:
      template: name of its file.
      values: values by name; a line with a place whose value is None is left out.

    Raises:
      KeyError: the template has a place for a value that is not given.
    """
    text = (resources.files(__package__) / template).read_text(encoding="utf-8")
    lines = []
    for line in text.splitlines(keepends=True):
        names = _PLACE.findall(line)
        if any(values[name] is None for name in names):
            continue
        lines.append(_PLACE.sub(lambda place: str(values[place[1]]), line))
    return "".join(lines)
