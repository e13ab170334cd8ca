"""Central inference: the desk where actors report, and one worker thread for each accelerator that acts."""

from __future__ import annotations

import hmac
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from orchard.acting.inference import Inference
from orchard.acting.lanes import Lane, Member, Script, arrival, digest_of
from orchard.acting.ledger import Ledger
from orchard.acting.pace import Lockstep, Pace
from orchard.acting.unrolls import OpenUnroll, step_fields, timestep_of
from orchard.envs.episodes import EpisodeMeter
from orchard.errors import ConfigError, Refused, RunFailed, SpecError
from orchard.seeding import integer
from orchard.transport.seam import PROTOCOL, Layout, Peer
from orchard.types import EnvSpec, map_leaves


def lanes_of(envs: int) -> tuple[int, int]:
    """How an actor's environments are split: ``(lanes, environments in each)``; a lone one is one lane."""
    if envs > 1 and envs % 2:
        raise ConfigError(
            f"{envs} environments an actor cannot be split into halves (one steps while the other waits): "
            f"use {envs + 1}"
        )
    return (1, 1) if envs == 1 else (2, envs // 2)


@dataclass(frozen=True)
class Recipe:
    """What every actor is told to do.

    Attributes:
      env: the environment's id.
      options: its options.
      spec: what it must look like.
      actors: how many actors this run starts itself.
      envs: environments of each actor.
      seed: the run's seed.
      unroll_length: T.
      token: what an actor must know to be let in.
      keep_log: whether the actions are logged so that environments can be brought back.
      lockstep: whether the lag is exact, which no actor from elsewhere could join.
    """

    env: str
    options: dict[str, Any]
    spec: EnvSpec
    actors: int
    envs: int
    seed: int
    unroll_length: int
    token: str = field(repr=False)
    keep_log: bool = False
    lockstep: bool = False


@dataclass
class Meters:
    """What inference has done since the meters were last read; guarded by its lock."""

    batches: int = 0
    rows: int = 0
    padded: int = 0
    seconds: float = 0.0
    lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def add(self, rows: int, size: int, seconds: float) -> None:
        """Counts one batch of ``rows`` in a full batch's ``size``."""
        with self.lock:
            self.batches += 1
            self.rows += rows
            self.padded += size
            self.seconds += seconds

    def take(self) -> dict[str, float]:
        """Means since the last call, by metric name; empty if there was no batch."""
        with self.lock:
            if not self.batches:
                return {}
            means = {
                "inference_batch": self.rows / self.batches,
                "batch_fill": self.rows / self.padded,
                "inference_milliseconds": 1e3 * self.seconds / self.batches,
            }
            self.batches, self.rows, self.padded, self.seconds = 0, 0, 0, 0.0
            return means


class Worker:
    """Serves the lanes of one accelerator: a thread that alone touches lanes and tables.

    Args:
      inference: the policy on the accelerator.
      pace: who is served when.
      recipe: of the run.
      ledger: the books.
      meters: shared by the workers.
      full_batch: rows of a full batch, for the meters.
      on_failure: called with the exception that ended the thread.
    """

    def __init__(
        self,
        inference: Inference,
        pace: Pace,
        recipe: Recipe,
        *,
        ledger: Ledger,
        meters: Meters,
        full_batch: int,
        on_failure: Callable[[BaseException], None],
    ) -> None:
        self.inference = inference
        self.pace = pace
        self.lanes: list[Lane] = []
        self._recipe = recipe
        self._ledger = ledger
        self._meters = meters
        self._full_batch = full_batch
        self._on_failure = on_failure
        self._news = threading.Condition()
        self._inbox: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
        self._poked = False
        self._stopping = False
        self._idle = False
        self._thread = threading.Thread(target=self._run, name="acting", daemon=True)

    # What other threads call.

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def submit(self, what: str, *arguments: Any) -> None:
        """Has the thread do ``join(lane)``, ``arrive(lane, arrays, time)`` or ``leave(lane)``, in order."""
        with self._news:
            self._inbox.append((getattr(self, f"_{what}"), arguments))
            self._news.notify_all()

    def poke(self) -> None:
        """Says that there are new weights, or room in the queue."""
        with self._news:
            self._poked = True
            self._news.notify_all()

    def stop(self) -> None:
        """Ends the thread; open unrolls are left where they are."""
        with self._news:
            self._stopping = True
            self._news.notify_all()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join()

    def wait_blocked(self, timeout: float) -> bool:
        """Waits, in lockstep, until all lanes wait for weights; False when ``timeout`` s have passed."""
        with self._news:
            return self._news.wait_for(self._blocked, timeout)

    def _blocked(self) -> bool:
        return (
            self._idle
            and not self._inbox
            and not self._poked
            and isinstance(self.pace, Lockstep)
            and self.pace.blocked(self.lanes)
        )

    # What the thread does.

    def _run(self) -> None:
        try:
            wait: float | None = None
            while self._wait_for_news(wait):
                wait = self._turn()
        except BaseException as error:
            self._on_failure(error)

    def _wait_for_news(self, timeout: float | None) -> bool:
        with self._news:
            self._idle = True
            self._news.notify_all()
            self._news.wait_for(lambda: self._inbox or self._poked or self._stopping, timeout)
            self._idle = False
            inbox, self._inbox, self._poked = self._inbox, [], False
            if self._stopping:
                return False
            # Under the lock, so that nobody sees a lane half-way: these only copy a step into its unroll.
            for action, arguments in inbox:
                action(*arguments)
            return True

    def _turn(self) -> float | None:
        """Passes on what can be, serves who is due; returns how long to wait for news, in s."""
        # First come, first served: otherwise a full queue would starve the last lanes, or the large ones.
        for lane in sorted((lane for lane in self.lanes if lane.outbox is not None), key=arrival):
            if not self.pace.hand_over(lane):
                break
            lane.outbox, lane.finished = None, []
        chosen, wait = self.pace.choose(self.lanes, time.monotonic())
        if not chosen:
            return wait
        self._serve(chosen)
        return 0.0

    def _serve(self, lanes: Sequence[Lane]) -> None:
        weights = self.pace.weights(lanes)
        begin = time.monotonic()
        actions, record = self.inference.act(
            weights.params, [(lane.open.observed, lane.columns()) for lane in lanes]
        )
        now = time.monotonic()
        start = 0
        for lane in lanes:
            rows = slice(start, start + lane.rows)
            start += lane.rows
            lane.open.decide(actions[rows], map_leaves(itemgetter(rows), record), weights.version)
            lane.steps += 1
            self._reply(lane, actions[rows], now)
        self._ledger.decide(start)
        self._meters.add(start, max(start, self._full_batch), now - begin)

    def _reply(self, lane: Lane, action: NDArray[Any], now: float) -> None:
        lane.arrived = None
        lane.owed_since = now
        lane.member.peer.reply(lane.half, [np.ascontiguousarray(action, self._recipe.spec.action.dtype)])

    def _join(self, lane: Lane) -> None:
        if lane.script is None:  # otherwise the slots hold what the checkpoint kept
            self.inference.reset(lane.slots)
        self.lanes.append(lane)

    def _leave(self, lane: Lane) -> None:
        if lane in self.lanes:
            self.lanes.remove(lane)
            held = self._recipe.unroll_length * lane.rows if lane.outbox is not None else 0
            self._ledger.drop(open_steps=lane.open.transitions, queued_steps=held)

    def _arrive(self, lane: Lane, arrays: list[NDArray[Any]], now: float) -> None:
        if lane not in self.lanes:
            return
        finished = lane.meter.add(timestep_of(self._recipe.spec, arrays))
        if lane.script is None:
            lane.finished += finished
        elif not self._replayed(lane, lane.script, arrays, now):
            return  # and the episodes that ended up to here were counted before the run was interrupted
        if lane.open.observe(arrays):
            self._cut(lane)
        lane.arrived = now

    def _cut(self, lane: Lane) -> None:
        lane.outbox = lane.open.cut(self.inference.first_states(lane.slots))
        lane.rounds += 1
        if lane.log is not None:
            lane.log.append(lane.outbox.action)
        self._ledger.cut(self._recipe.unroll_length * lane.rows)

    def _replayed(self, lane: Lane, script: Script, arrays: list[NDArray[Any]], now: float) -> bool:
        """Plays the next logged action; True once the environments are where they were."""
        if script.played < len(script.actions):
            script.played += 1
            self._reply(lane, script.actions[script.played - 1], now)
            return False
        if digest_of(arrays) != script.digest:
            raise RunFailed(
                f"cannot resume exactly: lane {lane.order} of {self._recipe.env} does not come back to where "
                "it was when its actions are played again; the environment is not deterministic given its "
                "seed. Resume without --deterministic."
            )
        lane.script = None
        return True


def _bytes(text: Any) -> bytes:
    # JSON may hold half of a surrogate pair, which UTF-8 has no bytes for.
    return str(text).encode(errors="replace")


@dataclass
class _Joined:
    member: Member
    since: float
    lanes: list[Lane] = field(default_factory=list)
    slots: list[int] = field(default_factory=list)
    worker: int = 0
    envs: int = 0

    def owed_since(self) -> list[float]:
        """Since when each lane owes a step, or since when the actor makes its environments, in s."""
        if not self.lanes:
            return [self.since]
        # Each is read once: the worker sets it meanwhile.
        return [since for lane in self.lanes if (since := lane.owed_since) is not None]


class Acting:
    """The desk: lets actors in, gives them slots, and passes their steps to the worker of their accelerator.

    Actors come and go at any time; one that comes back under an index replaces the one that had it.

    Args:
      recipe: what actors are told.
      workers: one for each accelerator that acts.
      capacity: slots over all workers.
      resumable: per lane order, what a checkpoint kept (see :meth:`lane_states`).
      first_epoch: epoch of the first actor at each index; a resumed run counts on, so that its environments
        do not begin with the same seeds again.
      on_join, on_leave: called with the member and, for leaving, the reason.
    """

    def __init__(
        self,
        recipe: Recipe,
        workers: Sequence[Worker],
        capacity: int,
        *,
        resumable: dict[tuple[int, int], dict[str, Any]] | None = None,
        first_epoch: int = 0,
        on_join: Callable[[Member], None] = lambda member: None,
        on_leave: Callable[[Member, str], None] = lambda member, reason: None,
    ) -> None:
        self.recipe = recipe
        self.workers = list(workers)
        self._resumable = resumable or {}
        self._on_join = on_join
        self._on_leave = on_leave
        self._lock = threading.RLock()
        self._joined: dict[Peer, _Joined] = {}
        self._first_epoch = first_epoch
        self._epochs: dict[int, int] = {}
        planned = recipe.actors * recipe.envs
        self._free = list(range(planned, capacity))
        self._planned = {
            index: list(range(index * recipe.envs, (index + 1) * recipe.envs))
            for index in range(recipe.actors)
        }

    # The desk, called by servers.

    def answer(self, peer: Peer, message: dict[str, Any]) -> dict[str, Any]:
        """Lets an actor in: ``join`` tells it what to make, ``ready`` checks that and opens its lanes."""
        kind = message.get("kind")
        if kind == "join":
            return self._welcome(peer, message)
        if kind == "ready":
            return self._admit(peer, message)
        raise Refused(f"unknown question {kind!r}: an actor asks 'join', then 'ready'")

    def deliver(self, peer: Peer, lane: int, arrays: list[NDArray[Any]]) -> None:
        """Passes a step to its worker."""
        with self._lock:
            joined = self._joined.get(peer)
        if joined is not None:
            # Here and not by the worker, which may be held up: what the actor owed, it has given.
            joined.lanes[lane].owed_since = None
            self.workers[joined.worker].submit("arrive", joined.lanes[lane], arrays, time.monotonic())

    def left(self, peer: Peer, reason: str) -> None:
        """Frees what the actor had; its open unrolls are dropped."""
        with self._lock:
            joined = self._joined.pop(peer, None)
            if joined is None:
                return
            if joined.member.index not in self._planned:
                self._free.extend(joined.slots)
            for lane in joined.lanes:
                self.workers[joined.worker].submit("leave", lane)
        self._on_leave(joined.member, reason)

    def _welcome(self, peer: Peer, message: dict[str, Any]) -> dict[str, Any]:
        if message.get("protocol") != PROTOCOL:
            raise Refused(
                f"the actor speaks protocol {message.get('protocol')!r}, the learner {PROTOCOL}: "
                "install the same version of Orchard on both machines"
            )
        if not hmac.compare_digest(_bytes(message.get("token", "")), _bytes(self.recipe.token)):
            raise Refused("wrong token: copy the whole line that the learner printed, with its --token")
        with self._lock:
            if peer in self._joined:
                raise Refused("'join' comes once")
            index = self._index_for(message.get("index"))
            envs = self._envs_for(index, message.get("envs"))
            self._replace(index)
            epoch = self._epochs.get(index, self._first_epoch - 1) + 1
            self._epochs[index] = epoch
            member = Member(index, epoch, peer, local=index in self._planned)
            worker = index % len(self.workers)
            self._joined[peer] = _Joined(member, time.monotonic(), worker=worker, envs=envs)
        lanes, rows = lanes_of(envs)
        return {
            "env": self.recipe.env,
            "options": self.recipe.options,
            "index": index,
            "rows": rows,
            # 30 bits: seeds of environments are to fit an int32.
            "seeds": [
                integer(self.recipe.seed, f"environments/epoch {epoch}/half {half}", index, bits=30)
                for half in range(lanes)
            ],
        }

    def _index_for(self, asked: Any) -> int:
        if asked is not None and (type(asked) is not int or not 0 <= asked < 1 << 20):
            raise Refused(f"actor index {asked!r}: must be a whole number from 0 to {(1 << 20) - 1}")
        if self.recipe.lockstep and asked not in self._planned:
            raise Refused(
                "this run has an exact lag, which only its own actors keep: start it with --lag free and "
                "without --deterministic"
            )
        if asked is not None:
            return int(asked)
        taken = {joined.member.index for joined in self._joined.values()} | set(self._planned)
        return next(index for index in range(1 << 20) if index not in taken)

    def _replace(self, index: int) -> None:
        for peer, joined in list(self._joined.items()):
            if joined.member.index == index:
                self.left(peer, "replaced by a new actor with the same index")
                peer.close("another actor joined with the same index")

    def _envs_for(self, index: int, asked: Any) -> int:
        if index in self._planned or asked is None:
            return self.recipe.envs
        if type(asked) is not int or asked < 1 or (asked > 1 and asked % 2):
            raise Refused(f"{asked!r} environments: must be 1 or an even number")
        return int(asked)

    def _admit(self, peer: Peer, message: dict[str, Any]) -> dict[str, Any]:
        with self._lock:
            joined = self._joined.get(peer)
            if joined is None or joined.lanes:
                raise Refused("'ready' comes once, after 'join'")
            self._check_spec(message)
            worker = self.workers[joined.worker]
            self._take_slots(joined, worker.inference.largest)
            lanes, rows = lanes_of(joined.envs)
            for half in range(lanes):
                lane = self._new_lane(joined.member, half, joined.slots[half * rows : (half + 1) * rows])
                joined.lanes.append(lane)
                worker.submit("join", lane)
        action = self.recipe.spec.action
        up = Layout(step_fields(self.recipe.spec, rows))
        peer.open(up, Layout((((rows, *action.shape), action.dtype),)), lanes)
        self._on_join(joined.member)
        return {}

    def _check_spec(self, message: dict[str, Any]) -> None:
        try:
            given = EnvSpec.from_json(message["spec"])
        except (KeyError, SpecError) as error:
            raise Refused(f"the actor's environment spec cannot be read: {error}") from error
        if given != self.recipe.spec:
            raise Refused(
                f"the actor made {given}, the learner needs {self.recipe.spec}: "
                "install the same version of the environment on both machines"
            )

    def _take_slots(self, joined: _Joined, largest: int) -> None:
        if joined.member.index in self._planned:
            joined.slots = self._planned[joined.member.index]
            return
        if lanes_of(joined.envs)[1] > largest:
            raise Refused(
                f"{joined.envs} environments in one actor: inference takes at most {largest} a half; "
                "use a smaller --envs"
            )
        if len(self._free) < joined.envs:
            raise Refused(
                f"no room for {joined.envs} more environments, {len(self._free)} places are left: "
                "start the learner with a larger --max-envs"
            )
        joined.slots = [self._free.pop(0) for _ in range(joined.envs)]

    def _new_lane(self, member: Member, half: int, slots: list[int]) -> Lane:
        recipe = self.recipe
        lane = Lane(
            member=member,
            half=half,
            slots=np.asarray(slots, np.int32),
            open=OpenUnroll(recipe.spec, len(slots), recipe.unroll_length),
            meter=EpisodeMeter(len(slots)),
            owed_since=time.monotonic(),
            log=[] if recipe.keep_log else None,
        )
        kept = self._resumable.pop(lane.order, None)
        if kept is not None:
            lane.steps, lane.rounds = kept["steps"], kept["rounds"]
            lane.script = Script(kept["actions"], kept["digest"])
            if lane.log is not None:
                lane.log.append(kept["actions"])
        return lane

    # What the run asks.

    def members(self) -> list[Member]:
        """The actors whose lanes are open."""
        with self._lock:
            return [joined.member for joined in self._joined.values() if joined.lanes]

    @property
    def last_epoch(self) -> int:
        """The highest epoch that an actor has had so far; a resumed run counts on from it."""
        with self._lock:
            return max(self._epochs.values(), default=self._first_epoch)

    def stalled(self, timeout: float) -> list[tuple[Member, float]]:
        """Actors that have owed a step (or "ready") for longer than ``timeout`` s, and for how long."""
        now = time.monotonic()
        with self._lock:
            owing = [
                (joined.member, now - min(since))
                for joined in self._joined.values()
                if (since := joined.owed_since())
            ]
        return [(member, seconds) for member, seconds in owing if seconds > timeout]

    def dismiss(self, member: Member, reason: str) -> None:
        """Ends the conversation with an actor."""
        member.peer.close(reason)

    def lane_states(self) -> dict[tuple[int, int], dict[str, Any]]:
        """What brings every lane back; only while all workers are blocked in lockstep."""
        states = {}
        for worker in self.workers:
            for lane in worker.lanes:
                log = lane.log or []
                states[lane.order] = {
                    "steps": lane.steps,
                    "rounds": lane.rounds,
                    "actions": np.concatenate(log) if log else lane.open.no_actions(),
                    "digest": digest_of(lane.open.observed),
                }
        return states

    def stop(self) -> None:
        """Stops the workers."""
        for worker in self.workers:
            worker.stop()
