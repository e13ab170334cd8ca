"""Unix-domain socket files: the owner of a path, its permissions, and its removal."""

from __future__ import annotations

import os
import socket
import stat
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from seedbed.errors import ConfigError

# sun_path has 108 bytes with the closing zero on Linux, 104 elsewhere.
_SUFFIX = "~"
MAX_PATH_BYTES = (107 if sys.platform == "linux" else 103) - len(_SUFFIX)
_masking = threading.Lock()


class SocketFile:
    """The path at which a server binds its socket.

    Args:
      path: path of the file. A socket file that a dead server left there is removed. ``ConfigError`` if it is too
        long, if a server listens there, if something else stands there or if the directory does not exist.
    """

    def __init__(self, path: str) -> None:
        check_length(path)
        self.path = Path(path)
        self._identity: tuple[int, int] | None = None
        _clear(self.path)

    @contextmanager
    def binding(self) -> Iterator[str]:
        """Inside it the server binds at the path that it gives; only this user may open the file.

        The file gets its own name afterwards, at once and over any file there. gRPC, which removes the file that
        it bound even if it is another's by then, does not know that name.
        """
        beside = self.path.with_name(self.path.name + _SUFFIX)
        beside.unlink(missing_ok=True)
        # The mask is the process's: a file that another thread makes meanwhile is a little more private.
        with _masking:
            before = os.umask(0o177)
            try:
                yield str(beside)
            finally:
                os.umask(before)
        found = beside.stat()
        self._identity = (found.st_dev, found.st_ino)
        beside.rename(self.path)

    def remove(self) -> None:
        """Removes the file, if it is still the one that was bound."""
        with suppress(FileNotFoundError):
            found = self.path.stat()
            if (found.st_dev, found.st_ino) == self._identity:
                self.path.unlink()


def check_length(path: str) -> None:
    """Raises ``ConfigError`` if the system takes no socket path of that length."""
    length = len(os.fsencode(path))
    if not path or length > MAX_PATH_BYTES:
        raise ConfigError(
            f"socket path of {length} bytes: {path!r}; the system takes 1 to {MAX_PATH_BYTES}: "
            "use a shorter directory"
        )


def _clear(path: Path) -> None:
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        if not path.parent.is_dir():
            raise ConfigError(f"no directory for the socket {path}: create {path.parent}") from None
        return
    except OSError as error:
        raise ConfigError(f"cannot use the socket path {path}: {error.strerror}") from error
    if not stat.S_ISSOCK(mode):
        raise ConfigError(f"{path} exists and is no socket: it is left alone, take another path")
    if _is_live(path):
        raise ConfigError(f"a server listens at {path} already: stop it or take another path")
    path.unlink(missing_ok=True)


def _is_live(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        probe.setblocking(False)
        try:
            probe.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        except OSError:
            return True  # a full backlog, no permission: somebody is there
    return True
