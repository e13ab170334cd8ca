"""How runs end: wrong usage, Ctrl-C at every moment, a full disk, damaged checkpoints."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import jax
import pytest
from harness import (
    SEEDBED,
    Command,
    alive,
    checkpoints,
    flags,
    learned,
    rows,
    sockets,
    summary,
    thorough,
    tiny,
    until,
)

from seedbed.cli.main import main
from seedbed.errors import ConfigError, RunFailed
from seedbed.launch import saver
from seedbed.launch.folder import RunFolder
from seedbed.launch.train import resume, train
from seedbed.learning import checkpoint as saving
from seedbed.learning.learner import Learner
from seedbed.learning.loop import LearnerLoop
from seedbed.learning.update import TrainState

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["train", "CartPole-v9"], "CartPole-v9"),
        (["train", "toy:cach"], "did you mean toy:catch"),
        (["train", "nosuchmodule:factory"], "cannot be imported"),
        (["train", "toy:catch", "--agent", "vtrase"], "vtrace"),
        (["train", "toy:catch", "--arch", "sede"], "seed"),
        (["train", "toy:catch", "--actors", "many"], "many"),
        (["train", "toy:catch", "--actorz", "2"], "--actorz"),
        (["train", "toy:catch", "--preset", "pogn"], "did you mean pong"),
        (["train", "toy:catch", "--env-options", "rowz=3"], "rows"),
        (["train", "toy:catch", "--env-options", "rows"], "name=value"),
        (["train", "toy:catch", "--network", "natura"], "nature"),
        (["train", "toy:catch", "--env-options", "cell_pixels=1", "--network", "nature"], "does not fit"),
        (["train", "toy:catch", "--network", "flax.linen:Dense"], "give every field a default"),
        (["train", "toy:catch", "--envs-per-actor", "3"], "halves"),
        (["train", "toy:catch", "--lag", "-1"], "lag"),
        (["train", "toy:catch", "--unroll-length", "0"], "unroll_length"),
        (["train", "toy:catch", "--queue-size", "1"], "queue"),
        (["train", "toy:catch", "--agent", "a2c", "--lag", "free"], "the lag is free: add --lag 0"),
        (
            ["train", "toy:catch", "--agent", "ppo", "--minibatches", "3"],
            "a divisor of the transitions of a batch",
        ),
        (["train", "toy:catch", "--agent", "ppo", "--clip-rho", "3"], "--clip-rho"),
        (["train", "toy:catch", "--listen", "127.0.0.1:0", "--max-envs", "15"], "has to be 16 or more"),
        (["train", "toy:catch", "--training-devices", "99"], "does not exist"),
        (["train", "toy:catch", "--listen", "nowhere"], "not an address"),
        (["train", "CartPole-v1", "--arch", "anakin"], "no JAX-native environment"),
        (["train", "gymnax:CartPole-v1", "--arch", "anakin", "--training-devices", "9"], "does not exist"),
        (["train", "gymnax:CartPole-v1", "--arch", "anakin", "--actors", "3"], "--actors is a setting of"),
        (["train", "toy:catch", "--arch", "sebulba", "--learner-devices", "0", "9"], "does not exist"),
        (["train", "toy:catch", "--arch", "sebulba", "--transport", "grpc"], "--transport is a setting of"),
        (["train", "toy:catch", "--hosts", "2", "--host", "2"], "hosts count from 0"),
        (["train", "toy:catch", "--hosts", "2", "--host", "1"], "add --coordinator HOST:PORT"),
        (["train", "toy:catch", "--hosts", "2", "--coordinator", "nowhere"], "write HOST:PORT"),
        (["train", "toy:catch", "--hosts", "2", "--coordinator", "203.0.113.1:7000"], "cannot listen"),
        (["train", "toy:catch", "--hosts", "2", "--arch", "a2c"], "choose --arch seed"),
        (["resume", "nosuchrun"], "not a run folder"),
        (["trian"], "did you mean train"),
    ],
)
def test_wrong_usage_is_one_line_and_leaves_nothing(
    words: list[str],
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stop:
        main([*words, "--run-dir", "run"] if words[0] == "train" else words)
    assert stop.value.code == 2
    said = capfd.readouterr().err.strip().split("\n")[-1]
    assert said.startswith("seedbed: ")
    assert says in said
    assert not any(tmp_path.iterdir())


def _makefile(folder: Path) -> None:
    """The project's Makefile over the environment that the tests run in, as if ``make install`` had made it."""
    shutil.copy(ROOT / "Makefile", folder)
    (folder / ".venv/bin").mkdir(parents=True)
    (folder / ".venv/bin/seedbed").symlink_to(SEEDBED)
    for name in ("pyproject.toml", "constraints.txt", ".venv/.created", ".venv/.installed", ".venv/.onednn"):
        (folder / name).touch()


