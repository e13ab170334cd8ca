"""The house rules of DESIGN section 3: what may import what, and what stands nowhere."""

import ast
import itertools
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from seedbed.registry import AGENTS, ARCHITECTURES

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "seedbed"

VOCABULARY = {
    "types",
    "errors",
    "faults",
    "installation",
    "instances",
    "seeding",
    "regular_files",
    "limits",
    "priority",
}
ARITHMETIC = {"ops", "nets", "agents"}
STAGES = {"envs", "transport", "acting", "replay", "learning", "weights", "serving", "parameter_server"}

# Each room with all that it may import besides itself. A stage sees the vocabulary, the meters, arithmetic
# that belongs to no agent, the transport, and of its neighbours only those that are named here.
_STAGE = VOCABULARY | {"metrics", "ops", "transport"}
_LOOP = VOCABULARY | ARITHMETIC | STAGES | {"metrics"}
MAY_IMPORT: dict[str, set[str]] = {
    "public": set(),
    "errors": set(),
    "regular_files": set(),
    "limits": set(),
    "priority": set(),
    "faults": {"errors", "regular_files"},
    "installation": set(),
    "instances": {"errors", "faults"},
    "types": {"errors"},
    "seeding": {"errors", "types"},
    "plugins": {"errors", "regular_files"},
    "registry": {"errors", "plugins"},
    "atomic_folder": {"errors", "regular_files"},
    "ops": VOCABULARY,
    "nets": VOCABULARY | {"ops", "plugins"},
    "agents": VOCABULARY | {"ops", "nets"},
    "metrics": VOCABULARY,
    "envs": _STAGE | {"plugins"},
    "transport": _STAGE,
    "acting": _STAGE | {"envs", "weights"},
    "replay": _STAGE | {"envs", "atomic_folder"},
    "weights": _STAGE,
    "learning": _STAGE | {"acting", "replay", "weights", "atomic_folder"},
    "serving": _STAGE | {"envs", "weights", "acting"},
    "parameter_server": _STAGE | {"learning", "weights"},
    "config": _LOOP | {"registry"},
    "architectures": _LOOP | {"registry", "config"},
    "launch": _LOOP | {"registry", "plugins", "config", "architectures", "atomic_folder"},
    "evaluation": _LOOP | {"registry", "config", "architectures", "launch", "atomic_folder"},
    "watching": _LOOP | {"registry", "config", "architectures", "launch"},
    "search": _LOOP | {"registry", "config", "architectures", "launch", "watching"},
    "timing": _LOOP | {"registry", "config", "architectures", "launch", "planning"},
    "planning": VOCABULARY | {"acting", "architectures", "config", "nets"},
    "testing": _LOOP | {"registry", "config", "architectures", "launch"},
    "cli": _LOOP
    | {
        "registry",
        "config",
        "architectures",
        "launch",
        "testing",
        "timing",
        "evaluation",
        "watching",
        "search",
        "planning",
    },
    "__main__": {"cli"},
}
EVERY_MODULE = sorted(SOURCE.rglob("*.py"))


def dotted(path: Path) -> str:
    parts = path.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(path: Path) -> Iterator[str]:
    """Every module that a file imports anywhere, in full; ``from a import b`` counts as ``a.b``."""
    package = dotted(path) if path.name == "__init__.py" else dotted(path).rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) + 1 - node.level] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            yield from (f"{base}.{alias.name}" for alias in node.names)


def rooms(path: Path) -> Iterator[tuple[str, str]]:
    """The rooms of the house that a file imports from, each with the full import."""
    for name in imports(path):
        if name.startswith("seedbed."):
            yield name.split(".")[1], name


def room_of(path: Path) -> str:
    return path.relative_to(SOURCE).with_suffix("").parts[0]


def test_every_room_is_in_the_table() -> None:
    found = {room_of(path) for path in EVERY_MODULE} - {"__init__"}
    assert found <= set(MAY_IMPORT), "a new room: say in MAY_IMPORT what it may see"


