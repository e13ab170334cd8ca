import os
import re
import signal
import subprocess
import sys
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import pytest
from harness import PATIENCE

from seedbed.cli import main as cli
from seedbed.cli.defaults import FIRST
from seedbed.cli.main import VERBS, main
from seedbed.cli.parse import one_line, parse
from seedbed.cli.resume import Resume
from seedbed.cli.sweep import _read as sweep_of
from seedbed.cli.train import configuration
from seedbed.config.placement import has_meaning, is_shown
from seedbed.config.resolve import configure, flat
from seedbed.errors import ConfigError, RunFailed
from seedbed.search.sweep import Result, Tried


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    """Exit status, output and errors of ``seedbed WORDS``."""
    with pytest.raises(SystemExit) as stop:
        main(list(words))
    captured = capsys.readouterr()
    return int(stop.value.code or 0), captured.out, captured.err


@pytest.fixture(autouse=True)
def nothing_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise AssertionError("a wrong command line started something")

    for name in (
        "seedbed.launch.train.train",
        "seedbed.cli.actor.act_and_reconnect",
        "seedbed.cli.actor.act_for_run",
    ):
        monkeypatch.setattr(name, refuse)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("train --actor 3", "--actor, 3; did you mean"),
        ("train --until-retrun 3", "did you mean --until-return?"),
        ("train --no-such-thing", "--no-such-thing"),
        ("actor", "one of the two"),
        ("actor 127.0.0.1:1 --run runs/pong", "one of the two"),
        ("actor --run runs/pong --join 0123456789abcdef", "leave --join"),
        ("train --lr 1e-3", "did you mean --learning-rate?"),
        ("train --agent ppo --n_epochs=4", "did you mean --reuse?"),
        ("train --total-timesteps 1e6", "did you mean --frames?"),
        ("train --frames 1.5e0", "1.5e0"),
        ("train --frames", "--frames"),
        ("train --frames abc", "--frames is 'abc': it must be a whole number or none"),
        ("train --frames=10M", "--frames is '10M': it must be a whole number or none, such as 10e6"),
        ("train --frames 1.5k", "such as 1.5e3"),
        ("train --minutes 5m", "--minutes is '5m': it must be a number or none\n"),
        ("train --learning_rate fast", "--learning-rate is 'fast': it must be a number"),
        ("train --video False", "--video takes no value, and is given 'False': write --video or --no-video"),
        ("train --no-video=1", "--video takes no value, and is given '1'"),
        ("train --no-lstm", "there is no --no-lstm: write --lstm none"),
        ("train --no-run-dir", "there is no --no-run-dir: leave --run-dir out"),
        ("train --frames 10M CartPole-v1", "--frames is '10M': it must be"),
        ("train --video n", "--video takes no value, and is given 'n'"),
        ("train --agent PPO", "unknown agent 'PPO': did you mean ppo?"),
        ("train --preset MuJoCo", "unknown preset 'MuJoCo': did you mean mujoco?"),
        ("train --seeds 3", "--over seed=0..2 --by all"),
        ("train --seed 1.5", "--seed"),
        ("train --lag loose", "--lag is 'loose': it must be a whole number or free or none"),
        ("train --hidden 1 x", "--hidden is '1 x': it must be a list of whole numbers"),
        ("train --arch sed", "did you mean seed?"),
        ("train --agent vtrac", "unknown agent 'vtrac': did you mean vtrace"),
        (
            "train --agent ppo --agent dqn --clip 1",
            "--clip is a setting of ppo, and the agent of this run is dqn",
        ),
        ("train --transport tcp", "'shm'"),
        ("train CartPole-v1 Acrobot-v1", "Acrobot-v1"),
        ("train --preset pongg", "did you mean pong?"),
        ("train --discount 2", "discount is 2.0"),
        ("train --agent ppo --clip 2", "clip is 2.0"),
        ("train --agent=a2c --reuse 2", "reuse is 2"),
        (
            "train ALE/Pong-v5 --kl-cost 1",
            "--kl-cost is a setting of vtrace, and the agent of this run is ppo",
        ),
        ("train --agent a2c --no-double", "--no-double is a setting of dqn and r2d2"),
        ("bench ALE/Pong-v5 --seconds 1 --kl-cost=1", "--kl-cost is a setting of vtrace"),
        (
            "train --agent ppo --replay-size=9",
            "of dqn, r2d2, sac and muzero, and the agent of this run is ppo",
        ),
        ("train --agent a2c --no_double", "or choose --agent dqn"),
        (
            "train CartPole-v1 --agent vtrace --lag 1 --listen :7777",
            "give --lag free (a preset may have set another)",
        ),
        ("train --prefetch -1", "prefetch is -1"),
        ("train --training-devices 1,x", "--training-devices is '1 x': it must be a list of whole numbers"),
        ("train --learner-devices=x", "--learner-devices is 'x'"),
        ("train --lag 0 --listen :7777", "only a run's own actors keep an exact lag"),
        ("train --deterministic --listen :7777", "only a run's own actors keep an exact lag"),
        ("resume", "The run folder"),
        ("resume a b", "b"),
        ("resume . --nonsense", "--nonsense"),
        ("eval", "The run folder"),
        ("record", "run"),
        ("collect", "The run folder"),
        ("collect runs/x", "--frames"),
        ("collect runs/x --frames few", "--frames"),
        ("actor unix:/x --envs many", "--envs"),
        ("doctor --nonsense", "--nonsense"),
        ("tran", "unknown command 'tran': did you mean train"),
        ("xyzzy", "known are actor, bench"),
        ("--nonsense", "unknown command '--nonsense'"),
    ],
)
def test_wrong_input_is_one_line_and_status_2(
    words: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    status, out, error = run(capsys, *words.split())
    assert (status, out) == (2, "")
    assert error.startswith("seedbed: ")
    assert error.endswith("\n") and error.count("\n") == 1, "one line"
    assert says in error
    assert not set("│╭╮╰╯─") & set(error) and "---" not in error


@pytest.mark.parametrize(
    "words",
    [
        "--training-devices 1,2,3",
        "--training-devices 1 2 3",
        "--training-devices=1,2,3",
        "--training_devices 1,2,3",
    ],
)
def test_devices_are_listed_with_commas_or_spaces(words: str) -> None:
    config = configuration(["toy:catch", "--inference-devices", "0", *words.split(), "--frames", "7"])
    assert config.placement.training_devices == (1, 2, 3)
    assert config.placement.inference_devices == (0,)
    assert config.stop.frames == 7


def test_a_narrow_terminal_changes_no_word(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(os.environ, "COLUMNS", "30")
    _, _, error = run(capsys, "train", "--actor-restarst", "3")
    assert "Unrecognized options: --actor-restarst, 3; did you mean --actor-restarts?" in error
    assert error.count("\n") == 1


def test_ctrl_c_while_python_shuts_down_is_no_traceback() -> None:
    program = (
        "import atexit, os, signal, sys\n"
        "atexit.register(lambda: os.kill(os.getpid(), signal.SIGINT))\n"
        "sys.argv = ['seedbed', '--version']\n"
        "from seedbed.cli.main import main\n"
        "main()\n"
    )
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE)
    assert (done.returncode, done.stderr) == (130, "")
    assert done.stdout.startswith("seedbed ")


@pytest.mark.parametrize("encoding", ["latin-1", "ascii"])
def test_help_is_said_with_the_letters_that_the_terminal_has(encoding: str) -> None:
    more = {**os.environ, "PYTHONIOENCODING": encoding, "PYTHONUTF8": "0"}
    command = [sys.executable, "-m", "seedbed", "train", "--help"]
    done = subprocess.run(command, env=more, capture_output=True, check=False, timeout=PATIENCE)
    assert done.returncode == 0 and b"Traceback" not in done.stderr, done.stderr
    assert b"--learning-rate" in done.stdout


def test_help_lists_every_verb(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["--help"], ["-h"], ["help"]):
        status, out, error = run(capsys, *words)
        assert (status, error) == (0, "")
        for verb, about in VERBS.items():
            assert f"  {verb:<13}  {about}\n" in out


@pytest.mark.parametrize("columns", [40, 60, 80])
def test_help_is_folded_at_words_on_a_terminal(
    columns: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    _, out, _ = run(capsys, "--help")
    assert max(map(len, out.splitlines())) <= columns
    for about in VERBS.values():
        assert about in " ".join(out.split()), "no word is broken"


@pytest.mark.parametrize(("columns", "width"), [(40, 13), (80, 26), (200, 45), (None, 45)])
def test_doctor_leaves_room_for_the_findings(
    columns: int | None,
    width: int,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("seedbed.launch.machine.findings", lambda: [("jax", "0.12", "")])
    monkeypatch.setenv("COLUMNS", str(columns or 40))
    monkeypatch.setattr(sys.stdout, "isatty", lambda: columns is not None)
    _, out, _ = run(capsys, "doctor")
    assert out == f"{'jax':<{width}} 0.12\n"


def broken_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has standard output end in a pipe that nobody reads."""
    reader, writer = os.pipe()
    os.close(reader)
    monkeypatch.setattr(sys, "stdout", os.fdopen(writer, "w"))


def test_an_actors_secret_is_not_inherited_by_what_its_environments_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told: dict[str, Any] = {}
    monkeypatch.setattr(
        "seedbed.cli.actor.act_and_reconnect",
        lambda *_, **others: told.update(others, inherited="SEEDBED_JOIN" in os.environ),
    )
    monkeypatch.setenv("SEEDBED_JOIN", "0123456789abcdef")
    with pytest.raises(SystemExit):
        main(["actor", "127.0.0.1:1"])
    assert (told["join"], told["inherited"]) == ("0123456789abcdef", False)


def test_an_actor_whose_reader_has_left_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[int] = []

    def act(*_: Any, say: Any, **others: Any) -> None:
        for number in range(3):
            say("acting")
            told.append(number)

    monkeypatch.setattr("seedbed.cli.actor.act_and_reconnect", act)
    broken_pipe(monkeypatch)
    with pytest.raises(SystemExit) as stop:
        main(["actor", "127.0.0.1:1"])
    assert (stop.value.code, told) == (0, [0, 1, 2])


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGHUP, 75), (signal.SIGTERM, 75), (signal.SIGINT, 0)]
)
def test_an_actor_that_is_ended_says_so_and_whether_to_start_it_again(
    number: int, status: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("seedbed.cli.actor.act_and_reconnect", lambda *_, **__: os.kill(os.getpid(), number))
    assert run(capsys, "actor", "127.0.0.1:1") == (status, "stopped\n", "")


def test_a_sweep_whose_reader_has_left_writes_its_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def sweep(planned: Any, say: Any) -> Result:
        say("trial 0 finished")
        broken_pipe(monkeypatch)
        return Result((Tried(0, {"seed": 0}, "finished", 1.0, 1.0),), True, tmp_path)

    monkeypatch.setattr("seedbed.search.sweep.sweep", sweep)
    monkeypatch.setattr("seedbed.search.report.draw", lambda *_: None)
    with pytest.raises(SystemExit) as stop:
        main(["sweep", "toy:catch", "--over", "seed=0..1", "--run-dir", str(tmp_path), "--frames", "100"])
    assert stop.value.code == 75
    assert "| finished |" in (tmp_path / "trials.md").read_text()


def test_without_a_verb_the_help_is_shown_as_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys)
    assert status == 2
    assert "usage: seedbed COMMAND" in out


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys, "--version")
    assert (status, out.split()[0]) == (0, "seedbed")


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_a_file_and_help(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, error = run(capsys, verb, "--help")
    assert (status, error) == (0, "")
    assert f"usage: seedbed {verb}" in out


PAIRS = [
    ("seed", "vtrace"),
    ("seed", "dqn"),
    ("impala", "vtrace"),
    ("apex", "r2d2"),
    ("rapid", "ppo"),
    ("distbelief", "bc"),
    ("gorila", "dqn"),
    ("a3c", "a2c"),
    ("a2c", "a2c"),
    ("sebulba", "ppo"),
    ("anakin", "ppo"),
    ("anakin", "pqn"),
    ("impala", "pqn"),
]
ALIASES = {"actor_devices": "inference_devices", "learner_devices": "training_devices"}


@pytest.mark.parametrize(
    ("flag", "values"),
    [
        ("max-envs", ["--listen", ":0"]),
        ("host-timeout", ["--hosts", "2"]),
        ("inference-wait-ms", ["--inference-batch", "8"]),
        ("entropy-adjustment-speed", ["--target-entropy", "0.5"]),
    ],
)
def test_a_flag_that_stands_beside_another_is_shown_with_it_and_always_read(
    flag: str, values: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["train", "--agent", "vtrace", "--preset", "none"]
    assert f"--{flag}" not in run(capsys, *words, "--help")[1]
    assert f"--{flag}" in run(capsys, *words, *values, "--help")[1]
    # Hidden is not unknown, but it has to mean something.
    beside = [] if flag == "inference-wait-ms" else values
    found = flat(configuration([*words[1:], *beside, f"--{flag}", "7000"]))
    assert found[flag.replace("-", "_")] == 7000


@pytest.mark.parametrize("verb", ["train", "bench", "sweep", "plan", "program", "manifest"])
def test_help_alone_is_short_and_all_is_a_flag_away(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    shown = {}
    engine = ["slurm"] if verb == "manifest" else []
    for asked in (["--help"], ["-h"], ["--help-all"], [*engine, "ALE/Pong-v5", "--help"]):
        status, out, error = run(capsys, verb, *asked)
        assert (status, error) == (0, "")
        assert ("--help-all shows all" in " ".join(out.split())) == (asked in (["--help"], ["-h"]))
        heads = [line for line in out.splitlines() if re.match(r"\W*--", line)]
        shown[asked[-1]] = set(re.findall(r"(?<![\w-])--([a-z][\w-]*)", " ".join(heads)))
    assert shown["--help"] == shown["--help-all"], "beside an environment it shows all"
    assert {"arch", "agent", "frames", "learning-rate", "envs-per-actor"} <= shown["-h"]
    short = {flag.replace("-", "_") for flag in shown["-h"]} & {*flat(configure())}
    assert len(short) <= 25 < len(shown["--help-all"])


def test_what_most_runs_need_is_in_the_settings() -> None:
    assert {*flat(configure())} >= FIRST


def test_policies_are_shown_with_environments_of_several_agents(capsys: pytest.CaptureFixture[str]) -> None:
    assert "--policies" not in run(capsys, "train", "--help")[1]
    assert "--policies" in run(capsys, "train", "pettingzoo:parallel_worlds:Meeting", "--help")[1]
    status, _, error = run(capsys, "train", "toy:catch", "--policies", "own")
    assert status == 2 and "policies is own, and toy:catch has one agent" in error


@pytest.mark.parametrize(("arch", "agent"), PAIRS)
def test_help_shows_what_architecture_and_agent_read_and_nothing_else(
    arch: str, agent: str, capsys: pytest.CaptureFixture[str]
) -> None:
    _, out, _ = run(capsys, "train", "--arch", arch, "--agent", agent, "--help")
    heads = [line for line in out.splitlines() if re.match(r"\W*--", line)]
    found = {
        flag.replace("-", "_") for line in heads for flag in re.findall(r"(?<![\w-])--([a-z][\w-]*)", line)
    }
    shown = {ALIASES.get(flag, flag.removeprefix("no_")) for flag in found} - {"help"}
    config = configure(arch=arch, agent=agent)
    idle = {part.name for part in fields(config.placement) if not has_meaning(part, type(config.settings))}
    idle |= {part.name for part in fields(config.settings) if not has_meaning(part, config.settings)}
    for section in (config, config.placement, config.settings):
        idle |= {part.name for part in fields(section) if not is_shown(part, section)}
    assert shown == flat(config).keys() - {"env"} - idle
    assert (arch, agent) != ("seed", "vtrace") or len(shown) <= 70


def test_a_flag_without_a_meaning_for_the_agent_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for words in ("--agent dqn --queue-size 9", "--agent vtrace --eval-envs 2"):
        status, _, error = run(capsys, "train", "toy:catch", *words.split())
        assert status == 2 and "has no use for it: leave it out" in error


@pytest.mark.parametrize("verb", ["train", "bench", "sweep", "plan", "program", "manifest"])
def test_agents_that_differ_in_what_means_nothing_are_refused(
    verb: str, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["gymnax:CartPole-v1", "--arch", "anakin", "--agent", "ppo", "--sweep", "rmsprop_decay=0.5,0.9"]
    status, _, error = run(capsys, verb, *(["slurm"] if verb == "manifest" else []), *given)
    said = "sweep of rmsprop_decay: it means nothing where optimizer is adam: give --optimizer rmsprop, or leave it out"
    assert status == 2 and said in error


@pytest.mark.parametrize(
    ("agent", "name", "value", "item"),
    [
        ("vtrace", "entropy_adjustment_speed", 5.0, "target_entropy=0.5,0.6"),
        ("dqn", "epsilon_start", 0.5, "epsilon_steps=10,20"),
        ("ppo", "rmsprop_decay", 0.5, "optimizer=adam,rmsprop"),
    ],
)
def test_a_setting_that_the_axes_of_a_sweep_give_a_meaning_is_taken(
    agent: str, name: str, value: float, item: str
) -> None:
    flag = f"--{name.replace('_', '-')}"
    words = ["gymnax:CartPole-v1", "--preset", "none", "--agent", agent, flag, str(value)]
    with pytest.raises(ConfigError, match=f"^{flag} means nothing where"):
        configuration(words)
    for over in (["--over", item], [f"--over={item}"]):
        assert flat(sweep_of([*words, *over]).run)[name] == value
    # Agents side by side cannot differ in these, which is what is said then.
    settings: dict[str, Any] = {name: value, "sweep": (item,)}
    made = configure("gymnax:CartPole-v1", preset="none", agent=agent, arch="anakin", **settings)
    assert flat(made)[name] == value
    for side in (["--sweep", item], [f"--sweep={item}"]):
        with pytest.raises(ConfigError, match=r"^sweep "):
            configuration([*words, "--arch", "anakin", *side])


def test_what_resume_prints_and_draws_is_up_to_plain_flags() -> None:
    asked = parse("resume", Resume, ["run", "--json", "--no-video", "--minutes", "5"])
    assert asked == Resume("run", minutes=5.0, json=True, video=False)


def test_resume_keeps_what_is_not_named_and_none_takes_a_limit_away() -> None:
    assert parse("resume", Resume, ["run"]) == Resume("run")
    words = ["run", "--until-return", "None", "--frames", "8", "--listen", "a:1", "b:2", "--actors", "0"]
    asked = parse("resume", Resume, words)
    assert asked == Resume("run", frames=8, until_return=None, actors=0, listen=("a:1", "b:2"))


def test_errors_have_a_status_of_their_own(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    outcomes = {2: ConfigError("no such thing"), 1: RunFailed("actor 3: it hung"), 130: KeyboardInterrupt()}
    for expected, error in outcomes.items():

        def fail(arguments: list[str], error: BaseException = error) -> int:
            raise error

        monkeypatch.setattr(cli, "_dispatch", fail)
        status, _, said = run(capsys, "train")
        assert status == expected
        assert said == (f"seedbed: {error}\n" if str(error) else "")


def test_a_reader_that_leaves_early_is_no_error() -> None:
    verb = subprocess.Popen(
        [sys.executable, "-c", "from seedbed.cli.main import main; main()", "train", "--help"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert verb.stdout is not None
    verb.stdout.close()
    _, said = verb.communicate(timeout=PATIENCE)
    assert said == b""


def test_the_flags_are_those_of_the_agent_that_the_preset_names(capsys: pytest.CaptureFixture[str]) -> None:
    assert configuration(["ALE/Pong-v5"]) == configure("ALE/Pong-v5", agent="ppo")
    assert configuration([]) == configuration(["ALE/Pong-v5"]), "the environment of a bare command"
    for words in (["ALE/Pong-v5", "--clip", "0.3"], ["--clip", "0.3", "ALE/Pong-v5"]):
        assert configuration(words) == configure("ALE/Pong-v5", agent="ppo", clip=0.3)
    assert configuration(["--agent", "vtrace", "ALE/Pong-v5"]).agent == "vtrace"
    assert configuration(["ALE/Breakout-v5", "--preset", "pong"]).agent == "ppo"
    for env, has, has_not in (
        ("ALE/Pong-v5", "--clip ", "--clip-rho"),
        ("toy:catch", "--clip-rho", "--clip "),
    ):
        _, out, _ = run(capsys, "train", env, "--help")
        assert has in out and has_not not in out


@pytest.mark.parametrize("mistake", ["--nope 3", "--kl-cost 3 ALE/Pong-v5"])
def test_help_is_given_whatever_else_is_wrong(mistake: str, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, error = run(capsys, "train", *mistake.split(), "--help")
    assert (status, error) == (0, "") and "usage: seedbed train" in out


def test_settings_are_checked_over_those_of_the_preset_and_not_before() -> None:
    """CartPole's preset has 64 environments for dqn under apex, and the built-in default 32 of them."""
    words = ["CartPole-v1", "--arch", "apex", "--agent", "dqn", "--eval-envs", "32"]
    assert configuration(words).placement.eval_envs == 32


def test_flags_go_over_the_preset_of_the_environment_that_they_name() -> None:
    assert configuration(["CartPole-v1"]) == configure("CartPole-v1")
    assert configuration(["CartPole-v1", "--until-return", "9"]) == configure("CartPole-v1", until_return=9.0)
    assert configuration(["--preset", "none", "toy:catch"]) == configure("toy:catch", preset="none")
    words = "toy:catch --lag 1 --hidden 8 4 --no-video --deterministic --env-options a=1 b=2 --frames None"
    some = configuration(words.split())
    assert some == configure(
        "toy:catch",
        lag=1,
        hidden=(8, 4),
        video=False,
        deterministic=True,
        env_options=("a=1", "b=2"),
        frames=None,
    )


@dataclass(frozen=True)
class Flags:
    """Some flags."""

    size: int = 3
    """How large."""


def test_parse_takes_a_default_and_exits_for_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert parse("try", Flags, []) == Flags()
    assert parse("try", Flags, [], Flags(7)) == Flags(7)
    assert parse("try", Flags, ["--size", "4"], Flags(7)) == Flags(4)
    with pytest.raises(SystemExit) as stop:
        parse("try", Flags, ["--help"], about="About it.")
    assert not stop.value.code
    assert "About it." in capsys.readouterr().out


@pytest.mark.parametrize(
    "box",
    [
        "╭─ Parsing error ─────╮\n│ --size is │\n│ wrong.    │\n│ ───── │\n"
        "│ For full helptext, run seedbed x --help │\n╰────╯\n",
        " Parsing error   \n ------ \n  --size is   \n  wrong.  \n  ------\n  For full helptext, run seedbed x  \n",
    ],
    ids=["utf-8", "ascii"],
)
def test_a_box_becomes_one_line(box: str) -> None:
    assert one_line(box, "x") == "--size is wrong. (seedbed x --help-all shows all settings)"


def test_flags_of_an_optimizer_are_there_with_that_optimizer(capsys: pytest.CaptureFixture[str]) -> None:
    status, _, error = run(capsys, "train", "toy:catch", "--optimizer", "rmsprop", "--adam-b1", "0.5")
    assert status == 2
    assert (
        "--adam-b1 means nothing where optimizer is rmsprop: give --optimizer adam, or leave it out" in error
    )
    _, out, _ = run(capsys, "train", "--optimizer", "rmsprop", "--help")
    assert "--rmsprop-eps" in out and "--adam-b1" not in out
    config = configuration(["toy:catch", "--optimizer", "rmsprop", "--rmsprop-eps", "0.25"])
    assert (config.settings.optimizer, config.settings.rmsprop_eps) == ("rmsprop", 0.25)


@pytest.mark.parametrize(
    ("words", "settings"),
    [
        ("--frames 1e6 --until-return none", {"frames": 1_000_000, "until_return": None}),
        ("--frames=2.5E+3 --lag=None", {"frames": 2500, "lag": None}),
        ("--frames none --minutes 1e-1", {"frames": None, "minutes": 0.1}),
        ("--agent ppo --preset none --correction none", {"preset": "none", "correction": "none"}),
        ("--run-dir none --actors 1e1", {"run_dir": "none", "actors": 10}),
    ],
)
def test_nothing_and_large_numbers_are_written_as_people_do(words: str, settings: dict[str, Any]) -> None:
    found = flat(configuration(["CartPole-v1", *words.split()]))
    assert {name: found[name] for name in settings} == settings


def test_flags_of_other_systems_are_none_here_and_lead_to_ours() -> None:
    from seedbed.config.names_elsewhere import ELSEWHERE
    from seedbed.config.settings import RunConfig

    ours = {name for agent in ("ppo", "dqn", "sac") for name in flat(RunConfig(agent=agent))}
    assert set(ELSEWHERE.values()) <= ours | {"target_rate"}
    assert not set(ELSEWHERE) & ours


def test_help_is_shown_beside_a_switch_with_a_value(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, error = run(capsys, "train", "--video", "false", "--help")
    assert (status, error) == (0, "") and "--video" in out


def test_a_run_folder_may_have_the_name_of_a_value(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    _, _, error = run(capsys, "eval", "--greedy", "1")
    assert "--greedy takes no value" in error
    (tmp_path / "1").mkdir()
    _, _, error = run(capsys, "eval", "--greedy", "1")
    assert "1 is not a run folder" in error
