"""Checkpoints that are written beside a run: what they hold, what a run waits for, and what a kill leaves."""

import errno
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fakes import PATIENCE

from seedbed.launch import saver as module
from seedbed.launch.saver import Saver
from seedbed.learning.checkpoint import Contents, load_latest


class Slow:
    """A piece that is not there before it is let go."""

    def __init__(self) -> None:
        self.asked, self.go, self.closed = threading.Event(), threading.Event(), threading.Event()

    def __iter__(self) -> Iterator[dict[str, Any]]:
        self.asked.set()
        assert self.go.wait(PATIENCE)
        yield {"frames": np.arange(3)}

    def close(self) -> None:
        self.closed.set()


def saver_of(root: Path, notes: list[str] | None = None, *, beside: bool = True) -> Saver:
    told = [] if notes is None else notes
    return Saver(root, keep=2, beside=beside, saved_version=-1, note=told.append)


def test_what_is_saved_is_what_was_there_when_it_was_begun(tmp_path: Path) -> None:
    saver, slow, params = saver_of(tmp_path), Slow(), {"w": np.ones(3)}
    assert not saver.busy and saver.meters() == {}
    saver.begin(5, lambda: Contents({"train": params}, {"seconds": 1.5}, pieces={"replay": slow}))
    params["w"][:] = 7
    assert slow.asked.wait(PATIENCE)
    assert saver.busy and saver.saved_version == -1
    assert saver.meters().keys() == {"checkpoint_pause_seconds"}
    slow.go.set()
    saver.wait()
    assert not saver.busy and saver.saved_version == 5 and slow.closed.is_set()
    assert saver.meters().keys() == {"checkpoint_pause_seconds", "checkpoint_seconds"}
    checkpoint = load_latest(tmp_path)
    assert checkpoint.step == 5 and checkpoint.meta == {"seconds": 1.5}
    assert checkpoint.tree("train", params)["w"].tolist() == [1, 1, 1]
    assert next(checkpoint.pieces("replay"))["frames"].tolist() == [0, 1, 2]


def test_one_is_written_at_a_time(tmp_path: Path) -> None:
    saver, slow, order = saver_of(tmp_path), Slow(), []
    saver.begin(1, lambda: Contents({}, {}, pieces={"replay": slow}))

    def last() -> None:
        order.append(saver.save(2, Contents({}, {})))

    thread = threading.Thread(target=last)
    thread.start()
    assert slow.asked.wait(PATIENCE)
    assert order == []
    slow.go.set()
    thread.join(PATIENCE)
    assert order == [None] and saver.saved_version == 2
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["000000000001", "000000000002"]


def test_an_exact_run_is_saved_before_it_goes_on(tmp_path: Path) -> None:
    saver, slow = saver_of(tmp_path, beside=False), Slow()
    slow.go.set()
    saver.begin(5, lambda: Contents({}, {}, pieces={"replay": slow}))
    assert saver.saved_version == load_latest(tmp_path).step == 5
    assert not saver.busy and slow.closed.is_set()


@pytest.mark.parametrize("beside", [True, False])
def test_a_full_disk_is_noted_and_the_next_one_is_tried(
    beside: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    notes: list[str] = []
    saver, slow = saver_of(tmp_path, notes, beside=beside), Slow()
    saver.begin(1, lambda: Contents({}, {}))
    saver.wait()

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr("seedbed.learning.checkpoint._write", full)
        saver.begin(2, lambda: Contents({}, {}, pieces={"replay": slow}))
        saver.wait()
    assert len(notes) == 1 and "the disk is full" in notes[0] and "newest one kept: 000000000001" in notes[0]
    assert slow.closed.is_set(), "nobody waits for what is not read"
    assert saver.saved_version == 1
    saver.begin(3, lambda: Contents({}, {}))
    saver.wait()
    assert (saver.saved_version, len(notes)) == (3, 1)


def test_whatever_else_goes_wrong_is_raised_once_where_the_run_hears_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saver = saver_of(tmp_path)

    def fail(*_: Any, **__: Any) -> None:
        raise MemoryError("no memory")

    with monkeypatch.context() as patch:
        patch.setattr(module, "save", fail)
        saver.begin(1, lambda: Contents({}, {}))
        with pytest.raises(MemoryError, match="no memory"):
            saver.wait()
        saver.wait()
        saver.begin(2, lambda: Contents({}, {}))
        with pytest.raises(MemoryError, match="no memory"):
            saver.begin(3, lambda: Contents({}, {}))
    saver.begin(3, lambda: Contents({}, {}))
    saver.wait()
    assert saver.saved_version == 3


KILLED = """
import sys, pathlib, numpy as np
from seedbed.launch.saver import Saver
from seedbed.learning.checkpoint import Contents

class Endless:
    def __iter__(self):
        yield {"frames": np.zeros(1 << 20, np.uint8)}
        yield {"frames": np.ones(1 << 20, np.uint8)}
        print("writing", flush=True)
        sys.stdin.read()

    def close(self): pass

saver = Saver(pathlib.Path(sys.argv[1]), keep=1, beside=True, saved_version=-1, note=print)
saver.begin(1, lambda: Contents({"train": {"w": np.ones(3)}}, {}))
saver.begin(2, lambda: Contents({"train": {"w": np.zeros(3)}}, {}, pieces={"replay": Endless()}))
saver.wait()
"""


def test_a_kill_while_one_is_written_leaves_the_one_before(tmp_path: Path) -> None:
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", KILLED, str(tmp_path)], **pipes) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"writing\n"
        os.kill(child.pid, signal.SIGKILL)
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {"000000000001", ".writing-000000000002"}
    checkpoint = load_latest(tmp_path)
    assert checkpoint.step == 1 and checkpoint.skipped == ()
    saver_of(tmp_path).save(3, Contents({}, {}))
    assert {path.name for path in tmp_path.iterdir()} == {"000000000001", "000000000003"}
