"""The log of a run."""

from __future__ import annotations

import logging
from pathlib import Path

from seedbed.launch.logs import logging_to


def test_what_the_package_logs_is_in_the_file(tmp_path: Path) -> None:
    with logging_to(tmp_path / "log"):
        logging.getLogger("seedbed.somewhere").info("it began")
    logging.getLogger("seedbed.somewhere").info("it is over")
    assert (tmp_path / "log").read_text().endswith("seedbed.somewhere: it began\n")


def test_a_full_disk_is_not_heard_of() -> None:
    with logging_to(Path("/dev/full")):
        logging.getLogger("seedbed.somewhere").info("a line that finds no room")
