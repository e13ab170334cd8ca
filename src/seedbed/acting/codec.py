"""How an unroll and the weights travel, where actors run the policy themselves: as flat lists of arrays.

Their layouts follow from the agent and the environments alone, so both ends know them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from numpy.typing import NDArray

from seedbed.acting.example import example_unroll
from seedbed.seeding import key
from seedbed.transport.interface import Layout, Layouts
from seedbed.types import Agent, EnvSpec, Tree, Unroll, Weights

VERSION = Layout((((), "int64"),))
"""One version: which weights are asked for, or are to be acted with next."""


class UnrollCodec:
    """The complete unroll of one lane, with the priorities of its items if the agent has any.

    Args:
      agent: whose unrolls.
      spec: of the environments.
      rows: how many there are, ``n``.
    """

    def __init__(self, agent: Agent, spec: EnvSpec, rows: int) -> None:
        data = agent.data
        example = example_unroll(agent, spec, data.overlap + data.unroll_length, rows)
        # Actions as environments take them, whatever the policy's own dtype is.
        example = example._replace(action=example.action.astype(spec.action.dtype), weight=None)
        leaves, self._structure = jax.tree.flatten(example)
        fields = [(leaf.shape, leaf.dtype.name) for leaf in leaves]
        self._priorities = agent.priorities is not None
        if self._priorities:
            fields.append(((data.items, rows), "float32"))
        self.layout = Layout(tuple(fields))

    def pack(self, unroll: Unroll, priorities: NDArray[np.float32] | None) -> list[NDArray[Any]]:
        """The arrays that travel."""
        arrays = jax.tree.leaves(unroll)
        return [*arrays, priorities] if priorities is not None else arrays

    def unpack(self, arrays: Sequence[NDArray[Any]]) -> tuple[Unroll, NDArray[np.float32] | None]:
        """The unroll, and the priorities float32 ``[items, n]`` if there are any; copies, since what came is lent."""
        copies = [array.copy() for array in arrays]
        priorities = copies.pop() if self._priorities else None
        unroll: Unroll = jax.tree.unflatten(self._structure, copies)
        return unroll, priorities


class WeightsCodec:
    """A snapshot of the parameters and its version.

    Args:
      agent: whose parameters.
    """

    def __init__(self, agent: Agent) -> None:
        leaves, self._structure = jax.tree.flatten(jax.eval_shape(agent.init, key(0, "example")))
        self.layout = Layout((*VERSION.fields, *((leaf.shape, leaf.dtype.name) for leaf in leaves)))

    def pack(self, weights: Weights) -> list[NDArray[Any]]:
        """The arrays that travel, on the host."""
        params = jax.device_get(jax.tree.leaves(weights.params))
        return [version_array(weights.version), *map(np.asarray, params)]

    def unpack(self, arrays: Sequence[NDArray[Any]], device: Any) -> Weights:
        """The snapshot on ``device``; a copy, since what came is lent."""
        version, *params = arrays
        copies = [np.array(array) for array in params]
        tree: Tree = jax.device_put(jax.tree.unflatten(self._structure, copies), device)
        return Weights(tree, int(version))


def lanes_of_unrolls(unroll: UnrollCodec, weights: WeightsCodec, lanes: int) -> list[Layouts]:
    """What travels: unrolls up and versions down; on one lane more, versions up and weights down."""
    return [*[Layouts(unroll.layout, VERSION)] * lanes, Layouts(VERSION, weights.layout)]


def blind(unroll: Unroll) -> Unroll:
    """What :attr:`seedbed.types.Agent.priorities` looks at: all but what is large."""
    return unroll._replace(timestep=unroll.timestep._replace(observation={}), state={})


def version_array(version: int) -> NDArray[np.int64]:
    """A version as it travels."""
    return np.array(version, np.int64)


class Introduction(NamedTuple):
    """What an actor is told when it is ready: as JSON values, in the answer.

    Attributes:
      seed: the run's.
      epoch: how many actors had its place before.
      numbers: of its environments among those of all hosts.
      exploration: rank of each environment, and whether it only evaluates.
      versions: by lane, of the weights that it begins with.
    """

    seed: int
    epoch: int
    numbers: list[int]
    exploration: tuple[list[float], list[bool]]
    versions: list[int]
