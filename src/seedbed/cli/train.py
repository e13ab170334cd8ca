"""``seedbed train [ENV] …``."""

from __future__ import annotations

from seedbed.cli.defaults import read_config
from seedbed.cli.ending import executed_again, report
from seedbed.config.settings import RunConfig
from seedbed.launch.allocator import restart_tuned

ABOUT = "Train an agent. Defaults come from the environment's preset; every flag overrides it."


def run(arguments: list[str]) -> int:
    """Trains; see :func:`seedbed.launch.train.train`."""
    restart_tuned()  # first: to read the flags takes JAX, whose import takes seconds
    with executed_again():
        from seedbed.launch.train import train

        config = configuration(arguments)
        summary = train(config)
    return report(summary, config)


def configuration(arguments: list[str], verb: str = "train", about: str = ABOUT) -> RunConfig:
    """The flags over the preset of the environment that they name."""
    return read_config(verb, arguments, about)