@pytest.mark.parametrize("path", EVERY_MODULE, ids=dotted)
def test_imports_go_down_the_house_and_never_up(path: Path) -> None:
    room = room_of(path)
    if room == "__init__":
        # Its other imports are for type checkers only.
        at_once = [
            node.module for node in ast.parse(path.read_text()).body if isinstance(node, ast.ImportFrom)
        ]
        assert at_once == ["__future__", "typing", "seedbed.public"], (
            "importing seedbed imports nothing of it"
        )
        return
    allowed = MAY_IMPORT[room] | {room, "__version__", "public"}
    wrong = [name for other, name in rooms(path) if other not in allowed]
    assert not wrong, f"{dotted(path)} may not import {', '.join(wrong)}"


@pytest.mark.parametrize("path", sorted((SOURCE / "agents").glob("*.py")), ids=dotted)
def test_no_agent_imports_another(path: Path) -> None:
    # One file has the record that an agent is, four have the common parts of actor-critics, of value-based agents, of
    # agents with several passes and of agents with a replay; everything else in the room is an agent.
    listing = {"__init__", "interface", "actor_critic", "value_based", "minibatches", "replay_based"}
    if path.stem in listing:
        return
    others = {other.stem for other in path.parent.glob("*.py")} - listing - {path.stem}
    wrong = [
        name for name in imports(path) if name.startswith("seedbed.agents.") and name.split(".")[2] in others
    ]
    assert not wrong, f"{dotted(path)} imports {', '.join(wrong)}: each agent is one paper in one file"


IMPORTS = """
import importlib, sys
for name in sys.argv[1:]:
    importlib.import_module(name)
    if found := {'jax', 'jaxlib', 'flax', 'optax'} & set(sys.modules):
        sys.exit(f'importing {name} imports {sorted(found)}')
"""
PLAYS = """
import sys
from seedbed.cli.actor import ActorFlags
from seedbed.cli.parse import parse
from seedbed.envs.make import make
parse('actor', ActorFlags, ['127.0.0.1:1', '--join', 'secret'])
for env_id in sys.argv[1:]:
    environment = make(env_id, 2)
    environment.reset(0)
    environment.close()
    if found := {'jax', 'jaxlib', 'flax', 'optax'} & set(sys.modules):
        sys.exit(f'{env_id} imports {sorted(found)}')
"""


def run_python(program: str, *words: str) -> None:
    command = [sys.executable, "-c", program, *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_what_an_actor_imports_has_no_jax() -> None:
    own = {f"seedbed.{name}" for name in ("acting.actor", "cli.main", "cli.parse", "cli.actor")}
    actor_side = [
        dotted(path)
        for path in EVERY_MODULE
        if room_of(path) in {"types", "errors", "envs", "transport"} or dotted(path) in own
    ]
    # Environments that are JAX functions need it, and nobody imports them who has none.
    actor_side = [name for name in actor_side if not name.startswith("seedbed.envs.on_device.")]
    assert own < set(actor_side)
    run_python(IMPORTS, *actor_side)


def test_what_an_actor_does_needs_no_jax() -> None:
    run_python(PLAYS, "CartPole-v1", "ALE/Pong-v5", "toy:catch")


def test_no_module_is_named_after_a_library() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed = [
        *project["dependencies"],
        *(name for extra in project["optional-dependencies"].values() for name in extra),
    ]
    libraries = {re.split(r"[<>=\[ ]", name)[0].lower().replace("-", "_") for name in needed}
    libraries |= {"grpc", "ale", "gym", "ray", "torch", "tensorboard", "onednn", "haiku", "chex", "orbax"}
    named = {dotted(path) for path in EVERY_MODULE if path.stem in libraries or path.parent.name in libraries}
    assert not named


def spoken(path: Path) -> Iterator[str]:
    """The texts in a file that its program uses; no docstring is among them."""
    tree = ast.parse(path.read_text())
    alone = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in alone:
            yield node.value


def test_the_registry_alone_names_architectures() -> None:
    # "seed" is the number of random draws too, and a2c an agent.
    names = [name for name in ARCHITECTURES.names if name not in ("seed", "a2c")]
    named = re.compile(rf"\b({'|'.join(names)})\b|--arch (seed|a2c)\b")
    own = {SOURCE / "architectures" / f"{name}.py" for name in ARCHITECTURES.names}
    naming = {
        str(path.relative_to(SOURCE)) for path in EVERY_MODULE if any(map(named.search, spoken(path)))
    } - {str(path.relative_to(SOURCE)) for path in own}
    assert naming == {"registry.py"}


@pytest.mark.parametrize("path", EVERY_MODULE, ids=dotted)
def test_nothing_compares_an_architecture_or_an_agent_with_a_name(path: Path) -> None:
    names = {*ARCHITECTURES.names, *AGENTS.names}
    for node in ast.walk(ast.parse(path.read_text())):
        # "seed" is the number of random draws too.
        if isinstance(node, ast.Compare) and re.search(r"\b(arch|agent)", ast.unparse(node)):
            said = {one.value for one in ast.walk(node) if isinstance(one, ast.Constant)} & names
            assert not said, f"{dotted(path)}:{node.lineno}: {ast.unparse(node)}"


def test_only_the_parsing_of_a_lag_and_its_check_know_the_word() -> None:
    """Everything else asks a :class:`seedbed.acting.lag.Lag`."""
    compared = [
        f"{dotted(path)}: {ast.unparse(node)}"
        for path in EVERY_MODULE
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Compare) and "'free'" in ast.unparse(node)
    ]
    assert len(compared) <= 5, compared


