"""Settings from Python, row by row: what is given, and what the run has or why it is refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from seedbed.cli.train import configuration
from seedbed.config.resolve import configure, flat
from seedbed.errors import ConfigError

TAKEN: list[tuple[str, Any, Any]] = [
    ("frames", np.int64(1000), 1000),
    ("frames", np.float64(1e3), 1000),
    ("frames", np.array(1000), 1000),
    ("learning_rate", np.float64(1e-3), 1e-3),
    ("learning_rate", np.float32(0.5), 0.5),
    ("seed", np.int32(3), 3),
    ("seed", 2**63 - 1, 2**63 - 1),
    ("lag", np.int64(0), 0),
    ("hidden", np.array([64, 32]), (64, 32)),
    ("hidden", [np.int64(64)], (64,)),
    ("run_dir", Path("x"), "x"),
    ("dataset", Path("x"), "x"),
    ("video", np.bool_(False), False),
]


@pytest.mark.parametrize(("name", "given", "kept"), TAKEN)
def test_what_numpy_and_pathlib_have_is_taken(name: str, given: Any, kept: Any) -> None:
    whose = {"arch": "distbelief", "agent": "bc"} if name == "dataset" else {}
    found = flat(configure("CartPole-v1", preset="none", **whose, **{name: given}))[name]
    assert (found, type(found)) == (kept, type(kept))


REFUSED = [
    ("learning_rate", float("inf"), "learning_rate is inf, and has to be a finite number"),
    ("learning_rate", float("nan"), "learning_rate is nan"),
    ("learning_rate", np.float32("nan"), "learning_rate is nan"),
    ("until_return", float("nan"), "until_return is nan, and has to be a finite number"),
    ("until_return", float("-inf"), "until_return is -inf"),
    ("minutes", float("inf"), "minutes is inf, and has to be a finite number"),
    ("discount", float("nan"), "discount is nan"),
    ("inference_wait_ms", float("inf"), "inference_wait_ms is inf"),
    ("env_timeout", float("inf"), "env_timeout is inf"),
    ("seed", -1, "seed is -1, and has to be between 0 and"),
    ("seed", 2**63, "and has to be between 0 and 9223372036854775807"),
    ("frames", True, "it must be a whole number or none"),
    ("frames", np.float64(0.5), "it must be a whole number or none"),
    ("hidden", np.array([0.5]), "it must be a whole number"),
    ("actors", np.bool_(True), "it must be a whole number"),
    ("learning_rate", np.array([1e-3]), "it must be a number"),
    ("network", Path, "it must be text"),
]


@pytest.mark.parametrize(("name", "given", "words"), REFUSED)
def test_what_means_nothing_is_refused(name: str, given: Any, words: str) -> None:
    with pytest.raises(ConfigError) as error:
        configure("CartPole-v1", preset="none", **{name: given})
    assert words in str(error.value)


@pytest.mark.parametrize("flag", ["--learning-rate=inf", "--until-return=nan", "--seed=-1"])
def test_the_command_line_refuses_the_same(flag: str) -> None:
    with pytest.raises(ConfigError, match="and has to be"):
        configuration(["CartPole-v1", flag])
