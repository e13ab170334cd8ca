"""Worlds with PettingZoo's parallel API, as ``pettingzoo:parallel_worlds:NAME``; PettingZoo itself is not needed."""

from __future__ import annotations

from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium import spaces

END = 5
SCHEDULE = {"stays": (0, END), "dies": (0, 2), "comes": (3, END)}
"""First and last step of each agent in :class:`Scripted`."""
WORTH = {"stays": 0.0, "dies": 10.0, "comes": 100.0}
"""Reward of each agent, to which the number of the step is added for ``stays``."""


class Parallel:
    """The parts that all worlds here have."""

    metadata: ClassVar[dict[str, Any]] = {"name": "parallel"}
    possible_agents: ClassVar[list[str]]
    seen: spaces.Space[Any]
    acts: spaces.Space[Any] = spaces.Discrete(3)

    def __init__(self) -> None:
        self.agents: list[str] = []

    def observation_space(self, agent: str) -> Any:
        return self.seen

    def action_space(self, agent: str) -> Any:
        return self.acts


class Scripted(Parallel):
    """Three agents of which one dies at step 2, and one comes at step 3; the end at step 5 is two kinds of end.

    An observation is the number of the step and that of the agent. Actions do nothing, but agents that are not there
    may have none. ``listed`` keeps the dead in ``agents``, as some environments do.
    """

    possible_agents: ClassVar = [*SCHEDULE]
    seen = spaces.Box(1, 20, (2,), np.float32)

    def __init__(self, listed: bool = False, fault: str = "") -> None:
        super().__init__()
        self._listed, self._fault = listed, fault

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
        self._step = 0
        self.agents = [] if self._fault == "nobody" else self._there()
        return self._shown(self.agents), {agent: {} for agent in self.agents}

    def step(self, actions: dict[str, Any]) -> tuple[Any, ...]:
        assert sorted(actions) == sorted(self.agents), f"actions of {[*actions]}, and {self.agents} are there"
        before = self.agents
        self._step += 1
        over = {agent: self._step >= SCHEDULE[agent][1] for agent in before}
        ended = {agent: over[agent] and agent != "stays" for agent in before}
        cut = {agent: over[agent] and agent == "stays" for agent in before}
        there = self._there()
        shown = self._shown({*before, *there})
        rewards = {agent: WORTH[agent] + (self._step if agent == "stays" else 0) for agent in shown}
        keep = [agent for agent in before if self._listed and over[agent]]
        self.agents = [*dict.fromkeys([*keep, *(agent for agent in there if not over.get(agent))])]
        if self._fault == "vanishes" and self._step == 2:
            ended["dies"] = False
        if self._fault == "stranger":
            self.agents = [*self.agents, "nobody knows"]
        if self._fault == "blind":
            shown.pop("stays")
        if self._step == END and not self._listed:
            self.agents = []
        return shown, rewards, ended, cut, {agent: {"steps": self._step} for agent in before}

    def _there(self) -> list[str]:
        return [agent for agent, (first, last) in SCHEDULE.items() if first <= self._step <= last]

    def _shown(self, agents: Any) -> dict[str, Any]:
        return {
            agent: np.array([1 + self._step, 1 + self.possible_agents.index(agent)], np.float32)
            for agent in self.possible_agents
            if agent in agents
        }


class Meeting(Parallel):
    """Two agents see a number of 0 to 3 and their own; one has to say it, the other one the number after it.

    Both get 1/2 for each that is right, so that the two have to do different things with one policy. A policy at random
    gets 2 in an episode of 8 steps; 8 is the most.
    """

    metadata: ClassVar[dict[str, Any]] = {"name": "meeting", "render_fps": 5}
    possible_agents: ClassVar = ["caller", "answerer"]
    seen = spaces.Dict({"number": spaces.Discrete(4), "own": spaces.Discrete(2)})
    acts = spaces.Discrete(4, start=1)
    length = 8

    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__()
        self._draws = render_mode == "rgb_array"
        self._random = np.random.default_rng(0)

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
        if seed is not None:
            self._random = np.random.default_rng(seed)
        self.agents, self._step = [*self.possible_agents], 0
        return self._shown(), {agent: {} for agent in self.agents}

    def step(self, actions: dict[str, Any]) -> tuple[Any, ...]:
        right = [
            action - 1 == (self._number + (not agent.startswith("caller"))) % 4
            for agent, action in actions.items()
        ]
        self._step += 1
        shown, over = self._shown(), self._step == self.length
        agents = self.agents
        self.agents = [] if over else agents
        return (
            shown,
            dict.fromkeys(agents, float(np.mean(right))),
            dict.fromkeys(agents, False),
            dict.fromkeys(agents, over),
            {agent: {} for agent in agents},
        )

    def render(self) -> Any:
        assert self._draws
        return np.full((8, 8, 3), self._number * 60, np.uint8)

    def _shown(self) -> dict[str, Any]:
        self._number = int(self._random.integers(4))
        return {agent: {"number": self._number, "own": own} for own, agent in enumerate(self.possible_agents)}


