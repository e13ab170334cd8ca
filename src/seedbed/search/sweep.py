"""A sweep: Optuna proposes settings, runs try them, and runs that fall behind the others are stopped early.

::

    sweep folder
    ├── sweep.json          settings of all runs, and the space
    ├── study.log           Optuna's journal: every proposal, report and result; what goes on after a break
    ├── 0000/ 0001/ …       ordinary run folders
    ├── 0000.log …          the lines that each has printed
    ├── trials.md           the table
    └── sweep.png           the picture

Alternatives weighed: a search of our own (a kept one has better samplers), one Optuna worker in each run (runs would be
no ordinary runs, and all would write the journal), whole populations in one Anakin program (``--sweep`` does that for a
grid of numbers; a program cannot stop some of its agents early, nor give their share of time to the others).
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from seedbed import limits, regular_files
from seedbed.config import resolve
from seedbed.config.settings import RunConfig
from seedbed.errors import ConfigError, RunFailed
from seedbed.installation import extra_line
from seedbed.launch.folder import RunFolder
from seedbed.launch.signals import Interruption, heeding_signals
from seedbed.metrics.console import Budget
from seedbed.search.score import RUNGS, rung, score
from seedbed.search.space import Axis, axes, combinations, described
from seedbed.watching.rows import GrowingRows

if TYPE_CHECKING:
    from optuna.study import Study
    from optuna.trial import Trial

By = Literal["halving", "median", "none", "all"]
_TRIALS = 32
_LOOK_SECONDS = 0.5
_SAVE_SECONDS = 120.0
"""Seconds in which an interrupted run has to save and end."""
_FAILURES = 3
"""Runs that fail, while none succeeds, before a sweep ends."""
_WARMUP = RUNGS // 4
"""Parts of the budget that every run has under the median rule: the beginning of a curve tells little."""
_NOT_OF_THE_SPACE = ("run_dir", "json", "video", "begin_or_resume")


@dataclass(frozen=True)
class Plan:
    """A sweep that is asked for.

    Attributes:
      config: settings of all runs, over which the values of each trial come.
      axes: settings that differ, and their values.
      trials: number of runs.
      by: rule by which runs are stopped early: ``halving`` (of the runs that came as far, the better half goes on,
        after 1, 2, 4 and 8 sixteenths of the budget), ``median`` (its best score so far is below the median, at that
        part, of the runs that came to their end; after each sixteenth from a quarter on), ``none``, or ``all``: every
        combination of the values once, each to its end.
      at_once: number of runs at a time.
      folder: folder of the sweep.
    """

    config: RunConfig
    axes: tuple[Axis, ...]
    trials: int
    by: By
    at_once: int
    folder: Path

    @property
    def budget(self) -> Budget:
        """Limits of each run."""
        stop = self.config.stop
        return Budget(stop.frames, None if stop.minutes is None else 60 * stop.minutes, stop.until_return)


@dataclass(frozen=True)
class Tried:
    """A trial of a sweep.

    Attributes:
      number: number of the trial, and of its folder.
      values: values of the settings that differ.
      state: ``finished``, ``stopped`` (early), ``failed`` or ``open``.
      score: score over its budget, or over the part that it had; nan if there is none.
      part: share of its budget at which it was stopped; 1 otherwise.
    """

    number: int
    values: Mapping[str, Any]
    state: str
    score: float
    part: float


@dataclass(frozen=True)
class Result:
    """The result of a sweep, or of its part so far.

    Attributes:
      tried: trials, best first; finished ones before others.
      interrupted: whether it was interrupted: the same command goes on.
      folder: folder of the sweep.
    """

    tried: tuple[Tried, ...]
    interrupted: bool
    folder: Path


def plan(
    config: RunConfig,
    over: Sequence[str],
    *,
    trials: int | None = None,
    by: By = "median",
    at_once: int | None = None,
) -> Plan:
    """Plans a sweep; starts nothing.

    Args:
      config: settings of all runs; its ``run_dir`` is the folder of the sweep, None for one in ``runs`` that is named
        after environment, agent and space, so that the same sweep finds it again.
      over: ``name=values`` of each setting that differs, see :mod:`seedbed.search.space`.
      trials: number of runs; None: 32, or all combinations if these are tried, which are the most then.
      by: rule by which runs are stopped early, see :class:`Plan`.
      at_once: number of runs at a time; None: as many as the cores that a run declares allow.

    Raises:
      ConfigError: a setting or a value is impossible, runs have no limit, or Optuna is not installed.
    """
    try:
        import optuna  # noqa: F401
    except ImportError as error:
        raise ConfigError(f"a sweep needs Optuna ({error}): {extra_line('sweep')}") from error
    for name, number in (("trials", trials), ("at_once", at_once)):
        if number is not None and number < 1:
            raise ConfigError(f"{name} is {number}, and has to be 1 or more")
    if config.store is not None:
        raise ConfigError(f"store is {config.store}, which takes one run: leave --store out of a sweep")
    if config.stop.frames is None and config.stop.minutes is None:
        raise ConfigError(
            "the runs of a sweep need a limit, of which they may spend a part: give --frames or --minutes"
        )
    space = axes(config, over)
    cores = _require_fit(config, space)
    made = resolve.replace(config, video=False, json=False)
    folder = Path(config.run_dir) if config.run_dir else _folder_of(made, space)
    if by == "all":
        every = len(combinations(space))
        trials = min(trials or every, every)
    return Plan(made, space, trials or _TRIALS, by, at_once or max(1, int(limits.cores() / cores)), folder)


def _require_fit(config: RunConfig, space: Sequence[Axis]) -> float:
    """Refuses ends of axes with which no run could start; returns the cores that a run declares on this machine."""
    from seedbed.architectures.compatibility import load_architecture, require_fit
    from seedbed.launch.build import build_agent, build_spec

    spec = build_spec(config)
    cases = [resolve.replace(config, **{axis.name: value}) for axis in space for value in axis.ends]
    for case in [config, *cases]:
        agent = build_agent(case, spec)
        require_fit(case, agent)
    architecture = load_architecture(config.arch)
    program = architecture.program(architecture.place(config), build_agent(config, spec), spec)
    # Of a run on a cluster, the head and those that others dial are on this machine.
    here = [role for role in program.roles if config.on == "here" or role.entry is None or role.listens]
    return max(sum(role.count * role.needs.cores for role in here), 0.1)


def _record(config: RunConfig, space: Sequence[Axis]) -> dict[str, Any]:
    """The part of a plan that stays the same when a sweep goes on."""
    settings = resolve.to_json(config)
    return {
        "settings": {name: settings[name] for name in settings if name not in _NOT_OF_THE_SPACE},
        "axes": [asdict(axis) for axis in space],
    }


def _folder_of(config: RunConfig, space: Sequence[Axis]) -> Path:
    digest = sha256(json.dumps(_record(config, space), sort_keys=True).encode()).hexdigest()[:8]
    env = "".join(letter if letter.isalnum() or letter in ".-" else "-" for letter in config.env)
    return Path("runs") / f"sweep-{env}-{config.arch}-{config.agent}-{digest}"


# -- the sweep ---------------------------------------------------------------------------------------------


def sweep(planned: Plan, say: Callable[[str], object]) -> Result:
    """Runs the trials that are missing, and returns all that there are; Ctrl-C saves the open ones.

    Args:
      planned: the plan; the folder may hold a part of the same sweep.
      say: callback for each line for the user.

    Raises:
      ConfigError: the folder holds another sweep, or another process sweeps in it.
      RunFailed: the first runs have all failed.
    """
    with _held(planned):
        study = _study(planned)
        interrupted = Interruption()
        with heeding_signals(interrupted):
            _Sweep(planned, study, interrupted, say).run()
        return Result(_tried(study), interrupted.is_set(), planned.folder)


@contextlib.contextmanager
def _held(planned: Plan) -> Iterator[None]:
    """Locks the folder, in which the plan is written, or is the one that stands there."""
    folder, written = planned.folder, {**_record(planned.config, planned.axes), "by": planned.by}
    try:
        if RunFolder(folder).begun:
            raise ConfigError(f"{folder} holds a run: give another --run-dir for a sweep")
        folder.mkdir(parents=True, exist_ok=True)
        with regular_files.open_to_append(folder / "lock") as lock:
            try:
                regular_files.lock(lock)
            except BlockingIOError as error:
                raise ConfigError(f"another process sweeps in {folder}: wait for it or stop it") from error
            file = folder / "sweep.json"
            before = regular_files.read_object(file) if os.path.lexists(file) else None
            if before is not None and (changed := _changed(before, json.loads(json.dumps(written)))):
                raise ConfigError(
                    f"{folder} holds another sweep, with other {', '.join(changed)}: give those of that one, or "
                    "another --run-dir"
                )
            if before is None or "by" not in before:
                regular_files.write_whole(file, json.dumps(written, indent=2) + "\n")
            yield
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"cannot sweep in {folder}: {reason}") from error


def _changed(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    old, new = before.get("settings", {}), now["settings"]
    names = [name for name in {**old, **new} if old.get(name) != new.get(name)]
    # A trial that another rule has stopped early would count as tried. Earlier versions did not write the rule down.
    rule = ["--by"] if before.get("by", now["by"]) != now["by"] else []
    return names + (["--over"] if before.get("axes") != now["axes"] else []) + rule


def _study(planned: Plan) -> Study:
    import optuna
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    file = str(planned.folder / "study.log")
    _release(file)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # constant_liar is marked as experimental for years
        storage = JournalStorage(JournalFileBackend(file, lock_obj=JournalFileOpenLock(file)))
        study = optuna.create_study(
            study_name="sweep", storage=storage, direction="maximize", load_if_exists=True
        )
        # Another seed after each break, or it would propose the same values again.
        study.sampler = optuna.samplers.TPESampler(
            seed=planned.config.seed + len(study.trials), constant_liar=planned.at_once > 1
        )
    study.pruner = {
        "median": lambda: optuna.pruners.MedianPruner(n_startup_trials=4, n_warmup_steps=_WARMUP),
        "halving": lambda: optuna.pruners.SuccessiveHalvingPruner(min_resource=1, reduction_factor=2),
        "none": optuna.pruners.NopPruner,
        "all": optuna.pruners.NopPruner,
    }[planned.by]()
    return study


def _release(file: str) -> None:
    """Removes the lock of a journal whose process was killed; this one holds the folder alone."""
    Path(f"{file}.lock").unlink(missing_ok=True)


@dataclass
class _Running:
    """A trial whose process runs."""

    trial: Trial
    process: subprocess.Popen[bytes]
    source: GrowingRows
    rows: list[dict[str, float]] = field(default_factory=list)
    reported: int = 0
    stopped: bool = False


class _Sweep:
    """The trials of a sweep while it runs; used by one thread."""

    def __init__(
        self, planned: Plan, study: Study, interrupted: Interruption, say: Callable[[str], object]
    ) -> None:
        self._plan = planned
        self._study = study
        self._interrupted = interrupted
        self._say = say
        self._running: list[_Running] = []
        self._failed = 0

    def run(self) -> None:
        """Runs until all trials are over, or it is interrupted."""
        from optuna.trial import Trial, TrialState

        if self._plan.by == "all":
            # Compared here: Optuna takes numbers for equal that differ in the sixth digit.
            known = [
                {**each.system_attrs.get("fixed_params", {}), **each.params} for each in self._study.trials
            ]
            for values in combinations(self._plan.axes):
                if values not in known:
                    self._study.enqueue_trial(values)
        opened = [each for each in self._study.trials if each.state == TrialState.RUNNING]
        waiting = [Trial(self._study, each._trial_id) for each in opened]
        try:
            while not self._interrupted.is_set():
                while len(self._running) < self._plan.at_once and (trial := self._next(waiting)) is not None:
                    self._begin(trial)
                if not self._running:
                    return
                self._interrupted.wait(_LOOK_SECONDS)
                self._look()
        finally:
            self._end()

    def _next(self, waiting: list[Trial]) -> Trial | None:
        if waiting:
            return waiting.pop(0)
        from optuna.trial import TrialState

        begun = sum(each.state != TrialState.WAITING for each in self._study.trials)
        if begun >= self._plan.trials:
            return None
        return self._study.ask({axis.name: axis.distribution() for axis in self._plan.axes})

    def _begin(self, trial: Trial) -> None:
        """Starts the run of a trial; one whose values do not go together has failed, and costs nothing."""
        folder = RunFolder(self._plan.folder / f"{trial.number:04}")
        own = {"run_dir": str(folder.given), "begin_or_resume": True}
        try:
            config = resolve.replace(self._plan.config, **trial.params, **own)
        except ConfigError as error:
            from optuna.trial import TrialState

            self._study.tell(trial, state=TrialState.FAIL)
            self._say(f"trial {trial.number} cannot be run with {described(trial.params)}: {error}")
        else:
            self._running.append(self._start(trial, folder, config))

    def _start(self, trial: Trial, folder: RunFolder, config: RunConfig) -> _Running:
        self._say(
            f"trial {trial.number} {'goes on' if folder.begun else 'begins'}: {described(trial.params)}"
        )
        command = [sys.executable, "-m", "seedbed.search.trial", json.dumps(resolve.to_json(config))]
        with regular_files.open_to_append(self._plan.folder / f"{trial.number:04}.log") as log:
            # In a session of its own: Ctrl-C on the terminal reaches the sweep alone, which asks each run to end.
            process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=log, stderr=log, start_new_session=True
            )
        reported = max(self._study.trials[trial.number].intermediate_values, default=0)
        return _Running(trial, process, GrowingRows(folder.metrics), reported=reported)

    def _look(self) -> None:
        for each in list(self._running):
            ended = each.process.poll()
            each.rows += each.source.new()
            if ended is None:
                self._stop_if_behind(each)
            else:
                self._running.remove(each)
                self._tell(each, ended)

    def _stop_if_behind(self, each: _Running) -> None:
        """Reports the parts of the budget that are spent, and stops a run that has fallen behind at one of them."""
        spent = rung(each.rows[-1], self._plan.budget) if each.rows else 0
        while each.reported < min(spent, RUNGS - 1) and not each.stopped:
            each.reported += 1
            value = score(each.rows, self._plan.budget, each.reported / RUNGS)
            if math.isnan(value):
                continue
            each.trial.report(value, each.reported)
            if each.trial.should_prune():
                each.stopped = True
                each.process.send_signal(signal.SIGINT)

    def _tell(self, each: _Running, status: int, *, ending: bool = False) -> None:
        """Tells the study how a run ended; nothing of one that is open when the sweep ends: it goes on later."""
        from optuna.trial import TrialState

        trial, budget = each.trial, self._plan.budget
        _close(each.process)
        if each.stopped:
            self._study.tell(trial, state=TrialState.PRUNED)
            value = score(each.rows, budget, each.reported / RUNGS)
            self._say(
                f"trial {trial.number} stopped after {each.reported / RUNGS:.0%}: score {value:.4g} there"
            )
        elif (
            status == 0 and not math.isnan(value := score(each.rows, budget)) and self._is_over(trial.number)
        ):
            self._study.tell(trial, value)
            self._say(f"trial {trial.number} finished: score {value:.4g}, best {self._study.best_value:.4g}")
        elif not ending:
            self._study.tell(trial, state=TrialState.FAIL)
            self._say(f"trial {trial.number} failed: {self._last_words(trial.number)}")
            self._failed += 1
            states = {one.state for one in self._study.trials}
            if self._failed >= _FAILURES and not states & {TrialState.COMPLETE, TrialState.PRUNED}:
                raise RunFailed(
                    f"the first {self._failed} runs of the sweep have all failed: see {self._plan.folder}"
                )

    def _is_over(self, number: int) -> bool:
        try:
            summary = regular_files.read_object(self._plan.folder / f"{number:04}" / "summary.json")
        except (OSError, ValueError):
            return False
        return not str(summary.get("stopped_because", "")).startswith(("interrupted", "failed"))

    def _last_words(self, number: int) -> str:
        log = self._plan.folder / f"{number:04}.log"
        try:
            lines = regular_files.read(log).decode(errors="replace").strip().splitlines()
        except OSError:
            lines = []
        return f"{lines[-1] if lines else 'it said nothing'} (log: {log})"

    def _end(self) -> None:
        """Has open runs save and end, and kills the ones that do not."""
        if self._running:
            self._say(f"saving {len(self._running)} open runs; the same command goes on")
        for each in self._running:
            each.process.send_signal(signal.SIGINT)
        deadline = time.monotonic() + _SAVE_SECONDS
        for each in self._running:
            try:
                each.process.wait(max(0.1, deadline - time.monotonic()))
            except (subprocess.TimeoutExpired, KeyboardInterrupt):
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(each.process.pid, signal.SIGKILL)
                each.process.wait()
            each.rows += each.source.new()
            self._tell(each, each.process.returncode, ending=True)
        self._running = []


def _close(process: subprocess.Popen[bytes]) -> None:
    if process.stdin is not None:
        with contextlib.suppress(OSError):
            process.stdin.close()


def _tried(study: Study) -> tuple[Tried, ...]:
    """All trials, best first; the ones that were stopped come after the finished ones, the longer ones first."""
    from optuna.trial import TrialState

    words = {TrialState.COMPLETE: "finished", TrialState.PRUNED: "stopped", TrialState.FAIL: "failed"}
    found = []
    for each in study.trials:
        if each.state == TrialState.WAITING:
            continue  # not begun
        reports = each.intermediate_values
        last = max(reports, default=0)
        value = each.value if each.value is not None else reports.get(last, math.nan)
        state = words.get(each.state, "open")
        found.append(
            Tried(each.number, each.params, state, value, last / RUNGS if state != "finished" else 1.0)
        )
    order = ["finished", "stopped", "open", "failed"]
    found.sort(
        key=lambda one: (order.index(one.state), -one.part, -one.score if one.score == one.score else 0.0)
    )
    return tuple(replace(one, values=dict(one.values)) for one in found)
