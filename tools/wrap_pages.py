"""Wraps the prose of pages at 120 characters: .venv/bin/python tools/wrap_pages.py [PAGE …]

Paragraphs and list items with a longer line are wrapped anew. Tables, code, formulas and headings stay as they are.
"""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
WIDTH = 120

_FENCE = re.compile(r"^ *(```|\$\$)")
_ITEM = re.compile(r"^( *(?:[-*+]|\d+\.) +)")
_KEPT = re.compile(r"^ *(?:\||#|<!--|>|!\[)|^\s*$")
_WHOLE = re.compile(r"`[^`\n]{1,100}`|\$[^$\n]{1,100}\$|\[[^\]\n]{1,60}\]\([^)\s]*\)")
_MEANS_SOMETHING = re.compile(r"^(?:[-*+#>|]|\d+[.)])(?: |$)")


def pages() -> Iterator[Path]:
    """Every page of the repository."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z", "*.md"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    yield from (path for name in listed.stdout.split("\0") if name and (path := ROOT / name).is_file())


def too_long(text: str) -> list[str]:
    """The lines of a page that could be shorter: a table's row, and one word alone, cannot."""
    return [
        line for line in text.splitlines() if len(line) > WIDTH and line[0] != "|" and " " in line.strip()
    ]


def wrapped(text: str) -> str:
    """A page with its prose wrapped where a line is too long."""
    return "".join(
        "\n".join(_wrapped(block)) + "\n"
        if prose and any(len(line) > WIDTH for line in block)
        else _joined(block)
        for prose, block in _blocks(text)
    )


def _joined(block: list[str]) -> str:
    return "".join(f"{line}\n" for line in block)


def _blocks(text: str) -> Iterator[tuple[bool, list[str]]]:
    """Splits a page into blocks of lines, each with whether it is a paragraph or an item of a list."""
    block: list[str] = []
    fence = ""
    for line in text.splitlines():
        mark = _FENCE.match(line)
        if mark and not fence:
            yield True, block
            block, fence = [line], "" if line.strip() != "$$" and line.count("$$") == 2 else mark[1]
        elif fence:
            block.append(line)
            if mark and mark[1] == fence:
                yield False, block
                block, fence = [], ""
        elif _KEPT.match(line):
            yield True, block
            yield False, [line]
            block = []
        elif _ITEM.match(line):
            yield True, block
            block = [line]
        else:
            block.append(line)
    yield not fence, block


def _wrapped(block: list[str]) -> list[str]:
    item = _ITEM.match(block[0])
    first = item[1] if item else " " * (len(block[0]) - len(block[0].lstrip()))
    words = " ".join([block[0][len(first) :].strip(), *(line.strip() for line in block[1:])])
    # Code and links are one word, and so is a dash or a number with the word before it: it would begin an item.
    kept = _WHOLE.sub(lambda whole: whole[0].replace(" ", "\0"), words)
    kept = re.sub(r" (?=(?:[-*+#>|–]|\d+[.)])(?: |$))", "\0", kept)
    lines = textwrap.wrap(
        kept,
        WIDTH,
        initial_indent=first,
        subsequent_indent=" " * len(first),
        break_long_words=False,
        break_on_hyphens=False,
    )
    lines = [line.replace("\0", " ") for line in lines]
    assert not any(_MEANS_SOMETHING.match(line.strip()) for line in lines[1:]), block
    return lines


def main() -> None:
    for path in map(Path, sys.argv[1:]) if sys.argv[1:] else pages():
        text = path.read_text()
        if (new := wrapped(text)) != text:
            path.write_text(new)
            print(path)


if __name__ == "__main__":
    main()
