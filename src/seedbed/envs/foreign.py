"""Worlds that other programs step: ``foreign:FILE.json``, a file with their spec (docs/wire.md).

Nothing is made here. A learner needs the spec alone; actors that join it from elsewhere, in any language, bring the
environments.
"""

from __future__ import annotations

from typing import NoReturn

from seedbed import regular_files
from seedbed.envs.options import Options
from seedbed.errors import ConfigError
from seedbed.types import EnvSpec

PREFIX = "foreign:"


def is_foreign(env_id: str) -> bool:
    """Returns whether another program steps the environment."""
    return env_id.startswith(PREFIX)


def foreign_spec(env_id: str, options: Options = ()) -> EnvSpec:
    """Reads the spec of a foreign world.

    Raises:
      ConfigError: the file cannot be read, or options are given.
      SpecError: the file holds no spec.
    """
    if options:
        raise ConfigError(f"{env_id} takes no options: they are for the program that steps it")
    file = env_id.removeprefix(PREFIX)
    try:
        return EnvSpec.from_json(regular_files.read_object(file))
    except OSError as error:
        raise ConfigError(f"cannot read {file}, the spec of a foreign world: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(f"{file} holds no spec of a foreign world: {error}") from error


def make_foreign(env_id: str, num_envs: int, options: Options = (), *, render: bool = False) -> NoReturn:
    """Raises :class:`ConfigError`: the environment is in another program."""
    del num_envs, render
    foreign_spec(env_id, options)
    raise ConfigError(
        f"{env_id} is stepped by another program, not here: train with --actors 0 and --listen socket:HOST:PORT or "
        "socket:unix:PATH and let it join; play with it by seedbed serve"
    )
