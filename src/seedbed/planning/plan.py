"""Plans: speed, bound and price of a run on some machines, and the changes that move the bound."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from seedbed.architectures.program import Program
from seedbed.errors import ConfigError
from seedbed.planning.costs import Costs, Served
from seedbed.planning.machines import Machine
from seedbed.planning.simulation import Simulation

_FULL = 0.9
"""Use from which on a resource is the bound of a run."""
_WORTH_TELLING = 1.03
_MOST_TIMES = 4096
_BILLION = 1e9


@dataclass(frozen=True)
class Resource:
    """One resource of a run, or the mean of several alike.

    Attributes:
      name: name for people.
      use: share of the time in which it works for a stage.
      limit: agent steps a second at which it would be full.
    """

    name: str
    use: float
    limit: float


@dataclass(frozen=True)
class Move:
    """A change of the machines or of the run.

    Attributes:
      change: the change, for people.
      times: steps a second with the change, as a multiple of the present ones.
    """

    change: str
    times: float


@dataclass(frozen=True)
class Flow:
    """The bytes a second in one direction between two roles."""

    source: str
    to: str
    bytes_per_second: float


@dataclass(frozen=True)
class Plan:
    """The prediction of a run.

    Attributes:
      steps_per_second: agent steps, of all hosts.
      frames_per_second: environment frames, of all hosts.
      updates_per_second: updates of the weights.
      lag: mean updates between the weights that acted and the weights that are trained; None where batches are samples
        from a replay, whose age is its own.
      batch_fill: mean size of inference batches as a share of full ones.
      action_wait: mean time in ms from an observation to its action.
      resources: use of every resource of one host, the fullest first.
      bound: name of the resource that is the bound; None if none is full, and lanes wait for one another.
      flows: traffic of one host.
      moves: changes that make the run faster, the best first.
      price_per_hour: price of all machines.
      price_of_billion_frames: price of 10^9 environment frames.
      machines: machine of the head, and the others if there are any.
      hosts: number of hosts.
      instances: instances of each role on one host.
      assumed: everything in the prediction that was not timed.
      source: machine on which the costs were timed.
    """

    steps_per_second: float
    frames_per_second: float
    updates_per_second: float
    lag: float | None
    batch_fill: float
    action_wait: float
    resources: tuple[Resource, ...]
    bound: str | None
    flows: tuple[Flow, ...]
    moves: tuple[Move, ...]
    price_per_hour: float
    price_of_billion_frames: float
    machines: tuple[Machine, ...]
    hosts: int
    instances: Mapping[str, int]
    assumed: tuple[str, ...]
    source: str

    def to_json(self) -> dict[str, Any]:
        """Returns the plan as JSON values."""
        return asdict(self)


@dataclass(frozen=True)
class Request:
    """The run and the machines that are planned.

    Attributes:
      program: roles of the run.
      costs: costs of its stages.
      machines: machine of the head, and the machines of all other processes if they are others.
      carrier: carrier between processes of one machine.
      frames_per_step: environment frames of an agent step.
    """

    program: Program
    costs: Costs
    machines: tuple[Machine, ...]
    carrier: str = "shm"
    frames_per_step: float = 1.0


def plan(request: Request, doubled: Program | None = None, *, moves: bool = True) -> Plan:
    """Predicts a run.

    Args:
      request: the run and the machines.
      doubled: the same run with twice the actors; None: it is not tried out.
      moves: whether changes are tried out, which takes most of the time.

    Raises:
      ConfigError: the run cannot be planned, for the reason in the message.
    """
    _require_devices(request)
    program, hosts = request.program, request.program.hosts
    run = Simulation(program, request.costs, request.machines, request.carrier)
    found = run.run()
    # The stages alone; a run attains a share of that, and so keeps its resources busy for a share of the time.
    simulated = found.steps_per_second
    share = request.costs.attained if _is_timed(request) else 1.0
    rate = share * simulated
    full = sorted(found.use.items(), key=lambda item: -item[1])
    resources = tuple(
        Resource(name, share * use, simulated / use if use > 0 else float("inf")) for name, use in full
    )
    price = hosts * sum(machine.price * machine.count for machine in request.machines)
    frames = hosts * rate * request.frames_per_step
    return Plan(
        steps_per_second=hosts * rate,
        frames_per_second=frames,
        updates_per_second=share * found.updates_per_second,
        lag=None if run.trainer.trains.samples else found.lag,
        batch_fill=found.batch_fill,
        action_wait=1e3 * found.wait / share,
        resources=resources,
        bound=_bound(full),
        flows=tuple(_flows(program, rate, share * found.updates_per_second, run.trainer.trains.unroll)),
        moves=tuple(_moves(request, simulated, doubled)) if moves else (),
        price_per_hour=price,
        price_of_billion_frames=price / 3600 * _BILLION / frames,
        machines=request.machines,
        hosts=hosts,
        instances={role.name: role.count for role in program.roles},
        assumed=(*request.costs.assumed, *_loss(request), *_assumed(run, request)),
        source=request.costs.source,
    )


def _require_devices(request: Request) -> None:
    """Raises :class:`ConfigError` if one of the timed and the planned machine has accelerators, and the other none."""
    timed, planned = request.costs.accelerators, request.machines[0].accelerators
    if bool(timed) != bool(planned):
        one = "an accelerator" if timed else "CPU cores alone"
        other = f"{planned} accelerators" if planned else "none"
        raise ConfigError(
            f"the costs were timed on {one} ({request.costs.source}), and the head's machine has {other}: time the "
            "stages on a machine like it (seedbed bench … --results FILE; --costs FILE), or plan another one"
        )


def _is_timed(request: Request) -> bool:
    """Returns True if the run is on one machine like the timed one."""
    costs = request.costs
    alike = Machine(costs.cores, costs.accelerators)
    return [replace(each, price=alike.price, network=alike.network) for each in request.machines] == [alike]


def _loss(request: Request) -> Iterator[str]:
    """Yields the assumption about the loss of a run beside its stages."""
    costs = request.costs
    if not costs.attained_by:
        return
    lost = f"{abs(1 - costs.attained):.0%} {'less' if costs.attained <= 1 else 'more'} than its stages allow"
    if _is_timed(request):
        yield f"a run makes {lost}, as {costs.attained_by} did"
    else:
        yield f"a run loses nothing beside its stages; on the timed machine {costs.attained_by} made {lost}"


def _bound(uses: Sequence[tuple[str, float]]) -> str | None:
    """The name of the fullest resource; a thread that waits for full cores or devices is none."""
    full = [name for name, use in uses if use >= _FULL]
    shared = [name for name in full if name.startswith(("cores", "accelerator", "link"))]
    return next(iter((*shared, *full)), None)


def _flows(program: Program, steps: float, updates: float, unroll: int) -> Iterator[Flow]:
    """The bytes a second that the program declares."""
    units = {"step": steps, "unroll": steps / unroll, "update": updates, "gradient": updates}
    for role, edge in program.edges:
        for direction, source, to in (("up", role.name, edge.to), ("down", edge.to, role.name)):
            nbytes = edge.bytes_for(direction, units, role.count)
            if nbytes:
                yield Flow(source, to, nbytes)


def _moves(request: Request, rate: float, doubled: Program | None) -> Iterator[Move]:
    """Changes that are worth telling, the best first; each is simulated."""
    tried = []
    for change, changed in _changes(request, doubled):
        run = Simulation(changed.program, changed.costs, changed.machines, changed.carrier)
        tried.append(Move(change, run.run().steps_per_second / rate))
    yield from sorted((move for move in tried if move.times >= _WORTH_TELLING), key=lambda move: -move.times)


def _changes(request: Request, doubled: Program | None) -> Iterator[tuple[str, Request]]:
    head, *others = request.machines
    of_head = " of the head" if others else ""
    yield f"twice the cores{of_head}", _with(request, 0, cores=2 * head.cores)
    if others:
        yield "twice the machines of the actors", _with(request, 1, count=2 * others[0].count)
        yield "twice the network", _with(request, 0, network=2 * head.network)
    if head.accelerators:
        yield "accelerators twice as fast", _with(request, 0, accelerator_speed=2 * head.accelerator_speed)
    served = {name: _halved(work) for name, work in request.costs.served.items()}
    yield "half the Python work for a message", replace(request, costs=replace(request.costs, served=served))
    if request.costs.crowded:
        yield "no waiting of calls for a core", replace(request, costs=replace(request.costs, crowded=0.0))
    if doubled is not None:
        yield "twice the actors", replace(request, program=doubled)


def _with(request: Request, index: int, **changes: float) -> Request:
    machines = list(request.machines)
    machines[index] = replace(machines[index], **changes)  # type: ignore[arg-type]
    return replace(request, machines=tuple(machines))


def _halved(work: Served) -> Served:
    return Served(work.message / 2, work.row / 2, work.sent / 2, work.delay)


def _assumed(run: Simulation, request: Request) -> Iterator[str]:
    """Everything in a prediction that goes beyond the timed sizes."""
    costs = request.costs
    for where, rows in run.policies:
        curve = costs.act[where]
        if not curve.covers(rows):
            sizes = ", ".join(str(size) for size, _ in curve.points)
            yield f"a call of the policy with {rows} rows takes its proportion of a timed one ({sizes} rows)"
    if len(request.machines) > 1:
        yield "the network adds 0.1 ms to a message, and its bytes take the time of the head's link"
    if request.machines[0].cores != costs.cores and "accelerator" not in costs.act:
        yield f"the policy and updates spread over no more cores than on the timed machine ({costs.cores:g})"


@dataclass(frozen=True)
class Scaled:
    """The smallest run of a kind that is fast enough.

    Attributes:
      times: number by which actors, and their machines if they have any, are multiplied.
      plan: its plan.
    """

    times: int
    plan: Plan


def scaled_to(
    steps_per_second: float,
    request_of: Callable[[int], Request],
    say: Callable[[int, Plan], None] = lambda times, plan: None,
) -> Scaled:
    """Finds how many times the actors are needed for a number of steps a second.

    Args:
      steps_per_second: agent steps a second that are wanted.
      request_of: function that makes the request with so many times the actors.
      say: takes each number that was tried, with its plan.

    Raises:
      ConfigError: no number of actors suffices.
    """

    def planned(times: int) -> Plan:
        made = plan(request_of(times), moves=False)
        say(times, made)
        return made

    low, high, best = 0, 1, planned(1)
    while best.steps_per_second < steps_per_second:
        if high >= _MOST_TIMES:
            raise ConfigError(f"{steps_per_second:,.0f} steps/s are not reached with {high} times the actors")
        low, high, before = high, 2 * high, best
        best = planned(high)
        if best.steps_per_second < min(steps_per_second, _WORTH_TELLING * before.steps_per_second):
            most = max(before.steps_per_second, best.steps_per_second)
            raise ConfigError(
                f"{steps_per_second:,.0f} steps/s are not reached by more actors: with {low} times as many there are "
                f"{most:,.0f}, bound by {before.bound or best.bound or 'lanes that wait for one another'}"
            )
    while high - low > 1:
        middle = (low + high) // 2
        made = planned(middle)
        if made.steps_per_second >= steps_per_second:
            high, best = middle, made
        else:
            low = middle
    return Scaled(high, plan(request_of(high)))
