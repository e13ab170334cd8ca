"""What all tests need."""

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import psutil
import pytest
from harness import hear_interrupts, private_surroundings
from hypothesis import settings

hear_interrupts()

# How long an example takes says how busy the machine is.
settings.register_profile("seedbed", deadline=None)
settings.load_profile("seedbed")


def pytest_configure(config: pytest.Config) -> None:
    """Every program is compiled once for all tests and processes; no test sees the user's own key.

    No command starts itself anew with another allocator, which serves long runs: it would take each a second, and a
    command in the tests' own process would start pytest.
    """
    if hasattr(config, "workerinput"):
        return  # its environment has what the process that started it set
    folder = Path(tempfile.mkdtemp(prefix="seedbed-tests-"))
    config.add_cleanup(partial(shutil.rmtree, folder, ignore_errors=True))
    surroundings = private_surroundings(folder)
    os.environ.update({**surroundings, "SEEDBED_ALLOCATOR": "off"})
    if "jax" in sys.modules:  # a plugin has imported it, and it reads its variables once
        config_of_jax = sys.modules["jax"].config
        config_of_jax.update("jax_compilation_cache_dir", surroundings["JAX_COMPILATION_CACHE_DIR"])
        config_of_jax.update("jax_persistent_cache_min_compile_time_secs", 0.0)
        config_of_jax.update("jax_persistent_cache_min_entry_size_bytes", -1)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests that take long and are not for every change run where their mark is asked for."""
    unasked = [mark for mark in ("installs", "thorough") if mark not in config.option.markexpr]
    left_out = {item for item in items if any(map(item.get_closest_marker, unasked))}
    items[:] = [item for item in items if item not in left_out]
    if left_out:
        config.hook.pytest_deselected(items=[*left_out])


_GROWTH = 1e9  # bytes of memory
_kept = [0.5e9]  # what this process held when the caches were last empty


@pytest.fixture(autouse=True, scope="module")
def bounded_memory() -> Iterator[None]:
    """JAX keeps what it has compiled as long as its process lives: several GB after these tests, in each process.

    To fill the caches again takes seconds, and memory does not shrink to what it was: they are emptied when it has
    grown, not when it is large.
    """
    yield
    if "jax" in sys.modules and psutil.Process().memory_info().rss > _kept[0] + _GROWTH:
        sys.modules["jax"].clear_caches()
        _kept[0] = psutil.Process().memory_info().rss


@pytest.fixture(autouse=True)
def no_curve(request: pytest.FixtureRequest) -> Iterator[None]:
    """Runs of this process draw no curve at their end, a quarter of a second each; with the mark ``draws`` they do."""
    session = sys.modules.get("seedbed.launch.session")
    with pytest.MonkeyPatch.context() as patch:
        if session is not None and request.node.get_closest_marker("draws") is None:
            patch.setattr(session, "draw_curve", lambda *_: None)
        yield
