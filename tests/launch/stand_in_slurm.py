"""A stand-in for Slurm on one machine: sbatch, srun, scontrol and scancel, as far as manifests use them.

Each command is this file under another name. Jobs begin at once, as processes of this machine; the folder
``STAND_IN`` has a file for each job that was submitted, for each that is to be queued again, and for each that ended.
"""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import sys
from pathlib import Path

STATE = Path(os.environ.get("STAND_IN", "."))


def sbatch(words: list[str]) -> int:
    """Begins the tasks of a script, each with its own number, and prints the job's."""
    script = Path(words[-1])
    options = dict(re.findall(r"^#SBATCH --([\w-]+)(?:=(\S+))?$", script.read_text(), re.MULTILINE))
    job = len(list(STATE.glob("submitted-*"))) + 1
    (STATE / f"submitted-{job}").write_text(" ".join(words))
    first, last = (int(end) for end in options.get("array", "0-0").split("-"))
    for index in range(first, last + 1):
        task = {"SLURM_ARRAY_TASK_ID": str(index)} if "array" in options else {}
        output = options["output"].replace("%a", str(index))
        process = subprocess.Popen(
            [sys.executable, __file__, "task", str(script), output],
            env={
                **os.environ,
                "SLURM_JOB_ID": f"{job}{index:03}",
                "SLURM_JOB_NODELIST": "localhost",
                "SLURM_NTASKS": str(int(options.get("nodes", 1)) * int(options.get("ntasks-per-node", 1))),
                **task,
            },
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        (STATE / f"group-{process.pid}").touch()
    print(f"{job};here" if "--parsable" in words else f"Submitted batch job {job}")
    return 0


def task(words: list[str]) -> int:
    """Runs a script as one task, again as long as that is asked for; keeps its last exit status."""
    script, output = words
    number, restarts = os.environ["SLURM_JOB_ID"], 0
    again = STATE / f"again-{number}"
    while True:
        with Path(output).open("ab") as file:
            done = subprocess.run(
                ["bash", script],
                env={**os.environ, "SLURM_RESTART_COUNT": str(restarts)},
                stdout=file,
                stderr=file,
                check=False,
            )
        if not again.exists():
            (STATE / f"ended-{number}").write_text(str(done.returncode))
            return 0
        again.unlink()
        restarts += 1


def srun(words: list[str]) -> int:
    """Runs a command once for each task of the job, at the same time; returns the highest exit status."""
    own = list(itertools.takewhile(lambda word: word.startswith("--"), words))
    command = words[len(own) :]
    asked = [word.partition("=")[2] for word in own if word.startswith("--ntasks=")]
    count = int((asked or [os.environ["SLURM_NTASKS"]])[0])
    started = [
        subprocess.Popen(command, env={**os.environ, "SLURM_PROCID": str(index)}) for index in range(count)
    ]
    return max(status if (status := each.wait()) >= 0 else 128 - status for each in started)


def scontrol(words: list[str]) -> int:
    """Notes that a job is to be queued again, or prints the names of machines."""
    if words[0] == "requeue":
        (STATE / f"again-{words[1]}").touch()
    else:
        print(words[-1])
    return 0


def scancel(words: list[str]) -> int:
    """Notes that a job is not wanted any more."""
    (STATE / f"cancelled-{words[0]}").touch()
    return 0


if __name__ == "__main__":
    known = {"sbatch": sbatch, "srun": srun, "scontrol": scontrol, "scancel": scancel, "task": task}
    called = Path(sys.argv[0]).name
    raise SystemExit(known[called](sys.argv[1:]) if called in known else known[sys.argv[1]](sys.argv[2:]))
