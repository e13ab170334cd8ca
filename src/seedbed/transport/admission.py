"""Admission to a conversation: the peer speaks the same protocol and knows the run's token."""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from typing import Any

from seedbed.errors import Refused
from seedbed.transport.interface import PROTOCOL


def require_admission(message: Mapping[str, Any], token: str) -> None:
    """Raises :class:`Refused` unless ``message`` says this protocol and this token."""
    if message.get("protocol") != PROTOCOL:
        raise Refused(
            f"the other side speaks protocol {message.get('protocol')!r}, and this one {PROTOCOL}: "
            "install the same version of Seedbed on both machines"
        )
    if not hmac.compare_digest(_bytes(message.get("token", "")), _bytes(token)):
        raise Refused("wrong token: copy the whole line that the learner printed, with its --token")


def _bytes(text: Any) -> bytes:
    # JSON may hold half of a surrogate pair, which UTF-8 has no bytes for.
    return str(text).encode(errors="replace")
