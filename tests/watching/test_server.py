"""The page of ``seedbed watch``, asked through HTTP."""

from __future__ import annotations

import http.client
import json
import os
import re
import shutil
import socket
import ssl
import subprocess
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import uvicorn
from harness import PATIENCE, Command
from watched_runs import NOW, a_run, ended

from seedbed.cli.program import declared
from seedbed.errors import ConfigError
from seedbed.launch.folder import RunFolder
from seedbed.metrics.statistics import bootstrap_interval
from seedbed.transport.tls import is_loopback
from seedbed.watching.server import Answers, Place, application, fold, serve

Ask = Callable[..., http.client.HTTPResponse]


@contextmanager
def served(paths: list[Path], token: str | None = None) -> Iterator[Ask]:
    """Yields a function that asks a page for a path."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    port = listener.getsockname()[1]
    config = uvicorn.Config(application(Answers(paths), token), log_level="error", lifespan="off")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()

    def ask(path: str, **headers: str) -> http.client.HTTPResponse:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
        connection.request("GET", path, headers={"Host": f"127.0.0.1:{port}", **headers})
        return connection.getresponse()

    ask.port = port  # type: ignore[attr-defined]
    try:
        yield ask
    finally:
        server.should_exit = True
        thread.join(60)
        listener.close()


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs that train and one that is over, with a video; one has a markup in its log."""
    folder = tmp_path_factory.mktemp("watched") / "runs"
    for seed in range(2):
        rows = [
            {
                **NOW,
                "agent_steps": 10.0 * n,
                "env_frames": 20.0 * n,
                "seconds": float(n),
                "mean_return": n + seed,
            }
            | {"weights_version": 2.0 * n, "steps_received": 10.0 * n, "session": 0.0}
            for n in range(1, 6)
        ]
        run = a_run(folder / f"run-{seed}", rows)
        run.keep_program(declared(run.config()).to_json())
        run.log.write_text("2026-11-25 10:00:01,002 ERROR MainThread s: <script>alert(1)</script>\n")
    over = a_run(folder / "over")
    over.video.write_bytes(bytes(range(256)) * 8)
    ended(over, "frames are spent")
    return folder


@pytest.fixture(scope="module")
def ask(runs: Path) -> Iterator[Ask]:
    with served([runs]) as asking:
        yield asking


def told(answer: http.client.HTTPResponse) -> Any:
    assert answer.status == 200, answer.read()
    return json.loads(answer.read())


def test_the_page_and_its_files_come_from_here(ask: Ask) -> None:
    for path, kind in (("/", "text/html"), ("/page.js", "text/javascript"), ("/page.css", "text/css")):
        answer = ask(path)
        text = answer.read().decode()
        assert answer.status == 200 and answer.headers["Content-Type"].startswith(kind)
        assert "default-src 'self'" in answer.headers["Content-Security-Policy"]
        assert not re.search(r"(?:src|href|url)\W{1,3}(?:https?:)?//", text), (
            "nothing is loaded from elsewhere"
        )
        assert "innerHTML" not in text, "what runs say is no markup"


def test_runs_are_listed(ask: Ask) -> None:
    found = told(ask("/runs.json"))
    states = {Path(run["name"]).name: run["state"] for run in found["runs"]}
    assert states == {"run-0": "running", "run-1": "running", "over": "ended"}
    first = found["runs"][0]
    assert (first["env"], first["agent"], first["arch"], first["steps"]) == (
        "toy:catch",
        "vtrace",
        "seed",
        50,
    )
    assert first["bottleneck"][0] == "learner"
    assert found["settings"] == ["agent", "arch", "env", "run_dir"]


def test_curves_are_folded(ask: Ask) -> None:
    run = told(ask("/runs.json"))["runs"][0]["id"]
    found = told(ask(f"/curves.json?by=agent&run={run}"))
    (group,) = found["groups"]
    assert (found["env"], group["name"]) == ("toy:catch", "vtrace")
    # The ended run has one row without frames: its line is a point, at which all three are folded.
    assert sorted(len(line) for line in group["frames"]["lines"]) == [1, 5, 5]
    assert len(told(ask(f"/curves.json?by=run_dir&run={run}"))["groups"]) == 3
    assert told(ask(f"/curves.json?by=nothing&run={run}"))["groups"][0]["name"] == "null"


def test_returns_of_several_environments_are_not_folded(tmp_path: Path) -> None:
    a_run(tmp_path / "catch")
    other = a_run(tmp_path / "other")
    config = other.path / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "env_options": ["size=9"]}))
    answers = Answers([tmp_path])
    names = {Path(run["name"]).name: run["id"] for run in answers.runs()["runs"]}
    found = answers.curves("agent", names["other"])
    assert found["env"] == "toy:catch size=9" and len(found["groups"][0]["frames"]["lines"]) == 1
    by_env = answers.curves("env", names["other"])
    assert by_env["env"] is None
    assert {group["name"] for group in by_env["groups"]} == {"toy:catch", "toy:catch size=9"}
    with pytest.raises(KeyError):
        answers.curves("agent", "nothing")


