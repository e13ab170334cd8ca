"""``seedbed compatibility``: the table that refusals are made of."""

from __future__ import annotations

import pytest

from seedbed.cli.compatibility import run
from seedbed.launch.compatibility import table_of_pairs
from seedbed.registry import AGENTS, ARCHITECTURES


def test_every_pair_is_in_the_table_and_every_empty_cell_has_a_reason(
    capsys: pytest.CaptureFixture[str],
) -> None:
    run([])
    head, *lines = capsys.readouterr().out.splitlines()
    assert head.split() == list(ARCHITECTURES.names)
    cells = {line.split()[0]: line.split()[1:] for line in lines[: len(AGENTS.names)]}
    assert list(cells) == list(AGENTS.names)
    reasons = dict(line.split("  ", 1) for line in lines[len(AGENTS.names) + 1 :])
    for agent, row in table_of_pairs().items():
        for arch, cell in zip(ARCHITECTURES.names, cells[agent], strict=True):
            assert (cell == "yes") == (row[arch] is None)
            assert cell == "yes" or reasons[cell] == row[arch]
    # Each agent runs somewhere, and each architecture runs something.
    assert all("yes" in row for row in cells.values())
    assert all("yes" in column for column in zip(*cells.values(), strict=True))
