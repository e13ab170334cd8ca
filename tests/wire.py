"""A raw client of the gRPC carrier, which says what no client of ours would."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import grpc

from seedbed.testing.transport import PATIENCE

CONVERSE = "/seedbed.Transport/Converse"
"""The method of conversations."""


class Wire:
    """A channel without a conversation.

    Args:
      address: the server's.
      certificate: its certificate, as PEM; None for plain text.
    """

    def __init__(self, address: str, certificate: bytes | None = None) -> None:
        options: list[tuple[str, Any]] = [
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.max_send_message_length", -1),
        ]
        if certificate is None:
            self.channel = grpc.insecure_channel(address, options)
        else:
            options.append(("grpc.ssl_target_name_override", "seedbed"))
            self.channel = grpc.secure_channel(address, grpc.ssl_channel_credentials(certificate), options)

    def challenge(self) -> bytes:
        """What the server gives to be answered."""
        (challenge,) = self.channel.stream_stream("/seedbed.Transport/Challenge")(iter(()), timeout=PATIENCE)
        return bytes(challenge)

    def converse(self, proof: bytes | None, messages: Iterable[bytes], method: str = CONVERSE) -> Any:
        """Sends the messages and hangs up; returns the call, which is over."""
        metadata = () if proof is None else (("seedbed-proof-bin", proof),)
        call = self.channel.stream_stream(method)(iter(messages), metadata=metadata, timeout=PATIENCE)
        with suppress(grpc.RpcError):
            list(call)
        return call

    def close(self) -> None:
        """Closes the channel."""
        self.channel.close()
