"""Whether the extension is there where it could be, and what is said where it is not."""

import json
import os
import platform
import subprocess
import sys
from pathlib import Path

import jax.numpy as jnp
import pytest

from seedbed.errors import ConfigError
from seedbed.nets.convolutions import convolve
from seedbed.nets.cpu import build, library


@pytest.fixture
def fresh(monkeypatch, tmp_path):
    """The library looks anew, at copies in a folder of the test's own."""
    monkeypatch.delenv(library.SWITCH, raising=False)
    monkeypatch.delenv(library.LIBRARY, raising=False)
    extension = tmp_path / "_handlers-of-a-test.so"
    monkeypatch.setattr(build, "extension", lambda: extension)
    monkeypatch.setattr(build, "_FOLDER", tmp_path)
    monkeypatch.setattr(library, "file", lambda: Path(sys.executable))
    library._found.cache_clear()
    yield extension
    library._found.cache_clear()


def test_what_can_be_built_is_built(monkeypatch):
    """Without this, a build that fails would leave all to XLA, and the tests of both would pass."""
    monkeypatch.delenv(library.SWITCH, raising=False)
    found = library.find()
    if sys.platform == "linux" and platform.machine() == "x86_64" and build.compiler():
        assert "float32" in found.dtypes, found.advice
    if found.dtypes:
        assert str(found).startswith(f"oneDNN {found.version}, float32") and not found.advice
    else:
        assert str(found) == "XLA" and found.advice


def test_bfloat16_is_computed_where_the_processor_has_it():
    if library.find().dtypes:
        flags = Path("/proc/cpuinfo").read_text().split()
        assert ("bfloat16" in library.find().dtypes) == ("avx512_bf16" in flags)


def test_a_switch_keeps_it_away(monkeypatch):
    monkeypatch.setenv(library.SWITCH, "xla")
    assert str(library.find()) == "XLA"
    monkeypatch.setenv(library.SWITCH, "fast")
    with pytest.raises(ConfigError, match="SEEDBED_CONVOLUTIONS is 'fast', and has to be auto or xla"):
        library.find()


def test_a_library_of_ones_own_has_to_exist(monkeypatch, fresh):
    monkeypatch.undo()
    monkeypatch.delenv(library.SWITCH, raising=False)
    monkeypatch.setenv(library.LIBRARY, "/no/such/libdnnl.so.3")
    library._found.cache_clear()
    with pytest.raises(ConfigError, match="/no/such/libdnnl"):
        library.find()


def test_what_is_missing_is_named_with_its_remedy(monkeypatch, fresh):
    assert build.COMMAND in library.find().advice
    library._found.cache_clear()
    monkeypatch.setattr(library, "file", lambda: None)
    assert "[onednn]" in library.find().advice


def test_an_extension_that_is_none_leaves_all_to_xla(fresh):
    fresh.write_bytes(b"nothing that could be opened")
    found = library.find()
    assert not found.dtypes and "proof" in found.advice and build.COMMAND in found.advice
    # It may be another file the next time.
    assert not list(fresh.parent.glob("*.json"))


@pytest.mark.skipif(not library.find().dtypes, reason="needs the extension")
def test_a_library_that_is_none_leaves_all_to_xla(monkeypatch, fresh):
    monkeypatch.undo()
    monkeypatch.delenv(library.SWITCH, raising=False)
    monkeypatch.setenv(library.LIBRARY, str(build.SOURCE))
    library._found.cache_clear()
    assert "proof" in library.find().advice


@pytest.mark.skipif(not library.find().dtypes, reason="needs the extension")
def test_what_was_computed_before_a_second_look_is_computed_after_it():
    """Layers are compiled once, for the library as it was opened."""
    images = jnp.ones((16, 5, 5, 3))

    def out():
        return convolve(images, jnp.ones((3, 3, 3, 2)), jnp.zeros(2), 1, "VALID").sum()

    before = out()
    library._found.cache_clear()
    assert library.find().dtypes
    assert out() == before
    with pytest.raises(OSError, match="stays so until the process ends"):
        library.open_library(build.extension(), Path(sys.executable))


def test_a_processor_that_ends_the_proof_does_not_end_the_process(monkeypatch, fresh):
    ended = fresh.parent / "python"
    ended.write_text("#!/bin/sh\nkill -ILL $$\n")
    ended.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(ended))
    fresh.touch()
    found = library.find()
    assert "status -4" in found.advice
    assert json.loads(next(fresh.parent.glob("*.json")).read_text()) == {"why": found.advice}


@pytest.mark.parametrize(
    ("status", "kept"),
    [("exit 3", True), ("exit 1", False), ("kill -INT $$", False), ("kill -ABRT $$", False)],
)
def test_a_proof_that_may_come_to_something_else_is_not_kept(status, kept, monkeypatch, fresh):
    ended = fresh.parent / "python"
    ended.write_text(f"#!/bin/sh\necho 'so says the test' >&2\n{status}\n")
    ended.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(ended))
    fresh.touch()
    assert "so says the test" in library.find().advice
    assert bool(list(fresh.parent.glob("*.json"))) == kept


def test_a_proof_is_made_once(monkeypatch, fresh):
    fresh.touch()
    proofs = []
    monkeypatch.setattr(library, "_prove", lambda *_: proofs.append(1) or ({"why": "of the test"}, True))
    for _ in range(2):
        library._found.cache_clear()
        assert library.find().advice == "of the test"
    assert len(proofs) == 1
    library.forget_proofs()
    library.find()
    assert len(proofs) == 2


