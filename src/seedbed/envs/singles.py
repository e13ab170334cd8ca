"""Gymnasium environments that were made one by one, as one vector environment."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array, iterate

from seedbed.envs.final_infos import FINAL
from seedbed.errors import EnvironmentFault, SpecError


class Singles(VectorEnv[Any, Any, Any]):
    """A batch of environments that are stepped one after the other, each reset in the step after its end.

    Unlike Gymnasium's ``SyncVectorEnv`` it leaves out their ``info``, which need not fit into arrays. The one of final
    steps is kept, in a list: ``info[FINAL]``.

    Args:
      envs: the environments; their spaces are equal.

    Raises:
      SpecError: the spaces of two of them differ.
    """

    def __init__(self, envs: Sequence[gymnasium.Env[Any, Any]]) -> None:
        self.envs = list(envs)
        self.num_envs = len(self.envs)
        first = self.envs[0]
        self.metadata = {**first.metadata, "autoreset_mode": AutoresetMode.NEXT_STEP}
        self.render_mode = first.render_mode
        self.single_observation_space, self.single_action_space = first.observation_space, first.action_space
        for env in self.envs:
            _require_same("observations", env.observation_space, first.observation_space)
            _require_same("actions", env.action_space, first.action_space)
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self._ended = np.zeros(self.num_envs, np.bool_)

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """Starts every environment anew, each with its seed."""
        self._ended = np.zeros(self.num_envs, np.bool_)
        shown: list[Any] = []
        with _numbered(shown):
            for env, one in zip(self.envs, seed, strict=True):
                shown.append(env.reset(seed=one, options=options)[0])
        return self._batch(shown), {}

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Takes one action in each environment; one whose episode has ended begins the next instead."""
        shown: list[Any] = []
        final: list[Mapping[Any, Any]] = []
        rewards = np.zeros(self.num_envs, np.float64)
        terminated, truncated = np.zeros((2, self.num_envs), np.bool_)
        with _numbered(shown):
            for index, (env, action) in enumerate(
                zip(self.envs, iterate(self.action_space, actions), strict=True)
            ):
                if self._ended[index]:
                    observation, _ = env.reset()
                else:
                    observation, rewards[index], terminated[index], truncated[index], info = env.step(action)
                    if (terminated[index] or truncated[index]) and isinstance(info, Mapping):
                        final.append(info)
                shown.append(observation)
        self._ended = terminated | truncated
        return self._batch(shown), rewards, terminated, truncated, {FINAL: final} if final else {}

    def _batch(self, shown: Sequence[Any]) -> Any:
        space: Any = self.single_observation_space
        out: Any = create_empty_array(space, n=self.num_envs, fn=np.empty)
        return concatenate(space, shown, out)

    def render(self) -> tuple[Any, ...]:
        """The picture of environment 0."""
        return (self.envs[0].render(),)

    def close_extras(self, **kwargs: Any) -> None:
        """Closes the environments."""
        for env in self.envs:
            env.close()


@contextlib.contextmanager
def _numbered(shown: Sequence[Any]) -> Iterator[None]:
    """Says of a fault which environment it is of: as many have shown something before it."""
    try:
        yield
    except EnvironmentFault as fault:
        fault.environment = len(shown)
        raise


def _require_same(what: str, space: Any, first: Any) -> None:
    if space != first:
        raise SpecError(
            f"{what} of the environments of one batch differ: {first} and {space}; they have to be equal"
        )
