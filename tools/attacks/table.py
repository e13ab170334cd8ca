"""The table of attacks: its rows, the scale at which they are run, and how they are run and shown."""

from __future__ import annotations

import random
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from harness import hear_interrupts

_FILES = (
    "endings",
    "surroundings",
    "disks",
    "exactness",
    "kills",
    "cluster",
    "clocks",
    "silence",
    "fuzz",
    "strangers",
    "crowd",
    "soak",
)


@dataclass(frozen=True)
class Scale:
    """How much is done.

    Attributes:
      pairs: architectures and agents whose exact resumption is tried; None for all that promise it.
      kills: processes that are killed in each run under chaos.
      checkpoint_kills: kills in the middle of writing a checkpoint.
      messages: fuzzed messages over all carriers that are read: none stands behind one that ends its conversation.
      strangers: connections of one that has no token.
      crowd: actors at once.
      soak_minutes: length of the soak.
      seed: seed of everything that is left to chance.
      briefly: whether variants of the same attack are left out.
    """

    pairs: int | None = None
    kills: int = 12
    checkpoint_kills: int = 30
    messages: int = 1_000_000
    strangers: int = 3000
    crowd: int = 1000
    soak_minutes: float = 10.0
    seed: int = 0
    briefly: bool = False

    @staticmethod
    def short() -> Scale:
        """The scale of the short form."""
        return Scale(
            pairs=1,
            kills=2,
            checkpoint_kills=3,
            messages=6000,
            strangers=600,
            crowd=60,
            soak_minutes=0.5,
            briefly=True,
        )

    def changed(self, **values: Any) -> Scale:
        """Returns a scale with these values, where they are given."""
        return replace(self, **{name: value for name, value in values.items() if value is not None})


@dataclass
class Scene:
    """The place of one attack.

    Attributes:
      folder: folder of its own.
      scale: how much is done.
      chance: source of everything that is left to chance.
      times: number of times that it was done so far, or the messages that were read.
      notes: remarks for the table.
    """

    folder: Path
    scale: Scale
    chance: random.Random
    times: int = 0
    notes: list[str] = field(default_factory=list)

    def say(self, line: str) -> None:
        """Shows progress."""
        sys.stderr.write(f"    {line}\n")


class Impossible(Exception):
    """The attack cannot be made on this machine, for the reason in the message."""


@dataclass(frozen=True)
class Attack:
    """One row: its function raises unless the outcome is the right one."""

    name: str
    what: str
    outcome: str
    make: Callable[[Scene], None]


@dataclass(frozen=True)
class Told:
    """What came of an attack."""

    attack: Attack
    times: int
    outcome: str
    seconds: float
    right: bool


ATTACKS: list[Attack] = []


def attack(
    name: str, what: str, outcome: str
) -> Callable[[Callable[[Scene], None]], Callable[[Scene], None]]:
    """Adds a function to the table.

    Args:
      name: short name of the attack.
      what: what is done.
      outcome: the right outcome.
    """

    def add(function: Callable[[Scene], None]) -> Callable[[Scene], None]:
        ATTACKS.append(Attack(name, what, outcome, function))
        return function

    return add


def load() -> list[Attack]:
    """Returns all attacks, in the order of the table."""
    for name in _FILES:
        import_module(f"attacks.{name}")
    return ATTACKS


def run_all(chosen: Sequence[Attack], folder: Path, scale: Scale) -> list[Told]:
    """Runs attacks, one after another; a wrong outcome does not end the rest."""
    told = []
    for each in chosen:
        sys.stderr.write(f"{each.name}: {each.what}\n")
        told.append(run_one(each, folder / each.name.replace(" ", "-"), scale))
        sys.stderr.write(f"  {told[-1].outcome} ({told[-1].seconds:.0f} s)\n")
    return told


def run_at_once(chosen: Sequence[Attack], folder: Path, scale: Scale, at_once: int) -> list[Told]:
    """As :func:`run_all`, with several attacks at a time, each in a process of its own."""
    tasks = [(each.name, folder / each.name.replace(" ", "-"), scale) for each in chosen]
    begin = time.monotonic()
    # One that is ended stops what it has started: see _in_a_process_of_its_own.
    with get_context("spawn").Pool(at_once, _in_a_process_of_its_own, maxtasksperchild=1) as pool:
        told = [Told(each, *rest) for each, rest in zip(chosen, pool.imap(_named, tasks, 1), strict=True)]
        pool.close()
        pool.join()
    sys.stderr.write(f"{time.monotonic() - begin:.0f} s in all\n")
    return told


def _in_a_process_of_its_own() -> None:
    hear_interrupts()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    load()


def _named(task: tuple[str, Path, Scale]) -> tuple[int, str, float, bool]:
    """All of an attack's :class:`Told` but the attack, which does not travel between processes."""
    name, folder, scale = task
    sys.stderr.write(f"{name} begins\n")
    (chosen,) = (each for each in ATTACKS if each.name == name)
    told = run_one(chosen, folder, scale)
    sys.stderr.write(f"  {name}: {told.outcome} ({told.seconds:.0f} s)\n")
    return told.times, told.outcome, told.seconds, told.right


def run_one(each: Attack, folder: Path, scale: Scale) -> Told:
    """Runs one attack in a folder of its own, which it makes."""
    folder.mkdir(parents=True)
    scene = Scene(folder, scale, random.Random(f"{each.name} {scale.seed}"))
    begin = time.monotonic()
    right = True
    try:
        each.make(scene)
        outcome = "; ".join(["as it should", *scene.notes])
    except Impossible as reason:
        outcome = f"not tried: {reason}"
    except Exception as error:
        traceback.print_exc()
        right, outcome = False, f"WRONG: {type(error).__name__}: {error}".split("\n", maxsplit=1)[0][:300]
    return Told(each, scene.times, outcome, time.monotonic() - begin, right)


def shown(told: Sequence[Told]) -> str:
    """Returns the table, as Markdown."""
    lines = ["| attack | what is done | times | outcome | the right one |", "|---|---|---|---|---|"]
    for each in told:
        row = each.attack
        lines.append(f"| {row.name} | {row.what} | {each.times:,} | {each.outcome} | {row.outcome} |")
    wrong = sum(not each.right for each in told)
    seconds = sum(each.seconds for each in told)
    return "\n".join(
        [*lines, "", f"{len(told)} attacks, {wrong} with a wrong outcome, {seconds / 60:.0f} minutes", ""]
    )
