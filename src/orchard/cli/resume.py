"""``orchard resume RUN …``."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Annotated

import tyro

from orchard.cli.ending import report
from orchard.cli.parse import parse
from orchard.launch.allocator import restart_tuned


@dataclass(frozen=True)
class Resume:
    """What may be different when a run goes on."""

    run: Annotated[str, tyro.conf.Positional]
    """The run folder."""
    frames: int | None = None
    """Environment frames of the whole run; none: as before."""
    minutes: float | None = None
    """Minutes of training of the whole run; none: as before."""
    until_return: float | None = None
    """Mean return of the last 100 episodes at which to stop; none: as before."""
    actors: int | None = None
    """Actors that this run starts on this machine; none: as before."""
    listen: tuple[str, ...] | None = None
    """Addresses where actors of other machines may join; none: as before, at the same ports."""
    json: bool = False
    """Print the summary as the last line, also if the run did not."""
    video: bool = True
    """End with a video of the agent, if the run was to."""


def run(arguments: list[str]) -> int:
    """Goes on with a run; see :func:`orchard.launch.run.resume`."""
    settings = parse("resume", Resume, arguments, about="Go on with a run from its newest intact checkpoint.")
    restart_tuned()
    from orchard.launch.folder import RunFolder
    from orchard.launch.run import resume

    changes = {
        name: value
        for name, value in asdict(settings).items()
        if name not in ("run", "json", "video") and value is not None
    }
    summary = resume(settings.run, **changes)
    config = RunFolder.open(settings.run).config()
    json, video = settings.json or config.json, settings.video and config.video
    return report(summary, replace(config, json=json, video=video))
