"""A served policy decides as the loaded one does, for several clients at once, of which some die."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness import PATIENCE, SEEDBED, thorough, until
from untrained import untrained

import seedbed
from seedbed.acting.actor import act
from seedbed.errors import ConfigError, ConnectionLost, NotNow, Refused, SeedbedError, SpecError
from seedbed.evaluation.remote import RemotePolicy
from seedbed.evaluation.serve import Serving, serving
from seedbed.transport.admission import Invitation
from seedbed.transport.connect import connect

RUNS: dict[str, tuple[str, dict[str, Any], bool]] = {
    "feed-forward": ("toy:catch", {"agent": "vtrace"}, False),
    "LSTM": (
        "toy:memory",
        {"agent": "ppo", "lstm": 8, "previous_action": True, "previous_reward": True},
        False,
    ),
    "continuous": ("Pendulum-v1", {"agent": "ppo", "normalize_observations": True}, True),
}
"""Environment, settings, and whether the most likely action is taken."""


@contextmanager
def served(folder: Path, listen: str, **settings: Any) -> Iterator[Callable[..., RemotePolicy]]:
    """Serves a run; gives a function that connects a client, which is closed at the end."""
    lines: list[str] = []
    with serving(folder, Serving(listen=(listen,), inference_batch=8, **settings), say=lines.append) as found:
        clients: list[RemotePolicy] = []

        def client(**more: Any) -> RemotePolicy:
            join = str(found.invitations[0])
            clients.append(seedbed.connect(found.addresses[0], **{"join": join, **more}))
            return clients[-1]

        try:
            yield client
        finally:
            for each in clients:
                each.close()


@pytest.mark.parametrize(
    ("name", "carrier"),
    [("LSTM", "unix:{}/s"), *thorough(("feed-forward", "127.0.0.1:0"), ("continuous", "unix:{}/s"))],
)
def test_what_is_served_is_decided_as_by_the_loaded_policy(name: str, carrier: str, tmp_path: Path) -> None:
    """Choices bit for bit, also those that are drawn; reals to the rounding of two programs."""
    env, settings, greedy = RUNS[name]
    folder, random = untrained(env, tmp_path / "run", **settings), np.random.default_rng(0)
    policy = seedbed.load(folder, greedy=greedy, seed=3)
    with served(folder, carrier.format(tmp_path), greedy=greedy, seed=3) as client:
        remote = client(index=0)
        assert (remote.spec, remote.version) == (policy.spec, policy.version)
        for rows in (
            (4,),
            (),
        ):  # a batch, then one environment alone, of which the server begins to count anew
            policy = seedbed.load(folder, greedy=greedy, seed=3)
            for step in [*range(6), *range(4)]:  # two episodes
                if step == 0:
                    state = memory = None
                shape = (*rows, *policy.observation_spec.shape)
                observation = random.normal(size=shape).astype(policy.observation_spec.dtype)
                given = {
                    "reward": random.normal(size=rows),
                    "first": (random.random(rows) < 0.3) if step else None,
                }
                action, state = policy.act(observation, state, **given)
                received, memory = remote.act(observation, memory, **given)
                assert (received.dtype, received.shape) == (action.dtype, action.shape)
                if name == "continuous":
                    np.testing.assert_allclose(received, action, rtol=1e-5)
                else:
                    assert received.tobytes() == action.tobytes()
    with pytest.raises(ConnectionLost):
        remote.act(observation)


@pytest.fixture(scope="module")
def remembers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Any]]:
    """A served LSTM with room for 9 environments, for several tests."""
    folder = tmp_path_factory.mktemp("served")
    env, settings, _ = RUNS["LSTM"]
    run = untrained(env, folder / "run", **settings)
    with served(run, f"unix:{folder}/s", greedy=True, max_envs=9, inference_wait_ms=2.0) as client:
        yield run, client


def observations(seed: int, policy: Any, rows: int) -> Any:
    return (
        np.random.default_rng(seed).normal(size=(20, rows, *policy.observation_spec.shape)).astype(np.float32)
    )


def decided(policy: Any, shown: Any, *, until: int = 20) -> list[list[int]]:
    state, found = None, []
    for number, observation in enumerate(shown[:until]):
        action, state = policy.act(observation, state, reward=float(number % 3))
        found.append(action.tolist())
    return found


def test_clients_at_once_have_memories_of_their_own_and_one_that_dies_leaves_its_place(
    remembers: tuple[Path, Any],
) -> None:
    folder, client = remembers
    policy, found = seedbed.load(folder, greedy=True), {}
    sizes = {1: 1, 2: 2, 3: 3, 4: 3}  # all places

    def ask(number: int) -> None:
        mine = observations(number, policy, sizes[number])
        # The last one goes in the middle of an episode, again and again, with its memory half full.
        until = 20 if number < 4 else 7
        remote = client()
        found[number] = decided(remote, mine, until=until)
        if number == 4:
            remote.close()

    threads = [threading.Thread(target=ask, args=(number,)) for number in sizes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    for number, rows in sizes.items():
        shown = observations(number, policy, rows)
        assert found[number] == decided(policy, shown, until=20 if number < 4 else 7)
    # The place of the one that went is another's, with an empty memory.
    late = client()
    assert decided(late, observations(9, policy, 3)) == decided(policy, observations(9, policy, 3))
    late.close()


def test_a_client_for_which_there_was_no_room_may_come_later(
    remembers: tuple[Path, Any], tmp_path: Path
) -> None:
    folder, _ = remembers
    with served(folder, f"unix:{tmp_path}/s", greedy=True, max_envs=3) as client:
        holder, late = client(), client()
        pair = np.zeros((2, *late.observation_spec.shape), np.float32)
        holder.act(pair)
        with pytest.raises(NotNow, match=r"^no room for 2 more environments, 1 places .* larger --max-envs$"):
            late.act(pair)
        with pytest.raises(Refused, match="4 environments, and the server has 3 places for all") as never:
            late.act(np.zeros((4, *late.observation_spec.shape), np.float32))
        assert not isinstance(never.value, NotNow)
        holder.close()

        def found() -> Any:
            with suppress(NotNow):
                return late.act(pair)

        _, state = until(found, "room")
        late.close()
        with pytest.raises(SpecError, match="of a conversation that has ended"):
            late.act(pair, state, reward=0.0)
        until(found, "room again")


def test_what_does_not_fit_is_refused_by_name(remembers: tuple[Path, Any]) -> None:
    _, client = remembers
    remote = client()
    shape = remote.observation_spec.shape
    _, first = remote.act(np.zeros((2, *shape), np.float32))
    _, second = remote.act(np.zeros((2, *shape), np.float32), first, reward=0.0)
    refusals: list[tuple[Callable[[], Any], type[Exception], str]] = [
        (lambda: remote.act(np.zeros((2, *shape), np.float32), first, reward=0.0), SpecError, "newest"),
        (
            lambda: remote.act(np.zeros((1, *shape), np.float32), second, reward=0.0),
            SpecError,
            "give as many",
        ),
        (lambda: remote.act(np.zeros((2, *shape), np.float32), second), SpecError, "reward"),
        (lambda: remote.act(np.zeros(7, np.float32)), SpecError, "needed is"),
        (lambda: client(index=-1), Refused, "from 0 to"),
        (lambda: client(join="x" * 20), Refused, "wrong token"),
        (lambda: client(join="short"), ConfigError, "token"),
        (lambda: client().act(np.zeros((9, *shape), np.float32)), Refused, "from 1 to 8"),
        (lambda: client().act(np.zeros((8, *shape), np.float32)), NotNow, "larger --max-envs"),
    ]
    for call, kind, says in refusals:
        with pytest.raises(kind, match=says):
            call()
    remote.act(np.zeros((2, *shape), np.float32), second, reward=0.0)
    remote.close()
    with pytest.raises(ConfigError, match="--listen"):
        Serving()


def test_an_actor_plays_with_served_policies_of_each_agent(tmp_path: Path) -> None:
    """The environments of such a run show which agent a row is, and so do those that the actor is told to make."""
    folder = untrained("pettingzoo:parallel_worlds:Meeting", tmp_path / "run", agent="ppo", policies="own")
    lines: list[str] = []
    ends: list[BaseException] = []

    def play() -> None:
        try:
            token = invitation.said_at(client.address)
            act(client, token=token, make_agent=lambda *_: pytest.fail("the server decides"), envs=2)
        except SeedbedError as error:
            ends.append(error)

    stepped = threading.Event()
    with serving(
        folder, Serving(listen=(f"unix:{tmp_path}/s",), inference_batch=4), say=lines.append
    ) as found:
        invitation = Invitation.parse(str(found.invitations[0]))
        client = connect(found.addresses[0], timeout=PATIENCE, invitation=invitation)
        send, sent = client.send, iter(range(20))

        def counted(lane: int, arrays: Any) -> None:
            send(lane, arrays)
            if next(sent, None) is None:
                stepped.set()

        client.send = counted  # type: ignore[method-assign]
        thread = threading.Thread(target=play)
        thread.start()
        until(lambda: stepped.is_set() or ends, "20 steps")
    thread.join(PATIENCE)
    assert stepped.is_set(), ends
    assert [type(end) for end in ends] == [ConnectionLost]
    assert "of 2 environments" in lines[0]


@pytest.mark.slow
def test_the_command_says_the_line_to_paste_and_ends_at_ctrl_c(tmp_path: Path) -> None:
    folder = untrained("toy:catch", tmp_path / "run", agent="vtrace")
    command = [SEEDBED, "serve", str(folder), "--listen", "0.0.0.0:0", "--greedy"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert "most likely" in process.stdout.readline()
            line = process.stdout.readline()
            found = re.search(r'seedbed\.connect\("[^":]*:(\d+)", join="([0-9a-f]{64}\.\w+)"\)', line)
            assert found, line
            program = (
                "import os, sys, numpy, seedbed\n"
                f"policy = seedbed.connect('127.0.0.1:{found[1]}', join={found[2]!r})\n"
                "policy.act(numpy.zeros(policy.observation_spec.shape, numpy.float32))\n"
                "assert 'jax' not in sys.modules, 'a client needs no JAX'\n"
                "os.kill(os.getpid(), 9)\n"
            )
            killed = subprocess.run([sys.executable, "-c", program], check=False)
            assert killed.returncode == -signal.SIGKILL
            assert "has come" in process.stdout.readline()
            assert "has left" in process.stdout.readline()
            os.kill(process.pid, signal.SIGINT)
            assert process.wait(PATIENCE) == 130
        finally:
            process.kill()


def test_a_service_that_fails_ends_its_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from seedbed.acting.inference import Inference

    folder = untrained("toy:catch", tmp_path / "run", agent="vtrace")
    opened: AbstractContextManager[Any] = serving(
        folder, Serving(listen=(f"unix:{tmp_path}/s",), inference_batch=1)
    )
    with opened as found:

        def fail(*given: Any) -> Any:
            raise RuntimeError("the device is gone")

        monkeypatch.setattr(Inference, "act", fail)
        remote = seedbed.connect(found.addresses[0], join=str(found.invitations[0]))
        ends: list[str] = []

        def ask() -> None:
            try:
                remote.act(np.zeros((10, 5), np.float32))
            except ConnectionLost as error:
                ends.append(str(error))

        thread = threading.Thread(target=ask)
        thread.start()
        with pytest.raises(RuntimeError, match="the device is gone"):
            found.wait(PATIENCE)
    thread.join(PATIENCE)
    assert "closing" in "".join(ends)
