"""The first environment, row by row: what it returns or does to its process, and what is said or made of it."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from harness import SEEDBED, Command, flags, summary, thorough, tiny

from seedbed.envs.first import look
from seedbed.errors import ConfigError, EnvironmentFault
from seedbed.launch.build import build_spec
from seedbed.testing.environments import check_environment

HERE = str(Path(__file__).parent)
FIVE = "it must return five: observation, reward, terminated, truncated, info"
TWO = "it must return two values: observation, info (a dict)"
WORLDS = "first_worlds"
RETURNED = [
    ("OLD", f"step() returned 4 values; {FIVE}; four are the API of gym before 0.26"),
    ("Old-v0", f"step() returned 4 values; {FIVE}; four are the API of gym before 0.26"),
    ("LONG", f"step() returned 6 values; {FIVE}"),
    ("Long-v0", f"values; {FIVE}"),
    ("OWN_MISTAKE", "failed in receive(): ValueError: not enough values to unpack"),
    ("LONE", f"step() returned an array of float32 (1,); {FIVE}"),
    (
        "OLD_RESET",
        "reset() takes no `seed` and `options`: define it as reset(self, *, seed=None, options=None)",
    ),
    ("NO_SEED", "reset() takes no `seed`: define it as"),
    ("NO_INFO", f"reset() returned an array of float32 (1,); {TWO}"),
    ("SEEDED_BY_MISTAKE", "failed in reset(): TypeError: unsupported operand"),
    (
        "PAIR",
        "step() gave the reward as an array of float64 (2,); it must be one number: env = gymnasium.wrappers.",
    ),
    ("NONE", "step() gave the reward as None; it must be one number"),
    ("TEXT", "step() gave the reward as '1.0', a str; it must be one number"),
    ("NEITHER", "step() gave terminated as None; it must be True or False"),
    ("BOTH", "step() gave truncated as an array of bool (2,); it must be True or False"),
    ("wide", "reward of a step is float32 (2, 1); it must be float32 (2,)"),
    (
        "columns",
        "step() gave reward as an array of float32 (2, 1); it must be numbers of shape (2,), one for each environment",
    ),
    ("no_seed", "reset() takes no `seed`: define it as"),
    ("words_for_rewards", "step() gave reward as an array of <U3 (2,); it must be numbers of shape (2,)"),
    (
        "half_an_end",
        "step() gave terminated as an array of float64 (2,); it must be True or False of shape (2,)",
    ),
    ("no_end", "step() gave truncated as an array of object (2,); it must be True or False of shape (2,)"),
]


@pytest.fixture(autouse=True)
def worlds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(HERE)
    monkeypatch.setenv("PYTHONPATH", HERE, prepend=os.pathsep)  # for processes


@pytest.mark.parametrize(("world", "words"), RETURNED, ids=[row[0] for row in RETURNED])
def test_what_breaks_the_contract_is_said_in_its_terms(world: str, words: str) -> None:
    with pytest.raises(EnvironmentFault) as error:
        look(f"{WORLDS}:{world}", (), 2)
    assert str(error.value).startswith(f"{WORLDS}:{world}")
    assert words in str(error.value)


@pytest.mark.parametrize("world", [row[0] for row in RETURNED])
def test_the_suite_refuses_it_too(world: str) -> None:
    with pytest.raises(AssertionError):
        check_environment(f"{WORLDS}:{world}", num_envs=2, steps=5)


@pytest.mark.parametrize("world", ["ONE", "NUMPY", "Masked", "Far"])
def test_what_keeps_it_is_taken(world: str) -> None:
    assert look(f"{WORLDS}:{world}", (), 2).id == f"{WORLDS}:{world}"


def test_the_remedy_for_several_rewards_works_as_it_is_typed() -> None:
    import first_worlds
    import gymnasium
    import numpy as np

    with pytest.raises(EnvironmentFault) as error:
        look(f"{WORLDS}:PAIR", (), 1)
    names: dict[str, Any] = {"env": first_worlds.PAIR(), "gymnasium": gymnasium, "np": np}
    exec(str(error.value).partition("one number: ")[2], names)
    names["env"].reset()
    assert names["env"].step(0)[1] == 2.0


ENDED = "it ended the program (SystemExit"
DONE = [
    ("exits", (), f"exits cannot be made: {ENDED}) (first_worlds.py, line "),
    (
        "exits",
        ("said=no licence",),
        f": {ENDED}: no licence) (first_worlds.py, line ",
    ),
    (
        "reads_the_command_line",
        (),
        f"cannot be made: {ENDED}: 2), since it reads the command line: do that under if",
    ),
    ("OLD", (), f"first_worlds:OLD: environment 0: step() returned 4 values; {FIVE}"),
    (
        "hangs",
        ("moment=made",),
        "hangs was not made within 4 s: mend it if it hangs, or allow it more",
    ),
    ("hangs", ("moment=reset",), "hangs was not reset within 4 s"),
    ("hangs", ("moment=step",), "hangs was not stepped within 4 s"),
]
DONE_TO_A_PROCESS = [
    ("exits_at_once", (), "exits_at_once ended its process when it was to be made: ended with status 0"),
    ("crashes", (), "crashes ended its process when it was to be made: killed by signal 11"),
    ("talks", (), None),
    ("goes_away", (), None),
    ("minds_signals", (), None),
    ("crashes_at_the_end", (), None),
    ("leaves_a_thread", (), None),
]


@pytest.mark.slow
@pytest.mark.parametrize(("world", "options", "words"), DONE + DONE_TO_A_PROCESS)
def test_a_process_of_its_own_says_why_it_ended(
    world: str, options: tuple[str, ...], words: str | None, capfd: pytest.CaptureFixture[str]
) -> None:
    here, heeded = Path.cwd(), signal.getsignal(signal.SIGALRM)
    patience = 4.0 if world == "hangs" else 60.0
    config = tiny(f"{WORLDS}:{world}", Path("run"), env_options=options, env_timeout=patience)
    if words is None:
        assert build_spec(config).observation.shape == (1,)
    else:
        with pytest.raises(ConfigError) as error:
            build_spec(config)
        assert words in str(error.value)
        assert "\n" not in str(error.value)
    # Nothing of it has reached this process.
    assert (Path.cwd(), signal.getsignal(signal.SIGALRM)) == (here, heeded)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("world", "options", "words"),
    [*DONE[:4], ("goes_away", (), None), ("minds_signals", (), "signal only works in main thread")],
)
def test_a_thread_says_it_in_the_same_words(
    world: str, options: tuple[str, ...], words: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["seedbed", "train"])
    here = Path.cwd()
    config = tiny(f"{WORLDS}:{world}", Path("run"), env_options=options, transport="inproc")
    if words is None:
        assert build_spec(config).observation.shape == (1,)
    else:
        with pytest.raises(ConfigError) as error:
            build_spec(config)
        assert words in str(error.value)
    assert Path.cwd() == here


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings", [{}, *thorough({"transport": "inproc"}, {"arch": "a2c"}, {"arch": "sebulba"})]
)
def test_the_run_is_under_the_folder_in_which_it_was_begun(settings: dict[str, Any], tmp_path: Path) -> None:
    words = flags(f"{WORLDS}:goes_away", "run", frames=200, **settings)
    with Command(*words, cwd=tmp_path, PYTHONPATH=HERE) as run:
        assert run.wait() == 0, run.output
    assert f"next: {SEEDBED} eval run\n" in run.output
    assert summary(tmp_path / "run")["run_dir"] == str(tmp_path / "run")
    assert (tmp_path / "run" / "curve.png").exists()
    with Command(
        "eval", "run", "--episodes", "1", "--max-steps", "9", cwd=tmp_path, PYTHONPATH=HERE
    ) as again:
        assert again.wait() == 0, again.output


@pytest.mark.slow
def test_an_environment_that_ends_quietly_is_a_failure_with_no_run_folder(tmp_path: Path) -> None:
    for world in ("exits", "exits_at_once"):
        words = flags(f"{WORLDS}:{world}", "run")
        with Command(*words, cwd=tmp_path, PYTHONPATH=HERE) as run:
            assert run.wait() == 2, run.output
            assert run.output.count("\n") == 1
            assert run.output.startswith(f"seedbed: {WORLDS}:{world}")
    assert not (tmp_path / "run").exists()
