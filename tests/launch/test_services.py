"""Metrics in services: modules of the same interface stand in for the real ones, which are tried where installed."""

from __future__ import annotations

import importlib
import json
import math
import os
import sqlite3
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from harness import rows, tiny

from seedbed.acting.trust import foreign_names
from seedbed.config.resolve import to_json
from seedbed.errors import ConfigError
from seedbed.launch.folder import RunFolder
from seedbed.launch.services import makers
from seedbed.launch.train import resume, train
from seedbed.metrics.services import Recorded, mlflow, trackio, weights_and_biases

ROOT = Path(__file__).parents[2]
WANDB = """
import json, os
from pathlib import Path

class Settings:
    def __init__(self, **given): pass

class Run:
    def __init__(self, **given):
        self.file = Path(given["dir"]) / "told.jsonl"
        self.tell("init", {name: given[name] for name in ("project", "name", "id", "resume", "mode", "config")})
    def tell(self, what, value):
        with self.file.open("a") as file:
            file.write(json.dumps([what, value]) + chr(10))
    def log(self, row, step):
        if os.environ.get("REFUSES"):
            raise ValueError("no more room")
        self.tell("log", [step, row])
    def finish(self):
        self.tell("finish", None)

init = Run
"""


def told(folder: Path) -> list[list[object]]:
    return [json.loads(line) for line in (folder / "told.jsonl").read_text().splitlines()]


def test_a_function_gets_every_row_and_what_it_does_costs_no_run(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    taken: list[dict[str, float]] = []

    def take(row: dict[str, float]) -> None:
        taken.append(dict(row))
        row.clear()  # it has one of its own
        raise ValueError("my own mistake")

    folder = tmp_path / "run"
    alone = {"transport": "inproc", "actors": 1, "begin_or_resume": True}
    train(tiny("toy:catch", folder, **alone, frames=300), on_row=take)
    assert taken and [row["agent_steps"] for row in taken] == [row["agent_steps"] for row in rows(folder)]
    assert taken[-1].keys() == rows(folder)[-1].keys()
    assert capfd.readouterr().out.count("metrics: ValueError: my own mistake") == 1
    # It is told of the rows of later sessions too, whichever way the run goes on.
    resume(str(folder), frames=600, on_row=take)
    train(tiny("toy:catch", folder, **alone, frames=900), on_row=take)
    assert [row["session"] for row in taken] == [row["session"] for row in rows(folder)]
    assert {row["session"] for row in taken} == {0, 1, 2}


def test_a_run_goes_to_a_service_and_goes_on_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "wandb.py").write_text(WANDB)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "wandb", raising=False)
    monkeypatch.delenv("WANDB_MODE", raising=False)
    monkeypatch.setenv("REFUSES", "")
    folder = tmp_path / "run"
    train(tiny("toy:catch", folder, log=("wandb",), transport="inproc", actors=1, frames=300))
    first, *logged, last = told(folder)
    about = first[1]
    assert isinstance(about, dict)
    assert (about["project"], about["name"], about["mode"]) == ("seedbed", "run", "offline")
    assert about["config"]["env"] == "toy:catch" and about["resume"] == "allow"
    assert last == ["finish", None]
    whole = rows(folder)
    assert [entry[1][0] for entry in logged] == [int(row["agent_steps"]) for row in whole]  # type: ignore[index]
    assert logged[-1][1][1]["updates"] == whole[-1]["updates"]  # type: ignore[index]
    # A service that fails costs rows there, and no run.
    monkeypatch.setenv("REFUSES", "1")
    summary = resume(str(folder), frames=600)
    assert summary.agent_steps >= 600
    begun = [entry for entry in told(folder) if entry[0] == "init"]
    assert len(begun) == 2 and begun[0][1]["id"] == begun[1][1]["id"]  # type: ignore[index]


TRACKIO = """
from types import SimpleNamespace

told = []

def init(**given):
    told.append(given)
    return SimpleNamespace(
        log=lambda row, step: told.append((row, step)), finish=lambda: told.append("finish")
    )
"""


def test_trackio_knows_a_run_by_a_name_of_its_folder_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "trackio.py").write_text(TRACKIO)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "trackio", raising=False)
    monkeypatch.delenv("TRACKIO_PROJECT", raising=False)
    told = importlib.import_module("trackio").told
    sink = trackio(Recorded(Path("/one/run"), {"env": "toy:catch"}, "catch", "one"))
    sink.write({"agent_steps": 64.0, "mean_return": 0.5, "loss": math.nan})
    sink.close()
    begun, *written = told
    assert written == [({"agent_steps": 64.0, "mean_return": 0.5}, 64), "finish"]
    assert (begun["project"], begun["resume"], begun["config"]["env"]) == ("seedbed", "allow", "toy:catch")
    assert not (begun["auto_log_cpu"] or begun["auto_log_gpu"] or begun["embed"]), "no threads, no page"
    del told[:]
    trackio(Recorded(Path("/moved/run"), {}, "", "one"))
    trackio(Recorded(Path("/one/run"), {}, "", "two"))
    again, other = (each["name"] for each in told)
    assert again == begun["name"] != other and again.startswith("run-")


