"""``seedbed manifest ENGINE [ENV] …``: writes the files with which another engine starts a run."""

from __future__ import annotations

from dataclasses import dataclass, field, make_dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from seedbed.cli.defaults import defaults_of, more_for, plain, typed
from seedbed.cli.parse import parse, print_line
from seedbed.config.settings import RunConfig
from seedbed.errors import ConfigError
from seedbed.launch.manifests.order import Order

ABOUT = "Write the files with which Slurm, Kubernetes, KubeRay or SkyPilot start a run; start nothing."

if TYPE_CHECKING:
    from seedbed.launch.manifests.plan import Plan


@dataclass(frozen=True)
class ManifestFlags(Order):
    """The files, and the jobs in them."""

    engine: Annotated[Literal["slurm", "kubernetes", "rayjob", "skypilot"], tyro.conf.Positional] = "slurm"
    """Engine that starts the run."""
    out: str | None = None
    """Folder for the files; none: manifests/NAME."""
    run: RunConfig = field(default_factory=RunConfig)


def run(arguments: list[str]) -> None:
    """Writes the files and prints their names, and the command that begins."""
    flags = _read(arguments)
    from seedbed.launch.manifests.written import ENGINES, NEXT, write

    planned = _planned(flags)
    folder = Path(flags.out or f"manifests/{planned.name}")
    for path in write(ENGINES[flags.engine](planned), folder):
        print_line(f"wrote {path}")
    print_line(f"next: {NEXT[flags.engine].format(folder=folder)}")


def _planned(flags: ManifestFlags) -> Plan:
    from seedbed.cli.program import built
    from seedbed.config import resolve
    from seedbed.launch.manifests.plan import plan

    _require_engine_of_guests(flags)
    # Guests need a cluster, and that of a RayJob is one.
    agent, program = built(resolve.replace(flags.run, on="ray") if _guests(flags) else flags.run)
    home = str(Path("runs").absolute()) if flags.engine == "slurm" else "/runs"
    config = flags.run
    if flags.engine == "slurm" and config.run_dir is not None:
        config = replace(config, run_dir=str(Path(config.run_dir).absolute()))
    return plan(config, program, agent, flags, home)


def _guests(flags: ManifestFlags) -> int:
    return int(getattr(flags.run.placement, "guests", 0))


def _require_engine_of_guests(flags: ManifestFlags) -> None:
    """Raises :class:`ConfigError` if there are guests, and an engine other than Ray would place the actors."""
    if _guests(flags) and flags.engine != "rayjob":
        raise ConfigError(
            f"guests is {_guests(flags)}, and all actors of {flags.engine} come and go as there is room: give more "
            "--actors in their place, or write a manifest for rayjob"
        )


def _read(arguments: list[str]) -> ManifestFlags:
    default = typed(defaults_of("manifest", arguments, ManifestFlags), arguments)
    kind: Any = make_dataclass(
        "ManifestFlags", [("run", type(default), default)], bases=(ManifestFlags,), frozen=True
    )
    kind.__doc__ = ManifestFlags.__doc__
    given: ManifestFlags = parse("manifest", kind, arguments, kind(run=default), ABOUT + more_for(arguments))
    return replace(given, run=plain(given.run))
