"""The services to which a run's metrics go beside its own files, by name: ``--log wandb``, ``--log module:NAME``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib.util import find_spec

from seedbed.errors import ConfigError, unknown_name
from seedbed.installation import extra_line
from seedbed.metrics.aside import Aside
from seedbed.metrics.services import Recorded, mlflow, trackio, weights_and_biases
from seedbed.metrics.sinks import Sink
from seedbed.plugins import load

SERVICES: dict[str, tuple[str, Callable[[Recorded], Sink]]] = {
    "wandb": ("wandb", weights_and_biases),
    "mlflow": ("mlflow", mlflow),
    "trackio": ("trackio", trackio),
}
"""Package and sink of each service; the extra has the service's name."""


def makers(names: Sequence[str]) -> dict[str, Callable[[Recorded], Sink]]:
    """Returns the makers of the sinks of some services.

    Args:
      names: names of services, or ``module:NAME`` of a function from :class:`~seedbed.metrics.services.Recorded` to a
        :class:`~seedbed.metrics.sinks.Sink`.

    Raises:
      ConfigError: there is no such service, or its package is not installed.
    """
    return {name: _maker(name) for name in names}


def _maker(name: str) -> Callable[[Recorded], Sink]:
    if ":" in name:
        return load(name)
    if name not in SERVICES:
        known = unknown_name("service", name, SERVICES)
        raise ConfigError(f"log: {known} (one of your own is module:NAME)")
    package, make = SERVICES[name]
    if find_spec(package) is None:
        raise ConfigError(f"log {name} needs the package {package}: {extra_line(name)}")
    return make


def sinks(made: Mapping[str, Callable[[Recorded], Sink]], run: Recorded) -> list[Sink]:
    """Returns a sink for each of some makers, in a thread of its own."""
    return [Aside(name, partial(make, run)) for name, make in made.items()]