def test_names_are_looked_at_before_the_run(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"log: unknown service 'wandbe': did you mean wandb\?"):
        train(tiny("toy:catch", tmp_path / "run", log=("wandbe",)))
    assert not (tmp_path / "run").exists()
    with pytest.raises(ConfigError, match="no_such_module"):
        makers(["no_such_module:sink"])
    record = to_json(tiny("toy:catch", tmp_path, log=("wandb", "mine.sinks:make")))
    assert foreign_names(record) == {"mine.sinks:make"}, "a run of somebody else imports it by consent only"


def test_a_package_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("seedbed.launch.services.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"log mlflow needs the package mlflow: .*\[mlflow\]"):
        makers(["mlflow"])


REAL = textwrap.dedent(
    """
    import sys
    sys.path[:0] = [sys.argv[1]]
    from harness import tiny
    from pathlib import Path
    from seedbed.launch.train import train, resume
    from seedbed.metrics import aside
    aside.CLOSING_SECONDS = 600.0  # it makes its database
    if __name__ == "__main__":
        folder = Path(sys.argv[2])
        train(tiny("toy:catch", folder, log=("wandb", "mlflow", "trackio"), transport="inproc", actors=1, frames=300))
        resume(str(folder), frames=600)
    """
)


@pytest.mark.installs
@pytest.mark.timeout(1200)
def test_the_real_services_keep_every_row(tmp_path: Path) -> None:
    """Installs all beside the tests' own environment; SEEDBED_SERVICES names a folder that has them already."""
    packages = os.environ.get("SEEDBED_SERVICES", str(tmp_path / "packages"))
    if "SEEDBED_SERVICES" not in os.environ:
        install = [
            sys.executable,
            "-m",
            "pip",
            "install",
            "-q",
            "-c",
            "constraints.txt",
            "--target",
            packages,
        ]
        subprocess.run(
            [*install, "wandb", "mlflow-skinny", "sqlalchemy", "alembic", "trackio"], cwd=ROOT, check=True
        )
    (tmp_path / "real.py").write_text(REAL)
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT / "tests"), packages])
    store = tmp_path / "trackio"
    environment = {**os.environ, "PYTHONPATH": path, "WANDB_MODE": "offline", "TRACKIO_DIR": str(store)}
    folder = tmp_path / "run"
    words = [sys.executable, str(tmp_path / "real.py"), str(ROOT / "tests"), str(folder)]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "training goes on" not in done.stdout
    assert len(list((folder / "wandb").glob("offline-run-*/*.wandb"))) == 2, "a file of each session"
    with sqlite3.connect(folder / "mlflow.db") as database:
        (runs,) = database.execute("select count(*), max(status) from runs").fetchall()
        kept = database.execute("select step from metrics where key = 'updates' order by step").fetchall()
    assert runs == (1, "FINISHED")
    steps = sorted(int(row["agent_steps"]) for row in rows(folder))
    assert [step for (step,) in kept] == steps
    with sqlite3.connect(store / "seedbed.db") as database:
        logged = database.execute("select run_name, step, metrics from metrics order by step").fetchall()
    assert len({name for name, _, _ in logged}) == 1 and [step for _, step, _ in logged] == steps
    assert json.loads(logged[-1][2])["updates"] == rows(folder)[-1]["updates"]


def test_a_run_is_known_by_its_own_word_and_an_old_one_by_its_place(tmp_path: Path) -> None:
    first = RunFolder.create(tiny("toy:catch", tmp_path / "run"))
    word = first.run_id()
    first.discard()
    second = RunFolder.create(tiny("toy:catch", tmp_path / "run"))
    assert word != second.run_id() and "run_id" in dict(second.state()), "it goes to a store with the run"
    assert word is not None and first.identity() is None
    place, other = Path("/a"), Path("/b")
    assert Recorded(place, {}, "", word).identity == Recorded(other, {}, "", word).identity
    old = Recorded(place, {}, "").identity
    assert old == Recorded(place, {"x": 1}, "y").identity != Recorded(other, {}, "").identity


def test_makers_are_of_one_kind() -> None:
    assert makers(["seedbed.metrics.services:mlflow"]) == {"seedbed.metrics.services:mlflow": mlflow}
    assert callable(weights_and_biases)
