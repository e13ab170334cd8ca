"""The check of the spec that a client has, against the one that is needed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from seedbed.errors import Refused, SpecError
from seedbed.types import EnvSpec


def require_spec(message: Mapping[str, Any], needed: EnvSpec) -> None:
    """Raises :class:`Refused` unless the question ``ready`` has the needed spec."""
    try:
        given = EnvSpec.from_json(message["spec"])
    except (KeyError, SpecError) as error:
        raise Refused(f"the actor's environment spec cannot be read: {error}") from error
    if given != needed:
        raise Refused(
            f"the actor made {given}, the learner needs {needed}: "
            "install the same version of the environment on both machines"
        )
