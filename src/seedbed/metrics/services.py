"""Services that keep the metrics of many runs, each an extra: Weights & Biases, MLflow and Trackio.

All write files of their own, Trackio where it has those of all runs and the others in the run folder, unless their own
variables of the environment say otherwise (``WANDB_MODE``, ``MLFLOW_TRACKING_URI``, ``TRACKIO_SPACE_ID``): nothing of a
run leaves the machine that the user did not send.
"""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from seedbed.metrics.sinks import Row, Sink

_PROJECT = "seedbed"
_LONGEST_PARAMETER = 500


@dataclass(frozen=True)
class Recorded:
    """The run whose metrics go to a service.

    Attributes:
      folder: run folder.
      settings: recorded settings, by name.
      heading: one line about the run.
      word: the run's own word; None in one that an earlier version began.
    """

    folder: Path
    settings: Mapping[str, Any]
    heading: str
    word: str | None = None

    @property
    def identity(self) -> str:
        """A name of letters and digits for all sessions of the run, and for no later run in the same place."""
        if self.word is not None:
            return self.word
        return sha256(str(self.folder).encode(errors="surrogateescape")).hexdigest()[:16]


class WeightsAndBiases:
    """A sink of Weights & Biases, offline unless ``WANDB_MODE`` says otherwise; ``wandb sync`` sends its files later.

    Args:
      run: the run.
    """

    def __init__(self, run: Recorded) -> None:
        import wandb

        self._run: Any = wandb.init(
            project=os.environ.get("WANDB_PROJECT", _PROJECT),
            name=run.folder.name,
            id=run.identity,
            resume="allow",
            notes=run.heading,
            dir=str(run.folder),
            config=dict(run.settings),
            mode=os.environ.get("WANDB_MODE", "offline"),
            settings=wandb.Settings(console="off", silent=True),
        )

    def write(self, row: Row) -> None:
        """Adds ``row`` at its agent steps."""
        self._run.log(_finite(row), step=int(row.get("agent_steps", 0)))

    def close(self) -> None:
        """Ends the run there."""
        self._run.finish()


class Mlflow:
    """A sink of MLflow: a database in the run folder, unless ``MLFLOW_TRACKING_URI`` names a store.

    Args:
      run: the run.
    """

    def __init__(self, run: Recorded) -> None:
        from mlflow.tracking import MlflowClient

        # It tells of each table that it makes.
        logging.getLogger("mlflow").setLevel(logging.WARNING)
        store = os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{run.folder}/mlflow.db"
        self._client: Any = MlflowClient(tracking_uri=store)
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", _PROJECT)
        known = self._client.get_experiment_by_name(name)
        experiment = known.experiment_id if known else self._client.create_experiment(name)
        self._run = self._begun(experiment, run) or self._begin(experiment, run)

    def _begun(self, experiment: str, run: Recorded) -> str | None:
        """The same run of an earlier session."""
        found = self._client.search_runs([experiment], f"tags.seedbed_run = '{run.identity}'")
        return str(found[0].info.run_id) if found else None

    def _begin(self, experiment: str, run: Recorded) -> str:
        tags = {"seedbed_run": run.identity, "mlflow.note.content": run.heading}
        made = str(self._client.create_run(experiment, run_name=run.folder.name, tags=tags).info.run_id)
        for name, value in run.settings.items():
            self._client.log_param(made, name, str(value)[:_LONGEST_PARAMETER])
        return made

    def write(self, row: Row) -> None:
        """Adds ``row`` at its agent steps."""
        from mlflow.entities import Metric

        now, step = int(time.time() * 1000), int(row.get("agent_steps", 0))
        metrics = [Metric(name, value, now, step) for name, value in _finite(row).items()]
        self._client.log_batch(self._run, metrics=metrics)

    def close(self) -> None:
        """Ends the run there."""
        self._client.set_terminated(self._run)


class Trackio:
    """A sink of Trackio: a database in ``TRACKIO_DIR``, unless ``TRACKIO_SPACE_ID`` or ``TRACKIO_SERVER_URL`` is set.

    The folder is not the run's: it is read once in a process, and Trackio's page compares the runs of one folder. Runs
    are known there by their names, and folders of one name are common: the name has the identity beside it.

    Args:
      run: the run.
    """

    def __init__(self, run: Recorded) -> None:
        import trackio

        self._run: Any = trackio.init(
            project=os.environ.get("TRACKIO_PROJECT", _PROJECT),
            name=f"{run.folder.name}-{run.identity[:8]}",
            resume="allow",
            config={**run.settings, "heading": run.heading, "run_dir": str(run.folder)},
            embed=False,
            # The rows have these of the run's own processes.
            auto_log_cpu=False,
            auto_log_gpu=False,
        )

    def write(self, row: Row) -> None:
        """Adds ``row`` at its agent steps."""
        self._run.log(_finite(row), step=int(row.get("agent_steps", 0)))

    def close(self) -> None:
        """Ends the run there, once its rows are written."""
        self._run.finish()


def _finite(row: Row) -> dict[str, float]:
    return {name: float(value) for name, value in row.items() if math.isfinite(value)}


def weights_and_biases(run: Recorded) -> Sink:
    """Makes the sink; the package is imported here."""
    return WeightsAndBiases(run)


def mlflow(run: Recorded) -> Sink:
    """Makes the sink; the package is imported here."""
    return Mlflow(run)


def trackio(run: Recorded) -> Sink:
    """Makes the sink; the package is imported here."""
    return Trackio(run)
