"""Whole runs for tests: small configurations, learners in processes of their own, waiting on conditions."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import Future, wait
from pathlib import Path
from typing import Any, TypeVar

import psutil
import pytest

from seedbed.architectures.compatibility import why_not
from seedbed.config.resolve import configure, flat
from seedbed.config.settings import RunConfig
from seedbed.errors import ConfigError
from seedbed.launch.build import build_agent, build_spec
from seedbed.launch.folder import RunFolder

SEEDBED = str(Path(sys.executable).parent / "seedbed")
TESTS = Path(__file__).parent
PATIENCE = 240.0  # on a machine that is busy or slow; where it does not end, it never does
TINY: dict[str, Any] = {
    "preset": "none",
    "network": "mlp",
    "hidden": (16,),
    "actors": 2,
    "envs_per_actor": 4,
    "unroll_length": 5,
    "batch_size": 8,
    "video": False,
}
MUZERO: dict[str, Any] = {
    "agent": "muzero",
    "unroll_steps": 2,
    "n_step": 2,
    "simulations": 4,
    "model_size": 16,
    "state_size": 8,
    "target_period": 5,
    "replay_ratio": 1.0,
}
"""A model and a search that are made in a moment, and windows that short unrolls have room for."""
_WORLD = """
import pathlib, time, gymnasium, numpy
class World(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (3,), numpy.float32)
    action_space = gymnasium.spaces.Discrete(2)
    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.left = 20
        return self.observation_space.sample(), {}
    def step(self, action):
        time.sleep(%s)
        self.left -= 1
        return self.observation_space.sample(), 1.0, self.left == 0, False, {}
"""
SLEEPY = _WORLD % 0.01
"""A world that takes its time and no processor, so that its actors leave that to everybody else."""
GATED = _WORLD % "0 if pathlib.Path('open').exists() else 0.2"
"""A world in which 4,000 steps of two actors take longer than PATIENCE until the file ``open`` is there; then fast."""
Found = TypeVar("Found")


def thorough(*rows: Any) -> list[Any]:
    """Rows of a table that ``make thorough`` runs, and ``make test`` leaves to other rows of their kind."""
    return [
        pytest.param(*(row if isinstance(row, tuple) else (row,)), marks=pytest.mark.thorough) for row in rows
    ]


def shortened(table: Iterable[Any], first: Collection[Any]) -> list[Any]:
    """The rows of a table in their order: ``first`` are for ``make test``, the others for ``make thorough``."""
    rows = list(table)
    assert all(row in rows for row in first), f"{first} are not all in the table"
    return [one for row in rows for one in ([row] if row in first else thorough(row))]


def hear_interrupts() -> None:
    """Has Ctrl-C and the terminal's end heard again by this process and by all that it starts.

    Whatever is started in the background of a script, or by nohup, ignores them, and its processes would inherit that:
    what interrupts one would wait in vain. A handler is not inherited.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, lambda *_: None)


