"""The only place where randomness is born: ``(run seed, role, index)`` names a stream.

Every part of a run (an environment, an actor, the learner) asks for its own stream by its role and its index
within that role, so that no two parts draw the same numbers and adding a part changes nothing for the others.
The names are hashed (BLAKE2b): neighbouring seeds, roles and indices give unrelated streams, the same on
every platform. Actors use the NumPy side, which does not import JAX.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import jax

MOST_SEED = 2**63 - 1
"""The largest seed of a run: records and metrics keep it as an int64."""


def _digest(run_seed: int, role: str, index: int) -> bytes:
    """16 bytes that name one stream; two names differ in at least one byte save by a 128-bit accident."""
    return hashlib.blake2b(repr((int(run_seed), str(role), int(index))).encode(), digest_size=16).digest()


def integer(run_seed: int, role: str, index: int = 0, *, bits: int = 63) -> int:
    """A seed in ``[0, 2**bits)``; ``bits`` at most 64, 31 for emulators that take an int32."""
    return int.from_bytes(_digest(run_seed, role, index)[:8], "little") >> (64 - bits)


def generator(run_seed: int, role: str, index: int = 0) -> np.random.Generator:
    """A NumPy generator of the stream ``(run_seed, role, index)``."""
    return np.random.default_rng(np.frombuffer(_digest(run_seed, role, index), np.uint32))


def key(run_seed: int, role: str, index: int = 0) -> jax.Array:
    """A typed JAX key, shape ``[]``, of the stream ``(run_seed, role, index)``; imports JAX."""
    import jax

    # Both words of the key are set: jax.random.key(seed) would keep only 32 bits of the seed.
    words = np.frombuffer(_digest(run_seed, role, index)[:8], np.uint32)
    return jax.random.wrap_key_data(jax.numpy.asarray(words), impl="threefry2x32")
