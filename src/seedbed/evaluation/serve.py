"""A trained policy behind an address, for programs that step their own environments: games, robots, simulators."""

from __future__ import annotations

import contextlib
import queue
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import jax
import jax.numpy as jnp

from seedbed.acting.batcher import BatchRule, buckets
from seedbed.acting.inference import Inference
from seedbed.config.placement import NetworkSettings
from seedbed.errors import ConfigError
from seedbed.evaluation.policy import load
from seedbed.launch.folder import RunFolder
from seedbed.launch.surroundings import held
from seedbed.serving.policy_service import PolicyService
from seedbed.transport.admission import Invitation
from seedbed.transport.connect import listen as listen_at
from seedbed.transport.connect import seen_from_elsewhere

Say = Callable[[str], object]


@dataclass(frozen=True)
class Serving(NetworkSettings):
    """Settings of a served policy."""

    listen: tuple[str, ...] = ()
    """Addresses: HOST:PORT (port 0: a free one) or unix:PATH; socket: in front of either is without gRPC."""
    greedy: bool = False
    """Take the most likely action instead of drawing from the policy."""
    seed: int = 0
    """Root of the randomness; what a client is given follows from it and the client's number."""
    inference_batch: int = 64
    """Environments in a full batch; no client has more."""
    inference_wait_ms: float = 0.0
    """Milliseconds that a partial batch waits for more; 0: batches are what came during the one before."""
    max_envs: int = 1024
    """Most environments of all clients together."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.listen:
            raise ConfigError("no address to listen at: give --listen HOST:PORT or --listen unix:PATH")
        for name, least in (("inference_batch", 1), ("inference_wait_ms", 0), ("max_envs", 1)):
            if getattr(self, name) < least:
                raise ConfigError(f"{name} is {getattr(self, name)}: give {least} or more")


class Served:
    """A policy that is being served; made by :func:`serving`.

    Attributes:
      about: one line about the policy.
      addresses: addresses as clients reach them.
      invitations: what a client needs at each.
    """

    def __init__(
        self,
        about: str,
        addresses: Sequence[str],
        invitations: Sequence[Invitation],
        failures: queue.Queue[BaseException],
    ) -> None:
        self.about = about
        self.addresses = list(addresses)
        self.invitations = list(invitations)
        self._failures = failures

    def wait(self, timeout: float) -> None:
        """Waits; raises the error that ended the service, if one does within ``timeout`` s."""
        with contextlib.suppress(queue.Empty):
            raise self._failures.get(timeout=timeout)


def _nobody(line: str) -> None:
    """Takes a line without a listener."""


@contextlib.contextmanager
def serving(
    path: str | Path,
    settings: Serving,
    *,
    trust: Collection[str] | None = (),
    say: Say = _nobody,
) -> Iterator[Served]:
    """Serves the policy of a run, with the weights of its newest intact checkpoint, while the block runs.

    Clients are admitted as actors of the run are: by its token, off this machine by TLS with its certificate.

    Args:
      path: the run folder.
      settings: addresses, batches and limits.
      trust: names ``module:name`` that the run may have imported, if this user did not begin it here; None for any.
      say: takes a line for each client that comes or goes.

    Raises:
      ConfigError: there is no such run, or an address cannot be listened at.
      CheckpointError: none of its checkpoints is intact.
    """
    with held(), contextlib.ExitStack() as stack:
        policy = load(path, greedy=settings.greedy, seed=settings.seed, trust=trust)
        folder = RunFolder.open(path)
        config = folder.config(trust)
        gate = folder.gate(settings, settings.listen)
        device = jax.local_devices()[0]
        inference = Inference(
            policy.decider,
            policy.spec,
            settings.max_envs,
            buckets(1, settings.inference_batch),
            device,
            policy.root,
        )
        params = jax.device_put(jax.tree.map(jnp.asarray, policy.params), device)
        inference.warm_up(params)
        failures: queue.Queue[BaseException] = queue.Queue()
        service = PolicyService(
            inference,
            params,
            policy.spec,
            told={
                "env": config.env,
                "options": list(config.making),
                "updates": policy.version,
                "greedy": settings.greedy,
                "previous_reward": policy.sees_rewards,
            },
            token=folder.token(),
            capacity=settings.max_envs,
            rule=BatchRule(settings.inference_batch, settings.inference_wait_ms / 1e3),
            within=policy.within,
            on_failure=failures.put,
            say=say,
        )
        service.thread.start()
        service.thread.begin()
        stack.callback(service.thread.stop)
        addresses = []
        for wanted in settings.listen:
            # Pings go both ways: a client that vanished leaves its places.
            server = listen_at(wanted, service, gate=gate)
            stack.callback(server.close)
            addresses.append(server.address)
        how = "takes the most likely action" if settings.greedy else "draws its actions"
        yield Served(
            f"{policy.agent.name} for {policy.spec.id} after {policy.version:,} updates; it {how}",
            [seen_from_elsewhere(address) for address in addresses],
            [gate.invitation(address) for address in addresses],
            failures,
        )
