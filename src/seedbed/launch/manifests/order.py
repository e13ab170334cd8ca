"""The user's wishes on a manifest, which are flags of ``seedbed manifest``."""

from __future__ import annotations

import math
from dataclasses import dataclass

from seedbed.errors import ConfigError

_LEAST_HOURS = 0.1


@dataclass(frozen=True)
class Order:
    """The files, and the jobs in them.

    Raises:
      ConfigError: a number is too small or too large.
    """

    name: str = ""
    """Name of the job; none: after the environment."""
    image: str = "seedbed"
    """Container image with Seedbed (all but slurm)."""
    volume: str = "seedbed-runs"
    """Claim of the volume that holds run folders (all but slurm)."""
    port: int = 5700
    """Port of the learner, or of host 0."""
    hours: float = 24.0
    """Hours that a job may take (slurm); it goes on in another one."""
    learner_cores: int = 4
    """CPU cores of a learner."""
    learner_memory: int = 16
    """Memory of a learner in GiB."""
    actor_memory: int = 1
    """Memory of an actor in GiB."""
    actors_per_job: int = 16
    """Actors on one machine (all but kubernetes, where each has a pod)."""
    accelerators: int | None = None
    """Accelerators of a learner; none: as many as the program declares."""
    accelerator: str = "A100"
    """Kind of accelerator (skypilot)."""

    def __post_init__(self) -> None:
        for name in ("learner_cores", "learner_memory", "actor_memory", "actors_per_job"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}, and has to be 1 or more")
        if not 1 <= self.port <= 65_534:
            raise ConfigError(f"port is {self.port}, and has to be between 1 and 65534")
        if not _LEAST_HOURS <= self.hours < math.inf:
            raise ConfigError(
                f"hours is {self.hours}, and has to be {_LEAST_HOURS} or more: a run needs minutes to save its state"
            )
        if self.accelerators is not None and self.accelerators < 0:
            raise ConfigError(f"accelerators is {self.accelerators}, and has to be 0 or more")
