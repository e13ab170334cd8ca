"""Programs and costs with round numbers."""

from __future__ import annotations

from typing import Any

from seedbed.architectures.program import Acts, Edge, Environments, Program, Resources, Role, Traffic, Trains
from seedbed.planning.costs import Costs, Curve, Served
from seedbed.planning.machines import Machine

NOTHING = Served(0.0, 0.0, 0.0, 0.0)
PLENTY = 10_000.0
"""Cores that never are too few."""


def served(actors: int = 1, rows: int = 4, *, lanes: int = 1, batch: int = 0, **trains: Any) -> Program:
    """Central inference: actors step, the learner acts on device 0 and trains on device 1."""
    total = actors * rows * lanes
    trained = {"steps": float(total * 10), "unroll": 10, "devices": (1,), **trains}
    head = Role(
        "learner", 1, needs=Resources(1.0, 2), acts=Acts(batch or total, 0.0, (0,)), trains=Trains(**trained)
    )
    traffic = (Traffic("observation", "up", 100.0, "step"), Traffic("action", "down", 4.0, "step"))
    actor = Role("actor", actors, "a:b", dials=(Edge("learner", traffic),), steps=Environments(rows, lanes))
    return Program((head, actor))


def local(actors: int = 1, rows: int = 4, *, lanes: int = 1, **trains: Any) -> Program:
    """Actors that run the policy themselves; the learner trains on device 0."""
    trained = {"steps": float(actors * rows * lanes * 10), "unroll": 10, "devices": (0,), **trains}
    head = Role("learner", 1, needs=Resources(1.0, 1), trains=Trains(**trained))
    traffic = (Traffic("unroll", "up", 1000.0, "unroll"), Traffic("weights", "down", 500.0, "update"))
    actor = Role(
        "actor",
        actors,
        "a:b",
        dials=(Edge("learner", traffic),),
        steps=Environments(rows, lanes),
        acts=Acts(rows),
    )
    return Program((head, actor))


def threads(actors: int = 2, rows: int = 4, **trains: Any) -> Program:
    """Threads of the head that act on device 0; it trains on device 1."""
    trained = {"steps": float(actors * rows * 10), "unroll": 10, "devices": (1,), **trains}
    head = Role("learner", 1, needs=Resources(1.0, 2), trains=Trains(**trained))
    actor = Role("actor", actors, steps=Environments(rows), acts=Acts(rows, devices=(0,)))
    return Program((head, actor))


def compiled(envs: int = 8, **trains: Any) -> Program:
    """One program of device 0."""
    trained = {"steps": envs * 10.0, "unroll": 10, "lag": 0, "waiting": 1.0, "devices": (0,), **trains}
    head = Role(
        "learner",
        1,
        needs=Resources(1.0, 1),
        steps=Environments(envs, compiled=True),
        acts=Acts(envs, devices=(0,)),
        trains=Trains(**trained),
    )
    return Program((head,))


def costs(**given: Any) -> Costs:
    """Costs in round numbers, without chance and without anything that is not given."""
    act = given.pop("act", 1e-3)
    curve = Curve(((1, act), (int(PLENTY), act)))
    return Costs(
        **{
            "step": 1e-3,
            "act": {"accelerator": curve, "cores": curve},
            "train": 0.0,
            "join": 0.0,
            "spread": 0.0,
            "served": dict.fromkeys(("shm", "grpc", "inproc"), NOTHING),
            "cores": 8.0,
            "accelerators": 2,
            "source": "a machine of round numbers",
            **given,
        }
    )


def machine(cores: float = PLENTY, accelerators: int = 2, **given: Any) -> Machine:
    """A machine with plenty of cores."""
    return Machine(cores, accelerators, **given)
