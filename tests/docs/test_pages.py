"""The pages agree with the code: links, commands, code blocks, settings."""

import ast
import dataclasses
import importlib
import inspect
import json
import re
import runpy
import shlex
import sys
from collections.abc import Iterator
from itertools import dropwhile
from pathlib import Path

import pytest

import seedbed
from seedbed.cli.main import VERBS
from seedbed.cli.train import configuration
from seedbed.config.resolve import flat
from seedbed.config.settings import RunConfig
from seedbed.errors import ConfigError
from seedbed.registry import AGENTS, ARCHITECTURES

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
INCLUDE = re.compile(r"```\{include\} (?P<file>\S+)\n(?P<options>(?::.*\n)*)```")
PAGES = sorted(
    path
    for path in [*DOCS.rglob("*.md"), *ROOT.glob("*.md"), *(ROOT / "examples").glob("*.md")]
    if "_build" not in path.parts
)
BLOCK = re.compile(r"(?:<!-- (?P<mark>[^>]*) -->\n)?^```(?P<kind>\w*)\n(?P<text>.*?)^```$", re.M | re.S)
LINK = re.compile(r"\[[^\]]*\]\((?!https?:|mailto:)(?P<file>[^)#\s]*)(?:#(?P<anchor>[^)\s]+))?\)")


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def blocks(path: Path, *kinds: str) -> Iterator[tuple[str, str]]:
    """Mark and text of the fenced blocks of ``path``."""
    for found in BLOCK.finditer(path.read_text()):
        if found["kind"] in kinds:
            yield found["mark"] or "", found["text"]


def anchors(path: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", BLOCK.sub("", path.read_text()), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("path", PAGES, ids=name)
def test_every_relative_link_resolves(path: Path) -> None:
    for found in LINK.finditer(BLOCK.sub("", path.read_text())):
        target = (path.parent / found["file"]).resolve() if found["file"] else path
        assert target.exists(), f"{name(path)} links to {found['file']}"
        if found["anchor"] and target.suffix == ".md":
            assert found["anchor"] in anchors(target), f"{name(path)}: no {found['anchor']} in {name(target)}"


def test_what_a_page_includes_has_the_texts_between_which_it_stands() -> None:
    pages = {page: page.read_text() for page in PAGES}
    included = [(page, each) for page, text in pages.items() for each in INCLUDE.finditer(text)]
    assert included
    for page, each in included:
        source = (page.parent / each["file"]).read_text()
        for limit in re.findall(r':(?:start-after|end-before): "(.+)"', each["options"]):
            assert source.count(limit) >= 1, f"{name(page)}: {limit!r} is not in {each['file']}"


def test_tests_and_files_that_pages_name_are_there() -> None:
    tests = {
        found
        for path in (ROOT / "tests").rglob("*.py")
        for found in (path.stem, *re.findall(r"def (test_\w+)", path.read_text()))
    }
    for path in PAGES:
        text = path.read_text()
        assert not set(re.findall(r"`(test_\w+)`", text)) - tests, name(path)
        for file in re.findall(r"`((?:tests|src|tools|benchmarks|examples)/[\w/.-]+)`", text):
            assert "NAME" in file or (ROOT / file).exists(), f"{name(path)} names {file}"


def processors(commit: str) -> set[str]:
    """Makers of the processors on which the rows of a commit were measured."""
    rows = [
        json.loads(line)
        for path in (ROOT / "benchmarks" / "results").glob("*.jsonl")
        for line in path.read_text().splitlines()
    ]
    return {
        row["machine"]["processor"].split()[0].partition("(")[0] for row in rows if row["commit"] == commit
    }


def test_machines_that_pages_name_beside_a_commit_are_those_of_its_rows() -> None:
    checked = 0
    for path in PAGES:
        for paragraph in path.read_text().split("\n\n"):
            for commit in re.findall(r"commit `(\w{7,})`", paragraph):
                named = set(re.findall(r"\b(AMD|Intel)\b", paragraph))
                measured = processors(commit)
                assert not named or not measured or named == measured, f"{name(path)}: {commit}"
                checked += bool(named and measured)
    assert checked


def commands(path: Path) -> Iterator[list[str]]:
    """The words of every command on the page, without the variables that are set before it."""
    for _, text in blocks(path, "sh", "bash", "console"):
        for line in text.replace("\\\n", " ").splitlines():
            words = shlex.split(line.removeprefix("$ "), comments=True)
            yield list(dropwhile(lambda word: "=" in word and word[0] != "-", words))


LEARNING, SCALING = "benchmarks/learning.py", "benchmarks/scaling.py"


@pytest.mark.parametrize("path", PAGES, ids=name)
def test_every_command_has_flags_that_exist(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "examples"))  # some commands are typed there
    for words in commands(path):
        if words and words[0].endswith("seedbed"):
            check_command(words[1:], monkeypatch)
        elif words[1:2] in ([LEARNING], [SCALING]):
            check_command(trained_by(words[1:], monkeypatch), monkeypatch)


