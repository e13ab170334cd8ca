"""``seedbed collect RUN …``."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import tyro

from seedbed.cli.parse import parse, print_line
from seedbed.errors import ConfigError


@dataclass(frozen=True)
class Collect:
    """Source and size of a data set."""

    run: Annotated[str, tyro.conf.Positional]
    """The run folder."""
    frames: int
    """Environment frames (agent steps times frame skip), over all environments."""
    out: str | None = None
    """Folder of the data set, or with minari its name there; none: dataset in the run folder."""
    format: Literal["seedbed", "minari"] = "seedbed"
    """Format: Seedbed's own, or episodes in Minari's folder of data sets (extra minari)."""
    greedy: bool = False
    """Take the most likely action instead of drawing from the policy."""
    seed: int = 0
    """Root of the randomness."""
    trust: tuple[str, ...] = ()
    """Names (module:name) that the run may have imported, if this user did not begin it here."""
    json: bool = False
    """Print one JSON object instead of a sentence."""


def run(arguments: list[str]) -> None:
    """Plays and writes; see :func:`seedbed.evaluation.collect.collect`."""
    flags = parse(
        "collect", Collect, arguments, about="Write a data set of what the newest weights of a run do."
    )
    from seedbed.evaluation.collect import collect, collect_for_minari

    how: dict[str, Any] = {
        "frames": flags.frames,
        "greedy": flags.greedy,
        "seed": flags.seed,
        "trust": flags.trust,
    }
    if flags.format == "minari":
        if flags.out is None:
            raise ConfigError("--format minari needs a name: give --out NAME-v0, such as catch/expert-v0")
        about = collect_for_minari(flags.run, name=flags.out, **how)
        where = about.pop("path")
    else:
        dataset = collect(flags.run, out=flags.out, **how)
        about, where = dataset.about, str(dataset.path)
    if flags.json:
        print_line(json.dumps({"dataset": where, **about}))
        return
    mean = "" if about["mean_return"] is None else f" of mean return {about['mean_return']:.4g}"
    print_line(f"{about['frames']:,} frames, {about['episodes']:,} whole episodes{mean}: {where}")