class Late(Meeting):
    """One that names its agents in ``reset`` only; it is not made more than a few times."""

    possible_agents: ClassVar[list[str]] = []
    made = 0

    def __init__(self) -> None:
        super().__init__()
        type(self).made += 1
        assert self.made < 9, "made again and again"


class Unmarked(Meeting):
    """Meeting in which agents do not see which of the two they are: one policy for both gets 4 at most."""

    seen = spaces.Discrete(4)

    def _shown(self) -> dict[str, Any]:
        self._number = int(self._random.integers(4))
        return dict.fromkeys(self.agents, self._number)


class Crew(Unmarked):
    """Unmarked with a caller and two answerers: policies for a caller and for answerers get all of it."""

    possible_agents: ClassVar = ["answerer_0", "caller_0", "answerer_1"]


class Unequal(Meeting):
    """Meeting of agents that see and do different things: the caller 4 numbers and 4 actions, the answerer 6 and 5.

    The caller's own mask, if it has one, forbids nothing but its last action where that is wrong.
    """

    def __init__(self, masked: bool = False) -> None:
        super().__init__()
        self._masked = masked

    def observation_space(self, agent: str) -> Any:
        if agent == "answerer":
            number = spaces.Box(-1, 3, (6,), np.float32)
            return spaces.Dict({"number": number}) if self._masked else number
        number = spaces.Box(0, 1, (4,), np.float32)
        if not self._masked:
            return number
        return spaces.Dict({"number": number, "action_mask": spaces.MultiBinary(4)})

    def action_space(self, agent: str) -> Any:
        return spaces.Discrete(5, start=-1) if agent == "answerer" else self.acts

    def step(self, actions: dict[str, Any]) -> tuple[Any, ...]:
        for agent, action in actions.items():
            assert self.action_space(agent).contains(action), f"{agent} does {action}"
        if self._masked:
            assert actions["caller"] < 4 or self._number == 3, "a forbidden action"
        # One of the answerer's actions is never right.
        moved = {agent: action + (agent == "answerer") for agent, action in actions.items()}
        return super().step(moved)

    def _shown(self) -> dict[str, Any]:
        self._number = int(self._random.integers(4))
        caller, answerer = np.eye(4, dtype=np.float32)[self._number], np.full(6, -1, np.float32)
        answerer[1 + self._number] = 3
        if not self._masked:
            return {"caller": caller, "answerer": answerer}
        mask = np.array([1, 1, 1, self._number == 3], np.int8)
        return {"caller": {"number": caller, "action_mask": mask}, "answerer": {"number": answerer}}


class Masked(Meeting):
    """Meeting with masks, in which an agent that is wrong goes, and the other one goes on alone."""

    seen = spaces.Dict({"number": spaces.Box(2, 9, (1,), np.float32), "action_mask": spaces.MultiBinary(4)})

    def step(self, actions: dict[str, Any]) -> tuple[Any, ...]:
        assert all(self._mask()[action - 1] for action in actions.values()), "a forbidden action"
        self._step += 1
        before, over = self.agents, self._step == self.length
        wrong = {agent: actions[agent] - 1 == self._number for agent in before}
        shown = {agent: each for agent, each in self._shown().items() if agent in before}
        self.agents = [] if over else [agent for agent in before if not wrong[agent]]
        return (
            shown,
            {agent: 1.0 - wrong[agent] for agent in before},
            wrong,
            dict.fromkeys(before, over),
            {agent: {} for agent in before},
        )

    def _mask(self) -> Any:
        return (np.arange(4) != (self._number + 2) % 4).astype(np.int8)

    def _shown(self) -> dict[str, Any]:
        self._number = int(self._random.integers(4))
        number = np.array([2 + self._number], np.float32)
        return {agent: {"number": number, "action_mask": self._mask()} for agent in self.possible_agents}


