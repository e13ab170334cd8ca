"""Disks: one that is full for a while, and files that may not grow."""

from __future__ import annotations

import shutil
import subprocess

from harness import SEEDBED, Command, checkpoints, flags, learned, until

from attacks.table import Impossible, Scene, attack

SCRIPT = """
mount -t tmpfs -o size=8m none disk
"$@" & echo $! >pid
while [ ! -e fill ]; do sleep 0.1; done
dd if=/dev/zero of=disk/filler bs=64k 2>/dev/null
touch full
while [ ! -e free ]; do sleep 0.1; done
rm disk/filler
touch freed
trap "" INT
wait $(cat pid)
echo $? >status
"""
"""A run on a disk of its own, which is filled and emptied when files say so."""


@attack(
    "full disk",
    "the disk (a tmpfs) is full for a while: checkpoints, metrics, logs, curve; then there is room again",
    "lines say so, training goes on, and afterwards there are rows and checkpoints again; status 0",
)
def full_for_a_while(scene: Scene) -> None:
    """The disk is mounted in a namespace of its own, and filled through the process that lives there."""
    if not _may_mount():
        raise Impossible("this machine allows no mount of a tiny disk")
    (scene.folder / "disk").mkdir()
    words = flags("toy:catch", "disk/run", frames=10**9, checkpoint_minutes=0.02, hidden=(64, 64))
    command = ["unshare", "-rm", "bash", "-c", SCRIPT, "sh", SEEDBED]
    with Command(*words, cwd=scene.folder, command=command) as learner:
        until((scene.folder / "pid").exists, "the run to begin")
        inside = f"/proc/{(scene.folder / 'pid').read_text().strip()}/root{scene.folder}/disk/run"
        place = type(scene.folder)(inside)
        learned(place)
        until(lambda: checkpoints(place), "a checkpoint")
        (scene.folder / "fill").touch()
        until((scene.folder / "full").exists, "the disk to be full")
        learner.says("the disk is full")
        learner.says("rows are missing until they can be written again")
        newest = checkpoints(place)[-1]
        (scene.folder / "free").touch()
        until((scene.folder / "freed").exists, "room")
        until(lambda: checkpoints(place)[-1] > newest, "a checkpoint after it")
        learned(place)
        learner.interrupt()
        until((scene.folder / "status").exists, "the end")
        assert "Traceback" not in learner.output, learner.output
        status = (scene.folder / "status").read_text().strip()
        assert status == "0", f"status {status}: {learner.output}"
    scene.times += 1


def _may_mount() -> bool:
    if shutil.which("unshare") is None:
        return False
    command = ["unshare", "-rm", "sh", "-c", "mount -t tmpfs -o size=64k none /mnt"]
    return subprocess.run(command, check=False, capture_output=True).returncode == 0
