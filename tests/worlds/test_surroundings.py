"""Runs in odd surroundings, row by row: variables, or what becomes of the output; each run ends well."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from harness import PATIENCE, SEEDBED, flags, learned, shortened, summary, thorough, tiny

from seedbed import limits
from seedbed.cli import ending, streams
from seedbed.cli.main import main
from seedbed.errors import ConfigError
from seedbed.launch import surroundings
from seedbed.launch.machine import findings
from seedbed.launch.surroundings import held, require_devices
from seedbed.launch.train import train
from seedbed.learning.checkpoint import load_latest
from seedbed.metrics.say import say
from seedbed.plugins import import_from_here

SMALL: dict[str, Any] = {"actors": 1, "hidden": (8,), "batch_size": 4, "frames": 600}
RUN = flags("toy:catch", "run", **SMALL)
DQN = ["--agent", "dqn", "--replay-min-size", "300"]


def surrounded(
    folder: Path, words: Sequence[str], variables: Mapping[str, str | None], closed: str = "", **options: Any
) -> subprocess.CompletedProcess[bytes]:
    """What a command comes to, started with these variables (None: without), and with these streams closed."""
    environment = {name: value for name, value in {**os.environ, **variables}.items() if value is not None}
    command = ["/bin/sh", "-c", f'exec "$@" {closed}', "sh", SEEDBED, *words]
    return subprocess.run(command, cwd=folder, env=environment, timeout=PATIENCE, check=False, **options)


def ended_well(folder: Path) -> None:
    assert summary(folder / "run")["stopped_because"] == "600 frames spent"
    kept = load_latest(folder / "run" / "checkpoints")._load("train.safetensors")
    assert {array.dtype for name, array in kept.items() if name.startswith("params")} == {np.dtype("float32")}


SURROUNDINGS: dict[str, tuple[list[str], dict[str, str | None]]] = {
    "64 bits, dqn": (DQN, {"JAX_ENABLE_X64": "1"}),
    "64 bits, apex": ([*DQN, "--arch", "apex"], {"JAX_ENABLE_X64": "1"}),
    "64 bits, r2d2": ([*DQN, "--agent", "r2d2", "--lstm", "4", "--burn-in", "2"], {"JAX_ENABLE_X64": "1"}),
    "64 bits, impala": (["--arch", "impala"], {"JAX_ENABLE_X64": "1"}),
    "other random keys": ([], {"JAX_DEFAULT_PRNG_IMPL": "rbg"}),
    "strict": (
        [],
        {
            "JAX_NUMPY_DTYPE_PROMOTION": "strict",
            "JAX_NUMPY_RANK_PROMOTION": "raise",
            "JAX_TRANSFER_GUARD": "disallow",
            "JAX_DISABLE_JIT": "1",
        },
    ),
    "-OO and warnings as errors": ([], {"PYTHONOPTIMIZE": "2", "PYTHONWARNINGS": "error"}),
    "no home": ([], {"HOME": None, "XDG_CACHE_HOME": None}),
    "a home that is not there": ([], {"HOME": "/nowhere", "XDG_CACHE_HOME": None}),
    "ascii": ([], {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}),
}
ALIKE = (
    "other random keys",
    "no home",
    "strict",
    "64 bits, apex",
    "64 bits, r2d2",
    "64 bits, impala",
    "a home that is not there",
)
"""Those that others are much like."""


@pytest.mark.slow
@pytest.mark.parametrize("name", shortened(SURROUNDINGS, set(SURROUNDINGS).difference(ALIKE)))
def test_a_run_in_odd_surroundings(name: str, tmp_path: Path) -> None:
    words, variables = SURROUNDINGS[name]
    ended = surrounded(tmp_path, [*RUN, *words], variables, capture_output=True)
    assert ended.returncode == 0, ended.stderr.decode(errors="replace")
    ended_well(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("arch", ["seed", *thorough("impala")])
def test_a_module_of_the_users_with_the_name_of_a_library_changes_nothing(arch: str, tmp_path: Path) -> None:
    for name in ("random", "logging", "grpc"):
        (tmp_path / f"{name}.py").write_text("x = 1\n")
    ended = surrounded(tmp_path, [*RUN, "--arch", arch], {}, capture_output=True)
    assert ended.returncode == 0, ended.stderr
    ended_well(tmp_path)


# -- streams ------------------------------------------------------------------------------------------------------


STREAMS = {
    "stdout closed": ">&-",
    "stderr closed": "2>&-",
    "all closed": "<&- >&- 2>&-",
    "full disk": ">/dev/full 2>&1",
}


@pytest.mark.slow
@pytest.mark.parametrize("streams", shortened(STREAMS.values(), (">/dev/full 2>&1",)), ids=STREAMS)
def test_a_run_that_nobody_reads_ends_with_status_0(streams: str, tmp_path: Path) -> None:
    ended = surrounded(tmp_path, RUN, {}, streams, capture_output=True)
    assert ended.returncode == 0, ended.stderr
    ended_well(tmp_path)


@pytest.mark.slow
def test_a_run_whose_reader_has_left_ends_with_status_0(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    ended = surrounded(tmp_path, RUN, {}, stdout=writer, stderr=subprocess.PIPE)
    os.close(writer)
    assert (ended.returncode, ended.stderr) == (0, b"")
    ended_well(tmp_path)


@pytest.mark.slow
def test_a_full_pipe_does_not_hold_up_ctrl_c(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    with contextlib.suppress(BlockingIOError):
        while os.write(writer, b"x" * 4096):
            pass
    os.set_blocking(writer, True)
    words = flags("toy:catch", "run", **SMALL | {"frames": 10**9})
    run = subprocess.Popen([SEEDBED, *words], cwd=tmp_path, stdout=writer, stderr=subprocess.PIPE)
    try:
        learned(tmp_path / "run")
        run.send_signal(signal.SIGINT)
        _, said = run.communicate(timeout=PATIENCE)
    finally:
        run.kill()
        os.close(reader)
        os.close(writer)
    assert run.returncode == 0, said
    assert summary(tmp_path / "run")["stopped_because"] == "interrupted"


def test_results_that_are_lost_are_no_success(tmp_path: Path) -> None:
    ended = surrounded(tmp_path, ["compatibility"], {}, ">/dev/full", stderr=subprocess.PIPE)
    assert (ended.returncode, ended.stderr) == (
        1,
        b"seedbed: cannot write to standard output: No space left on device\n",
    )


def test_a_line_is_said_with_the_letters_that_there_are(tmp_path: Path) -> None:
    path = tmp_path / "said"
    with path.open("w", encoding="ascii") as stream:
        assert say("a · b", stream)
    assert path.read_text() == "a ? b\n"
    with path.open("w", encoding="utf-8") as stream:
        assert say("a\tä\nb\x1b[2J\r\x9b\u202e c", stream)
    assert path.read_text() == "a\tä\nb\\x1b[2J\\r\\x9b\\u202e c\n"
    assert not say("closed", stream)


def test_standard_streams_that_are_closed_are_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("stdin", "stdout", "stderr"):
        monkeypatch.setattr(sys, name, None)
    streams.mend()
    print("nowhere", file=sys.stdout)
    assert (sys.stdin.read(), sys.stderr.writable()) == ("", True)


# -- JAX ----------------------------------------------------------------------------------------------------------

ODD = {"jax_enable_x64": True, "jax_default_prng_impl": "rbg", "jax_numpy_rank_promotion": "raise"}


@pytest.fixture
def odd_jax(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    before = {name: getattr(jax.config, name) for name in ODD}
    for name, value in ODD.items():
        jax.config.update(name, value)
    monkeypatch.setenv("JAX_ENABLE_X64", "1")
    yield
    for name, value in before.items():
        jax.config.update(name, value)


@pytest.mark.usefixtures("odd_jax")
def test_settings_are_held_for_as_long_as_it_lasts_and_are_then_what_they_were() -> None:
    for _ in range(2):
        with contextlib.suppress(ZeroDivisionError), held():
            assert jax.numpy.arange(3.0).dtype == "float32"
            assert jax.random.key(0).dtype == jax.random.key(0, impl="threefry2x32").dtype
            assert os.environ["JAX_ENABLE_X64"] == "False"
            raise ZeroDivisionError
        assert {name: getattr(jax.config, name) for name in ODD} == ODD
        assert os.environ["JAX_ENABLE_X64"] == "1"
        assert "JAX_DEFAULT_PRNG_IMPL" not in os.environ


_FOLDER = "JAX_COMPILATION_CACHE_DIR"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A home of a user who has told JAX nothing about compiled programs."""
    monkeypatch.delenv(_FOLDER, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    kept = jax.config.jax_compilation_cache_dir
    jax.config.update("jax_compilation_cache_dir", None)
    yield tmp_path
    jax.config.update("jax_compilation_cache_dir", kept)


def test_compiled_programs_are_kept_in_a_folder_of_the_user(home: Path) -> None:
    before = dict(os.environ)
    with held():
        folder = os.environ[_FOLDER]
        assert folder == jax.config.jax_compilation_cache_dir
        assert Path(folder).parent == home / "cache" / "seedbed" / "programs"
        assert Path(folder).stat().st_mode & 0o077 == 0
    assert dict(os.environ) == before and jax.config.jax_compilation_cache_dir is None
    with held():
        assert os.environ[_FOLDER] == folder, "the next run finds them"


def test_compiled_programs_are_of_one_kind_of_processor(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folders = {surroundings.programs_folder()}
    for says in ("flags: avx2\n", "flags: avx2 avx512f\n", "nothing that is known\n"):
        monkeypatch.setattr(surroundings.Path, "read_text", lambda _, says=says: says)
        folders.add(surroundings.programs_folder())
    assert len(folders) == 4


def test_who_has_told_jax_where_to_keep_programs_is_obeyed(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for told in (str(home / "mine"), ""):  # empty: nowhere
        monkeypatch.setenv(_FOLDER, told)
        with held():
            assert os.environ[_FOLDER] == told
    monkeypatch.delenv(_FOLDER)
    jax.config.update("jax_compilation_cache_dir", str(home / "mine"))
    with held():
        assert jax.config.jax_compilation_cache_dir == str(home / "mine")
    assert not (home / "cache").exists()


def test_without_a_folder_nothing_is_kept_and_a_run_goes_on(home: Path) -> None:
    (home / "cache").write_text("a file stands in its place")
    assert surroundings.programs_folder() is None
    with held():
        assert _FOLDER not in os.environ


@pytest.mark.parametrize("place", ["", "..", "../.."])
def test_no_program_is_taken_from_where_others_can_put_one(home: Path, place: str) -> None:
    folder = surroundings.programs_folder()
    assert folder is not None
    (folder / place).resolve().chmod(0o777)
    assert surroundings.programs_folder() is None


def test_folders_are_the_users_alone_under_any_umask(home: Path) -> None:
    before = os.umask(0o002)
    try:
        assert surroundings.programs_folder() is not None
    finally:
        os.umask(before)


def test_a_link_is_no_folder_for_programs(home: Path) -> None:
    (home / "mine").mkdir()
    (home / "cache" / "seedbed").mkdir(parents=True, mode=0o700)
    (home / "cache" / "seedbed" / "programs").symlink_to(home / "mine")
    assert surroundings.programs_folder() is None


def test_several_hosts_keep_no_programs(home: Path) -> None:
    with held():
        surroundings.keep_no_programs()
        assert _FOLDER not in os.environ and jax.config.jax_compilation_cache_dir is None
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(_FOLDER, str(home / "mine"))
        with held():
            surroundings.keep_no_programs()
            assert os.environ[_FOLDER] == str(home / "mine")


def test_programs_of_the_user_go_to_the_users_folder_before_and_after_a_run(home: Path) -> None:
    def compiled() -> None:
        jax.jit(lambda x: x + len(before))(jax.numpy.ones(3))

    before: list[int] = []
    least = jax.config.jax_persistent_cache_min_compile_time_secs
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    try:
        compiled()  # JAX has looked for a folder once
        with held():
            jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
            before.append(1)
            compiled()
        [folder] = (home / "cache" / "seedbed" / "programs").iterdir()
        kept = set(folder.iterdir())
        assert kept
        jax.config.update("jax_compilation_cache_dir", str(home / "mine"))
        before.append(1)
        compiled()
        assert list((home / "mine").iterdir()) and set(folder.iterdir()) == kept
    finally:
        jax.config.update("jax_persistent_cache_min_compile_time_secs", least)


_COMPILES = """
import jax
from seedbed.launch.surroundings import held
with held():
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.jit(lambda x: x @ jax.numpy.tanh(x))(jax.numpy.ones((8, 8)))
"""


def test_the_second_process_compiles_nothing(home: Path) -> None:
    for missed in (True, False):
        done = subprocess.run(
            [sys.executable, "-c", _COMPILES],
            env={**os.environ, "JAX_EXPLAIN_CACHE_MISSES": "1"},
            capture_output=True,
            text=True,
            check=True,
        )
        assert ("PERSISTENT COMPILATION CACHE MISS" in done.stderr) == missed, done.stderr


@pytest.fixture
def removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is current and will be removed; afterwards the tests are where they were."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    return tmp_path / "gone"


def test_the_folder_that_a_run_is_started_in_may_be_renamed_or_removed(removed: Path) -> None:
    here = Path().stat().st_ino
    with held():
        os.chdir("/")
        removed.rename(removed.parent / "elsewhere")
    assert Path().stat().st_ino == here
    with held():
        os.chdir("/")
        (removed.parent / "elsewhere").rmdir()
    assert Path().stat().st_ino == here
    assert ending._shown(Path("/runs/one")) == "/runs/one"
    with pytest.raises(ConfigError, match="the current one was removed"):
        import_from_here("nothing:World", "nothing_of_that_name")


def test_a_command_in_a_folder_that_was_removed_ends_in_one_line(
    removed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    removed.rmdir()
    with pytest.raises(SystemExit) as stop:
        main(["resume", "run"])
    assert stop.value.code == 2
    said = capsys.readouterr().err
    assert said == "seedbed: the folder that this was started in has been removed: cd to another one\n"


@pytest.mark.usefixtures("odd_jax")
def test_a_run_from_python_is_of_float32_whatever_the_program_has_set(tmp_path: Path) -> None:
    train(tiny("toy:catch", tmp_path / "run", transport="inproc", **SMALL))
    ended_well(tmp_path)
    assert jax.numpy.arange(3.0).dtype == "float64"


def no_device(*_: Any) -> None:
    raise RuntimeError("Unable to initialize backend 'cuda':\n no GPU")


def test_too_few_files_end_in_one_line_before_anything_is_started(tmp_path: Path) -> None:
    words = ["sh", "-c", 'ulimit -n "$0" && exec "$@"', "20", SEEDBED, *RUN]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    said = "this process may have 20 files open at once, and a run needs 24 or more: ulimit -n 1024"
    assert done.stderr.splitlines()[-1] == f"seedbed: {said}"
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("actors", "most", "soft", "hard", "raised"),
    [
        (2, 10, 1024, 4096, None),  # enough
        (2, 1000, 1024, 9000, 4024),  # as many as are wanted
        (2, 1000, 1024, 2000, 2000),  # as many as are allowed
        (2, 1000, 1024, -1, 4024),
        (2, 1000, -1, -1, None),
        (500, 0, 1024, 2024, 2024),
    ],
)
def test_the_limit_of_files_is_raised_for_many_actors(
    actors: int, most: int, soft: int, hard: int, raised: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[tuple[int, int]] = []
    monkeypatch.setattr(limits.resource, "getrlimit", lambda _: (soft, hard))
    monkeypatch.setattr(limits.resource, "setrlimit", lambda _, both: given.append(both))
    surroundings.require_files(actors, most)
    assert given == ([] if raised is None else [(raised, hard)])


def test_too_few_files_for_the_actors_of_a_run_are_an_error_that_says_how_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits.resource, "getrlimit", lambda _: (1024, 1024))
    said = "may have 1024 files open at once, and a run with 500 actors needs 2024 or more: ulimit -n 2024"
    with pytest.raises(ConfigError, match=said):
        surroundings.require_files(500, 600)


def test_a_device_that_is_missing_is_named_with_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jax, "local_devices", no_device)
    before = jax.config.jax_platforms
    jax.config.update("jax_platforms", "cuda")
    try:
        with pytest.raises(ConfigError) as error:
            require_devices()
        told = next(finding for finding in findings() if finding[0].startswith("device"))
    finally:
        jax.config.update("jax_platforms", before)
    assert str(error.value) == (
        "JAX_PLATFORMS is cuda, and JAX can open no such device here (Unable to initialize backend 'cuda': no GPU); "
        "leave the variable out, or give JAX_PLATFORMS=cpu"
    )
    assert told == ("devices", "none", f"needed: {error.value}")


@pytest.mark.slow
def test_doctor_and_train_name_it_in_one_line(tmp_path: Path) -> None:
    for words, status in ((["doctor"], 1), (RUN, 2)):
        ended = surrounded(tmp_path, words, {"JAX_PLATFORMS": "nonsense"}, capture_output=True)
        assert ended.returncode == status
        said = (ended.stdout + ended.stderr).decode()
        assert "JAX_PLATFORMS is nonsense, and JAX can open no such device here" in said
        assert "Traceback" not in said
