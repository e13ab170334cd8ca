"""Agents: what is computed. One paper a file; none imports another."""

from seedbed.agents.registry import AGENTS, load_agent

__all__ = ["AGENTS", "load_agent"]
