"""What starts the instances of a program's roles: on this machine, in threads, or on a cluster."""

from __future__ import annotations

from typing import Protocol

from seedbed.architectures.program import Role, Task
from seedbed.instances import Instance
from seedbed.learning.checkpoint import Contents


class Launcher(Protocol):
    """Starts instances, and says where they can be reached; used by the supervisor's thread and the run's own."""

    def address(self, role: Role, index: int) -> str:
        """Returns the address of an instance that listens; it stays the same when the instance is started again."""

    def prepare(self, role: Role, index: int, contents: Contents) -> None:
        """Puts down the checkpoint that the first instance with an index begins with."""

    def folder(self, role: Role, index: int) -> str:
        """Returns the place of an instance's own, which outlives it."""

    def standing(self, role: Role, index: int) -> str | None:
        """Returns, for people, where an instance that is started again goes on; None where it begins anew."""

    def start(self, role: Role, task: Task) -> Instance:
        """Starts the instance that is told ``task``."""

    def look_after(self) -> None:
        """Does what has to be done now and then while instances live; called a few times a second."""

    def close(self) -> None:
        """Ends what was started and has not ended; safe to call twice."""
