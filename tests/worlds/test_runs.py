"""What a run says of the observations of its environment, in whatever process that stands."""

import os
from pathlib import Path

import pytest
from harness import TESTS, thorough, tiny

from seedbed.launch.train import train


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arch", "transport"),
    [("seed", "shm"), ("sebulba", "shm"), *thorough(("seed", "inproc"), ("impala", "shm"))],
)
def test_a_run_says_how_it_takes_observations_and_what_its_environments_warn_of(
    arch: str,
    transport: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(TESTS), prepend=os.pathsep)
    train(
        tiny(
            "odd_worlds:clock",
            tmp_path / "run",
            arch=arch,
            **({"transport": transport} if arch != "sebulba" else {}),
            env_options=["start=1.7e9"],
            frames=4000,
        )
    )
    lines = capsys.readouterr().out.splitlines()
    log = (tmp_path / "run" / "logs" / "learner.log").read_text()
    for said in (
        "observation: float32 (1,), without bounds, as numbers",
        "odd_worlds:clock: observation shows numbers like 1",
    ):
        assert sum(line.startswith(said) for line in lines) == 1
        assert said in log
