"""Several CartPoles as agents of one environment, after RLlib's ``MultiAgentCartPole``; each ends by itself."""

from __future__ import annotations

from typing import Any

import gymnasium


class CartPoles:
    """``agents`` poles with PettingZoo's parallel API; an episode ends with the last of them."""

    def __init__(self, agents: int = 2) -> None:
        self._poles = {f"pole_{index}": gymnasium.make("CartPole-v1") for index in range(agents)}
        self.possible_agents = [*self._poles]
        self.agents: list[str] = []

    def observation_space(self, agent: str) -> Any:
        return self._poles[agent].observation_space

    def action_space(self, agent: str) -> Any:
        return self._poles[agent].action_space

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
        self.agents = self.possible_agents[:]
        found = {}
        for index, (agent, pole) in enumerate(self._poles.items()):
            found[agent], _ = pole.reset(seed=None if seed is None else seed + index)
        return found, {agent: {} for agent in found}

    def step(self, actions: dict[str, Any]) -> tuple[Any, ...]:
        told = {agent: self._poles[agent].step(int(action)) for agent, action in actions.items()}
        observations, rewards, ends, cuts, infos = (
            {agent: one[part] for agent, one in told.items()} for part in range(5)
        )
        self.agents = [agent for agent in self.agents if not (ends[agent] or cuts[agent])]
        return observations, rewards, ends, cuts, infos

    def close(self) -> None:
        for pole in self._poles.values():
            pole.close()
