"""A simulation of a run, as its program declares it, with the costs of its stages.

A lane is a batch of environments that takes turns between stepping and waiting for its actions. Batches of the policy
are decided by :func:`seedbed.acting.batcher.decide` itself and padded as its own are. Nothing here knows an
architecture: the parts of the loop stand where the roles of the program say.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from math import log, sqrt

from seedbed.acting.batcher import BatchRule, bucket_for, buckets, decide
from seedbed.architectures.program import Acts, Program, Role, Trains
from seedbed.errors import ConfigError
from seedbed.planning.costs import Costs, Served, Where
from seedbed.planning.events import Clock, Cores, Line, Then
from seedbed.planning.machines import GIGABIT, Machine

_WARM_LANE_STEPS, _LANE_STEPS = 1_500, 4_500
"""Steps of lanes before the measurement, and in it, at least: the noise of a rate is then about one percent."""
_UNROLLS, _BATCHES = 3, 10
"""Unrolls of each lane, and batches, before the measurement; it has twice as many."""
_MOST_LANE_STEPS = 30_000
"""Steps of lanes before the measurement, at most; the measurement has up to twice as many."""


@dataclass(frozen=True)
class Found:
    """The result of a simulation.

    Attributes:
      steps_per_second: agent steps of one host.
      updates_per_second: updates of the weights.
      lag: updates between the weights that acted and the weights that are trained, mean.
      batch_fill: size of inference batches as a share of full ones, mean.
      wait: time in s from an observation to its action, mean.
      use: share of the time in which each resource works, by its name.
    """

    steps_per_second: float
    updates_per_second: float
    lag: float
    batch_fill: float
    wait: float
    use: dict[str, float]


@dataclass(eq=False)
class _Device:
    """Devices of one machine that work together: an accelerator, or its cores where there is none."""

    work: Callable[[float, Then], None]
    where: Where


@dataclass
class _Counts:
    """Sums over a stretch of time."""

    steps: float = 0.0
    updates: float = 0.0
    lags: float = 0.0
    trained: float = 0.0
    calls: float = 0.0
    fill: float = 0.0
    waits: float = 0.0
    replies: float = 0.0

    def since(self, earlier: _Counts) -> _Counts:
        return _Counts(**{name: value - getattr(earlier, name) for name, value in vars(self).items()})


class Simulation:
    """One host of a run.

    Args:
      program: its roles.
      costs: costs of the stages.
      machines: machine of the head, and the machines of all other processes if they are others.
      carrier: carrier between processes of one machine; ``inproc`` makes actors threads of the head.

    Raises:
      ConfigError: the program does not say where its parts stand, a cost is missing, or a device is.
    """

    def __init__(self, program: Program, costs: Costs, machines: tuple[Machine, ...], carrier: str) -> None:
        self.program, self.costs, self.carrier = program, costs, carrier
        self.machines = machines
        self.clock = Clock()
        self.random = random.Random(0)
        self.counts = _Counts()
        self._cores = [Cores(self.clock, machine.cores * machine.count) for machine in machines]
        self._lines: dict[str, list[Line]] = {}
        self._accelerators: dict[tuple[int, int], Line] = {}
        self._links: dict[str, Line] = {}
        self._interpreters: dict[tuple[str, int], Line] = {}
        self.stepping = _only(program, "steps")
        self.acting = _only(program, "acts")
        training = _only(program, "trains")
        assert self.stepping.steps and self.acting.acts and training.trains
        self.trainer = _Trainer(self, training, training.trains)
        self.lanes = [
            _Lane(self, instance, number)
            for instance in range(self.stepping.count)
            for number in range(self.stepping.steps.lanes)
        ]
        self.local = self.acting.name == self.stepping.name
        self.services = [] if self.local else list(self._make_services(self.acting, self.acting.acts))
        if self.local:
            for lane in self.lanes:
                lane.policy = _LocalPolicy(self, lane, self.acting.acts)
        else:
            for lane in self.lanes:
                lane.policy = self.services[lane.instance % len(self.services)]
                self.services[lane.instance % len(self.services)].lanes.append(lane)
            for service in self.services:
                service.open()

    @property
    def policies(self) -> list[tuple[Where, int]]:
        """Places and largest batches of the policy, where it is not in one program with the environments."""
        if not self.local:
            return [(service.device.where, service.sizes[-1]) for service in self.services[:1]]
        return [
            (lane.policy.device.where, lane.rows)
            for lane in self.lanes[:1]
            if isinstance(lane.policy, _LocalPolicy) and not lane.compiled
        ]

    def _make_services(self, role: Role, acts: Acts) -> Iterator[_Service]:
        if role.count == 1:
            yield from (_Service(self, role, 0, acts, device) for device in acts.devices or (0,))
        else:
            for index in range(role.count):
                yield _Service(
                    self, role, index, acts, (acts.devices or (0,))[index % len(acts.devices or (0,))]
                )

    # Places and resources.

    def place_of(self, role: Role) -> int:
        """Returns the index of the machines on which a role stands."""
        head = role.name == self.program.head or role.entry is None or self.carrier == "inproc"
        # Forward-pass servers stand where accelerators are.
        lacks = role.needs.accelerators and not self.machines[-1].accelerators
        return 0 if head or lacks or len(self.machines) == 1 else 1

    def cores_of(self, role: Role) -> Cores:
        """Returns the cores of a role's machines."""
        return self._cores[self.place_of(role)]

    def speed_of(self, role: Role) -> float:
        """Returns the speed of the cores of a role's machines."""
        return self.machines[self.place_of(role)].speed

    def line(self, name: str) -> Line:
        """Makes a line whose use is told under a name, as the mean over all with that name."""
        made = Line(self.clock)
        self._lines.setdefault(name, []).append(made)
        return made

    def interpreter_of(self, role: Role, index: int) -> Line:
        """Returns the Python interpreter of the process of an instance; threads of the head share the head's."""
        if role.entry is None or role.name == self.program.head or self.carrier == "inproc":
            role, index = self.program[self.program.head], 0
        if (role.name, index) not in self._interpreters:
            name = (
                f"Python of the {role.name}"
                if index == 0 == role.count - 1
                else f"thread of each {role.name}"
            )
            self._interpreters[role.name, index] = self.line(name)
        return self._interpreters[role.name, index]

    def python(self, role: Role, index: int, seconds: float, then: Then) -> None:
        """Has an instance execute Python for ``seconds`` s, while no other thread of its process does."""
        if not seconds:
            then()
            return
        cores, time = self.cores_of(role), seconds / self.speed_of(role)
        self.interpreter_of(role, index).run(partial(cores.run, time), then)

    def device(self, role: Role, devices: tuple[int, ...], threads: float) -> _Device:
        """Returns the devices of a role that work together on one thing.

        Args:
          role: the role.
          devices: their indices; none: a core of the role's machine.
          threads: cores that they keep busy where the machine has no accelerator.
        """
        place = self.place_of(role)
        machine, cores = self.machines[place], self._cores[place]
        if not devices or not machine.accelerators:

            def compute(seconds: float, then: Then) -> None:
                cores.run(seconds / machine.speed, then, threads)

            return _Device(compute, "cores")
        if max(devices) >= machine.accelerators:
            raise ConfigError(
                f"the {role.name} uses device {max(devices)}, and the machine has {machine.accelerators} accelerators: "
                "give --machine …,accelerators=NUMBER, or other devices"
            )
        lines = []
        for index in devices:
            if (place, index) not in self._accelerators:
                self._accelerators[place, index] = self.line(f"accelerator {index}")
            lines.append(self._accelerators[place, index])

        def compute_on(seconds: float, then: Then) -> None:
            # Work that is spread over several devices is over when the last of them is.
            time, left = seconds / machine.accelerator_speed / len(lines), [len(lines)]

            def one_is_over() -> None:
                left[0] -= 1
                if not left[0]:
                    then()

            for line in lines:
                line.run(partial(self.clock.after, time), one_is_over)

        return _Device(compute_on, "accelerator")

    def travel(self, source: Role, to: Role, nbytes: float, then: Then) -> None:
        """Takes a message from one role to another."""
        if source.name == to.name or self.carrier == "inproc" or source.entry is to.entry is None:
            self.clock.after(0.0, then)
            return
        one, other = self.place_of(source), self.place_of(to)
        delay = self.served(source, to).delay
        if one == other:
            self.clock.after(delay, then)
            return
        way = "in" if other == 0 else "out"
        name = f"link of the head, {way}"
        if name not in self._links:
            self._links[name] = self.line(name)
        time = nbytes / (self.machines[0].network * GIGABIT)
        self._links[name].run(partial(self.clock.after, time), lambda: self.clock.after(delay, then))

    def served(self, source: Role, to: Role) -> Served:
        """Returns the work of the served path between two roles."""
        remote = self.place_of(source) != self.place_of(to)
        return self.costs.served["grpc" if remote else self.carrier]

    def cost(self, name: str) -> float:
        """Returns a cost; raises :class:`ConfigError` if it was not timed."""
        value: float | None = getattr(self.costs, name)
        if value is None:
            stage = {"step": "environment", "train": "learner", "play": "acting"}[name]
            raise ConfigError(
                f"the costs lack the stage '{stage}': time it with seedbed bench, under an architecture that has it"
            )
        return value

    def call_time(self, device: _Device, rows: float) -> float:
        """Returns the time of one call of the policy on an idle machine."""
        if device.where not in self.costs.act:
            on_cores = device.where == "cores"
            other = "CPU cores" if on_cores else "an accelerator"
            raise ConfigError(
                f"the policy runs on {other} here, and the costs have no stage 'inference' of that: time it with "
                f"seedbed bench on such a machine{' with actors that run the policy' if on_cores else ''}"
            )
        return self.costs.act[device.where].at(rows)

    def delay_of_crowd(self, role: Role) -> float:
        """Returns the further time of a call of the policy for threads that wait for a core."""
        return self.costs.crowded * self.cores_of(role).crowd

    def noise(self) -> float:
        """Draws the time of a lane's step as a multiple of its mean (log-normal)."""
        if not self.costs.spread:
            return 1.0
        variance = log(1.0 + self.costs.spread**2)
        return self.random.lognormvariate(-variance / 2, sqrt(variance))

    # Running.

    def run(self) -> Found:
        """Simulates the run until its rates are steady; returns them."""
        for index, lane in enumerate(self.lanes):
            # They do not begin at one moment, nor do their unrolls.
            self.clock.after(index * 1e-5, lane.begin)
        trains = self.trainer.trains
        least = max(_UNROLLS * trains.unroll * len(self.lanes), _BATCHES * trains.steps / self.lanes[0].rows)
        self._pass(min(_MOST_LANE_STEPS, max(_WARM_LANE_STEPS, least)))
        self._settle()
        before, begun = _Counts(**vars(self.counts)), self.clock.now
        busy = {name: sum(line.busy for line in lines) for name, lines in self._lines.items()}
        on_cores = [cores.busy for cores in self._cores]
        self._pass(min(2 * _MOST_LANE_STEPS, max(_LANE_STEPS, 2 * least)))
        self._settle()
        found, passed = self.counts.since(before), self.clock.now - begun
        use = {
            name: (sum(line.busy for line in lines) - busy.get(name, 0.0)) / passed / len(lines)
            for name, lines in self._lines.items()
        }
        for place, (cores, worked) in enumerate(zip(self._cores, on_cores, strict=True)):
            name = "cores" if len(self._cores) == 1 else ("cores of the head", "cores of the actors")[place]
            use[name] = (cores.busy - worked) / passed / cores.count
        return Found(
            steps_per_second=found.steps / passed,
            updates_per_second=found.updates / passed,
            lag=found.lags / max(found.trained, 1e-9),
            batch_fill=found.fill / max(found.calls, 1.0),
            wait=found.waits / max(found.replies, 1.0),
            use=use,
        )

    def _pass(self, lane_steps: float) -> None:
        rows = self.lanes[0].rows
        until = self.counts.steps + lane_steps * rows
        while self.counts.steps < until:
            due = self.clock.step()
            assert due, "a lane always waits for something that comes"

    def _settle(self) -> None:
        for cores in self._cores:
            cores.settle()
        for lines in self._lines.values():
            for line in lines:
                line.settle()


