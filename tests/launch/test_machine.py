"""What ``seedbed doctor`` finds."""

import sys
from pathlib import Path

import pytest
from small_runs import run

import seedbed
from seedbed.cli.main import main
from seedbed.launch import machine


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

    monkeypatch.setattr(machine, "_PACKAGES", ("jax", "nosuchpackage"))
    assert found("nosuchpackage") == ("not installed", "needed: make install")
    with pytest.raises(SystemExit) as stop:
        main(["doctor"])
    assert stop.value.code == 1
    assert "needed: make install" in capsys.readouterr().out


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
