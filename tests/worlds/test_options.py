"""Options of environments, row by row: what is written, the parameter that it is for, and what the environment gets."""

import enum
import sys
from collections import deque
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Literal

import gymnasium
import numpy as np
import pytest

from seedbed.config.resolve import configure, env_options, from_json, to_json
from seedbed.envs.make import make
from seedbed.envs.options import Takes, arguments, split, taken_by, written
from seedbed.errors import ConfigError


class Colour(enum.Enum):
    RED = 1
    GREEN = 2


def takes(
    *,
    flag=True,
    off=False,
    count=10,
    size: int = 4,
    scale=1.0,
    text="abc",
    anything=None,
    limit: int | None = None,
    either: int | str = 1,
    sure: bool | None = None,
    implicit: float = None,  # type: ignore[assignment]  # noqa: RUF013
    level: Literal["easy", "hard", 3] = "easy",
    colour=Colour.RED,
    path=Path("here"),
    pair=(1, 0),
    names=("a", "b"),
    numbers: list[int] = [1],  # noqa: B006
    flags: tuple[bool, ...] = (True,),
    point: tuple[int, float] = (1, 0.5),
    table={"a": 1},  # noqa: B006
    array=np.zeros(2, np.float32),  # noqa: B008
    narrow=np.float32(1),  # noqa: B008
    whole_array=np.array([1, 2]),  # noqa: B008
    narrow_whole=np.int8(1),  # noqa: B008
    truth=np.True_,
    point_or_none: tuple[int, int] | None = None,
    seeds_or_none: set[int] | None = None,
    queue=deque([1]),  # noqa: B006
    sizes: Iterable[int] = (1,),
    final: Final[int] = 1,
    told: Annotated[int, "of what"] = 1,
    function=len,
    raw=b"abc",
    span=range(3),
    unknown: "NothingOfThatName" = None,  # type: ignore[name-defined]  # noqa: F821
    required,
):
    """All kinds of parameters."""


READ: list[tuple[str, Any]] = [
    *[(f"flag={text}", False) for text in ("false", "False", "FALSE", "no", "No", "off", "OFF", "0")],
    *[(f"off={text}", True) for text in ("true", "True", "yes", "on", "ON", "1")],
    *[(f"count={text}", 100_000) for text in ("100000", "1e5", "100000.0", "+100000")],
    ("count=-3", -3),
    ("size=1e1", 10),
    ("scale=2", 2.0),
    ("scale=1e-3", 1e-3),
    ("scale=inf", float("inf")),
    *[(f"text={text}", text) for text in ("no", "1", "1.10", "007", "None", "", "a=b", "[1, 2]", "true")],
    ('text="1"', "1"),
    *[
        (f"anything={text}", value)
        for text, value in (("no", False), ("True", True), ("None", None), ("null", None))
    ],
    *[(f"anything={text}", value) for text, value in (("5", 5), ("1e5", 1e5), (".5", 0.5), ("-2", -2))],
    *[
        (f"anything={text}", value)
        for text, value in (("007", "007"), ("nan", "nan"), ("8x8", "8x8"), ('"5"', "5"))
    ],
    *[(f"anything={text}", value) for text, value in (("[1, true]", [1, True]), ("(1, None)", (1, None)))],
    ('anything={"a": 1}', {"a": 1}),
    *[(f"limit={text}", value) for text, value in (("none", None), ("None", None), ("1e3", 1000))],
    *[(f"either={text}", value) for text, value in (("3", 3), ("three", "three"), ("no", "no"))],
    *[(f"sure={text}", value) for text, value in (("none", None), ("off", False), ("1", True))],
    *[(f"implicit={text}", value) for text, value in (("2", 2.0), ("none", None))],
    *[(f"level={text}", value) for text, value in (("hard", "hard"), ("Easy", "easy"), ("3", 3))],
    *[(f"colour={text}", Colour.GREEN) for text in ("GREEN", "green", "2")],
    ("path=there/x", Path("there/x")),
    *[(f"pair={text}", (0.5, 3)) for text in ("[0.5, 3]", "(0.5, 3)", "0.5,3")],
    *[(f"names={text}", ("x", "1")) for text in ('["x", "1"]', "[x, 1]", "x,1", "x, 1")],
    *[(f"numbers={text}", [1, 20]) for text in ("[1, 20]", "1,2e1", "[1.0, 20]")],
    ("numbers=[]", []),
    *[(f"flags={text}", (True, False)) for text in ("[true, false]", "yes,no", "(True, False)", "[1, 0]")],
    ("point=3,4", (3, 4.0)),
    ("table={'b': None}", {"b": None}),
    ("narrow=2", np.float32(2)),
    ("narrow_whole=-128", np.int8(-128)),
    ("truth=off", np.False_),
    ("point_or_none=3,4", (3, 4)),
    ("seeds_or_none=1,2", {1, 2}),
    ("queue=1,2", deque([1, 2])),
    ("sizes=3,4", (3, 4)),
    ("final=1e1", 10),
    ("told=1e1", 10),
    ("unknown=no", False),
    ("required=no", False),
    ("flag:=2", 2),
    ("text:=null", None),
    ("count:=2.5", 2.5),
    ("pair:=[1, 2]", (1, 2)),
]


