"""The vocabulary of Seedbed: the records that travel between the stages, and the meaning of each field.

This module imports NumPy only, so that an actor process starts without JAX. A *tree* is an array or a
nested ``dict`` of trees with string keys; its leaves are always taken in sorted key order, which is the
order JAX uses too. Leading axes are written ``[T, B, ...]``: time, then batch (environments).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from seedbed.errors import SpecError

__all__ = [
    "ACTION_MASK",
    "AGENT_INDEX",
    "ActOutput",
    "Agent",
    "ArraySpec",
    "DataPlan",
    "EnvSpec",
    "Exploration",
    "ReplayPlan",
    "TimeStep",
    "Tree",
    "Unroll",
    "Weights",
    "leaves",
    "map_leaves",
    "rebuild",
]

Tree = Any
"""An array (or array spec), or a nested dict of them."""


def leaves(tree: Tree, path: str = "") -> list[tuple[str, Any]]:
    """Lists the leaves of ``tree`` as ``(path, leaf)``, in sorted key order; the path of a lone leaf is ``""``.

    A path is the keys with slashes between them. Where two leaves would have the same one (``a/b`` beside ``b`` in
    ``a``), slashes inside keys are written ``~1``, and tildes ``~0`` (RFC 6901, section 3).
    """
    found = _leaves(tree, (path,) if path else ())
    paths = ["/".join(keys) for keys, _ in found]
    if len({*paths}) < len(paths):
        begins = 1 if path else 0  # The path that was given is one already.
        paths = ["/".join((*keys[:begins], *map(_escaped, keys[begins:]))) for keys, _ in found]
    return [(path, leaf) for path, (_, leaf) in zip(paths, found, strict=True)]


def leaf_values(tree: Tree) -> list[Any]:
    """Lists the leaves of ``tree`` in the order of :func:`leaves`, without their paths."""
    if not _is_nested(tree):
        return [tree]
    return [leaf for key in sorted(tree) for leaf in leaf_values(tree[key])]


def _is_nested(tree: Tree) -> bool:
    # Asked for every array of every message: the look into the kind of an abstract class takes longer than the rest.
    kind = type(tree)
    return kind is dict or (kind is not np.ndarray and isinstance(tree, Mapping))


def _leaves(tree: Tree, keys: tuple[str, ...]) -> list[tuple[tuple[str, ...], Any]]:
    if not _is_nested(tree):
        return [(keys, tree)]
    return [leaf for key in sorted(tree) for leaf in _leaves(tree[key], (*keys, str(key)))]


def _escaped(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")


def rebuild(like: Tree, values: Sequence[Any]) -> Tree:
    """Puts ``values``, in the order of :func:`leaves`, into the structure of ``like``."""
    return _build(like, iter(values))


def _build(like: Tree, remaining: Iterator[Any]) -> Tree:
    if not _is_nested(like):
        return next(remaining)
    return {key: _build(like[key], remaining) for key in sorted(like)}


def map_leaves(function: Callable[..., Any], tree: Tree, *rest: Tree) -> Tree:
    """Applies ``function`` to every leaf of ``tree`` (and to the same leaf of every tree in ``rest``)."""
    columns = [leaf_values(each) for each in (tree, *rest)]
    return rebuild(tree, [function(*row) for row in zip(*columns, strict=True)])


_SMALLEST_SIDE = 8
"""Of an image: a smaller array of rank 3 is a table, of which every number has a meaning of its own."""


@dataclass(frozen=True)
class ArraySpec:
    """Shape, dtype and bounds of one array of one environment (no batch axis).

    Attributes:
      shape: the shape, without batch or time.
      dtype: a NumPy dtype name (``"uint8"``, ``"float32"``, ``"int32"``).
      num_values: numbers of values that the elements of a choice (an integer array) may take, one an element in C
        order (``Discrete(6)`` is ``(6,)``, ``MultiDiscrete([3, 2])`` is ``(3, 2)``); values then start at 0. Empty
        for everything else.
      low, high: bounds, one of each element in C order, or one alone that all elements have; empty where none is
        declared (see :attr:`bounds`).
      channels_first: whether the environment shows ``[C, H, W]``, which is turned to the ``[H, W, C]`` of ``shape``
        where it enters.
    """

    shape: tuple[int, ...]
    dtype: str
    num_values: tuple[int, ...] = ()
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()
    channels_first: bool = False

    def __post_init__(self) -> None:
        if np.dtype(self.dtype).hasobject:
            raise SpecError(f"dtype {self.dtype!r} cannot travel: only plain numbers and booleans can")

    @property
    def bounds(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Least and greatest value of each element, float64 ``[*shape]``: as declared, or all that the dtype has.

        Infinite where nothing is declared of reals, and of integers of 32 bits and more.
        """
        least, greatest = _range_of(np.dtype(self.dtype))
        size = math.prod(self.shape)
        if self.num_values:
            return np.zeros(self.shape), np.array(self.num_values, np.float64).reshape(self.shape) - 1
        low, high = (
            np.broadcast_to(np.array(declared or (undeclared,), np.float64), size).reshape(self.shape)
            for declared, undeclared in ((self.low, least), (self.high, greatest))
        )
        return low, high

    @property
    def is_image(self) -> bool:
        """True if it can be an image ``[H, W, C]``: of rank 3, both sides large enough, and no choice."""
        return len(self.shape) == 3 and min(self.shape[:2]) >= _SMALLEST_SIDE and not self.num_values

    def to_json(self) -> dict[str, Any]:
        """The spec as plain JSON values."""
        return {
            "shape": list(self.shape),
            "dtype": self.dtype,
            "num_values": list(self.num_values),
            # JSON has no infinity: an unbounded side travels as null.
            "low": [x if np.isfinite(x) else None for x in self.low],
            "high": [x if np.isfinite(x) else None for x in self.high],
            "channels_first": self.channels_first,
        }

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> ArraySpec:
        """Reads the values of :meth:`to_json`; raises :class:`SpecError` on anything else."""
        try:
            return ArraySpec(
                shape=tuple(int(n) for n in value["shape"]),
                dtype=np.dtype(str(value["dtype"])).name,
                num_values=tuple(int(n) for n in value["num_values"]),
                low=tuple(-np.inf if x is None else float(x) for x in value["low"]),
                high=tuple(np.inf if x is None else float(x) for x in value["high"]),
                channels_first=bool(value.get("channels_first", False)),  # Version 0.1 turned nothing.
            )
        except (AttributeError, KeyError, TypeError, ValueError, OverflowError) as error:
            raise SpecError(f"not an array spec: {value!r} ({error})") from error


