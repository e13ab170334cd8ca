"""Clocks that jump: everything that waits goes by the monotonic clock."""

from __future__ import annotations

import itertools
import re
import shutil
import subprocess
import time
from pathlib import Path

from harness import Command, alive, balanced, flags, rows, summary, until

from attacks.endings import ended
from attacks.table import Impossible, Scene, attack

SHIM = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sys/time.h>
#include <time.h>
static int (*real)(clockid_t, struct timespec *);
static int is_wall(clockid_t id) { return id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE; }
static long jump(void) {
    struct timespec now;
    real(CLOCK_MONOTONIC, &now);
    /* Every half second of real time it is another time: hours and years before and after. */
    static const long jumps[] = {0, 3600, -3600, 31536000, -31536000, 86400, -7, 7};
    return jumps[(now.tv_sec * 2 + now.tv_nsec / 500000000) % 8];
}
int clock_gettime(clockid_t id, struct timespec *at) {
    if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
    int found = real(id, at);
    if (!found && is_wall(id)) at->tv_sec += jump();
    return found;
}
int gettimeofday(struct timeval *at, void *zone) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    at->tv_sec = now.tv_sec;
    at->tv_usec = now.tv_nsec / 1000;
    return 0;
}
time_t time(time_t *to) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (to) *to = now.tv_sec;
    return now.tv_sec;
}
"""
"""A library that shows every process, also its C and C++, a wall clock that jumps."""


def library(folder: Path) -> str:
    """Compiles the library; returns its path."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        raise Impossible("there is no C compiler")
    (folder / "clock.c").write_text(SHIM)
    made = folder / "clock.so"
    command = [compiler, "-shared", "-fPIC", "-O1", "-o", str(made), str(folder / "clock.c"), "-ldl"]
    subprocess.run(command, check=True)
    return str(made)


@attack(
    "clock jumps",
    "the wall clock jumps by seconds, hours and years, twice a second, in the learner and in all actors",
    "it trains to its end without a restart; limits in minutes hold; actors come by TLS; files have no negative time",
)
def jumping(scene: Scene) -> None:
    """By shared memory to a number of frames; by TLS, with a limit of minutes."""
    shim = {"LD_PRELOAD": library(scene.folder)}
    with Command(*flags("toy:catch", "run", frames=4000), cwd=scene.folder, **shim) as learner:
        assert learner.wait() == 0, learner.output
        ended(learner, scene.folder / "run", "4000 frames spent")
    told = rows(scene.folder / "run")
    assert all(later["seconds"] >= row["seconds"] >= 0 for row, later in itertools.pairwise(told))
    assert summary(scene.folder / "run")["actor_restarts"] == 0
    scene.times += 1
    if scene.scale.briefly:
        return
    words = flags("toy:catch", "tls", actors=1, listen=("0.0.0.0:0",), minutes=0.5, transport="grpc")
    with Command(*words, cwd=scene.folder, **shim) as learner:
        line = learner.pasted()
        line[1] = f"127.0.0.1:{line[1].rpartition(':')[2]}"
        with Command(*line, cwd=scene.folder, **shim) as actor:
            learner.says("joined from elsewhere")
            begin = time.monotonic()
            assert learner.wait() == 0, learner.output
            assert time.monotonic() - begin < 60, "0.5 minutes were as many by the wall clock"
            until(lambda: not alive(actor.process), "the actor to hear that the run is over", 60)
    left = [line for line in learner.output.splitlines() if re.match(r"actor \d+ left", line)]
    assert all("the run is over" in line for line in left), learner.output
    assert summary(scene.folder / "tls")["seconds"] > 20
    assert balanced(summary(scene.folder / "tls"))
    scene.times += 1
