"""Where the stages stand: one architecture a file, with its diagram on top; the other files are what several share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from seedbed.public import lazily

if TYPE_CHECKING:
    from seedbed.architectures.interface import Architecture, Setup

__all__ = ["Architecture", "Setup"]

__getattr__, __dir__ = lazily(
    __name__, {name: f"seedbed.architectures.interface:{name}" for name in ("Architecture", "Setup")}
)
