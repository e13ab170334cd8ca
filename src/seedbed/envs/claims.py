"""The objects in use as environments of this process: none can be two environments at once."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence
from typing import Any

from seedbed.errors import ConfigError

_lock = threading.Lock()
_claimed: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()


def claim(env_id: str, objects: Sequence[Any]) -> None:
    """Takes ``objects``, each for one environment or one batch, until :func:`release`; all of them or none.

    Raises:
      ConfigError: one of them is there twice, or is in use.
    """
    with _lock:
        if len({id(one) for one in objects}) < len(objects) or any(id(one) in _claimed for one in objects):
            raise ConfigError(
                f"{env_id} returned the same object twice, and every environment needs one of its own (with a state "
                "of its own): make a new one in each call of the factory"
            )
        _claimed.update({id(one): one for one in objects})


def release(objects: Sequence[Any]) -> None:
    """Gives back claimed objects; safe to call twice."""
    with _lock:
        for one in objects:
            _claimed.pop(id(one), None)
