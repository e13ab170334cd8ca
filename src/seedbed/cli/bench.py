"""``seedbed bench [ENV] …``: times every stage alone and the whole, and names the bottleneck."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, make_dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from seedbed import regular_files
from seedbed.cli.defaults import defaults_of, more_for, plain, typed
from seedbed.cli.parse import parse, print_line
from seedbed.config.settings import RunConfig
from seedbed.errors import ConfigError, RunFailed
from seedbed.installation import clone
from seedbed.launch.allocator import restart_tuned
from seedbed.metrics.pictures import drawn, require_picture

if TYPE_CHECKING:
    from seedbed.timing.stages import Stage

ABOUT = (
    "Time every stage alone and the whole run, with the settings of seedbed train; append the row to a file."
)


@dataclass(frozen=True)
class BenchFlags:
    """Settings of the timing."""

    seconds: float = 3.0
    """Length of a window of each stage, in seconds; the whole runs ten times as long."""
    results: str | None = None
    """File that the row is appended to; none: bench.jsonl or compare.jsonl beside a clone's others."""
    compare: tuple[str, ...] = ()
    """Architectures to compare instead, with networks of three sizes; or all, at equal frames."""
    serve: bool = False
    """Time the served path instead: simulated actors over the real carrier, a policy of no cost."""
    rounds: int = 1
    """Repetitions of each run of a comparison, in turn."""
    picture: str | None = None
    """PNG that a comparison is drawn to."""
    run: RunConfig = field(default_factory=RunConfig)


def run(arguments: list[str]) -> None:
    """Times, prints the table and appends the row."""
    restart_tuned()  # first: to read the flags takes JAX, whose import takes seconds
    flags = _read(arguments)
    # One word with commas is several, as in --compare seed,impala.
    archs = [arch for word in flags.compare for arch in word.split(",") if arch]
    _require_no_idle_flags(flags, archs)
    from seedbed.timing.stages import require_stages

    if flags.serve:
        from seedbed.timing.serving import require_served

        if archs:
            raise ConfigError("--serve and --compare are two benches: give one of them")
        require_served(flags.run)
    else:
        require_stages(flags.run)
    file = _results(flags, "compare" if archs else "bench")
    try:
        if "all" in archs and len(archs) > 1:
            raise ConfigError(f"--compare {','.join(archs)}: all is all of them, give it alone")
        if file is not None:
            file.parent.mkdir(parents=True, exist_ok=True)
            regular_files.open_to_append(file, links=True).close()
    except OSError as error:
        raise ConfigError(
            f"cannot write the results to {error.filename or file}: {error.strerror}; see --results"
        ) from error
    if flags.picture:
        require_picture(flags.picture)
    row = {"command": f"seedbed bench {' '.join(arguments)}".strip(), **_measured(flags, archs)}
    if file is None:
        print_line("the row is kept in no file: --results FILE appends it to one")
    else:
        _append(row, file)
        print_line(f"row appended to {file}")
    if flags.run.json:
        print_line(json.dumps(row))
    if flags.picture:
        from seedbed.timing.compare import draw

        drawn(partial(draw, row), flags.picture)
        print_line(f"drawn to {flags.picture}")


def _append(row: Mapping[str, Any], file: Path) -> None:
    """Appends a row; one that cannot be kept is told, since it took long."""
    try:
        with regular_files.open_to_append(file, links=True) as results:
            results.write((json.dumps(row) + "\n").encode())
    except OSError as error:
        print_line(json.dumps(row))
        raise ConfigError(
            f"cannot write the results to {file}: {error.strerror}; the row is above"
        ) from error


def _require_no_idle_flags(flags: BenchFlags, archs: list[str]) -> None:
    """Refuses flags of another bench than the one that is asked for."""
    compares = bool(archs) and archs != ["all"]
    idle = {"--picture": flags.picture is not None, "--rounds": flags.rounds != BenchFlags.rounds}
    if named := [flag for flag, given in idle.items() if given and not compares]:
        raise ConfigError(
            f"{' and '.join(named)}: for --compare with names of architectures alone; leave it out"
        )
    if archs == ["all"] and flags.seconds != BenchFlags.seconds:
        raise ConfigError(
            "--seconds has no meaning for --compare all, whose runs end by frames: leave it out"
        )


