"""The English of docstrings, by three counts (see :mod:`house.docstrings`), room by room."""

from pathlib import Path

import pytest
from house import docstrings

LIMITS = (1.0, 5.0, 0.3)
"""Most docstrings that begin without a verb or a noun, arguments' lines without a noun, and pronouns, in percent."""


def within(counts: docstrings.Counts) -> bool:
    return all(share <= limit for share, limit in zip(counts.shares, LIMITS, strict=True))


@pytest.mark.parametrize("room", docstrings.rooms())
def test_a_room_is_within_the_limits(room: str) -> None:
    counts = docstrings.counted(docstrings.rooms()[room])
    places = [*counts.beginnings, *counts.fragments, *counts.pronouns]
    assert within(counts), "\n".join(["begin with a verb or a noun:", *map(str, places)])


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
