"""The network's gate: certificates are looked at first, impostors learn nothing, strangers hold nothing."""

from __future__ import annotations

import logging
import select
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import grpc
import pytest
from harness import at_once, placed
from wire import Wire

from seedbed import limits
from seedbed.errors import ConfigError, ConnectionLost, Refused
from seedbed.testing.transport import PATIENCE, FakeHandler
from seedbed.transport import admission, streams
from seedbed.transport.admission import Gate, Invitation
from seedbed.transport.connect import connect, listen
from seedbed.transport.tls import Identity, certificate_at, name_in

TOKEN, OTHER = "0123456789abcdef", "another0another0"
IDENTITY = Identity.make()
JOIN = Invitation(TOKEN, IDENTITY.fingerprint)


@contextmanager
def serving(address: str = "0.0.0.0:0", most: int = 100, **gate: Any) -> Iterator[str]:
    """A server of the network; gives the address by which this machine reaches it."""
    made = Gate(**{"token": TOKEN, "identity": IDENTITY, **gate})
    with closing(listen(address, FakeHandler(), gate=made, most=most)) as server:
        yield server.address.replace("0.0.0.0", "127.0.0.1")


def wire_to(address: str) -> Wire:
    return Wire(address, IDENTITY.certificate)


def ask(address: str, invitation: Invitation | None, timeout: float = PATIENCE) -> dict[str, Any]:
    with closing(connect(address, timeout=timeout, invitation=invitation)) as client:
        return client.ask({"x": 1})


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "REFUSAL_SECONDS", 0.0)


class Recorder:
    """An impostor: it shows a certificate of its own and writes down what it is told."""

    def __init__(self, identity: Identity, folder: Path) -> None:
        (folder / "certificate.pem").write_bytes(identity.certificate)
        (folder / "key.pem").write_bytes(identity.key)
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(folder / "certificate.pem", folder / "key.pem")
        self._context.set_alpn_protocols(["h2"])
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listening.getsockname()[1]}"
        self.heard = b""
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._listening.accept()
                connection.settimeout(PATIENCE)
                with suppress(OSError), self._context.wrap_socket(connection, server_side=True) as secured:
                    while told := secured.recv(1 << 12):
                        self.heard += told

    def close(self) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self._thread.join(PATIENCE)


def test_an_impostor_with_another_certificate_is_told_nothing(tmp_path: Path) -> None:
    with (
        closing(Recorder(Identity.make(), tmp_path)) as impostor,
        pytest.raises(Refused, match="another run listens there, or somebody in between"),
    ):
        ask(impostor.address, JOIN)
    assert impostor.heard == b""


def test_an_impostor_without_the_token_is_found_out() -> None:
    # It has a gate of its own, with another token: the client has no fingerprint to know it by.
    with serving(token=OTHER) as address, pytest.raises(Refused, match="wrong token"):
        ask(address, Invitation(TOKEN, IDENTITY.fingerprint))


def test_one_who_lets_everybody_in_is_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Gate, "admit", lambda gate, proof, binding: b"welcome" * 4)
    with serving(token=OTHER) as address, pytest.raises(Refused, match="does not know the token"):
        ask(address, JOIN)


def test_a_server_that_asks_for_nothing_is_not_believed() -> None:
    with (
        closing(listen("127.0.0.1:0", FakeHandler())) as server,
        pytest.raises(Refused, match="leave --join"),
    ):
        ask(server.address, Invitation(TOKEN))


def test_the_right_line_comes_through_and_is_encrypted() -> None:
    with serving() as address:
        assert ask(address, JOIN) == {"x": 1}
        der = certificate_at(address, timeout=PATIENCE)
        assert ssl.DER_cert_to_PEM_cert(der).encode() == IDENTITY.certificate


@pytest.mark.parametrize(
    "invitation", [None, Invitation(TOKEN, insecure=True)], ids=["no token", "the right token"]
)
def test_plain_text_does_not_reach_a_server_of_the_network(invitation: Invitation | None) -> None:
    with serving() as address, pytest.raises(ConnectionLost, match="cannot reach"):
        ask(address, invitation, timeout=1.0)


def test_a_server_in_plain_text_is_not_spoken_to_by_who_has_a_fingerprint() -> None:
    with serving("127.0.0.1:0") as address, pytest.raises(ConnectionLost, match="without --insecure"):
        ask(address, JOIN, timeout=0.5)


def test_insecure_must_be_said_at_both_ends() -> None:
    with serving(identity=None, insecure=True) as address:
        assert ask(address, Invitation(TOKEN)) == {"x": 1}


