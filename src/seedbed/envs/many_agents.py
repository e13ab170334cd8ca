"""Several agents in one environment: PettingZoo's parallel API, ``pettingzoo:module:factory``.

``factory(**options)`` returns a ``pettingzoo.ParallelEnv``, an ``AECEnv``, or an object with the methods of one. Each
agent is a row of the batch: E environments of N agents are E·N rows, the agents of one environment next to one another
in the order of ``possible_agents``. So the observations of all go up in one message, and one policy decides for all.

An agent's episode begins with the first step in which it is among ``agents``, and ends when the environment terminates
or truncates it. At other steps it is absent (:attr:`seedbed.types.TimeStep.absent`). The step after the last agent's
end resets the environment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array, iterate
from numpy.typing import NDArray

from seedbed.envs import contract
from seedbed.envs.claims import claim, release
from seedbed.envs.kinds import Kind, equal, padded
from seedbed.envs.options import Options, arguments, taken_by
from seedbed.envs.policies import SHARED, without_policies
from seedbed.envs.seeds import environment_seeds
from seedbed.envs.spaces import action_codec, observation_codec, taken
from seedbed.envs.stream import Stream
from seedbed.errors import ConfigError, EnvironmentFault, listed
from seedbed.metrics.final_info import FinalInfo
from seedbed.plugins import load
from seedbed.types import ACTION_MASK, EnvSpec, TimeStep

PREFIX = "pettingzoo:"
_NEEDED = ("possible_agents", "observation_space", "action_space", "reset", "step")
_FIVE = ("observations", "rewards", "terminations", "truncations", "infos")


class Shown(NamedTuple):
    """One step of one environment, a row for each of its N agents.

    Attributes:
      observation: N observations; of an absent agent one that means nothing.
      reward: float64 ``[N]``.
      terminated, truncated: bool ``[N]``.
      absent: bool ``[N]``, agents that are not there.
      final: ``info`` of each agent whose episode has ended.
    """

    observation: list[Any]
    reward: NDArray[np.float64]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    absent: NDArray[np.bool_]
    final: list[Mapping[Any, Any]]


class World:
    """One environment with the parallel API, whose steps have a row for each agent that it can have.

    Args:
      env_id: its name, for messages.
      env: the environment.
      agents: names of all agents that it can have.
      kinds: the agents, seen from the space that all have.
    """

    def __init__(self, env_id: str, env: Any, agents: Sequence[Any], kinds: Sequence[Kind]) -> None:
        self._id, self._env, self._agents, self._kinds = env_id, env, agents, kinds
        self._present: set[Any] = set()

    def reset(self, seed: int | None = None) -> Shown:
        """Begins an episode of every agent that is there at its beginning."""
        shown, _ = contract.reset(self._id, self._env.reset, self._env.reset, seed=seed, options=None)
        self._present = self._listed()
        if not self._present:
            raise EnvironmentFault(f"{self._id}: reset() leaves no name in agents: it must list who begins")
        rows = self._nobody()
        for row, agent in self._rows(self._present):
            rows.observation[row] = self._observed(shown, row, agent, "reset")
            rows.absent[row] = False
        return rows

    def step(self, actions: Sequence[Any]) -> Shown:
        """Takes an action of each agent, or resets the environment where all have ended; one a row."""
        if not self._present:
            return self.reset()
        asked = self._listed()
        result = self._env.step(
            {agent: self._kinds[row].act(actions[row]) for row, agent in self._rows(asked)}
        )
        parts = dict(zip(_FIVE, contract.five(self._id, result), strict=True))
        listed_now = self._listed()
        rows = self._nobody()
        for row, agent in self._rows(self._present | listed_now):
            if agent in self._present:
                self._goes_on(rows, row, agent, parts)
            elif not self._ended(parts, agent):
                rows.observation[row] = self._observed(parts["observations"], row, agent, "step")
                rows.absent[row] = False
        over = rows.terminated | rows.truncated
        remaining = {agent for row, agent in self._rows(self._agents) if not (rows.absent[row] or over[row])}
        if vanished := remaining - listed_now:
            raise EnvironmentFault(
                f"{self._id}: step() has taken {listed(sorted(map(str, vanished)))} out of agents without an end: it "
                "must set terminations or truncations of an agent in the step in which it goes"
            )
        self._present = remaining
        return rows

    def _goes_on(self, rows: Shown, row: int, agent: Any, parts: Mapping[str, Any]) -> None:
        """Writes the step of an agent that was there before."""
        values = tuple(self._of(parts[name], agent, name) for name in _FIVE[:4])
        step = contract.step(self._id, (*values, parts["infos"]))
        observation, rows.reward[row], rows.terminated[row], rows.truncated[row], infos = step
        rows.observation[row] = taken(self._kinds[row].read, observation, "step")
        rows.absent[row] = False
        info = infos.get(agent) if isinstance(infos, Mapping) else None
        if (rows.terminated[row] or rows.truncated[row]) and isinstance(info, Mapping):
            rows.final.append(info)

    def _ended(self, parts: Mapping[str, Any], agent: Any) -> bool:
        """Returns whether an agent has ended that was not there: some environments list dead agents."""
        return any(bool(parts[name].get(agent, False)) for name in ("terminations", "truncations"))

    def _listed(self) -> set[Any]:
        names = set(self._env.agents)
        if strangers := names - set(self._agents):
            raise EnvironmentFault(
                f"{self._id}: agents has {listed(sorted(map(str, strangers)))}, of which possible_agents knows nothing"
            )
        return names

    def _rows(self, names: Iterable[Any]) -> list[tuple[int, Any]]:
        """Row and name of these agents, in the order of rows."""
        wanted = set(names)
        return [(row, agent) for row, agent in enumerate(self._agents) if agent in wanted]

    def _observed(self, shown: Any, row: int, agent: Any, moment: str) -> Any:
        return taken(self._kinds[row].read, self._of(shown, agent, "observations"), moment)

    def _of(self, part: Any, agent: Any, name: str) -> Any:
        if not isinstance(part, Mapping) or agent not in part:
            raise EnvironmentFault(
                f"{self._id}: {name} are {contract.looks(part)}; they must be a dict with an entry for {agent}"
            )
        return part[agent]

    def _nobody(self) -> Shown:
        count = len(self._agents)
        return Shown(
            [kind.blank for kind in self._kinds],
            np.zeros(count),
            np.zeros(count, np.bool_),
            np.zeros(count, np.bool_),
            np.ones(count, np.bool_),
            [],
        )


class TurnByTurn:
    """An environment in which agents take turns (PettingZoo's ``AECEnv``), as one in which all act at every step.

    The mask of an agent that waits allows one action alone, which does nothing: so there is nothing to learn of it.

    Args:
      env_id: its name, for messages.
      env: the environment.

    Raises:
      ConfigError: actions are no choices.
    """

    def __init__(self, env_id: str, env: Any) -> None:
        self._env, self.metadata = env, getattr(env, "metadata", {})
        self.possible_agents = list(env.possible_agents)
        self.agents: list[Any] = []
        for agent in self.possible_agents:
            if not isinstance(env.action_space(agent), spaces.Discrete):
                raise ConfigError(
                    f"{env_id}: its agents take turns, and {agent} has actions of {env.action_space(agent)}; who waits "
                    "is kept from acting by a mask, which needs Discrete ones"
                )

    @property
    def unwrapped(self) -> Any:
        """The environment without wrappers."""
        return getattr(self._env, "unwrapped", self._env)

    def observation_space(self, agent: Any) -> Any:
        """The agent's space, with a mask."""
        space = self._env.observation_space(agent)
        if _is_masked(space):
            return space
        mask = spaces.MultiBinary(int(self._env.action_space(agent).n))
        return spaces.Dict({"observation": space, ACTION_MASK: mask})

    def action_space(self, agent: Any) -> Any:
        """The agent's space."""
        return self._env.action_space(agent)

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
        """Begins a game."""
        self._env.reset(seed=seed, options=options)
        self.agents = list(self._env.agents)
        return self._shown(self.agents), {agent: {} for agent in self.agents}

    def step(self, actions: Mapping[Any, Any]) -> tuple[Any, Any, Any, Any, Any]:
        """Takes the action of the agent whose turn it is."""
        env, before = self._env, self.agents
        env.step(actions[env.agent_selection])
        rewards, terminations, truncations, infos = (
            {agent: part[agent] for agent in before}
            for part in (env.rewards, env.terminations, env.truncations, env.infos)
        )
        self.agents = self._living()
        # Who has ended is asked for nothing any more, but has to be passed over.
        while self.agents and env.agent_selection not in self.agents:
            env.step(None)
            self.agents = self._living()
        return self._shown(dict.fromkeys([*before, *self.agents])), rewards, terminations, truncations, infos

    def _living(self) -> list[Any]:
        """The agents that have not ended, those among them that have just come."""
        ended = (self._env.terminations, self._env.truncations)
        return [agent for agent in self._env.agents if not any(part.get(agent, False) for part in ended)]

    def _shown(self, agents: Iterable[Any]) -> dict[Any, Any]:
        return {agent: self._observed(agent) for agent in agents}

    def _observed(self, agent: Any) -> dict[str, Any]:
        shown, count = self._env.observe(agent), int(self._env.action_space(agent).n)
        if not _is_masked(self._env.observation_space(agent)):
            shown = {"observation": shown, ACTION_MASK: np.ones(count, np.int8)}
        if agent != self._env.agent_selection:
            shown = {**shown, ACTION_MASK: np.eye(1, count, dtype=shown[ACTION_MASK].dtype)[0]}
        return dict(shown)

    def render(self) -> Any:
        """The picture of the game."""
        return self._env.render()

    def close(self) -> None:
        """Closes the game."""
        self._env.close()


def _is_masked(space: Any) -> bool:
    return isinstance(space, spaces.Dict) and ACTION_MASK in space.spaces


class ParallelBatch:
    """Environments with the parallel API behind our interface, with a row for each agent.

    Args:
      env_id: their name.
      envs: the environments, of one kind, with an agent or more.
      policies: policies of its agents, ``shared``, ``own`` or ``kind``, see :mod:`seedbed.envs.policies`.

    Attributes:
      told: numbers in the ``info`` of the ends of agents' episodes.
      render_fps: pictures a second at which the environment is to be shown, as its metadata say it.

    Raises:
      ConfigError: agents differ in their spaces, or the spaces are not supported.
    """

    def __init__(self, env_id: str, envs: Sequence[Any], *, policies: str = SHARED) -> None:
        agents = tuple(envs[0].possible_agents)
        alike = policies == SHARED
        common = equal(env_id, agents, envs[0]) if alike else padded(env_id, agents, envs[0], policies)
        seen, acts, kinds = common
        observation, self._decode = observation_codec(seen, env_id)
        action, self._encode = action_codec(acts, env_id)
        self.spec = EnvSpec(env_id, observation, action, agents=tuple(map(str, agents)))
        self.num_envs = len(envs) * len(agents)
        self._seen, self._acts = seen, batch_space(acts, self.num_envs)
        self._envs = list(envs)
        self._parts = [getattr(env, "unwrapped", env) for env in envs]
        claim(env_id, self._parts)
        self._worlds = [World(env_id, env, agents, kinds) for env in envs]
        self._stream = Stream(self.num_envs)
        self._actions: Any = None
        self._closed = False
        self.told = FinalInfo()
        self.render_fps = (getattr(envs[0], "metadata", None) or {}).get("render_fps")

    def reset(self, seed: int) -> TimeStep:
        """Starts every environment anew."""
        seeds = [int(one) for one in environment_seeds(seed, len(self._worlds))]
        observation, *_, absent, _ = self._together(lambda index, world: world.reset(seeds[index]))
        return self._stream.start(taken(self._decode, observation, "reset"), absent)

    def send(self, action: Any) -> None:
        """Keeps the actions, one a row, until :meth:`receive`."""
        self._actions = list(iterate(self._acts, self._encode(action)))

    def receive(self) -> TimeStep:
        """Steps the environments."""
        count = len(self.spec.agents)

        def step(index: int, world: World) -> Shown:
            return world.step(self._actions[index * count : (index + 1) * count])

        observation, reward, terminated, truncated, absent, final = self._together(step)
        self.told.add(*final)
        decoded = taken(self._decode, observation, "step")
        return self._stream.step(decoded, reward, terminated, truncated, absent)

    def _together(self, step: Callable[[int, World], Shown]) -> tuple[Any, Any, Any, Any, Any, list[Any]]:
        """The rows of all environments, one environment after the other."""
        shown: list[Shown] = []
        try:
            for index, world in enumerate(self._worlds):
                shown.append(step(index, world))
        except EnvironmentFault as fault:
            fault.environment = len(shown) * len(self.spec.agents)
            raise
        observations, *arrays, finals = zip(*shown, strict=True)
        out: Any = create_empty_array(self._seen, n=self.num_envs, fn=np.empty)
        batch = concatenate(self._seen, [one for each in observations for one in each], out)
        reward, terminated, truncated, absent = (np.concatenate(array) for array in arrays)
        return batch, reward, terminated, truncated, absent, [info for final in finals for info in final]

    def render(self) -> Any:
        """The picture of environment 0, uint8 ``[H, W, 3]``."""
        return np.asarray(self._envs[0].render(), np.uint8)

    def close(self) -> None:
        """Closes the environments."""
        if not self._closed:
            self._closed = True
            release(self._parts)
            for env in self._envs:
                getattr(env, "close", lambda: None)()


def make_many(env_id: str, num_envs: int, options: Options, *, render: bool) -> ParallelBatch:
    """Makes the environments that have ``num_envs`` rows or a few more, with the factory that ``env_id`` names.

    Raises:
      ConfigError: there is no such factory, it does not take an option, or its result cannot be used.
    """
    factory = load(env_id.removeprefix(PREFIX))
    takes = taken_by(factory)
    options, policies = without_policies(options)
    settings = arguments(env_id, options, takes)
    if render and ("render_mode" in takes.parameters or takes.any_name):
        settings["render_mode"] = "rgb_array"
    envs = [_parallel(env_id, factory(**settings))]
    agents = len(envs[0].possible_agents)
    while len(envs) * agents < num_envs:
        envs.append(_parallel(env_id, factory(**settings)))
    return ParallelBatch(env_id, envs, policies=policies)


def _parallel(env_id: str, env: Any) -> Any:
    """The environment, if it has the parallel API; one in which agents take turns, turned into one that has it.

    Raises:
      ConfigError: a part of the API is missing, or it names no agent.
    """
    if hasattr(env, "agent_iter"):
        env = TurnByTurn(env_id, env)
    if missing := [name for name in _NEEDED if not hasattr(env, name)]:
        raise ConfigError(
            f"{env_id} returned a {type(env).__name__}; it must return a pettingzoo.ParallelEnv "
            f"(no {', '.join(missing)})"
        )
    if not len(env.possible_agents):
        raise ConfigError(
            f"{env_id} has no possible_agents: it must name all agents that it can have as soon as it is made, before "
            "reset()"
        )
    return env
