"""The state and the newest row of each run in the text format of Prometheus: ``/metrics`` of ``seedbed watch``."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from seedbed.errors import ConfigError
from seedbed.metrics import registry
from seedbed.watching.run import Standing

_LABELS = ("run", "env", "agent", "arch")


def exposition(runs: Iterable[Standing]) -> tuple[bytes, str]:
    """Returns the gauges of runs, and the content type of that text.

    A metric ``name`` is the gauge ``seedbed_name``, and one of a family, as ``loss/policy``, is ``seedbed_loss`` with
    the label ``of``. A run that is over has its state alone, so that its last numbers do not stay for ever.
    """
    from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Gauge, generate_latest

    found = CollectorRegistry()
    gauges: dict[str, Any] = {}

    def tell(run: Standing, name: str, sentence: str, label: str, said: str, value: float) -> None:
        name = f"seedbed_{re.sub(r'[^A-Za-z0-9]', '_', name)}"
        if name not in gauges:
            gauges[name] = Gauge(name, sentence, (*_LABELS, label), registry=found)
        own = (run.name, *(str(run.settings.get(each, "")) for each in _LABELS[1:]))
        # Paths and options may be of any bytes.
        labels = (each.encode(errors="replace").decode() for each in (*own, said))
        gauges[name].labels(*labels).set(value)

    for run in runs:
        tell(run, "state", "1 for the state in which a run is.", "state", run.state, 1)
        for key, value in {} if run.is_over else run.row.items():
            try:
                metric = registry.find(key)
            except ConfigError:
                continue  # of another version
            family, _, member = key.rpartition("/")
            # To Prometheus an empty label is none.
            name, of = (family, member) if metric.is_family else (key, "")
            tell(run, name, f"{metric.sentence} ({metric.unit})", "of", of, value)
    return generate_latest(found), CONTENT_TYPE_LATEST