def test_an_address_of_the_network_wants_a_gate_and_a_certificate() -> None:
    with pytest.raises(ConfigError, match="keeps strangers"):
        listen("0.0.0.0:0", FakeHandler())
    with pytest.raises(ConfigError, match="encrypts"):
        listen("0.0.0.0:0", FakeHandler(), gate=Gate(TOKEN))


@pytest.mark.parametrize("address", ["0.0.0.0:0", "127.0.0.1:0"])
def test_a_client_without_the_token_is_refused(address: str) -> None:
    with serving(address) as reached:
        for wrong in (Invitation(OTHER, JOIN.fingerprint if address[0] == "0" else ""), None):
            if wrong is None and address[0] == "0":
                continue  # which does not even reach it
            with pytest.raises(Refused, match="wrong token"):
                ask(reached, wrong)


def test_what_was_heard_on_the_wire_does_not_admit() -> None:
    binding = bytes.fromhex(IDENTITY.fingerprint)
    with serving() as address, closing(wire_to(address)) as wire:
        proof = JOIN.prove(wire.challenge(), binding)
        assert wire.converse(proof, []).code() is grpc.StatusCode.OK
        again = wire.converse(proof, [])
        assert again.code() is grpc.StatusCode.FAILED_PRECONDITION
        assert "answered" in again.details()


def test_a_proof_for_an_impostors_certificate_cannot_be_passed_on() -> None:
    with serving() as address, closing(wire_to(address)) as wire:
        passed_on = JOIN.prove(wire.challenge(), bytes.fromhex(Identity.make().fingerprint))
        assert "wrong token" in wire.converse(passed_on, []).details()


def test_nothing_of_a_stranger_is_read_and_no_place_is_taken(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(streams._Conversation, "_take_message", lambda *_: pytest.fail("a message was read"))
    monkeypatch.setattr(streams, "most_connections", lambda most: 20)  # a closed one may count for a moment
    with serving(most=1) as address, closing(wire_to(address)) as wire, caplog.at_level(logging.WARNING):
        for proof in (None, b"x", b"x" * 88):
            for _ in range(5):
                call = wire.converse(proof, [bytes(1 << 20)] * 3)
                assert call.code() is grpc.StatusCode.FAILED_PRECONDITION
        monkeypatch.undo()
        assert ask(address, JOIN)["x"] == 1
    told = [record.getMessage() for record in caplog.records if "turned away" in record.getMessage()]
    assert told
    assert len(told) < 15  # at most one a second


HTTP2 = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])


@pytest.mark.parametrize("first", [b"", HTTP2], ids=["silent", "nothing but a greeting"])
def test_idle_connections_are_closed(first: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "STRANGER_SECONDS", 0.5)
    with serving("127.0.0.1:0") as address:
        host, port = address.rsplit(":", 1)
        # Sooner than by pings that nobody answers.
        idle = [socket.create_connection((host, int(port)), timeout=PATIENCE / 3) for _ in range(20)]
        for connection in idle:
            connection.sendall(first)
        for connection in idle:
            with closing(connection), suppress(ConnectionError):
                while connection.recv(1 << 12):
                    pass
        assert ask(address, Invitation(TOKEN))["x"] == 1


@pytest.mark.parametrize("address", ["0.0.0.0:0", "127.0.0.1:0"])
def test_connections_beyond_the_limit_are_closed_and_who_is_in_stays_in(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "most_connections", lambda most: 5)
    monkeypatch.setattr(streams, "STRANGER_SECONDS", 3 * PATIENCE)
    with serving(address) as reached, ExitStack() as stack:
        invitation = JOIN if address[0] == "0" else Invitation(TOKEN)
        client = stack.enter_context(closing(connect(reached, timeout=PATIENCE, invitation=invitation)))
        host, port = reached.rsplit(":", 1)
        silent = {
            stack.enter_context(closing(socket.create_connection((host, int(port)), timeout=PATIENCE)))
            for _ in range(20)
        }
        shut: set[socket.socket] = set()
        while len(shut) < len(silent) - 4:
            readable, _, _ = select.select(list(silent - shut), [], [], PATIENCE)
            assert readable, f"only {len(shut)} of {len(silent)} connections were closed"
            for one in readable:
                with suppress(ConnectionError):
                    if one.recv(1 << 12):
                        continue
                shut.add(one)
        assert client.ask({"x": 1})["x"] == 1
        for one in silent:
            one.close()
        again = connect(reached, timeout=PATIENCE, invitation=invitation)
        assert stack.enter_context(closing(again)).ask({"x": 2})["x"] == 2


