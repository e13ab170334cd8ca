"""Kubernetes: one JobSet of learners and actors, and a Secret with which they know each other.

A JobSet gives learners names that stay (its headless service), ends actors when the learners are done, and begins the
learners anew together. Run folders need a volume for the learners only.
"""

from __future__ import annotations

import json
import secrets
import shlex
from collections.abc import Callable

from seedbed.errors import ConfigError
from seedbed.launch.manifests.plan import Plan
from seedbed.launch.manifests.template import filled
from seedbed.transport.admission import Invitation
from seedbed.transport.tls import Identity

_SECRET = "/etc/seedbed"


def files(plan: Plan, make: Callable[[], Identity] = Identity.make) -> dict[str, str]:
    """Returns the manifests by their names.

    Args:
      plan: the program.
      make: function that makes the learner's certificate.

    Raises:
      ConfigError: the program has roles that cannot join one by one.
    """
    plan.require_guests("Kubernetes")
    if plan.config.cluster.insecure or getattr(plan.config.placement, "insecure", False):
        raise ConfigError("the Secret of a JobSet has a certificate for the learner: leave --insecure out")
    address = f"{plan.name}-learner-0-0.{plan.name}:{plan.order.port}"
    values = {
        "name": plan.name,
        "image": json.dumps(plan.order.image),
        "volume": json.dumps(plan.order.volume),
        "mount": json.dumps(plan.mount),
        "hosts": plan.hosts,
        "most_failures": 3 * plan.hosts,
        "learner": json.dumps(_learner(plan, address)),
        "cores": plan.cores,
        "memory": plan.order.learner_memory,
        "gpus": plan.accelerators or None,
        "secret": plan.name if plan.elsewhere else None,
        "secret_mount": _SECRET if plan.elsewhere else None,
    }
    learner = filled("kubernetes-learner.yaml", values)
    if plan.elsewhere is None:
        return {"jobset.yaml": learner}
    values |= {
        "actors": plan.actors,
        "actor_cores": f"{plan.elsewhere.needs.cores:g}",
        "actor_memory": plan.order.actor_memory,
        "actor": json.dumps(["seedbed", "actor", address, "--join", f"@{_SECRET}/join", *plan.trust]),
    }
    jobset = learner + filled("kubernetes-actor.yaml", values)
    return {"secret.yaml": _secret(plan.name, make()), "jobset.yaml": jobset}


def _secret(name: str, identity: Identity) -> str:
    token = secrets.token_hex(16)
    values = {
        "name": name,
        "token": json.dumps(token),
        "join": json.dumps(str(Invitation(token, identity.fingerprint))),
        "certificate": json.dumps(identity.certificate.decode()),
        "key": json.dumps(identity.key.decode()),
    }
    return filled("kubernetes-secret.yaml", values)


def _learner(plan: Plan, address: str) -> str:
    """Returns a line of shell."""
    if plan.hosts > 1:
        return f'exec {shlex.join(plan.learner(coordinator=address))} --host "$JOB_COMPLETION_INDEX"'
    if plan.elsewhere is None:
        return f"exec {shlex.join(plan.learner())}"
    # A run's token is a file of its own, and files of Secrets are links.
    token = f"install -D -m 600 {_SECRET}/token {shlex.quote(plan.run)}/token"
    certificate = [f"{_SECRET}/tls.crt", f"{_SECRET}/tls.key"]
    listens = plan.learner(listen=[f"0.0.0.0:{plan.order.port}"], tls_cert=certificate)
    return f"{token} && exec {shlex.join(listens)}"
