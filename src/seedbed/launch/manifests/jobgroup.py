"""SkyPilot: a job group, with a task of learners and one of actors, which share a volume.

SkyPilot has names for tasks on Kubernetes only, and may move the learner: so its address is in the run folder.
"""

from __future__ import annotations

import json
import shlex

from seedbed.launch.manifests.plan import Plan
from seedbed.launch.manifests.template import filled


def files(plan: Plan) -> dict[str, str]:
    """Returns the job group by its name.

    Raises:
      ConfigError: the program has roles that cannot join one by one.
    """
    plan.require_guests("SkyPilot")
    values = {
        "name": plan.name,
        "image": json.dumps(f"docker:{plan.order.image}"),
        "volume": json.dumps(plan.order.volume),
        "mount": json.dumps(plan.mount),
        "hosts": plan.hosts,
        "learner": _learner(plan),
        "cores": plan.cores,
        "memory": plan.order.learner_memory,
        "accelerators": f"{plan.order.accelerator}:{plan.accelerators}" if plan.accelerators else None,
    }
    text = filled("skypilot-learner.yaml", values)
    if plan.elsewhere is not None:
        values |= {
            "machines": plan.machines,
            "actor_cores": f"{plan.per_machine * plan.elsewhere.needs.cores:g}",
            "actor_memory": plan.per_machine * plan.order.actor_memory,
            "actors": plan.actors,
            "per_machine": plan.per_machine,
            "actor": shlex.join(["seedbed", "actor", "--run", plan.run, *plan.trust]),
        }
        text += filled("skypilot-actor.yaml", values)
    return {"jobgroup.yaml": text}


def _learner(plan: Plan) -> str:
    if plan.hosts == 1 and plan.elsewhere is None:
        return shlex.join(plan.learner())
    if plan.hosts == 1:
        # An address by which other machines reach this one: names of pods are known to themselves only.
        listen = f' --listen "$(hostname -I | cut -d" " -f1):{plan.order.port}"'
        return shlex.join(plan.learner(listen=["0.0.0.0:0"])).replace(" --listen 0.0.0.0:0", listen)
    first = f'"$(echo "$SKYPILOT_NODE_IPS" | head -n 1):{plan.order.port}"'
    return f'{shlex.join(plan.learner(coordinator=None))} --host "$SKYPILOT_NODE_RANK" --coordinator {first}'
