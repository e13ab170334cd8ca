"""Shards at addresses of their own: what travels computes what one process does, and a shard that dies comes back."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from seedbed.errors import ConnectionLost, ProtocolError, Refused, RunFailed, SpecError
from seedbed.parameter_server.server import FETCH, PUSH, RemoteShards, ShardHandler, empty_part, lanes_of
from seedbed.parameter_server.shards import Bound, LocalShards, Part, Shard, cut
from seedbed.transport.admission import Gate, Invitation
from seedbed.transport.connect import connect, listen
from seedbed.transport.interface import PROTOCOL, Server
from seedbed.transport.tls import Identity
from seedbed.types import Tree

RULE = optax.adam(0.1)
TOKEN = "5ecret5ecret5ecret"
CARRIERS = ("inproc", "shm", "unix")
Place = Callable[[int], str]


def tree(seed: int = 0) -> Tree:
    random = np.random.default_rng(seed)
    sizes = {"kernel": (5, 7), "bias": (3,), "scale": ()}
    return {"network": {name: jnp.asarray(random.normal(size=s), jnp.float32) for name, s in sizes.items()}}


LIKE = jax.eval_shape(tree)


@pytest.fixture(params=CARRIERS)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    return lambda index: f"{request.param}:{tmp_path / str(index)}"


def parts_of(whole: Part, shards: int) -> list[Part]:
    pairs = zip(cut(whole.params, shards), cut(whole.opt_state, shards), strict=True)
    return [Part(*pair, whole.version, whole.skipped) for pair in pairs]


def start(address: str, part: Part, bound: Bound | None = None) -> Server:
    return listen(address, ShardHandler(Shard(RULE, part, bound or Bound()), TOKEN))


@contextlib.contextmanager
def served(place: Place, shards: int, bound: Bound | None = None) -> Iterator[list[Server]]:
    whole = Part(tree(), RULE.init(tree()), 0, 0)
    servers = [start(place(index), part, bound) for index, part in enumerate(parts_of(whole, shards))]
    try:
        yield servers
    finally:
        for server in servers:
            server.close()


@contextlib.contextmanager
def reached(place: Place, shards: int, patience: float = 20.0) -> Iterator[RemoteShards]:
    addresses = [place(index) for index in range(shards)]
    with contextlib.closing(
        RemoteShards(RULE, LIKE, addresses, Invitation(TOKEN), patience=patience, takes=True)
    ) as remote:
        yield remote


def same(one: Tree, other: Tree) -> None:
    jax.tree.map(np.testing.assert_array_equal, one, other)


@pytest.mark.parametrize("shards", [1, 3])
def test_what_travels_computes_what_one_process_does(place: Place, shards: int) -> None:
    local = LocalShards(RULE, Part(tree(), RULE.init(tree()), 0, 0), shards, Bound())
    with served(place, shards), reached(place, shards) as remote:
        for step in range(1, 4):
            fetched = remote.fetch()
            assert fetched.versions == local.fetch().versions == (step - 1,) * shards
            same(fetched.params, local.fetch().params)
            assert remote.push(tree(step), fetched.versions) == local.push(tree(step), fetched.versions)
        whole = remote.whole(remote.parts())
        assert (whole.version, int(whole.skipped)) == (3, 0)
        same(whole.params, local.whole().params)
        same(whole.opt_state, local.whole().opt_state)
        assert remote.lost == 0


@pytest.mark.parametrize(
    ("credentials", "says"),
    [
        (lambda identity: Invitation(TOKEN, identity.fingerprint), None),
        (lambda identity: Invitation(TOKEN, "0" * 64), "another run listens there, or somebody in between"),
        (lambda identity: Invitation("another" * 3, identity.fingerprint), "wrong token"),
    ],
    ids=["its own", "another certificate", "another token"],
)
def test_shards_on_the_network_speak_tls(
    credentials: Callable[[Identity], Invitation], says: str | None
) -> None:
    identity = Identity.make()
    (part,) = parts_of(Part(tree(), RULE.init(tree()), 0, 0), 1)
    handler = ShardHandler(Shard(RULE, part, Bound()), TOKEN, "session")
    with contextlib.closing(listen("0.0.0.0:0", handler, gate=Gate(TOKEN, identity))) as server:
        address = f"127.0.0.1:{server.address.rpartition(':')[2]}"

        def reach() -> RemoteShards:
            return RemoteShards(
                RULE, LIKE, [address], credentials(identity), patience=3.0, claim="session", takes=True
            )

        if says is None:
            with contextlib.closing(reach()) as remote:
                same(remote.fetch().params, tree())
        else:
            with pytest.raises((Refused, RunFailed), match=says):
                reach().close()


def test_two_workers_find_each_others_gradients(place: Place) -> None:
    with served(place, 2, Bound(0)), reached(place, 2) as one, reached(place, 2) as other:
        versions = one.fetch().versions
        assert [r.taken for r in one.push(tree(1), versions)] == [True, True]
        receipts = other.push(tree(2), versions)
        assert [(r.staleness, r.taken) for r in receipts] == [(1, False), (1, False)]
        assert other.fetch().versions == (1, 1)


def test_a_shard_that_dies_comes_back_with_what_it_kept(place: Place) -> None:
    with served(place, 2) as servers, reached(place, 2) as remote:
        kept = remote.parts()
        remote.push(tree(1), (0, 0))
        servers[1].close()
        back: list[Server] = []
        # It comes back only after the worker has noticed.
        again = threading.Timer(0.3, lambda: back.append(start(place(1), kept[1])))
        again.start()
        receipts = remote.push(tree(2), (1, 1))
        again.join()
        servers.extend(back)
        assert [receipt.taken for receipt in receipts] == [True], "there is none of the other part"
        fetched = remote.fetch()
        assert fetched.versions == (2, 0)
        assert remote.lost == 1
        # The worker goes on from what it finds.
        assert [(r.version, r.taken) for r in remote.push(tree(3), fetched.versions)] == [
            (3, True),
            (1, True),
        ]


def test_a_question_is_asked_again_of_a_shard_that_came_back(place: Place) -> None:
    with served(place, 2) as servers, reached(place, 2) as remote:
        kept = remote.parts()
        servers[0].close()
        servers.append(start(place(0), kept[0]))
        assert remote.fetch().versions == (0, 0)
        assert remote.lost == 1


def test_a_shard_that_does_not_come_back_is_not_waited_for_for_ever(place: Place) -> None:
    with served(place, 1) as servers, reached(place, 1, patience=0.3) as remote:
        servers[0].close()
        with pytest.raises(ConnectionLost):
            remote.fetch()


def test_whoever_gives_up_waits_no_longer(place: Place) -> None:
    failure = RunFailed("the shard does not start")
    with pytest.raises(RunFailed, match="does not start"):
        RemoteShards(RULE, LIKE, [place(0)], Invitation(TOKEN), patience=60.0, given_up=lambda: failure)


def test_a_worker_has_no_lane_for_all_that_a_shard_holds(place: Place) -> None:
    with served(place, 1) as servers:
        worker = RemoteShards(RULE, LIKE, [servers[0].address], Invitation(TOKEN), patience=5.0)
        with contextlib.closing(worker):
            assert worker.fetch().versions == (0,)
            with pytest.raises(ProtocolError):
                worker.parts()


def test_who_does_not_know_the_token_is_turned_away(place: Place) -> None:
    with (
        served(place, 1) as servers,
        pytest.raises(Refused, match="wrong token"),
    ):
        RemoteShards(RULE, LIKE, [servers[0].address], Invitation("guess"), patience=1.0)
    with served(place, 1) as servers:
        client = connect(servers[0].address, timeout=5.0)
        with pytest.raises(Refused, match="protocol 1"):
            client.ask({"kind": "join", "protocol": 1, "token": TOKEN})
        client = connect(servers[0].address, timeout=5.0)
        with pytest.raises(Refused, match="a shard is asked 'join'"):
            client.ask({"kind": "ready"})


def test_a_gradient_that_is_refused_ends_that_conversation_and_changes_nothing(place: Place) -> None:
    with served(place, 1) as servers, reached(place, 1) as remote:
        before = remote.fetch()
        stranger = connect(servers[0].address, timeout=5.0)
        stranger.ask({"kind": "join", "protocol": PROTOCOL, "token": TOKEN})
        stranger.open(lanes_of(empty_part(RULE, LIKE, 0, 1), takes=False))
        gradient = [np.asarray(leaf) for leaf in jax.tree.leaves(cut(tree(1), 1)[0])]
        stranger.send(PUSH, [np.array(7, np.int64), np.float32(1.0), *gradient])
        with pytest.raises(ConnectionLost, match=r"version 7 .* nothing was changed"):
            stranger.receive()
        assert remote.fetch().versions == (0,)
        same(remote.fetch().params, before.params)
        # Others go on.
        assert remote.push(tree(1), (0,))[0].taken


def test_layouts_that_are_not_those_of_the_shard_are_refused(place: Place) -> None:
    with served(place, 2) as servers:
        client = connect(servers[0].address, timeout=5.0)
        client.ask({"kind": "join", "protocol": PROTOCOL, "token": TOKEN})
        with pytest.raises(SpecError):
            client.open(lanes_of(empty_part(RULE, LIKE, 0, 1), takes=False))
        client.close()
        client = connect(servers[0].address, timeout=5.0)
        client.ask({"kind": "join", "protocol": PROTOCOL, "token": TOKEN})
        client.open(lanes_of(empty_part(RULE, LIKE, 0, 2), takes=False))
        with pytest.raises(SpecError):
            client.send(FETCH, [np.zeros(3, np.int64)])
        client.close()
