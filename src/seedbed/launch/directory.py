"""The directory of a run: the files of its folder in which actors on machines that share its disk find the learner.

A learner writes its address and the fingerprint of its certificate when it listens; the token is in a file that only
the run's user may read. So no actor is given a secret by an engine. Imports no JAX.
"""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

from seedbed import regular_files
from seedbed.errors import ConfigError, ConnectionLost
from seedbed.transport.admission import Gate, Invitation, require_token
from seedbed.transport.connect import seen_from_elsewhere

ADDRESSES, SESSION, SUMMARY, TOKEN = "addresses.json", "session", "summary.json", "token"
"""Names of files in a run folder."""
_NOT_OVER = ("interrupted", "failed")
_LASTING = {errno.EACCES, errno.EPERM, errno.EINVAL, errno.EFBIG, errno.ELOOP, errno.ENOTDIR, errno.EISDIR}
"""Errors of a disk that stay; others pass, as of a server of files that begins again."""


def dialled(listening: str, gate: Gate) -> dict[str, Any]:
    """Returns as JSON values what an actor on another machine needs, beside the token, to dial an address.

    Args:
      listening: address at which the learner listens.
      gate: its admission.
    """
    invitation = gate.invitation(listening)
    return {
        "address": seen_from_elsewhere(listening),
        "fingerprint": invitation.fingerprint,
        "insecure": invitation.insecure,
    }


def learner_of(run: Path) -> tuple[str, Invitation] | None:
    """Returns the address of a run's learner, with token and fingerprint for admission; None if the run is over.

    Args:
      run: run folder.

    Raises:
      ConnectionLost: no session of the run has listened yet, or the disk is away.
      ConfigError: a file of the folder cannot be read.
    """
    if _is_over(run):
        return None
    try:
        dial = regular_files.read_object(run / ADDRESSES)["dial"]
        token = require_token(regular_files.read(run / TOKEN).decode().strip())
        return str(dial["address"]), Invitation(
            token, str(dial["fingerprint"]), insecure=bool(dial["insecure"])
        )
    except FileNotFoundError as error:
        raise ConnectionLost(f"no learner listens in {run} yet (there is no {error.filename})") from error
    except (OSError, ValueError, KeyError, TypeError) as error:
        if isinstance(error, OSError) and error.errno not in _LASTING:
            raise ConnectionLost(f"{run} cannot be read now ({error.strerror})") from error
        raise ConfigError(
            f"{run} does not say where its learner is ({getattr(error, 'strerror', None) or error}): it has to be the "
            "folder of a run that was started with --listen, by this user"
        ) from error


def _is_over(run: Path) -> bool:
    """Returns whether the run has reached one of its limits, and no session has begun since."""
    try:
        summary = regular_files.read_object(run / SUMMARY)
        begun, ended = ((run / name).stat().st_mtime_ns for name in (SESSION, SUMMARY))
    except (OSError, ValueError):
        return False
    return ended >= begun and not str(summary.get("stopped_because", "")).startswith(_NOT_OVER)