def trained_by(words: list[str], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What a script of ``benchmarks`` has ``seedbed`` do, told so."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    script, *given_words = words
    given, flags = runpy.run_path(str(ROOT / script))["read"](given_words)
    arch = ["--arch", given.arch] if hasattr(given, "arch") else []
    return ["train", given.env, *arch, *flags]


class Parsed(Exception):
    """The flags were understood; nothing is to be done."""


def check_command(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Has the verb's own module read the words, and stops it there."""
    verb, *rest = words
    assert verb in VERBS, f"seedbed {verb}"
    module = importlib.import_module(f"seedbed.cli.{verb}")
    reader = "parse" if hasattr(module, "parse") else "read_config"
    real = getattr(module, reader)

    def read(*arguments: object, **named: object) -> object:
        real(*arguments, **named)
        raise Parsed

    with monkeypatch.context() as patched, pytest.raises(Parsed):
        patched.setattr(module, reader, read)
        module.run(rest)


def test_a_wrong_flag_would_be_found(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError):
        check_command(["train", "toy:catch", "--frmes", "3"], monkeypatch)
    with pytest.raises(ConfigError):
        check_command(
            trained_by([LEARNING, "name", "toy:catch", "--", "--frmes", "3"], monkeypatch), monkeypatch
        )
    with pytest.raises(SystemExit):
        trained_by([LEARNING, "name", "toy:catch", "--gaol", "1"], monkeypatch)


def test_the_hour_of_breakout_is_told_what_pongs_preset_was_not_then(monkeypatch: pytest.MonkeyPatch) -> None:
    (words,) = [words for words in commands(DOCS / "evidence.md") if "breakout-hour" in words]
    _, *flags = trained_by(words[1:], monkeypatch)
    settings = flat(configuration(flags))
    assert (settings["entropy_cost"], settings["target_entropy"]) == (4e-3, None)


@pytest.mark.parametrize("path", PAGES, ids=name)
def test_every_block_of_python_compiles(path: Path) -> None:
    for _, text in blocks(path, "python"):
        ast.parse(text)


@pytest.mark.parametrize("path", [DOCS / "own-environment.md", DOCS / "networks.md"], ids=name)
def test_marked_blocks_run(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    ran, before = 0, set(sys.modules)
    for mark, text in blocks(path, "python"):
        if mark.startswith("file: "):
            (tmp_path / mark.removeprefix("file: ")).write_text(text)
            importlib.invalidate_caches()
            importlib.import_module(mark.removeprefix("file: ").removesuffix(".py"))
            ran += 1
        elif mark == "runs":
            exec(compile(text, name(path), "exec"), {})
            ran += 1
    for module in set(sys.modules) - before:
        if module.startswith("my_"):
            del sys.modules[module]
    assert ran, "the page has lost its marks"


def test_the_page_of_fits_is_what_the_architectures_say() -> None:
    page = runpy.run_path(str(ROOT / "tools" / "compatibility_page.py"))["page"]()
    assert (DOCS / "compatibility.md").read_text() == page, "run .venv/bin/python tools/compatibility_page.py"


def test_the_settings_page_is_what_the_configuration_writes() -> None:
    page = runpy.run_path(str(ROOT / "tools" / "settings_page.py"))["page"]()
    assert (DOCS / "settings.md").read_text() == page, "run .venv/bin/python tools/settings_page.py"


def test_every_setting_is_on_the_page() -> None:
    text = (DOCS / "settings.md").read_text()
    known = [
        flat(RunConfig(arch=arch, agent=agent)) for arch in ARCHITECTURES.names for agent in AGENTS.names
    ]
    missing = {setting for settings in known for setting in settings if f"| `{setting}` |" not in text}
    assert not missing
    assert "(settings.md)" in (DOCS / "configuration.md").read_text()


@pytest.mark.parametrize("agent", AGENTS.names)
def test_every_setting_of_an_agent_is_on_its_page(agent: str) -> None:
    text = (DOCS / "agents" / f"{agent}.md").read_text()
    missing = [
        field.name
        for field in dataclasses.fields(AGENTS.load(agent).Settings)
        if f"`{field.name}`" not in text
    ]
    assert not missing


def test_every_verb_and_network_is_on_its_page() -> None:
    from seedbed.nets.build import NETWORKS

    assert all(f"seedbed {verb}" in (DOCS / "command-line.md").read_text() for verb in VERBS)
    assert all(f"| `{network}` |" in (DOCS / "networks.md").read_text() for network in NETWORKS)


def test_the_options_of_atari_are_on_the_page() -> None:
    import inspect

    from seedbed.envs.atari import Atari

    text = (DOCS / "environments.md").read_text()
    for option in inspect.signature(Atari).parameters.values():
        if option.name in ("env_id", "num_envs", "render"):
            continue
        default = {"None": "by the id", "True": "true", "False": "false"}.get(
            str(option.default), option.default
        )
        assert f"| `{option.name}` | {default} |" in text


def test_the_wire_is_as_the_page_says() -> None:
    from seedbed.transport import framing, interface

    text = (DOCS / "wire.md").read_text()
    assert f"It is protocol **{interface.PROTOCOL}**" in text
    assert framing.HEADER_BYTES == 16
    assert framing.header(framing.Kind.STEP, 3, 5).hex() == "536402050300000005" + "00" * 7
    for kind in framing.Kind:
        assert f"| {kind.value} | {kind.name} |" in text
    assert (interface.MAX_QUESTION_BYTES, interface.MAX_STEP_BYTES, interface.MAX_LANES) == (
        1 << 20,
        1 << 30,
        64,
    )


def toctrees(page: Path) -> list[Path]:
    """The pages in the tables of contents of a page, in their order."""
    entries = [
        line
        for _, block in re.findall(r"^```(\{toctree\})\n(.*?)^```$", page.read_text(), re.M | re.S)
        for line in block.split("\n")
        if line and not line.startswith(":")
    ]
    found = [sorted(page.parent.glob(f"{entry}.md")) for entry in entries]
    assert all(found), f"an entry of {name(page)} is no page: {entries}"
    return [each for pages in found for each in pages]


def test_every_page_stands_once_in_the_sidebar_under_a_caption_that_names_it() -> None:
    listed = toctrees(DOCS / "index.md")
    assert ":glob:" not in (DOCS / "index.md").read_text(), "pages are named, below a caption"
    listed += [below for page in listed for below in toctrees(page)]
    there = {page for page in DOCS.rglob("*.md") if "_build" not in page.parts} - {DOCS / "index.md"}
    assert sorted(listed) == sorted(there)


@pytest.mark.parametrize("path", PAGES, ids=name)
def test_lines_of_pages_end_at_120_characters(path: Path) -> None:
    too_long = runpy.run_path(str(ROOT / "tools" / "wrap_pages.py"))["too_long"]
    assert too_long(path.read_text()) == [], "run .venv/bin/python tools/wrap_pages.py"


def test_wrapping_changes_lines_and_not_words() -> None:
    wrapped = runpy.run_path(str(ROOT / "tools" / "wrap_pages.py"))["wrapped"]
    word = "word " * 40
    page = (
        f"# A title\n\n{word}\n\n- {word}- dash 1. one `{'a b ' * 20}` end\n  next\n\n| {word} |\n\n"
        f"```sh\n{word}\n```\n\n$$\n{word}\n$$\n\nshort\nlines\n"
    )
    new = wrapped(page)
    assert new.split() == page.split() and wrapped(new) == new
    lines = new.splitlines()
    assert [len(line) > 120 for line in lines if "word word" in line].count(True) == 3  # row, code, formula
    assert "  next" not in lines and "short" in lines
    assert not any(re.match(r"\s*(-|1\.) (dash|one)", line) for line in lines)
    assert any(f"`{'a b ' * 20}`" in line for line in lines)


README = ROOT / "README.md"


def test_readme_is_read_in_three_minutes() -> None:
    assert len(README.read_text().split()) <= 900


def test_readme_begins_with_the_two_commands_and_they_are_what_every_change_has_to_pass() -> None:
    (_, first), *_ = blocks(README, "console")
    commands = [line.removeprefix("$ ").partition("#")[0].split() for line in first.splitlines()]
    assert commands == [["make", "train"], ["make", "test"]]
    ran = re.findall(r"^run (make \w+)", (ROOT / ".ci" / "run").read_text(), re.M)
    assert {" ".join(words) for words in commands} <= set(ran)
    targets = re.findall(r"^(\w+):.*##", (ROOT / "Makefile").read_text(), re.M)
    assert {words[1] for words in commands} <= set(targets)


@pytest.mark.slow
def test_the_program_of_readme_trains_and_plays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ((_, program),) = blocks(README, "python")
    shorter = program.replace("seed=1", "seed=1, frames=2000, video=False")
    assert shorter != program
    monkeypatch.chdir(tmp_path)
    exec(compile(shorter, README, "exec"), played := {})
    assert played["ended"] and played["policy"].version > 0
    assert float(capsys.readouterr().out.split()[-1]) == played["summary"].mean_return


def test_every_row_beside_other_systems_says_where_it_was_read() -> None:
    table = README.read_text().partition("## Beside other systems")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (\w[^|]*?) \|", table, re.M)
    read = [said.lower() for said in re.findall(r"^\*\*(.*?)\.\*\*", (DOCS / "peers.md").read_text(), re.M)]
    assert rows and [row.lower() for row in rows] == read


def test_every_architecture_and_agent_is_in_readme() -> None:
    text = README.read_text()
    for room, registry in (("architectures", ARCHITECTURES), ("agents", AGENTS)):
        assert not [each for each in registry.names if f"(docs/{room}/{each}.md)" not in text]


def test_the_programs_on_the_pages_are_what_the_architectures_declare() -> None:
    pages = runpy.run_path(str(ROOT / "tools" / "program_tables.py"))["pages"]()
    assert {path.stem for path in pages} == set(ARCHITECTURES.names)
    for path, text in pages.items():
        assert path.read_text() == text, "run .venv/bin/python tools/program_tables.py"


ROWS = re.findall(r"^\| `(\w+)\((.*?)\)` \|", (DOCS / "configuration.md").read_text(), re.M)


def test_every_public_function_has_a_row() -> None:
    assert sorted(function for function, _ in ROWS) == sorted({*seedbed.__all__} - {"__version__"})


@pytest.mark.parametrize(("function", "arguments"), ROWS, ids=[function for function, _ in ROWS])
def test_a_row_has_the_arguments_of_its_function(function: str, arguments: str) -> None:
    written = {}
    for argument in filter(None, arguments.split(", ")):
        words, _, default = argument.partition("=")
        written[words.lstrip("*")] = default
    parameters = inspect.signature(getattr(seedbed, function)).parameters
    assert list(written) == list(parameters)
    for words, default in written.items():
        known = parameters[words].default
        if default == "…":
            assert known is inspect.Parameter.empty or callable(known), "its default can be written"
        elif default:
            assert ast.literal_eval(default) == known, words