class Numbered(Unequal):
    """Unequal whose agents are called alike: by their names they are of one kind."""

    possible_agents: ClassVar = ["agent_0", "agent_1"]

    def observation_space(self, agent: str) -> Any:
        return super().observation_space("answerer" if agent == "agent_1" else "caller")


class Kinds(Meeting):
    """Two agents that see and do different things."""

    def __init__(self, differ: str = "observations") -> None:
        super().__init__()
        self._differ = differ

    def observation_space(self, agent: str) -> Any:
        if self._differ == "names":
            return spaces.Dict({"agent_index": spaces.Discrete(2)})
        if agent == "caller":
            return self.seen
        if self._differ == "masks":
            return spaces.Dict({**self.seen.spaces, "action_mask": spaces.MultiBinary(3)})
        return spaces.Box(0, 1, (2,)) if self._differ == "observations" else self.seen

    def action_space(self, agent: str) -> Any:
        if agent == "caller":
            return self.acts
        others = {
            "actions": spaces.Discrete(7),
            "masks": spaces.Discrete(7),
            "kinds of actions": spaces.Box(0, 1),
        }
        return others.get(self._differ, self.acts)


class Lingering(Unequal):
    """Unequal in which the caller dies at once, stays in ``agents``, and has to be given an action of its own."""

    def step(self, actions: dict[str, Any]) -> tuple[Any, ...]:
        assert sorted(actions) == sorted(self.possible_agents)
        for agent, action in actions.items():
            assert self.action_space(agent).contains(action), f"{agent} does {action}"
        shown, agents = self._shown(), self.agents
        over = {"caller": True, "answerer": False}
        return shown, dict.fromkeys(agents, 0.0), over, dict.fromkeys(agents, False), {}


class Nim:
    """Two players take 1, 2 or 3 of the stones in turn; who takes the last one wins. (PettingZoo's other API.)

    Who is to move with a multiple of 4 before them loses against perfect play.
    """

    metadata: ClassVar[dict[str, Any]] = {"name": "nim"}
    possible_agents: ClassVar = ["first", "second"]

    def __init__(self, stones: int = 10, masked: bool = True, reals: bool = False) -> None:
        self._stones, self._masked, self._reals = stones, masked, reals

    def agent_iter(self) -> Any:
        return iter(self.agents)

    def observation_space(self, agent: str) -> Any:
        left = spaces.Box(0, 1, (self._stones + 2,), np.float32)
        return spaces.Dict({"left": left, "action_mask": spaces.MultiBinary(3)}) if self._masked else left

    def action_space(self, agent: str) -> Any:
        return spaces.Box(0, 1, (1,)) if self._reals else spaces.Discrete(3)

    def reset(self, seed: int | None = None, options: Any = None) -> None:
        self.agents, self.agent_selection, self._left = [*self.possible_agents], "first", self._stones
        self.rewards, self.infos = dict.fromkeys(self.agents, 0.0), {agent: {} for agent in self.agents}
        self.terminations, self.truncations = (dict.fromkeys(self.agents, False) for _ in range(2))

    def step(self, action: int) -> None:
        mover = self.agent_selection
        other = self.possible_agents[1 - self.possible_agents.index(mover)]
        taken = min(int(action) + 1, self._left)
        assert not self._masked or taken == action + 1, "a forbidden action"
        self._left -= taken
        self.agent_selection = other
        if not self._left:
            self.rewards = {mover: 1.0, other: -1.0}
            self.terminations = dict.fromkeys(self.agents, True)

    def observe(self, agent: str) -> Any:
        left = np.zeros(self._stones + 2, np.float32)
        left[self._left], left[-1] = 1, agent == self.agent_selection
        mask = (np.arange(3) < max(self._left, 1)).astype(np.int8)
        return {"left": left, "action_mask": mask} if self._masked else left

    def close(self) -> None:
        pass


