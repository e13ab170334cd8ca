"""What ``seedbed doctor`` finds."""

import shlex
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest
from small_runs import run

import seedbed
from seedbed.cli.main import main
from seedbed.installation import extra_line
from seedbed.launch import machine

ROOT = Path(__file__).parents[2]


def found(what: str) -> tuple[str, str]:
    return next((seen, advice) for name, seen, advice in machine.findings() if name == what)


def test_this_machine_is_fit(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["doctor"])
    printed = capsys.readouterr().out
    assert stop.value.code == 0, printed
    for what in ("jax", "device 0", "ALE/Pong-v5", "shared memory", "open files", "ports", "disk"):
        assert what in printed
    assert "float32[4]" in next(line for line in printed.split("\n") if line.startswith("CartPole-v1"))


def test_what_is_missing_is_named_with_its_remedy(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "envpool", None)
    seen, advice = found("envpool:Pong-v5")
    assert seen == "cannot be made" and "pip install" in advice and not advice.startswith("needed")

    (tmp_path / "envpool.py").write_text("raise ImportError('libEGL.so.1: no such file')")
    monkeypatch.delitem(sys.modules, "envpool")
    monkeypatch.syspath_prepend(tmp_path)
    seen, advice = found("envpool:Pong-v5")
    assert seen == "cannot be made" and "libEGL.so.1: no such file" in advice and "libegl1" in advice
    monkeypatch.undo()

    monkeypatch.setattr(machine, "_NEEDED_PACKAGES", ("jax", "nosuchpackage"))
    assert found("nosuchpackage") == ("not installed", "needed: make install")
    with pytest.raises(SystemExit) as stop:
        main(["doctor"])
    assert stop.value.code == 1
    assert "needed: make install" in capsys.readouterr().out


def test_extras_that_are_not_installed_take_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real = metadata.version
    packages = {extra.package for extra in machine.EXTRAS.values()}

    def version(name: str) -> str:
        if name in packages - {"envpool"}:
            raise metadata.PackageNotFoundError(name)
        return real(name)

    monkeypatch.setattr(metadata, "version", version)
    with pytest.raises(SystemExit) as stop:
        main(["doctor"])
    lines = capsys.readouterr().out.splitlines()
    missing = [name for name in machine.EXTRAS if name != "envpool"]
    assert stop.value.code == 0
    assert [line for line in lines if line.startswith("extras not installed")] == [
        f"{'extras not installed':<45} {', '.join(missing)}  (optional: {extra_line(','.join(missing))})"
    ]
    for name in missing:
        shown = [line for line in lines if line.startswith((*machine.EXTRAS[name].environments, f"{name} "))]
        assert shown == []
    assert any(line.startswith("envpool:Pong-v5") for line in lines)


def test_every_extra_can_be_had_alone() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(machine.EXTRAS) == set(extras) - {"cuda", "test", "check", "docs"}


@pytest.fixture
def fresh() -> Iterator[Path]:
    """A folder with a new virtual environment, which is removed at once: it takes a GB."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, "-m", "venv", f"{folder}/venv"], check=True)
        yield Path(folder)


@pytest.mark.installs
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", machine.EXTRAS)
def test_an_extra_alone_in_a_fresh_environment_works(name: str, fresh: Path) -> None:
    def run(*words: str, cwd: Path = fresh) -> str:
        command = [str(fresh / "venv" / "bin" / "python"), *words]
        return subprocess.run(command, cwd=cwd, stdout=subprocess.PIPE, text=True, check=True).stdout

    _, *advised = shlex.split(extra_line(name))
    run(*advised, "--quiet", cwd=ROOT)
    for env in machine.EXTRAS[name].environments:
        run("-c", f"from seedbed.testing import check_environment; check_environment({env!r}, steps=20)")
    seen = run("-m", "seedbed", "doctor")
    (others,) = [line for line in seen.splitlines() if line.startswith("extras not installed")]
    assert name not in others.partition("(")[0].split(", ")
    assert "cannot be made" not in seen


def test_what_convolves_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    seen, advice = found("convolutions on this CPU")
    assert (seen == "XLA") == bool(advice)
    monkeypatch.setenv("SEEDBED_CONVOLUTIONS", "xla")
    assert found("convolutions on this CPU") == ("XLA", "SEEDBED_CONVOLUTIONS is xla")
    assert machine.convolving() == "XLA (SEEDBED_CONVOLUTIONS is xla)"
    monkeypatch.setenv("SEEDBED_CONVOLUTIONS", "no such way")
    seen, advice = found("convolutions on this CPU")
    assert seen == "XLA" and "auto or xla" in advice
    monkeypatch.setattr("jax.default_backend", lambda: "gpu")
    assert machine.convolving() == "XLA"


def test_a_run_says_what_convolves(tmp_path: Path) -> None:
    summary = run(tmp_path, batches=2).to_json()
    assert summary["convolutions"] == machine.convolving()
    assert f"convolutions: {machine.convolving()}" in (tmp_path / "logs/learner.log").read_text()


def test_a_broken_jax_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise RuntimeError("no\nbackend")

    monkeypatch.setattr("jax.local_devices", broken)
    assert found("devices") == ("none", "needed: no backend")


def test_python_can_do_the_same() -> None:
    assert next(iter(seedbed.findings()))[0] == "seedbed"