def test_agents_side_by_side_have_a_curve_each(tmp_path: Path) -> None:
    run = a_run(tmp_path / "run")
    config = run.path / "config.json"
    record = json.loads(config.read_text()) | {"seed": 5, "seeds": 2, "sweep": ["entropy-cost=0.1,0.2"]}
    config.write_text(json.dumps(record))
    answers = Answers([tmp_path])

    def groups(by: str) -> dict[str, list[float]]:
        (line,) = answers.runs()["runs"]
        found = answers.curves(by, line["id"])["groups"]
        return {each["name"]: sorted(line[-1][1] for line in each["frames"]["lines"]) for each in found}

    for index in range(4):
        path = run.metrics_of(index)
        path.parent.mkdir(parents=True)
        row = {"agent_steps": 1, "env_frames": 1, "seconds": 1, "mean_return": index}
        path.write_text(json.dumps(row) + "\n")
    assert {"entropy_cost", "seed"} <= {*answers.runs()["settings"]}
    assert groups("entropy_cost") == {"0.1": [0, 1], "0.2": [2, 3]}
    assert groups("seed") == {"5": [0, 2], "6": [1, 3]}
    # A record of more agents than anybody trains is that of one.
    config.write_text(json.dumps(record | {"seeds": 10**9}))
    assert len(Answers([tmp_path]).runs()["runs"]) == 1


def test_the_middle_and_its_band() -> None:
    from seedbed.metrics.reports import Curve

    x = np.arange(5.0)
    curves = [Curve(x, 2 * x, x, x + n) for n in range(4)]
    found = fold(curves, lambda curve: curve.frames)
    middle = np.array(found["middle"])
    assert (middle[0, 0], middle[-1, 0]) == (0, 8)
    np.testing.assert_allclose(middle[:, 1], middle[:, 0] / 2 + 1.5)
    low, high = bootstrap_interval([0.0, 1.0, 2.0, 3.0], resamples=200)
    np.testing.assert_allclose(middle[-1, 2:], [4 + low, 4 + high])
    assert fold(curves[:1], lambda curve: curve.frames)["middle"] == []
    many = np.arange(5000.0)
    (line,) = fold([Curve(many, many, many, many)], lambda curve: curve.frames)["lines"]
    assert len(line) == 300 and line[-1] == [4999, 4999]


def test_prometheus_is_answered(ask: Ask) -> None:
    answer = ask("/metrics")
    assert answer.status == 200 and answer.headers["Content-Type"].startswith("text/plain")
    text = answer.read().decode()
    assert text.count("seedbed_agent_steps{") == 2 and text.count("seedbed_state{") == 3


def test_one_run(ask: Ask) -> None:
    runs = {Path(run["name"]).name: run["id"] for run in told(ask("/runs.json"))["runs"]}
    run = told(ask(f"/run.json?run={runs['run-1']}"))
    assert run["program"]["head"] == "learner"
    flows = {each["what"]: each["bytes_per_second"] for each in run["traffic"]}
    assert flows["action"] == 10 * 4, "ten steps a second, of which each action has four bytes"
    assert [each["state"] for each in run["instances"]] == ["running", "starting"]
    assert run["machines"] == {socket.gethostname(): {"learner": 1}}
    assert run["faults"][0]["text"] == "<script>alert(1)</script>"
    assert ["updates", "9"] in run["figures"] and not run["video"]
    over = told(ask(f"/run.json?run={runs['over']}"))
    assert (over["state"], over["why"], over["video"], over["bottleneck"]) == (
        *("ended", "frames are spent", True, None),
    )
    whole = ask(f"/video?run={runs['over']}")
    assert (whole.status, len(whole.read())) == (200, 2048)
    part = ask(f"/video?run={runs['over']}", Range="bytes=16-31")
    assert (part.status, part.read()) == (206, bytes(range(16, 32)))


@pytest.mark.parametrize(
    "path", ["/run.json?run=x", "/video", "/run.json", "/config.json", "/../page.js", "/x"]
)
def test_nothing_else_is_there(ask: Ask, path: str) -> None:
    told(ask("/runs.json"))
    answer = ask(path)
    assert answer.status == 404
    answer.read()


def test_a_link_is_no_video(tmp_path: Path) -> None:
    run = a_run(tmp_path / "run")
    (tmp_path / "secret").write_text("secret")
    run.video.symlink_to(tmp_path / "secret")
    answers = Answers([tmp_path])
    name = answers.runs()["runs"][0]["id"]
    with pytest.raises(KeyError):
        answers.video(name)


