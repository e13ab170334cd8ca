"""A session of a run, from its start or resumption to its summary: it builds the architecture, trains and records."""

from __future__ import annotations

import contextlib
import json
import logging
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from seedbed.acting.assignment import EPOCHS_A_SESSION
from seedbed.architectures.compatibility import load_architecture
from seedbed.architectures.interface import Setup
from seedbed.architectures.roles import carrier_of
from seedbed.config.resolve import to_json
from seedbed.config.settings import RunConfig
from seedbed.config.variants import variants
from seedbed.errors import ConfigError, RunFailed, SeedbedError, cause_of
from seedbed.launch.build import build_agent
from seedbed.launch.copier import Copier
from seedbed.launch.ending import Ending
from seedbed.launch.folder import RunFolder
from seedbed.launch.hosts import Hosts
from seedbed.launch.launcher import Launch, launcher_on
from seedbed.launch.listening import Listening
from seedbed.launch.live import LiveFile
from seedbed.launch.logs import logging_to, showing_notes
from seedbed.launch.machine import convolving
from seedbed.launch.outcome import (
    curves_of,
    observations_of,
    origin_of,
    resumption_of,
    summary_of,
)
from seedbed.launch.recorder import Recorder, TrainingTime
from seedbed.launch.saver import Saver
from seedbed.launch.services import makers, sinks
from seedbed.launch.signals import Interruption, heeding_signals
from seedbed.launch.software import commit
from seedbed.launch.stopping import Stopping
from seedbed.launch.store import Store, patiently
from seedbed.launch.supervisor import Supervisor
from seedbed.launch.warm_start import begun_alike
from seedbed.learning.checkpoint import Checkpoint, Contents
from seedbed.learning.run import Run
from seedbed.metrics.console import display
from seedbed.metrics.reports import Summary, draw_curve, title
from seedbed.metrics.services import Recorded
from seedbed.metrics.sinks import Handed, JsonLines, OnRow, Record, Sink, TensorBoard
from seedbed.types import Agent, EnvSpec

_log = logging.getLogger(__name__)