@pytest.mark.parametrize("setting", ["ONEDNN_MAX_CPU_ISA", "DNNL_DEFAULT_FPMATH_MODE"])
def test_with_other_settings_it_has_to_be_proven_again(setting, monkeypatch):
    monkeypatch.delenv(setting, raising=False)
    names = {library._digest_of(Path(sys.executable))}
    monkeypatch.setenv(setting, "AVX2")
    names.add(library._digest_of(Path(sys.executable)))
    assert len(names) == 2


def test_what_another_version_proved_has_to_be_proven_again(monkeypatch, tmp_path):
    before = library._digest_of(Path(sys.executable))
    for name in ("operations.py", "proof.py"):
        (tmp_path / name).write_bytes((build.SOURCE.parent / name).read_bytes())
    monkeypatch.setattr(build, "SOURCE", tmp_path / build.SOURCE.name)
    assert library._digest_of(Path(sys.executable)) == before
    (tmp_path / "proof.py").write_text("# a sharper one")
    assert library._digest_of(Path(sys.executable)) != before


def test_another_processor_has_an_extension_of_its_own(monkeypatch):
    before = build.extension()
    monkeypatch.setattr(build, "processor", lambda: "another one")
    assert build.extension() != before


def test_a_build_that_cannot_end_says_so_and_goes_on(monkeypatch, fresh, capsys):
    fresh.touch()
    monkeypatch.setenv(library.SWITCH, "off")
    build.main()
    assert "Convolutions stay XLA's own: SEEDBED_CONVOLUTIONS is 'off'" in capsys.readouterr().out


def test_without_a_compiler_the_build_says_so_and_goes_on(monkeypatch, fresh, capsys):
    monkeypatch.setattr(build, "_COMPILERS", ())
    monkeypatch.delenv("CXX", raising=False)
    build.main()
    assert "Convolutions stay XLA's own: no C++ compiler" in capsys.readouterr().out


def test_a_compiler_that_refuses_is_quoted(monkeypatch, fresh, capsys):
    refuses = fresh.parent / "c++"
    refuses.write_text("#!/bin/sh\nprintf 'internal error of the \\377 test\\n' >&2\nexit 1\n")
    refuses.chmod(0o755)
    monkeypatch.setenv("CXX", str(refuses))
    build.main()
    assert "internal error of the \ufffd test" in capsys.readouterr().out
    assert list(fresh.parent.iterdir()) == [refuses]


def test_a_compiler_that_is_none_is_named(monkeypatch, fresh, capsys):
    monkeypatch.setenv("CXX", "no-such-compiler")
    build.main()
    assert "CXX is 'no-such-compiler', which is no command" in capsys.readouterr().out


def test_who_cannot_have_onednn_is_not_sent_for_a_compiler(monkeypatch, fresh, capsys):
    monkeypatch.setattr(library, "file", lambda: None)
    monkeypatch.setattr(build, "_COMPILERS", ())
    build.main()
    said = capsys.readouterr().out
    assert "no oneDNN: " in said and "pip install" in said


def test_a_build_leaves_what_another_jaxlib_needs(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(build, "_FOLDER", tmp_path)
    monkeypatch.setattr(library, "file", lambda: Path(sys.executable))
    monkeypatch.setattr(build, "compile_extension", lambda to: to.touch())
    monkeypatch.setattr(library, "find", library.Found)
    older = build.extension()
    with monkeypatch.context() as with_another:
        with_another.setattr(build.metadata, "version", lambda name: "0.0.1")
        others = build.extension()
    with monkeypatch.context() as before:
        before.setattr(build, "_FLAGS", ("-O0",))
        replaced = build.extension()
    for there in (others, replaced):
        there.touch()
    build.main()
    assert older.exists() and others.exists() and not replaced.exists()


@pytest.mark.parametrize("there", [True, False])
def test_where_nothing_can_be_written_what_is_there_is_used(there, monkeypatch, fresh, capsys):
    monkeypatch.setattr(build.os, "access", lambda *_: False)
    monkeypatch.setattr(library, "find", lambda: library.Found("3", ("float32",)))
    if there:
        fresh.touch()
    build.main()
    said = capsys.readouterr().out
    assert ("oneDNN 3, float32" in said) if there else ("have its owner call" in said)


def test_a_source_that_cannot_be_read_leaves_all_to_xla(monkeypatch):
    monkeypatch.setattr(build, "SOURCES", (Path("/no/such/handlers.cc"),))
    library._found.cache_clear()
    assert "/no/such/handlers.cc" in library.find().advice
    library._found.cache_clear()


def test_a_kept_proof_that_is_none_is_made_anew(monkeypatch, fresh):
    fresh.touch()
    kept = fresh.with_suffix(f".{library._digest_of(Path(sys.executable))}.json")
    for nonsense in ("[]", '{"version": "3"}', "7", "{"):
        kept.write_text(nonsense)
        monkeypatch.setattr(library, "_prove", lambda *_: ({"why": "of the test"}, False))
        library._found.cache_clear()
        assert library.find().advice == "of the test"


def test_the_source_is_read_in_any_locale():
    program = "from seedbed.nets.cpu import build; print(build.extension().name)"
    plain = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    said = subprocess.check_output([sys.executable, "-c", program], env={**os.environ, **plain}, text=True)
    assert said.strip() == build.extension().name


def test_the_name_of_the_extension_follows_its_source(monkeypatch, tmp_path):
    before = build.extension()
    changed = tmp_path / "handlers.cc"
    changed.write_text("// other")
    monkeypatch.setattr(build, "SOURCES", (changed,))
    assert build.extension() != before
