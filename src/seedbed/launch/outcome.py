"""The lines that a session opens with, and the summary that it leaves."""

from __future__ import annotations

import logging
import shlex
import socket
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from dataclasses import replace as with_other
from pathlib import Path
from typing import Any

from seedbed import limits
from seedbed.acting.trust import foreign_names
from seedbed.architectures.interface import Architecture
from seedbed.config.resolve import replace, to_json
from seedbed.config.settings import RunConfig
from seedbed.config.variants import Variant
from seedbed.config.words import words_of
from seedbed.errors import ConfigError, SeedbedError
from seedbed.launch.folder import RunFolder
from seedbed.launch.hosts import Hosts
from seedbed.launch.machine import convolving
from seedbed.launch.software import commit, versions
from seedbed.learning.checkpoint import Checkpoint, digest
from seedbed.learning.run import Run
from seedbed.metrics.meters import EpisodesOfSeveral
from seedbed.metrics.reports import Summary, read_summary
from seedbed.metrics.statistics import estimate
from seedbed.nets.observations import described
from seedbed.transport.admission import Gate
from seedbed.transport.connect import seen_from_elsewhere
from seedbed.types import Agent, EnvSpec

_log = logging.getLogger(__name__)


def origin_of(config: RunConfig) -> dict[str, Any]:
    """Returns the origin of a run's numbers, by the names of the summary: command, machine, versions, commit."""
    try:
        words = words_of(config)
    except ConfigError:  # a preset of another version
        words = words_of(replace(config, preset="none"))
    command = shlex.join(["seedbed", "train", *words])
    return {
        "command": command.encode(errors="backslashreplace").decode(),
        "machine": socket.gethostname(),
        "cores": limits.cores(),
        "versions": versions(),
        "commit": commit(),
    }


def observations_of(config: RunConfig, spec: EnvSpec) -> Iterator[str]:
    """Returns a line for each observation on how it enters the network."""
    normalized = bool(getattr(config.settings, "normalize_observations", False))
    return described(spec, config.net, normalized=normalized)


def resumption_of(
    checkpoint: Checkpoint | None, config: RunConfig, agent: Agent, architecture: Architecture
) -> Iterator[str]:
    """Yields lines on where a resumed run goes on, and on the damaged checkpoints that were passed over."""
    if checkpoint is None:
        yield "the run stopped before its first checkpoint: it begins anew"
        return
    for line in checkpoint.skipped:
        yield f"damaged checkpoint passed over: {line}"
    meta = checkpoint.meta
    exact = meta["exact"] and (config.deterministic or architecture.always_exact)
    rest = "environments, open unrolls and queue too" if exact else "environments begin new episodes"
    if agent.data.dataset:
        rest = "reading goes on where it was in the data set"
    replay = ", replay" if "replay" in meta else ""
    yield (
        f"resumed from {checkpoint.path}: weights version {meta['version']}, optimizer, counters, random keys"
        f"{replay}; {rest}"
    )


def invitations(
    config: RunConfig, gate: Gate, addresses: Sequence[str], token: str | None = None
) -> Iterator[str]:
    """Yields the command for each address with which actors on other machines join.

    Args:
      config: settings of the run.
      gate: its admission.
      addresses: addresses that it listens at.
      token: words of a shell in the place of the token; None to say the token itself.
    """
    imported = " ".join(sorted(foreign_names(to_json(config))))
    for address in addresses:
        invitation = gate.invitation(address)
        invitation = invitation if token is None else with_other(invitation, token=token)
        flags = invitation.flags + (f" --trust {imported}" if imported else "")
        yield f"more actors: seedbed actor {seen_from_elsewhere(address)} {flags}"


def curves_of(folder: RunFolder, variants: Sequence[Variant]) -> dict[str, list[Path]]:
    """Returns the files of metrics of all variants, grouped by their swept settings."""
    if len(variants) == 1:
        return {"": [folder.metrics]}
    curves: dict[str, list[Path]] = {}
    for index, variant in enumerate(variants):
        curves.setdefault(variant.swept, []).append(folder.metrics_of(index))
    return curves


def summary_of(
    run: Run,
    config: RunConfig,
    reason: str,
    standing: dict[str, Any],
    *,
    folder: RunFolder,
    hosts: Hosts,
    variants: Sequence[Variant],
    transport: str,
    restarts: int,
    told_before: bool,
    interrupted_by: str,
) -> Summary:
    """Returns the summary of a session.

    Args:
      run: the parts of the run.
      config: settings of the run.
      reason: the reason for its end.
      standing: counts at the moment of the decision to end, from
        :meth:`seedbed.launch.recorder.Recorder.standing`.
      folder: run folder.
      hosts: the hosts of the run, as this one sees them.
      variants: the agents that were trained side by side.
      transport: name of the carrier between its roles, or none.
      restarts: number of instances that were restarted.
      told_before: whether this session had nothing left to do; the counts of the earlier summary hold then.
      interrupted_by: name of the signal that interrupted it; empty for none.
    """
    books = {**standing.pop("books"), "actor_restarts": restarts}
    # Actors had gone on for a moment between the earlier summary and its checkpoint.
    before = _summary_before(folder, run.version) if told_before else {}
    for values in (standing, books):
        values.update({name: before[name] for name in values.keys() & before.keys()})
    return Summary(
        env=config.env,
        arch=config.arch,
        agent=config.agent,
        transport=transport,
        seed=config.seed,
        **standing,
        weights_version=run.version,
        policy_lag_mean=run.books.policy_lag.mean,
        policy_lag_max=run.books.policy_lag.maximum,
        params_sha256=_digest(run),
        stopped_because=reason,
        more={
            "run_dir": str(folder.path),
            "deterministic": config.deterministic,
            "convolutions": convolving(),
            **origin_of(config),
            "skipped_updates": run.skipped,
            **books,
            **({"host": hosts.index, "hosts": hosts.count} if hosts.count > 1 else {}),
            **({"interrupted_by": interrupted_by} if interrupted_by else {}),
            **_side_by_side(run, variants),
        },
    )


def _summary_before(folder: RunFolder, version: int) -> dict[str, Any]:
    try:
        before = read_summary(folder.summary)
    except ConfigError:  # none, or a damaged one: it is about to be written anew
        return {}
    return before if before.get("weights_version") == version else {}


def _side_by_side(run: Run, variants: Sequence[Variant]) -> dict[str, Any]:
    """Returns a comparison of the agents that were trained side by side, and the index of the one in the checkpoint."""
    if not (agents := run.variants()):
        return {}
    groups: dict[str, list[float]] = {}
    for variant, found in zip(variants, agents, strict=True):
        if "mean_return" in found:  # an episode has ended
            groups.setdefault(variant.swept, []).append(found["mean_return"])
    assert isinstance(run.books.episodes, EpisodesOfSeveral)
    return {
        "variants": agents,
        "best_variant": run.books.episodes.best,
        "compared": {name: asdict(estimate(means)) for name, means in groups.items()},
    }


def _digest(run: Run) -> str:
    """Returns the SHA-256 digest of the parameters; empty if they were lost in a failed update."""
    try:
        return digest(run.train_state.params)
    except (RuntimeError, SeedbedError) as error:  # a program that fails has consumed its donated buffers
        _log.error("the parameters are gone", exc_info=error)
        return ""
