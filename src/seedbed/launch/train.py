"""The start and the resumption of runs, on one host or several: ``seedbed train`` and ``seedbed resume``."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Collection, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from seedbed.acting.trust import foreign_names
from seedbed.architectures.compatibility import load_architecture, require_fit
from seedbed.architectures.shares import require_equal_shares
from seedbed.config import resolve
from seedbed.config.settings import RunConfig
from seedbed.config.variants import require_meaning
from seedbed.errors import ConfigError, ExecuteAgain, InUse, RunFailed, StoreUnreachable
from seedbed.launch.build import build_agent, build_spec, outlook, told_preset
from seedbed.launch.folder import GOING_ON, RunFolder
from seedbed.launch.hosts import Hosts, common_checkpoint, follow, lead
from seedbed.launch.launcher import Launch
from seedbed.launch.rendezvous import only_here
from seedbed.launch.retrieval import bring_back
from seedbed.launch.session import Session
from seedbed.launch.signals import ending_as_by_ctrl_c
from seedbed.launch.store import Store, patiently
from seedbed.launch.surroundings import held, keep_no_programs, require_files
from seedbed.launch.warm_start import require_same_policies, warm_started
from seedbed.learning.checkpoint import any_saved
from seedbed.metrics.reports import Summary, read_summary, summary_from
from seedbed.metrics.say import say
from seedbed.metrics.sinks import OnRow
from seedbed.transport.admission import Invitation
from seedbed.types import Agent, EnvSpec


@held()
def train(config: RunConfig, *, launch: Launch | None = None, on_row: OnRow | None = None) -> Summary:
    """Trains an agent in a new run folder and returns the summary, which is also written there.

    With ``begin_or_resume`` a run that is in the folder, or in the store, already is resumed, with the limits of
    ``config``. If it is over, its summary is returned.

    Args:
      config: settings of the run.
      launch: function that makes the launcher of the run's instances; None for the one in the settings.
      on_row: function that is called with each row of metrics, names to numbers, in the thread that trains; when it
        begins to raise errors that is told, and training goes on.

    Raises:
      ConfigError: a setting does not fit; nothing was started.
      ExecuteAgain: with ``begin_or_resume``, another process trained in the folder for a minute.
      StoreUnreachable: the store could not be reached for a minute; nothing was started.
      Overtaken: another session goes on with the run.
      RunFailed: the run failed; the message names the component, the cause and the log.
    """
    require_files()
    if config.cluster.hosts > 1:  # before any of them is waited for
        require_equal_shares(config)
    if config.cluster.host:
        assert config.cluster.coordinator is not None, (
            "a host that is not the first has to be told where that is"
        )
        if config.begin_or_resume:
            if (over := _part_that_is_over(config)) is not None:
                return over
            _once_free(lambda: _part_of(config).require_free())
        return take_part(config.cluster.coordinator, config.cluster.host, config, on_row=on_row)
    store = _opened(config.store)
    if config.begin_or_resume:
        if (summary := _once_free(lambda: _gone_on(config, store, on_row))) is not None:
            return summary
    elif store is not None:
        patiently(store.require_empty)
    require_meaning(config)
    if config.cluster.hosts > 1:
        folder = RunFolder.create(config)
        try:
            return _lead(config, folder, resumed=False, on_row=on_row)
        except ConfigError:
            folder.discard()
            raise
    spec, agent = _built(config, resumed=False)
    folder = RunFolder.create(config)
    try:
        with folder.held():
            return Session(config, spec, agent, folder, launch=launch, store=store, on_row=on_row).run()
    except KeyboardInterrupt:
        folder.discard()
        raise
    except (ConfigError, StoreUnreachable):
        folder.discard()
        if store is not None and not folder.begun:
            store.withdraw()
        raise


@held()
def resume(
    path: str,
    *,
    rotate_token: bool = False,
    trust: Collection[str] | None = (),
    on_row: OnRow | None = None,
    **changes: Any,
) -> Summary:
    """Resumes a run from its newest intact checkpoint, or begins it anew if it stopped before the first one.

    With a ``store`` the run is fetched from there if it is not in the folder.

    Args:
      path: run folder.
      rotate_token: whether the run gets a new token, so that remote actors and hosts need the new one to join.
      trust: names ``module:name`` that the run may have imported, if this user did not begin it here; None for any.
      on_row: function that is called with each row of metrics, as by :func:`train`.
      **changes: settings with other values than before, by name (``frames=…``); the run keeps them.

    Raises:
      ConfigError: there is no such run, none of its checkpoints is intact, it names a module that is not trusted, or
        its store is none.
      StoreUnreachable: its store could not be reached for a minute; nothing was started.
      RunFailed: the run failed, as for :func:`train`.
    """
    require_files()
    if changes.get("host"):
        address, insecure = _coordinator(path, changes, trust)
        return take_part(
            address, changes["host"], path=Path(path), insecure=insecure, trust=trust, on_row=on_row
        )
    folder, store = _at_hand(path, changes)
    changes = {**changes, "begin_or_resume": False}
    return _go_on(folder, store, trust, changes, rotate_token=rotate_token, on_row=on_row)


def _go_on(
    folder: RunFolder,
    store: Store | None,
    trust: Collection[str] | None,
    changes: Mapping[str, Any],
    *,
    rotate_token: bool = False,
    on_row: OnRow | None = None,
) -> Summary:
    """Goes on with the run in a folder, as :func:`resume` does."""
    before = folder.config(trust)
    folder.require_modules()
    if before.cluster.host:
        run = folder.path.parent.parent
        raise ConfigError(
            f"{folder.given} is one host's part of a run: seedbed resume {run} --host {before.cluster.host}"
        )
    config = resolve.replace(before, **{**changes, "run_dir": str(folder.given)})
    for name, was, now in (
        ("arch", before.arch, config.arch),
        ("hosts", before.cluster.hosts, config.cluster.hosts),
    ):
        if was != now:
            raise ConfigError(f"{name} was {was} and is {now} now: a run keeps what it was; begin a new one")
    if rotate_token:
        folder.rotate_token()
    if config.cluster.hosts > 1:
        return _lead(config, folder, resumed=True, on_row=on_row)
    # Locked before checkpoints are read: a run that is ending writes one more.
    with folder.held(), folder.going_on():
        checkpoint = folder.newest(*GOING_ON) if any_saved(folder.checkpoints) else None
        spec, agent = _built(config, resumed=checkpoint is not None)
        return Session(
            config, spec, agent, folder, checkpoint, resumed=True, store=store, on_row=on_row
        ).run()


CHANGEABLE = frozenset(
    {
        "frames",
        "minutes",
        "until_return",
        "actors",
        "guests",
        "on",
        "listen",
        "host",
        "coordinator",
        "store",
        "log",
    }
)
"""Settings that may be others when a run is resumed."""
_OF_ENGINES = frozenset({"max_envs", "max_actors", "inference_batch", "tls_cert"})
"""Further settings that may be others when a command is executed again: manifests have them follow the actors."""
_OF_THE_COMMAND = frozenset({"run_dir", "json", "video", "begin_or_resume"})
"""Settings of a command and not of what is computed."""
_IN_USE_SECONDS = 60.0
"""Patience with another process in the run folder."""
_LOOK_SECONDS = 0.5
"""Seconds between two looks whether it has gone."""


def _opened(url: str | None) -> Store | None:
    return patiently(partial(Store.open, url)) if url else None


def _begun(config: RunConfig, store: Store | None) -> RunFolder | None:
    """Returns the folder of the run that the configuration names, if there is a run in it, or in the store."""
    assert config.run_dir is not None
    folder = RunFolder(Path(config.run_dir))
    if store is not None:
        patiently(partial(bring_back, folder, store))
    return folder if folder.begun else None


def _gone_on(config: RunConfig, store: Store | None, on_row: OnRow | None) -> Summary | None:
    """Goes on with the run that the configuration names; returns None if there is none yet."""
    folder = _begun(config, store)
    return None if folder is None else _again(folder, config, store, on_row)


def _once_free(go_on: Callable[[], Summary | None]) -> Summary | None:
    """Calls a function, again while another process trains in the run folder: one that an engine ends saves its state.

    Raises:
      ExecuteAgain: it did so for a minute.
    """
    until = time.monotonic() + _IN_USE_SECONDS
    while True:
        try:
            return go_on()
        except InUse as error:
            if time.monotonic() > until:
                raise ExecuteAgain(str(error)) from error
        time.sleep(_LOOK_SECONDS)


def _at_hand(path: str, changes: Mapping[str, Any]) -> tuple[RunFolder, Store | None]:
    """Returns a run's folder, fetched from the store where it is missing or old, and the store."""
    folder = RunFolder(Path(path))
    url = changes["store"] if "store" in changes else folder.store()
    store = _opened(url)
    if store is not None:
        patiently(partial(bring_back, folder, store))
    return RunFolder.open(path), store


