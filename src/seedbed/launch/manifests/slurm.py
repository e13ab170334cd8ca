"""Slurm: the learners are one job, the actors an array, whose tasks begin when there is room and end one by one."""

from __future__ import annotations

import math
import shlex

from seedbed.launch.manifests.plan import Plan
from seedbed.launch.manifests.template import filled


def files(plan: Plan) -> dict[str, str]:
    """Returns the scripts by their names.

    Raises:
      ConfigError: the program has roles that an array cannot have.
    """
    plan.require_guests("Slurm")
    minutes = math.ceil(plan.order.hours * 60)
    values = {
        "name": plan.name,
        "run": plan.run,
        "time": f"{minutes // 60:02}:{minutes % 60:02}:00",
        "hosts": plan.hosts,
        "cores": plan.cores,
        "memory": plan.order.learner_memory,
        "gpus": plan.accelerators or None,
        "port": plan.order.port,
        "rendezvous": _rendezvous(plan),
        "learner": _learner(plan),
    }
    written = {"learner.sh": filled("slurm-learner.sh", values)}
    if plan.elsewhere is not None:
        values |= {
            "last": plan.machines - 1,
            "actors": plan.actors,
            "per_job": plan.per_machine,
            "actor_cores": max(1, round(plan.elsewhere.needs.cores)),
            "actor_memory": plan.order.actor_memory,
            "actor": shlex.join(["seedbed", "actor", "--run", plan.run, *plan.trust]),
        }
        written["actor.sh"] = filled("slurm-actor.sh", values)
    values["actor_jobs"] = "" if plan.elsewhere else None
    written["submit.sh"] = filled("slurm-submit.sh", values)
    return written


def _learner(plan: Plan) -> str:
    if plan.hosts == 1:
        return shlex.join(plan.learner(**({"listen": ["0.0.0.0:0"]} if plan.elsewhere else {})))
    return shlex.join(plan.learner(coordinator=None)) + ' --host "$SLURM_PROCID" --coordinator "$COORDINATOR"'


def _rendezvous(plan: Plan) -> str | None:
    """Returns the line that says where host 0 is; None for one host."""
    if plan.hosts == 1:
        return None
    first = 'scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1'
    return f'COORDINATOR="$({first}):{plan.order.port}"; export COORDINATOR'
