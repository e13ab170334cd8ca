"""``seedbed eval RUN …``."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Annotated

import tyro

from seedbed.cli.parse import parse, print_line


@dataclass(frozen=True)
class Eval:
    """How to evaluate."""

    run: Annotated[str, tyro.conf.Positional]
    """The run folder."""
    episodes: int = 100
    """Episodes to play."""
    greedy: bool = False
    """Take the most likely action instead of drawing from the policy."""
    seed: int = 0
    """Root of the evaluation's randomness."""
    json: bool = False
    """Print one JSON object instead of a sentence."""


def run(arguments: list[str]) -> None:
    """Plays and prints; see :func:`seedbed.evaluation.player.evaluate`."""
    settings = parse("eval", Eval, arguments, about="Play episodes with the newest weights of a run.")
    from seedbed.evaluation.player import evaluate

    result = evaluate(settings.run, episodes=settings.episodes, greedy=settings.greedy, seed=settings.seed)
    if settings.json:
        print_line(json.dumps(asdict(result)))
        return
    print_line(
        f"{result.count} episodes: mean {result.mean:.4g}, interquartile mean {result.interquartile_mean:.4g} "
        f"(95% interval {result.low:.4g} to {result.high:.4g})"
    )
