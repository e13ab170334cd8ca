"""The English of docstrings, by three counts (see :mod:`house.docstrings`), room by room."""

from pathlib import Path

import pytest
from house import docstrings

LIMITS = (1.0, 5.0, 0.3)
"""Most docstrings that begin without a verb or a noun, arguments' lines without a noun, and pronouns, in percent."""
CLEAN = (
    "__init__",
    "__main__",
    "agents",
    "atomic_folder",
    "cli",
    "config",
    "envs",
    "errors",
    "evaluation",
    "faults",
    "metrics",
    "nets",
    "ops",
    "plugins",
    "public",
    "registry",
    "regular_files",
    "replay",
    "seeding",
    "testing",
    "timing",
    "transport",
    "types",
    "weights",
)
"""Rooms within the limits. The list grows and never shrinks; :func:`test_the_list_has_every_clean_room` sees to it."""


def within(counts: docstrings.Counts) -> bool:
    return all(share <= limit for share, limit in zip(counts.shares, LIMITS, strict=True))


@pytest.mark.parametrize("room", CLEAN)
def test_a_clean_room_stays_within_the_limits(room: str) -> None:
    counts = docstrings.counted(docstrings.rooms()[room])
    places = [*counts.beginnings, *counts.fragments, *counts.pronouns]
    assert within(counts), "\n".join(["begin with a verb or a noun:", *map(str, places)])


def test_the_list_has_every_clean_room(capsys: pytest.CaptureFixture[str]) -> None:
    rest = {
        room: docstrings.counted(paths) for room, paths in docstrings.rooms().items() if room not in CLEAN
    }
    with capsys.disabled():
        for room, counts in rest.items():
            print(f"\n{room}: " + ", ".join(f"{share:.1f}%" for share in counts.shares), end="")
    assert not [room for room, counts in rest.items() if within(counts)], "clean: add it to CLEAN"


SAMPLE = '''
"""What a file is for."""

def act(seeds, spec, steps):
    """Acts; whoever calls it knows ``what`` to do with those that come.

    Args:
      seeds: theirs.
      spec: of the environments, of which
        there may be many.
      steps, others: int32 ``[B]``, how many there are.
      first: whether it is the first one.
      last: the last one.
    """

class Part:
    size: int = 0
    """Where it ends."""
'''


def test_what_is_counted(tmp_path: Path) -> None:
    path = tmp_path / "sample.py"
    path.write_text(SAMPLE)
    counts = docstrings.counted([path])
    assert (counts.docstrings, [place.line for place in counts.beginnings]) == (3, [2, 18])
    assert counts.arguments == 5
    assert [place.text.partition(":")[0] for place in counts.fragments] == ["seeds", "spec", "steps, others"]
    assert len(counts.pronouns) == 3  # code is not counted
    assert counts.shares[0] == pytest.approx(200 / 3)
