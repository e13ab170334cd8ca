"""Returns and lengths of episodes, added up on the device: a host's reads do not grow with the batches."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp

from seedbed.types import TimeStep


class OpenEpisodes(NamedTuple):
    """The episodes that are going on: float32 ``[B]`` and int32 ``[B]``."""

    returns: Any
    lengths: Any


class LastEpisodes(NamedTuple):
    """The last episodes that ended.

    Attributes:
      returns: float32 ``[W]``; the ``n``-th episode stands at ``n % W``.
      lengths: int32 ``[W]``, steps.
      count: uint32, episodes that ended since the run began; begins anew at 2**32.
    """

    returns: Any
    lengths: Any
    count: Any


def no_episodes(num_envs: int, window: int) -> tuple[OpenEpisodes, LastEpisodes]:
    """Before the first step; ``window`` is W."""
    sums = OpenEpisodes(jnp.zeros(num_envs, jnp.float32), jnp.zeros(num_envs, jnp.int32))
    last = LastEpisodes(
        jnp.zeros(window, jnp.float32), jnp.zeros(window, jnp.int32), jnp.zeros((), jnp.uint32)
    )
    return sums, last


def go_on(sums: OpenEpisodes, step: TimeStep) -> OpenEpisodes:
    """Adds one step ``[B]`` to the sums; at a final observation they are of the whole episode."""
    return OpenEpisodes(
        jnp.where(step.first, 0.0, sums.returns + step.reward), jnp.where(step.first, 0, sums.lengths + 1)
    )


def finish(last: LastEpisodes, sums: OpenEpisodes, ended: Any) -> LastEpisodes:
    """The window with the episodes added that ``ended``, bool ``[T, B]``; ``sums`` are ``[T, B]`` too."""
    window = last.returns.shape[0]
    rank = jnp.cumsum(ended.reshape(-1))
    total = rank[-1]
    # Looked up, newest first: to put every step into its place, or nowhere, would take as long as the steps.
    back = jnp.arange(window)
    where = jnp.searchsorted(rank, total - back)
    number = last.count + (total - 1 - back).astype(jnp.uint32)
    place = jnp.where(back < total, number % window, window)
    return LastEpisodes(
        last.returns.at[place].set(sums.returns.reshape(-1)[where], mode="drop"),
        last.lengths.at[place].set(sums.lengths.reshape(-1)[where], mode="drop"),
        last.count + total.astype(jnp.uint32),
    )
