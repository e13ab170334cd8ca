"""Seeds of single environments, from the seed of their batch."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from seedbed.seeding import integer

ROLE = "environment"
"""The role of environments in :mod:`seedbed.seeding`."""


def environment_seeds(seed: int, num_envs: int) -> NDArray[np.int64]:
    """One seed an environment, ``[num_envs]``, each from ``(seed, i)`` and in ``[0, 2**31)``.

    Hashed rather than counted up from ``seed``: otherwise environment 1 of a batch seeded 0 would be
    environment 0 of a batch seeded 1.
    """
    return np.array([integer(seed, ROLE, i, bits=31) for i in range(num_envs)], np.int64)
