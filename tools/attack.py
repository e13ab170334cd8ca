"""Attacks whole runs as an opponent would, and prints a table of the attacks with their outcomes.

    .venv/bin/python tools/attack.py                    # all of them: an hour or so
    .venv/bin/python tools/attack.py --short            # the same with small numbers: some minutes
    .venv/bin/python tools/attack.py --only fuzz soak   # those whose names begin so
    .venv/bin/python tools/attack.py --only soak --soak-minutes 120

It ends with status 1 if an outcome is not the right one. Runs are started in a temporary folder; everything that was
started is stopped, and the folder removed, also after Ctrl-C.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "tests")]

from attacks.table import ATTACKS, Scale, load, run_all, run_at_once, shown  # noqa: E402
from harness import hear_interrupts, private_surroundings  # noqa: E402


def main(arguments: list[str] | None = None) -> int:
    """The exit status: 0 if every outcome was the right one."""
    load()
    hear_interrupts()
    # Ended from outside it stops what it has started, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="beginnings of names")
    parser.add_argument("--short", action="store_true", help="small numbers: minutes instead of an hour")
    parser.add_argument("--soak-minutes", type=float, help="length of the soak (10, short: 0.5)")
    parser.add_argument(
        "--messages", type=int, help="fuzzed messages that are read, over all carriers (10^6, short: 6000)"
    )
    parser.add_argument("--kills", type=int, help="kills of each run under chaos (12, short: 2)")
    parser.add_argument("--at-once", type=int, default=1, metavar="N", help="attacks at a time (1)")
    parser.add_argument("--seed", type=int, default=0, help="of everything that is left to chance")
    parser.add_argument("--list", action="store_true", help="print the names and what is done, and end")
    given = parser.parse_args(arguments)
    chosen = [each for each in ATTACKS if not given.only or each.name.startswith(tuple(given.only))]
    if not chosen:
        parser.error(f"no attack is called {given.only}: {', '.join(each.name for each in ATTACKS)}")
    if given.list:
        for each in chosen:
            sys.stdout.write(f"{each.name}: {each.what}\n")
        return 0
    scale = Scale.short() if given.short else Scale()
    scale = scale.changed(
        soak_minutes=given.soak_minutes, messages=given.messages, kills=given.kills, seed=given.seed
    )
    with tempfile.TemporaryDirectory(prefix="seedbed-attack-") as folder:
        os.environ.update(private_surroundings(Path(folder)))
        if given.at_once > 1:
            told = run_at_once(chosen, Path(folder), scale, given.at_once)
        else:
            told = run_all(chosen, Path(folder), scale)
    sys.stdout.write(shown(told))
    return any(not each.right for each in told)


if __name__ == "__main__":
    sys.exit(main())