def _again(folder: RunFolder, config: RunConfig, store: Store | None, on_row: OnRow | None = None) -> Summary:
    """Goes on with a run whose command is executed again; returns the summary of one that is over.

    Raises:
      ConfigError: the run has other settings than this command.
    """
    trust, before, changes = _changes(folder, config)
    if fixed := sorted(changes.keys() - CHANGEABLE - _OF_ENGINES):
        was = ", ".join(f"{name} was {before.get(name)} and is {changes[name]}" for name in fixed)
        raise ConfigError(
            f"{folder.given} holds a run with other settings: {was}; give those of the run, or another --run-dir"
        )
    if not changes and (summary := _told_to_be_over(folder)) is not None:
        return summary
    changes["begin_or_resume"] = True  # the session is this command's
    if config.store is not None:
        changes["store"] = config.store  # also one that the folder names: this command means it
    return _go_on(folder, store, trust, changes, on_row=on_row)


def _part_of(config: RunConfig) -> RunFolder:
    """Returns the folder of a host's part of a run."""
    assert config.run_dir is not None
    return RunFolder(Path(config.run_dir) / "hosts" / str(config.cluster.host))


def _part_that_is_over(config: RunConfig) -> Summary | None:
    """Returns the summary of a host's part of a run that is over, which host 0 would not wait for; None if it is not.

    A change of settings is host 0's to judge.
    """
    assert config.run_dir is not None
    folder = _part_of(config)
    if not folder.begun:
        return None
    run = RunFolder(Path(config.run_dir))
    if run.begun and not _is_over(run):  # host 0 was lost before it had told so
        return None
    _, _, changes = _changes(folder, config)
    return None if changes.keys() - {"host", "coordinator"} else _told_to_be_over(folder)


