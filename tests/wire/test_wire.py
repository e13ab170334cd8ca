"""The wire is what its specification's vectors say, in both directions: for this side, and for the client in C."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness import PATIENCE, Command, summary, thorough

import seedbed
from seedbed.envs.make import make
from seedbed.errors import ConfigError, ProtocolError, Refused, SpecError
from seedbed.evaluation.serve import Serving, serving
from seedbed.launch.build import build_spec
from seedbed.transport.admission import Gate, Invitation
from seedbed.transport.framing import Inbox, Kind, pack, unpack
from seedbed.transport.interface import Layout

ROOT = Path(__file__).parents[2]
VECTORS, CLIENT = Path(__file__).parent / "vectors", ROOT / "clients" / "c"
ANY = dict.fromkeys(Kind, 1 << 20)
STRICT = ("-std=c99", "-Wall", "-Wextra", "-Werror", "-pedantic", "-g")
SANE = ("-fsanitize=address,undefined", "-fno-sanitize-recover")
COMPILER = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
MCS, MONO = shutil.which("mcs"), shutil.which("mono")
needs_mono = pytest.mark.skipif(not (MCS and MONO), reason="there is no Mono on this machine")
needs_compiler = pytest.mark.skipif(COMPILER is None, reason="there is no C compiler on this machine")


def vectors(name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((VECTORS / f"{name}.json").read_text())
    return found


def compiled(source: Path, target: Path, *flags: str) -> Path:
    assert COMPILER is not None
    subprocess.run([COMPILER, *STRICT, f"-I{CLIENT}", str(source), "-o", str(target), *flags], check=True)
    return target


def compiled_c_sharp(target: Path, *sources: Path) -> Path:
    """A program in C#, compiled without a warning."""
    subprocess.run([str(MCS), "-warnaserror", f"-out:{target}", *map(str, sources)], check=True)
    return target


def test_the_vectors_are_those_of_the_tool(tmp_path: Path) -> None:
    subprocess.run([sys.executable, str(ROOT / "tools" / "wire_vectors.py"), str(tmp_path)], check=True)
    made = {file.name: file.read_text() for file in tmp_path.iterdir()}
    assert made == {file.name: file.read_text() for file in VECTORS.iterdir()}
    assert {row["number"] for row in vectors("frames")} == {*Kind}, "a frame of each kind"


def test_frames_are_read_and_made_here() -> None:
    stream = Inbox(ANY)
    for row in vectors("frames"):
        data, body = bytes.fromhex(row["bytes"]), bytes.fromhex(row["body"])
        frame = unpack(data, ANY)
        assert (frame.kind, frame.lane, bytes(frame.body)) == (row["number"], row["lane"], body)
        assert pack(row["number"], row["lane"], body) == data
        # Also byte by byte.
        pieces = [found for byte in data for found in stream.feed(bytes([byte]))]
        assert [(found.kind, bytes(found.body)) for found in pieces] == [(row["number"], body)]
    for row in vectors("headers-refused"):
        with pytest.raises(ProtocolError):
            unpack(bytes.fromhex(row["bytes"]), ANY)


def test_layouts_are_read_and_made_here() -> None:
    for row in vectors("layouts"):
        layout = Layout(tuple((tuple(shape), dtype) for shape, dtype in row["layout"]))
        message = bytes.fromhex(row["message"])
        assert (list(layout.offsets[:-1]), layout.nbytes, len(message)) == (
            row["offsets"],
            row["bytes"],
            row["bytes"],
        )
        arrays = layout.views(message)
        assert [array.tobytes().hex() for array in arrays] == row["arrays"]
        assert layout.join(arrays) == message
        # Every array begins on a line of 64 bytes, and what is between them is zeros.
        used = np.zeros(layout.nbytes, bool)
        for array, offset in zip(arrays, layout.offsets, strict=False):
            assert offset % 64 == 0
            used[offset : offset + array.nbytes] = True
        assert not np.frombuffer(message, np.uint8)[~used].any()


