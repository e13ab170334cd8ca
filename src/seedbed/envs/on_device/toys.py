"""Toys as JAX functions, with the very streams that :mod:`seedbed.envs.toys` has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp

from seedbed.envs.on_device.interface import NativeEnvironment
from seedbed.envs.toys import plan_of
from seedbed.types import ACTION_MASK, Tree


def make_doors(env_id: str, *, rooms: int = 8, doors: int = 5) -> NativeEnvironment:
    """Makes :class:`seedbed.envs.toys.Doors`; where nothing can be refused, a locked door leads outside and costs 1."""
    plan = plan_of(env_id, rooms=rooms, doors=doors)
    right, unlocked, shown = (jnp.asarray(array) for array in plan[1:])
    outside = len(right) - 1

    def observe(room: Any) -> Tree:
        return {"room": shown[room], ACTION_MASK: unlocked[room]}

    def reset(key: Any) -> tuple[Any, Tree]:
        del key  # Nothing is random.
        return {"room": jnp.int32(0)}, observe(0)

    def step(world: Any, key: Any, action: Any) -> tuple[Any, Tree, Any, Any]:
        del key
        room = world["room"]
        leads_on = action == right[room]
        reward = jnp.where(leads_on, 1.0, jnp.where(unlocked[room, action], 0.0, -1.0))
        after = jnp.where(leads_on, room + 1, outside).astype(jnp.int32)
        return {"room": after}, observe(after), reward, after == outside

    return NativeEnvironment(plan.spec, reset, step)


TOYS: dict[str, Callable[..., NativeEnvironment]] = {"toy:doors": make_doors}
"""The toys of this kind, by id."""