@pytest.mark.slow
def test_ctrl_c_in_make_train_leaves_a_checkpoint_that_resume_continues(tmp_path: Path) -> None:
    _makefile(tmp_path)
    _, env, *rest = flags("CartPole-v1", "run", checkpoint_minutes=60.0)
    command = ["make", "train", f"ENV={env}", f"ARGS={' '.join(rest)}"]
    with Command(cwd=tmp_path, command=command) as make:
        learned(tmp_path / "run")
        actors = make.actors()
        assert len(actors) == 2
        make.interrupt()
        make.wait()
        assert "stopped: interrupted" in make.output
        assert "next: .venv/bin/seedbed resume run" in make.output
        assert "Traceback" not in make.output
        until(lambda: not any(map(alive, actors)), "the actors to end", 5)
    left = summary(tmp_path / "run")
    assert left["stopped_because"] == "interrupted"
    assert left["actor_restarts"] == 0
    assert int(checkpoints(tmp_path / "run")[-1].name) == left["weights_version"] > 0
    assert not sockets(tmp_path / "run")
    go_on = [".venv/bin/seedbed", "resume", "run", "--frames", str(left["env_frames"] + 2000), "--no-video"]
    with Command(cwd=tmp_path, command=go_on) as resumed:
        assert resumed.wait() == 0, resumed.output
    assert summary(tmp_path / "run")["weights_version"] > left["weights_version"]


STUCK = """
import hashlib, sys
from seedbed.learning.loop import LearnerLoop
from seedbed.cli.main import main

def compile_for_ever(self, *addresses):
    print("compiling", flush=True)
    hashlib.pbkdf2_hmac("sha256", b"", b"", (1 << 31) - 1)

LearnerLoop.open = compile_for_ever
main(sys.argv[1:])
"""


@pytest.mark.slow
def test_a_second_ctrl_c_quits_even_while_something_is_compiled(tmp_path: Path) -> None:
    command = [sys.executable, "-c", STUCK]
    with Command(*flags("toy:catch", "run"), cwd=tmp_path, command=command) as learner:
        learner.says("compiling")

        def interrupted() -> bool:
            if alive(learner.process):
                learner.interrupt()
            return not alive(learner.process)

        until(interrupted, "the second Ctrl-C to be heard", 30)
        assert learner.wait() == 130, learner.output
    assert not checkpoints(tmp_path / "run")


@pytest.mark.slow
def test_interrupted_before_the_first_update_and_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = train(tiny("toy:catch", tmp_path / "whole", deterministic=True, transport="inproc", frames=200))
    start = LearnerLoop.open

    def interrupted(self: LearnerLoop, *addresses: Any) -> list[str]:
        os.kill(os.getpid(), signal.SIGINT)
        return start(self, *addresses)

    with monkeypatch.context() as patch:
        patch.setattr(LearnerLoop, "open", interrupted)
        config = tiny("toy:catch", tmp_path / "run", deterministic=True, transport="inproc", frames=200)
        assert train(config).stopped_because == "interrupted"
    assert summary(tmp_path / "run")["weights_version"] == 0
    assert len(rows(tmp_path / "run")) == 1  # however short a run was
    assert not checkpoints(tmp_path / "run")
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("actor")]
    again = resume(str(tmp_path / "run"))
    assert "begins anew" in capsys.readouterr().out
    assert again.params_sha256 == whole.params_sha256

    with monkeypatch.context() as patch:
        patch.setattr(LearnerLoop, "open", interrupted)
        config = tiny("toy:catch", tmp_path / "loose", transport="inproc", frames=200)
        assert train(config).stopped_because == "interrupted"
    assert [path.name[-1] for path in checkpoints(tmp_path / "loose")] == ["0"]
    assert resume(str(tmp_path / "loose")).stopped_because == "200 frames spent"
    assert "weights version 0" in capsys.readouterr().out


