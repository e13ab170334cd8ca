"""``python -m orchard.launch.train_once SETTINGS``: one run from settings in JSON, for :mod:`orchard.launch.bench`."""

from __future__ import annotations

import json
import sys

from orchard.config.resolve import from_json
from orchard.launch.run import train

if __name__ == "__main__":
    train(from_json(json.loads(sys.argv[1])))