def test_proofs_are_read_and_made_here(monkeypatch: pytest.MonkeyPatch) -> None:
    for row in vectors("admissions"):
        binding, challenge, proof = (bytes.fromhex(row[name]) for name in ("binding", "challenge", "proof"))
        monkeypatch.setattr(
            "seedbed.transport.admission.secrets.token_bytes", lambda _, row=row: bytes.fromhex(row["noise"])
        )
        invitation = Invitation(row["token"])
        assert invitation.prove(challenge, binding) == proof
        invitation.check(bytes.fromhex(row["answer"]), proof, binding)
        # A gate that had given this challenge (whose seal is another secret's) takes the proof.
        gate = Gate(row["token"])
        monkeypatch.setattr(gate, "_sealed", lambda noise, sealed=challenge[-16:]: sealed)
        monkeypatch.setattr(gate, "_use", lambda *given: None)
        assert gate.admit(proof, binding).hex() == row["answer"]
        with pytest.raises(Refused):
            gate.admit(proof, binding + b"x")


def questions() -> tuple[list[str], list[str]]:
    """Orders for a probe, and the answers that the vectors have to them."""
    orders, answers = [], []
    for row in vectors("frames"):
        body = row["body"] or "-"
        orders += [f"pack {row['number']} {row['lane']} {body}", f"unpack {row['bytes']}"]
        answers += [row["bytes"], f"{row['number']} {row['lane']} {body}"]
    for row in vectors("headers-refused"):
        orders.append(f"unpack {row['bytes']}")
        answers.append("refused")
    for row in vectors("layouts"):
        orders.append(f"layout {json.dumps(row['layout'])}")
        answers.append(" ".join(map(str, [row["bytes"], *row["offsets"]])))
    for row in vectors("admissions"):
        known, bound = row["challenge"] + row["noise"], row["binding"] or "-"
        orders.append(f"prove {row['token']} {bound} {known}")
        answers.append(f"{row['proof'][len(known) :]} {row['answer']}")
    # What no server of ours would say.
    for text in (
        "{}",
        "[",
        "[[[1]]]",
        '[[[1], "object"]]',
        '[[[-1], "int8"]]',
        '[[[9999999999999], "int8"]]',
        '[[[65536, 65536, 65536, 65536, 65536], "int8"]]',
        '[[[1], "int8"',
        '[[["1"], "int8"]]',
        '[[[1], "a name that is longer than any"]]',
        "[" + ", ".join(['[[1], "int8"]'] * 257) + "]",
        "[" * 10_000,
    ):
        orders.append(f"layout {text}")
        answers.append("refused")
    return orders, answers


@needs_compiler
def test_the_client_in_c_reads_and_makes_them_too(tmp_path: Path) -> None:
    require_answers(compiled(Path(__file__).parent / "probe.c", tmp_path / "probe", *SANE))


@pytest.mark.thorough
@pytest.mark.slow
@needs_mono
def test_the_client_in_c_sharp_reads_and_makes_them_too(tmp_path: Path) -> None:
    client, probe = ROOT / "clients" / "csharp" / "Seedbed.cs", Path(__file__).parent / "Probe.cs"
    require_answers(MONO, compiled_c_sharp(tmp_path / "probe.exe", client, probe))


def require_answers(*probe: str | Path | None) -> None:
    """Requires that a probe answers as the vectors do."""
    orders, answers = questions()
    done = subprocess.run(
        [*map(str, probe)], input="\n".join(orders) + "\n", capture_output=True, text=True, check=True
    )
    for order, wanted, given in zip(orders, answers, done.stdout.splitlines(), strict=True):
        assert given == wanted, order[:200]


@needs_compiler
def test_the_client_in_c_says_why_it_finds_no_server_and_in_time(tmp_path: Path) -> None:
    probe = compiled(Path(__file__).parent / "probe.c", tmp_path / "probe", *SANE)

    def dialled(place: str, seconds: float) -> tuple[str, float]:
        begun = time.monotonic()
        done = subprocess.run(
            [str(probe)], input=f"dial {place} {seconds}\n", capture_output=True, text=True, check=True
        )
        return done.stdout.strip(), time.monotonic() - begun

    for host, port in (("127.0.0.1", "no-service"), ("nohost.invalid", "7700")):
        with pytest.raises(socket.gaierror) as unknown:
            socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        said, _ = dialled(f"{host}:{port}", 0.1)
        assert said == f"nothing listens at {host}:{port}: {unknown.value.strerror}"
    with socket.create_server(("127.0.0.1", 0), backlog=0) as server:
        place = f"127.0.0.1:{server.getsockname()[1]}"
        assert dialled(place, 1)[0] == "connected"
        # Nobody accepts: once the queue is full, further ones are not answered at all.
        with contextlib.ExitStack() as waiting:
            for _ in range(3):
                one = waiting.enter_context(socket.socket())
                one.setblocking(False)
                one.connect_ex(server.getsockname())
            said, took = dialled(place, 1.5)
            assert said == f"nothing listens at {place}: Connection timed out"
            assert 1 < took < 30
    assert dialled(place, 0.2)[0] == f"nothing listens at {place}: Connection refused"
    assert dialled(f"unix:{tmp_path}/none", 0.2)[0].endswith("none: No such file or directory")


