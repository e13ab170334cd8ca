"""Times every carrier: python benchmarks/transport.py [seconds]; one JSON row a carrier and message size."""

from __future__ import annotations

import json
import sys

from orchard.transport.measure import ADDRESSES, measure


def main() -> None:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 2.0
    for carrier in ADDRESSES:
        for envs in (1, 16, 32):
            print(json.dumps(measure(carrier, envs, (84, 84), seconds)), flush=True)


if __name__ == "__main__":
    main()
