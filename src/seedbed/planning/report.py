"""Plans as text and as drawings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from seedbed.planning.plan import Plan

_UNITS = ((1e9, "GB/s"), (1e6, "MB/s"), (1e3, "kB/s"))


def lines(plan: Plan) -> Iterator[str]:
    """Yields a plan as people read it."""
    hosts = f"{plan.hosts} hosts, each " if plan.hosts > 1 else ""
    yield f"{hosts}{' and '.join(machine.name for machine in plan.machines)}: " + ", ".join(
        f"{count} {name}{'s' * (count > 1)}" for name, count in plan.instances.items()
    )
    yield f"costs: {plan.source}"
    yield ""
    yield f"{plan.steps_per_second:>14,.0f}  agent steps/s"
    yield f"{plan.frames_per_second:>14,.0f}  environment frames/s"
    yield f"{plan.updates_per_second:>14,.1f}  updates/s"
    yield f"{'of a replay' if plan.lag is None else f'{plan.lag:.1f}':>14}  lag, updates"
    yield f"{plan.batch_fill:>14.2f}  batch fill"
    yield f"{plan.action_wait:>14.2f}  ms from an observation to its action"
    if plan.price_per_hour:
        yield f"{plan.price_of_billion_frames:>14,.2f}  price of 10^9 frames, at {plan.price_per_hour:g} an hour"
    yield ""
    yield f"{'resource':<32} {'use':>5} {'full at steps/s':>16}"
    for each in plan.resources:
        limit = f"{each.limit:,.0f}" if each.use >= 0.005 else "-"
        yield f"{each.name:<32} {each.use:>5.2f} {limit:>16}{'  <- the bound' if each.name == plan.bound else ''}"
    for flow in plan.flows:
        yield f"{f'{flow.source} to {flow.to}':<32} {shown(flow.bytes_per_second):>22}"
    yield ""
    if plan.bound is None:
        yield "nothing is full: lanes wait for one another, for batches and for updates"
    yield from (f"{move.change}: {move.times - 1:+.0%}" for move in plan.moves)
    if not plan.moves:
        yield "no single change of machines or actors makes it faster by 3% or more"
    yield from (f"assumed: {each}" for each in plan.assumed)


def shown(nbytes: float) -> str:
    """Returns bytes a second in a readable unit."""
    return next(
        (f"{nbytes / size:,.1f} {unit}" for size, unit in _UNITS if nbytes >= size), f"{nbytes:,.0f} B/s"
    )


_HEADS = ("steps/s", "frames/s", "lag", "fill", "wait ms", "10^9 frames", "bound")


def compared(plans: Mapping[str, Plan | str]) -> Iterator[str]:
    """Yields several plans as a table, the fastest first; an architecture without one has its reason.

    Args:
      plans: plan, or the reason why there is none, by the name of the architecture and the agent.
    """
    yield f"{'run':<20}" + "".join(f"{head:>13}" for head in _HEADS[:-1]) + f"  {_HEADS[-1]}"
    made = {name: plan for name, plan in plans.items() if isinstance(plan, Plan)}
    for name, plan in sorted(made.items(), key=lambda item: -item[1].steps_per_second):
        cells = (
            f"{plan.steps_per_second:,.0f}",
            f"{plan.frames_per_second:,.0f}",
            "-" if plan.lag is None else f"{plan.lag:.1f}",
            f"{plan.batch_fill:.2f}",
            f"{plan.action_wait:.2f}",
            f"{plan.price_of_billion_frames:,.2f}" if plan.price_per_hour else "-",
        )
        yield (
            f"{name:<20}" + "".join(f"{cell:>13}" for cell in cells) + f"  {plan.bound or 'nothing is full'}"
        )
    yield from (f"{name:<20}{plan}" for name, plan in plans.items() if isinstance(plan, str))


def draw(plans: Mapping[str, Plan], picture: Path) -> None:
    """Draws plans as a PNG or SVG, by the file's name: the use of every resource, a panel for each plan."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    most = max(len(plan.resources) for plan in plans.values())
    figure = Figure(figsize=(9, len(plans) * (1.0 + 0.3 * most)), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(len(plans), 1, squeeze=False)[:, 0]
    for axes, (name, plan) in zip(panels, plans.items(), strict=True):
        resources = plan.resources[::-1]
        bars = axes.barh(
            [each.name for each in resources],
            [each.use for each in resources],
            color=["tab:red" if each.name == plan.bound else "tab:blue" for each in resources],
        )
        axes.bar_label(bars, [f"{each.use:.2f}" for each in resources], padding=3)
        axes.set_xlim(0, 1.1)
        axes.set_title(
            f"{name}: {plan.steps_per_second:,.0f} steps/s, {plan.frames_per_second:,.0f} frames/s"
        )
    panels[-1].set_xlabel("share of the time in which it works; red: the bound")
    picture.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(picture, dpi=110)
