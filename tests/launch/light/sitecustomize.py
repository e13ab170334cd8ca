"""Hides modules from a process whose ``PYTHONPATH`` has this folder: those that ``HIDDEN`` names."""

import os
import sys

HIDDEN = set(os.environ["HIDDEN"].split())


class Hiding:
    """Finds nothing, and says of a hidden module that there is none."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        if name.partition(".")[0] in HIDDEN:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


sys.meta_path.insert(0, Hiding())
