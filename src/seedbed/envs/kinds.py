"""Agents of one environment with one space: equal ones as they are, or several kinds padded to the longest.

Where one policy decides for all agents their spaces have to be equal. Where they have policies of their own,
observations say which agent they are of (:data:`seedbed.types.AGENT_INDEX`), and spaces may differ: vectors of reals
get zeros at their end, and choices among few become choices among many of which a mask forbids the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces

from seedbed.envs.as_declared import Read, reader
from seedbed.envs.policies import KIND, kind_of, name_taken, unequal_kind
from seedbed.errors import ConfigError, listed
from seedbed.types import ACTION_MASK, AGENT_INDEX


class Kind(NamedTuple):
    """One agent, seen from the space that all have.

    Attributes:
      read: function that checks an observation of the agent's own, and makes of it one of all agents' space.
      act: function from an action of all agents' space to one of its own.
      blank: observation of all agents' space while the agent is not there.
    """

    read: Read
    act: Callable[[Any], Any]
    blank: Any


class Common(NamedTuple):
    """The space of all agents.

    Attributes:
      seen, acts: observations and actions.
      kinds: the agents, in their order.
    """

    seen: Any
    acts: Any
    kinds: list[Kind]


def equal(env_id: str, agents: Sequence[Any], env: Any) -> Common:
    """Returns the space of agents that have the same one; raises :class:`ConfigError` if they have not."""
    seen, acts = (
        _equal(env_id, what, agents, [space_of(agent) for agent in agents])
        for what, space_of in (("observations", env.observation_space), ("actions", env.action_space))
    )
    kind = Kind(reader(seen, env_id, ()), lambda action: action, _blank(seen))
    return Common(seen, acts, [kind] * len(agents))


def padded(env_id: str, agents: Sequence[Any], env: Any, policies: str) -> Common:
    """Returns the space to which those of all agents are padded, with a leaf that says which agent it is.

    Args:
      env_id: name of the environment.
      agents: the agents.
      env: the environment.
      policies: ``own``, or ``kind``, for which the spaces of a kind have to be equal.

    Raises:
      ConfigError: they differ in another way, or the name of the leaf is taken.
    """
    own_seen = [env.observation_space(agent) for agent in agents]
    own_acts = [env.action_space(agent) for agent in agents]
    if policies == KIND:
        for what, each in (("observations", own_seen), ("actions", own_acts)):
            _require_equal_kinds(env_id, what, agents, each)
    acts = _common_choice(own_acts)
    if acts is None:
        raise _differ(env_id, "actions", agents, own_acts, "only Discrete ones are padded")
    masked = not _are_equal(own_acts)
    entries = [
        _entries(env_id, space, choice if masked else None)
        for space, choice in zip(own_seen, own_acts, strict=True)
    ]
    shown = _common([spaces.Dict(each) for each in entries])
    if shown is None:
        raise _differ(env_id, "observations", agents, own_seen, _PADDED)
    added = {ACTION_MASK: spaces.MultiBinary(int(acts.n))} if masked else {}
    seen = spaces.Dict({**shown.spaces, **added, AGENT_INDEX: spaces.Discrete(len(agents))})
    blank = _blank(seen)
    kinds = [
        Kind(
            _padding(env_id, space, seen, row, choice if masked else None),
            _own_choice(choice) if masked else lambda action: action,
            {**blank, AGENT_INDEX: row},
        )
        for row, (space, choice) in enumerate(zip(own_seen, own_acts, strict=True))
    ]
    return Common(seen, acts, kinds)


_PADDED = "only vectors of reals are padded (a Box of one axis, also in a Dict, with the same keys for all)"


def _equal(env_id: str, what: str, agents: Sequence[Any], each: Sequence[Any]) -> Any:
    """The space that all agents have; raises :class:`ConfigError` if they are of several kinds."""
    if not _are_equal(each):
        reason = (
            "one policy decides for all of them: give each agent its own by --policies own, or each kind one by "
            "--policies kind, or"
        )
        raise _differ(env_id, what, agents, each, reason, colon="")
    return each[0]


def _are_equal(each: Sequence[Any]) -> bool:
    return all(str(space) == str(each[0]) for space in each)


def _require_equal_kinds(env_id: str, what: str, agents: Sequence[Any], each: Sequence[Any]) -> None:
    kinds: dict[str, list[int]] = {}
    for index, agent in enumerate(agents):
        kinds.setdefault(kind_of(str(agent)), []).append(index)
    for kind, members in kinds.items():
        if not _are_equal(own := [each[index] for index in members]):
            told = _told([agents[index] for index in members], own)
            raise unequal_kind(env_id, kind, f"{what} of its agents differ ({told})")


def _differ(
    env_id: str, what: str, agents: Sequence[Any], each: Sequence[Any], reason: str, colon: str = ":"
) -> ConfigError:
    return ConfigError(
        f"{env_id}: {what} of its agents differ ({_told(agents, each)}), and {reason}{colon} let a factory of your own "
        "make them equal, for instance with supersuit.pad_observations_v0 and pad_action_space_v0"
    )


def _told(agents: Sequence[Any], each: Sequence[Any]) -> str:
    """The spaces, each behind the agents that have it."""
    kinds: dict[str, list[str]] = {}
    for agent, space in zip(agents, each, strict=True):
        kinds.setdefault(str(space), []).append(str(agent))
    return "; ".join(f"{listed(names)}: {name}" for name, names in kinds.items())


def _entries(env_id: str, space: Any, choice: Any) -> dict[Any, Any]:
    """The entries of observations, by name; without the mask of a ``choice`` that is padded.

    Raises:
      ConfigError: the name of the agent's leaf is taken, or the mask is none of the choice.
    """
    found = _named(space)
    if AGENT_INDEX in found:
        raise name_taken(env_id)
    mask = found.pop(ACTION_MASK, None) if choice is not None else None
    if mask is not None and (mask.shape != (int(choice.n),) or mask.dtype.kind not in "biu"):
        raise ConfigError(
            f"{env_id}: {ACTION_MASK} is {mask}, and no mask of {choice}: needed is MultiBinary({int(choice.n)})"
        )
    return found


def _named(space: Any) -> dict[Any, Any]:
    """The entries of observations, by name; of those that have none, one."""
    return dict(space.spaces) if isinstance(space, spaces.Dict) else {"observation": space}


def _common_choice(each: Sequence[Any]) -> Any:
    """The actions of all: the same, or the longest choice; None if there are none."""
    if _are_equal(each):
        return each[0]
    if all(isinstance(space, spaces.Discrete) for space in each):
        return spaces.Discrete(max(int(space.n) for space in each))
    return None


def _own_choice(space: Any) -> Callable[[Any], Any]:
    # The mask allows no other; but of an agent that has ended nothing is, and some environments want an action of it.
    return lambda action: space.start + min(int(action), int(space.n) - 1)


def _common(each: Sequence[Any]) -> Any:
    """The space to which these are padded; None if they cannot be."""
    first = each[0]
    if _are_equal(each):
        return first
    if all(isinstance(space, spaces.Dict) for space in each):
        if any(space.spaces.keys() != first.spaces.keys() for space in each):
            return None
        children = {key: _common([space.spaces[key] for space in each]) for key in first.spaces}
        return None if any(child is None for child in children.values()) else spaces.Dict(children)
    if all(_is_vector(space) and space.dtype == first.dtype for space in each):
        size = max(space.shape[0] for space in each)
        lows, highs = (
            np.stack([_longer(bound, size) for bound in bounds])
            for bounds in ([space.low for space in each], [space.high for space in each])
        )
        return spaces.Box(lows.min(axis=0), highs.max(axis=0), dtype=first.dtype.type)
    return None


def _is_vector(space: Any) -> bool:
    return isinstance(space, spaces.Box) and len(space.shape) == 1 and space.dtype.kind == "f"


def _longer(vector: Any, size: int) -> Any:
    """A vector with zeros at its end."""
    if len(vector) == size:
        return vector
    return np.concatenate([vector, np.zeros(size - len(vector), vector.dtype)])


def _padding(env_id: str, space: Any, seen: Any, row: int, choice: Any) -> Read:
    """Makes :attr:`Kind.read` of the agent of a row; ``choice`` are its actions, if they are padded."""
    read = reader(space, env_id, ())
    everything = None if choice is None else np.ones(int(choice.n), np.int8)

    def pad(shown: Any) -> Any:
        own = read(shown)
        parts = {**(own if isinstance(space, spaces.Dict) else {"observation": own}), AGENT_INDEX: row}
        if everything is not None:
            mask = np.asarray(parts.get(ACTION_MASK, everything), np.int8)
            parts[ACTION_MASK] = _longer(mask, seen.spaces[ACTION_MASK].n)
        return _filled(seen, parts)

    return pad


def _filled(space: Any, shown: Any) -> Any:
    """An observation, made as long as the space is."""
    if isinstance(space, spaces.Dict):
        return {key: _filled(child, shown[key]) for key, child in space.spaces.items()}
    return _longer(shown, space.shape[0]) if _is_vector(space) else shown


def _blank(space: Any) -> Any:
    """An observation as close to 0 as the bounds let it be."""
    if isinstance(space, spaces.Dict):
        return {key: _blank(child) for key, child in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_blank(child) for child in space.spaces)
    if isinstance(space, spaces.Box):
        return np.minimum(np.maximum(np.zeros(space.shape, space.dtype), space.low), space.high)
    if isinstance(space, spaces.Discrete):
        return int(space.start)
    return np.zeros(space.shape, space.dtype) + getattr(space, "start", 0)
