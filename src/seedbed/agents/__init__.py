"""Agents: what is computed. One paper a file; none imports another."""

from seedbed.agents.interface import AgentDefinition

__all__ = ["AgentDefinition"]
