"""A policy that is served elsewhere, asked for actions as one that is loaded. Imports no JAX.

::

    policy = seedbed.connect("learner:7700", join="a8f4…0082.4f0c…5a93")
    action, state = policy.act(observation)                         # the first step of an episode
    action, state = policy.act(observation, state, reward=reward)   # the steps after it
"""

from __future__ import annotations

import os
from types import TracebackType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from seedbed.acting.unrolls import step_arrays, step_fields
from seedbed.errors import ConnectionLost, NotNow, SpecError, TransportError
from seedbed.evaluation.observations import batch_of, step_of
from seedbed.transport.admission import Invitation
from seedbed.transport.connect import connect as dial
from seedbed.transport.interface import NO_ROOM, PROTOCOL, Client, Layout, Layouts
from seedbed.types import ArraySpec, EnvSpec, Tree

Array = NDArray[Any]


class RemoteState(NamedTuple):
    """The name of a memory that is at the server: it keeps that of the newest step alone.

    Attributes:
      conversation: number of the conversation.
      rows: number of environments.
      step: number of steps so far.
    """

    conversation: int
    rows: int
    step: int


class RemotePolicy:
    """A served policy; used by one thread, closed by ``close`` or at the end of a ``with`` block.

    Args:
      address: address at which it is served.
      invitation: token and certificate of the server.
      index: number from which the draws follow; None to be given one that no other client has.
      timeout: seconds to wait for the server to appear.

    Attributes:
      spec: spec of the environments.
      version: number of updates that its parameters have seen.

    Raises:
      ConnectionLost: no server listens there.
      Refused: the server is another one, or does not let this client in.
    """

    def __init__(self, address: str, invitation: Invitation, *, index: int | None, timeout: float) -> None:
        self._address, self._invitation, self._timeout = address, invitation, timeout
        self._index = index
        self._conversations = 0
        self._client: Client | None = None
        told = self._join(1)
        self.spec = EnvSpec.from_json(told["spec"])
        self.version = int(told["updates"])
        self._sees_rewards = bool(told["previous_reward"])
        self._joined, self._state = 1, RemoteState(0, 0, 0)

    @property
    def observation_spec(self) -> Tree:
        """Tree of :class:`~seedbed.types.ArraySpec`: one observation, without a batch axis."""
        return self.spec.observation

    @property
    def action_spec(self) -> ArraySpec:
        """Shape, dtype and bounds of one action; choices begin at 0."""
        return self.spec.action

    def act(
        self, observation: Tree, state: RemoteState | None = None, *, reward: Any = None, first: Any = None
    ) -> tuple[Array, RemoteState]:
        """Decides for one environment or a batch of them, as :meth:`seedbed.evaluation.policy.Policy.act` does.

        Args:
          observation: tree of arrays ``[*shape]`` or ``[B, *shape]``.
          state: result of the step before, which is the only one that the server keeps; None at the first step of an
            episode.
          reward: reward of the step that led here, a number or ``[B]``, needed by a policy that sees it.
          first: bool ``[B]``, environments in which an episode begins with this observation; None: with no state all
            of them, with a state none.

        Returns:
          The action ``[*action shape]`` or ``[B, *action shape]``, within the bounds, and the state for the next step.

        Raises:
          SpecError: an observation does not fit the spec, the state is not the newest one, of another batch or of a
            conversation that has ended, or the reward is missing.
          NotNow: other clients have the places that a batch of this size needs; a later call may find room.
          Refused: a batch of this size is too large for the server.
          ConnectionLost: the server is gone; a later call without a state dials it anew.
        """
        arrays, batch = batch_of(observation, self.spec.observation)
        rows = len(arrays[0])
        if state is not None and state != self._state:
            raise SpecError(
                f"a state of step {state.step} of {state.rows} environments: the server keeps the newest one alone, "
                f"of step {self._state.step} of {self._state.rows}"
            )
        if state is not None and state.rows != rows:
            raise SpecError(
                f"the observation is of {rows} environments, and the state of {state.rows}: give as many"
            )
        if state is not None and reward is None and self._sees_rewards:
            raise SpecError("this policy sees the reward of its last action: give act(..., reward=...)")
        if state is not None and self._client is None:
            raise SpecError(
                "a state of a conversation that has ended, and its memory with it: begin with no state"
            )
        timestep = step_of(self.spec, arrays, reward, state is None if first is None else first)
        try:
            client = self._opened(rows)
            client.send(0, step_arrays(timestep))
            reply = client.receive()
        except TransportError:
            self.close()  # the next call begins a new conversation
            raise
        assert reply is not None, "receive() waits"
        action = np.array(reply[1][0])
        self._state = RemoteState(self._conversations, rows, self._state.step + 1)
        return action[0] if batch is None else action, self._state

    def close(self) -> None:
        """Ends the conversation; safe to call twice."""
        if self._client is not None:
            self._client.close()
            self._client = None

    def __enter__(self) -> RemotePolicy:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _opened(self, rows: int) -> Client:
        """The conversation, open for a batch of ``rows``; one of another size begins a new conversation."""
        if self._client is None or self._joined != rows:
            self._join(rows)
        assert self._client is not None
        if self._state.rows != rows or self._state.conversation != self._conversations:
            self._ready(self._client)
            action = self.spec.action
            down = Layout((((rows, *action.shape), action.dtype),))
            self._client.open([Layouts(Layout(step_fields(self.spec, rows)), down)])
            self._state = RemoteState(self._conversations, rows, 0)
        return self._client

    def _ready(self, client: Client) -> None:
        """Asks for places; raises :class:`NotNow` if there is no room for them now."""
        try:
            client.ask({"kind": "ready", "spec": self.spec.to_json()})
        except ConnectionLost as error:
            if (error.said or "").startswith(NO_ROOM):
                raise NotNow(error.said) from error
            raise

    def _join(self, rows: int) -> dict[str, Any]:
        self.close()
        self._client = dial(self._address, timeout=self._timeout, invitation=self._invitation)
        self._conversations += 1
        self._joined = rows
        try:
            return self._client.ask(
                {
                    "kind": "join",
                    "protocol": PROTOCOL,
                    "token": self._invitation.said_at(self._address),
                    "index": self._index,
                    "envs": rows,
                    "pid": os.getpid(),
                }
            )
        except BaseException:
            self.close()
            raise


def connect(
    address: str,
    *,
    join: str = "",
    index: int | None = None,
    tls_ca: str = "",
    insecure: bool = False,
    timeout: float = 10.0,
) -> RemotePolicy:
    """Reaches a policy that ``seedbed serve`` serves.

    Args:
      address: address that it printed.
      join: the server's ``FINGERPRINT.TOKEN`` or ``TOKEN``, or ``@FILE``, a private file with it; else the variable
        ``SEEDBED_JOIN``.
      index: number from which this client's draws follow: with the same one they are the same again, and with 0 those
        of ``seedbed.load(RUN, seed=…)`` with the server's seed. None: a number that no other client has.
      tls_ca: file with certificates of which one must have signed the server's; empty for none.
      insecure: whether to send plain text over the network, as the server does with the same flag.
      timeout: seconds to wait for the server to appear.

    Raises:
      ConfigError: the address or the invitation is none.
      ConnectionLost: no server listens there.
      Refused: the server is another one, or does not let this client in.
    """
    invitation = Invitation.parse(
        join or os.environ.get("SEEDBED_JOIN", ""), authority=tls_ca, insecure=insecure
    )
    return RemotePolicy(address, invitation, index=index, timeout=timeout)