@pytest.mark.slow
def test_ctrl_c_during_the_last_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save = saver.save

    def interrupted(*arguments: Any, **more: Any) -> Any:
        os.kill(os.getpid(), signal.SIGINT)
        return save(*arguments, **more)

    monkeypatch.setattr(saver, "save", interrupted)
    run = train(tiny("toy:catch", tmp_path / "run", transport="inproc", frames=200))
    assert run.stopped_because == "200 frames spent"
    assert summary(tmp_path / "run")["weights_version"] == int(checkpoints(tmp_path / "run")[-1].name)


@pytest.mark.slow
def test_a_full_disk_spares_the_earlier_checkpoints_and_a_damaged_one_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    written = [0]
    write = saving._write

    def fill_up(*arguments: Any) -> None:
        written[0] += 1
        if written[0] > 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        write(*arguments)

    settings = {"transport": "inproc", "frames": 400, "checkpoint_minutes": 1e-6, "deterministic": True}
    whole = train(tiny("toy:catch", tmp_path / "whole", **{**settings, "checkpoint_minutes": 60.0}))
    folder = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(saving, "_write", fill_up)
        with pytest.raises(RunFailed, match="the disk is full: free space"):
            train(tiny("toy:catch", folder, **settings))
    assert "newest one kept: 000000000002" in capsys.readouterr().out
    left = summary(folder)
    assert left["weights_version"] == whole.weights_version, "the run went on without its checkpoints"
    assert left["params_sha256"] == whole.params_sha256
    assert "disk is full" in left["stopped_because"]
    assert [int(path.name) for path in checkpoints(folder)] == [1, 2]

    newest = checkpoints(folder)[-1] / "train.safetensors"
    data = bytearray(newest.read_bytes())
    data[-1] ^= 1
    newest.write_bytes(data)
    again = resume(str(folder))
    shown = capsys.readouterr().out
    assert "damaged checkpoint passed over" in shown
    assert "checkpoints/000000000001: weights version 1" in shown
    assert again.params_sha256 == whole.params_sha256


def _may(*command: str) -> bool:
    if shutil.which(command[0]) is None:
        return False
    return subprocess.run(command, check=False, capture_output=True).returncode == 0