def _only(program: Program, part: str) -> Role:
    """The role that runs a part of the loop; raises :class:`ConfigError` if there is none, or if there are several."""
    found = [role for role in program.roles if getattr(role, part) is not None]
    if len(found) != 1:
        verb = {"steps": "steps environments", "acts": "runs the policy", "trains": "trains"}[part]
        raise ConfigError(
            f"this architecture cannot be planned: of its roles ({', '.join(role.name for role in program.roles)}) "
            f"{'none' if not found else len(found)} declares that it {verb}, and one has to"
        )
    return found[0]


def traffic(role: Role, direction: str, per: str) -> float:
    """Returns the bytes of one unit in one direction, over all conversations of a role."""
    return sum(
        each.bytes
        for edge in role.dials
        for each in edge.traffic
        if (each.direction, each.per) == (direction, per)
    )


class _Lane:
    """A batch of environments."""

    policy: _LocalPolicy | _Service

    def __init__(self, run: Simulation, instance: int, number: int) -> None:
        assert run.stepping.steps is not None
        self.run, self.role, self.instance, self.number = run, run.stepping, instance, number
        self.rows = run.stepping.steps.rows
        self.compiled = run.stepping.steps.compiled
        self.arrived: float | None = None
        self.sent = 0.0
        self.step = self.unrolls = 0
        self.versions = 0.0
        self.weights = 0
        self.blocked = False

    def begin(self) -> None:
        # Unrolls of different lanes end at different times, as they do after a while.
        if self.run.trainer.trains.lag is None:
            self.step = self.run.random.randrange(self.run.trainer.trains.unroll)
        self.stepped()

    @property
    def allowed(self) -> bool:
        """False while an exact lag has the lane wait for weights."""
        return self.step > 0 or self.run.trainer.allows(self.unrolls)

    def take_actions(self) -> None:
        """Steps the environments with the actions that have come."""
        self.run.counts.waits += self.run.clock.now - self.sent
        self.run.counts.replies += 1
        if self.compiled:
            self.stepped()
            return
        run, time = self.run, self.run.cost("step") * self.rows * self.run.noise()
        if run.costs.own_threads:
            run.cores_of(self.role).run(time / run.speed_of(self.role), self.stepped)
        else:
            run.python(self.role, self.instance, time, self.stepped)

    def decided(self, version: int) -> None:
        """Counts a step that was decided with weights of a version."""
        self.versions += version
        self.step += 1
        self.run.counts.steps += self.rows

    def stepped(self) -> None:
        """Has the environments' next observations."""
        self.sent = self.run.clock.now
        self.policy.observe(self)

    def unroll_is_over(self) -> bool:
        return self.step >= self.run.trainer.trains.unroll

    def cut(self) -> tuple[float, float]:
        """Ends the unroll; returns its agent steps, and the mean version of the weights that acted in it."""
        steps, version = self.rows * self.step, self.versions / self.step
        self.step, self.versions = 0, 0.0
        self.unrolls += 1
        return steps, version


