"""Times carriers with 1, 16 and 32 observations a message, beside the environments of this machine.

``.venv/bin/python benchmarks/transport.py [SECONDS] [CARRIER …]`` prints a line a measurement and appends a row to
``benchmarks/results/transport.jsonl``. Without names it times all carriers.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from seedbed.config.resolve import configure
from seedbed.launch.build import build_spec
from seedbed.timing.stages import environment_stage, provenance
from seedbed.timing.transport import ADDRESSES, measure


def main() -> None:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 2.0
    row = provenance()
    config = configure("ALE/Breakout-v5")
    environments = environment_stage(config, build_spec(config), seconds).steps_per_second
    print(f"environments {environments:.0f} steps/s", flush=True)
    measured = []
    for carrier in sys.argv[2:] or ADDRESSES:
        for envs in (1, 16, 32):
            measured.append(measure(carrier, envs, (84, 84), seconds))
            print(json.dumps(measured[-1]), flush=True)
    results = Path(__file__).parent / "results" / "transport.jsonl"
    with results.open("a") as file:
        file.write(json.dumps({"environments": environments, "carriers": measured, **row}) + "\n")


if __name__ == "__main__":
    main()
