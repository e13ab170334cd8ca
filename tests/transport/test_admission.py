"""Who is let in: proofs that serve once, for one server; tokens and invitations as people write them."""

from __future__ import annotations

from pathlib import Path

import pytest
from harness import PLACED, at_once, placed
from hypothesis import given
from hypothesis import strategies as st

from seedbed.errors import ConfigError, Refused
from seedbed.transport.admission import CHALLENGE_SECONDS, Gate, Invitation, Refusals
from seedbed.transport.tls import Identity, needs_tls, within_machine

TOKEN, OTHER = "0123456789abcdef", "0123456789abcdeX"
KINDS = {**PLACED, "device": "it is a device"}
HERE, THERE = b"h" * 32, b"t" * 32


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_both_sides_prove_that_they_know_the_token() -> None:
    gate, client = Gate(TOKEN), Invitation(TOKEN)
    proof = client.prove(gate.challenge(), HERE)
    client.check(gate.admit(proof, HERE), proof, HERE)
    assert TOKEN.encode() not in proof


def test_a_proof_serves_once() -> None:
    gate = Gate(TOKEN)
    proof = Invitation(TOKEN).prove(gate.challenge(), HERE)
    gate.admit(proof, HERE)
    with pytest.raises(Refused, match="answered"):
        gate.admit(proof, HERE)


def test_a_proof_is_of_one_certificate_and_one_server() -> None:
    gate = Gate(TOKEN)
    with pytest.raises(Refused, match="wrong token"):
        gate.admit(Invitation(TOKEN).prove(gate.challenge(), THERE), HERE)
    with pytest.raises(Refused, match="challenge of this server"):
        gate.admit(Invitation(TOKEN).prove(Gate(TOKEN).challenge(), HERE), HERE)


@pytest.mark.parametrize(
    ("late", "admitted"), [(CHALLENGE_SECONDS - 1, True), (CHALLENGE_SECONDS + 1, False)]
)
def test_a_challenge_grows_old_and_is_forgotten(late: float, admitted: bool) -> None:
    clock = Clock()
    gate = Gate(TOKEN, clock=clock)
    proof = Invitation(TOKEN).prove(gate.challenge(), HERE)
    clock.now += late
    if admitted:
        gate.admit(proof, HERE)
    else:
        with pytest.raises(Refused, match="too old"):
            gate.admit(proof, HERE)
    clock.now += 2 * CHALLENGE_SECONDS
    gate.admit(Invitation(TOKEN).prove(gate.challenge(), HERE), HERE)
    assert len(gate._used) == 1


@pytest.mark.parametrize("token", [OTHER, TOKEN + "0"])
def test_another_token_is_refused_by_both_sides(token: str) -> None:
    gate, client = Gate(TOKEN), Invitation(token)
    with pytest.raises(Refused, match="wrong token: copy the whole line"):
        gate.admit(client.prove(gate.challenge(), HERE), HERE)
    impostor, client = Gate(token), Invitation(TOKEN)
    proof = client.prove(impostor.challenge(), HERE)
    # One who does not know the token cannot answer, also not with what the client or another server has said.
    for answer in (b"", proof[-32:], proof[:32], Gate(TOKEN).challenge()):
        with pytest.raises(Refused, match="does not know the token"):
            client.check(answer, proof, HERE)


def test_nothing_given_is_refused() -> None:
    with pytest.raises(Refused, match=r"none was given; copy the whole line .* --join"):
        Gate(TOKEN).admit(None, b"")


@given(st.binary(max_size=120))
def test_any_bytes_are_no_proof(noise: bytes) -> None:
    with pytest.raises(Refused):
        Gate(TOKEN).admit(noise, HERE)


@given(st.integers(0, 87), st.integers(1, 255))
def test_no_byte_of_a_proof_may_change(place: int, change: int) -> None:
    gate = Gate(TOKEN)
    proof = bytearray(Invitation(TOKEN).prove(gate.challenge(), HERE))
    assert len(proof) == 88
    proof[place] ^= change
    with pytest.raises(Refused):
        gate.admit(bytes(proof), HERE)


@pytest.mark.parametrize("token", ["", "short", "0123456789abcde", "0123456789abcde ", "0123456789abcdé0"])
def test_a_token_that_keeps_nobody_out_is_refused(token: str) -> None:
    for take in (Gate, Invitation.parse):
        with pytest.raises(ConfigError, match=r"16 or more letters and digits|no token: .* SEEDBED_JOIN"):
            take(token)


FINGERPRINT = "ab" * 32


