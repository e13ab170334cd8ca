"""``orchard train [ENV] …``."""

from __future__ import annotations

from orchard.cli.defaults import defaults_of
from orchard.cli.ending import report
from orchard.cli.parse import parse
from orchard.config.settings import RunConfig
from orchard.launch.allocator import restart_tuned

ABOUT = "Train an agent. Defaults come from the environment's preset; every flag overrides it."


def run(arguments: list[str]) -> int:
    """Trains; see :func:`orchard.launch.run.train`."""
    config = configuration(arguments)
    restart_tuned()
    from orchard.launch.run import train

    return report(train(config), config)


def configuration(arguments: list[str], verb: str = "train", about: str = ABOUT) -> RunConfig:
    """The flags over the preset of the environment that they name."""
    return parse(verb, RunConfig, arguments, defaults_of(verb, arguments), about)
