"""Pictures of runs whose folders are made by hand, and of one that trains in another process."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from harness import Command, flags, until
from rich.console import Console
from watched_runs import NOW, a_run, ended

from seedbed.cli.program import declared
from seedbed.launch.folder import RunFolder
from seedbed.watching.run import WatchedRun
from seedbed.watching.server import Answers
from seedbed.watching.terminal import frame, show
from seedbed.watching.watcher import Watcher


def shown(paths: list[Path], width: int = 120) -> str:
    console = Console(file=io.StringIO(), width=width, highlight=False)
    console.print(frame(Watcher(paths).look()))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_a_run_that_trains(tmp_path: Path) -> None:
    run = a_run(tmp_path / "run")
    run.log.write_text("2026-11-25 10:00:01,002 WARNING supervisor s: actor 1: killed; restart 1 of 3 [x]\n")
    picture = shown([tmp_path])
    for text in (
        *("toy:catch · vtrace · seed", "running", "mean return (100) 0.50", "learner ███████████░ 90%"),
        *("bottleneck  learner: it computes updates 90% of the time", "actor 0 running"),
        *("actor 1 starting (2 restarts: killed)", "2026-11-25 10:00:01 warning  actor 1: killed", "[x]"),
    ):
        assert text in picture, text
    narrow = shown([tmp_path], width=30)
    assert max(map(len, narrow.splitlines())) <= 30
    assert "bottleneck" in narrow and "learner" in narrow


def test_machines_are_told_where_there_are_several(tmp_path: Path) -> None:
    run = a_run(tmp_path / "run")
    run.keep_program(declared(run.config()).to_json())
    assert "machines   " not in shown([tmp_path]), "all are on one"
    live = json.loads(run.live.read_text())
    places = (live["machine"], "10.0.0.7", "10.0.0.7", "")
    actors = [{**live["instances"][0], "index": at, "machine": place} for at, place in enumerate(places)]
    run.live.write_text(json.dumps({**live, "instances": actors}))
    assert WatchedRun(run).look().machines == {
        live["machine"]: {"learner": 1, "actor": 1},
        "10.0.0.7": {"actor": 2},
    }, "the last one waits for a machine"
    picture = " ".join(shown([tmp_path]).split())
    assert f"machines {live['machine']}: 1 learner, 1 actor 10.0.0.7: 2 actors" in picture
    ended(run, "done")
    assert "machines   " not in shown([tmp_path])


def test_states(tmp_path: Path) -> None:
    run = a_run(tmp_path / "run")
    look = WatchedRun(run).look
    assert look().state == "running"
    live = json.loads(run.live.read_text())
    run.live.write_text(json.dumps({**live, "begun": live["begun"] - 100}))
    assert look().state == "killed", "another process has its number now"
    run.live.write_text(json.dumps({**live, "machine": "elsewhere"}))
    assert look().state == "running", "of a process on another machine only its file tells"
    long_ago = time.time() - 100
    os.utime(run.live, (long_ago, long_ago))
    assert (look().state, look().why[:10]) == ("silent", "no row for")
    ended(run, "frames are spent")
    assert (look().state, look().why) == ("ended", "frames are spent")
    os.utime(run.live, (time.time() + 10, time.time() + 10))
    assert look().state == "running", "it was resumed"
    for file in (run.live, run.metrics, run.summary):
        file.unlink()
    assert look().state == "starting"


def test_many_runs_have_a_line_each_and_new_ones_are_found(tmp_path: Path) -> None:
    for number in range(6):
        ended(a_run(tmp_path / "runs" / f"over-{number}"), "done")
    a_run(tmp_path / "runs" / "living")
    now = [0.0]
    watcher = Watcher([tmp_path], clock=lambda: now[0])
    first = watcher.look()
    assert len(first) == 7 and first[0].name.endswith("living")
    picture = shown([tmp_path], width=150)
    assert picture.count("╭") == 1 and picture.count("over-") == 6
    a_run(tmp_path / "runs" / "late")
    assert len(watcher.look()) == 7
    now[0] = 10.0
    assert len(watcher.look()) == 8


def test_what_is_damaged_is_left_out(tmp_path: Path) -> None:
    run = a_run(tmp_path / "run")
    for file in (run.live, run.program, run.path / "config.json", run.log):
        file.write_text("{")
    run.metrics.write_text("[1]\n{")
    assert "silent" in shown([tmp_path]) or "running" in shown([tmp_path])


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("metrics.jsonl", "[" * 100_000),
        ("metrics.jsonl", json.dumps({"agent_steps": 10**400})),
        ("metrics.jsonl", json.dumps({**NOW, "mean_return": "x"})),
        ("live.json", '{"instances": 5}'),
        ("live.json", '{"instances": [1, {"role": ["actor"], "restarts": "1"}]}'),
        ("live.json", '{"cores": "8"}'),
        ("config.json", '{"env_options": null, "minutes": "5", "frames": []}'),
        ("config.json", '{"unroll_length": "x", "seeds": {}}'),
    ],
)
def test_a_run_that_makes_no_sense_leaves_the_others_as_they_are(
    tmp_path: Path, file: str, text: str
) -> None:
    a_run(tmp_path / "runs" / "whole")
    strange = a_run(tmp_path / "runs" / "strange")
    strange.keep_program(declared(a_run(tmp_path / "declared").config()).to_json())
    (strange.path / file).write_text(text + "\n" + json.dumps(NOW) + "\n" if "metrics" in file else text)
    picture = shown([tmp_path / "runs"], width=150)
    assert "whole" in picture and "strange" in picture
    answers = Answers([tmp_path / "runs"])
    found = {Path(each["name"]).name: each["id"] for each in answers.runs()["runs"]}
    assert {*found} == {"whole", "strange"}
    for name in found.values():
        assert answers.run(name)["state"] in ("running", "damaged")
        assert answers.curves("agent", name)["groups"]


def test_where_one_of_several_paths_goes_the_others_are_still_shown(tmp_path: Path) -> None:
    now, (kept, gone) = [0.0], (a_run(tmp_path / name) for name in ("kept", "gone"))
    watcher = Watcher([kept.path, gone.path], clock=lambda: now[0])
    assert len(watcher.look()) == 2
    shutil.rmtree(gone.path)
    now[0] = 10.0
    assert [each.name for each in watcher.look()] == [str(kept.path)]


def test_what_a_terminal_would_obey_is_shown(tmp_path: Path) -> None:
    run = a_run(tmp_path / "run")
    (run.path / "config.json").write_text(json.dumps({"env": "toy:\x1b[2Jcatch", "agent": "\x9b1m\u202e"}))
    run.log.write_text("2026-11-25 10:00:01,002 WARNING supervisor s: actor \x1b]0;mine\x07 is lost\n")
    picture = shown([tmp_path], width=200)
    assert {"\x1b", "\x9b", "\x07", "\u202e"}.isdisjoint(picture)
    assert r"toy:\x1b[2Jcatch" in picture and r"actor \x1b]0;mine" in picture


def test_a_terminal_that_is_gone_ends_the_view(tmp_path: Path) -> None:
    a_run(tmp_path / "run")

    class Gone(io.StringIO):
        def write(self, text: str) -> int:
            raise OSError(5, "input/output error")

    console = Console(file=Gone(), force_terminal=True, width=80)
    show([tmp_path], once=False, every=0.01, console=console)


def test_one_frame_for_pipes_and_a_reader_that_leaves(tmp_path: Path) -> None:
    a_run(tmp_path / "run")
    words = [sys.executable, "-m", "seedbed", "top", str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "bottleneck" in done.stdout, done.stderr
    reading, writing = os.pipe()
    os.close(reading)
    left = subprocess.run([*words, "--once"], stdout=writing, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writing)
    assert (left.returncode, left.stderr) == (1, "")


def test_one_frame_for_a_terminal_that_cannot_be_redrawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a_run(tmp_path / "run")
    monkeypatch.setenv("TERM", "dumb")
    console = Console(file=io.StringIO(), force_terminal=True, width=80)
    show([tmp_path], once=False, every=1e9, console=console)
    assert isinstance(console.file, io.StringIO)
    assert console.file.getvalue().count("bottleneck") == 1


@pytest.mark.slow
def test_a_run_of_another_process_is_seen(tmp_path: Path) -> None:
    words = flags("toy:catch", "run", frames=10**9)
    with Command(*words, cwd=tmp_path) as command:
        folder = RunFolder(tmp_path / "run")
        watched = WatchedRun(folder)
        standing = until(
            lambda: (
                (found := watched.look()).bottleneck
                and found.row.get("updates", 0) > 2
                and found.instances
                and found
            ),
            "a run with a bottleneck",
        )
        assert standing.state == "running"
        assert [(each["role"], each["index"]) for each in standing.instances if each["role"] == "actor"] == [
            ("actor", 0),
            ("actor", 1),
        ]
        assert standing.program is not None and standing.program.head == "learner"
        victim = command.actors()[0]
        victim.kill()
        until(lambda: any(each["restarts"] for each in watched.look().instances), "a restart")
        assert any("restart 1 of" in line.text for line in watched.look().faults)
        flows = until(
            lambda: [each for each in watched.look().traffic if each["bytes_per_second"] > 0], "traffic"
        )
        assert {each["what"] for each in flows} >= {"action"}
        command.process.kill()
        command.process.wait()
        assert watched.look().state == "killed"