@pytest.mark.parametrize("text", [TOKEN, f"{FINGERPRINT}.{TOKEN}"])
def test_an_invitation_is_what_it_is_written_as(text: str, tmp_path: Path) -> None:
    file = tmp_path / "join"
    file.write_text(f"{text}\n")
    file.chmod(0o600)
    for read in (Invitation.parse(text), Invitation.parse(f"@{file}")):
        assert str(read) == text
        assert read.fingerprint in text
        assert TOKEN not in repr(read)


def test_a_file_that_others_read_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "join"
    file.write_text(TOKEN)
    file.chmod(0o640)
    with pytest.raises(ConfigError, match="chmod 600"):
        Invitation.parse(f"@{file}")
    with pytest.raises(ConfigError, match="cannot read"):
        Invitation.parse(f"@{tmp_path / 'none'}")


@pytest.mark.parametrize("kind", ["pipe", "device", "folder"])
def test_what_is_no_file_is_refused_at_once(kind: str, tmp_path: Path) -> None:
    placed(kind, tmp_path / "file")
    with pytest.raises(ConfigError, match=f"cannot read .*file: {KINDS[kind]}"):
        at_once(lambda: Invitation.parse(f"@{tmp_path / 'file'}"))
    with pytest.raises(ConfigError, match=f"file holds no certificates, as PEM: {KINDS[kind]}"):
        at_once(lambda: Invitation.parse(TOKEN, authority=str(tmp_path / "file")))


def test_a_secret_may_be_behind_a_link(tmp_path: Path) -> None:
    (tmp_path / "file").touch(0o600)
    (tmp_path / "file").write_text(TOKEN)
    (tmp_path / "link").symlink_to("file")
    assert Invitation.parse(f"@{tmp_path / 'link'}").token == TOKEN
    (tmp_path / "file").write_bytes(b"\xff" * 32)
    for content in (b"\xff" * 32, b"x" * 5000):
        (tmp_path / "file").write_bytes(content)
        with pytest.raises(ConfigError, match="cannot read"):
            Invitation.parse(f"@{tmp_path / 'link'}")


def test_what_contradicts_itself_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"not FINGERPRINT\.TOKEN"):
        Invitation.parse(f"{FINGERPRINT[:-1]}.{TOKEN}")
    with pytest.raises(ConfigError, match="leave --insecure out"):
        Invitation.parse(f"{FINGERPRINT}.{TOKEN}", insecure=True)


@pytest.mark.parametrize(
    ("address", "needed"),
    [
        ("inproc:x", False),
        ("shm:/tmp/x", False),
        ("unix:x:y", False),
        ("127.0.0.1:1", False),
        ("127.8.9.10:1", False),
        ("localhost:1", False),
        ("[::1]:1", False),
        ("0.0.0.0:1", True),
        ("socket:0.0.0.0:1", True),
        ("socket:127.0.0.1:1", False),
        ("socket:unix:/x", False),
        ("[::]:1", True),
        ("10.0.0.1:1", True),
        ("128.0.0.1:1", True),
        ("[fe80::1%eth0]:1", True),
        ("localhost.example:1", True),
        ("127.0.0.1.example:1", True),
        ("myhost:1", True),
    ],
)
def test_what_other_machines_hear_is_encrypted(address: str, needed: bool) -> None:
    assert needs_tls(address) == needed
    assert Invitation(TOKEN).wants_tls(address) == needed
    assert not Invitation(TOKEN, insecure=True).wants_tls(address)
    # With a fingerprint never in plain text, but for sockets, which have no certificate.
    assert Invitation(TOKEN, FINGERPRINT).wants_tls(address) != within_machine(address)
    if needed:
        with pytest.raises(ConfigError, match="--insecure"):
            Gate(TOKEN).identity_at(address)
        assert Gate(TOKEN, insecure=True).identity_at(address) is None


@pytest.mark.parametrize("insecure", [False, True])
@pytest.mark.parametrize("address", ["127.0.0.1:1", "10.0.0.1:1"])
def test_the_invitation_of_a_gate_comes_through_it(address: str, insecure: bool) -> None:
    identity = Identity.make()
    gate = Gate(TOKEN, identity, insecure=insecure)
    told = gate.invitation(address)
    read = Invitation.parse(str(told), insecure=told.insecure)
    assert read.wants_tls(address) == (gate.identity_at(address) is not None)
    assert read.fingerprint in ("", identity.fingerprint)


def test_refusals_are_told_at_most_once_a_second() -> None:
    clock = Clock()
    refusals = Refusals(clock=clock)
    assert refusals.note("a", "why") == "1 turned away without the token, the last one a: why"
    assert [refusals.note("b", "why") for _ in range(100)] == [None] * 100
    clock.now += 1.0
    assert refusals.note("c", "so") == "101 turned away without the token, the last one c: so"
