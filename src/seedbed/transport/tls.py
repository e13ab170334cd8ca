"""Certificates: one that a run makes for itself, and a client that takes exactly the one that it was told of.

Alternatives weighed: an authority of the run's own that signs certificates (another file to keep, and nothing that a
fingerprint does not give); gRPC's own check of names (a self-signed certificate has none that mean anything, and it
would come after the first bytes). So a client looks at the certificate by a handshake of its own, compares its SHA-256
with the one that it was told, and only then dials, with that one certificate as its root.
"""

from __future__ import annotations

import datetime
import hashlib
import ipaddress
import socket
import ssl
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from seedbed import regular_files
from seedbed.errors import ConfigError, ConnectionLost, Refused

_NAME = "seedbed"
_RETRY_SECONDS, _HANDSHAKE_SECONDS = 0.2, 10.0


SOCKET_PREFIX = "socket:"
"""Stands before the address of a stream where frames travel without gRPC."""


def within_machine(address: str) -> bool:
    """Returns whether ``address`` is one of a thread or a socket file, which only this user can reach."""
    return address.removeprefix(SOCKET_PREFIX).partition(":")[0] in ("inproc", "shm", "unix")


def needs_tls(address: str) -> bool:
    """Returns whether other machines may listen in at ``address``: all but sockets and loopback's own names."""
    if within_machine(address):
        return False
    return not is_loopback(address.removeprefix(SOCKET_PREFIX).rpartition(":")[0])


def is_loopback(host: str) -> bool:
    """Returns whether an address or a name is of this machine alone."""
    host = host.strip("[]")
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return False  # a name, which may mean another machine tomorrow


@dataclass(frozen=True)
class Identity:
    """A server's certificate and the key to it, as PEM."""

    certificate: bytes
    key: bytes = field(repr=False)

    @staticmethod
    def make() -> Identity:
        """Makes a self-signed certificate, which clients know by its fingerprint."""
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec

        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, _NAME)])
        certificate = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            # Clocks of machines differ, and a run may be resumed years later: the fingerprint is what counts.
            .not_valid_before(datetime.datetime(2000, 1, 1))
            .not_valid_after(datetime.datetime(9999, 12, 31))
            .add_extension(x509.SubjectAlternativeName([x509.DNSName(_NAME)]), critical=False)
            .sign(key, hashes.SHA256())
        )
        encoding = serialization.Encoding.PEM
        return Identity(
            certificate.public_bytes(encoding),
            key.private_bytes(encoding, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()),
        )

    @staticmethod
    def read(certificate: str | Path, key: str | Path, *, links: bool = True) -> Identity:
        """Reads a certificate and its key; raises :class:`ConfigError` if they are none, or do not fit.

        ``links``: whether the files may be behind links.
        """
        try:
            found = [regular_files.read(file, links=links) for file in (certificate, key)]
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, password="")
            return Identity(*found)
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(
                f"{certificate} and {key} are no certificate with its key, as PEM without a password: "
                f"{error.strerror or error}"
            ) from error

    @property
    def fingerprint(self) -> str:
        """The SHA-256 of the certificate, as hexadecimal digits."""
        first = self.certificate.decode().partition("-----END CERTIFICATE-----")
        return fingerprint_of(ssl.PEM_cert_to_DER_cert(first[0] + first[1]))

    def context(self) -> ssl.SSLContext:
        """Returns the settings of a server that shows this certificate, by TLS 1.3 alone."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        # Python reads certificates from files only; the folder is this user's own, and gone afterwards.
        with tempfile.TemporaryDirectory(prefix="seedbed-") as folder:
            certificate, key = Path(folder, "certificate"), Path(folder, "key")
            for file, content in ((certificate, self.certificate), (key, self.key)):
                file.touch(0o600)
                file.write_bytes(content)
            context.load_cert_chain(certificate, key)
        return context


def fingerprint_of(certificate: bytes) -> str:
    """Returns the SHA-256 of a certificate (DER), as ``openssl x509 -fingerprint -sha256`` computes it."""
    return hashlib.sha256(certificate).hexdigest()


def certificate_at(address: str, *, timeout: float, fingerprint: str = "", authority: str = "") -> bytes:
    """Looks at the certificate that is shown at ``address``; nothing is said there.

    Args:
      address: ``HOST:PORT``.
      timeout: seconds to wait for a server to appear.
      fingerprint: SHA-256 that the certificate must have; empty for any.
      authority: file with certificates of which one must have signed it; empty for none.

    Returns:
      The certificate, as DER.

    Raises:
      Refused: it is another one.
      ConnectionLost: no server speaks TLS 1.3 there.
    """
    host, _, port = address.rpartition(":")
    over = time.monotonic() + timeout
    while True:
        try:
            seconds = max(_RETRY_SECONDS, min(_HANDSHAKE_SECONDS, over - time.monotonic()))
            return _shown(host.strip("[]"), int(port), seconds, fingerprint, authority)
        except ssl.SSLCertVerificationError as error:
            raise Refused(
                f"the certificate at {address} is not one that {authority} vouches for: {error.verify_message}"
            ) from error
        except OSError as error:
            if time.monotonic() + _RETRY_SECONDS > over:
                raise ConnectionLost(
                    f"cannot reach {address} by TLS within {timeout:g} s: is the learner running there, and "
                    f"without --insecure? ({error.strerror or error})"
                ) from error
            time.sleep(_RETRY_SECONDS)


def _shown(host: str, port: int, seconds: float, fingerprint: str, authority: str) -> bytes:
    with (
        socket.create_connection((host, port), seconds) as connection,
        secured(connection, host, authority, speaks="h2") as encrypted,
    ):
        require_certificate(encrypted, f"{host}:{port}", fingerprint)
        return _certificate(encrypted)


def secured(connection: socket.socket, host: str, authority: str, speaks: str = "") -> ssl.SSLSocket:
    """Encrypts a connection by TLS 1.3, as a client; nothing is said yet.

    Args:
      connection: connection to a server.
      host: the host's name.
      authority: file with certificates of which one must have signed the server's, for that name; empty for none.
      speaks: protocol that is spoken inside (ALPN); empty for none.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    if speaks:
        context.set_alpn_protocols([speaks])
    if authority:
        context.load_verify_locations(authority)
    else:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context.wrap_socket(connection, server_hostname=host if authority else None)


def require_certificate(encrypted: ssl.SSLSocket, place: str, fingerprint: str) -> str:
    """Returns the fingerprint of the certificate that a server has shown.

    Raises:
      Refused: it is not ``fingerprint``; empty for any.
    """
    found = fingerprint_of(_certificate(encrypted))
    if fingerprint and found != fingerprint:
        raise Refused(
            f"the certificate at {place} has the fingerprint {found[:16]}… and not "
            f"{fingerprint[:16]}…: another run listens there, or somebody in between; copy the run's line again"
        )
    return found


def _certificate(encrypted: ssl.SSLSocket) -> bytes:
    certificate = encrypted.getpeercert(binary_form=True)
    assert certificate is not None, "a server always shows one"
    return certificate


def name_in(certificate: bytes, host: str) -> str:
    """Returns a name that a certificate (DER) is for: ``host`` if it has none."""
    from cryptography import x509

    found = x509.load_der_x509_certificate(certificate)
    try:
        names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return host
    named = names.get_values_for_type(x509.DNSName) or [
        str(address) for address in names.get_values_for_type(x509.IPAddress)
    ]
    return named[0].replace("*", _NAME) if named else host
