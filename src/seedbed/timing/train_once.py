"""``python -m seedbed.timing.train_once SETTINGS``: one run from settings in JSON, for :mod:`seedbed.timing.stages`."""

from __future__ import annotations

import json
import sys

from seedbed.config.resolve import from_json
from seedbed.launch.train import train

if __name__ == "__main__":
    train(from_json(json.loads(sys.argv[1])))
