"""Three counts of the English of docstrings: python tests/house/docstrings.py prints them, room by room.

Docstrings of the field's model code begin with a verb or a noun, say a noun of each argument, and have next to no
relative clauses without a noun before them ("what it was given", "those that came").
"""

import ast
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src" / "seedbed"

_PRONOUNS = "what|who|whom|those|whoever|whatever|whichever|whomever|nobody"
PRONOUN = re.compile(rf"\b(?:{_PRONOUNS})\b", re.I)
"""A word that stands for a noun that is not said."""
BEGINNING = re.compile(rf"(?:{_PRONOUNS}|whether|where|which|whose|when|why|how|it|that|these|they)\b", re.I)
"""A first word that is neither a verb nor a noun."""
OPENING = re.compile(
    rf"(?:{_PRONOUNS}|where|which|whose|when|why|how|it|that|these|they|if|and|or|not|than|then|there|of|for|from|in|on"
    "|at|by|to|as|with|without|between|since|until|after|before|above|below|over|under|theirs|ours|mine|yours|his|hers"
    r"|its own(?!\s\w))\b",
    re.I,
)
"""The begin of an argument's line without a noun; "whether" is how booleans are said."""

_SECTION = re.compile(r"^( *)(?:Args|Arguments|Attributes):\n((?:\1 +.*\n|\n)+)", re.M)
_ENTRY = re.compile(r"^([*\w`, ]+?)(?: \([^)]*\))?: +(.*)$")
_CODE = re.compile(r"``.*?``|:\w+:`.*?`", re.S)
_WORD = re.compile(r"[A-Za-z][A-Za-z'-]*")
_DTYPE = re.compile(r"^(?:(?:float|u?int)\d+|bool)\b[^,:;]*[,:;]? ?")


@dataclass(frozen=True)
class Line:
    """A place in the source: the file, the line, and the text that is meant."""

    path: Path
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.path.relative_to(SOURCE.parent)}:{self.line}: {self.text}"


@dataclass
class Counts:
    """What was counted, and where.

    Attributes:
      docstrings: number of docstrings.
      beginnings: docstrings that begin with BEGINNING.
      arguments: number of arguments' lines.
      fragments: arguments' lines that begin with OPENING.
      words: number of words.
      pronouns: words that are a PRONOUN.
    """

    docstrings: int
    beginnings: list[Line]
    arguments: int
    fragments: list[Line]
    words: int
    pronouns: list[Line]

    @property
    def shares(self) -> tuple[float, float, float]:
        """Percentages of the three counts."""
        pairs = (
            (len(self.beginnings), self.docstrings),
            (len(self.fragments), self.arguments),
            (len(self.pronouns), self.words),
        )
        beginnings, fragments, pronouns = (100 * part / max(whole, 1) for part, whole in pairs)
        return beginnings, fragments, pronouns


def docstrings(path: Path) -> Iterator[tuple[int, str]]:
    """Yields the line and the text of every docstring of a file, also of those below fields and constants."""
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        for statement in getattr(node, "body", []) if not isinstance(node, ast.Lambda | ast.IfExp) else []:
            value = getattr(statement, "value", None)
            if (
                isinstance(statement, ast.Expr)
                and isinstance(value, ast.Constant)
                and isinstance(value.value, str)
            ):
                yield statement.lineno, _dedented(value.value)


def _dedented(text: str) -> str:
    return (
        text
        if "\n" not in text
        else f"{text.partition(chr(10))[0]}\n{_shifted(text.partition(chr(10))[2])}\n"
    )


def _shifted(text: str) -> str:
    lines = text.split("\n")
    indent = min((len(line) - len(line.lstrip()) for line in lines if line.strip()), default=0)
    return "\n".join(line[indent:] for line in lines)


def arguments(text: str) -> Iterator[tuple[str, str]]:
    """Yields the names and the text of each entry below ``Args:`` and ``Attributes:``."""
    for section in _SECTION.finditer(text):
        lines = section[2].split("\n")
        least = min(len(line) - len(line.lstrip()) for line in lines if line.strip())
        for line in lines:
            found = _ENTRY.match(line[least:])
            if found and len(line) - len(line.lstrip()) == least:
                yield found[1], found[2]


def beginning(text: str) -> str:
    """A text without the dtype, the shape and the quotes that it may begin with."""
    return _DTYPE.sub("", text.lstrip("\"'(*"))


def counted(paths: Iterable[Path]) -> Counts:
    """Counts over some files."""
    counts = Counts(0, [], 0, [], 0, [])
    for path in paths:
        for line, text in docstrings(path):
            counts.docstrings += 1
            if BEGINNING.match(beginning(text)):
                counts.beginnings.append(Line(path, line, text.partition("\n")[0]))
            for names, said in arguments(text):
                counts.arguments += 1
                if OPENING.match(beginning(said)):
                    counts.fragments.append(Line(path, line, f"{names}: {said}"))
            prose = " ".join(_CODE.sub("", text).split())
            counts.words += len(_WORD.findall(prose))
            counts.pronouns += [Line(path, line, _around(found)) for found in PRONOUN.finditer(prose)]
    return counts


def _around(found: re.Match[str]) -> str:
    return f"…{found.string[max(0, found.start() - 30) : found.end() + 30]}…"


def rooms() -> dict[str, list[Path]]:
    """The files of each package and root module of Seedbed, by its name."""
    found: dict[str, list[Path]] = {}
    for path in sorted(SOURCE.rglob("*.py")):
        found.setdefault(path.relative_to(SOURCE).with_suffix("").parts[0], []).append(path)
    return found


def main() -> None:
    """Prints a table, and the places in the rooms that were named on the command line."""
    print(f"{'':<20} docstrings  begin %  fragments %  pronouns %")
    everything = [path for paths in rooms().values() for path in paths]
    for name, paths in [*rooms().items(), ("all", everything)]:
        counts = counted(paths)
        print(
            f"{name:<20} {counts.docstrings:>10}  " + "  ".join(f"{share:>9.2f}" for share in counts.shares)
        )
        if name in sys.argv[1:]:
            for line in [*counts.beginnings, *counts.fragments, *counts.pronouns]:
                print(f"  {line}")


if __name__ == "__main__":
    main()
