"""Admission to conversations: peers have to speak the same protocol and to know the run's token.

Over the network the token is never said. The server gives a challenge, the client answers with a proof that takes the
token to compute, and the server proves the same before the client believes a word. Both proofs are of this challenge
and of the certificate that the client sees, so neither serves for another conversation, nor for one that somebody in
between has opened. A challenge costs the server no memory, and nothing of a client is read before its proof.

Socket files and threads are this user's own: there a handler is told the token in the first question.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import ssl
import stat
import struct
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from seedbed import limits, regular_files
from seedbed.errors import ConfigError, Refused
from seedbed.transport.interface import PROTOCOL, Handler, Peer
from seedbed.transport.tls import Identity, needs_tls, within_machine

CHALLENGE_SECONDS = 10.0
"""Seconds in which a client has to answer a challenge."""
STRANGER_SECONDS = 10.0
"""Seconds after which a connection without an admission is closed."""
REFUSAL_SECONDS = 1.0
"""Seconds for which a refused client waits for the reason."""
_LEAST_TOKEN_CHARACTERS = 16
_NOISE_BYTES, _SEAL_BYTES = 16, 16
_TIME = struct.Struct("!d")
CHALLENGE_BYTES = _NOISE_BYTES + _TIME.size + _SEAL_BYTES
ANSWER_BYTES = hashlib.sha256().digest_size
PROOF_BYTES = CHALLENGE_BYTES + _NOISE_BYTES + ANSWER_BYTES
_TOKEN = re.compile(r"[A-Za-z0-9_-]+")
_FINGERPRINT = re.compile(r"[0-9a-f]{64}")
_WRONG = "wrong token: copy the whole line that the learner printed, with its --join"


def require_token(token: str) -> str:
    """Returns the token; raises :class:`ConfigError` if it is too short to keep anybody out, or no word."""
    if len(token) < _LEAST_TOKEN_CHARACTERS or not _TOKEN.fullmatch(token):
        raise ConfigError(
            f"a token of {len(token)} characters: it takes {_LEAST_TOKEN_CHARACTERS} or more letters and digits "
            "(a run makes its own where it has none: remove the file)"
        )
    return token


@dataclass(frozen=True)
class Invitation:
    """A client's knowledge of the server that it goes to.

    Attributes:
      token: secret of the run.
      fingerprint: SHA-256 of the certificate that the server shows; empty where it need not be that one.
      authority: file with certificates of which one must have signed it; empty for none.
      insecure: whether to speak in plain text, also over the network.
    """

    token: str = field(repr=False)
    fingerprint: str = ""
    authority: str = ""
    insecure: bool = False

    @staticmethod
    def parse(text: str, *, authority: str = "", insecure: bool = False) -> Invitation:
        """Reads ``TOKEN``, ``FINGERPRINT.TOKEN`` or ``@FILE`` (private, with one of them); raises ``ConfigError``."""
        if text.startswith("@"):
            text = _read_private(Path(text[1:]))
        if not text:
            raise ConfigError(
                "no token: copy the whole line that the learner printed, with its --join, or put it into SEEDBED_JOIN"
            )
        fingerprint, _, token = text.strip().rpartition(".")
        if fingerprint and not _FINGERPRINT.fullmatch(fingerprint):
            raise ConfigError(
                "not FINGERPRINT.TOKEN: copy the whole line that the learner printed, with its --join"
            )
        if fingerprint and insecure:
            raise ConfigError(
                "a fingerprint and --insecure: a learner with a fingerprint speaks TLS; leave --insecure out"
            )
        if authority:
            _require_certificates(authority)
        return Invitation(require_token(token), fingerprint, authority, insecure)

    def __str__(self) -> str:
        return f"{self.fingerprint}.{self.token}" if self.fingerprint else self.token

    @property
    def flags(self) -> str:
        """The flags of an actor that comes by this invitation."""
        return f"--join {self}" + (" --insecure" if self.insecure else "")

    def wants_tls(self, address: str) -> bool:
        """Returns whether the conversation at ``address`` is encrypted."""
        if within_machine(address):
            return False
        return bool(self.fingerprint or self.authority) or (needs_tls(address) and not self.insecure)

    def said_at(self, address: str) -> str:
        """Returns the token as a question has it: on this machine's sockets only."""
        return self.token if within_machine(address) else ""

    def prove(self, challenge: bytes, binding: bytes) -> bytes:
        """Returns a proof that this client knows the token."""
        if len(challenge) != CHALLENGE_BYTES:
            raise Refused(
                "the server gives no challenge that this version knows: install the same on both machines"
            )
        noise = secrets.token_bytes(_NOISE_BYTES)
        return challenge + noise + _mac(self.token, b"client", binding, challenge + noise)

    def check(self, answer: bytes, proof: bytes, binding: bytes) -> None:
        """Raises :class:`Refused` unless the server has proved that it knows the token."""
        if not hmac.compare_digest(answer, _mac(self.token, b"server", binding, proof[:-ANSWER_BYTES])):
            raise Refused(
                "the server does not know the token: another run listens there, or somebody in between"
            )