@pytest.mark.parametrize(
    ("soft", "connections"), [(1024, 512), (64, 32), (1, 1), (1 << 20, 2000), (-1, 2000)]
)
def test_connections_leave_room_for_other_files(
    soft: int, connections: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits.resource, "getrlimit", lambda _: (soft, soft))
    assert admission.most_connections(1000) == connections


def test_only_the_newest_tls_is_let_in() -> None:
    with serving() as address:
        host, port = address.rsplit(":", 1)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        context.set_alpn_protocols(["h2"])
        with context.wrap_socket(socket.create_connection((host, int(port)))) as secured:
            assert secured.version() == "TLSv1.3"
    with pytest.raises(Refused, match=r"the client speaks TLSv1\.2"):
        streams._require_newest_tls(Old())


class Old:
    def auth_context(self) -> dict[str, list[bytes]]:
        return {"ssl_tls_version": [b"TLSv1.2"]}


def signed(names: list[str], folder: Path) -> tuple[Identity, Path]:
    """A certificate that an authority has signed for these names, and the file of that authority."""
    import datetime

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    top, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    issuer = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "an authority")])
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "a learner")])

    def build(name: x509.Name, public: Any, extension: Any) -> x509.Certificate:
        return (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(issuer)
            .public_key(public.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(datetime.datetime(2020, 1, 1))
            .not_valid_after(datetime.datetime(2100, 1, 1))
            .add_extension(extension, critical=isinstance(extension, x509.BasicConstraints))
            .sign(top, hashes.SHA256())
        )

    authority = build(issuer, top, x509.BasicConstraints(ca=True, path_length=None))
    leaf = build(subject, key, x509.SubjectAlternativeName([x509.DNSName(name) for name in names]))
    pem = serialization.Encoding.PEM
    (folder / "ca.pem").write_bytes(authority.public_bytes(pem))
    (folder / "leaf.pem").write_bytes(leaf.public_bytes(pem) + authority.public_bytes(pem))
    (folder / "leaf.key").write_bytes(
        key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return Identity.read(folder / "leaf.pem", folder / "leaf.key"), folder / "ca.pem"


def test_certificates_of_ones_own(tmp_path: Path) -> None:
    identity, authority = signed(["localhost", "*.example"], tmp_path)
    with serving(identity=identity) as address:
        named = address.replace("127.0.0.1", "localhost")
        assert ask(named, Invitation(TOKEN, authority=str(authority)))["x"] == 1
        # By the fingerprint alone, too; by another authority, or for another name, not at all.
        assert ask(address, Invitation(TOKEN, identity.fingerprint))["x"] == 1
        with pytest.raises(Refused, match="vouches for"):
            ask(address, Invitation(TOKEN, authority=str(authority)))
        (tmp_path / "other.pem").write_bytes(Identity.make().certificate)
        with pytest.raises(Refused, match="vouches for"):
            ask(named, Invitation(TOKEN, authority=str(tmp_path / "other.pem")))


def test_files_that_are_no_certificate_are_refused(tmp_path: Path) -> None:
    signed(["localhost"], tmp_path)
    (tmp_path / "other.key").write_bytes(Identity.make().key)
    for certificate, key in (("leaf.pem", "other.key"), ("leaf.key", "leaf.key"), ("none", "leaf.key")):
        with pytest.raises(ConfigError, match="no certificate with its key"):
            Identity.read(tmp_path / certificate, tmp_path / key)


@pytest.mark.parametrize(
    ("kind", "says"), [("pipe", "a pipe"), ("device", "a device"), ("folder", "a folder")]
)
def test_what_is_no_file_is_no_certificate_at_once(kind: str, says: str, tmp_path: Path) -> None:
    signed(["localhost"], tmp_path)
    placed(kind, tmp_path / "file")
    for certificate, key in (("file", "leaf.key"), ("leaf.pem", "file")):
        with pytest.raises(ConfigError, match=f"it is {says}, and has to be a file"):
            at_once(lambda: Identity.read(tmp_path / certificate, tmp_path / key))  # noqa: B023
    (tmp_path / "link").symlink_to("leaf.pem")
    assert Identity.read(tmp_path / "link", tmp_path / "leaf.key").fingerprint
    with pytest.raises(ConfigError, match="it is a link"):
        Identity.read(tmp_path / "link", tmp_path / "leaf.key", links=False)


def test_the_key_of_an_identity_is_not_shown() -> None:
    assert "PRIVATE" not in repr(IDENTITY)
    der = ssl.PEM_cert_to_DER_cert(IDENTITY.certificate.decode())
    assert name_in(der, "host") == "seedbed"
