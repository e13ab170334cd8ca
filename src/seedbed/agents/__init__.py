"""Agents, the computation of a run. One paper a file; none imports another."""

from seedbed.agents.actor_critic import ActorCriticSettings, PolicySettings, make_model
from seedbed.agents.interface import AgentDefinition
from seedbed.agents.replay_based import ReplaySettings
from seedbed.agents.value_based import ValueBasedSettings

__all__ = [
    "ActorCriticSettings",
    "AgentDefinition",
    "PolicySettings",
    "ReplaySettings",
    "ValueBasedSettings",
    "make_model",
]