class Relay:
    """Turns of three: "early" ends in its second turn, "late" comes after the second step. (PettingZoo's other API.)"""

    metadata: ClassVar[dict[str, Any]] = {"name": "relay"}
    possible_agents: ClassVar = ["early", "late", "whole"]

    def agent_iter(self) -> Any:
        return iter(self.agents)

    def observation_space(self, agent: str) -> Any:
        return spaces.Box(0, 9, (1,), np.float32)

    def action_space(self, agent: str) -> Any:
        return spaces.Discrete(3)

    def observe(self, agent: str) -> Any:
        return np.float32([self._steps])

    def reset(self, seed: int | None = None, options: Any = None) -> None:
        self.agents, self._steps = ["early", "whole"], 0
        self._ended: set[str] = set()
        self._turn_of("early")

    def step(self, action: int | None) -> None:
        mover = self.agent_selection
        follows = {"early": "whole", "whole": "late" if "late" in self.agents else "early", "late": "early"}
        if mover in self._ended:
            assert action is None, f"{mover} has ended"
            self.agents.remove(mover)
            self._ended.remove(mover)
        else:
            assert action is not None, f"{mover} lives"
            self._steps += 1
        if self._steps == 2 and "late" not in self.agents:
            self.agents.append("late")
            follows["whole"] = "late"
        if self._steps == 4:
            self._ended = {"early"}
        elif self._steps >= 7:
            self._ended = {*self.agents}
        following = follows[mover]
        self._turn_of(following if following in self.agents else "whole")

    def _turn_of(self, agent: str) -> None:
        self.agent_selection = agent
        self.rewards = {each: float(self._steps) for each in self.agents}
        self.terminations = {each: each in self._ended for each in self.agents}
        self.truncations, self.infos = dict.fromkeys(self.agents, False), {each: {} for each in self.agents}

    def close(self) -> None:
        pass


class RockPaperScissors(Parallel):
    """Two players choose rock, paper or scissors at once, for one round or several, and see the other's last choice.

    Each round is worth 1 to the player that wins it and -1 to the other one. Nobody can be beaten at random: uniform
    choices are the only ones that lose to none.
    """

    metadata: ClassVar[dict[str, Any]] = {"name": "rock, paper, scissors"}
    possible_agents: ClassVar = ["first", "second"]
    seen = spaces.Box(0, 1, (3,), np.float32)

    def __init__(self, rounds: int = 1) -> None:
        super().__init__()
        self._rounds = rounds

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
        self.agents, self._round = [*self.possible_agents], 0
        return {agent: np.zeros(3, np.float32) for agent in self.agents}, {agent: {} for agent in self.agents}

    def step(self, actions: dict[str, Any]) -> tuple[Any, ...]:
        first, second = (int(actions[agent]) for agent in self.possible_agents)
        worth = (0.0, 1.0, -1.0)[(first - second) % 3]
        self._round += 1
        before, over = self.agents, self._round == self._rounds
        self.agents = [] if over else before
        shown = {"first": np.eye(3, dtype=np.float32)[second], "second": np.eye(3, dtype=np.float32)[first]}
        rewards = {"first": worth, "second": -worth}
        ends = dict.fromkeys(before, over)
        return shown, rewards, ends, dict.fromkeys(before, False), {agent: {} for agent in before}


class NimAlone(gymnasium.Env[Any, Any]):
    """Nim for one agent: the second player is inside, and takes one stone at every turn."""

    metadata: ClassVar[dict[str, Any]] = {"name": "nim alone"}

    def __init__(self, stones: int = 10) -> None:
        self._nim = Nim(stones)
        self.observation_space = self._nim.observation_space("first")
        self.action_space = self._nim.action_space("first")

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
        super().reset(seed=seed)
        self._nim.reset()
        return self._seen(), {}

    def step(self, action: Any) -> tuple[Any, ...]:
        self._nim.step(int(action))
        if not self._nim.terminations["first"]:
            self._nim.step(0)
        over, worth = self._nim.terminations["first"], self._nim.rewards["first"]
        return self._seen(), worth, over, False, {}

    def _seen(self) -> dict[str, Any]:
        """The board as it is shown where both are agents."""
        return dict(self._nim.observe("first"))


_one = Meeting()


def the_same() -> Any:
    """The same object, at every call."""
    return _one