class Session:
    """One session of a run: the work of one process between ``seedbed train`` or ``resume`` and the summary.

    Args:
      config: settings of the run.
      spec: spec of the environments.
      agent: the agent.
      folder: run folder, locked by this process.
      checkpoint: checkpoint from which to go on; None to begin.
      resumed: whether the run was begun before, also if it has no checkpoint.
      hosts: the hosts of the run, as this one sees them; None if it is alone.
      launch: function that makes the launcher of the run's instances; None for the one in the settings.
      store: store that the run's state is copied to; None for none.
      on_row: function that is called with each row of metrics; None for none.
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
        launch: Launch | None = None,
        store: Store | None = None,
        on_row: OnRow | None = None,
    ) -> None:
        self.config = config
        self.on_row = on_row
        self.hosts = hosts or Hosts()
        # The placement of the parts.
        self.architecture = load_architecture(config.arch)
        self.placed = self.architecture.place(config)
        self.program = self.architecture.program(self.placed, agent, spec)
        self.spec = spec
        self.agent = agent
        self.folder = folder
        self.checkpoint = checkpoint
        self.resumed = resumed
        # A run that was stopped before its first update leaves a checkpoint too. In deterministic mode it begins anew
        # instead, with the same result, since actors that have not joined yet cannot be paused.
        nothing = 0 if config.deterministic else -1
        self.store = store
        self.copier = self._copier(store) if store else None
        self.saver = Saver(
            folder.checkpoints,
            keep=config.safety.keep_checkpoints,
            beside=not config.deterministic,
            saved_version=checkpoint.step if checkpoint else nothing,
            note=self._note,
            overtaken=folder.overtaken,
            saved=self.copier.offer if self.copier else lambda version: None,
            spared=self.copier.spared if self.copier else tuple,
        )
        self.clock = TrainingTime(float(checkpoint.meta["seconds"]) if checkpoint else 0.0)
        commit()  # as it is now, for the summary
        self.interrupted = Interruption()
        self.stopping = Stopping(config.stop, self.clock, self.interrupted)
        self.services = {} if config.cluster.host else makers(config.log)
        self.ending = Ending(
            folder,
            self.hosts,
            self.saver,
            paused=config.deterministic and (self.hosts.count > 1 or self.program.has_instances),
            contents=self._contents,
            summary=self._summary,
        )
        self.supervisor: Supervisor | None = None
        self.launcher = (launch or launcher_on(config.on))(folder, carrier_of(self.placed))
        with contextlib.ExitStack() as undone:
            undone.callback(self.launcher.close)
            self.listening = Listening(self.placed, folder, self.launcher)
            undone.pop_all()

    def run(self) -> Summary:
        """Trains until there is a reason to stop; writes checkpoints, the summary and the learning curve.

        Returns:
          The summary.

        Raises:
          ConfigError: a setting does not fit; nothing was started.
          StoreUnreachable: the store cannot be read and written; nothing was started.
          RunFailed: the run failed; the message names the component, the cause and the log.
        """
        config, folder = self.config, self.folder
        # With its options: a preset may have set one that changes the scale of the returns.
        env = " ".join([config.env, *config.env_options])
        self.variants = variants(config)
        seeds = sorted({variant.seed for variant in self.variants})
        heading = title(env, config.arch, config.agent, seeds)
        with (
            heeding_signals(self.interrupted),
            logging_to(folder.log),
            contextlib.closing(self.launcher),
        ):
            files: list[Sink] = [
                LiveFile(folder.live, self._instances),  # first: whoever sees a row sees the instances, too
                JsonLines(folder.metrics),
                TensorBoard(folder.events, resumed=self.resumed, settings=to_json(config)),
                *sinks(self.services, Recorded(folder.path, to_json(config), heading, folder.run_id())),
                *([Handed(self.on_row)] if self.on_row else []),
            ]
            self.display = display(heading, self.stopping.budget)
            with (
                contextlib.closing(Record([self.display, *files], self.display.note)) as record,
                showing_notes(self.display.note) as self.notes,
                contextlib.ExitStack() as stack,
            ):
                self._announce()
                if self.copier is not None:
                    stack.callback(self.copier.close)
                self.session = self._count_session()
                self.recorder = stack.enter_context(contextlib.closing(self._recorder(record)))
                self.ending.watch(self.recorder.standing, self.display.close)
                stack.callback(self._copy_the_end)
                # Whatever ends the run from here on, it is this thread that ends it.
                stack.callback(self.ending.come_back)
                arch = self.ending.run = self._build()
                stack.callback(self._stop, arch)
                summary = self._train(arch)
        try:
            draw_curve(curves_of(folder, self.variants), folder.curve, heading, config.stop.until_return)
        except Exception as error:
            # The training is done and saved.
            self.display.note(f"no curve: {cause_of(error)}")
        return summary

    def _recorder(self, record: Record) -> Recorder:
        return Recorder(
            self.folder,
            record,
            self.display.note,
            self.clock,
            session=self.session,
            episodes=not self.agent.data.dataset,
            more=lambda: {**self.saver.meters(), "actor_restarts": self._restarts},
        )

    def _copier(self, store: Store) -> Copier:
        return Copier(
            self.folder,
            store,
            step=self.checkpoint.step if self.checkpoint else None,
            keep=self.config.safety.keep_checkpoints,
            note=self._note,
        )

    def _count_session(self) -> int:
        """Returns the number of this session: the largest one that any host has counted."""
        told = self.hosts.agree({"session": self.folder.session(self.resumed)})
        number = max(int(each["session"]) for each in told)
        if self.store is not None:
            number = patiently(
                partial(self.store.claim, self.folder, number),
                note=self.display.note,
                wait=self.interrupted.wait,
            )
        self.folder.keep_session(number)
        self.folder.keep_spec(self.spec)
        self.folder.keep_program(self.program.to_json())
        return number

    def _instances(self) -> list[dict[str, Any]]:
        return self.supervisor.standing() if self.supervisor else []

    def _build(self) -> Run:
        setup = Setup(
            self.placed,
            self.agent,
            self.spec,
            token=self.folder.token(),
            claim=self.listening.claim,
            gate=self.listening.gate,
            log=self.folder.log,
            checkpoint=self.checkpoint,
            agent_with=self._agent_with,
            # Above the epochs of all earlier sessions, however they ended.
            first_epoch=0 if self.config.deterministic else self.session * EPOCHS_A_SESSION,
            on_join=self.recorder.joined,
            on_leave=self.recorder.left,
            on_note=self.notes.hear,
        )
        try:
            return self.architecture.build(setup)
        except ConfigError:
            raise
        except Exception as error:
            raise self.ending.failure(error) from error

    def _train(self, arch: Run) -> Summary:
        """Trains, and writes the last checkpoint and the summary also after a failure."""
        failure: SeedbedError | None = None
        taken: Contents | None = None
        try:
            reason, standing = self._learn(arch)
            if reason == "interrupted":
                self.display.note("interrupted: ending the run; Ctrl-C again quits at once")
            if self._rest(arch):
                standing = self.recorder.standing(arch)
            taken = self.ending.last_snapshot(arch)
        except ConfigError:
            raise
        except Exception as error:
            failure = self.ending.failure(error)
            self._rest(arch)
            reason, standing = f"failed: {failure}", self.recorder.standing(arch)
        finally:
            self.ending.come_back()
        return self.ending.end(arch, reason, standing, taken, failure)

    def _rest(self, arch: Run) -> bool:
        """Ends learning in other threads and processes, so that checkpoint and summary are of one moment.

        Returns:
          Whether there was any, so that counts taken before are out of date.
        """
        if (supervisor := self.supervisor) is None:
            return False
        return arch.rest(supervisor.stand_down, partial(supervisor.stop, self.program.after))

    def _copy_the_end(self) -> None:
        """Has the last checkpoint, rows and summary copied to the store, if there is one.

        By then nothing of the run is alive but this process: a store may take its time.
        """
        reason = self.ending.reason
        if self.copier is not None and reason and self.folder.overtaken() is None:
            self.copier.finish_or_say(self.interrupted, soon=reason.startswith(("interrupted", "failed")))

    def _announce(self) -> None:
        for name, value in origin_of(self.config).items():
            _log.info("%s: %s", name, json.dumps(value, ensure_ascii=False))
        _log.info("convolutions: %s", convolving())
        for line in observations_of(self.config, self.spec):
            _log.info("%s", line)
            self.display.note(line)
        if self.resumed:
            for line in resumption_of(self.checkpoint, self.config, self.agent, self.architecture):
                self.display.note(line)

    def _learn(self, arch: Run) -> tuple[str, dict[str, Any]]:
        """Trains; returns the reason for the end, and the counts at that decision (actors go on acting)."""
        if (reason := self.stopping.reason(arch, self.hosts.agree(self.stopping.wish()))) is not None:
            return reason, self.recorder.standing(arch)
        if self.resumed:
            self.recorder.write_where_it_begins(arch)
        supervisor = self.supervisor = self._supervised(arch)
        self.listening.meet()
        local = self.launcher.address(self.program[self.program.head], 0)
        dialled = supervisor.start(self.program.before)
        addresses = self.listening.open(arch, local, dialled, self.display.note)
        self.folder.keep(self.config)
        if self.copier is not None:
            self.copier.begin()
        # Actors make their environments while this process compiles; threads that decide themselves start afterwards.
        supervisor.start([role for role in self.program.after if role.entry], addresses)
        arch.begin()
        supervisor.begin()
        supervisor.start([role for role in self.program.after if not role.entry])
        self.recorder.begin()
        self.saver.saved_at = time.monotonic()
        if not self.program.has_instances:
            # All is compiled, and no actor has to join first.
            self.recorder.steady(arch)
        # Several hosts stop together, after the same update.
        stop = self.interrupted if self.hosts.count == 1 else threading.Event()
        reason = "interrupted"
        latest: Mapping[str, Any] = {}
        for metrics in arch.updates(stop):
            supervisor.seen()
            if metrics is None:
                ending = self._while_waiting()
            else:
                ending = self._after_update(arch)
                self.recorder.steady(arch)
                latest = metrics
            self.recorder.write_if_due(arch, metrics or {})
            if ending is not None:
                reason = ending
                break
        standing = self.recorder.standing(arch)
        # Even the shortest run has a row.
        self.recorder.write(arch, latest)
        return reason, standing

    def _while_waiting(self) -> str | None:
        """Returns the reason to stop while no batch is ready, or None; raises :class:`RunFailed` if a host is lost."""
        if self.hosts.count == 1:
            return self.stopping.out_of_time()
        if (lost := self.hosts.lost()) is not None:
            raise RunFailed(lost)
        return None

    def _after_update(self, arch: Run) -> str | None:
        """Agrees with the other hosts, begins a checkpoint if one is due, and returns the reason to stop, or None."""
        due = time.monotonic() - self.saver.saved_at > 60 * self.config.safety.checkpoint_minutes
        told = self.hosts.agree(
            {**self.stopping.wish(), "due": due, "saving": self.saver.busy, **arch.report()}
        )
        arch.merge(told)
        reason = self.stopping.reason(arch, told)
        due = any(each["due"] for each in told) and not any(each["saving"] for each in told)
        if reason is None and due:
            self.saver.begin(arch.version, partial(self._contents, arch))
        return reason

    def _contents(self, arch: Run, *, alone: bool = False) -> Contents:
        contents = arch.snapshot(alone=alone)
        return replace(contents, meta={**contents.meta, "seconds": self.clock.seconds})

    def _supervised(self, arch: Run) -> Supervisor:
        """Returns the supervisor of the run's instances; none is started yet."""
        return Supervisor(
            self.program,
            self.launcher,
            arch.instances,
            run=to_json(self.placed),
            spec=self.spec.to_json(),
            on_failure=arch.fail,
            note=self.display.note,
            version=lambda: arch.version,
        )

    def _agent_with(self, values: Mapping[str, Any]) -> Agent:
        """Returns the agent with other values of some settings; with ``init_from`` it begins as this one does."""
        agent = build_agent(self.config, self.spec, values)
        return agent if self.config.init_from is None else begun_alike(agent, self.agent)

    @property
    def _restarts(self) -> int:
        return self.supervisor.restarts if self.supervisor else 0

    def _summary(self, arch: Run, reason: str, standing: dict[str, Any]) -> Summary:
        return summary_of(
            arch,
            self.config,
            reason,
            standing,
            folder=self.folder,
            hosts=self.hosts,
            variants=self.variants,
            transport=carrier_of(self.placed) if self.program.is_dialled else "none",
            restarts=self._restarts,
            told_before=self.resumed and not self.clock.begun,
            interrupted_by=self.interrupted.by if reason == "interrupted" else "",
        )

    def _stop(self, arch: Run) -> None:
        with contextlib.ExitStack() as stack:
            if self.supervisor is not None:
                self.supervisor.stand_down()
                stack.callback(self.supervisor.stop)
            arch.close()

    def _note(self, line: str) -> None:
        self.display.note(line)