def _results(flags: BenchFlags, name: str) -> Path | None:
    """The file for the row; none if it is not asked for and this is no clone."""
    if flags.results is not None:
        return Path(flags.results)
    root = clone()
    return None if root is None else root / "benchmarks" / "results" / f"{name}.jsonl"


def _read(arguments: list[str]) -> BenchFlags:
    default = typed(defaults_of("bench", arguments, BenchFlags), arguments)
    kind = make_dataclass("BenchFlags", [("run", type(default), default)], bases=(BenchFlags,), frozen=True)
    kind.__doc__ = BenchFlags.__doc__
    given: BenchFlags = parse("bench", kind, arguments, kind(run=default), ABOUT + more_for(arguments))
    return replace(given, run=plain(given.run))


def _measured(flags: BenchFlags, archs: list[str]) -> dict[str, Any]:
    if flags.serve:
        return _serve(flags)
    if not archs:
        return _time_stages(flags)
    return _compare_all(flags) if archs == ["all"] else _compare(flags, archs)


def _time_stages(flags: BenchFlags) -> dict[str, Any]:
    from seedbed.timing.stages import bench

    print_line(f"{'stage':<18}{'steps/s':>12}   {'slowest to fastest':<24}how")
    row = bench(flags.run, flags.seconds, _show)
    print_line(
        f"bound {row['bound_steps_per_second']:,.0f} steps/s, efficiency {row['efficiency']:.2f}, "
        f"{row['frames_per_second']:,.0f} frames/s; most of the bound is taken by: {row['bottleneck']}"
    )
    return row


def _serve(flags: BenchFlags) -> dict[str, Any]:
    from seedbed.timing.serving import Measured, serve

    def say(found: Measured) -> None:
        print_line(
            f"{found.steps_per_second:,.0f} steps/s in {found.messages_per_second:,.0f} messages/s, {found.batch:.1f} "
            f"a batch; server {found.server_us_a_message:.1f} µs a message, {found.server_us_a_row:.2f} µs a row, "
            f"{found.cores:.2f} cores; actors {found.actor_us_a_message:.1f} µs a message"
        )
        held = found.bytes_an_actor
        memory = (
            "" if held is None else f", {found.descriptors_an_actor:.1f} files and {held / 1e3:,.0f} kB each"
        )
        print_line(
            f"wait p50 {found.wait_p50:.2f} ms, p99 {found.wait_p99:.2f} ms; {found.joins_per_second:,.0f} actors "
            f"joined a second{memory}"
        )

    return serve(flags.run, flags.seconds, say)


def _compare(flags: BenchFlags, archs: list[str]) -> dict[str, Any]:
    from seedbed.timing.compare import COLUMNS, Case, Found, compare, shown, table

    def line(name: str, cells: Iterable[str]) -> None:
        print_line(f"{name:<22}" + "".join(f"{cell:>15}" for cell in cells))

    def say(case: Case, found: Found | RunFailed) -> None:
        if isinstance(found, Found):
            line(case.name, shown(asdict(found)))
        else:
            print_line(f"{case.name:<22}{found}")

    line("run", [head for head, _ in COLUMNS.values()])
    row = compare(flags.run, archs, 10 * flags.seconds, flags.rounds, say)
    print_line(table(row))
    return row


def _compare_all(flags: BenchFlags) -> dict[str, Any]:
    from seedbed.timing.equal_frames import Pair, Ran, compare_all, shown, table

    def say(pair: Pair, ran: Ran | RunFailed) -> None:
        told = (
            f"{ran}" if isinstance(ran, RunFailed) else "".join(f"{cell:>13}" for cell in shown(asdict(ran)))
        )
        print_line(f"{pair.arch:<10}{pair.agent:<8}{told}")

    row = compare_all(flags.run, say)
    print_line(table(row))
    return row


def _show(stage: Stage) -> None:
    spread = f"{stage.low:,.0f} to {stage.high:,.0f}"
    print_line(f"{stage.name:<18}{stage.steps_per_second:>12,.0f}   {spread:<24}{stage.about}")
