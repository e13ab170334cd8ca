"""Architectures, which place the parts of a run: one file each, with its diagram on top, and shared files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from seedbed.public import lazily

if TYPE_CHECKING:
    from seedbed.architectures.interface import Architecture, Setup
    from seedbed.architectures.program import (
        Acts,
        Edge,
        Environments,
        Program,
        Resources,
        Role,
        Traffic,
        Trains,
    )
    from seedbed.architectures.seed import SEED
    from seedbed.config.placement import TrainingDeviceSettings

__all__ = [
    "SEED",
    "Acts",
    "Architecture",
    "Edge",
    "Environments",
    "Program",
    "Resources",
    "Role",
    "Setup",
    "Traffic",
    "TrainingDeviceSettings",
    "Trains",
]

__getattr__, __dir__ = lazily(
    __name__,
    {
        "SEED": "seedbed.architectures.seed:SEED",
        "Acts": "seedbed.architectures.program:Acts",
        "Architecture": "seedbed.architectures.interface:Architecture",
        "Edge": "seedbed.architectures.program:Edge",
        "Environments": "seedbed.architectures.program:Environments",
        "Program": "seedbed.architectures.program:Program",
        "Resources": "seedbed.architectures.program:Resources",
        "Role": "seedbed.architectures.program:Role",
        "Setup": "seedbed.architectures.interface:Setup",
        "Traffic": "seedbed.architectures.program:Traffic",
        "TrainingDeviceSettings": "seedbed.config.placement:TrainingDeviceSettings",
        "Trains": "seedbed.architectures.program:Trains",
    },
)