@pytest.mark.parametrize(("item", "value"), READ, ids=[item for item, _ in READ])
def test_an_option_is_read_by_the_type_of_the_default_that_it_replaces(item: str, value: Any) -> None:
    [found] = arguments("world", (item,), taken_by(takes)).values()
    assert found == value
    assert type(found) is type(value)


def test_an_array_keeps_its_dtype() -> None:
    found = arguments("world", ("array=1,2.5",), taken_by(takes))["array"]
    assert (found.dtype, found.tolist()) == (np.float32, [1, 2.5])


REFUSED = [
    ("flag=maybe", "flag is 'maybe'; it must be true or false (its default is True)"),
    ("flag=2", "true or false"),
    ("flag=", "true or false"),
    ("count=2.5", "count is '2.5'; it must be a whole number (its default is 10), or written count:=JSON"),
    ("count=ten", "a whole number"),
    ("count=True", "a whole number"),
    ("count=none", "a whole number"),
    ("count=inf", "a whole number"),
    ("count=nan", "a whole number"),
    ("scale=nan", "a number"),
    ("scale=fast", "a number"),
    ("limit=few", "a whole number or none"),
    ("level=harder", "easy or hard or 3"),
    ("colour=blue", "RED or GREEN"),
    ("numbers=1,x", "a list of whole numbers"),
    ("numbers=[1, 2.5]", "a list of whole numbers"),
    ("numbers=[1", "a list of whole numbers"),
    ("point=1,2,3", "a list of"),
    ("table=5", "a table"),
    ("whole_array=1.5,2", "a list"),
    ("whole_array=1,1e30", "a list"),
    ("array=1e39", "a list"),
    ("narrow=1e39", "a number of float32"),
    ("narrow_whole=300", "a number of int8"),
    ("point_or_none=1", "a list of whole numbers or none"),
    ("told=few", "a whole number"),
    ("raw=abc", "a bytes"),
    ("span=3", "a range"),
    ("function=max", "a builtin_function_or_method"),
    ("flag:=off", "'off' is no JSON"),
    ("flagg=no", "unknown option of world 'flagg': did you mean flag"),
    ("flag", "write name=value"),
    ("=1", "write name=value"),
    (":=1", "write name=value"),
]


@pytest.mark.parametrize(("item", "words"), REFUSED, ids=[item for item, _ in REFUSED])
def test_what_fits_no_parameter_is_refused_with_what_is_needed(item: str, words: str) -> None:
    with pytest.raises(ConfigError) as error:
        arguments("world", (item,), taken_by(takes))
    assert words in str(error.value)


def test_a_name_that_is_given_twice_is_refused() -> None:
    with pytest.raises(ConfigError, match="'flag:=true': flag is given twice"):
        split(("flag=no", "flag:=true"))


def test_any_name_is_read_as_it_looks_where_all_are_taken() -> None:
    found = arguments("world", ("a=no", "b=1", "size=1e1"), Takes(taken_by(takes).parameters, any_name=True))
    assert found == {"a": False, "b": 1, "size": 10}


FROM_PYTHON = {
    "flag": "False",
    "count": 2.5,
    "text": 5,
    "scale": float("inf"),
    "anything": [1, "no"],
    "pair": (1, 2),
}


def test_options_from_python_keep_their_types() -> None:
    assert arguments("world", FROM_PYTHON, taken_by(takes)) == FROM_PYTHON
    # ... and through the record of a run and the wire.
    config = from_json(to_json(configure("world", env_options=FROM_PYTHON)))
    assert arguments("world", config.env_options, taken_by(takes)) == FROM_PYTHON


