"""Manifests: files as they are written, commands in them as they are read, and whole runs by a stand-in for Slurm.

``PYTHONPATH=tests .venv/bin/python tests/launch/test_manifests.py`` writes the expected files anew.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shlex
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import psutil
import pytest
import yaml
from harness import SEEDBED, Command, alive, balanced, learned, summary, until, words_of

from seedbed.cli import manifest
from seedbed.cli.defaults import read_config
from seedbed.cli.status import Status
from seedbed.config.resolve import configure, flat
from seedbed.config.words import words_of as written_as
from seedbed.errors import ConfigError, ConnectionLost
from seedbed.launch import directory
from seedbed.launch.folder import RunFolder
from seedbed.transport.admission import Gate, Invitation
from seedbed.transport.tls import Identity

EXPECTED = Path(__file__).parent / "manifests"
STAND_IN = Path(__file__).parent / "stand_in_slurm.py"
TINY = [
    *("--preset", "none", "--network", "mlp", "--hidden", "16"),
    *("--envs-per-actor", "4", "--unroll-length", "5", "--batch-size", "8"),
]
ACTORS = ["toy:catch", *TINY, "--actors", "20", "--frames", "1e6", "--run-dir", "/scratch/catch"]
GANG = ["toy:catch", *TINY, "--arch", "sebulba", "--agent", "ppo", "--lag", "free", "--hosts", "2"]
CASES = {
    "slurm": ["slurm", *ACTORS],
    "kubernetes": ["kubernetes", *ACTORS, "--image", "registry.example/seedbed:0.2"],
    "rayjob": ["rayjob", *ACTORS, "--lag", "0"],
    "skypilot": ["skypilot", *ACTORS, "--accelerator", "L4"],
    "slurm-gang": ["slurm", *GANG, "--run-dir", "/scratch/gang", "--hours", "1.5", "--accelerators", "0"],
    "kubernetes-gang": ["kubernetes", *GANG],
    "skypilot-gang": ["skypilot", *GANG],
}
"""Arguments of ``seedbed manifest``, by the folder of the expected files."""


def files_of(words: list[str], folder: Path) -> dict[str, str]:
    """The files that are written, by name."""
    manifest.run([*words, "--out", str(folder)])
    return {path.name: path.read_text() for path in sorted(folder.iterdir())}


@pytest.mark.parametrize("case", CASES)
def test_files_are_the_expected_ones_and_of_their_language(case: str, tmp_path: Path) -> None:
    found = files_of(CASES[case], tmp_path / "out")
    found.pop("secret.yaml", None)  # it is never the same
    assert found == {path.name: path.read_text() for path in (EXPECTED / case).iterdir()}
    for name, text in found.items():
        path = tmp_path / "out" / name
        if path.suffix == ".sh":
            subprocess.run(["bash", "-n", str(path)], check=True)
            assert os.access(path, os.X_OK)
        else:
            assert all(isinstance(document, dict) for document in yaml.safe_load_all(text) if document)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"env": "ALE/Breakout-v5", "actors": 64, "learning_rate": 1e-4},
        {"env": "CartPole-v1", "arch": "apex", "agent": "dqn", "priority_exponent": 0.5},
        {"env": "ALE/Pong-v5", "agent": "ppo", "arch": "sebulba", "preset": "none", "actor_devices": (0, 1)},
        {"env": "toy:catch", "env_options": ("rows=7", "name=a b"), "until_return": None, "video": False},
        {"env": "CartPole-v1", "lag": 0, "deterministic": True, "log": ("wandb",), "hidden": (8, 8)},
        {
            "env": "Pendulum-v1",
            "agent": "sac",
            "arch": "apex",
            "replay_size": 7_000,
            "listen": ("0.0.0.0:7700",),
            "tls_cert": ("a.pem", "b.pem"),
        },
    ],
    ids=str,
)
def test_a_configuration_is_the_one_that_its_words_make(settings: dict[str, Any]) -> None:
    known = {ALIASES.get(name, name): value for name, value in settings.items()}
    config = configure(**known)
    assert read_config("train", written_as(config), "") == config


ALIASES = {"actor_devices": "inference_devices"}


def learner_in(files: dict[str, str]) -> list[str]:
    """The words of ``seedbed train`` in the files, as a shell reads them."""
    text = "\n".join(files.values())
    found = re.search(r"seedbed (train .*?)(\"[,\]]|\n)", text)
    assert found, text
    return shlex.split(found[1].replace('\\"', '"'))[1:]


@pytest.mark.parametrize("engine", ["slurm", "kubernetes"])
def test_the_learner_is_told_what_was_asked_for_and_has_room_for_all_actors(
    engine: str, tmp_path: Path
) -> None:
    told = read_config("train", learner_in(files_of([engine, *ACTORS], tmp_path / "out")), "")
    asked = read_config("train", ACTORS, "")
    changed = {name for name, value in flat(told).items() if value != flat(asked)[name]}
    assert changed - {"tls_cert"} == {
        "actors",
        "listen",
        "max_envs",
        "inference_batch",
        "begin_or_resume",
        "video",
    }
    place = told.placement
    assert (place.actors, place.slots, place.max_envs) == (0, 80, 80)
    assert place.full_batch(0) == asked.placement.full_batch(0) == 40
    assert told.begin_or_resume and not told.video and told.run_dir == "/scratch/catch"


def test_what_only_a_learner_that_listens_reads_is_taken(tmp_path: Path) -> None:
    words = ["--max-actors", "70", "--tls-cert", "c.pem", "k.pem"]
    found = files_of(["slurm", *ACTORS, *words], tmp_path / "out")["learner.sh"]
    assert "--max-actors 70" in found and "--tls-cert c.pem k.pem" in found


def test_slurm_starts_as_many_actors_as_were_asked_for(tmp_path: Path) -> None:
    script = files_of(["slurm", *ACTORS, "--actors-per-job", "8"], tmp_path / "out")["actor.sh"]
    assert "#SBATCH --array=0-2\n" in script and "#SBATCH --ntasks=8\n" in script
    (line,) = (line for line in script.splitlines() if line.startswith("left="))
    (tasks,) = re.findall(r"--ntasks=(\"\S.*?\)\)\")", script)
    counts = [
        subprocess.run(
            ["bash", "-c", f"{line}; echo {tasks}"],
            env={"SLURM_ARRAY_TASK_ID": str(index)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for index in range(3)
    ]
    assert counts == ["8", "8", "4"]


@pytest.mark.parametrize(
    ("statuses", "ends", "told"),
    [
        ([0], 0, []),
        ([1, 137, 0], 0, []),
        ([1, 1, 1, 3], 3, ["scancel 7"]),
        ([1, 2], 2, ["scancel 7"]),
        ([1, 75], 75, ["scontrol requeue 5"]),
        ([1, 4], 4, []),  # another session goes on, with these actors
    ],
)
def test_a_learner_that_fails_is_begun_again_and_at_last_its_actors_are_cancelled(
    statuses: list[int], ends: int, told: list[str], tmp_path: Path
) -> None:
    run, commands = tmp_path / "run", tmp_path / "bin"
    files_of(["slurm", *ACTORS[:-1], str(run)], tmp_path / "out")
    (run / "logs").mkdir(parents=True)
    (run / "logs" / "actors.job").write_text("7\n")
    (tmp_path / "statuses").write_text("".join(f"{status}\n" for status in statuses))
    commands.mkdir()
    stubs = {
        "srun": '"${@:2}"',
        "seedbed": "status=$(head -1 ../statuses); sed -i 1d ../statuses; exit $status",
        "scancel": 'echo "scancel $*" >>../told',
        "scontrol": 'echo "scontrol $*" >>../told',
    }
    for name, line in stubs.items():
        (commands / name).write_text(f"#!/bin/bash\n{line}\n")
        (commands / name).chmod(0o755)
    surroundings = {**os.environ, "PATH": f"{commands}{os.pathsep}{os.environ['PATH']}", "SLURM_JOB_ID": "5"}
    script = ["bash", str(tmp_path / "out" / "learner.sh")]
    done = subprocess.run(script, cwd=commands, env=surroundings, check=False)
    assert done.returncode == ends
    assert (tmp_path / "statuses").read_text() == "", "each attempt has one"
    assert (tmp_path / "told").read_text().splitlines() == told if told else not (tmp_path / "told").exists()


@pytest.mark.parametrize(
    ("script", "status"), [("learner.sh", 143), ("learner.sh", 1), ("actor.sh", 143), ("actor.sh", 137)]
)
def test_a_job_whose_time_is_up_goes_on_though_its_command_could_not_say_so(
    script: str, status: int, tmp_path: Path
) -> None:
    """As while it imports, or waits for others; one actor that was killed before does not hide it either."""
    run, commands = tmp_path / "run", tmp_path / "bin"
    files_of(["slurm", *ACTORS[:-1], str(run)], tmp_path / "out")
    (run / "logs").mkdir(parents=True)
    (run / "logs" / "actors.job").write_text("7\n")
    commands.mkdir()
    words = {"learner.sh": "${@:2}", "actor.sh": "${@:3}"}
    stubs = {
        "srun": f'"{words[script]}"',
        "seedbed": f"echo >>../begun; kill -TERM $PPID; sleep 0.1; exit {status}",
        "scancel": "exit 9",
        "scontrol": 'echo "scontrol $*" >>../told',
    }
    for name, line in stubs.items():
        (commands / name).write_text(f"#!/bin/bash\n{line}\n")
        (commands / name).chmod(0o755)
    path = {"PATH": f"{commands}{os.pathsep}{os.environ['PATH']}"}
    slurm = {"SLURM_JOB_ID": "5", "SLURM_ARRAY_TASK_ID": "0"}
    done = subprocess.run(
        ["bash", str(tmp_path / "out" / script)],
        cwd=commands,
        env={**os.environ, **path, **slurm},
        check=False,
    )
    assert done.returncode == 75
    assert (tmp_path / "begun").read_text() == "\n", "it is not begun again"
    assert (tmp_path / "told").read_text() == "scontrol requeue 5\n"


def test_actors_that_a_cluster_refuses_leave_no_learner_behind(tmp_path: Path) -> None:
    run, commands = tmp_path / "run", tmp_path / "bin"
    files_of(["slurm", *ACTORS[:-1], str(run)], tmp_path / "out")
    commands.mkdir()
    stubs = {
        "sbatch": '[[ "$*" == *learner.sh ]] && echo "5;cluster"',
        "scancel": f'echo "$*" >{tmp_path}/told',
    }
    for name, line in stubs.items():
        (commands / name).write_text(f"#!/bin/bash\n{line}\n")
        (commands / name).chmod(0o755)
    surroundings = {**os.environ, "PATH": f"{commands}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(["bash", str(tmp_path / "out/submit.sh")], env=surroundings, check=False)
    assert (done.returncode, (tmp_path / "told").read_text()) == (1, "5\n")


def test_as_many_actors_as_were_asked_for_may_join(tmp_path: Path) -> None:
    words = ["toy:catch", *TINY, "--actors", "2000"]
    told = read_config("train", learner_in(files_of(["kubernetes", *words], tmp_path / "out")), "")
    assert told.placement.most_actors == 4000
    given = [*words, "--max-actors", "3000", "--max-envs", "9000"]
    told = read_config("train", learner_in(files_of(["kubernetes", *given], tmp_path / "given")), "")
    assert (told.placement.most_actors, told.placement.slots) == (3000, 9000)


def test_guests_alone_have_machines_too(tmp_path: Path) -> None:
    words = ["rayjob", "toy:catch", *TINY, "--actors", "0", "--guests", "20", "--actors-per-job", "8"]
    written = yaml.safe_load(files_of(words, tmp_path / "out")["rayjob.yaml"])["spec"]
    (group,) = written["rayClusterSpec"]["workerGroupSpecs"]
    assert [group[name] for name in ("replicas", "minReplicas", "maxReplicas")] == [0, 0, 3]
    assert group["template"]["spec"]["containers"][0]["resources"]["requests"]["cpu"] == "8"


def test_workers_have_the_volume_of_a_data_set_that_they_read(tmp_path: Path) -> None:
    words = ["rayjob", "toy:catch", "--arch", "distbelief", "--agent", "bc", "--dataset", "/runs/data"]
    for given, mounted in ((words, ["/runs"]), (CASES["rayjob"], [])):
        written = yaml.safe_load(files_of(given, tmp_path / f"out{len(mounted)}")["rayjob.yaml"])["spec"]
        pod = written["rayClusterSpec"]["workerGroupSpecs"][0]["template"]["spec"]
        assert [each["mountPath"] for each in pod["containers"][0].get("volumeMounts", [])] == mounted
        assert len(pod.get("volumes", [])) == len(mounted)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["slurm", "--hours", "0.005"], "hours is 0.005, and has to be 0.1 or more"),
        (["slurm", "--hours", "inf"], "hours is inf, and has to be 0.1 or more"),
        (["slurm", "--accelerators", "-1"], "accelerators is -1, and has to be 0 or more"),
        (["kubernetes", "--insecure"], "the Secret of a JobSet has a certificate"),
    ],
)
def test_wishes_that_mean_something_else_to_the_engine_are_refused(
    words: list[str], says: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=says):
        files_of([words[0], *ACTORS, *words[1:]], tmp_path / "out")
    with pytest.raises(ConfigError, match="--host and --coordinator are the manifest's"):
        files_of(["kubernetes", *GANG, "--coordinator", "a:1", "--host", "1"], tmp_path / "out")


def test_kubernetes_ends_actors_with_the_learner_and_executes_an_interrupted_one_again(
    tmp_path: Path,
) -> None:
    files = files_of(["kubernetes", *ACTORS, "--name", "breakout"], tmp_path / "out")
    spec = yaml.safe_load(files["jobset.yaml"])["spec"]
    (rule,) = spec["failurePolicy"]["rules"]
    assert rule["action"] == "FailJobSet" and rule["onJobFailureReasons"] == ["PodFailurePolicy"]
    assert spec["successPolicy"] == {"operator": "All", "targetReplicatedJobs": ["learner"]}
    jobs = {job["name"]: job["template"]["spec"] for job in spec["replicatedJobs"]}
    assert {name: job["parallelism"] for name, job in jobs.items()} == {"learner": 1, "actor": 20}
    for name, job in jobs.items():
        actions = {
            code: rule["action"]
            for rule in job["podFailurePolicy"]["rules"]
            for code in rule.get("onExitCodes", {"values": ["lost"]})["values"]
        }
        # One actor with a wrong flag, of the wrong image perhaps, ends no run.
        of_learner = {2: "FailJob"} if name == "learner" else {}
        assert actions == {75: "Ignore", "lost": "Ignore", **of_learner}
        (container,) = job["template"]["spec"]["containers"]
        assert container["name"] == name
        assert job["template"]["spec"]["restartPolicy"] == "Never", "pod failure policies take no other"
    (learner,) = jobs["learner"]["template"]["spec"]["containers"]
    assert learner["resources"]["limits"]["nvidia.com/gpu"] == 1
    (actor,) = jobs["actor"]["template"]["spec"]["containers"]
    assert actor["command"][:3] == ["seedbed", "actor", "breakout-learner-0-0.breakout:5700"]


def test_secrets_are_in_the_secret_alone(tmp_path: Path) -> None:
    files = files_of(["kubernetes", *ACTORS], tmp_path / "out")
    path = tmp_path / "out" / "secret.yaml"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    secret = yaml.safe_load(files.pop("secret.yaml"))["stringData"]
    for name, text in secret.items():
        (tmp_path / name).write_text(text)
        assert not any(text.strip() in other for other in files.values()), name
    identity = Identity.read(tmp_path / "tls.crt", tmp_path / "tls.key")
    join = Invitation.parse(secret["join"])
    assert (join.token, join.fingerprint) == (secret["token"], identity.fingerprint)
    again = files_of(["kubernetes", *ACTORS], tmp_path / "again")["secret.yaml"]
    assert secret["token"] not in again, "no two have the same"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["slurm", "toy:catch", "--guests", "3"], "guests is 3, and all actors of slurm come and go"),
        (["slurm", "toy:catch", "--lag", "0"], r"give --lag free.* or write a manifest for rayjob"),
        (["kubernetes", "toy:catch", "--deterministic"], "lag is exact"),
        (["slurm", "CartPole-v1", "--arch", "apex", "--agent", "dqn", "--eval-envs", "2"], "eval_envs is 2"),
        (["slurm", "toy:catch", "--arch", "gorila", "--agent", "dqn"], r"roles that listen \(shard\)"),
        (["kubernetes", "toy:catch", "--arch", "rapid", "--agent", "ppo"], "or write a manifest for rayjob"),
        (["rayjob", *GANG], "no actors on other machines"),
        (["slurm", "toy:catch", "--listen", "0.0.0.0:7700", "--lag", "free"], "--listen and --on are the"),
        (["rayjob", "toy:catch", "--transport", "shm", "--on", "ray"], "--listen and --on are the"),
        (["kubernetes", "toy:catch", "--name", "Catch_1"], "give --name"),
        (["kubernetes", "toy:catch", "--run-dir", "runs/catch"], "absolute path"),
        (["slurm", "toy:catch", "--run-dir", "/my runs/catch"], "absolute path of letters"),
        (["slurm", "toy:catch", "--actors-per-job", "0"], "actors_per_job is 0"),
        (["nomad", "toy:catch"], "nomad"),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value),
)
def test_programs_that_an_engine_cannot_start_are_refused(
    words: list[str], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=says):
        manifest.run(words)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "words", [["rapid", "--agent", "ppo"], ["gorila", "--agent", "dqn"]], ids=["rapid", "gorila"]
)
def test_ray_has_programs_whose_roles_listen_too(words: list[str], tmp_path: Path) -> None:
    written = files_of(["rayjob", "toy:catch", "--arch", *words], tmp_path / "out")
    entrypoint = yaml.safe_load(written["rayjob.yaml"])["spec"]["entrypoint"].split()
    assert entrypoint[entrypoint.index("--arch") + 1] == words[0]
    assert entrypoint[entrypoint.index("--on") + 1] == "ray"


def test_guests_have_machines_that_come_and_go(tmp_path: Path) -> None:
    words = ["rayjob", "toy:catch", *TINY, "--actors", "8", "--guests", "20", "--actors-per-job", "8"]
    written = yaml.safe_load(files_of(words, tmp_path / "out")["rayjob.yaml"])["spec"]
    (group,) = written["rayClusterSpec"]["workerGroupSpecs"]
    assert [group[name] for name in ("replicas", "minReplicas", "maxReplicas")] == [1, 1, 4]
    assert written["rayClusterSpec"]["enableInTreeAutoscaling"] is True
    entrypoint = written["entrypoint"].split()
    assert entrypoint[entrypoint.index("--guests") + 1] == "20"
    assert entrypoint[entrypoint.index("--on") + 1] == "ray"


def test_files_that_are_there_are_not_written_over(tmp_path: Path) -> None:
    files_of(["slurm", *ACTORS], tmp_path / "out")
    (tmp_path / "out" / "learner.sh").write_text("mine")
    with pytest.raises(ConfigError, match="may have been changed by hand"):
        files_of(["slurm", *ACTORS], tmp_path / "out")
    assert (tmp_path / "out" / "learner.sh").read_text() == "mine"


# -- the directory of a run --------------------------------------------------------------------------------


def test_an_actor_finds_a_learner_that_listens_and_is_told_of_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    with pytest.raises(ConnectionLost, match=r"no learner listens in .*run yet"):
        directory.learner_of(run)
    folder = RunFolder.create(configure("toy:catch", run_dir=str(run)))
    folder.keep_session(0)
    gate = Gate(folder.token(), Identity.make())
    for port in (7700, 7701):  # a later session listens elsewhere
        folder.keep_addresses(["0.0.0.0:0"], [f"0.0.0.0:{port}"], gate)
        assert folder.addresses(["0.0.0.0:0"]) == [f"0.0.0.0:{port}"]
        found = directory.learner_of(run)
        assert found == (f"{socket.gethostname()}:{port}", gate.invitation("0.0.0.0:1"))
    for reason, over in (("interrupted", False), ("failed: x", False), ("4 frames spent", True)):
        folder.summary.write_text(f'{{"stopped_because": "{reason}"}}')
        assert (directory.learner_of(run) is None) == over, reason
    ended = folder.summary.stat().st_mtime_ns
    folder.keep_session(1)
    os.utime(run / "session", ns=(ended + 1, ended + 1))
    assert directory.learner_of(run) is not None, "the run goes on"
    os.utime(run / "session", ns=(ended - 1, ended - 1))
    assert directory.learner_of(run) is None
    for error in (ConfigError, KeyboardInterrupt):
        with pytest.raises(error), RunFolder(run).going_on():
            assert directory.learner_of(run) is not None, "the next session begins"
            raise error
        # After a wrong setting it is as it was; a killed process would not have changed it back either.
        assert (directory.learner_of(run) is None) == (error is ConfigError)
    for code, kind in (
        (errno.ESTALE, ConnectionLost),
        (errno.EIO, ConnectionLost),
        (errno.EACCES, ConfigError),
    ):
        with monkeypatch.context() as patched:
            patched.setattr(
                directory.regular_files, "read", lambda path, code=code: _fail(OSError(code, "no"))
            )
            with pytest.raises(kind):
                directory.learner_of(run)
    (run / "addresses.json").write_text('{"asked": [], "listening": []}')
    with pytest.raises(ConfigError, match="does not say where its learner is"):
        directory.learner_of(run)


def _fail(error: Exception) -> NoReturn:
    raise error


# -- whole runs --------------------------------------------------------------------------------------------


@contextlib.contextmanager
def slurm(folder: Path) -> Iterator[dict[str, str]]:
    """The environment in which the stand-in is found; what it has started is killed at the end."""
    commands, state = folder / "bin", folder / "state"
    commands.mkdir()
    state.mkdir()
    for name in ("sbatch", "srun", "scontrol", "scancel"):
        script = commands / name
        script.write_text(
            f"#!{sys.executable}\n" + STAND_IN.read_text().replace("__file__", repr(str(STAND_IN)))
        )
        script.chmod(0o755)
    path = os.pathsep.join([str(commands), str(Path(SEEDBED).parent), os.environ["PATH"]])
    try:
        yield {**os.environ, "PATH": path, "STAND_IN": str(state)}
    finally:
        for group in state.glob("group-*"):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(int(group.name.partition("-")[2]), signal.SIGKILL)


def processes(run: Path, verb: str) -> list[psutil.Process]:
    """Living processes of ``seedbed VERB`` for a run."""
    return [
        process
        for process in psutil.process_iter()
        if verb in words_of(process)
        and str(run) in words_of(process)
        and alive(process)
        and "-c" not in words_of(process)
    ]


@pytest.mark.slow
def test_slurm_scripts_train_and_go_on_after_an_interruption_and_a_lost_actor(tmp_path: Path) -> None:
    run, frames = tmp_path / "run", 20_000
    words = ["toy:catch", *TINY, "--actors", "3", "--frames", str(frames), "--run-dir", str(run)]
    files_of(["slurm", *words, "--actors-per-job", "2", "--accelerators", "0"], tmp_path / "out")
    with slurm(tmp_path) as surroundings:
        submitted = subprocess.run(
            [tmp_path / "out" / "submit.sh"],
            env=surroundings,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=True,
        )
        assert submitted.stdout.splitlines()[0] == "learner: job 1;here"
        state = tmp_path / "state"
        assert "--dependency=after:1+1 " in (state / "submitted-2").read_text()
        learned(run)
        actors = until(lambda: len(found := processes(run, "actor")) == 3 and found, "three actors")
        (learner,) = processes(run, "train")
        token = (run / "token").read_text().strip()
        for process in (learner, *actors):
            assert token not in " ".join(words_of(process)) + str(process.environ())
        actors[0].kill()
        until(lambda: set(processes(run, "actor")) - set(actors), "an actor in its place")
        learner.terminate()
        until(lambda: set(processes(run, "train")) - {learner}, "the learner, queued again")
        for number, log in (("1000", "learner"), ("2000", "actor-0"), ("2001", "actor-1")):
            said = run / "logs" / f"{log}.slurm"
            until(lambda number=number: (state / f"ended-{number}").exists(), f"the end of {log}")
            assert (state / f"ended-{number}").read_text() == "0", said.read_text()
    text = (run / "logs" / "learner.slurm").read_text()
    assert "resumed from" in text and f"{frames} frames spent" in text
    found = summary(run)
    assert found["env_frames"] >= frames and balanced(found)
    assert not processes(run, "actor") + processes(run, "train")


@pytest.mark.slow
def test_a_gang_of_slurm_trains_as_one_and_goes_on_after_its_time_was_up(tmp_path: Path) -> None:
    run, frames = tmp_path / "run", 5_000
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    asked = [*GANG, "--frames", str(frames), "--run-dir", str(run), "--port", port, "--accelerators", "0"]
    files_of(["slurm", *asked], tmp_path / "out")
    with slurm(tmp_path) as surroundings:
        subprocess.run([tmp_path / "out" / "submit.sh"], env=surroundings, cwd=tmp_path, check=True)
        learned(run)
        hosts = until(lambda: len(found := processes(run, "train")) == 2 and found, "two hosts")
        for host in hosts:  # as Slurm does to each task when the time is nearly up
            host.terminate()
        ended = tmp_path / "state" / "ended-1000"
        until(ended.exists, "the end of both")
        said = (run / "logs" / "learner.slurm").read_text()
        assert ended.read_text() == "0", said
    assert said.count("resumed from") == said.count(f"{frames} frames spent") == 2, said
    for host in (run, run / "hosts" / "1"):
        found = summary(host)
        assert found["env_frames"] >= frames and balanced(found)
    assert not processes(run, "train")


@pytest.mark.slow
def test_the_commands_of_pods_meet_by_the_secret(tmp_path: Path) -> None:
    run, secret = tmp_path / "runs" / "catch", tmp_path / "secret"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = [
        "toy:catch",
        *TINY,
        "--actors",
        "1",
        "--frames",
        "4000",
        "--run-dir",
        str(run),
        "--port",
        str(port),
    ]
    files = files_of(["kubernetes", *words], tmp_path / "out")
    secret.mkdir()
    for name, text in yaml.safe_load(files["secret.yaml"])["stringData"].items():
        # As files of Secrets are: links.
        (secret / f"..{name}").write_text(text)
        (secret / f"..{name}").chmod(0o400)
        (secret / name).symlink_to(f"..{name}")
    here = (
        files["jobset.yaml"]
        .replace("/etc/seedbed", str(secret))
        .replace("catch-learner-0-0.catch", "127.0.0.1")
    )
    jobs = {job["name"]: job["template"]["spec"] for job in yaml.safe_load(here)["spec"]["replicatedJobs"]}
    commands = {name: job["template"]["spec"]["containers"][0]["command"] for name, job in jobs.items()}
    path = {"PATH": os.pathsep.join([str(Path(SEEDBED).parent), os.environ["PATH"]])}
    with (
        Command(cwd=tmp_path, command=commands["learner"], **path) as learner,
        Command(cwd=tmp_path, command=commands["actor"], **path) as actor,
    ):
        assert learner.wait() == Status.OVER, learner.output
        assert actor.wait() == Status.OVER, actor.output
    assert summary(run)["env_frames"] >= 4_000 and balanced(summary(run))


if __name__ == "__main__":
    import shutil
    import tempfile

    for case, words in CASES.items():
        with tempfile.TemporaryDirectory() as folder:
            texts = files_of(words, Path(folder) / "out")
        shutil.rmtree(EXPECTED / case, ignore_errors=True)
        (EXPECTED / case).mkdir(parents=True)
        for name, text in texts.items():
            if name != "secret.yaml":
                (EXPECTED / case / name).write_text(text)
