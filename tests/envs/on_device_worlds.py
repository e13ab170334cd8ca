"""Native environments for the tests, by ``on_device_worlds:factory``."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from seedbed.envs.on_device.interface import NativeEnvironment
from seedbed.envs.on_device.toys import make_doors
from seedbed.types import ArraySpec, EnvSpec


def walk(length: int = 4, limit: int = 6) -> NativeEnvironment:
    """A walk on a line: one step to the right with action 1, else to the left; ``length`` steps right are the end.

    Episodes begin at 0 or 1, at random, and are cut after ``limit`` steps. The reward is where one stands.
    """

    def reset(key: Any) -> tuple[Any, Any]:
        place = jax.random.randint(key, (), 0, 2)
        return {"place": place, "turns": 0}, {"place": place.astype(jnp.float32)[None]}

    def step(world: Any, key: Any, action: Any) -> tuple[Any, Any, Any, Any]:
        place = world["place"] + 2 * action - 1
        observation = {"place": place.astype(jnp.float32)[None]}
        return {"place": place, "turns": world["turns"] + 1}, observation, place, place >= length

    return NativeEnvironment(
        EnvSpec("walk", {"place": ArraySpec((1,), "float32")}, ArraySpec((), "int32", (2,))),
        reset,
        step,
        time_limit=limit,
    )


def blinking() -> NativeEnvironment:
    """One whose pictures are its own: all black, then all white."""
    drawn = walk()

    def render(world: Any) -> Any:
        return jnp.full((4, 4, 3), 255 * (world["turns"] % 2))

    return NativeEnvironment(drawn.spec, drawn.reset, drawn.step, render=render)


def spoiled(how: str) -> NativeEnvironment:
    """One with a fault."""
    plain = walk()

    def reset(key: Any) -> tuple[Any, Any]:
        world, observation = plain.reset(key)
        return {**world, "key": key} if how == "key" else world, observation

    def step(world: Any, key: Any, action: Any) -> tuple[Any, Any, Any, Any]:
        after, observation, reward, terminated = plain.step(world, key, action)
        match how:
            case "structure":
                after["more"] = 0
            case "shape":
                after["place"] = after["place"][None]
            case "key":
                after["key"] = key
            case "reward":
                reward = reward[None]
            case "observation":
                observation = observation["place"]
            case "error":
                raise RuntimeError("out of order")
        return after, observation, reward, terminated

    return NativeEnvironment(plain.spec, reset, step)


def unpaid(after: int = 5, place: bool = False) -> NativeEnvironment:
    """One that pays NaN, or shows it as its place, once an episode is longer than ``after`` steps."""
    plain = walk(length=10**6, limit=10**6)

    def step(world: Any, key: Any, action: Any) -> tuple[Any, Any, Any, Any]:
        world, observation, reward, terminated = plain.step(world, key, action)
        bad = jnp.where(world["turns"] > after, jnp.nan, 0.0)
        if place:
            return world, {"place": observation["place"] + bad}, reward, terminated
        return world, observation, reward + bad, terminated

    return NativeEnvironment(plain.spec, plain.reset, step)


def breaking(after: int = 30) -> NativeEnvironment:
    """One that fails on the device once an episode is longer than ``after`` steps, which it does not end."""
    plain = walk(length=10**6, limit=10**6)

    def fail(turns: Any) -> Any:
        if turns.max() > after:
            raise RuntimeError("the world has ended")
        return turns

    def step(world: Any, key: Any, action: Any) -> tuple[Any, Any, Any, Any]:
        world, *rest = plain.step(world, key, action)
        shape = jax.ShapeDtypeStruct((), jnp.int32)
        turns = jax.pure_callback(
            fail, shape, jnp.asarray(world["turns"], jnp.int32), vmap_method="sequential"
        )
        return {**world, "turns": turns}, *rest

    return NativeEnvironment(plain.spec, plain.reset, step)


def strict_doors() -> NativeEnvironment:
    """The toy of that name, which fails on the device where a locked door is tried, as its twin does on a host."""
    plain = make_doors("strict")

    def require(reward: Any) -> Any:
        if reward < 0:
            raise RuntimeError("a locked door was tried")
        return reward

    def step(world: Any, key: Any, action: Any) -> tuple[Any, Any, Any, Any]:
        after, observation, reward, terminated = plain.step(world, key, action)
        # The action at the end of an episode goes nowhere.
        counted = jnp.where(world["room"] == 8, 0.0, reward)
        shape = jax.ShapeDtypeStruct((), jnp.float32)
        checked = jax.pure_callback(require, shape, counted, vmap_method="sequential")
        return after, observation, checked, terminated

    return NativeEnvironment(plain.spec, plain.reset, step)


def wrong_mask() -> NativeEnvironment:
    """One whose action mask has an entry too few."""
    plain = make_doors("odd")
    observation = {**plain.spec.observation, "action_mask": ArraySpec((4,), "bool")}
    return NativeEnvironment(EnvSpec("odd", observation, plain.spec.action), plain.reset, plain.step)


def counted(num_envs: int) -> NativeEnvironment:
    """A factory that is told how many there are."""
    assert num_envs > 0
    return walk()


def no_world() -> int:
    """Nothing of the kind."""
    return 3
