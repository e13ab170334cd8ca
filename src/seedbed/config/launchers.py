"""The launchers, which start the instances of a run on this machine or on a cluster: one file each, and a row here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal


@dataclass(frozen=True)
class LauncherNames:
    """A row of :data:`LAUNCHERS`: each part of a launcher as ``module:name``, imported when it is needed.

    Attributes:
      launcher: class of the launcher, made as :data:`~seedbed.launch.launcher.Launch` says.
      findings: function that examines its machines for ``seedbed doctor --on``; None if it has no others than this one.
      log: function that returns the log of an instance on another machine, from the run folder and the instance's name;
        None if all logs are in the run folder.
    """

    launcher: str
    findings: str | None = None
    log: str | None = None


LAUNCHERS: Mapping[str, LauncherNames] = {
    "here": LauncherNames("seedbed.launch.local:LocalLauncher"),
    "ray": LauncherNames(
        "seedbed.launch.cluster:ClusterLauncher",
        findings="seedbed.launch.nodes:cluster_findings",
        log="seedbed.launch.cluster:tail_of",
    ),
}
"""Each launcher by the value of the setting ``on``."""

if TYPE_CHECKING:
    LauncherName = str
else:
    LauncherName = Literal[tuple(LAUNCHERS)]
    """Type of the setting ``on``: the name of a row."""
