"""The limits of this process: the cores, open files, processes and memory that it may use.

Windows keeps none of them but that of cores, and has no module ``resource``.
"""

from __future__ import annotations

import os
import sys

if sys.platform != "win32":
    import resource


def cores() -> int:
    """Returns the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def open_files() -> tuple[int | None, int | None]:
    """Returns how many files may be open at once: now, and after :func:`allow_open_files`; None for no limit."""
    if sys.platform == "win32":
        return None, None
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _finite(soft), _finite(hard)


def allow_open_files(number: int) -> int | None:
    """Lets ``number`` files be open at once, or as many as the system permits, and no fewer than before.

    Returns:
      How many may be open from now on; None for no limit.
    """
    if sys.platform == "win32":
        return None
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if resource.RLIM_INFINITY != soft < number:
        soft = number if hard == resource.RLIM_INFINITY else max(soft, min(number, hard))
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return _finite(soft)


def processes() -> int | None:
    """Returns how many processes this user may have; None for no limit."""
    return None if sys.platform == "win32" else _finite(resource.getrlimit(resource.RLIMIT_NPROC)[0])


def memory_bytes() -> int | None:
    """Returns how many bytes of address space this process may have; None for no limit."""
    return None if sys.platform == "win32" else _finite(resource.getrlimit(resource.RLIMIT_AS)[0])


def _finite(limit: int) -> int | None:
    return None if sys.platform == "win32" or limit == resource.RLIM_INFINITY else limit