def _changes(folder: RunFolder, config: RunConfig) -> tuple[set[str], dict[str, Any], dict[str, Any]]:
    """Compares the run in a folder with a command that is executed again.

    Returns:
      The names that the command may have the run import, the run's settings, and those that the command changes.
    """
    trust = foreign_names(resolve.to_json(config))  # the command names them again
    before, now = resolve.flat(folder.config(trust)), resolve.flat(config)
    return (
        trust,
        before,
        {
            name: value
            for name, value in now.items()
            if name not in _OF_THE_COMMAND and value != before.get(name)
        },
    )


def _is_over(folder: RunFolder) -> bool:
    """Returns whether a run has reached one of its limits, and no session has begun since."""
    if not folder.summary.exists() or folder.goes_on_since_its_summary:
        return False
    reason = str(read_summary(folder.summary).get("stopped_because", ""))
    return not reason.startswith(("interrupted", "failed"))


def _told_to_be_over(folder: RunFolder) -> Summary | None:
    """Returns the summary of a run that has reached one of its limits, and says so; None for any other."""
    if not _is_over(folder):
        return None
    # In the place where it is now: it may have been fetched from a store, or moved.
    summary = summary_from({**read_summary(folder.summary), "run_dir": str(folder.path)})
    say(f"the run in {folder.given} is over: {summary.stopped_because}")
    return summary


def _built(config: RunConfig, *, resumed: bool) -> tuple[EnvSpec, Agent]:
    spec = build_spec(config)
    agent = build_agent(config, spec)
    require_fit(config, agent)
    lines = [] if resumed else told_preset(config)
    lines += outlook(config, spec, agent)
    if config.init_from is not None and not resumed:
        require_same_policies(config, spec, config.init_from)
        agent, found = warm_started(agent, config.init_from)
        lines.append(found)
    for line in lines if config.cluster.host == 0 else ():
        say(line)
    return spec, agent


def _lead(config: RunConfig, folder: RunFolder, *, resumed: bool, on_row: OnRow | None) -> Summary:
    """Runs host 0's part of a run of several hosts."""
    keep_no_programs()
    begun = resumed
    with folder.held():
        try:
            with contextlib.ExitStack() as stack:
                if config.cluster.coordinator is not None:
                    say(
                        f"host 0 waits at {config.cluster.coordinator} for hosts 1 to {config.cluster.hosts - 1}"
                    )
                    if (reason := only_here(config.cluster.coordinator)) is not None:
                        say(reason)
                with ending_as_by_ctrl_c():
                    hosts = lead(config, folder, stack, resumed=resumed)
                begun = True
                return _with_others(hosts, config, folder, resumed, on_row)
        except BaseException:
            if not begun:  # the other hosts have ended by now, and their logs stay
                folder.discard()
            raise


