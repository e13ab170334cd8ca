"""The interface of launchers, which start the instances of a program's roles: on this machine or on a cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from seedbed.architectures.program import Role, Task
from seedbed.config.launchers import LAUNCHERS
from seedbed.instances import Instance
from seedbed.launch.folder import RunFolder
from seedbed.learning.checkpoint import Contents
from seedbed.plugins import load
from seedbed.transport.admission import Invitation


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

    @property
    def advice(self) -> str:
        """A remedy for the user if an instance does not join."""

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

    def watch(self, on_loss: Callable[[str], None]) -> None:
        """Registers a callback for the loss of all that was started, for good; called before the first start.

        Args:
          on_loss: function that is called at most once, in another thread, with the reason.
        """

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
    return load(LAUNCHERS[place].launcher)


def findings_on(place: str) -> Iterator[tuple[str, str, str]]:
    """Yields subject, finding and advice for the machines of a launcher, if they are others than this one."""
    if (findings := LAUNCHERS[place].findings) is not None:
        yield from load(findings)()


def log_on(place: str, folder: RunFolder, name: str) -> bytes | None:
    """Returns the log of an instance that is on another machine; None if the launcher starts none there.

    Raises:
      ConfigError: there is none.
    """
    names = LAUNCHERS.get(place)
    return load(names.log)(folder, name) if names and names.log else None
