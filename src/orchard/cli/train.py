"""``orchard train [ENV] …``."""

from __future__ import annotations

from itertools import pairwise

from orchard.cli.ending import report
from orchard.cli.parse import parse
from orchard.config.resolve import defaults, replace
from orchard.config.settings import SETTINGS, RunConfig
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
    # Read twice: the first time only to learn which environment and preset the defaults should come from.
    first = parse(verb, RunConfig, arguments, agent_named(arguments), about)
    return parse(
        verb, RunConfig, arguments, defaults(first.env, first.preset, first.agent, first.arch), about
    )


def agent_named(arguments: list[str]) -> RunConfig:
    """The built-in defaults with the agent that ``--agent`` names: which flags there are depends on it."""
    given = [after for flag, after in pairwise([*arguments, ""]) if flag == "--agent"]
    given += [word.removeprefix("--agent=") for word in arguments if word.startswith("--agent=")]
    # A name that there is not is left for the parser to complain about.
    return replace(RunConfig(), agent=given[-1]) if given and given[-1] in SETTINGS else RunConfig()
