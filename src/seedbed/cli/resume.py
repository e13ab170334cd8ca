"""``seedbed resume RUN …``."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Annotated, Literal

import tyro

from seedbed.cli.ending import executed_again, report
from seedbed.cli.parse import parse
from seedbed.config.launchers import LauncherName
from seedbed.launch.allocator import restart_tuned

Kept = Literal["kept"]
"""As it was."""


@dataclass(frozen=True)
class Resume:
    """Settings that may change when a run goes on."""

    run: Annotated[str, tyro.conf.Positional]
    """The run folder."""
    frames: int | Kept | None = "kept"
    """Environment frames of the whole run; None: no such limit."""
    minutes: float | Kept | None = "kept"
    """Minutes of training of the whole run; None: no such limit."""
    until_return: float | Kept | None = "kept"
    """Mean return of the last 100 episodes at which to stop; None: no such goal."""
    actors: int | Kept = "kept"
    """Actors that this run starts."""
    guests: int | Kept = "kept"
    """Further actors that come and go with the room of the cluster."""
    on: LauncherName | Kept = "kept"
    """Place of the actors, or of the other hosts: this machine, or those of a Ray cluster."""
    listen: tuple[str, ...] | Kept = "kept"
    """Addresses where actors of other machines may join; kept: also at the same ports."""
    host: int | Kept = "kept"
    """Number of this host, if the run has several."""
    coordinator: str | Kept | None = "kept"
    """HOST:PORT of host 0; None: host 0 starts them, here or on a cluster."""
    store: str | Kept | None = "kept"
    """URL that the run's state is copied to, and fetched from where there is no run folder; None: nowhere."""
    log: tuple[str, ...] | Kept = "kept"
    """Services that the metrics go to as well: wandb, mlflow, trackio, or module:NAME of your own."""
    rotate_token: bool = False
    """Make a new token, which replaces the old one: no peer joins without it any more."""
    trust: tuple[str, ...] = ()
    """Names (module:name) that the run may have imported, if this user did not begin it here."""
    json: bool = False
    """Print the summary as the last line, also if the run did not."""
    video: bool = True
    """End with a video of the agent, if the run was to."""


def run(arguments: list[str]) -> int:
    """Goes on with a run; see :func:`seedbed.launch.train.resume`."""
    settings = parse("resume", Resume, arguments, about="Go on with a run from its newest intact checkpoint.")
    restart_tuned()
    changes = {
        name: value
        for name, value in asdict(settings).items()
        if name not in ("run", "json", "video") and value != "kept"
    }
    with executed_again():
        from seedbed.launch.folder import RunFolder
        from seedbed.launch.train import resume

        summary = resume(settings.run, **changes)
    config = RunFolder.open(summary.to_json()["run_dir"]).config(trust=None)  # it has just been run
    json, video = settings.json or config.json, settings.video and config.video
    return report(summary, replace(config, json=json, video=video))
