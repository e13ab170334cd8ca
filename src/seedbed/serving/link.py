"""The conversation of a forward-pass server with the optimizer, and the lanes whose unrolls it carries."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seedbed.acting.codec import UnrollCodec, WeightsCodec, lanes_of_unrolls, version_array
from seedbed.acting.lanes import ServedLane
from seedbed.errors import ConnectionLost, SeedbedError, cause_of
from seedbed.transport.interface import Client
from seedbed.types import Exploration, Unroll, Weights

_log = logging.getLogger(__name__)


class Link:
    """The conversation with the optimizer on behalf of one rollout worker.

    One thread of the caller sends; a thread of the link receives.

    Args:
      client: connection to the optimizer.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._unrolls: UnrollCodec | None = None
        self._lanes = 0

    def ask(self, message: dict[str, Any]) -> dict[str, Any]:
        """See :class:`~seedbed.transport.interface.Client`; only before :meth:`open`."""
        return self._client.ask(message)

    def open(
        self,
        unrolls: UnrollCodec,
        weights: WeightsCodec,
        lanes: int,
        *,
        device: Any,
        on_told: Callable[[int, int], None],
        on_weights: Callable[[Weights, NDArray[np.float64] | None], None],
        on_end: Callable[[str], None],
    ) -> None:
        """Opens the lanes of the unrolls, and one more for weights; starts receiving.

        Args:
          unrolls, weights: codecs of the unrolls and of the weights that travel.
          lanes: number of lanes that carry unrolls.
          device: the JAX device on which snapshots are put.
          on_told: function that is called with a lane's number and the version of the weights that its next unroll may
            begin with.
          on_weights: function that is called with each snapshot that :meth:`want` asked for, and with the pool's table
            in self-play.
          on_end: function that is called once, with the reason, when the conversation has ended.
        """
        self._unrolls, self._lanes = unrolls, lanes
        self._client.open(lanes_of_unrolls(unrolls, weights, lanes))

        def take(lane: int, arrays: list[NDArray[Any]]) -> None:
            if lane < lanes:
                on_told(lane, int(arrays[0]))
            else:
                on_weights(weights.unpack(arrays, device), weights.table(arrays))

        threading.Thread(
            target=self._receive, args=(take, on_end), name="replies of the optimizer", daemon=True
        ).start()

    def send(self, lane: int, unroll: Unroll, players: NDArray[np.int32] | None = None) -> None:
        """Sends a complete unroll, and in self-play the versions that play its rows, int32 ``[T, n]``."""
        assert self._unrolls is not None, "open() comes first"
        self._post(lane, self._unrolls.pack(unroll, players=players))

    def want(self, version: int) -> None:
        """Asks for the weights of this version, or of a newer one; ``-1 - v`` for version v of the pool."""
        self._post(self._lanes, [version_array(version)])

    def _post(self, lane: int, arrays: Sequence[NDArray[Any]]) -> None:
        with contextlib.suppress(ConnectionLost):  # the receiving thread reports it
            self._client.send(lane, arrays)

    def _receive(
        self, take: Callable[[int, list[NDArray[Any]]], None], on_end: Callable[[str], None]
    ) -> None:
        try:
            while True:
                reply = self._client.receive(idle=True)
                assert reply is not None
                take(*reply)
        except Exception as error:
            if not isinstance(error, SeedbedError):  # the device may have no room for weights
                _log.error("a link to the optimizer failed", exc_info=error)
            on_end(cause_of(error))

    def close(self) -> None:
        """Ends the conversation; safe to call twice."""
        self._client.close()


@dataclass(eq=False, kw_only=True, repr=False)
class ProxiedLane(ServedLane):
    """A lane whose unrolls go to the optimizer.

    Attributes:
      link: conversation with the optimizer.
      told: version of the weights that its open unroll began with, or may begin with; None from the end of an unroll
        until the optimizer has taken it.
      numbers: number of each of its environments among the environments of all hosts.
      exploration: exploration of its environments.
    """

    link: Link
    told: int | None
    numbers: Sequence[int]
    exploration: Exploration