class Gate:
    """A server's side of admission; used by the server's thread.

    Args:
      token: secret of the run.
      identity: certificate for conversations that other machines may hear; None if there is none.
      insecure: whether these may be in plain text.
      clock: seconds.
    """

    def __init__(
        self,
        token: str,
        identity: Identity | None = None,
        *,
        insecure: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._token = require_token(token)
        self._identity = identity
        self._insecure = insecure
        self._clock = clock
        self._seal = secrets.token_hex(32)
        self._used: dict[bytes, float] = {}
        self._lock = threading.Lock()

    def identity_at(self, address: str) -> Identity | None:
        """The certificate to show at ``address``; None for plain text. Raises ``ConfigError`` if there must be one."""
        if not needs_tls(address) or self._insecure:
            return None
        if self._identity is None:
            raise ConfigError(
                f"nothing encrypts what is said at {address}: give a certificate, or --insecure"
            )
        return self._identity

    def invitation(self, address: str) -> Invitation:
        """Returns the invitation for clients that come to ``address``."""
        identity = self.identity_at(address)
        return Invitation(
            self._token,
            identity.fingerprint if identity else "",
            insecure=identity is None and needs_tls(address),
        )

    def vouching(self, handler: Handler) -> Handler:
        """Returns a handler that is told the token of all clients of this gate."""
        return Vouching(handler, self._token)

    def challenge(self) -> bytes:
        """Returns a challenge, which this gate will know again."""
        noise = secrets.token_bytes(_NOISE_BYTES) + _TIME.pack(self._clock())
        return noise + self._sealed(noise)

    def _sealed(self, noise: bytes) -> bytes:
        return _mac(self._seal, b"challenge", b"", noise)[:_SEAL_BYTES]

    def admit(self, proof: bytes | None, binding: bytes) -> bytes:
        """Returns the server's own proof, if a client's is right; raises :class:`Refused` if not."""
        if proof is None:
            raise Refused(f"wrong token: none was given; {_WRONG.partition(': ')[2]}")
        challenge, known = proof[:CHALLENGE_BYTES], proof[:-ANSWER_BYTES]
        noise = challenge[:-_SEAL_BYTES]
        if len(proof) != PROOF_BYTES or not hmac.compare_digest(
            challenge[-_SEAL_BYTES:], self._sealed(noise)
        ):
            raise Refused("not an answer to a challenge of this server")
        if not hmac.compare_digest(proof[-ANSWER_BYTES:], _mac(self._token, b"client", binding, known)):
            raise Refused(_WRONG)
        self._use(challenge, _TIME.unpack(noise[_NOISE_BYTES:])[0])
        return _mac(self._token, b"server", binding, known)

    def _use(self, challenge: bytes, given: float) -> None:
        """Notes that a challenge was answered; raises :class:`Refused` if it was before, or long ago."""
        now = self._clock()
        with self._lock:
            self._used = {old: over for old, over in self._used.items() if over > now}
            if challenge in self._used or now > given + CHALLENGE_SECONDS:
                raise Refused("an answer to a challenge that is answered, or too old: try again")
            self._used[challenge] = given + CHALLENGE_SECONDS


def _mac(secret: str, side: bytes, binding: bytes, known: bytes) -> bytes:
    return hmac.digest(secret.encode(), b"|".join((b"seedbed", side, binding, known)), "sha256")


class Vouching:
    """Handler for peers that the gate has let in: it adds the token to their questions, and where they are from.

    Args:
      handler: the handler behind it.
      token: secret that the handler asks for.
    """

    def __init__(self, handler: Handler, token: str) -> None:
        self._handler = handler
        self._token = token

    def answer(self, peer: Peer, message: dict[str, Any]) -> dict[str, Any]:
        """See :class:`~seedbed.transport.interface.Handler`."""
        return self._handler.answer(peer, {**message, "token": self._token, "elsewhere": True})

    def deliver(self, peer: Peer, lane: int, arrays: list[NDArray[Any]]) -> None:
        """See :class:`~seedbed.transport.interface.Handler`."""
        self._handler.deliver(peer, lane, arrays)

    def left(self, peer: Peer, reason: str) -> None:
        """See :class:`~seedbed.transport.interface.Handler`."""
        self._handler.left(peer, reason)


def most_connections(most: int) -> int:
    """Returns how many connections a server of ``most`` conversations takes: at most half of the files of a process."""
    files, _ = limits.open_files()
    return 2 * most if files is None else max(1, min(2 * most, files // 2))


class Refusals:
    """Counts clients that were refused, and has a line for the log now and then.

    Args:
      seconds: shortest time between two lines.
      clock: seconds.
    """

    def __init__(self, seconds: float = 1.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds = seconds
        self._clock = clock
        self._count = 0
        self._told_at = float("-inf")

    def note(self, peer: str, reason: str) -> str | None:
        """Counts one; returns the line, if it is time for one."""
        self._count += 1
        now = self._clock()
        if now < self._told_at + self._seconds:
            return None
        self._told_at, count, self._count = now, self._count, 0
        return f"{count} turned away without the token, the last one {peer}: {reason}"


def require_admission(message: Mapping[str, Any], token: str) -> None:
    """Raises :class:`Refused` unless ``message`` says this protocol and this token."""
    if message.get("protocol") != PROTOCOL:
        raise Refused(
            f"the other side speaks protocol {message.get('protocol')!r}, and this one {PROTOCOL}: "
            "install the same version of Seedbed on both machines"
        )
    if not equal(message.get("token", ""), token):
        raise Refused(_WRONG)


def require_claim(message: Mapping[str, Any], claim: str) -> None:
    """Raises :class:`Refused` if a peer on another machine does not say the claim of the session.

    Others than the run's own may know the token. On this machine sockets are the user's own, and nothing is asked.
    """
    if message.get("elsewhere") is True and not (claim and equal(message.get("claim", ""), claim)):
        raise Refused(
            "only the run's own workers of this session are admitted here: one of an earlier session is over"
        )


def equal(given: Any, secret: str) -> bool:
    """Returns whether a word of a peer is ``secret``, in a time that tells nothing about it."""
    return hmac.compare_digest(_bytes(given), _bytes(secret))


def _read_private(path: Path) -> str:
    """The content of a file that only this user may read."""
    try:
        if stat.S_IMODE(regular_files.require(path, links=True).st_mode) & 0o077:
            raise ConfigError(f"{path} may be read by others: chmod 600 {path}")
        return regular_files.read(path, 1 << 12, links=True).decode().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from error


def _require_certificates(path: str) -> None:
    """Raises :class:`ConfigError` unless there are certificates in a file."""
    try:
        regular_files.require(path, links=True)
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(path)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"{path} holds no certificates, as PEM: {error.strerror or error}") from error


def _bytes(text: Any) -> bytes:
    # JSON may hold half of a surrogate pair, which UTF-8 has no bytes for.
    return str(text).encode(errors="replace")
