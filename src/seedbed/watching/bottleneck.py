"""Shares of time of the parts of a run, and the part that holds up the others; computed from two rows of metrics.

::

    learner     share of time in which it computed an update                           learner_busy
    inference   share of time in which batches of observations became actions          (steps/s / rows a batch) * ms
    cores       share of the processors' time that the run takes                       d cpu_seconds / d seconds / cores

A part that is busy nearly all the time holds up the others; where none is, the run waits for steps of environments.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from seedbed.architectures.program import Program

_BUSY = 0.75
_FULL = 0.9


def shares(
    row: Mapping[str, float], before: Mapping[str, float], cores: float | None, acting: int = 1
) -> dict[str, float]:
    """Returns the known shares of time, by part.

    Args:
      row: newest row.
      before: an earlier row of the same session.
      cores: number of cores that the run may use; None if that is not known.
      acting: number of devices and servers that compute actions side by side; their share is the mean.
    """
    found = {"learner": row.get("learner_busy", math.nan)}
    if batch := row.get("inference_batch"):
        per_second = row.get("agent_steps_per_second", math.nan) / batch
        found["inference"] = per_second * row.get("inference_milliseconds", math.nan) / 1000 / acting
    if cores and (elapsed := row.get("seconds", 0.0) - before.get("seconds", 0.0)) > 0:
        found["cores"] = (
            (row.get("cpu_seconds", math.nan) - before.get("cpu_seconds", math.nan)) / elapsed / cores
        )
    return {part: min(max(share, 0.0), 1.0) for part, share in found.items() if math.isfinite(share)}


def bottleneck(found: Mapping[str, float], program: Program | None) -> tuple[str, str]:
    """Returns the name of the part that holds up the run, and the reason in words.

    Args:
      found: shares of :func:`shares`.
      program: roles of the run; None if they are not known.
    """
    full = f"; all cores are busy ({found['cores']:.0%})" if found.get("cores", 0.0) >= _FULL else ""
    if program is not None and not program.has_instances:
        return program.head, f"acting and learning are one program{full}"
    for part, does in (("learner", "computes updates"), ("inference", "computes actions")):
        if found.get(part, 0.0) >= _BUSY:
            return part, f"it {does} {found[part]:.0%} of the time{full}"
    busy = ", ".join(f"{part} {found[part]:.0%}" for part in ("learner", "inference") if part in found)
    if not busy:
        return _steppers(program), f"each of them acts and learns{full}"
    return _steppers(program), f"busy are {busy} of the time; the rest waits for steps of environments{full}"


def _steppers(program: Program | None) -> str:
    """The role that steps environments: the one with the most instances beside the head."""
    others = [role for role in program.roles if role.name != program.head] if program else []
    return max(others, key=lambda role: role.count).name + "s" if others else "actors"


def traffic(
    program: Program, row: Mapping[str, float], before: Mapping[str, float], unroll_length: float
) -> list[dict[str, float | str]]:
    """Returns the traffic between roles: ``from``, ``to``, ``what`` and ``bytes_per_second``.

    Args:
      program: roles of the run, with the declared bytes of each conversation.
      row: newest row.
      before: an earlier row of the same session.
      unroll_length: steps in an unroll.
    """

    def rate(name: str) -> float:
        elapsed = row.get("seconds", math.nan) - before.get("seconds", math.nan)
        return (row.get(name, math.nan) - before.get(name, math.nan)) / elapsed if elapsed > 0 else math.nan

    updates, steps = rate("weights_version"), rate("steps_received")
    dropped = rate("gradients_dropped")
    units = {
        "step": steps,
        "unroll": steps / unroll_length,
        "update": updates,
        "gradient": updates + (dropped if math.isfinite(dropped) else 0.0),
    }
    return [
        {
            "from": role.name if each.direction == "up" else edge.to,
            "to": edge.to if each.direction == "up" else role.name,
            "what": each.what,
            "bytes_per_second": each.bytes * units[each.per] * (role.count if each.per == "update" else 1),
        }
        for role, edge in program.edges
        for each in edge.traffic
    ]
