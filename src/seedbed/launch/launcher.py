"""The interface of launchers, which start the instances of a program's roles: on this machine or on a cluster."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Protocol

from seedbed.architectures.program import Role, Task
from seedbed.instances import Instance
from seedbed.launch.folder import RunFolder
from seedbed.learning.checkpoint import Contents
from seedbed.transport.admission import Invitation

LAUNCHERS: Mapping[str, str] = {
    "here": "seedbed.launch.local:LocalLauncher",
    "ray": "seedbed.launch.cluster:ClusterLauncher",
}
"""``module:name`` of each launcher, by the setting ``on``."""


class Launcher(Protocol):
    """A starter of instances, which also gives their addresses; used by the supervisor's thread and the run's own."""

    def address(self, role: Role, index: int) -> str:
        """Returns the address of an instance that listens; it stays the same when the instance is started again."""

    def prepare(self, role: Role, index: int, contents: Contents) -> None:
        """Writes the checkpoint from which the first instance with this index begins."""

    def folder(self, role: Role, index: int) -> str:
        """Returns the folder of an instance, which outlives it."""

    def standing(self, role: Role, index: int) -> str | None:
        """Returns a line for the user on where a restarted instance goes on; None if it begins anew."""

    @property
    def listens(self) -> Sequence[str]:
        """Addresses at which the head has to listen for instances on other machines; empty if all are on this one."""

    def meet(self, invitation: Invitation, claim: str, identity: Sequence[str]) -> None:
        """Notes what instances on other machines need to join the run, before any of them is started.

        Args:
          invitation: the run's token, and the certificate that is shown there.
          claim: secret by which the instances of this session are known.
          identity: files of that certificate and of the key to it, for instances that listen; empty for plain text.
        """

    def reach_head(self, addresses: Sequence[str]) -> None:
        """Notes the addresses at which the head listens, for each of ``listens``, before instances dial it."""

    def start(self, role: Role, task: Task) -> Instance:
        """Starts an instance of ``role``, which is given ``task``."""

    def look_after(self) -> Sequence[str]:
        """Does what has to be done now and then while instances live; called a few times a second.

        Returns:
          News for the user, a line each.
        """

    def close(self) -> None:
        """Ends all instances that have not ended; safe to call twice."""


Launch = Callable[[RunFolder, str], Launcher]
"""A function that makes a launcher from the run folder and the name of the carrier on this machine."""


def launcher_on(place: str) -> Launch:
    """Returns the launcher for a value of the setting ``on``."""
    module, _, name = LAUNCHERS[place].partition(":")
    launch: Launch = getattr(import_module(module), name)
    return launch
