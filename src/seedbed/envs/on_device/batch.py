"""Native environments stepped by a host, for the architectures whose environments stand outside the program."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from seedbed.envs.on_device.interface import EnvState, NativeEnvironment
from seedbed.envs.seeds import environment_seeds
from seedbed.types import ACTION_MASK, TimeStep, Tree, leaves

_SIDE = 16
_COLOURS = np.array(
    [[255, 255, 255], [230, 75, 53], [77, 187, 213], [0, 160, 135], [243, 155, 127], [60, 84, 136]], np.uint8
)


class NativeBatch:
    """A batch of one native environment on the CPU, with any other devices beside it.

    It has ``num_envs`` rows, or a few more where environments have several agents, each of which is a row.

    The streams follow :mod:`seedbed.envs.on_device.interface`; environment ``i`` is seeded from ``(seed, i)``.
    """

    def __init__(self, env: NativeEnvironment, num_envs: int) -> None:
        self.spec = env.spec
        self._envs = -(-num_envs // env.spec.rows)
        self.num_envs = self._envs * env.spec.rows
        self._env = env
        self._advance: Any = None  # Compiled at the first reset.
        self._stage: EnvState | None = None
        self._shown: TimeStep | None = None

    def reset(self, seed: int) -> TimeStep:
        """Starts every environment anew; the first time it compiles a step too, so that no step waits for that."""
        seeds = environment_seeds(seed, self._envs).astype(np.uint32)
        with _on_the_processor():
            self._stage, self._shown = self._env.compiled_begin(seeds)
            if self._advance is None:
                action = jax.ShapeDtypeStruct(
                    (self.num_envs, *self.spec.action.shape), self.spec.action.dtype
                )
                self._advance = self._env.compiled_advance(self._stage, action)
        return self._host()

    def send(self, action: Any) -> None:
        """Starts the step and returns."""
        assert self._stage is not None, "reset comes first"
        with _on_the_processor():
            self._stage, self._shown = self._advance(self._stage, np.asarray(action, self.spec.action.dtype))

    def receive(self) -> TimeStep:
        """Waits for the step that is under way."""
        return self._host()

    def _host(self) -> TimeStep:
        step: TimeStep = jax.device_get(self._shown)
        return step

    def render(self) -> Any:
        """Environment 0, uint8 ``[H, W, 3]``: its own picture, or its observation in squares."""
        if self._env.render is not None:
            assert self._stage is not None, "reset comes first"
            return np.asarray(
                self._env.render(jax.tree.map(lambda leaf: leaf[0], self._stage.world)), np.uint8
            )
        return _squares(jax.tree.map(lambda leaf: leaf[0], self._host().observation))

    def close(self) -> None:
        """Frees the resources of the environments."""
        self._stage = self._shown = None


def _on_the_processor() -> Any:
    return jax.default_device(jax.local_devices(backend="cpu")[0])


def _squares(observation: Tree) -> Any:
    """An observation as coloured squares: the planes of a picture above each other, numbers in a row."""
    shown = [leaf for path, leaf in leaves(observation) if path != ACTION_MASK]
    array = np.asarray(shown[0], np.float32)
    planes = array if array.ndim == 3 else np.atleast_2d(array)[..., None]
    lowest, highest = float(planes.min()), float(planes.max())
    bright = (planes - lowest) / max(highest - lowest, 1e-6)
    picture = np.zeros((*planes.shape[:2], 3))
    for plane in range(planes.shape[2]):
        colour = _COLOURS[plane % len(_COLOURS)]
        picture = np.maximum(picture, bright[..., plane, None] * colour)
    return picture.astype(np.uint8).repeat(_SIDE, 0).repeat(_SIDE, 1)