def test_options_from_numpy_and_paths_are_written_as_numbers_lists_and_text() -> None:
    given = {"a": np.int64(3), "b": np.array([1.5, 2]), "c": Path("x"), "d": np.bool_(False)}
    assert written(given) == ("a:=3", "b:=[1.5, 2.0]", 'c:="x"', "d:=false")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"f": len}, "option f is <built-in function len>, which the record .*module:factory"),
        ({"table": {1: 2}}, "option table is {1: 2}, which the record"),
        ({"tables": [{"a": {None: 2}}]}, "which the record"),
        ({"a=b": 1}, "option 'a=b': the name of an option is text without ="),
        ({"a:": 1}, "option 'a:': the name"),
        ({"": 1}, "option '': the name"),
        ({3: 1}, "option 3: the name"),
    ],
)
def test_what_would_not_come_back_as_it_was_is_refused(given: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        written(given)


# -- the environments that take them ------------------------------------------------------------------------------


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> Any:
    class World(gymnasium.Env[Any, Any]):
        observation_space = gymnasium.spaces.Box(0, 1, (1,), np.float32)
        action_space = gymnasium.spaces.Discrete(2)
        seen: ClassVar[dict[str, Any]] = {}

        def __init__(self, fast=True, size=None, mode=None, **others):
            World.seen = {"fast": fast, "size": size, "mode": mode, **others}

    monkeypatch.setitem(gymnasium.registry, "Options-v0", None)
    monkeypatch.delitem(gymnasium.registry, "Options-v0")
    gymnasium.register("Options-v0", World, kwargs={"size": 3, "extra": "a"}, max_episode_steps=9)
    yield World
    gymnasium.registry.pop("Options-v0")


def test_defaults_of_a_gymnasium_id_are_those_of_its_constructor_and_its_registration(
    registered: Any,
) -> None:
    make("Options-v0", 1, ("fast=no", "size=1e1", "extra=5", "mode=on", "max_episode_steps=7")).close()
    assert registered.seen == {"fast": False, "size": 10, "extra": "5", "mode": True}
    with pytest.raises(ConfigError, match="size is 'big'; it must be a whole number"):
        make("Options-v0", 1, ("size=big",))


@pytest.mark.parametrize("word", ["false", "False", "no", "off", "0"])
def test_ice_that_does_not_slip(word: str) -> None:
    lake = make("FrozenLake-v1", 64, (f"is_slippery={word}",))
    lake.reset(1)
    lake.send(np.full(64, 2, np.int32))  # to the right, from the corner
    assert (np.asarray(lake.receive().observation) == 1).all()
    lake.close()


WORLDS = [
    ("ALE/Pong-v5", "episodic_life=maybe", "it must be true or false"),
    ("ALE/Pong-v5", "frame_skip=1.5", "it must be a whole number"),
    ("toy:catch", "rows=ten", "it must be a whole number"),
    ("toy:catch", "row=10", "did you mean rows"),
    ("CartPole-v1", "sutton_barto_reward=2", "it must be true or false"),
    ("FrozenLake-v1", "is_slipery=no", "did you mean is_slippery"),
    ("FrozenLake-v1", "max_episode_steps=few", "it must be a whole number or none"),
    ("my_worlds:make", "steps=many", "steps is 'many'; it must be a whole number"),
    ("my_worlds:make", "stepz=1", "did you mean steps"),
    ("my_worlds:make", "goal=no", "goal is False"),
]


@pytest.mark.parametrize(("env_id", "item", "words"), WORLDS)
def test_every_kind_of_environment_reads_by_its_own_types(
    env_id: str, item: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_worlds.py").write_text(
        "def make(num_envs, steps=5, goal=None):\n    raise ValueError(f'goal is {goal!r}')\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    with pytest.raises(ConfigError) as error:
        make(env_id, 2, (item,))
    assert words in str(error.value)
    sys.modules.pop("my_worlds", None)


def test_the_record_shows_options_as_they_look() -> None:
    config = configure("FrozenLake-v1", env_options=("is_slippery=No", 'map_name:="1"', "b=1e5"))
    assert env_options(config) == {"is_slippery": False, "map_name": "1", "b": 1e5}
