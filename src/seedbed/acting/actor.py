"""The actor: one program that steps environments for a learner or a forward-pass server, over any carrier.

It imports no JAX, unless the learner says that actors run the policy themselves.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
import traceback
from collections import deque
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from seedbed.acting.notes import Notes
from seedbed.acting.reporting import Reporter
from seedbed.acting.trust import foreign_names, untrusted
from seedbed.acting.unrolls import step_arrays, step_fields
from seedbed.acting.watchdog import ending_this_process
from seedbed.envs.interface import Environment
from seedbed.envs.make import make
from seedbed.errors import ConnectionLost, Refused
from seedbed.transport.admission import Invitation
from seedbed.transport.connect import connect
from seedbed.transport.interface import PROTOCOL, RUN_IS_OVER, Client, Layout, Layouts
from seedbed.types import Agent, EnvSpec

CONNECT_SECONDS = 10.0
FIRST_RETRY_SECONDS, LONGEST_RETRY_SECONDS = 1.0, 15.0


MakeAgent = Callable[[dict[str, Any], EnvSpec], Agent]
"""A function that makes the agent that a learner describes, for environments of the given spec."""
Find = Callable[[], tuple[str, Invitation] | None]
"""A function that returns a learner's address, and token and fingerprint for admission; None if its run is over.