def take_part(
    address: str,
    index: int,
    config: RunConfig | None = None,
    path: Path | None = None,
    *,
    insecure: bool = False,
    invitation: Invitation | None = None,
    trust: Collection[str] | None = (),
    on_row: OnRow | None = None,
) -> Summary:
    """Runs one host's part of a run whose host 0 is elsewhere and has the settings; returns this host's summary.

    Its folder is ``hosts/INDEX`` in the run folder on this machine.

    Args:
      address: address of the coordinator, host 0.
      index: number of this host, 1 or more.
      config: settings of this host, refused if they differ from host 0's; None to take host 0's.
      path: run folder on this machine; None for the one in the settings, or host 0's.
      insecure: whether to talk to host 0 in plain text over the network; ``config`` may say so too.
      invitation: this host's credentials; None to take them from ``SEEDBED_JOIN`` or from the run folder.
      trust: names ``module:name`` that host 0 may have this host import, beside the names in ``config`` and in a run
        that this user has begun at ``path``; None for any.
      on_row: function that is called with each row of this host's metrics; None for none.

    Raises:
      ConfigError: host 0 refused this host.
      RunFailed: the run failed, as for :func:`train`.
    """
    keep_no_programs()
    with contextlib.ExitStack() as stack:
        known = path or (Path(config.run_dir) if config and config.run_dir else None)
        insecure = insecure or (config is not None and config.cluster.insecure)
        trusted = None if trust is None else {*trust, *_own_names(config, known, index)}
        hosts, settings, theirs, resumed = follow(
            address,
            index,
            config,
            stack,
            invitation=lambda: invitation or _invitation(known, insecure),
            trust=trusted,
        )
        run = known or theirs
        folder = RunFolder(run / "hosts" / str(index))
        settings = resolve.replace(settings, run_dir=str(folder.given))
        if not (resumed and folder.begun):
            folder = RunFolder.create(settings)
        stack.enter_context(folder.held())
        try:
            return _with_others(hosts, settings, folder, resumed, on_row)
        except (
            ConfigError,
            RunFailed,
        ):  # of this host, or of another, whose next start must not find this folder
            folder.discard()
            raise


def _own_names(config: RunConfig | None, run: Path | None, index: int) -> set[str]:
    """Names that a host may import at host 0's word: its own flags have them, or its user's own run."""
    own = foreign_names(resolve.to_json(config)) if config else set()
    folders = (run, run / "hosts" / str(index)) if run else ()
    return own.union(*(RunFolder(folder).own_names() for folder in folders))


def _invitation(run: Path | None, insecure: bool) -> Invitation:
    """Returns a host's credentials: from ``SEEDBED_JOIN``, or from the run folder if it shares a disk with host 0."""
    text = os.environ.get("SEEDBED_JOIN", "")
    if text:
        return Invitation.parse(text, insecure=insecure)
    if run is None or not RunFolder(run).has_token:
        none = "" if run is None else f", and {run} on this machine has none"
        raise ConfigError(
            f"host 0 lets nobody in who does not know the run's token{none}: set SEEDBED_JOIN to what host 0 printed, "
            "or give the --run-dir of a disk that both have"
        )
    return RunFolder(run).invitation(insecure=insecure)


def _coordinator(path: str, changes: Mapping[str, Any], trust: Collection[str] | None) -> tuple[str, bool]:
    """Returns the address of host 0 of a resumed run, and whether to talk to it in plain text."""
    own = RunFolder(Path(path) / "hosts" / str(changes["host"]))
    before = own.config(trust).cluster if own.begun else None
    address = changes.get("coordinator") or (before and before.coordinator)
    insecure = changes.get("insecure", before is not None and before.insecure)
    if address is None:
        raise ConfigError(
            f"host {changes['host']} has to be told where host 0 is: add --coordinator HOST:PORT"
        )
    return str(address), bool(insecure)


def _with_others(
    hosts: Hosts, config: RunConfig, folder: RunFolder, resumed: bool, on_row: OnRow | None = None
) -> Summary:
    """Runs one host's part of a run of several, once all hosts have joined."""
    exact = config.deterministic and not load_architecture(config.arch).always_exact
    checkpoint = common_checkpoint(hosts, folder.checkpoints, own=exact) if resumed else None
    spec, agent = _built(config, resumed=checkpoint is not None)
    return Session(config, spec, agent, folder, checkpoint, resumed=resumed, hosts=hosts, on_row=on_row).run()
