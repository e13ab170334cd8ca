"""The learner of a worker whose gradients a parameter server applies."""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp

from seedbed.learning.learner import Learner
from seedbed.learning.update import Gradient
from seedbed.parameter_server.shards import Fetched, Receipt
from seedbed.types import Agent, Tree, Unroll

_DECAY = 0.99
_KNOWN_AFTER = 100


class ParameterServer(Protocol):
    """The interface of a parameter server to a learner; see :mod:`seedbed.parameter_server.shards`."""

    def fetch(self) -> Fetched:
        """Fetches the newest parameters."""

    def push(self, gradient: Tree, versions: Sequence[int], carried: float = 1.0) -> list[Receipt]:
        """Pushes its part of a gradient to every shard, and returns the receipts.

        Args:
          gradient: gradient in the structure of the parameters.
          versions: version of each shard's parameters at which the gradient was computed.
          carried: share of its batch's transitions that environments carried out, from 0 to 1.
        """


class Outliers:
    """A detector of outliers among losses, whose gradients are not pushed (Nair et al. 2015, section 4).

    A loss is an outlier if it is above the mean by more than ``deviations`` standard deviations. Mean and deviation are
    exponential averages over all losses, outliers included, and are used after the first hundred losses: losses that
    stay high are soon no outliers.

    Args:
      deviations: number of standard deviations above the mean; None: no loss is an outlier.
    """

    def __init__(self, deviations: float | None) -> None:
        self._deviations = deviations
        self._seen = 0
        self._mean = self._square = 0.0

    def is_one(self, loss: float) -> bool:
        """Returns whether this loss is an outlier, and counts it into mean and deviation."""
        if self._deviations is None:
            return False
        deviation = math.sqrt(max(self._square - self._mean**2, 0.0))
        found = self._seen >= _KNOWN_AFTER and loss > self._mean + self._deviations * deviation
        self._seen += 1
        rate = max(1 - _DECAY, 1 / self._seen)
        self._mean += rate * (loss - self._mean)
        self._square += rate * (loss**2 - self._square)
        return found


class Pushed(NamedTuple):
    """The counts of a worker's gradients since they were last read.

    Attributes:
      staleness: staleness of each part that reached a shard.
      dropped: number of gradients that changed nothing, since they were too stale or their shards were gone.
      outliers: number of gradients that were not pushed, since their loss was an outlier.
      version: newest version of any shard.
      up: bytes of the pushed gradients.
      down: bytes of the fetched parameters.
    """

    staleness: list[int]
    dropped: int
    outliers: int
    version: int
    up: int = 0
    down: int = 0


