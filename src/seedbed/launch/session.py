"""A session of a run, from its start or its resumption to its summary: builds the architecture, watches, records."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
import psutil

from seedbed.acting.desk import Desk
from seedbed.architectures import a2c, a3c
from seedbed.architectures.anakin import Anakin
from seedbed.architectures.apex import Apex
from seedbed.architectures.asynchronous import Asynchronous
from seedbed.architectures.distbelief import DistBelief
from seedbed.architectures.gorila import Gorila
from seedbed.architectures.impala import Impala
from seedbed.architectures.interface import Architecture, counts, env_frames
from seedbed.architectures.rapid import Rapid
from seedbed.architectures.sebulba import Sebulba
from seedbed.architectures.seed import Seed
from seedbed.architectures.with_actors import WithActors
from seedbed.architectures.with_shards import WithShards
from seedbed.config.members import members
from seedbed.config.settings import RunConfig
from seedbed.errors import ConfigError, RunFailed, SeedbedError, cause_of
from seedbed.launch.actors import Actor, Guard, ProcessActor, Supervisor, ThreadActor
from seedbed.launch.build import build_agent
from seedbed.launch.folder import RunFolder
from seedbed.launch.forward_pool import START_SECONDS, ForwardPool
from seedbed.launch.hosts import Hosts
from seedbed.launch.logs import logging_to, showing_notes
from seedbed.launch.machine import convolving
from seedbed.launch.pools import Pools
from seedbed.launch.saver import Saver
from seedbed.launch.signals import heeding_signals
from seedbed.learning.checkpoint import Checkpoint, Contents, digest
from seedbed.metrics.console import Budget, display, say
from seedbed.metrics.meters import EpisodesOfSeveral, Rate, SteadyRate
from seedbed.metrics.reports import Summary, draw_curve, read_summary, title
from seedbed.metrics.sinks import JsonLines, Record, Sink, TensorBoard
from seedbed.metrics.statistics import estimate
from seedbed.nets.observations import described
from seedbed.transport.connect import CARRIERS, seen_from_elsewhere
from seedbed.types import Agent, EnvSpec

_log = logging.getLogger(__name__)
_ROW_SECONDS, _FIRST_ROW_SECONDS = 1.0, 0.05
_RATE_WINDOW_SECONDS = 10.0
_HEARSAY_SECONDS = 2.0
"""How long after a failure the news may come of a lost host that caused it, and the other way round."""
_MOST_SKIPPED = 0.01
"""Share of updates that may be skipped without a word."""
_LAST_SECONDS = 60.0
"""In which what is left after the loss of a host can be saved, before the process ends anyway."""
_WITH_ACTORS: dict[str, type[WithActors]] = {
    "seed": Seed,
    "a2c": Seed,
    "impala": Impala,
    "apex": Apex,
    "rapid": Rapid,
}
_WITH_A_CREW: dict[str, type[Sebulba | a3c.A3C]] = {"sebulba": Sebulba, "a3c": a3c.A3C}
_WITH_SHARDS: dict[str, type[WithShards]] = {"gorila": Gorila, "distbelief": DistBelief}
_PLACES: dict[str, Callable[[RunConfig], RunConfig]] = {"a2c": a2c.place, "a3c": a3c.place}
_OF_MEMBERS = ("episodes", "mean_return", "best_mean_return", "episode_length", "skipped_updates")


class Session:
    """One session of a run: what one process does between ``seedbed train`` or ``resume`` and the summary.

    Args:
      config: the run's settings.
      spec: its environment.
      agent: what is trained.
      folder: the run folder, held by this process.
      checkpoint: where to go on; None to begin.
      resumed: whether the run had been begun before, be it without a checkpoint.
      hosts: this host's place among the hosts of the run; None if it is alone.
    """

    def __init__(
        self,
        config: RunConfig,
        spec: EnvSpec,
        agent: Agent,
        folder: RunFolder,
        checkpoint: Checkpoint | None = None,
        *,
        resumed: bool = False,
        hosts: Hosts | None = None,
    ) -> None:
        self.config = config
        self.hosts = hosts or Hosts()
        # Where the parts stand; the record keeps what was asked for.
        place = _PLACES.get(config.arch)
        self.placed = place(config) if place else config
        self.spec = spec
        self.agent = agent
        self.folder = folder
        self.checkpoint = checkpoint
        self.resumed = resumed
        # A run that was stopped before its first update leaves a checkpoint too; in deterministic mode it begins
        # anew instead, which comes to the same: actors that are not there yet cannot be brought to rest.
        nothing = 0 if config.deterministic else -1
        self.saver = Saver(
            folder.checkpoints,
            keep=config.safety.keep_checkpoints,
            beside=not config.deterministic,
            saved_version=checkpoint.step if checkpoint else nothing,
            note=self._note,
        )
        stop = config.stop
        self.budget = Budget(
            frames=stop.frames,
            seconds=None if stop.minutes is None else 60 * stop.minutes,
            until_return=stop.until_return,
        )
        self.seconds_before = float(checkpoint.meta["seconds"]) if checkpoint else 0.0
        self.rate, self.steady = Rate(_RATE_WINDOW_SECONDS), SteadyRate()
        self.process = psutil.Process()
        self.begun: float | None = None
        self.told_of_skipped = False
        self.interrupted = threading.Event()
        # Who brings the run to its end: its own thread, or, if that does not come back, the one that hears that a host
        # is gone.
        self.back, self.ending = threading.Event(), threading.Lock()
        self.arch: Architecture | None = None
        self.supervisor: Supervisor | None = None
        self.guard: Guard | None = None
        self.pools: Pools | None = None
        self.forward: ForwardPool | None = None

    # From start to end.

    def run(self) -> Summary:
        """Trains until there is a reason to stop; leaves checkpoint, summary and curve.

        Raises:
          ConfigError: a setting does not fit; nothing was started.
          RunFailed: the run broke off; the message names the component, the cause and the log.
        """
        config, folder = self.config, self.folder
        # With its options: a preset may have set one that changes what the returns mean.
        env = " ".join([config.env, *config.env_options])
        self.members = members(config)
        seeds = sorted({member.seed for member in self.members})
        heading = title(env, config.arch, config.agent, seeds)
        with heeding_signals(self.interrupted), logging_to(folder.log):
            files: list[Sink] = [JsonLines(folder.metrics), TensorBoard(folder.events)]
            self.display = display(heading, self.budget)
            with (
                contextlib.closing(Record([self.display, *files])) as sinks,
                showing_notes(self.display.note) as self.notes,
            ):
                self._announce()
                self.hosts.watch(self._end_without)
                arch = self.arch = self._build()
                try:
                    summary = self._train(arch, sinks)
                finally:
                    self._stop(arch)
        try:
            draw_curve(self._curves(), folder.curve, heading, config.stop.until_return)
        except OSError as error:
            _log.warning("no curve: %s", error)
        return summary

    def _curves(self) -> dict[str, list[Path]]:
        """The metrics of every agent, by what was swept."""
        if len(self.members) == 1:
            return {"": [self.folder.metrics]}
        curves: dict[str, list[Path]] = {}
        for index, member in enumerate(self.members):
            curves.setdefault(member.swept, []).append(self.folder.metrics_of(index))
        return curves

    def _build(self) -> Architecture:
        try:
            return self._architecture()
        except ConfigError:
            raise
        except Exception as error:
            raise self._failure(error) from error

    def _architecture(self) -> Architecture:
        if self.config.arch == "anakin":
            return Anakin(
                self.config,
                self.agent,
                self.spec,
                agent_with=partial(build_agent, self.config, self.spec),
                checkpoint=self.checkpoint,
            )
        if sharded := _WITH_SHARDS.get(self.config.arch):
            return sharded(
                self.config, self.agent, self.spec, token=self.folder.token(), checkpoint=self.checkpoint
            )
        if crewed := _WITH_A_CREW.get(self.config.arch):
            return crewed(self.placed, self.agent, self.spec, log=self.folder.log, checkpoint=self.checkpoint)
        return _WITH_ACTORS[self.placed.arch](
            self.placed,
            self.agent,
            self.spec,
            token=self.folder.token(),
            checkpoint=self.checkpoint,
            on_join=self._on_join,
            on_leave=self._on_leave,
            on_note=self.notes.hear,
        )

    def _failure(self, error: Exception) -> SeedbedError:
        """What ends the run, with component, cause and log; the traceback goes to the log."""
        _log.error("the run failed", exc_info=error)
        if not isinstance(error, SeedbedError) and (lost := self.hosts.lost(_HEARSAY_SECONDS)):
            error = RunFailed(lost)  # whose end of the connection a device has missed
        component = "" if isinstance(error, SeedbedError) else "learner: "
        message = component + cause_of(error)
        return RunFailed(message if "(log: " in message else f"{message} (log: {self.folder.log})")

    def _train(self, arch: Architecture, sinks: Record) -> Summary:
        """Learns, and leaves checkpoint and summary however that ended."""
        failure: SeedbedError | None = None
        taken: Contents | None = None
        try:
            reason, standing = self._learn(arch, sinks)
            if reason == "interrupted":
                self.display.note("interrupted: ending the run; Ctrl-C again quits at once")
            if self._rest(arch):
                standing = self._standing(arch)
            taken = self._last_snapshot(arch)
        except ConfigError:
            raise
        except Exception as error:
            failure = self._failure(error)
            self._rest(arch)
            reason, standing = f"failed: {failure}", self._standing(arch)
        finally:
            self.back.set()
        with self.ending:
            return self._end(arch, reason, standing, taken, failure)

    def _rest(self, arch: Architecture) -> bool:
        """Ends learning that others than this thread do, so that what is saved and what is told are one."""
        if not isinstance(arch, Asynchronous):
            return False

        def stop() -> None:
            if self.supervisor is not None:
                self.supervisor.stop()
            if self.pools is not None:
                self.pools.stop_workers()

        self._stand_down()
        arch.rest(stop)
        return True

    def _stand_down(self) -> None:
        for watched in self._watched:
            watched.stand_down()

    @property
    def _watched(self) -> list[Supervisor | Pools | ForwardPool]:
        """Whoever watches processes of this run."""
        return [each for each in (self.supervisor, self.pools, self.forward) if each is not None]

    def _last_snapshot(self, arch: Architecture) -> Contents | None:
        """What is to be saved at the end, if there is something new, taken while all hosts are there.

        If that fails it is tried again without the others, and the reason kept.
        """
        self.saver.wait()
        if arch.version == self.saver.saved_version:
            return None
        try:
            return self._contents(arch)
        except Exception as error:
            _log.error("no snapshot", exc_info=error)
            return None

    def _end(
        self,
        arch: Architecture,
        reason: str,
        standing: dict[str, Any],
        taken: Contents | None,
        failure: SeedbedError | None,
    ) -> Summary:
        """Leaves checkpoint and summary; raises ``failure``, or that there is no room for them."""
        unsaved = self._save_at_the_end(arch, taken, failure)
        if unsaved and not failure:
            failure = RunFailed(unsaved)
            reason = f"{reason}, and {unsaved}"
        try:
            summary = self._summary(arch, reason, standing)
            summary.write(self.folder.summary)
        except Exception as error:
            if failure:
                _log.error("no summary", exc_info=error)
                raise failure from None
            raise self._failure(error) from None
        if failure:
            raise failure
        return summary

    def _save_at_the_end(
        self, arch: Architecture, taken: Contents | None, failure: SeedbedError | None
    ) -> str | None:
        """Writes the last checkpoint if there is something new; returns why it could not."""
        several = self.hosts.count > 1
        try:
            self.saver.wait()
            if arch.version == self.saver.saved_version:
                return None
            if failure and self.config.deterministic and (several or _has_actors(arch)):
                return None  # acting will not come to rest any more: the checkpoint before stays the newest
            return self.saver.save(arch.version, taken or self._contents(arch, alone=several))
        except Exception as error:
            _log.error("no last checkpoint", exc_info=error)
            return cause_of(error)

    def _end_without(self, lost: str) -> None:
        """Ends the process if another host is gone and the run's own thread does not come back from waiting for it.

        A device that waits for another host's cannot be told to stop. What it began with is saved.
        """
        if self.back.wait(_HEARSAY_SECONDS):
            return
        with self.ending:
            if self.back.is_set():
                return
            failure = self._failure(RunFailed(lost))
            last_resort = threading.Timer(_LAST_SECONDS, self._quit, (failure,))
            last_resort.daemon = True
            last_resort.start()
            try:
                if self.arch is not None:
                    self._end(self.arch, f"failed: {failure}", self._standing(self.arch), None, failure)
            finally:
                self._quit(failure)

    def _quit(self, failure: SeedbedError) -> None:
        """Ends the process at once, as the command line ends one whose run failed."""
        self.display.close()
        say(f"seedbed: {failure}", sys.stderr)
        os._exit(1)

    def _announce(self) -> None:
        _log.info("convolutions: %s", convolving())
        for line in self._observations():
            _log.info("%s", line)
            self.display.note(line)
        if self.checkpoint is None:
            if self.resumed:
                self.display.note("the run stopped before its first checkpoint: it begins anew")
            return
        for line in self.checkpoint.skipped:
            self.display.note(f"damaged checkpoint passed over: {line}")
        meta = self.checkpoint.meta
        exact = meta["exact"] and (self.config.deterministic or self.config.arch == "anakin")
        rest = "environments, open unrolls and queue too" if exact else "environments begin new episodes"
        if self.config.arch == "distbelief":
            rest = "replicas go on where they were in the data set"
        replay = ", replay" if "replay" in meta else ""
        self.display.note(
            f"resumed from {self.checkpoint.path}: weights version {meta['version']}, optimizer, counters, "
            f"random keys{replay}; {rest}"
        )

    def _observations(self) -> Iterator[str]:
        """How each observation enters the network."""
        net = self.config.net
        normalized = bool(getattr(self.config.settings, "normalize_observations", False))
        return described(self.spec, net.observations, net.network, normalized=normalized)

    def _learn(self, arch: Architecture, sinks: Record) -> tuple[str, dict[str, Any]]:
        """Learns; returns why it ended, and what the run had come to when that was decided (actors go on)."""
        if (reason := self._reason_to_stop(arch, self.hosts.agree(self._wish()))) is not None:
            return reason, self._standing(arch)
        if isinstance(arch, WithShards):
            self._start_shards(arch)
        addresses = self._open(arch)
        self.folder.keep(self.config)
        if self.pools is not None:
            self.pools.start_workers(addresses[0])
        joins = addresses[:1]
        if isinstance(arch, Rapid):
            joins = self._start_forward_servers(arch, addresses[0])
        if arch.desk is not None:
            self._start_actors(arch, arch.desk, joins)
        if arch.crew is not None:
            timeout = self.config.safety.env_timeout
            self._supervise(arch, arch.crew.start, partial(arch.crew.stalled, timeout))
        self.begun = self.row_at = self.saver.saved_at = time.monotonic()
        if not _has_actors(arch):
            # All is compiled, and no actor has to come first.
            self.steady.start(counts(arch)["received"])
        # One of several hosts stops with the others, after the same update.
        stop = self.interrupted if self.hosts.count == 1 else threading.Event()
        reason = "interrupted"
        latest: Mapping[str, Any] = {}
        for metrics in arch.updates(stop):
            if metrics is None:
                ending = self._while_waiting()
            else:
                ending = self._after_update(arch)
                self.steady.start(counts(arch)["received"])
                latest = metrics
            if self._row_is_due(arch):
                self._write(arch, sinks, metrics or {})
            if ending is not None:
                reason = ending
                break
        standing = self._standing(arch)
        # However short the run was, it has a row.
        self._write(arch, sinks, latest)
        return reason, standing

    def _while_waiting(self) -> str | None:
        """Why to stop while no batch comes.

        Time alone can run out then, so that what is counted ends a run at the same update however fast its actors are.
        """
        if self.hosts.count == 1:
            return self._out_of_time()
        if (lost := self.hosts.lost()) is not None:
            raise RunFailed(lost)
        return None

    def _after_update(self, arch: Architecture) -> str | None:
        """Agrees with the other hosts; begins a checkpoint if that is due, and returns why to stop."""
        due = time.monotonic() - self.saver.saved_at > 60 * self.config.safety.checkpoint_minutes
        told = self.hosts.agree({**self._wish(), "due": due, "saving": self.saver.busy, **arch.report()})
        arch.merge(told)
        reason = self._reason_to_stop(arch, told)
        due = any(each["due"] for each in told) and not any(each["saving"] for each in told)
        if reason is None and due:
            self.saver.begin(arch.version, partial(self._contents, arch))
        return reason

    def _contents(self, arch: Architecture, *, alone: bool = False) -> Contents:
        contents = arch.snapshot(alone=alone)
        return replace(contents, meta={**contents.meta, "seconds": self.seconds})

    def _wish(self) -> dict[str, Any]:
        """What this host alone knows of when to stop."""
        return {"interrupted": self.interrupted.is_set(), "time": self._out_of_time()}

    def _write(self, arch: Architecture, sinks: Record, metrics: Mapping[str, Any]) -> None:
        row = self._row(arch)
        found = jax.device_get(metrics)
        sinks.write({**row, **found})
        self._tell_of_skipped(int(np.max(found.get("skipped_updates", 0))), arch.version)
        for index, member in enumerate(arch.members()):
            known = {name: row[name] for name in ("seconds", "agent_steps", "env_frames")}
            returns = {name: member[name] for name in _OF_MEMBERS if name in member}
            with contextlib.closing(JsonLines(self.folder.metrics_of(index))) as file:
                file.write({**known, **returns})

    def _tell_of_skipped(self, skipped: int, updates: int) -> None:
        """Says once that many updates are skipped: the curve would only look slow."""
        if not self.told_of_skipped and skipped > _MOST_SKIPPED * updates:
            self.told_of_skipped = True
            self.display.note(
                f"{skipped} of {updates} updates were skipped, since their loss or gradient was not finite: look for "
                "observations and rewards that are not, or give a smaller --learning-rate"
            )

    def _open(self, arch: Architecture) -> list[str]:
        local = f"{CARRIERS[self.placed.placement.transport]}:{self.folder.socket()}"
        asked = self.placed.placement.listen
        addresses = arch.open([local, *self.folder.addresses(asked)])
        self.folder.keep_addresses(asked, addresses[1:])
        for address in addresses[1:]:
            dialled = seen_from_elsewhere(address)
            self.display.note(f"more actors: seedbed actor {dialled} --token {self.folder.token()}")
        return addresses

    def _start_shards(self, arch: WithShards) -> None:
        self.pools = Pools(arch, self.config, self.spec, self.folder, self.display.note)
        self.pools.start_shards(CARRIERS[self.config.placement.transport])

    def _start_forward_servers(self, arch: Rapid, address: str) -> list[str]:
        """Starts them; returns where rollout workers join, in turn."""
        self.forward = ForwardPool(arch, self.placed, self.agent, self.spec, self.folder, self.display.note)
        self.forward.start(address)
        return self.forward.addresses

    def _start_actors(self, arch: Architecture, desk: Desk, addresses: Sequence[str]) -> None:
        in_process = self.placed.placement.transport == "inproc"
        self.guard = None if in_process else Guard()
        token = self.folder.token()

        def start(index: int) -> Actor:
            address = addresses[index % len(addresses)]
            if in_process:
                return ThreadActor(index, address, token, self.folder.log)
            assert self.guard is not None
            words = ["seedbed.launch.actor", address, "--index", str(index)]
            if self.forward is not None:  # whose servers start beside the actors
                words += ["--patience", str(START_SECONDS)]
            return ProcessActor(words, token, self.folder.logs / f"actor-{index}.log", self.guard)

        def stalled() -> dict[int, float]:
            found = {}
            for member, seconds in desk.stalled(self.config.safety.env_timeout):
                if member.local:
                    if self.forward is None or not self.forward.holds_up(member.index):
                        found[member.index] = seconds
                else:
                    desk.dismiss(member, f"no step for {seconds:.0f} s")
            return found

        self._supervise(arch, start, stalled)

    def _supervise(
        self, arch: Architecture, start: Callable[[int], Actor], stalled: Callable[[], dict[int, float]]
    ) -> None:
        def late_with(seconds: float) -> str:
            return (
                f"its environments ({self.config.env}) took more than {seconds:.0f} s for one step "
                "(--env-timeout allows more)"
            )

        self.supervisor = Supervisor(
            start,
            self.placed.placement.actors,
            late_with=late_with,
            stalled=stalled,
            most_restarts=self.config.safety.actor_restarts,
            restart=self.placed.placement.lag == "free" and not self.config.deterministic,
            on_failure=arch.fail,
            note=self.display.note,
        )
        self.supervisor.start()

    @property
    def _restarts(self) -> int:
        return sum(watched.restarts for watched in self._watched)

    @property
    def seconds(self) -> float:
        """Seconds of training, over all sessions of the run."""
        return self.seconds_before + (time.monotonic() - self.begun if self.begun else 0.0)

    def _reason_to_stop(self, arch: Architecture, wishes: Sequence[Mapping[str, Any]]) -> str | None:
        """Why to stop, if there is a reason: the same on all hosts."""
        stop = self.config.stop
        if any(wish["interrupted"] for wish in wishes):
            return "interrupted"
        mean = arch.episodes.mean_return
        if (
            stop.until_return is not None
            and arch.episodes.full
            and mean is not None
            and mean >= stop.until_return
        ):
            return f"mean return {mean:.4g} reached {stop.until_return:g}"
        if stop.frames is not None and env_frames(arch) >= stop.frames:
            return f"{stop.frames} frames spent"
        return next((wish["time"] for wish in wishes if wish["time"]), None)

    def _out_of_time(self) -> str | None:
        minutes = self.config.stop.minutes
        if minutes is not None and self.seconds >= 60 * minutes:
            return f"{minutes:g} minutes spent"
        return None

    def _standing(self, arch: Architecture) -> dict[str, Any]:
        """What changes while actors act, all at one moment."""
        books, episodes = counts(arch), arch.episodes.row()
        steps = books["received"]
        return {
            "seconds": self.seconds,
            "agent_steps": steps,
            "env_frames": steps * arch.frames_per_step,
            "agent_steps_per_second": self.steady.per_second(steps),
            "mean_return": episodes.get("mean_return"),
            "best_mean_return": episodes.get("best_mean_return"),
            "episodes": int(episodes["episodes"]),
            "books": {f"steps_{name}": value for name, value in books.items()},
        }

    def _summary(self, arch: Architecture, reason: str, standing: dict[str, Any]) -> Summary:
        config, books = self.config, standing.pop("books")
        books["actor_restarts"] = self._restarts
        before = self._told_before(arch)
        for values in (standing, books):
            values.update({name: before[name] for name in values.keys() & before.keys()})
        return Summary(
            env=config.env,
            arch=config.arch,
            agent=config.agent,
            transport=self.placed.placement.transport if arch.desk else "none",
            seed=config.seed,
            **standing,
            weights_version=arch.version,
            policy_lag_mean=arch.lag.mean,
            policy_lag_max=arch.lag.maximum,
            params_sha256=_digest(arch),
            stopped_because=reason,
            more={
                "run_dir": str(self.folder.path),
                "deterministic": config.deterministic,
                "convolutions": convolving(),
                "skipped_updates": arch.skipped,
                **books,
                **({"host": self.hosts.index, "hosts": self.hosts.count} if self.hosts.count > 1 else {}),
                **self._side_by_side(arch),
            },
        )

    def _told_before(self, arch: Architecture) -> dict[str, Any]:
        """The summary of the session before, if there was nothing left to do in this one; else empty.

        Actors had gone on for a moment between that summary and its checkpoint.
        """
        if self.begun is not None or not self.resumed:
            return {}
        try:
            before = read_summary(self.folder.summary)
        except ConfigError:  # none, or a damaged one: it is about to be written anew
            return {}
        return before if before.get("weights_version") == arch.version else {}

    def _side_by_side(self, arch: Architecture) -> dict[str, Any]:
        """How the agents compare that were trained side by side, and which of them the checkpoint holds."""
        if not (agents := arch.members()):
            return {}
        groups: dict[str, list[float]] = {}
        for member, found in zip(self.members, agents, strict=True):
            if "mean_return" in found:  # an episode has ended
                groups.setdefault(member.swept, []).append(found["mean_return"])
        assert isinstance(arch.episodes, EpisodesOfSeveral)
        return {
            "members": agents,
            "best_member": arch.episodes.best,
            "compared": {name: asdict(estimate(means)) for name, means in groups.items()},
        }

    def _stop(self, arch: Architecture) -> None:
        self._stand_down()
        arch.close()
        for watched in self._watched:
            watched.stop()
        if self.guard is not None:
            self.guard.close()

    # Rows, checkpoints, actors that come and go.

    def _row_is_due(self, arch: Architecture) -> bool:
        now = time.monotonic()
        assert self.begun is not None, "rows are of what was learned"
        # What was learned first is told sooner: a run of a second has a curve too.
        sooner = max(_FIRST_ROW_SECONDS, (now - self.begun) / 10) if arch.version else _ROW_SECONDS
        if now - self.row_at < min(_ROW_SECONDS, sooner):
            return False
        self.row_at = now
        return True

    def _row(self, arch: Architecture) -> dict[str, Any]:
        meters = arch.meters()
        self.rate.observe(meters["agent_steps"])
        per_second = self.rate.per_second
        return {
            **meters,
            **self.saver.meters(),
            "seconds": self.seconds,
            "agent_steps_per_second": per_second,
            "frames_per_second": per_second * arch.frames_per_step,
            "actor_restarts": self._restarts,
            "memory_bytes": self.process.memory_info().rss,
            "actors_memory_bytes": _memory_of_children(self.process),
            "cpu_seconds": _processor_time(self.process),
        }

    def _note(self, line: str) -> None:
        self.display.note(line)

    def _on_join(self, member: Any) -> None:
        _log.info("actor %d joined (%s)", member.index, member.peer.name)
        if not member.local:
            self.display.note(f"actor {member.index} joined from elsewhere ({member.peer.name})")

    def _on_leave(self, member: Any, reason: str) -> None:
        _log.info("actor %d left: %s", member.index, reason)
        if not member.local:
            self.display.note(f"actor {member.index} left: {reason}")


def _has_actors(arch: Architecture) -> bool:
    return arch.desk is not None or arch.crew is not None or isinstance(arch, WithShards)


def _digest(arch: Architecture) -> str:
    """That of the parameters; empty if they are gone with what failed."""
    try:
        return digest(arch.train_state.params)
    except (RuntimeError, SeedbedError) as error:  # a program that fails has used up what it was given
        _log.error("the parameters are gone", exc_info=error)
        return ""


def _processor_time(process: psutil.Process) -> float:
    """Seconds that ``process`` has computed, and all below it, those that have ended too."""
    total = 0.0
    for each in [process, *process.children(recursive=True)]:
        with contextlib.suppress(psutil.Error):
            times = each.cpu_times()
            total += times.user + times.system + times.children_user + times.children_system
    return total


def _memory_of_children(process: psutil.Process) -> int:
    """Resident bytes of all processes below ``process``; one that ends meanwhile counts as none."""
    total = 0
    for child in process.children(recursive=True):
        with contextlib.suppress(psutil.Error):
            total += child.memory_info().rss
    return total