def _range_of(dtype: np.dtype[Any]) -> tuple[float, float]:
    """Least and greatest number of a dtype of few bits; no bounds otherwise."""
    if dtype == np.bool_:
        return 0.0, 1.0
    if np.issubdtype(dtype, np.integer) and dtype.itemsize < 4:
        return float(np.iinfo(dtype).min), float(np.iinfo(dtype).max)
    return -np.inf, np.inf


ACTION_MASK = "action_mask"
"""Key of the leaf at the top of an observation that says which choices are allowed (:attr:`EnvSpec.action_mask`)."""

AGENT_INDEX = "agent_index"
"""Key of the leaf at the top of an observation that says which of :attr:`EnvSpec.agents` the row is, as a choice among
them; it is there where agents have policies of their own (:mod:`seedbed.agents.own_policies`)."""


@dataclass(frozen=True)
class EnvSpec:
    """An environment seen from outside: its observations, its actions and its frames.

    Attributes:
      id: the name it was made by (``"ALE/Pong-v5"``).
      observation: tree of :class:`ArraySpec`.
      action: spec of one action; a choice (``num_values``) or a continuous vector.
      frames_per_step: environment frames that pass in one agent step (frame skip); counts frames/s.
      frame_stack: number of newest frames that the network sees at once. Only the newest one travels: the
        stack is rebuilt where the network reads it. 1 means no stacking.
      agents: names of the agents of one environment, which are as many rows of a batch, next to one another; empty if
        it has one.
    """

    id: str
    observation: Tree
    action: ArraySpec
    frames_per_step: int = 1
    frame_stack: int = 1
    agents: tuple[str, ...] = ()

    @property
    def rows(self) -> int:
        """Number of rows of a batch that one environment has."""
        return max(1, len(self.agents))

    @property
    def tells_agents(self) -> bool:
        """True if observations say which of the agents they are of, by the leaf :data:`AGENT_INDEX`."""
        return bool(self.agents) and isinstance(self.observation, Mapping) and AGENT_INDEX in self.observation

    @property
    def action_mask(self) -> ArraySpec | None:
        """Spec of the mask of actions, ``[P]``; None where the top of observations has no leaf :data:`ACTION_MASK`.

        It has an entry for each value of each choice, one choice after the other in C order: 1 allows it, 0 forbids it.
        (PettingZoo's convention.) A leaf of this name further down is an observation like any other.

        Raises:
          SpecError: the leaf is no mask of these actions.
        """
        shown = self.observation if isinstance(self.observation, Mapping) else {}
        if ACTION_MASK not in shown:
            return None
        leaf, count = shown[ACTION_MASK], sum(self.action.num_values)
        name = f"{self.id}: observation {ACTION_MASK}"
        if not count:
            raise SpecError(
                f"{name} is there, but actions are {self.action.dtype} {self.action.shape} and no choices, of which "
                "some could be forbidden: give it another name"
            )
        if not isinstance(leaf, ArraySpec) or leaf.shape != (count,) or not _is_of_bits(leaf):
            looks = (
                f"{leaf.dtype} {leaf.shape}" if isinstance(leaf, ArraySpec) else f"a dict of {sorted(leaf)}"
            )
            raise SpecError(
                f"{name} is {looks}, and no mask of these actions: needed is ({count},), an entry for each value of "
                f"each choice, 1 (allowed) or 0, declared as gymnasium.spaces.MultiBinary({count}); or another name"
            )
        return leaf

    def to_json(self) -> dict[str, Any]:
        """The spec as plain JSON values."""
        return {
            "id": self.id,
            "observation": map_leaves(lambda spec: {"@": spec.to_json()}, self.observation),
            "action": self.action.to_json(),
            "frames_per_step": self.frames_per_step,
            "frame_stack": self.frame_stack,
            **({"agents": list(self.agents)} if self.agents else {}),
        }

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> EnvSpec:
        """Reads the values of :meth:`to_json`; raises :class:`SpecError` on anything else."""

        def build(node: Any) -> Tree:
            if not isinstance(node, Mapping):
                raise SpecError(f"not an observation spec: {node!r}")
            if set(node) == {"@"} and not _is_node(node["@"]):
                return ArraySpec.from_json(node["@"])
            return {str(key): build(child) for key, child in node.items()}

        try:
            return EnvSpec(
                id=str(value["id"]),
                observation=build(value["observation"]),
                action=ArraySpec.from_json(value["action"]),
                frames_per_step=int(value["frames_per_step"]),
                frame_stack=int(value["frame_stack"]),
                agents=tuple(str(name) for name in value.get("agents", ())),
            )
        except (KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
            raise SpecError(f"not an environment spec: {value!r} ({error})") from error


def _is_of_bits(spec: ArraySpec) -> bool:
    """Returns whether an array has only the whole numbers 0 and 1."""
    low, high = spec.bounds
    return np.dtype(spec.dtype).kind in "biu" and bool((low == 0).all() and (high == 1).all())


def _is_node(value: Any) -> bool:
    """Returns whether a JSON value is a dict of an observation (which may have a key ``@``) and no array spec."""
    return isinstance(value, Mapping) and not isinstance(value.get("shape"), list)


class TimeStep(NamedTuple):
    """One step of a batch of environments, as seen *after* the last action. Leading axes ``[...]``.

    The stream of an environment contains the final observation of every episode, and after it, as a step of
    its own, the first observation of the next episode::

        step          t           t+1              t+2
        observation   o_t         o_final          o_first of the next episode
        reward        r_t         r_{t+1}          0
        terminated    False       True or False    False
        truncated     False       False or True    False
        first         False       False            True

    The action taken at ``t+1`` goes nowhere: the transition from ``o_final`` to ``o_first`` is marked by
    ``first[t+2]`` and is never trained on. Between ``t`` and ``t+1``, ``terminated`` cuts the bootstrap, and
    ``truncated`` (a time limit) bootstraps from ``o_final``.

    Where an environment has several agents, each is a row. A step at which an agent is not there, since it has not come
    yet or has gone before the others, is an empty episode: ``first`` and ``terminated`` at once (:attr:`absent`). So no
    transition from or to it is trained on, its action goes nowhere, and its observation means nothing.

    Attributes:
      observation: tree of arrays ``[..., *shape]``.
      reward: float32 ``[...]``, reward of the transition that ended here, unclipped; 0 where ``first``.
      terminated: bool ``[...]``, the episode ended by its own rules with this observation.
      truncated: bool ``[...]``, the episode was cut from outside with this observation; never together with
        ``terminated``, which wins.
      first: bool ``[...]``, this is the first observation of an episode.
    """

    observation: Tree
    reward: Any
    terminated: Any
    truncated: Any
    first: Any

    @property
    def absent(self) -> Any:
        """Bool ``[...]``, the agent of this row is not in its environment; all False where each has one agent."""
        return self.first & self.terminated


class Exploration(NamedTuple):
    """The amount by which each environment of a batch explores, for agents that explore by chance.

    Attributes:
      rank: float32 ``[B]``, rank from 0 (explores most) to 1 (least).
      evaluates: bool ``[B]``, whether it only evaluates, so that the rank does not count.
    """

    rank: Any
    evaluates: Any


class ActOutput(NamedTuple):
    """The decision of an agent for a batch of time steps.

    Attributes:
      action: ``[B, *action shape]``, the sampled action.
      record: tree of arrays ``[B, ...]`` that the loss wants back later (behaviour logits, q-values).
    """

    action: Any
    record: Tree


class Unroll(NamedTuple):
    """A piece of experience, time-major: T transitions of B environments.

    ``timestep`` has T+1 steps, the last one shared with the next unroll, where it is the first; ``action``
    and ``record`` have T rows, since the decision at the last step belongs to the next unroll. Where the
    :class:`DataPlan` has an overlap, the next unroll begins that many transitions earlier.

    Attributes:
      timestep: :class:`TimeStep` of ``[T+1, B, ...]``.
      action: ``[T, B, *action shape]``, taken at steps 0 … T-1.
      record: tree of ``[T, B, ...]``, arrays that the agent recorded when it chose ``action``.
      state: tree of ``[B, ...]``, the agent's state *before* step 0.
      version: int32 ``[T, B]``, version of the weights that chose ``action``.
      weight: float32 ``[B]``, the importance weight of each, where they were sampled from a replay; else None. The loss
        is given weights of which the batch's greatest is 1.
    """

    timestep: TimeStep
    action: Any
    record: Tree
    state: Tree
    version: Any
    weight: Any = None


@dataclass(frozen=True)
class ReplayPlan:
    """The memory that an agent samples its batches from; all sizes in transitions of single environments.

    Attributes:
      capacity: transitions that are kept; the oldest are overwritten.
      min_size: transitions that are inserted before the first batch is sampled.
      ratio: mean number of times that a transition is trained on: acting and learning wait for each other so that it
        is kept; None: neither waits.
      window: transitions in one sampled item. An unroll of ``overlap + unroll_length`` transitions holds one item if
        this is as many (sequences), and ``unroll_length`` of them if it is ``overlap + 1`` (transitions, of which the
        overlap is needed around each).
      start: index of an item's first transition that is trained on; an item whose ``start`` leads into a new
        episode is never sampled if it trains on this one alone.
      priority_exponent: items are sampled in proportion to their priority to this power; 0: uniformly.
      importance_exponent: power to which the weights of a batch undo that; 0: not at all.
      parts: parts over all hosts, each with the steps of its share of the environments, from each of which an equal
        share of every batch is sampled; None: one on each host.
    """

    capacity: int
    min_size: int
    ratio: float | None
    window: int
    start: int
    priority_exponent: float = 0.0
    importance_exponent: float = 0.0
    parts: int | None = None


@dataclass(frozen=True)
class DataPlan:
    """The data an agent wants.

    Attributes:
      unroll_length: T, transitions in an unroll that were in none before.
      batch_size: B, unrolls (of a replay: items) in a batch, over all training devices.
      reuse: number of passes over each batch.
      minibatches: parts of a batch, each row in one of them; each pass makes one update with each part.
      transitions: whether ``prepare`` turns a batch of B unrolls into T * B rows of one transition each, in C order of
        ``[T, B]`` (``timestep`` ``[2, T * B]``, but its observation is for the loss alone); the rows are whole unrolls
        otherwise.
      most_kl: the passes over a batch end when the metric ``kl`` of an update, divided by ``valid`` if there is such a
        metric, is above this; None: never.
      on_policy: whether the weights that act have to be the trained ones (a lag of 0).
      overlap: transitions at the beginning of an unroll that were the end of the one before; at most T.
      replay: memory that batches are sampled from; None: they are the unrolls as they come.
      target_period: updates after which the target parameters are renewed; 0: there are none.
      target_rate: share of the way that a renewal takes them to the newest ones; 1: they become these.
      dataset: whether the unrolls come from a data set, without acting. An overlap is then the part of each unroll
        before the transitions that it is trained on.
    """

    unroll_length: int
    batch_size: int
    reuse: int = 1
    minibatches: int = 1
    transitions: bool = False
    most_kl: float | None = None
    on_policy: bool = False
    overlap: int = 0
    replay: ReplayPlan | None = None
    target_period: int = 0
    target_rate: float = 1.0
    dataset: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.target_rate <= 1:
            raise SpecError(
                f"a target rate of {self.target_rate}: needed is a share of the way, more than 0 and at most 1"
            )
        if self.dataset and self.replay is not None:
            raise SpecError("what is in a data set is in no replay: leave one of them out")
        if self.replay is None and self.overlap and not self.dataset:
            raise SpecError(
                f"an overlap of {self.overlap} is for what a replay or a data set keeps, and there is neither"
            )
        if self.replay is not None and self.updates_a_batch != 1:
            raise SpecError(
                f"{self.updates_a_batch} updates a batch: what a replay samples is trained on once"
            )

    @property
    def trained_length(self) -> int:
        """Transitions in each column of the loss's argument: of an unroll, or of an item of the replay."""
        return self.replay.window if self.replay else self.overlap + self.unroll_length

    @property
    def rows(self) -> int:
        """Rows of a prepared batch."""
        return self.batch_size * (self.unroll_length if self.transitions else 1)

    @property
    def items(self) -> int:
        """Items that an unroll of one environment brings to a replay; 1 without one."""
        return self.overlap + self.unroll_length - self.trained_length + 1

    @property
    def acted_a_batch(self) -> float:
        """Transitions that are acted for each batch that is trained on, in the mean."""
        ratio = self.replay.ratio if self.replay and self.replay.ratio else 1.0
        return self.batch_size * self.unroll_length / self.items / ratio

    @property
    def updates_a_batch(self) -> int:
        """Updates that are made with each batch, at most."""
        return self.reuse * self.minibatches


@dataclass(frozen=True)
class Agent:
    """The axis of *what is computed*: pure functions, all of them jit-able, and the data they want.

    Attributes:
      name: the agent's name, as in ``--agent``.
      init: ``key -> params``.
      initial_state: ``batch -> state``, the state ``[B, ...]`` before the first step of an episode.
      act: ``(params, key [B], timestep [B], state [B]) -> (ActOutput [B], state [B])``; one random key a row,
        so that an environment's draws do not depend on the rest of its batch.
      loss: ``(params, target_params, unroll, key) -> (loss, (metrics, priorities))``; a *mean* over the batch
        axis, so that the average over devices is the loss of the global batch. ``metrics`` is a dict of
        scalars, ``priorities`` ``[B]`` or None.
      optimizer: an ``optax.GradientTransformation`` over the params, in which each number's change depends on its own
        gradients alone, so that a parameter server can have the numbers in parts; its counts are in updates.
      data: the :class:`DataPlan`.
      mode: ``(params, timestep [B], state [B]) -> (action [B], state [B])``, the greedy action for evaluation.
      prepare: ``(params, unroll, last=None) -> (params, unroll)``, done once with a whole batch before it is trained
        on: values that stay the same over all passes (advantages), and statistics that are learned without a gradient
        (of observations). Where these very params have acted (Anakin), ``last`` is the record ``[B, ...]`` of time
        step T, for which the unroll has none, and recorded values need not be computed again. None: nothing.
      explore: ``(state [B], Exploration [B]) -> state [B]``, says how much each environment explores. None: the policy
        explores by itself.
      sample: ``act`` without the noise that a search adds to its policy in training alone; its record ``policy`` has
        shares, no parameters of a distribution. None: the record ``policy``, if there is one, has those.
      priorities: ``unroll -> float32 [items, B]``, priorities of the items that an unroll brings to a replay, by the
        records of acting; it does not look at observations. None: all alike.
      clip: ``gradient -> gradient``, the step that needs the whole gradient before the optimizer has it. None: none.
      row_means: names of the metrics of the loss that are means over all rows of a batch, to which absent ones
        contribute 0. The others are averages over the transitions that were trained on.
      own_begin: entries of the params that a setting of the run begins (counts, coefficients that are tuned):
        ``--init-from`` does not take them from another run.
    """

    name: str
    init: Callable[..., Tree]
    initial_state: Callable[[int], Tree]
    act: Callable[..., tuple[ActOutput, Tree]]
    loss: Callable[..., Any]
    optimizer: Any
    data: DataPlan
    mode: Callable[..., tuple[Any, Tree]]
    prepare: Callable[..., tuple[Tree, Unroll]] | None = None
    explore: Callable[[Tree, Exploration], Tree] | None = None
    sample: Callable[..., tuple[ActOutput, Tree]] | None = None
    priorities: Callable[[Unroll], Any] | None = None
    clip: Callable[[Tree], Tree] | None = None
    row_means: frozenset[str] = frozenset()
    own_begin: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Weights:
    """An immutable snapshot of parameters: readers keep a reference, the learner makes new ones.

    Attributes:
      params: the parameters.
      version: number of updates that they have seen; 0 are the initial ones.
    """

    params: Tree = field(repr=False)
    version: int