class _LocalPolicy:
    """The policy beside the environments, of one lane."""

    def __init__(self, run: Simulation, lane: _Lane, acts: Acts) -> None:
        self.run, self.lane, self.role = run, lane, run.stepping
        devices = acts.devices and (acts.devices[lane.instance % len(acts.devices)],)
        if lane.compiled:
            devices = acts.devices
        self.device = run.device(run.stepping, devices, run.costs.act_threads)
        if lane.compiled:
            self.seconds = run.cost("play") * lane.rows
        else:
            self.seconds = run.call_time(self.device, lane.rows)
        self.weights = traffic(self.role, "down", "update")

    def observe(self, lane: _Lane) -> None:
        if lane.unroll_is_over():
            self._send(lane)
        else:
            self._decide(lane)

    def _decide(self, lane: _Lane) -> None:
        run = self.run
        if not lane.allowed:
            run.trainer.wait_for_weights(partial(self._decide, lane))
            return
        if lane.step == 0:
            lane.weights = run.trainer.version

        def called() -> None:
            run.counts.calls += 1
            run.counts.fill += 1.0
            lane.decided(lane.weights)
            lane.take_actions()

        def work(then: Then) -> None:
            self.device.work(self.seconds, lambda: run.clock.after(run.delay_of_crowd(self.role), then))

        if self.role.entry is None or self.role.name == run.program.head:
            work(called)
        else:  # a process has one thread, and its lanes wait for one another
            run.interpreter_of(self.role, lane.instance).run(work, called)

    def _send(self, lane: _Lane) -> None:
        run, trainer = self.run, self.run.trainer

        def next_unroll() -> None:
            # Weights are fetched where they have changed.
            if self.weights and trainer.version > lane.weights:
                run.travel(trainer.role, self.role, self.weights, partial(self._decide, lane))
            else:
                self._decide(lane)

        trainer.deliver(self.role, lane.instance, lane, next_unroll)