WATCHED = """
import os, sys
def watch(event, arguments):
    by_path = event == "socket.connect" and isinstance(arguments[1], (str, bytes))
    if event in ("socket.getaddrinfo", "socket.connect") and not by_path:
        os.write(2, f"asked the network: {event} {arguments}".encode())
        os._exit(99)
sys.addaudithook(watch)
"""
"""Has every Python process end that looks for another machine. (A Unix socket's address is a path.)"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "alone",
    [
        pytest.param(
            ["unshare", "-rn"],
            marks=pytest.mark.skipif(
                not _may("unshare", "-rn", "true"), reason="this machine allows no network of its own"
            ),
            # In a network that has not even a way to itself.
            id="without a network",
        ),
        pytest.param([], id="watched"),
    ],
)
def test_nothing_is_downloaded(alone: list[str], tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(WATCHED)
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    # To the video and its encoder.
    words = flags("ALE/Pong-v5", "run", frames=4000, network="shallow", video=True)
    with Command(*words, cwd=tmp_path, command=[*alone, SEEDBED], PYTHONPATH=path) as learner:
        assert learner.wait() == 0, learner.output
    assert list((tmp_path / "run").glob("**/*.mp4"))


@pytest.mark.slow
@pytest.mark.skipif(
    not _may("unshare", "-rm", "sh", "-c", "mount -t tmpfs -o size=64k none /mnt"),
    reason="this machine allows no mount of a tiny disk",
)
def test_a_disk_that_is_really_full_ends_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    words = flags(
        "CartPole-v1", "disk/run", checkpoint_minutes=1e-6, hidden=(64, 64), keep_checkpoints=99, frames=4000
    )
    script = 'mount -t tmpfs -o size=2m none disk && exec "$@"'
    command = ["unshare", "-rm", "sh", "-c", script, "sh", SEEDBED]
    with Command(*words, cwd=tmp_path, command=command) as learner:
        assert learner.wait() == 1, learner.output
        assert learner.last_line.startswith("seedbed: ")
        assert "free" in learner.last_line
        assert "Traceback" not in learner.output.split("seedbed: ")[-1]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kilobytes", "settings", "says", "why"),
    [
        (
            *(256, {"frames": 4000, "checkpoint_minutes": 1e-6}),
            "cannot write the checkpoint of step",
            "4000 frames spent, and cannot write the checkpoint",
        ),
        # Metrics end no run: the last checkpoint, which does not fit either, does.
        *thorough(
            (
                *(6, {"frames": 20_000}),
                "cannot write the checkpoint of step",
                "20000 frames spent, and cannot write the checkpoint",
            )
        ),
    ],
)
def test_files_that_do_not_fit_end_in_one_line(
    kilobytes: int, settings: dict[str, Any], says: str, why: str, tmp_path: Path
) -> None:
    # What any machine allows: no file may be longer.
    words = flags("CartPole-v1", "run", hidden=(256, 256), **settings)
    command = ["sh", "-c", f'ulimit -f {2 * kilobytes} && exec "$@"', "sh", SEEDBED]
    # Nor may what is compiled for all be cut off.
    spared = {"JAX_ENABLE_COMPILATION_CACHE": "false", "PYTHONDONTWRITEBYTECODE": "1"}
    with Command(*words, cwd=tmp_path, command=command, **spared) as learner:
        assert learner.wait() == 1, learner.output
        assert learner.last_line.startswith(f"seedbed: {says}")
        assert "Traceback" not in learner.output
    assert ("rows are missing until they can be written again" in learner.output) == (kilobytes < 100)
    assert summary(tmp_path / "run")["stopped_because"].startswith(why)
    assert not any((tmp_path / "run/checkpoints").iterdir()), "what could not be finished is removed"


@pytest.mark.slow
def test_time_runs_out_also_while_nobody_acts(tmp_path: Path) -> None:
    config = tiny("toy:catch", tmp_path / "run", actors=0, listen=("127.0.0.1:0",), minutes=0.03)
    left = train(config).to_json()
    assert left["stopped_because"] == "0.03 minutes spent"
    assert left["agent_steps"] == left["weights_version"] == 0
    assert rows(tmp_path / "run")[-1]["actors"] == 0


@pytest.mark.slow
def test_whatever_the_learner_raises_is_one_line_and_what_was_learned_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    update = Learner.update

    def explode(self: Learner, *given: Any) -> Any:
        if int(self.state.updates) == 3:
            raise RuntimeError("out of memory")
        return update(self, *given)

    monkeypatch.setattr(Learner, "update", explode)
    with pytest.raises(RunFailed, match=r"^learner: RuntimeError: out of memory \(log: .*learner\.log\)$"):
        train(tiny("toy:catch", tmp_path / "run", transport="inproc"))
    left = summary(tmp_path / "run")
    assert left["stopped_because"].startswith("failed: learner: RuntimeError: out of memory")
    assert [path.name[-1] for path in checkpoints(tmp_path / "run")] == ["3"]
    assert "Traceback" in (tmp_path / "run/logs/learner.log").read_text()


@pytest.mark.slow
def test_an_error_that_comes_late_leaves_the_state_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wait, waited = jax.block_until_ready, [0]

    def lose_the_device(state: Any) -> Any:
        waited[0] += isinstance(state, TrainState)
        if waited[0] == 3:
            raise RuntimeError("the device is lost")
        return wait(state)

    monkeypatch.setattr(jax, "block_until_ready", lose_the_device)
    with pytest.raises(RunFailed, match=r"^learner: RuntimeError: the device is lost \(log: "):
        train(tiny("toy:catch", tmp_path / "run", transport="inproc"))
    assert summary(tmp_path / "run")["weights_version"] == 2
    assert [path.name[-1] for path in checkpoints(tmp_path / "run")] == ["2"]


@pytest.mark.slow
def test_a_finished_run_that_is_resumed_keeps_its_summary(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    train(tiny("toy:catch", folder, transport="inproc", frames=4000))
    left = summary(folder)
    assert left["agent_steps_per_second"] > 0
    resume(str(folder))
    assert summary(folder) == left
    (folder / "summary.json").write_text('{"env": ')
    resume(str(folder))
    assert summary(folder)["params_sha256"] == left["params_sha256"], "a damaged one is written anew"


@pytest.mark.slow
def test_a_resumed_run_keeps_what_was_changed(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    train(tiny("toy:catch", folder, transport="inproc", frames=400))
    assert resume(str(folder), frames=800).to_json()["env_frames"] >= 800
    assert resume(str(folder)).to_json()["stopped_because"] == "800 frames spent"


@pytest.mark.slow
@pytest.mark.draws
def test_what_a_run_leaves_and_what_can_be_done_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)

    def said(*words: str) -> list[str]:
        with pytest.raises(SystemExit) as stop:
            main([*words])
        assert stop.value.code == 0
        return capfd.readouterr().out.strip().split("\n")

    words = flags("toy:catch", "run", transport="inproc", frames=4000, video=True)
    *lines, last = said(*words, "--json")
    assert json.loads(last) == summary(tmp_path / "run")
    assert set(json.loads(last)) >= {
        *("env", "arch", "agent", "transport", "seed", "seconds", "agent_steps", "env_frames"),
        *("agent_steps_per_second", "mean_return", "best_mean_return", "episodes", "weights_version"),
        *("policy_lag_mean", "policy_lag_max", "params_sha256", "stopped_because", "versions", "commit"),
        *("command", "machine", "cores"),
    }
    log = (tmp_path / "run/logs/learner.log").read_text()
    for name in ("command", "machine", "cores", "versions", "commit"):
        assert f"{name}: {json.dumps(json.loads(last)[name])}" in log
    assert lines[-1] == "next: seedbed eval run"
    assert rows(tmp_path / "run")
    assert list((tmp_path / "run/events").glob("events.out.tfevents.*"))
    assert (tmp_path / "run/curve.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "run/video.mp4").stat().st_size > 1000

    estimate = json.loads(said("eval", "run", "--episodes", "8", "--json")[-1])
    assert estimate["count"] == 8 and -1 <= estimate["low"] <= estimate["mean"] <= 1
    said("record", "run", "--to", "again.mp4")
    assert (tmp_path / "again.mp4").stat().st_size > 1000


@pytest.mark.slow
def test_one_process_at_a_time_trains_in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "run"
    train(tiny("toy:catch", folder, transport="inproc", frames=400))
    update, refused = Learner.update, []

    def resume_meanwhile(self: Learner, *given: Any) -> Any:
        if not refused:
            with monkeypatch.context() as patch:
                # A run that is ending writes one more checkpoint.
                patch.setattr(RunFolder, "newest", lambda *_: pytest.fail("read before it is held"))
                with pytest.raises(ConfigError, match="another process trains in") as found:
                    resume(str(folder))
            refused.append(found)
        return update(self, *given)

    monkeypatch.setattr(Learner, "update", resume_meanwhile)
    assert resume(str(folder), frames=800).to_json()["stopped_because"] == "800 frames spent"
    assert refused