It raises :class:`~seedbed.errors.ConnectionLost` if there is no learner yet."""


def act(
    client: Client,
    *,
    token: str,
    make_agent: MakeAgent,
    index: int | None = None,
    claim: str = "",
    envs: int | None = None,
    platform: str = "cpu",
    trust: Collection[str] | None = None,
    alone: bool = False,
) -> None:
    """Joins a learner, makes the environments that it assigns, and steps them until the conversation ends.

    Args:
      client: a fresh connection.
      token: the run's token, as the learner has printed it.
      make_agent: function that makes the learner's agent, where actors run the policy.
      index: index to take among the actors; None to be given one.
      claim: secret of the session that started this actor, by which it takes one of the run's own indices from another
        machine.
      envs: number of environments to step; None for as many as the learner's own actors.
      platform: JAX platform on which the policy runs, where actors run it.
      trust: names ``module:name`` that the learner may have this actor import; None for any.
      alone: whether this process is the actor's own, so that it is ended if an environment hangs.

    Raises:
      ConfigError: the agent cannot be made here, or there is no such platform.
      Refused: the learner does not admit this actor, for the reason in the message; or it names a module that ``trust``
        lacks.
      ConnectionLost: the learner is gone.
      EnvironmentFault: an environment raised.
    """
    assignment = client.ask(
        {
            "kind": "join",
            "protocol": PROTOCOL,
            "token": token,
            "index": index,
            "claim": claim,
            "envs": envs,
            "host": socket.gethostname(),
            "pid": os.getpid(),
        }
    )
    _require_trust(assignment, trust)
    lanes: list[Environment] = []
    notes = Notes()
    seconds = assignment.get("env_timeout") if alone else None
    watchdog = None if seconds is None else ending_this_process(assignment["env"], seconds)
    watch: AbstractContextManager[None] = watchdog or nullcontext()
    try:
        rows = assignment["rows"]
        for lane in range(len(assignment["seeds"])):
            with watch:
                made = make(assignment["env"], rows, assignment["options"], first=lane * rows)
            made.watch = watch
            lanes.append(made)
        spec = lanes[0].spec
        policy = assignment.get("policy")
        agent = None if policy is None else make_agent(policy, spec)
        answer = client.ask({"kind": "ready", "spec": spec.to_json()})
        if agent is None:
            _step_for(client, lanes, assignment, notes)
        else:
            from seedbed.acting.policy_actor import play

            play(client, agent, lanes, assignment["seeds"], answer, platform, notes)
    finally:
        notes.close()
        for environment in lanes:
            try:
                environment.close()
            except Exception:
                # Printed only: the other environments are closed too, and the first error is the one that is raised.
                traceback.print_exc()
        if watchdog is not None:
            watchdog.close()


def _require_trust(assignment: Mapping[str, Any], trust: Collection[str] | None) -> None:
    found = foreign_names(assignment) | foreign_names(assignment.get("policy") or {})
    if unknown := untrusted(found, trust):
        raise Refused(
            f"the learner has this actor import {unknown}, which it was not told to: if you know what that does, add "
            f"--trust {unknown}"
        )


def _step_for(client: Client, lanes: list[Environment], assignment: dict[str, Any], notes: Notes) -> None:
    """Steps one half while the other waits for its actions, until the connection or an environment raises."""
    spec = lanes[0].spec
    rows = assignment["rows"]
    down = Layout((((rows, *spec.action.shape), spec.action.dtype),))
    client.open([Layouts(Layout(step_fields(spec, rows)), down)] * len(lanes))
    for lane, (environment, seed) in enumerate(zip(lanes, assignment["seeds"], strict=True)):
        client.send(lane, step_arrays(environment.reset(seed)))
    stepping: deque[int] = deque()
    reporter = Reporter(client, notes, lanes)
    sent, steps = [time.monotonic()] * len(lanes), [0] * len(lanes)
    while True:
        reporter.report_if_due()
        while (reply := client.receive(wait=not stepping)) is not None:
            lane, (action,) = reply
            # Left out at the first one, as the learner may have compiled, and where an unroll ends, as the memory may
            # have been full: the policy did not take that time.
            if steps[lane] and (steps[lane] - assignment["overlap"]) % assignment["unroll_length"]:
                reporter.waits.add(time.monotonic() - sent[lane])
            steps[lane] += 1
            lanes[lane].send(action)
            stepping.append(lane)
        lane = stepping.popleft()
        step = step_arrays(lanes[lane].receive())
        sent[lane] = time.monotonic()
        client.send(lane, step)


def run(context: Any) -> None:
    """Runs an actor as an instance of a program; see :class:`seedbed.architectures.program.Context`.

    It acts for the role that it dials. Raises as :func:`act` does: :class:`~seedbed.errors.ConnectionLost` when the run
    is over.
    """
    (role,) = context.task.dials

    def make_agent(policy: dict[str, Any], spec: EnvSpec) -> Agent:
        made: Agent = context.make_agent(context.make_config(policy), spec)
        return made

    with contextlib.closing(context.dial(role)) as client:
        act(
            client,
            token=context.invitation.said_at(context.address_of(role)),
            index=context.task.index,
            claim=context.claim,
            make_agent=make_agent,
            alone=context.alone,
        )


def act_and_reconnect(find: Find, *, say: Callable[[str], object], **join: Any) -> None:
    """Acts for a learner that may go and come back, also elsewhere; ends when the run is over.

    Raises an error when the learner refuses or an environment fails.

    Args:
      find: function that finds the learner, called before every attempt to reach it.
      say: function that takes one line of progress for people.
      **join: arguments of :func:`act`, except for client and token.
    """
    retry = FIRST_RETRY_SECONDS
    while True:
        try:
            if (found := find()) is None:
                say(RUN_IS_OVER)
                return
            address, invitation = found
            client = connect(address, timeout=CONNECT_SECONDS, invitation=invitation)
        except ConnectionLost as error:
            say(f"{error}; trying again in {retry:.0f} s")
            time.sleep(retry)
            retry = min(2 * retry, LONGEST_RETRY_SECONDS)
            continue
        begun = time.monotonic()
        try:
            say(f"acting for {address}")
            act(client, token=invitation.said_at(address), **join)
        except ConnectionLost as error:
            if error.said == RUN_IS_OVER:
                say(RUN_IS_OVER)
                return
            say(
                f"the learner says: {error.said}; coming again in a while"
                if error.said
                else f"the learner is gone ({error}); waiting for it to come back"
            )
            # A learner that drops every connection at once is not dialled every second for ever.
            lasted = time.monotonic() - begun > LONGEST_RETRY_SECONDS
            retry = FIRST_RETRY_SECONDS if lasted else retry
            time.sleep(retry)
            retry = min(2 * retry, LONGEST_RETRY_SECONDS)
        finally:
            client.close()