class PushingLearner(Learner):
    """A learner that pushes its gradients to a parameter server; its parameters are the fetched ones.

    It pushes the mean of the gradients since its last push. (Dean et al. 2012, algorithm 7.1, push their sum, with
    which ``n_push`` would be part of the step size, and move their own copy by each gradient until they fetch, which
    has no effect with ``n_fetch`` = 1.)

    The target parameters are fetched ones too: they are replaced each time the server has taken another
    ``target_period`` gradients (Nair et al. 2015, algorithm 1).

    Args:
      agent: the agent whose loss is used.
      devices: the JAX devices that train.
      key: random key for losses that draw random numbers.
      server: parameter server that applies the gradients.
      outliers: detector of the losses whose gradients are not pushed.
      n_fetch: number of gradients between two fetches of the newest parameters.
      n_push: number of gradients that are pushed together, as their mean.
    """

    def __init__(
        self,
        agent: Agent,
        devices: Sequence[Any],
        key: Any,
        server: ParameterServer,
        outliers: Outliers,
        *,
        n_fetch: int = 1,
        n_push: int = 1,
    ) -> None:
        super().__init__(agent, devices, key)
        self._server = server
        self._outliers = outliers
        self._n_fetch, self._n_push = n_fetch, n_push
        self._computed = 0
        self._accrued: list[Tree] = []
        self._carried: list[float] = []
        self._computed_at: tuple[int, ...] = ()
        self._mean = jax.jit(lambda *trees: jax.tree.map(lambda *leaves: sum(leaves) / len(trees), *trees))
        self._gradient = jax.jit(self._update.gradient)
        self._lock = threading.Lock()
        self._told = Pushed([], 0, 0, 0)
        self._target_period = agent.data.target_period
        self._targets = -1
        self.fetch()

    def warm_up(self, example: Unroll) -> None:
        """Compiles all programs for batches like ``example`` (on the host); pushes nothing."""
        jax.block_until_ready(self._gradient_of(self.put(example)))
        self.fetch()  # other workers have gone on meanwhile

    def update(self, batch: Unroll, carried: float = 1.0) -> dict[str, Any]:
        """Computes one gradient, and pushes and fetches when it is time; returns metrics as device scalars.

        The state's update count is that of this worker's own gradients, pushed or not.
        """
        found = self._gradient_of(batch)
        self._priorities = found.priorities
        finite = bool(found.finite)
        outlier = finite and self._outliers.is_one(float(found.metrics["loss/total"]))
        if finite and not outlier:
            # As stale as the oldest gradient of a push.
            self._computed_at = self._computed_at if self._accrued else self._versions
            self._accrued.append(found.gradient)
            self._carried.append(float(found.carried) * carried)
        with self._lock:
            self._told = self._told._replace(outliers=self._told.outliers + outlier)
        self._computed += 1
        skipped = not finite
        if self._computed % self._n_push == 0 and self._accrued:
            skipped |= self._push()
        if self._computed % self._n_fetch == 0:
            self.fetch()
        skip = jnp.int32(skipped)
        state = self.state
        self.state = state._replace(
            updates=state.updates + 1,
            skipped=state.skipped + skip,
            skipped_in_row=(state.skipped_in_row + skip) * skip,
        )
        return {**found.metrics, "skipped_updates": self.state.skipped}

    def flush(self) -> None:
        """Pushes the gradients that were not pushed yet, fewer than ``n_push``."""
        if self._accrued:
            self._push()

    def pushed(self) -> Pushed:
        """Returns the counts since the last call; may be called from any thread."""
        with self._lock:
            told = self._told
            self._told = told._replace(staleness=[], dropped=0, outliers=0, up=0, down=0)
        return told

    def _gradient_of(self, batch: Unroll) -> Gradient:
        state = self.state
        found: Gradient = self._gradient(state.params, state.target, state.key, state.updates, batch)
        return found

    def _push(self) -> bool:
        """Pushes the mean of the accrued gradients; returns whether a shard has skipped it."""
        together = len(self._accrued)
        gradient = self._accrued[0] if together == 1 else self._mean(*self._accrued)
        carried = sum(self._carried) / together
        self._accrued, self._carried = [], []
        receipts = self._server.push(gradient, self._computed_at, carried)
        with self._lock:
            told = self._told = self._told._replace(up=self._told.up + _bytes_of(gradient))
            told.staleness.extend(receipt.staleness for receipt in receipts)
            if not any(receipt.taken for receipt in receipts):
                self._told = told._replace(dropped=told.dropped + together)
        return any(receipt.skipped for receipt in receipts)

    @property
    def newest(self) -> int:
        """Newest version of any shard at the last fetch."""
        return max(self._versions)

    def fetch(self) -> None:
        """Replaces the parameters by the newest ones of the server."""
        fetched = self._server.fetch()
        params = jax.block_until_ready(jax.device_put(fetched.params, self._update.whole))
        self._versions = fetched.versions
        with self._lock:
            down = self._told.down + _bytes_of(fetched.params)
            self._told = self._told._replace(version=self.newest, down=down)
        self.state = self.state._replace(params=params)
        if self._target_period and (targets := self.newest // self._target_period) != self._targets:
            self._targets = targets
            self.state = self.state._replace(target=params)


def _bytes_of(tree: Tree) -> int:
    return sum(int(leaf.nbytes) for leaf in jax.tree.leaves(tree))
