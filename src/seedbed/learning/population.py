"""Population-based training (Jaderberg et al. 2017, "Population Based Training of Neural Networks", section 4).

Agents that are trained side by side, with settings of their own, are ranked now and then. The worst ones go on with the
parameters of the best (*exploit*, by truncation), and with values near theirs (*explore*, by perturbation).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

SHARE = 0.25
"""Share of the agents that are replaced, and that others are replaced by; one at least. (The paper has 0.2.)"""
FACTORS = (0.8, 1.2)
"""Factors by which a value is changed, each as likely as the other."""


class Generation(NamedTuple):
    """The agents after a round.

    Attributes:
      source: int64 ``[agents]``, number of the agent whose parameters each agent goes on with; most often its own.
      values: values of the settings that differ, float32 ``[agents]`` each.
    """

    source: NDArray[np.int64]
    values: dict[str, NDArray[np.float32]]

    @property
    def replaced(self) -> NDArray[np.int64]:
        """Numbers of the agents that go on with another one's parameters."""
        return np.flatnonzero(self.source != np.arange(len(self.source)))


def next_generation(
    scores: Sequence[float | None],
    values: Mapping[str, NDArray[np.float32]],
    allowed: Callable[[str, float], bool],
    random: np.random.Generator,
) -> Generation:
    """Ranks the agents and replaces the worst.

    Args:
      scores: score of each agent, the higher the better; None where there is none yet: nobody is replaced then.
      values: values of the settings that differ, ``[agents]`` each.
      allowed: function that says whether a setting may have a value; one that may not is left as it was.
      random: source of all chance: of the agents that others go on with, and of the factors.

    Returns:
      The next generation. An agent is replaced by a better one only, never by an equal one.
    """
    count = len(scores)
    source = np.arange(count)
    after = {name: np.array(each, np.float32) for name, each in values.items()}
    known = [score for score in scores if score is not None]
    if len(known) < count or count < 2:
        return Generation(source, after)
    # Of equal ones the first stands higher.
    ranked = sorted(range(count), key=lambda index: -known[index])
    few = max(1, int(count * SHARE))
    for worse in reversed(ranked[-few:]):
        better = ranked[int(random.integers(few))]
        if known[better] > known[worse]:
            source[worse] = better
    for index in np.flatnonzero(source != np.arange(count)):
        for name, each in after.items():
            old = float(values[name][source[index]])
            new = np.float32(old * random.choice(FACTORS))
            each[index] = new if allowed(name, float(new)) else old
    return Generation(source, after)
