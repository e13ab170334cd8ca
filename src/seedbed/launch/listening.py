"""The addresses at which the head of a run listens, and the secrets by which others join it there."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping

from seedbed.config.placement import EngineSettings, RemoteSettings
from seedbed.config.settings import RunConfig
from seedbed.launch.folder import RunFolder
from seedbed.launch.launcher import Launcher
from seedbed.launch.outcome import invitations
from seedbed.launch.surroundings import require_files
from seedbed.learning.run import Run


class Listening:
    """How instances, and actors from elsewhere, reach the head in one session.

    Args:
      config: settings of the run, with every value that the architecture chooses.
      folder: run folder.
      launcher: starter of the run's own instances.

    Attributes:
      gate: admission of a head that other machines may dial; None if none may.
      claim: secret by which the instances of this session are known; those of an earlier one know another.

    Raises:
      ConfigError: this process may open too few files for as many conversations.
    """

    def __init__(self, config: RunConfig, folder: RunFolder, launcher: Launcher) -> None:
        self._config = config
        self._folder = folder
        self._launcher = launcher
        self._place = place = config.placement
        # The user's addresses, for actors from elsewhere.
        self._asked = place.listen if isinstance(place, RemoteSettings) else ()
        self.claim = secrets.token_hex(16)
        self.gate = None
        if isinstance(place, EngineSettings):
            require_files(place.actors, place.most_actors)
            self.gate = folder.gate(place, [*launcher.listens, *folder.addresses(self._asked)])

    def meet(self) -> None:
        """Tells the launcher how instances on other machines are admitted, if there may be any."""
        if self.gate is None or not self._launcher.listens:
            return
        address, identity = self._launcher.listens[0], tuple[str, ...]()
        if self.gate.identity_at(address) is not None:
            identity = self._folder.identity_files(self._place)
        self._launcher.meet(self.gate.invitation(address), self.claim, identity)

    def open(
        self, arch: Run, local: str, dialled: Mapping[str, list[str]], note: Callable[[str], None]
    ) -> list[str]:
        """Has the head listen, and notes the command for each address with which actors from elsewhere join.

        Args:
          arch: the run.
          local: address for instances on this machine.
          dialled: addresses of the instances that the head dials, by role.
          note: takes lines for the user.

        Returns:
          The address for instances on this machine, as it was opened.
        """
        if self.gate is None:
            return arch.open([local], dialled)
        own, wanted = self._launcher.listens, self._folder.addresses(self._asked)
        opened = arch.open([local, *own, *wanted], dialled)
        ours, others = opened[1 : 1 + len(own)], opened[1 + len(own) :]
        if ours:
            self._launcher.reach_head(ours)
        self._folder.keep_addresses(self._asked, others, self.gate)
        # Engines keep what their jobs print, and show it.
        token = self._folder.token_in_a_shell if self._config.begin_or_resume else None
        for line in invitations(self._config, self.gate, others, token):
            note(line)
        return opened[:1]
