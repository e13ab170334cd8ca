"""The parameter server: the parameters in shards, each of which applies gradients as they come.

Dean et al. 2012, "Large scale distributed deep networks", section 4.1: shards know nothing of one another, so that at a
given moment they may have taken other gradients, in other orders. Every number is on one shard, with the optimizer's
state for it (the statistics are shared by all who push, as in Mnih et al. 2016, section 4).

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
from seedbed.ops.optimizers import apply_gradient
from seedbed.types import Tree, leaves

_ATTEMPTS = 10


class Part(NamedTuple):
    """What one shard holds; the arrays never change.

    Attributes:
      params: its parts ``[n]`` of the parameters.
      opt_state: the optimizer's state for them.
      version: gradients that it has taken, those that it skipped too.
      skipped: how many of them would have led to numbers that are not finite, and changed nothing else.
    """

    params: Tree
    opt_state: Tree
    version: int
    skipped: int


@dataclass(frozen=True)
class Bound:
    """How stale a gradient may be: how many others its shard has taken since the parameters that it was computed at.

    Attributes:
      most: None for any.
      beyond: what becomes of one that is staler: ``drop`` it (Nair et al. 2015, section 4), or ``scale`` down what it
        changes, by ``(most + 1) / (staleness + 1)``. (The gradient itself would not do: Adam and RMSProp divide by its
        size.)
    """

    most: int | None = None
    beyond: Literal["drop", "scale"] = "drop"

    def weight(self, staleness: int) -> float:
        """What a gradient of this staleness counts; 0 for nothing."""
        if self.most is None or staleness <= self.most:
            return 1.0
        return (self.most + 1) / (staleness + 1) if self.beyond == "scale" else 0.0


class Receipt(NamedTuple):
    """What became of a gradient.

    Attributes:
      version: of the shard, after it.
      staleness: of the gradient.
      taken: False if it was too stale and dropped.
      skipped: True if it was taken, and skipped since it would have led to numbers that are not finite.
    """

    version: int
    staleness: int
    taken: bool
    skipped: bool = False


class Fetched(NamedTuple):
    """The newest parameters.

    Attributes:
      params: whole.
      versions: of each shard when it gave its part.
    """

    params: Tree
    versions: tuple[int, ...]


def cut(tree: Tree, shards: int) -> list[Tree]:
    """``tree`` in so many parts: of each leaf ``[n]`` in C order, of equal sizes but for one; scalars are on each."""

    def part(leaf: Any, index: int) -> Any:
        if leaf.ndim == 0:
            return leaf
        flat = leaf.reshape(-1)
        return flat[leaf.size * index // shards : leaf.size * (index + 1) // shards]

    return [jax.tree.map(partial(part, index=index), tree) for index in range(shards)]


def join(parts: Sequence[Tree], like: Tree) -> Tree:
    """The tree that :func:`cut` has made ``parts`` of; ``like`` has its shapes. Scalars are those of the first part."""

    def whole(leaf: Any, *pieces: Any) -> Any:
        return pieces[0] if not np.shape(leaf) else jnp.concatenate(pieces).reshape(np.shape(leaf))

    return jax.tree.map(whole, like, *parts)


class Shard:
    """One shard; safe to use from any thread.

    Args:
      optimizer: see :attr:`seedbed.types.Agent.optimizer`.
      part: what it holds first.
      bound: how stale a gradient may be.
    """

    def __init__(self, optimizer: optax.GradientTransformation, part: Part, bound: Bound) -> None:
        self._bound = bound
        self._part = part
        self._lock = threading.Lock()
        self._apply = jax.jit(partial(apply_gradient, optimizer))

    def __repr__(self) -> str:
        numbers = sum(leaf.size for leaf in jax.tree.leaves(self._part.params))
        return f"<shard: {numbers} parameters, version {self._part.version}>"

    @property
    def part(self) -> Part:
        """What it holds now."""
        return self._part

    def push(self, gradient: Tree, version: int, carried: float = 1.0) -> Receipt:
        """Applies its part of a gradient that was computed at its parameters of that version.

        ``carried`` is the share of its batch's transitions that environments carried out, see
        :func:`~seedbed.ops.optimizers.apply_gradient`.

        Raises:
          SpecError: the gradient has another structure, shape or dtype, or is of parameters that it never had, or the
            share is none; nothing was changed.
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
    """What all shards hold, taken again until none of them has gone on meanwhile, or a few times.

    Their versions need not be equal: one may have dropped what another has taken.
    """
    parts = take()
    for _ in range(_ATTEMPTS):
        before, parts = parts, take()
        if [part.version for part in before] == [part.version for part in parts]:
            break
    return parts


class LocalShards:
    """All shards in this process; safe to use from any thread.

    Args:
      optimizer: see :attr:`seedbed.types.Agent.optimizer`.
      whole: parameters, optimizer's state and counts, not cut; the version is that of every shard.
      shards: how many.
      bound: how stale a gradient may be.
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
        """The newest parameters; one shard may have taken a gradient that another is about to take."""
        parts = [shard.part for shard in self.shards]
        return Fetched(self._join([part.params for part in parts]), tuple(part.version for part in parts))

    def push(self, gradient: Tree, versions: Sequence[int], carried: float = 1.0) -> list[Receipt]:
        """Gives every shard its part of a gradient.

        Args:
          gradient: of the parameters' structure.
          versions: of each shard, when it gave the parameters that the gradient was computed at.
          carried: the share of its batch's transitions that environments carried out.

        Raises:
          SpecError: see :meth:`Shard.push`.
        """
        # Before it is cut: a part of what does not fit might.
        _require_same(self._like, gradient)
        parts = self._cut(gradient)
        return [
            shard.push(part, version, carried)
            for shard, part, version in zip(self.shards, parts, versions, strict=True)
        ]

    def whole(self) -> Part:
        """What all shards hold now, not cut; the version and the skipped gradients are those of the newest shard.

        All are between the same two gradients of each worker, unless one is always under way.
        """
        parts = settled(lambda: [shard.part for shard in self.shards])
        newest = max(parts, key=lambda part: part.version)
        return newest._replace(
            params=self._join([part.params for part in parts]),
            opt_state=self._join_state([part.opt_state for part in parts]),
        )
