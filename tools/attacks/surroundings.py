"""Surroundings that runs are not made for: locales, folders, homes, and few files at once."""

from __future__ import annotations

from harness import SEEDBED, Command, flags, learned, until

from attacks.endings import SHORT, ended
from attacks.table import Scene, attack


def _without(*names: str) -> list[str]:
    return ["env", *(word for name in names for word in ("-u", name)), SEEDBED]


LOCALES = {
    "LANG=C": {"LANG": "C", "LC_ALL": "C"},
    "ASCII": {"LC_ALL": "C", "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    "POSIX without UTF-8 files": {"LC_ALL": "POSIX", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
}


@attack(
    "locales",
    "LANG=C and encodings without most letters, in a folder with an umlaut",
    "status 0, no traceback",
)
def locales(scene: Scene) -> None:
    """Trains and resumes."""
    for name, surroundings in list(LOCALES.items())[: 1 if scene.scale.briefly else None]:
        scene.say(name)
        place = scene.folder / name.replace(" ", "-") / "grün ☃"
        place.mkdir(parents=True)
        with Command(*flags("toy:catch", "run", frames=SHORT), cwd=place, **surroundings) as learner:
            assert learner.wait() == 0, f"{name}: {learner.output}"
            ended(learner, place / "run", f"{SHORT} frames spent")
        with Command("resume", "run", "--frames", str(2 * SHORT), cwd=place, **surroundings) as again:
            assert again.wait() == 0, f"{name}: {again.output}"
            assert "Traceback" not in again.output, again.output
        scene.times += 1


@attack(
    "no home",
    "HOME is missing, does not exist or cannot be written; so is the folder of settings",
    "status 0, and the run says that it will not be known again",
)
def no_home(scene: Scene) -> None:
    """A short run for each."""
    unset = _without("HOME", "XDG_CONFIG_HOME")
    sealed = scene.folder / "file"
    sealed.write_text("no folder")
    kinds: dict[str, tuple[list[str], dict[str, str]]] = {
        "unset": (unset, {}),
        "does not exist": (_without("XDG_CONFIG_HOME"), {"HOME": "/nonexistent/home"}),
        "is a file": (_without("XDG_CONFIG_HOME"), {"HOME": str(sealed)}),
    }
    for name, (command, surroundings) in list(kinds.items())[: 1 if scene.scale.briefly else None]:
        scene.say(name)
        place = scene.folder / name.replace(" ", "-")
        place.mkdir()
        words = flags("toy:catch", "run", frames=SHORT)
        with Command(*words, cwd=place, command=command, **surroundings) as learner:
            assert learner.wait() == 0, f"{name}: {learner.output}"
            ended(learner, place / "run", f"{SHORT} frames spent")
        scene.times += 1


@attack(
    "working directory",
    "resumed from another folder, by another path; then the folder that it was started in is removed meanwhile",
    "both go on: status 0",
)
def elsewhere(scene: Scene) -> None:
    """Run folders by relative and by absolute paths."""
    home, other = scene.folder / "home", scene.folder / "other"
    home.mkdir()
    other.mkdir()
    with Command(*flags("toy:catch", "runs/one", frames=SHORT), cwd=home) as learner:
        assert learner.wait() == 0, learner.output
    with Command("resume", "../home/runs/one", "--frames", str(2 * SHORT), cwd=other) as again:
        assert again.wait() == 0, again.output
        ended(again, home / "runs/one", f"{2 * SHORT} frames spent")
    scene.times += 1
    (scene.folder / "gone").mkdir()
    words = flags("toy:catch", str(scene.folder / "kept"), frames=10**9, actor_restarts=3)
    with Command(
        *words, cwd=scene.folder, command=["sh", "-c", 'cd gone && exec "$@"', "sh", SEEDBED]
    ) as learner:
        learned(scene.folder / "kept")
        (scene.folder / "gone").rmdir()
        victim = learner.actors()[0]
        victim.kill()
        learner.says("restart 1 of 3")
        before = learned(scene.folder / "kept")
        until(lambda: learned(scene.folder / "kept") > before, "training to go on")
        learner.interrupt()
        assert learner.wait() == 0, learner.output
        ended(learner, scene.folder / "kept", "interrupted")
    scene.times += 1


@attack(
    "few files",
    "64 files at once (ulimit -n 64), and fewer, over each carrier",
    "it trains to its end, or ends in one line before it begins",
)
def few_files(scene: Scene) -> None:
    """From too few for anything to enough."""
    for count in (64,) if scene.scale.briefly else (64, 40, 24, 16):
        for transport in ("shm",) if scene.scale.briefly else ("shm", "grpc"):
            name = f"{transport}-{count}"
            place = scene.folder / name
            place.mkdir()
            command = ["sh", "-c", f'ulimit -n {count} && exec "$@"', "sh", SEEDBED]
            words = flags("toy:catch", "run", frames=SHORT, transport=transport)
            with Command(*words, cwd=place, command=command) as learner:
                status = learner.wait(120)
                scene.say(f"{name}: status {status}: {learner.last_line[:150]}")
                scene.notes.append(f"{name}: {status}")
                if status == 0:
                    ended(learner, place / "run", f"{SHORT} frames spent")
                else:
                    assert status in (1, 2), learner.output
                    assert learner.last_line.startswith("seedbed: "), learner.output
                    assert "Traceback" not in learner.output, learner.output
            if count == 64:
                assert status == 0, f"{name}: {learner.output}"
            scene.times += 1