class _Service:
    """Central inference on one device: a thread that takes messages, and runs the policy for lanes that are due."""

    def __init__(self, run: Simulation, role: Role, index: int, acts: Acts, device: int) -> None:
        self.run, self.role, self.index, self.acts = run, role, index, acts
        self.device = run.device(role, (device,), run.costs.act_threads)
        self.lanes: list[_Lane] = []
        self.waiting: deque[_Lane] = deque()
        self.thread = run.line("acting thread")
        self.turns = 0
        self.timer = 0

    def open(self) -> None:
        """Begins to serve, when it knows its lanes."""
        rows = self.lanes[0].rows if self.lanes else 1
        full = max(self.acts.rows, rows)
        self.rule = BatchRule(full, self.acts.wait)
        self.sizes = buckets(min(rows, full), full)
        self.run.call_time(self.device, full)
        self.run.trainer.on_room(self.turn)
        self.up = traffic(self.run.stepping, "up", "step")
        self.down = traffic(self.run.stepping, "down", "step")

    def observe(self, lane: _Lane) -> None:
        """Sends the observations of a lane here."""
        run, served = self.run, self.run.served(lane.role, self.role)
        work = served.message + served.row * lane.rows

        def arrived() -> None:
            self.thread.run(partial(run.python, self.role, self.index, work), lambda: self._arrive(lane))

        def sent() -> None:
            run.travel(lane.role, self.role, self.up * lane.rows, arrived)

        run.python(lane.role, lane.instance, served.sent, sent)

    def _arrive(self, lane: _Lane) -> None:
        lane.arrived = self.run.clock.now
        self.waiting.append(lane)
        if lane.unroll_is_over():
            self.run.trainer.deliver(self.role, self.index, lane, self.turn)
        self.turn()

    def turn(self) -> None:
        """Has the thread look for a batch that is due, once it is free."""
        if not self.turns:
            self.turns += 1
            self.thread.run(self._serve, lambda: None)

    def _serve(self, then: Then) -> None:
        self.turns -= 1
        ready = [lane for lane in self.waiting if not lane.blocked and lane.allowed]
        stepping = len(self.lanes) - len(self.waiting)
        now = self.run.clock.now
        decision = decide([(lane.rows, lane.arrived or 0.0) for lane in ready], stepping, now, self.rule)
        if not decision.take:
            self.timer += 1
            if decision.wait is not None:
                self.run.clock.after(decision.wait + 1e-6, partial(self._is_due, self.timer))
            then()
            return
        chosen = ready[: decision.take]
        for lane in chosen:
            self.waiting.remove(lane)
        rows = sum(lane.rows for lane in chosen)
        size, version = bucket_for(rows, self.sizes), self.run.trainer.version

        def called() -> None:
            counts = self.run.counts
            counts.calls += 1
            counts.fill += rows / max(rows, self.sizes[-1])
            for lane in chosen:
                lane.arrived = None
                lane.decided(version)
                self.run.travel(self.role, lane.role, self.down * lane.rows, lane.take_actions)
            then()
            self.turn()

        delay = self.run.delay_of_crowd(self.role)
        self.device.work(self.run.call_time(self.device, size), lambda: self.run.clock.after(delay, called))

    def _is_due(self, timer: int) -> None:
        if timer == self.timer:
            self.turn()


