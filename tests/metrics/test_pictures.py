"""Pictures that a user asks for: refused before the work, and after it in one line."""

from __future__ import annotations

from pathlib import Path

import pytest
from harness import PLACED, placed

from seedbed.cli.main import main
from seedbed.errors import ConfigError
from seedbed.metrics.pictures import drawn, require_picture


@pytest.mark.parametrize("name", ["curves.bmp", "curves", "curves.png.txt"])
def test_a_name_that_is_no_pictures_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"give a name that ends in \.png, "):
        require_picture(tmp_path / name)


@pytest.mark.parametrize(
    "kind", [kind for kind in PLACED if kind != "link"]
)  # one that leads to a picture is the user's own
def test_what_is_no_file_is_refused(kind: str, tmp_path: Path) -> None:
    picture = tmp_path / "curves.png"
    placed(kind, picture)
    with pytest.raises(ConfigError, match=rf"cannot draw .*curves\.png: ({PLACED[kind]})"):
        require_picture(picture)


def test_a_picture_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    def draw(path: Path) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(ConfigError, match=r"cannot draw .*a\.png: No space left on device"):
        drawn(draw, tmp_path / "a.png")
    drawn(lambda path: path.write_bytes(b"") and None, tmp_path / "a.png")
    assert (tmp_path / "a.png").exists()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--picture", "x.png"], "--picture: for --compare with names of architectures alone"),
        (["--serve", "--rounds", "2"], "--rounds: for --compare"),
        (
            ["--compare", "all", "--picture", "x.png", "--rounds", "2"],
            "--picture and --rounds: for --compare",
        ),
        (["--compare", "all", "--seconds", "1"], "--seconds has no meaning for --compare all"),
    ],
)
def test_flags_of_another_bench_are_refused(
    words: list[str],
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SEEDBED_ALLOCATOR", "off")
    with pytest.raises(SystemExit) as ended:
        main(["bench", "toy:catch", "--results", "rows", *words])
    assert ended.value.code == 2
    assert says in capfd.readouterr().err
    assert not list(tmp_path.iterdir())
