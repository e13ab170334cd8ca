"""KubeRay: a RayJob, whose head has the learner and whose workers have the actors (``--on ray``)."""

from __future__ import annotations

import json
import shlex

from seedbed.config.resolve import replace
from seedbed.config.words import words_of
from seedbed.errors import ConfigError
from seedbed.launch.manifests.plan import Plan
from seedbed.launch.manifests.template import filled


def files(plan: Plan) -> dict[str, str]:
    """Returns the manifest by its name.

    Raises:
      ConfigError: the architecture has no ``--on ray``, or several hosts.
    """
    if plan.elsewhere is None:
        raise ConfigError(
            f"--arch {plan.config.arch} with --hosts {plan.hosts} has no actors on other machines, which a RayJob is "
            "written for: write a manifest for kubernetes, slurm or skypilot"
            + (", or start it on a cluster of Ray by seedbed train --on ray" if plan.hosts > 1 else "")
        )
    config = replace(plan.config, on="ray", begin_or_resume=True, video=False)
    values = {
        "name": plan.name,
        "image": json.dumps(plan.order.image),
        "volume": json.dumps(plan.order.volume),
        "mount": json.dumps(plan.mount),
        "entrypoint": json.dumps(shlex.join(["seedbed", "train", *words_of(config)])),
        "cores": plan.cores,
        "memory": plan.order.learner_memory,
        "gpus": plan.accelerators or None,
        # Each replica reads the data set by itself.
        "data_volume": json.dumps(plan.order.volume) if plan.agent.data.dataset else None,
        "data_mount": json.dumps(plan.mount) if plan.agent.data.dataset else None,
        "machines": plan.machines,
        "most_machines": plan.most_machines,
        # With guests, Ray adds machines while some of them wait, and takes idle ones away.
        "autoscaling": "true" if plan.most_machines > plan.machines else None,
        "per_machine": f"{plan.per_machine * plan.elsewhere.needs.cores:g}",
        "actors_memory": plan.per_machine * plan.order.actor_memory + 1,
    }
    return {"rayjob.yaml": filled("rayjob.yaml", values)}
