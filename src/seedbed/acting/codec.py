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
from seedbed.acting.opponents import COLUMNS
from seedbed.seeding import key
from seedbed.transport.interface import Layout, Layouts
from seedbed.types import Agent, EnvSpec, Tree, Unroll, Weights

VERSION = Layout((((), "int64"),))
"""The layout of one version: of the weights that are asked for, or that the next unroll acts with."""


class UnrollCodec:
    """The codec of a lane's complete unroll, with the priorities of its items if the agent has any, and its players.

    Args:
      agent: the agent whose unrolls travel.
      spec: spec of the environments.
      rows: number of environments in the lane, ``n``.
      players: whether the versions that play its rows travel with it (self-play).
    """

    def __init__(self, agent: Agent, spec: EnvSpec, rows: int, *, players: bool = False) -> None:
        data = agent.data
        example = example_unroll(agent, spec, data.overlap + data.unroll_length, rows)
        # Actions in the dtype of the environments, which may not be the policy's.
        example = example._replace(action=example.action.astype(spec.action.dtype), weight=None)
        leaves, self._structure = jax.tree.flatten(example)
        fields = [(leaf.shape, leaf.dtype.name) for leaf in leaves]
        self._priorities = agent.priorities is not None
        if self._priorities:
            fields.append(((data.items, rows), "float32"))
        self._players = players
        if players:
            fields.append(((data.overlap + data.unroll_length, rows), "int32"))
        self.layout = Layout(tuple(fields))

    def pack(
        self,
        unroll: Unroll,
        priorities: NDArray[np.float32] | None = None,
        players: NDArray[np.int32] | None = None,
    ) -> list[NDArray[Any]]:
        """Returns the arrays of a message.

        Args:
          unroll: the unroll.
          priorities: float32 ``[items, n]``, or None.
          players: int32 ``[T, n]``, version that plays each row at each decision (see
            :attr:`seedbed.acting.opponents.Games.players`), or None.
        """
        return [*jax.tree.leaves(unroll), *(each for each in (priorities, players) if each is not None)]

    def unpack(
        self, arrays: Sequence[NDArray[Any]]
    ) -> tuple[Unroll, NDArray[np.float32] | None, NDArray[np.int32] | None]:
        """Returns copies of the arguments of :meth:`pack`."""
        copies = [array.copy() for array in arrays]
        players = copies.pop() if self._players else None
        priorities = copies.pop() if self._priorities else None
        unroll: Unroll = jax.tree.unflatten(self._structure, copies)
        return unroll, priorities, players


class WeightsCodec:
    """The codec of a snapshot: the parameters and their version; in self-play, then, the table of the pool.

    Args:
      agent: the agent whose parameters travel.
      opponents: most frozen versions in the pool; 0 without self-play.
    """

    def __init__(self, agent: Agent, opponents: int = 0) -> None:
        leaves, self._structure = jax.tree.flatten(jax.eval_shape(agent.init, key(0, "example")))
        fields = [*VERSION.fields, *((leaf.shape, leaf.dtype.name) for leaf in leaves)]
        self._params = slice(1, len(fields))
        self.layout = Layout((*fields, *[((opponents, COLUMNS), "float64")] * bool(opponents)))

    def pack(self, weights: Weights) -> list[NDArray[Any]]:
        """Returns the arrays of a message but for the table, on the host."""
        params = jax.device_get(jax.tree.leaves(weights.params))
        return [version_array(weights.version), *map(np.asarray, params)]

    def table(self, arrays: Sequence[NDArray[Any]]) -> NDArray[np.float64] | None:
        """Returns a copy of the table (see :meth:`seedbed.acting.opponents.Pool.table`); None without self-play."""
        tables = arrays[self._params.stop :]
        return np.array(tables[0]) if tables else None

    def unpack(self, arrays: Sequence[NDArray[Any]], device: Any) -> Weights:
        """Returns a copy of the snapshot, on ``device``."""
        version, params = arrays[0], arrays[self._params]
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
