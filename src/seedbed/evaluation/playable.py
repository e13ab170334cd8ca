"""A run folder that only plays: the settings of a run, the spec of its environments, and its parameters.

::

    FOLDER/
    ├── config.json
    ├── spec.json
    └── checkpoints/STEP/          sealed as every checkpoint is: train.safetensors, manifest.json

``seedbed eval``, ``record``, ``collect``, ``export``, ``seedbed.load`` and ``--init-from`` read it as they read any
run. Optimizer, counters, metrics, logs and secrets stay behind, and so do the settings of :data:`LEFT_OUT`.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path

from seedbed import regular_files
from seedbed.config.resolve import to_json
from seedbed.config.variants import VALUES_OF_BEST
from seedbed.errors import ConfigError
from seedbed.evaluation.policy import Policy
from seedbed.launch.build import build_spec
from seedbed.launch.folder import RunFolder
from seedbed.launch.surroundings import held
from seedbed.learning.checkpoint import Contents, save

LEFT_OUT = (
    *("run_dir", "begin_or_resume", "store", "init_from", "dataset"),
    *("log", "listen", "insecure", "tls_cert", "coordinator", "guests"),
)
"""Settings that name places of the machine or its network, or modules that only training needs."""


@held()
def write_playable(path: str | Path, out: str | Path, *, trust: Collection[str] | None = ()) -> Path:
    """Writes what playing needs of a run, with the weights of its newest intact checkpoint, into a folder of its own.

    Args:
      path: the run folder.
      out: the folder to write; it must not hold a run.
      trust: names ``module:name`` that the run may have imported, if this user did not begin it here; None for any.

    Returns:
      The folder.

    Raises:
      ConfigError: there is no such run, the folder holds a run already, or it cannot be written.
      CheckpointError: no checkpoint of the run is intact, or none can be written.
    """
    folder, target = RunFolder.open(path), RunFolder(Path(out))
    if target.begun:
        raise ConfigError(f"{out} already holds a run: choose another folder, or remove it")
    config, checkpoint = folder.config(trust), folder.newest()
    spec = folder.spec() or build_spec(config)
    policy = Policy(config, spec, checkpoint)
    try:
        target.path.mkdir(parents=True, exist_ok=True)
        target.keep_spec(spec)
        meta = {name: kept for name, kept in checkpoint.meta.items() if name in ("version", VALUES_OF_BEST)}
        contents = Contents({"train": {"params": policy.params}}, meta)
        save(target.checkpoints, checkpoint.step, contents, keep=1)
        # Last: without it the folder is no run.
        settings = {name: value for name, value in to_json(config).items() if name not in LEFT_OUT}
        regular_files.write_whole(target.path / "config.json", json.dumps(settings, indent=2) + "\n")
    except OSError as error:
        raise ConfigError(f"cannot write {error.filename or out}: {error.strerror}") from error
    return target.path