def test_a_foreign_world_has_a_spec_and_no_environment(tmp_path: Path) -> None:
    world = f"foreign:{CLIENT}/catch.json"
    config = seedbed.configure(
        world, arch="seed", actors=0, listen=("socket:unix:/x",), run_dir=str(tmp_path / "r")
    )
    spec = build_spec(config)
    assert (spec.id, spec.observation.shape, spec.action.num_values) == ("catch in C", (10, 5), (3,))
    for wrong, says in (
        ({"env": world, "actors": 2}, "--actors 0"),
        ({"env": f"foreign:{tmp_path}/none.json"}, "cannot read"),
        ({"env": world, "env_options": ("a=1",)}, "takes no options"),
    ):
        given = {"env": world, "arch": "seed", "actors": 0, "listen": ("socket:unix:/x",), **wrong}
        with pytest.raises(ConfigError, match=says):
            build_spec(seedbed.configure(given.pop("env"), **given))
    with pytest.raises(ConfigError, match="stepped by another program"):
        make(world, 1)
    (tmp_path / "world.json").write_text('{"id": "no more"}')
    with pytest.raises(SpecError, match="not an environment spec"):
        build_spec(
            seedbed.configure(
                f"foreign:{tmp_path}/world.json", arch="seed", actors=0, listen=("socket:unix:/x",)
            )
        )


def trained(listen: str, folder: Path, *world: str) -> tuple[Path, dict[str, Any], str]:
    """Trains on a world of another language: the run's folder, its summary, and what the world printed."""
    words = (
        f"train foreign:{CLIENT}/catch.json --preset none --arch seed --actors 0 --envs-per-actor 16 --listen {listen} "
        "--network mlp --hidden 32 --unroll-length 32 --batch-size 8 --learning-rate 0.002 --discount 0.98 "
        "--entropy-cost 0.003 --baseline-cost 0.02 --until-return 0.9 --frames 400000 --no-video --run-dir run"
    )
    with Command(*words.split(), cwd=folder) as learner:
        address, _, token = learner.says(" --join ").split("seedbed actor ")[1].splitlines()[0].split()
        played = subprocess.run(
            [*world, address, token], capture_output=True, text=True, check=False, timeout=2 * PATIENCE
        )
        assert played.returncode == 0, (played.stderr, learner.output)
        assert learner.wait() == 0, learner.output
    return folder / "run", summary(folder / "run"), played.stdout


@pytest.fixture(scope="module")
def learned(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, dict[str, Any], str]:
    """A run of SEED whose only world is in C: its folder, the world, its summary, and what the world printed."""
    if COMPILER is None:
        pytest.skip("there is no C compiler on this machine")
    folder = tmp_path_factory.mktemp("foreign")
    world = compiled(CLIENT / "catch.c", folder / "catch", "-O2")
    run, found, said = trained(f"socket:unix:{folder}/s", folder, str(world))
    return run, world, found, said


@pytest.mark.slow
def test_a_world_in_c_learns_under_seed(learned: tuple[Path, Path, dict[str, Any], str]) -> None:
    _, _, found, said = learned
    assert found["best_mean_return"] >= 0.9, "at random it is -0.6"
    assert "the run is over" in said


