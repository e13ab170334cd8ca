"""``seedbed fits``: the table that refusals are made of."""

from __future__ import annotations

import pytest

from seedbed.agents.registry import AGENTS
from seedbed.architectures.fits import ARCHITECTURES
from seedbed.cli.fits import run
from seedbed.launch.pairings import pairings


def test_every_pair_is_in_the_table_and_every_empty_cell_has_a_reason(
    capsys: pytest.CaptureFixture[str],
) -> None:
    run([])
    head, *lines = capsys.readouterr().out.splitlines()
    assert head.split() == list(ARCHITECTURES)
    cells = {line.split()[0]: line.split()[1:] for line in lines[: len(AGENTS)]}
    assert list(cells) == list(AGENTS)
    reasons = dict(line.split("  ", 1) for line in lines[len(AGENTS) + 1 :])
    for agent, row in pairings().items():
        for arch, cell in zip(ARCHITECTURES, cells[agent], strict=True):
            assert (cell == "yes") == (row[arch] is None)
            assert cell == "yes" or reasons[cell] == row[arch]
    # Each agent runs somewhere, and each architecture runs something.
    assert all("yes" in row for row in cells.values())
    assert all("yes" in column for column in zip(*cells.values(), strict=True))