def test_another_site_that_leads_here_is_refused(ask: Ask) -> None:
    for path in ("/", "/runs.json", "/metrics", "/page.js"):
        answer = ask(path, Host="evil.example")
        assert answer.status == 403 and b"for this machine alone" in answer.read()
    assert ask("/", Host="localhost:1").status == 200


def test_the_token(runs: Path) -> None:
    with served([runs], "secret") as ask:
        entered = ask("/?token=secret")
        cookie = entered.headers["Set-Cookie"]
        for path in ("/", "/runs.json", "/metrics", "/runs.json?token=secreT", "/page.js?token="):
            answer = ask(path, Cookie=f"{cookie.partition('=')[0]}=no")
            assert answer.status == 403 and b"toy:catch" not in answer.read()
        assert ask("/runs.json?token=secret", Host="some.machine").status == 200
        assert entered.status == 303 and "HttpOnly" in cookie and "SameSite=strict" in cookie
        assert ask("/runs.json", Cookie=cookie.partition(";")[0]).status == 200
        # A page at another port of the same machine, which has another token, does not replace it.
        names = {
            ask("/?token=secret", Host=host).headers["Set-Cookie"].partition("=")[0]
            for host in ("box:8000", "box:8001", "box")
        }
        assert len(names) == 3


def test_places() -> None:
    assert [
        is_loopback(host) for host in ("127.0.0.1", "::1", "localhost", "0.0.0.0", "10.0.0.1", "box", "::")
    ] == [
        *(True, True, True, False, False, False, False),
    ]


def test_a_place_that_is_taken_and_no_runs_are_one_line(runs: Path, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(
            ConfigError, match=rf"cannot listen at 127.0.0.1:{port}: .*; see --host, and --port"
        ):
            serve([runs], Place(port=port), print)
    with pytest.raises(ConfigError, match="holds none"):
        serve([tmp_path], Place(), print)
    with pytest.raises(ConfigError, match="cannot listen"):
        serve([runs], Place(port=70_000), print)


@pytest.mark.slow
def test_off_loopback_the_command_takes_tls_and_a_token(runs: Path) -> None:
    (runs.parent / "temporary").mkdir()
    words = ["watch", str(runs), "--host", "0.0.0.0", "--port", "0"]
    with Command(*words, cwd=runs.parent, TMPDIR=str(runs.parent / "temporary")) as command:
        said = command.says("?token=")
        found = re.search(r"watch: https://(\S+):(\d+)/\?token=(\w{32})", said)
        assert found, said
        trusting = ssl.create_default_context()
        trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
        address = f"https://127.0.0.1:{found[2]}/runs.json"
        with pytest.raises(urllib.error.HTTPError, match="403"):
            urllib.request.urlopen(address, context=trusting)
        with urllib.request.urlopen(f"{address}?token={found[3]}", context=trusting) as answer:
            assert len(json.load(answer)["runs"]) == 3
        (folder,) = (runs.parent / "temporary").glob("seedbed-watch-*")
        command.process.terminate()
        assert command.wait() == 0
        assert "Traceback" not in command.output
        assert not folder.exists(), "a key is left"


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("chromium") is None, reason="chromium is not installed")
def test_in_a_browser(ask: Ask, runs: Path, tmp_path: Path) -> None:
    """The page draws curves with a band, the program with rates, and faults as text."""
    for live in runs.glob(
        "run-*/live.json"
    ):  # by which a run is known to be alive, however long the browser takes
        os.utime(live, (time.time() + 3600,) * 2)
    command = [
        *(
            "chromium",
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            f"--user-data-dir={tmp_path / 'profile'}",
        ),
        *("--window-size=420,2000", "--virtual-time-budget=1000", f"--screenshot={tmp_path / 'page.png'}"),
        *("--dump-dom", f"http://127.0.0.1:{ask.port}/"),  # type: ignore[attr-defined]
    ]
    page = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300).stdout
    assert page.count('class="middle"') == 2 and page.count('class="band"') == 2
    assert page.count('class="line"') == 6
    assert page.count("<tr class=") == 3 and 'class="running"' in page
    assert 'class="role-name"' in page and "× actor" in page
    assert re.search(r"→ [\d.]+ kB/s observation", page) and re.search(r"← [\d.]+ B/s action", page)
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page and "<script>alert(1)" not in page
    assert "no answer" not in page
    assert (tmp_path / "page.png").stat().st_size > 10_000


def test_folders_without_a_program_have_no_drawing(tmp_path: Path) -> None:
    run = a_run(tmp_path / "run")
    assert isinstance(run, RunFolder)
    answers = Answers([tmp_path])
    found = answers.run(answers.runs()["runs"][0]["id"])
    assert found["program"] is None and found["traffic"] == []
