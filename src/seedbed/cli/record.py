"""``seedbed record RUN …``."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import partial
from typing import Annotated

import tyro

from seedbed.cli.parse import parse, print_line


@dataclass(frozen=True)
class RecordFlags:
    """Settings of the video."""

    run: Annotated[str, tyro.conf.Positional]
    """The run folder."""
    to: str | None = None
    """File to write; none: video.mp4 in the run folder."""
    greedy: bool = False
    """Take the most likely action instead of drawing from the policy."""
    seed: int = 0
    """Root of the episodes' randomness."""
    episodes: int = 1
    """Number of episodes, one after the other."""
    max_steps: int | None = None
    """Steps after which the video is cut; none: two minutes of video."""
    trust: tuple[str, ...] = ()
    """Names (module:name) that the run may have imported, if this user did not begin it here."""


def run(arguments: list[str]) -> None:
    """Plays episodes into an mp4; see :func:`seedbed.evaluation.player.record`."""
    flags = parse(
        "record", RecordFlags, arguments, about="Record an episode of the newest weights as mp4, or several."
    )
    from seedbed.evaluation.player import record
    from seedbed.metrics.say import say

    video = record(
        flags.run,
        to=flags.to,
        greedy=flags.greedy,
        seed=flags.seed,
        episodes=flags.episodes,
        max_steps=flags.max_steps,
        trust=flags.trust,
        say=partial(say, stream=sys.stderr),
    )
    print_line(str(video))
