"""Seeds of single environments, from the seed of their batch."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def environment_seeds(seed: int, num_envs: int) -> NDArray[np.int64]:
    """One seed an environment, ``[num_envs]``, each from ``(seed, i)`` and in ``1 … 2**31 - 2``.

    Hashed rather than counted up from ``seed``: otherwise environment 1 of a batch seeded 0 would be
    environment 0 of a batch seeded 1. The range is what every simulator takes (ALE reads 32 bits, signed).
    """
    hashed = [np.random.SeedSequence([seed, i]).generate_state(1, np.uint64)[0] for i in range(num_envs)]
    return np.array([int(h) % (2**31 - 2) + 1 for h in hashed], np.int64)