@dataclass(eq=False)
class _Offer:
    """An unroll that waits for room."""

    steps: float
    version: float
    then: Then


@dataclass(eq=False)
class _Trainer:
    """The learner, with its memory."""

    run: Simulation
    role: Role
    trains: Trains
    version: int = 0
    offers: deque[_Offer] = field(default_factory=deque)
    held: deque[tuple[float, float]] = field(default_factory=deque)
    listeners: list[Then] = field(default_factory=list)
    patient: list[Then] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.line = self.run.line(f"thread of the {self.role.name}")
        self.device = self.run.device(self.role, self.trains.devices, self.run.costs.train_threads)
        self.seconds = self.run.cost("train") * self.trains.steps
        self.filled = self.trained = 0.0
        self.joining = self.ready = False
        self.training = False

    @property
    def room(self) -> float:
        """Agent steps that may wait."""
        return max(self.trains.waiting, 1.0) * self.trains.steps

    def allows(self, unrolls: int) -> bool:
        """Returns whether a lane may begin its next unroll, after so many."""
        if self.trains.lag is None:
            return True
        a_round = sum(lane.rows for lane in self.run.lanes) * self.trains.unroll
        # Less than a batch may be left over from the rounds that have to be trained on.
        return self.trained + self.trains.steps > (unrolls - self.trains.lag) * a_round + 1e-6

    def on_room(self, then: Then) -> None:
        """Calls ``then`` after every update."""
        self.listeners.append(then)

    def wait_for_weights(self, then: Then) -> None:
        """Calls ``then`` after the next update."""
        self.patient.append(then)

    def deliver(self, role: Role, index: int, lane: _Lane, then: Then) -> None:
        """Brings the unroll of a lane here from the instance that holds it; calls ``then`` once it has been taken."""
        run = self.run
        lane.blocked = True
        steps, version = lane.cut()

        def taken() -> None:
            lane.blocked = False
            then()

        def offer() -> None:
            self.offers.append(_Offer(steps, version, taken))
            self._take()

        if role.entry is None or role.name == self.role.name or run.carrier == "inproc":
            offer()
            return
        served = run.served(role, self.role)

        def arrived() -> None:
            run.python(self.role, 0, served.message + served.row * steps, offer)

        def sent() -> None:
            run.travel(role, self.role, traffic(role, "up", "unroll") * lane.rows, arrived)

        run.python(role, index, served.sent, sent)

    def _take(self) -> None:
        # Where less than a batch waits there is room for any unroll: a learner without a batch makes none.
        while self.offers and (
            self.filled + 1e-6 < self.trains.steps or self.filled + self.offers[0].steps <= self.room + 1e-6
        ):
            offer = self.offers.popleft()
            self.held.append((offer.steps, offer.version))
            self.filled += offer.steps
            self._train()
            offer.then()

    def _train(self) -> None:
        if self.training or self.filled + 1e-6 < self.trains.steps:
            return
        self.training = True
        self.filled -= self.trains.steps
        lag = self.version - self._pop(self.trains.steps)
        join = self.run.costs.join * self.trains.steps
        cores = self.run.cores_of(self.role)

        def update(then: Then) -> None:
            self.device.work(self.seconds, then)

        def updated() -> None:
            for index in range(self.trains.updates):
                self.run.counts.lags += lag + index
            self.version += self.trains.updates
            self.run.counts.trained += self.trains.updates
            self.run.counts.updates += self.trains.updates
            self.trained += self.trains.steps
            self.training = False
            self._publish()
            self._take()
            self._train()
            patient, self.patient = self.patient, []
            for then in [*patient, *self.listeners]:
                then()

        # The batch after this one is joined while this one is trained on: joining takes cores, and time only where the
        # learner waits.
        cores.run(join / self.run.speed_of(self.role), lambda: None)
        self.line.run(update, updated)

    def _publish(self) -> None:
        """Sends the weights to forward-pass servers; actors fetch theirs themselves."""
        for service in self.run.services:
            if (nbytes := traffic(service.role, "down", "update")) > 0:
                self.run.travel(self.role, service.role, nbytes, lambda: None)

    def _pop(self, steps: float) -> float:
        """Takes steps out of the memory, oldest first; returns the mean version that acted for them."""
        left, total = steps, 0.0
        while left > 1e-6:
            held, version = self.held.popleft()
            taken = min(held, left)
            total += taken * version
            left -= taken
            if held > taken:
                self.held.appendleft((held - taken, version))
        return total / steps
