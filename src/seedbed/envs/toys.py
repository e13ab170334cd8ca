"""Small environments in NumPy: they step in microseconds, and their best returns are known.

``toy:catch``
    a ball falls, a paddle catches it: +1 or -1. Solved in minutes; the smoke test of every agent.
``toy:memory``
    a cue is shown once and asked for much later: +1 or -1. Nothing without memory does better than chance.
``toy:doors``
    some doors of each room are locked, which an action mask says, and one leads on: +1. For agents under masks.
``toy:count``
    every observation says which environment, episode and step it is. For tests of everything that moves
    experience: a lost, doubled or misplaced step cannot hide.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from seedbed.envs.options import whole
from seedbed.envs.seeds import ROLE
from seedbed.envs.stream import Stream
from seedbed.errors import EnvironmentFault
from seedbed.seeding import generator
from seedbed.types import ACTION_MASK, ArraySpec, EnvSpec, TimeStep, Tree, leaves

Array = NDArray[Any]
Outcome = tuple[Array, Array, Array]
"""Reward, terminated and truncated, each ``[num_envs]``."""


class Toy(ABC):
    """A batch of toys: subclasses say how episodes begin, advance and look."""

    render_fps = 10
    """Pictures a second at which a toy is shown: its episodes have few steps."""

    def __init__(self, spec: EnvSpec, num_envs: int) -> None:
        self.spec = spec
        self.num_envs = num_envs
        self._stream = Stream(num_envs)
        self._random: list[np.random.Generator] = []
        self._action: Array = np.zeros(num_envs, np.int32)

    @abstractmethod
    def _begin(self, rows: Array) -> None:
        """Starts a new episode in the environments ``rows`` (indices)."""

    @abstractmethod
    def _advance(self, action: Array) -> Outcome:
        """Moves every environment; ended ones may do anything, they begin anew right after."""

    @abstractmethod
    def _observe(self) -> Tree:
        """Returns fresh arrays ``[num_envs, ...]`` of the present observations."""

    def reset(self, seed: int) -> TimeStep:
        """Starts every environment anew; environment ``i`` draws from a generator of ``(seed, i)``."""
        self._random = [generator(seed, ROLE, i) for i in range(self.num_envs)]
        self._begin(np.arange(self.num_envs))
        return self._stream.start(self._observe())

    def send(self, action: Any) -> None:
        """Keeps the actions ``[num_envs]`` until :meth:`receive`."""
        self._action = np.asarray(action)

    def receive(self) -> TimeStep:
        """Steps the environments."""
        ended = self._stream.ended
        outcome = self._advance(self._action)
        if ended.any():
            self._begin(np.flatnonzero(ended))
        return self._stream.step(self._observe(), *outcome)

    def render(self) -> Array:
        """The last array of environment 0 as a grey picture, uint8 ``[H, W, 3]``, each number a square of 16 pixels."""
        _, array = leaves(self._observe())[-1]
        shown = np.atleast_2d(np.squeeze(np.asarray(array[0], np.float32)))
        grey = (255 * shown / max(float(shown.max()), 1.0)).astype(np.uint8)
        return np.repeat(grey.repeat(16, 0).repeat(16, 1)[:, :, None], 3, axis=2)

    def close(self) -> None:  # noqa: B027
        """Nothing to free."""

    def _draw(self, rows: Array, choices: int) -> Array:
        """One number below ``choices`` for each of ``rows``, each from its own generator."""
        return np.array([self._random[i].integers(choices) for i in rows], np.int64)


class Catch(Toy):
    """A ball falls through a board, one row a step; the paddle in the lowest row moves left, not, or right.

    The final step gives +1 if the ball lands on the paddle, else -1; an episode has ``rows - 1`` steps.

    Options:
      rows, columns: size of the board.
      cell_pixels: 0 shows the board as float32 ``[rows, columns]`` of 0 and 1; a positive number as an image,
        uint8 ``[rows * cell_pixels, columns * cell_pixels, 1]`` of 0 and 255.
    """

    def __init__(
        self, env_id: str, num_envs: int, *, rows: int = 10, columns: int = 5, cell_pixels: int = 0
    ) -> None:
        self._rows = whole(env_id, "rows", rows, 2)
        self._columns = whole(env_id, "columns", columns, 1)
        self._pixels = whole(env_id, "cell_pixels", cell_pixels, 0)
        image = ArraySpec((rows * cell_pixels, columns * cell_pixels, 1), "uint8")
        board = ArraySpec((rows, columns), "float32")
        super().__init__(
            EnvSpec(env_id, image if cell_pixels else board, ArraySpec((), "int32", (3,))), num_envs
        )
        self._ball_row, self._ball_column, self._paddle = np.zeros((3, num_envs), np.int64)

    def _begin(self, rows: Array) -> None:
        self._ball_row[rows] = 0
        self._ball_column[rows] = self._draw(rows, self._columns)
        self._paddle[rows] = self._columns // 2

    def _advance(self, action: Array) -> Outcome:
        self._paddle = np.clip(self._paddle + action - 1, 0, self._columns - 1)
        self._ball_row = np.minimum(self._ball_row + 1, self._rows - 1)
        landed = self._ball_row == self._rows - 1
        caught = np.where(self._ball_column == self._paddle, 1, -1)
        return caught * landed, landed, np.zeros_like(landed)

    def _observe(self) -> Tree:
        every = np.arange(self.num_envs)
        board = np.zeros((self.num_envs, self._rows, self._columns), np.float32)
        board[every, self._ball_row, self._ball_column] = 1
        board[every, -1, self._paddle] = 1
        if not self._pixels:
            return board
        image = (board * 255).astype(np.uint8).repeat(self._pixels, 1).repeat(self._pixels, 2)
        return image[..., None]


class Memory(Toy):
    """A cue is shown at the first step only; at the last step the action must name it: +1, else -1.

    Observation: float32 ``[cues + 1]``, the cue one-hot (first step), then zeros, and at the step whose
    action counts a 1 in the last place. An episode has ``length`` steps.

    Options:
      length: actions from the first step to the answer, the answer included; at least 2.
      cues: how many cues there are, at least 2; chance is ``2 / cues - 1``.
    """

    def __init__(self, env_id: str, num_envs: int, *, length: int = 10, cues: int = 2) -> None:
        self._length = whole(env_id, "length", length, 2)
        self._cues = whole(env_id, "cues", cues, 2)
        observation = ArraySpec((cues + 1,), "float32")
        super().__init__(EnvSpec(env_id, observation, ArraySpec((), "int32", (cues,))), num_envs)
        self._time, self._cue = np.zeros((2, num_envs), np.int64)

    def _begin(self, rows: Array) -> None:
        self._time[rows] = 0
        self._cue[rows] = self._draw(rows, self._cues)

    def _advance(self, action: Array) -> Outcome:
        self._time = self._time + 1
        over = self._time == self._length
        right = np.where(action == self._cue, 1, -1)
        return right * over, over, np.zeros_like(over)

    def _observe(self) -> Tree:
        shown = np.zeros((self.num_envs, self._cues + 1), np.float32)
        at_start = np.flatnonzero(self._time == 0)
        shown[at_start, self._cue[at_start]] = 1
        shown[self._time == self._length - 1, -1] = 1
        return shown


class Plan(NamedTuple):
    """The rooms of :class:`Doors`; the last row is outside.

    Attributes:
      spec: spec of the world.
      right: int32 ``[rooms + 1]``, the door that leads on; none outside.
      open: bool ``[rooms + 1, doors]``, doors that are not locked; outside there are none.
      shown: float32 ``[rooms + 1, rooms]``, the room one-hot; zeros outside.
    """

    spec: EnvSpec
    right: Array
    open: Array
    shown: Array


def plan_of(env_id: str, *, rooms: int = 8, doors: int = 5) -> Plan:
    """Plans the rooms of :class:`Doors`; raises :class:`ConfigError` for fewer than one room or two doors."""
    rooms, doors = whole(env_id, "rooms", rooms, 1), whole(env_id, "doors", doors, 2)
    room, door = np.arange(rooms + 1)[:, None], np.arange(doors)
    right = (3 * room + 1) % doors
    unlocked = (door - right) % doors % 3 != 1 + room % 2
    inside = room < rooms
    observation = {"room": ArraySpec((rooms,), "float32"), ACTION_MASK: ArraySpec((doors,), "bool")}
    return Plan(
        EnvSpec(env_id, observation, ArraySpec((), "int32", (doors,))),
        np.where(inside, right, -1)[:, 0].astype(np.int32),
        unlocked & inside,
        np.eye(rooms + 1, rooms, dtype=np.float32),
    )


class Doors(Toy):
    """One way leads through the rooms, by one door of each: +1, and the next room; behind any other is the outside.

    About a third of the doors is locked, which ``action_mask`` says; an agent that tries a locked one is refused.
    Nothing is random, and the final observation of an episode allows nothing. The best return is the number of rooms.
    As a JAX function it is :func:`seedbed.envs.on_device.toys.make_doors`.

    Options:
      rooms, doors: number of rooms, and of doors in each.
    """

    def __init__(self, env_id: str, num_envs: int, *, rooms: int = 8, doors: int = 5) -> None:
        self._plan = plan_of(env_id, rooms=rooms, doors=doors)
        super().__init__(self._plan.spec, num_envs)
        self._outside = len(self._plan.right) - 1
        self._room = np.full(num_envs, self._outside)

    def _begin(self, rows: Array) -> None:
        self._room[rows] = 0

    def _advance(self, action: Array) -> Outcome:
        self._require_open(action)
        right = action == self._plan.right[self._room]
        self._room = np.where(right, self._room + 1, self._outside)
        over = self._room == self._outside
        return right, over, np.zeros_like(over)

    def _require_open(self, action: Array) -> None:
        locked = ~self._plan.open[self._room, action] & (self._room < self._outside)
        if locked.any():
            index = int(np.argmax(locked))
            raise EnvironmentFault(
                f"{self.spec.id}: action {action[index]} is forbidden by the {ACTION_MASK} of environment {index}, "
                f"{self._plan.open[self._room[index]].astype(int).tolist()}: take one that it allows"
            )

    def _observe(self) -> Tree:
        return {"room": self._plan.shown[self._room], ACTION_MASK: self._plan.open[self._room]}


class Count(Toy):
    """Nothing is random: an observation is its own address, int32 ``[env, episode, step, last action]``.

    Episode ``e`` of environment ``i`` has ``1 + (i + e) % longest`` steps; even episodes end by termination,
    odd ones by truncation. The reward is the number of the step, so that a sum tells which steps it is of.
    The last action is 0 at first steps.

    Options:
      longest: length of the longest episodes.
      first_index: number of environment 0, for the parts of a larger batch.
    """

    def __init__(self, env_id: str, num_envs: int, *, longest: int = 5, first_index: int = 0) -> None:
        self._longest = whole(env_id, "longest", longest, 1)
        self._index = whole(env_id, "first_index", first_index, 0) + np.arange(num_envs)
        super().__init__(EnvSpec(env_id, ArraySpec((4,), "int32"), ArraySpec((), "int32", (3,))), num_envs)
        self._episode, self._time, self._last = np.zeros((3, num_envs), np.int64)

    def reset(self, seed: int) -> TimeStep:
        """Starts at episode 0, with any seed."""
        self._episode = np.full(self.num_envs, -1)
        return super().reset(seed)

    def _begin(self, rows: Array) -> None:
        self._episode[rows] += 1
        self._time[rows] = 0
        self._last[rows] = 0

    def _advance(self, action: Array) -> Outcome:
        self._time = self._time + 1
        self._last = np.array(action, np.int64)
        over = self._time == 1 + (self._index + self._episode) % self._longest
        even = self._episode % 2 == 0
        return self._time, over & even, over & ~even

    def _observe(self) -> Tree:
        return np.stack([self._index, self._episode, self._time, self._last], axis=1).astype(np.int32)


TOYS: dict[str, Callable[..., Toy]] = {
    "toy:catch": Catch,
    "toy:memory": Memory,
    "toy:doors": Doors,
    "toy:count": Count,
}
"""The toys by id."""
