"""The wire format of unrolls and weights, where actors run the policy themselves: flat lists of arrays.

The layouts follow from the agent and the environments alone, so both ends know them.
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
"""The layout of one version: of the weights that are asked for, or that the next unroll acts with."""


class UnrollCodec:
    """The codec of a lane's complete unroll, with the priorities of its items if the agent has any.

    Args:
      agent: the agent whose unrolls travel.
      spec: spec of the environments.
      rows: number of environments in the lane, ``n``.
    """

    def __init__(self, agent: Agent, spec: EnvSpec, rows: int) -> None:
        data = agent.data
        example = example_unroll(agent, spec, data.overlap + data.unroll_length, rows)
        # Actions in the dtype of the environments, which may not be the policy's.
        example = example._replace(action=example.action.astype(spec.action.dtype), weight=None)
        leaves, self._structure = jax.tree.flatten(example)
        fields = [(leaf.shape, leaf.dtype.name) for leaf in leaves]
        self._priorities = agent.priorities is not None
        if self._priorities:
            fields.append(((data.items, rows), "float32"))
        self.layout = Layout(tuple(fields))

    def pack(self, unroll: Unroll, priorities: NDArray[np.float32] | None) -> list[NDArray[Any]]:
        """Returns the arrays of a message; ``priorities`` float32 ``[items, n]``, or None."""
        arrays = jax.tree.leaves(unroll)
        return [*arrays, priorities] if priorities is not None else arrays

    def unpack(self, arrays: Sequence[NDArray[Any]]) -> tuple[Unroll, NDArray[np.float32] | None]:
        """Returns copies of the unroll and, if the agent has any, of the priorities float32 ``[items, n]``."""
        copies = [array.copy() for array in arrays]
        priorities = copies.pop() if self._priorities else None
        unroll: Unroll = jax.tree.unflatten(self._structure, copies)
        return unroll, priorities


class WeightsCodec:
    """The codec of a snapshot: the parameters and their version.

    Args:
      agent: the agent whose parameters travel.
    """

    def __init__(self, agent: Agent) -> None:
        leaves, self._structure = jax.tree.flatten(jax.eval_shape(agent.init, key(0, "example")))
        self.layout = Layout((*VERSION.fields, *((leaf.shape, leaf.dtype.name) for leaf in leaves)))

    def pack(self, weights: Weights) -> list[NDArray[Any]]:
        """Returns the arrays of a message, on the host."""
        params = jax.device_get(jax.tree.leaves(weights.params))
        return [version_array(weights.version), *map(np.asarray, params)]

    def unpack(self, arrays: Sequence[NDArray[Any]], device: Any) -> Weights:
        """Returns a copy of the snapshot, on ``device``."""
        version, *params = arrays
        copies = [np.array(array) for array in params]
        tree: Tree = jax.device_put(jax.tree.unflatten(self._structure, copies), device)
        return Weights(tree, int(version))


def lanes_of_unrolls(unroll: UnrollCodec, weights: WeightsCodec, lanes: int) -> list[Layouts]:
    """Returns the layouts: unrolls up and versions down; on one lane more, versions up and weights down."""
    return [*[Layouts(unroll.layout, VERSION)] * lanes, Layouts(VERSION, weights.layout)]


def blind(unroll: Unroll) -> Unroll:
    """Removes the large parts that :attr:`seedbed.types.Agent.priorities` does not read: observations and states."""
    return unroll._replace(timestep=unroll.timestep._replace(observation={}), state={})


def version_array(version: int) -> NDArray[np.int64]:
    """Returns a version as an array, int64 ``[]``."""
    return np.array(version, np.int64)


class Introduction(NamedTuple):
    """The answer to an actor's ``ready``, as JSON values.

    Attributes:
      seed: seed of the run.
      epoch: number of actors that had its index before.
      numbers: number of each of its environments among the environments of all hosts.
      exploration: rank of each environment, and whether it only evaluates.
      versions: version of the weights that each lane begins with.
    """

    seed: int
    epoch: int
    numbers: list[int]
    exploration: tuple[list[float], list[bool]]
    versions: list[int]