def private_surroundings(folder: Path) -> dict[str, str]:
    """Environment variables: what is compiled is kept in ``folder`` for all processes, and so is the user's key.

    Compiling is most of the time of a tiny run; and the key that runs are signed with is not the user's own.
    """
    return {
        "XDG_CONFIG_HOME": str(folder / "config"),
        "JAX_COMPILATION_CACHE_DIR": str(folder / "compiled"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }


def tiny(env: str, folder: Path, **settings: Any) -> RunConfig:
    """A run that compiles and trains in a second or two."""
    return configure(env, **{**_tiny_for(settings), "run_dir": str(folder), **settings})


def refusal(config: Callable[[], RunConfig]) -> str | None:
    """Why a run is refused, when its settings are read or when they are checked; None if it is not."""
    try:
        made = config()
        return why_not(made, build_agent(made, build_spec(made)))
    except ConfigError as error:
        return str(error)


def _tiny_for(settings: dict[str, Any]) -> dict[str, Any]:
    """Those of ``TINY`` that the architecture and the agent have."""
    known = flat(RunConfig(**{name: settings[name] for name in ("arch", "agent") if name in settings}))
    return {name: value for name, value in TINY.items() if name in known}


def flags(env: str, folder: str, **settings: Any) -> list[str]:
    """The same as arguments of ``seedbed train``."""
    words = ["train", env]
    for name, value in {**_tiny_for(settings), "run_dir": folder, **settings}.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            words.append(f"--{flag}" if value else f"--no-{flag}")
        else:
            words += [f"--{flag}", *(map(str, value) if isinstance(value, tuple) else [str(value)])]
    return words


def until(look: Callable[[], Found], what: str, timeout: float = PATIENCE) -> Found:
    """Looks again and again until it finds something true; fails with ``what`` was awaited."""
    deadline = time.monotonic() + timeout
    while not (found := look()):
        assert time.monotonic() < deadline, f"waited {timeout:.0f} s for {what}"
        time.sleep(0.02)
    return found


def simulated(devices: int) -> dict[str, str]:
    """The environment of a process that has several devices, simulated on the CPU."""
    flags = os.environ.get("XLA_FLAGS", "")
    return {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": f"{flags} --xla_force_host_platform_device_count={devices}"}


def on_four_devices(program: str, *arguments: str, beside: Path = TESTS) -> list[Any]:
    """What ``program`` prints as lines of ``told JSON``; it has four devices, and can import what is ``beside`` it."""
    path = os.pathsep.join([str(TESTS), str(beside), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **simulated(4), "PYTHONPATH": path},
    )
    assert done.returncode == 0, done.stderr
    told = [line.removeprefix("told ") for line in done.stdout.splitlines() if line.startswith("told ")]
    return [json.loads(line) for line in told]


class Command:
    """``seedbed …`` in a process group of its own, as on a terminal; killed with its children at the end.

    A ``PYTHONPATH`` comes before the tests' own, and takes nothing from it.
    """

    def __init__(self, *words: str, cwd: Path, command: list[str] | None = None, **environment: str) -> None:
        self.cwd = cwd
        self._output = cwd / f"output-{time.monotonic_ns()}"
        given = [environment.pop("PYTHONPATH", ""), str(TESTS), os.environ.get("PYTHONPATH", "")]
        path = os.pathsep.join(filter(None, given))
        with self._output.open("wb") as file:
            self.process = psutil.Popen(
                [*(command or [SEEDBED]), *words],
                cwd=cwd,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={**os.environ, "PYTHONPATH": path, "PYTHONFAULTHANDLER": "1", **environment},
            )
        self._seen: set[psutil.Process] = set()

    def __enter__(self) -> Command:
        return self

    def __exit__(self, *_: object) -> None:
        for process in [self.process, *self.family()]:
            if process.is_running():
                process.kill()
        self.process.wait()

    @property
    def output(self) -> str:
        """Everything it has printed."""
        return self._output.read_text(errors="replace")

    @property
    def last_line(self) -> str:
        """The last line that it has printed."""
        return self.output.rstrip().rsplit("\n", 1)[-1]

    def family(self) -> set[psutil.Process]:
        """Every descendant that was ever seen."""
        if self.process.is_running() and self.process.status() != psutil.STATUS_ZOMBIE:
            self._seen |= set(self.process.children(recursive=True))
        return self._seen

    def actors(self) -> list[psutil.Process]:
        """Its living actors."""
        return [process for process in self.family() if alive(process) and is_actor(process)]

    def interrupt(self) -> None:
        """Ctrl-C on a terminal: SIGINT to the whole group."""
        self.family()
        os.killpg(self.process.pid, signal.SIGINT)

    def wait(self, timeout: float = PATIENCE) -> int:
        """Its exit status; fails with what it printed, and with where its threads stand, if it does not end."""
        try:
            return int(self.process.wait(timeout))
        except psutil.TimeoutExpired:
            self.process.send_signal(signal.SIGABRT)
            psutil.wait_procs([self.process], 10)
            raise AssertionError(f"still running after {timeout:.0f} s:\n{self.output}") from None

    def says(self, text: str, timeout: float = PATIENCE) -> str:
        """Waits until it has printed ``text``; returns all of it."""

        def look() -> str:
            output = self.output
            if text in output:
                return output
            assert alive(self.process), f"it ended without {text!r}:\n{output}"
            return ""

        return until(look, f"{text!r} in {self.output!r}", timeout)

    def pasted(self) -> list[str]:
        """The words of ``seedbed`` that a learner advises for actors from elsewhere."""
        return (
            self.says("more actors: seedbed actor").split("more actors: seedbed ")[1].splitlines()[0].split()
        )


def alive(process: psutil.Process) -> bool:
    """Whether it runs (a zombie does not)."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def is_actor(process: psutil.Process) -> bool:
    """Whether it is an actor, or a worker or a replica."""
    task = re.compile(r"(actor|worker|replica)-\d+\.json$")
    return any(map(task.search, words_of(process)))


def servers(command: Command) -> list[psutil.Process]:
    """The living forward-pass servers of a command."""
    server = "forward-pass-server-"
    return [
        each for each in command.family() if alive(each) and any(server in word for word in words_of(each))
    ]


def words_of(process: psutil.Process) -> list[str]:
    """Its command line; empty if it is gone."""
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def rows(folder: Path) -> list[dict[str, Any]]:
    """The complete rows of ``metrics.jsonl`` so far."""
    file = folder / "metrics.jsonl"
    lines = file.read_text().split("\n")[:-1] if file.exists() else []
    return [json.loads(line) for line in lines]


def learned(folder: Path) -> int:
    """How many updates its rows tell of, once they tell of some."""
    return until(lambda: max([0, *(row["updates"] for row in rows(folder))]), f"an update in {folder}")


def learns_on(folder: Path, what: str = "more updates") -> None:
    """Waits until its rows tell of more updates than now."""
    before = learned(folder)
    until(lambda: learned(folder) > before, what)


def summary(folder: Path) -> dict[str, Any]:
    """``summary.json``."""
    return dict(json.loads((folder / "summary.json").read_text()))


def checkpoints(folder: Path) -> list[Path]:
    """Finished checkpoints, oldest first."""
    place = folder / "checkpoints"
    return sorted(path for path in place.glob("[0-9]*")) if place.exists() else []


def balanced(values: dict[str, Any]) -> bool:
    """Whether every step that was received is somewhere."""
    return values["steps_received"] == sum(
        values[f"steps_{name}"] for name in ("trained", "queued", "open", "dropped")
    )


def sockets(folder: Path) -> list[Path]:
    """Socket files of a run: its own, and those of its instances that listen."""
    own = Path(RunFolder(folder).socket())
    return sorted(own.parent.glob(f"{own.name}*"))


PLACED = {
    "pipe": "it is a pipe",
    "device": "it is a device|it is a link",
    "link": "it is a link",
    "folder": "it is a folder",
}
"""Kinds of things that a stranger may put into the place of a file, and the words of the refusal."""


def placed(kind: str, path: Path) -> None:
    """Puts something of a kind into the place of a file; a link leads to ``aim``, which holds ``mine``, beside it."""
    path.unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "device":
        path.symlink_to("/dev/zero")  # a device of one's own takes rights that tests may lack
    else:
        (path.parent / "aim").write_text("mine")
        path.symlink_to("aim")


def at_once(function: Callable[[], Found], patience: float = 30.0) -> Found:
    """What a function returns or raises; fails if it waits for somebody, as for the other end of a pipe."""
    outcome: Future[Found] = Future()

    def run() -> None:
        try:
            outcome.set_result(function())
        except BaseException as error:
            outcome.set_exception(error)

    # What waits for ever cannot be stopped, and a daemon does not keep the tests from ending.
    threading.Thread(target=run, daemon=True).start()
    assert wait([outcome], patience).done, "it waits"
    return outcome.result()
