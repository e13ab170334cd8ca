"""What doctor, actor and bench do, in Python: python examples/other_commands.py [run folder]."""

import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import seedbed


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def main(run_dir: str | None = None) -> None:
    for what, found, advice in seedbed.findings():  # seedbed doctor
        print(what, found, advice)

    # A learner that starts no actor, and one actor as it would be started on another machine. The token is
    # made by the learner, unless the run folder has one.
    folder = Path(run_dir or tempfile.mkdtemp())
    folder.mkdir(exist_ok=True)
    (folder / "token").write_text("between-us-alone")
    address = f"127.0.0.1:{free_port()}"
    actor = subprocess.Popen([sys.executable, __file__, "actor", address, "between-us-alone"])
    try:
        config = seedbed.configure(
            "toy:catch", actors=0, listen=[address], frames=30_000, video=False, run_dir=str(folder)
        )
        summary = seedbed.train(config)
    finally:
        actor.terminate()
        actor.wait()
    print(
        f"mean return {summary.mean_return:.2f} after {summary.agent_steps} steps: {summary.stopped_because}"
    )

    row = seedbed.bench(seedbed.configure("toy:catch"), seconds=0.2)  # seedbed bench toy:catch --seconds 0.2
    print(f"efficiency {row['efficiency']:.2f}, bottleneck {row['bottleneck']}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["actor"]:
        seedbed.act(sys.argv[2], join=sys.argv[3], envs=16, say=print)  # seedbed actor HOST:PORT --join …
    else:
        main(*sys.argv[1:2])
