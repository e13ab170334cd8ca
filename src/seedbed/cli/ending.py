"""The end of a run on the terminal: its result, its folder, and the next command to type."""

from __future__ import annotations

import json
import shlex
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from seedbed.cli.status import Status
from seedbed.config.settings import RunConfig
from seedbed.envs.foreign import is_foreign
from seedbed.errors import ExecuteAgain, cause_of
from seedbed.launch.signals import Terminated, ending_as_by_ctrl_c
from seedbed.metrics.reports import Summary, many_skipped
from seedbed.metrics.say import say
from seedbed.regular_files import current_folder


def status_of(summary: Summary, config: RunConfig) -> Status:
    """Returns the exit status of a run that ended as it should.

    A run that was interrupted is to be executed again if an engine ended it (by SIGTERM) or began it (with
    ``--begin-or-resume``), and if its terminal was closed; Ctrl-C at a terminal is an end like others.
    """
    if summary.stopped_because != "interrupted":
        return Status.OVER
    unasked = summary.more.get("interrupted_by") in ("SIGTERM", "SIGHUP")
    return Status.EXECUTE_AGAIN if unasked or config.begin_or_resume else Status.OVER


@contextmanager
def executed_again() -> Iterator[None]:
    """Raises :class:`ExecuteAgain` by SIGTERM and by a closed terminal while a run does not train yet."""
    try:
        with ending_as_by_ctrl_c():
            yield
    except Terminated as error:
        raise ExecuteAgain("interrupted while nothing trained: the same command goes on") from error


def report(summary: Summary, config: RunConfig) -> Status:
    """Makes the video and prints the summary; returns the exit status, see :func:`status_of`."""
    values = summary.to_json()
    folder = _shown(Path(values["run_dir"]))
    mean, best = values["mean_return"], values["best_mean_return"]
    say(f"stopped: {summary.stopped_because}")
    say(
        f"  {summary.agent_steps:,} agent steps, {summary.env_frames:,} frames, {summary.seconds:.0f} s of training, "
        f"{summary.agent_steps_per_second or 0:,.0f} steps/s; "
        f"mean return {_number(mean)}, best {_number(best)}, {summary.episodes:,} episodes"
    )
    if line := many_skipped(values["skipped_updates"], summary.weights_version):
        say(f"  {line}")
    for line in _side_by_side(values):
        say(f"  {line}")
    host = config.cluster.host
    if config.video and not host and summary.stopped_because != "interrupted":
        _video(values["run_dir"])
    say(f"  curve {folder}/curve.png   checkpoints {folder}/checkpoints   metrics {folder}/metrics.jsonl")
    over = summary.stopped_because != "interrupted"
    say(f"next: {_seedbed()} {_next(config, folder, over)}{_consent(Path(values['run_dir']))}")
    if config.json:
        say(json.dumps(values))
    return status_of(summary, config)


def _next(config: RunConfig, folder: str, over: bool) -> str:
    """Returns the next command: one that plays, or one that goes on."""
    if not over and (host := config.cluster.host):
        return f"resume {shlex.quote(str(Path(folder).parent.parent))} --host {host}"
    if not over:
        return f"resume {shlex.quote(folder)}"
    if is_foreign(config.env):  # another program steps it
        return f"serve {shlex.quote(folder)} --listen unix:{shlex.quote(folder)}/policy.sock"
    return f"eval {shlex.quote(folder)}"


def _consent(folder: Path) -> str:
    """Returns the flag with which alone the run is gone on with, where there is no key to know it again by."""
    from seedbed.launch.folder import RunFolder

    names = sorted(RunFolder(folder).unknown_names())
    return " --trust " + " ".join(map(shlex.quote, names)) if names else ""


def _seedbed() -> str:
    """Returns the word that calls ``seedbed`` here: the name alone only if the shell finds this very command by it."""
    called, found = Path(sys.argv[0]), shutil.which("seedbed")
    if called.name != "seedbed" or (found is not None and called.exists() and called.samefile(found)):
        return "seedbed"
    return shlex.quote(str(called))


def _side_by_side(values: Mapping[str, Any]) -> Iterator[str]:
    """Yields lines about the agents that were trained side by side; none if there was one."""
    if "variants" not in values:
        return
    agents = values["variants"]
    speed = len(agents) * (values["agent_steps_per_second"] or 0)
    yield f"{len(agents)} agents side by side: the numbers above are of one (means); {speed:,.0f} steps/s together"
    for name, found in values["compared"].items():
        what = f"{name}: " if name else ""
        if found["count"] == 1:
            yield f"{what}mean return {found['interquartile_mean']:.4g}"
        else:
            yield (
                f"{what}interquartile mean {found['interquartile_mean']:.4g}, "
                f"95% interval {found['low']:.4g} to {found['high']:.4g} over {found['count']} seeds"
            )
    best = agents[values["best_variant"]]
    now = ", ".join(f"{name} {value:.4g}" for name, value in best.get("values", {}).items())
    yield (
        f"the checkpoint plays the best: {best['agent']}{now and f', now {now}'}, "
        f"mean return {_number(best.get('mean_return'))}"
    )


def _video(folder: str) -> None:
    from seedbed.evaluation.player import record

    try:
        with ending_as_by_ctrl_c():
            say(f"  video {_shown(record(folder, trust=None))}")
    except Terminated:
        say("  no video: interrupted")
    except Exception as error:
        # The training is done and saved: an environment that cannot be drawn does not make the run a failure.
        say(f"  no video: {cause_of(error)}")


def _shown(path: Path) -> str:
    """The path as it is shortest to type here."""
    here = current_folder()
    return str(path.relative_to(here) if here is not None and path.is_relative_to(here) else path)


def _number(value: float | None) -> str:
    return "none" if value is None else f"{value:.4g}"
