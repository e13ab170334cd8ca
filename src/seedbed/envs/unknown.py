"""Messages about ids that no package has registered."""

from __future__ import annotations

import re
from collections.abc import Sequence

from seedbed.envs.atari import atari_ids, is_raw_atari
from seedbed.errors import unknown_name

_PACKAGES = (
    (r"MiniGrid-|BabyAI-", "minigrid", "minigrid"),
    (r"MiniWorld-", "miniworld", "miniworld"),
    (
        r"(highway|merge|roundabout|parking|intersection|racetrack|two-way|u-turn|exit|lane-keeping)-",
        "highway-env",
        "highway_env",
    ),
    (r"FlappyBird-", "flappy-bird-gymnasium", "flappy_bird_gymnasium"),
    (r"(PointMaze|AntMaze|Fetch|Hand|Adroit|FrankaKitchen)", "gymnasium-robotics", "gymnasium_robotics"),
    (r"Panda(Reach|Push|Slide|PickAndPlace|Stack|Flip)", "panda-gym", "panda_gym"),
    (r"popgym-", "popgym", "popgym"),
    (r"gym_pusht/", "gym-pusht", "gym_pusht"),
    (r"(mo-|minecart-|deep-sea-treasure-|resource-gathering-)", "mo-gymnasium", "mo_gymnasium"),
    (r"Safety", "safety-gymnasium", "safety_gymnasium"),
    (r"Vizdoom", "vizdoom", "vizdoom.gymnasium_wrapper"),
    (r"Meta-World/", "metaworld", "metaworld"),
)
"""Prefixes of packages' ids, with the package and the module that registers them."""
_FACTORY = (
    "{module} registers nothing of that name when it is imported. If it does so by a call, write a factory, for "
    "instance in my_world.py, and give my_world:make as the environment: import gymnasium, {module}; "
    "{module}.REGISTER(); make = lambda **options: gymnasium.make({name!r}, **options)"
)


def unknown_id(env_id: str, registered: Sequence[str]) -> str:
    """Returns one line for an id that does not exist.

    Args:
      env_id: the id, with its module if it was given one.
      registered: ids that this module has registered.
    """
    module, _, name = env_id.rpartition(":")
    if module and registered:
        return unknown_name(f"environment of {module}", name, registered)
    if module:
        return f"{env_id}: {_FACTORY.format(module=module, name=name)}"
    for beginning, package, registers in _PACKAGES:
        if re.match(beginning, name):
            return f"{env_id} is of the package {package}: install it, and write {registers}:{name}"
    unknown = unknown_name("environment", env_id, _known(), _spoken)
    return f"{unknown} (an id that a package registers is written package:{name})"


def _spoken(env_id: str) -> str:
    """Returns an id without the folder and the version, in small letters: ``pong`` of ``ALE/Pong-v5``."""
    return re.sub(r"-v\d+$", "", env_id.rpartition("/")[2]).casefold()


def _known() -> set[str]:
    """All ids that are registered, with Atari's; without ALE's own, which are not taken."""
    import gymnasium

    atari = atari_ids()  # Registers them, too.
    return {*atari, *(name for name, one in gymnasium.registry.items() if not is_raw_atari(one))}
