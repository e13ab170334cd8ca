"""Settings that a run inherits from its process or shell: those that it must not depend on, and compiled programs.

Some of JAX's settings change the meaning of arithmetic: with 64 bits, parameters become float64; with another kind of
random keys, the keys in a checkpoint fit nowhere. The alternative, to name dtype and kind wherever an array is created,
ends at the libraries: optimizers and modules create arrays too. So the settings are fixed for the duration of a run,
here and in the processes that it starts, and restored afterwards (decision 0040).

Programs that JAX compiles are kept in a folder of this user, so that a run that needs the same ones starts at once
(decision 0107).
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from seedbed import limits
from seedbed.errors import ConfigError

_NEEDED: dict[str, Any] = {
    "jax_enable_x64": False,
    "jax_default_prng_impl": "threefry2x32",
    "jax_threefry_partitionable": True,
    "jax_numpy_dtype_promotion": "standard",
    "jax_numpy_rank_promotion": "allow",
    "jax_disable_jit": False,
    "jax_transfer_guard": "allow",
}
_FOLDER = "jax_compilation_cache_dir"
_KEPT: dict[str, Any] = {"jax_persistent_cache_min_compile_time_secs": 0.1}
"""Programs that take less time to compile than this are not kept."""
_LEAST_FILES = 24
_FILES_AN_ACTOR = 4  # its conversation, shared memory and log


@contextlib.contextmanager
def held() -> Iterator[None]:
    """Fixes JAX's settings at the values that Seedbed needs while the block runs, and restores them; imports no JAX.

    JAX keeps compiled programs meanwhile, unless it was told already where (``JAX_COMPILATION_CACHE_DIR``). The current
    folder, which environments in this process may change, is restored too.
    """
    with contextlib.ExitStack() as stack:
        stack.enter_context(_staying_here())
        jax = sys.modules.get("jax")
        keeping = _keeping(jax)
        if keeping:
            _forget_the_folder()
            stack.callback(_forget_the_folder)
        wanted = {**_NEEDED, **keeping}
        stack.callback(_restore, {name.upper(): os.environ.get(name.upper()) for name in wanted})
        # For the processes that are started, and for this one if it has yet to import JAX.
        os.environ.update({name.upper(): str(value) for name, value in wanted.items()})
        if jax is not None:
            stack.callback(_update, jax, {name: getattr(jax.config, name) for name in wanted})
            _update(jax, wanted)
        yield


@contextlib.contextmanager
def _staying_here() -> Iterator[None]:
    """Restores the current folder."""
    if sys.platform == "win32":
        with contextlib.chdir(os.curdir):
            yield
        return
    # By a file: the folder may be removed or renamed meanwhile.
    here = os.open(os.curdir, getattr(os, "O_PATH", os.O_RDONLY))
    try:
        yield
    finally:
        os.fchdir(here)
        os.close(here)


def programs_folder() -> Path | None:
    """Returns the folder of compiled programs; None if there is none, and none can be made.

    It is that of one kind of processor: a program for another one may have instructions that this one lacks.
    """
    try:
        given = Path(os.environ.get("XDG_CACHE_HOME", ""))
        home = given if given.is_absolute() else Path.home() / ".cache"
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder = home / "seedbed" / "programs" / _processor()
        own = list(reversed((folder, *folder.parents[:2])))
        for each in own:  # not by parents=True, which leaves them to the umask
            each.mkdir(mode=0o700, exist_ok=True)
        safe = all(map(_only_mine, own))
    except (OSError, RuntimeError):  # read-only, or no home
        return None
    return folder if safe and os.access(folder, os.W_OK) else None


def _only_mine(folder: Path) -> bool:
    """Returns whether nobody else can put a program there, which would be run."""
    if sys.platform == "win32":
        return True  # a home folder is its user's own there
    about = folder.lstat()
    return stat.S_ISDIR(about.st_mode) and about.st_uid == os.getuid() and not about.st_mode & 0o022


def keep_no_programs() -> None:
    """Has JAX keep no programs until :func:`held` ends, unless the user has told it where.

    For several hosts: JAX writes on the first one only, and hosts that have kept different programs would wait for one
    another, and mix programs that were tuned at different times.
    """
    if (folder := programs_folder()) is not None and os.environ.get(_FOLDER.upper()) == str(folder):
        del os.environ[_FOLDER.upper()]
        if (jax := sys.modules.get("jax")) is not None:
            jax.config.update(_FOLDER, None)
            _forget_the_folder()


def _forget_the_folder() -> None:
    """Has JAX look up its setting again, which it does once for all compilations."""
    if "jax" in sys.modules:
        from jax.experimental.compilation_cache import compilation_cache

        compilation_cache.reset_cache()


def _keeping(jax: Any) -> dict[str, Any]:
    """Returns the settings by which JAX keeps programs; none if it has been told where, or there is no folder."""
    told = _FOLDER.upper() in os.environ or (jax is not None and getattr(jax.config, _FOLDER))
    if told or (folder := programs_folder()) is None:
        return {}
    unsaid = {name: value for name, value in _KEPT.items() if name.upper() not in os.environ}
    return {_FOLDER: str(folder), **unsaid}


def _processor() -> str:
    """Returns a name for the machine's processor and its instructions."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = [platform.processor()]
    says = {line for line in lines if line.startswith(("model name", "flags", "Features", "CPU"))} or {*lines}
    digest = hashlib.sha256("\n".join(sorted(says)).encode()).hexdigest()
    return f"{platform.machine()}-{digest[:12]}"


def _restore(variables: dict[str, str | None]) -> None:
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def _update(jax: Any, settings: dict[str, Any]) -> None:
    for name, value in settings.items():
        jax.config.update(name, getattr(value, "value", value))


def require_files(actors: int = 0, most: int = 0) -> None:
    """Raises the limit of open files of this process, as far as it may, to what a run needs.

    Args:
      actors: number of actors that the run has for certain.
      most: number of actors that it has at most.

    Raises:
      ConfigError: a run would be short of files: some libraries abort the process then.
    """
    least, wanted = (_LEAST_FILES + _FILES_AN_ACTOR * number for number in (actors, max(actors, most)))
    allowed = limits.allow_open_files(wanted)
    if allowed is not None and allowed < least:
        what = f"a run with {actors} actors" if actors else "a run"
        raise ConfigError(
            f"this process may have {allowed} files open at once, and {what} needs {least} or more: "
            f"ulimit -n {max(1024, least)}"
        )


def require_devices() -> None:
    """Raises :class:`ConfigError` if JAX has none of the devices that it was told to use."""
    import jax

    try:
        jax.local_devices()
    except Exception as error:
        cause = " ".join(str(error).split())
        if not (told := jax.config.jax_platforms):
            raise ConfigError(cause or f"JAX can open no device here ({type(error).__name__})") from error
        raise ConfigError(
            f"JAX_PLATFORMS is {told}, and JAX can open no such device here{cause and f' ({cause})'}; leave the "
            "variable out, or give JAX_PLATFORMS=cpu"
        ) from error
