"""``seedbed eval RUN …``."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass
from functools import partial
from typing import Annotated

import tyro

from seedbed.cli.parse import parse, print_line


@dataclass(frozen=True)
class Eval:
    """Settings of the evaluation."""

    run: Annotated[str, tyro.conf.Positional]
    """The run folder."""
    episodes: int = 100
    """Episodes to play."""
    greedy: bool = False
    """Take the most likely action instead of drawing from the policy."""
    seed: int = 0
    """Root of the evaluation's randomness."""
    max_steps: int = 27_000
    """Steps after which an episode is cut; it counts with its return up to there."""
    env_options: tuple[str, ...] = ()
    """Options of the environment (name=value) in place of the run's, for instance another opponent."""
    trust: tuple[str, ...] = ()
    """Names (module:name) that the run may have imported, if this user did not begin it here."""
    json: bool = False
    """Print one JSON object instead of a sentence."""


def run(arguments: list[str]) -> None:
    """Plays and prints; see :func:`seedbed.evaluation.player.evaluate`."""
    settings = parse("eval", Eval, arguments, about="Play episodes with the newest weights of a run.")
    from seedbed.evaluation.player import evaluate
    from seedbed.metrics.say import say

    result = evaluate(
        settings.run,
        episodes=settings.episodes,
        greedy=settings.greedy,
        seed=settings.seed,
        max_steps=settings.max_steps,
        trust=settings.trust,
        env_options=settings.env_options,
        say=partial(say, stream=sys.stderr),
    )
    if settings.json:
        print_line(json.dumps(asdict(result)))
        return
    cut = (
        f", {result.cut} of them cut after {result.max_steps:,} steps and counted with their return up to there"
        if result.cut
        else ""
    )
    print_line(
        f"{result.count} episodes{cut}: mean {result.mean:.4g}, interquartile mean {result.interquartile_mean:.4g} "
        f"(95% interval {result.low:.4g} to {result.high:.4g})"
    )
    if result.agents:
        print_line(
            "mean of each agent: " + ", ".join(f"{name} {value:.4g}" for name, value in result.agents.items())
        )
