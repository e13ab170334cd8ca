"""The parameter server: the parameters in shards, each of which applies gradients as they come.

Dean et al. 2012, "Large scale distributed deep networks", section 4.1: shards are independent of one another, so that
at a given moment they may have applied different gradients, in different orders. Every parameter is on one shard, with
the optimizer's state for it (all workers share its statistics, as in Mnih et al. 2016, section 4).

A shard has a tree of the structure of the whole, with a part ``[n]`` of each leaf: all shards are of the same size,
however large one layer is (the paper cuts layers too), and the optimizer's state is cut as the parameters are.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from seedbed.errors import SpecError
from seedbed.ops.optimizers import apply_gradient, passed_over
from seedbed.types import Tree, leaves

_ATTEMPTS = 10


class Part(NamedTuple):
    """The state of one shard; immutable.

    Attributes:
      params: the shard's part ``[n]`` of each leaf of the parameters.
      opt_state: the optimizer's state for them.
      version: number of gradients that the shard has taken, skipped ones included.
      skipped: number of gradients that were skipped, since they would have led to numbers that are not finite.
    """

    params: Tree
    opt_state: Tree
    version: int
    skipped: int


@dataclass(frozen=True)
class Bound:
    """A bound on the staleness of gradients.

    The staleness of a gradient is the number of gradients that its shard has taken since the version of the parameters
    at which it was computed.

    Attributes:
      most: largest staleness of a gradient that is applied whole; None for any.
      beyond: treatment of staler gradients: ``drop`` them (Nair et al. 2015, section 4), or ``scale`` their update by
        ``(most + 1) / (staleness + 1)``. (To scale the gradient itself would have no effect: Adam and RMSProp divide by
        its size.)
    """

    most: int | None = None
    beyond: Literal["drop", "scale"] = "drop"

    def weight(self, staleness: int) -> float:
        """Returns the factor, from 0 (drop) to 1, of the update by a gradient of this staleness."""
        if self.most is None or staleness <= self.most:
            return 1.0
        return (self.most + 1) / (staleness + 1) if self.beyond == "scale" else 0.0


class Receipt(NamedTuple):
    """A shard's receipt for a pushed gradient.

    Attributes:
      version: version of the shard after the push.
      staleness: staleness of the gradient, see :class:`Bound`.
      taken: whether the gradient was taken; False if it was too stale and dropped.
      skipped: whether it was taken and skipped, since it would have led to numbers that are not finite.
    """

    version: int
    staleness: int
    taken: bool
    skipped: bool = False


class Fetched(NamedTuple):
    """The newest parameters, as they were fetched.

    Attributes:
      params: the whole parameters.
      versions: version of each shard when its part was fetched.
    """

    params: Tree
    versions: tuple[int, ...]


def cut(tree: Tree, shards: int) -> list[Tree]:
    """Cuts ``tree`` into ``shards`` parts: each leaf, flat in C order, into pieces ``[n]`` of equal size but for 1.

    Every part has all scalars.
    """

    def part(leaf: Any, index: int) -> Any:
        if leaf.ndim == 0:
            return leaf
        flat = leaf.reshape(-1)
        return flat[leaf.size * index // shards : leaf.size * (index + 1) // shards]

    return [jax.tree.map(partial(part, index=index), tree) for index in range(shards)]


def join(parts: Sequence[Tree], like: Tree) -> Tree:
    """Joins the parts that :func:`cut` has made to a tree with the shapes of ``like``; takes scalars of the first."""

    def whole(leaf: Any, *pieces: Any) -> Any:
        return pieces[0] if not np.shape(leaf) else jnp.concatenate(pieces).reshape(np.shape(leaf))

    return jax.tree.map(whole, like, *parts)


class Shard:
    """A shard of the parameters; safe to use from any thread.

    Args:
      optimizer: the agent's optimizer, see :attr:`seedbed.types.Agent.optimizer`.
      part: initial state.
      bound: bound on the staleness of gradients.
    """

    def __init__(self, optimizer: optax.GradientTransformation, part: Part, bound: Bound) -> None:
        self._bound = bound
        self._part = part
        self._lock = threading.Lock()
        self._apply = jax.jit(partial(apply_gradient, optimizer))
        self._pass_over = jax.jit(passed_over)

    def __repr__(self) -> str:
        numbers = sum(leaf.size for leaf in jax.tree.leaves(self._part.params))
        return f"<shard: {numbers} parameters, version {self._part.version}>"

    @property
    def part(self) -> Part:
        """The present state."""
        return self._part

    def push(self, gradient: Tree, version: int, carried: float = 1.0) -> Receipt:
        """Applies the shard's part of a gradient.

        Args:
          gradient: parts ``[n]`` in the structure of the shard's parameters.
          version: version of the shard's parameters at which the gradient was computed.
          carried: share of its batch's transitions that environments carried out, from 0 to 1; see
            :func:`~seedbed.ops.optimizers.apply_gradient`.

        Raises:
          SpecError: the gradient has another structure, shape or dtype, or a version that the shard has not reached, or
            the share is out of range; nothing was changed.
        """
        _require_same(self._part.params, gradient)
        if not 0.0 <= carried <= 1.0:
            raise SpecError(f"a share of {carried} of transitions was pushed, and needed is one from 0 to 1")
        with self._lock:
            before = self._part
            staleness = before.version - version
            if staleness < 0:
                raise SpecError(
                    f"a gradient of the parameters of version {version} was pushed to a shard that has come to version "
                    f"{before.version}: nothing was changed; fetch the parameters again"
                )
            weight = self._bound.weight(staleness)
            if weight == 0.0:
                # It counts towards the run's length, over which a rate is annealed.
                passed = self._pass_over(before.opt_state, np.float32(carried))
                self._part = before._replace(opt_state=passed)
                return Receipt(before.version, staleness, taken=False)
            params, opt_state, finite = self._apply(
                before.params,
                before.opt_state,
                gradient,
                weight=np.float32(weight),
                carried=np.float32(carried),
            )
            skipped = not bool(finite)
            self._part = Part(params, opt_state, before.version + 1, before.skipped + skipped)
            return Receipt(before.version + 1, staleness, taken=True, skipped=skipped)


def _require_same(params: Tree, gradient: Tree) -> None:
    needed, given = leaves(params), leaves(gradient)
    names, pushed_names = ([path for path, _ in found] for found in (needed, given))
    if names != pushed_names:
        raise SpecError(
            f"a gradient of {', '.join(pushed_names)} was pushed, and the parameters are {', '.join(names)}: "
            "nothing was changed"
        )
    for (path, leaf), (_, pushed) in zip(needed, given, strict=True):
        if leaf.shape != pushed.shape or leaf.dtype != pushed.dtype:
            raise SpecError(
                f"a gradient of {pushed.dtype}{list(pushed.shape)} was pushed for {path}, of which this shard has "
                f"{leaf.dtype}{list(leaf.shape)}: nothing was changed"
            )


def settled(take: Callable[[], list[Part]]) -> list[Part]:
    """Takes the states of all shards, again until no version has changed meanwhile, at most a few times.

    Versions of the shards need not be equal: one may have dropped a gradient that another has taken.
    """
    parts = take()
    for _ in range(_ATTEMPTS):
        before, parts = parts, take()
        if [part.version for part in before] == [part.version for part in parts]:
            break
    return parts


class LocalShards:
    """A parameter server whose shards are all in this process; safe to use from any thread.

    Args:
      optimizer: the agent's optimizer, see :attr:`seedbed.types.Agent.optimizer`.
      whole: initial state of the whole, not cut; every shard begins at its version.
      shards: number of shards.
      bound: bound on the staleness of gradients.
    """

    def __init__(
        self, optimizer: optax.GradientTransformation, whole: Part, shards: int, bound: Bound
    ) -> None:
        self._like, like_state = jax.eval_shape(lambda: (whole.params, whole.opt_state))
        # Compiled: one program instead of one for every leaf.
        self._cut = jax.jit(partial(cut, shards=shards))
        self._join = jax.jit(partial(join, like=self._like))
        self._join_state = jax.jit(partial(join, like=like_state))
        parts = zip(self._cut(whole.params), self._cut(whole.opt_state), strict=True)
        self.shards = [Shard(optimizer, Part(*part, whole.version, whole.skipped), bound) for part in parts]

    def fetch(self) -> Fetched:
        """Returns the newest parameters; one shard may have taken a gradient that another is about to take."""
        parts = [shard.part for shard in self.shards]
        return Fetched(self._join([part.params for part in parts]), tuple(part.version for part in parts))

    def push(self, gradient: Tree, versions: Sequence[int], carried: float = 1.0) -> list[Receipt]:
        """Pushes its part of a gradient to every shard, and returns the receipts.

        Args:
          gradient: gradient in the structure of the parameters.
          versions: version of each shard's parameters at which the gradient was computed.
          carried: share of its batch's transitions that environments carried out, from 0 to 1.

        Raises:
          SpecError: the gradient does not fit, see :meth:`Shard.push`.
        """
        # Checked before it is cut: parts of a gradient that does not fit might fit.
        _require_same(self._like, gradient)
        parts = self._cut(gradient)
        return [
            shard.push(part, version, carried)
            for shard, part, version in zip(self.shards, parts, versions, strict=True)
        ]

    def whole(self) -> Part:
        """Returns the present state of the whole, with version and skipped count of the newest shard.

        All shards are between the same two gradients of each worker, unless a gradient is always under way.
        """
        parts = settled(lambda: [shard.part for shard in self.shards])
        newest = max(parts, key=lambda part: part.version)
        return newest._replace(
            params=self._join([part.params for part in parts]),
            opt_state=self._join_state([part.opt_state for part in parts]),
        )
