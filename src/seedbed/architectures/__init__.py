"""Architectures, which place the parts of a run: one file each, with its diagram on top, and shared files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from seedbed.public import lazily

if TYPE_CHECKING:
    from seedbed.architectures.interface import Architecture, Setup
    from seedbed.architectures.program import Edge, Program, Resources, Role, Traffic

__all__ = ["Architecture", "Edge", "Program", "Resources", "Role", "Setup", "Traffic"]

__getattr__, __dir__ = lazily(
    __name__,
    {
        "Architecture": "seedbed.architectures.interface:Architecture",
        "Edge": "seedbed.architectures.program:Edge",
        "Program": "seedbed.architectures.program:Program",
        "Resources": "seedbed.architectures.program:Resources",
        "Role": "seedbed.architectures.program:Role",
        "Setup": "seedbed.architectures.interface:Setup",
        "Traffic": "seedbed.architectures.program:Traffic",
    },
)