@pytest.mark.thorough
@pytest.mark.slow
@needs_mono
def test_a_client_in_c_sharp_says_what_is_wrong_with_an_address_and_waits_no_longer_than_it_says(
    tmp_path: Path,
) -> None:
    world = compiled_c_sharp(tmp_path / "catch.exe", *sorted((ROOT / "clients" / "csharp").glob("*.cs")))

    def said(address: str) -> str:
        done = subprocess.run(
            [str(MONO), str(world), address, "x" * 20],
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE,
        )
        assert done.returncode == 1
        return done.stderr

    for address in ("here", "127.0.0.1:", "127.0.0.1:a", ":80", "127.0.0.1:65536"):
        assert said(address) == f"catch: the address is {address}, and has to be HOST:PORT or unix:PATH\n"
    with socket.create_server(("127.0.0.1", 0), backlog=0) as server, contextlib.ExitStack() as stack:
        place = f"127.0.0.1:{server.getsockname()[1]}"
        for _ in range(4):  # more than the system holds for it: the next one gets no answer
            caller = stack.enter_context(socket.socket())
            caller.setblocking(False)
            caller.connect_ex(server.getsockname())
        assert said(place) == f"catch: nothing listens at {place}: it does not answer\n"


@pytest.mark.thorough
@pytest.mark.slow
@needs_mono
@pytest.mark.parametrize(
    "listen", ["socket:127.0.0.1:0", *thorough("socket:unix:{folder}/s", "socket:0.0.0.0:0")]
)
def test_a_world_in_c_sharp_learns_under_seed(listen: str, tmp_path: Path) -> None:
    world = compiled_c_sharp(tmp_path / "catch.exe", *sorted((ROOT / "clients" / "csharp").glob("*.cs")))
    if "0.0.0.0" in listen:  # Mono has no TLS 1.3, and says so
        with pytest.raises(AssertionError, match=r"is there TLS 1\.3 on this system"):
            trained(listen, tmp_path, str(MONO), str(world))
        return
    _, found, said = trained(listen.format(folder=tmp_path), tmp_path, str(MONO), str(world))
    assert found["best_mean_return"] >= 0.9, "at random it is -0.6"
    assert "the run is over" in said


@pytest.mark.slow
def test_and_plays_what_it_has_learned_from_a_server_of_the_policy_also_by_tls(
    learned: tuple[Path, Path, dict[str, Any], str], tmp_path: Path
) -> None:
    run, world, _, _ = learned
    listen = (f"socket:unix:{tmp_path}/s", "socket:0.0.0.0:0", "socket:127.0.0.1:0")
    with serving(run, Serving(listen=listen, greedy=True), trust=None) as found:
        joins = [str(invitation) for invitation in found.invitations]
        port = found.addresses[1].rsplit(":", 1)[1]
        encrypted = f"127.0.0.1:{port}"
        for address, join in ((found.addresses[0], joins[0]), (found.addresses[2], joins[2])):
            done = subprocess.run(
                [str(world), address, join, "4500"], capture_output=True, text=True, check=False
            )
            assert done.returncode == 0, done.stderr
            # 500 episodes, at random -0.6. Its last hundred of training had 0.9, which luck helps to reach.
            assert float(done.stdout.split("mean return ")[1].split(":")[0]) > 0.5
        plain = subprocess.run([str(world), encrypted, joins[1]], capture_output=True, text=True, check=False)
        assert (plain.returncode, "needs TLS" in plain.stderr) == (1, True)
        wrong = subprocess.run(
            [str(world), found.addresses[2], "x" * 20], capture_output=True, text=True, check=False
        )
        assert (wrong.returncode, "wrong token" in wrong.stderr) == (1, True)
        if not Path("/usr/include/openssl/ssl.h").exists():
            pytest.skip("the headers of OpenSSL are not on this machine: TLS in C is not tried")
        secure = compiled(
            CLIENT / "catch.c", tmp_path / "secure", "-O2", "-DSEEDBED_TLS", "-lssl", "-lcrypto"
        )
        done = subprocess.run(
            [str(secure), encrypted, joins[1], "500"], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        other = "0" * 64 + joins[1][64:]
        refused = subprocess.run([str(secure), encrypted, other], capture_output=True, text=True, check=False)
        assert (refused.returncode, "another one" in refused.stderr) == (1, True)


@needs_compiler
def test_the_header_is_small_and_needs_no_library() -> None:
    text = (CLIENT / "seedbed.h").read_text()
    assert len(text.splitlines()) <= 600
    inside = text.split("#ifdef SEEDBED_TLS")[0]
    assert "openssl" not in inside
    assert os.access(CLIENT / "catch.json", os.R_OK)
