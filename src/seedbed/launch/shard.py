"""The program of one shard of a parameter server: ``python -m seedbed.launch.shard JOB``.

It begins with what it has kept last, keeps what it holds now and then, and serves until it is ended.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import jax

from seedbed import faults
from seedbed.architectures.with_shards import bound_of, shapes_of
from seedbed.config.resolve import from_json
from seedbed.errors import CheckpointError
from seedbed.launch.build import build_agent
from seedbed.learning.checkpoint import Contents, load_latest, save
from seedbed.parameter_server.server import ShardHandler, empty_part
from seedbed.parameter_server.shards import Part, Shard
from seedbed.transport.connect import listen
from seedbed.types import EnvSpec

_KEPT = 2


def keep(folder: Path, part: Part) -> None:
    """Writes a snapshot of what a shard holds; raises :class:`~seedbed.errors.CheckpointError`."""
    tree = jax.device_get({"params": part.params, "opt_state": part.opt_state})
    meta = {"version": part.version, "skipped": part.skipped}
    save(folder, part.version, Contents({"part": tree}, meta), keep=_KEPT)


def kept(folder: Path, like: Part) -> Part:
    """The newest intact snapshot in ``folder``; ``like`` has its shapes.

    Raises:
      CheckpointError: there is none.
    """
    snapshot = load_latest(folder)
    tree = {"params": like.params, "opt_state": like.opt_state}
    part = jax.device_put(snapshot.tree("part", tree))
    return Part(part["params"], part["opt_state"], snapshot.meta["version"], snapshot.meta["skipped"])


def serve(job: dict[str, Any], token: str, over: threading.Event) -> None:
    """Serves the shard of a job until ``over`` is set."""
    config, folder = from_json(job["run"]), Path(job["folder"])
    agent = build_agent(config, EnvSpec.from_json(job["spec"]))
    like = empty_part(agent.optimizer, shapes_of(agent), job["index"], config.placement.shards)
    shard = Shard(agent.optimizer, kept(folder, like), bound_of(config))
    with contextlib.closing(listen(job["address"], ShardHandler(shard, token))):
        version = shard.part.version
        while not over.wait(config.placement.shard_snapshot_seconds):
            if (part := shard.part).version == version:
                continue
            try:
                keep(folder, part)
                version = part.version
            except CheckpointError as error:
                # It is worth no run: the shard goes on, and tries again.
                print(error, file=sys.stderr, flush=True)  # noqa: T201


def main() -> None:
    """Entry; exit status 0 when it is told to end, 3 on a fault."""
    parser = argparse.ArgumentParser(prog="seedbed.launch.shard")
    parser.add_argument("job", type=Path)
    over = threading.Event()
    # The run decides when its shards stop.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: over.set())
    try:
        serve(json.loads(parser.parse_args().job.read_text()), os.environ.get("SEEDBED_TOKEN", ""), over)
    except BaseException as error:
        raise SystemExit(faults.leave(error)) from None


if __name__ == "__main__":
    main()
