"""What all tests need."""

import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from functools import partial

import psutil
import pytest
from hypothesis import settings

# Whoever starts the tests in the background of a script, or by nohup, has them ignore Ctrl-C or the terminal's end, and
# every process that they start would inherit that; tests that interrupt one would wait in vain. A handler is not
# inherited.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, lambda *_: None)

# How long an example takes says how busy the machine is.
settings.register_profile("seedbed", deadline=None)
settings.load_profile("seedbed")


def pytest_configure(config: pytest.Config) -> None:
    """Compiling is most of the time of a tiny run: every program is compiled once for all tests and processes."""
    if hasattr(config, "workerinput"):
        return  # its environment has what the process that started it set
    cache, home = (tempfile.mkdtemp(prefix=f"seedbed-{name}-") for name in ("compiled", "config"))
    for folder in (cache, home):
        config.add_cleanup(partial(shutil.rmtree, folder, ignore_errors=True))
    os.environ["XDG_CONFIG_HOME"] = home  # the key that runs are signed with is not the user's
    os.environ["JAX_COMPILATION_CACHE_DIR"] = cache
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests that install packages need the index and minutes each: they run where their mark is asked for."""
    if "installs" in config.option.markexpr:
        return
    left_out = [item for item in items if item.get_closest_marker("installs")]
    items[:] = [item for item in items if item not in left_out]
    if left_out:
        config.hook.pytest_deselected(items=left_out)


@pytest.fixture(autouse=True, scope="module")
def bounded_memory() -> Iterator[None]:
    """JAX keeps what it has compiled as long as its process lives: several GB after these tests, in each process."""
    yield
    if "jax" in sys.modules and psutil.Process().memory_info().rss > 1.5e9:
        sys.modules["jax"].clear_caches()