def test_the_session_stays_small() -> None:
    assert len((SOURCE / "launch" / "session.py").read_text().splitlines()) <= 430


@pytest.mark.parametrize("name", ARCHITECTURES.names)
def test_the_file_of_an_architecture_begins_with_its_drawing(name: str) -> None:
    text = ast.get_docstring(ast.parse((SOURCE / "architectures" / f"{name}.py").read_text())) or ""
    _, _, drawing = text.partition("\n::\n\n")
    lines = itertools.takewhile(lambda line: line.startswith("  "), drawing.splitlines())
    assert sum(bool(re.search("[│─►]", line)) for line in lines) > 2, name


def test_there_is_no_room_for_leftovers() -> None:
    names = {path.stem for path in EVERY_MODULE} | {path.parent.name for path in EVERY_MODULE}
    assert not names & {"utils", "util", "common", "helpers", "misc"}


def test_nothing_is_pickled() -> None:
    runs_code = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "marshal", "shelve", "joblib"}
    for path in EVERY_MODULE:
        assert not {name.split(".")[0] for name in imports(path)} & runs_code, path
        assert not re.search(r"allow_pickle\s*=\s*True", path.read_text()), path


def test_no_process_is_forked() -> None:
    """A process that holds JAX has threads: its forked child may wait for a lock for ever."""
    forks = {"os.fork", "os.forkpty", "pty.fork", "multiprocessing"}
    for path in EVERY_MODULE:
        tree = ast.parse(path.read_text())
        used = {ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
        used |= {name for whole in imports(path) for name in (whole, whole.split(".")[0])}
        assert not used & forks, path
        for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
            # With this argument subprocess runs Python between fork and exec.
            assert "preexec_fn" not in {keyword.arg for keyword in call.keywords}, path


def tracked_texts() -> Iterator[tuple[Path, str]]:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT,
        capture_output=True,
        check=False,
    )
    if listed.returncode:
        pytest.skip("not a git checkout: nothing says which files belong to the project")
    for name in filter(None, listed.stdout.decode().split("\0")):
        path = ROOT / name
        if path.is_file():
            data = path.read_bytes()
            if b"\0" not in data[:8192]:
                yield Path(name), data.decode(errors="replace")


def test_no_file_names_a_package_registry_or_a_path_of_a_machine() -> None:
    # Split, so that this file does not contain what it looks for.
    registry = re.compile(r"https?://[^/ ]*(?:" + "|".join(["pypi", "pythonhosted", "npmjs", "debian"]) + ")")
    machine = re.compile(r"(?<![\w.~$}])/(?:" + "|".join(["root", "work", "home/[a-z]+", "Users"]) + ")/")
    here = re.escape(f"{ROOT}/")
    wrong = [
        f"{path}: {found.group()}"
        for path, text in tracked_texts()
        for pattern in (registry, machine, re.compile(here))
        if (found := pattern.search(text))
    ]
    assert not wrong
