"""A sum tree: draws leaves in proportion to their values, and changes them, in O(log N).

Every inner node holds the sum of its two children, computed from them whenever one changes: unlike differences that
are added on the way up, sums cannot drift away from their leaves. Whole batches go up and down level by level.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from seedbed.errors import ConfigError

Indices = NDArray[np.int64]
Values = NDArray[np.float64]


class SumTree:
    """``capacity`` float64 leaves, all 0 at first; belongs to one thread at a time.

    Args:
      capacity: number of leaves, at least 1; raises :class:`ConfigError` below it.
    """

    def __init__(self, capacity: int) -> None:
        if capacity < 1:
            raise ConfigError(f"a sum tree of {capacity} leaves holds nothing: it needs 1 or more")
        self.capacity = capacity
        self._depth = (capacity - 1).bit_length()
        # The root is node 1, the children of node k are 2k and 2k + 1, and the leaves are the last level.
        self._first = 1 << self._depth
        self._nodes: Values = np.zeros(2 * self._first)

    @staticmethod
    def bytes_of(capacity: int) -> int:
        """Returns the bytes of a tree of this capacity."""
        return 16 << (capacity - 1).bit_length()

    @property
    def total(self) -> float:
        """The sum of all leaves."""
        return float(self._nodes[1])

    @property
    def leaves(self) -> Values:
        """All leaves ``[capacity]``, as a view; :meth:`set` and :meth:`rebuild` change them."""
        leaves = self._nodes[self._first : self._first + self.capacity]
        leaves.flags.writeable = False
        return leaves

    def get(self, indices: Indices) -> Values:
        """The values of some leaves, in the shape of ``indices``."""
        values: Values = self._nodes[self._first + indices]
        return values

    def set(self, indices: Indices, values: ArrayLike) -> None:
        """Gives leaves new values; where an index comes twice, its last value stays.

        Args:
          indices: int64 of any shape, in ``[0, capacity)``.
          values: finite numbers of 0 or more, as many or one for all.
        """
        nodes = (self._first + indices).ravel()
        # One index array is assigned in its order: the last one wins.
        self._nodes[nodes] = np.broadcast_to(values, indices.shape).ravel()
        for _ in range(self._depth):
            # Where two share a parent it comes twice, and both write the same sum: the level below is complete.
            nodes = nodes >> 1
            self._nodes[nodes] = self._nodes[2 * nodes] + self._nodes[2 * nodes + 1]

    def find(self, points: Values) -> Indices:
        """Returns the leaf at each point of the line on which the leaves lie one after the other.

        A leaf of value 0 is never found, however sums round.

        Args:
          points: float64 of any shape, in ``[0, total)``; there has to be a leaf above 0.
        """
        remaining = np.array(points, np.float64)
        node = np.ones(remaining.shape, np.int64)
        for _ in range(self._depth):
            left = 2 * node
            before = self._nodes[left]
            # By rounding a point can lie behind the last leaf of its subtree: it stays where something is. A point
            # is never below 0, so that of a subtree with a sum of 0 it goes right.
            right = (remaining >= before) & (self._nodes[left + 1] > 0)
            remaining = np.where(right, remaining - before, remaining)
            node = left + right
        return node - self._first

    def rebuild(self, leaves: Values) -> None:
        """Takes all leaves ``[capacity]`` anew."""
        self._nodes[self._first : self._first + self.capacity] = leaves
        level = self._first
        while level > 1:
            level >>= 1
            children = self._nodes[2 * level : 4 * level]
            self._nodes[level : 2 * level] = children[::2] + children[1::2]
