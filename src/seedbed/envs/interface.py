"""One interface for every world: a batch of environments that is stepped in one call.

``send`` and ``receive`` are apart so that environments with threads of their own (ALE, EnvPool) step while
the caller does something else; the others step inside ``receive``.
"""

from __future__ import annotations

from typing import Any, Protocol

from seedbed.types import EnvSpec, TimeStep


class Environment(Protocol):
    """A batch of ``num_envs`` environments of one kind; not thread-safe, owned by one thread.

    The arrays of a returned :class:`~seedbed.types.TimeStep` are the caller's to read until the next call.
    """

    spec: EnvSpec
    num_envs: int

    def reset(self, seed: int) -> TimeStep:
        """Starts every environment anew; environment ``i`` is seeded from ``(seed, i)``.

        Returns the first observations, with ``first`` all True and reward 0. A step that a ``send`` began and
        no ``receive`` took is dropped.
        """

    def send(self, action: Any) -> None:
        """Hands over one action for every environment, ``[num_envs, *action shape]``; may return at once."""

    def receive(self) -> TimeStep:
        """Returns the step that the last ``send`` began; waits for it."""

    def render(self) -> Any:
        """An RGB picture uint8 ``[H, W, 3]`` of environment 0; only if it was made with ``render=True``."""

    def close(self) -> None:
        """Frees the resources of the environments; safe to call twice."""
