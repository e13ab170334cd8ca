"""Numbers that environments tell at the ends of episodes: which are kept, by what name, and how they travel."""

import numpy as np
import pytest

from seedbed.acting.meters import Meters
from seedbed.envs.final_infos import FINAL, final_infos
from seedbed.errors import Refused
from seedbed.metrics.final_info import MOST_NAMES, FinalInfo
from seedbed.metrics.registry import check
from seedbed.metrics.sinks import JsonLines

KEPT = [
    ({"success": True, "failed": np.bool_(False)}, {"success": 1.0, "failed": 0.0}),
    (
        {"distance": np.float32(0.5), "steps": 7, "score": np.array([2])},
        {"distance": 0.5, "steps": 7, "score": 2},
    ),
    ({"episode": {"r": np.array(3.0), "deep": {"l": 4}}}, {"episode.r": 3.0, "episode.deep.l": 4}),
    ({"way of it/x": 1, 5: 2, "größe": 3}, {"way_of_it_x": 1, "5": 2, "größe": 3}),
    ({"n" * 200: 1}, {"n" * 64: 1}),
    ({"": 1, "outer": {"": 2, "x": 3}}, {"outer.x": 3}),
    ({"nan": np.nan, "inf": -np.inf, "huge": 1e200, "digits": 10**400}, {}),
    ({"text": "1", "none": None, "list": [1], "path": np.zeros(3), "names": np.array("x"), "c": 1j}, {}),
    ({"complex": np.complex64(1j), "date": np.datetime64("2026-01-01")}, {}),
    ({}, {}),
]


@pytest.mark.parametrize(("info", "kept"), KEPT)
def test_numbers_are_kept_by_name(info, kept):
    told = FinalInfo()
    told.add(info)
    assert told.means() == {f"env/{name}": value for name, value in kept.items()}
    check(told.means())


def test_means_are_over_the_episodes_that_told_them():
    told, other = FinalInfo(), FinalInfo()
    told.add({"success": True, "time": 3})
    told.add({"success": False})
    other.add({"success": True})
    told.merge(other.take())
    assert told.means() == {"env/success": pytest.approx(2 / 3), "env/time": 3.0}
    assert told.means() == {}


def test_of_many_names_the_first_are_kept():
    told = FinalInfo()
    told.add({f"n{n}": n for n in range(1000)})
    told.add({"n0": 2, "late": 1})
    assert [*told.means()] == [f"env/n{n}" for n in range(MOST_NAMES)]


@pytest.mark.parametrize(
    "told",
    [
        {"x": 1},
        {"x": [1]},
        {"x": [1, 2, 3]},
        {"x": ["1", 1]},
        {"x": [float("nan"), 1]},
        {"x": [10**400, 1]},
        {"": [1.0, 1]},
        {"x": [True, 1]},
        {"x": [1.0, -1]},
        {"x": [1.0, 1 << 50]},
        {"x": [1.0, 1.5]},
        {"a b": [1.0, 1]},
        {"n" * 65: [1.0, 1]},
    ],
)
def test_what_no_actor_tells_is_refused(told):
    with pytest.raises(Refused):
        Meters().report({"waits": {}, "info": told})


def test_a_report_whose_info_is_no_table_is_refused():
    with pytest.raises(Refused, match="not what environments tell"):
        Meters().report({"waits": {}, "info": [1]})


def test_meters_hand_it_on_and_give_means():
    server, learner = Meters(), Meters()
    for success in (True, False):
        info = FinalInfo()
        info.add({"success": success})
        server.report({"waits": {}, "info": info.take()})
    learner.report(server.hand_on())
    assert server.take() == {}
    assert learner.take() == {"env/success": 0.5}


def test_the_info_of_a_vector_environment_is_read_by_its_masks():
    info = {
        "success": np.array([1.0, 0.0, 1.0]),
        "_success": np.array([True, True, False]),
        "episode": {"r": np.array([3.0, 4.0, 5.0]), "_r": np.array([True, True, True])},
        "_episode": np.array([True, False, True]),
        "unmasked": np.array([7, 8, 9]),
        "odd": np.zeros(2),
        "text": "x",
    }
    found = [*final_infos(info, np.array([True, True, False]))]
    assert found == [{"success": 1.0, "episode": {"r": 3.0}, "unmasked": 7}, {"success": 0.0, "unmasked": 8}]
    assert [*final_infos({FINAL: [{"x": 1}]}, np.array([True]))] == [{"x": 1}]
    assert not [*final_infos(None, np.array([True]))]


def test_a_row_takes_them(tmp_path):
    sink = JsonLines(tmp_path / "rows")
    sink.write({"env/success": 0.5})
    sink.close()
    assert (tmp_path / "rows").read_text() == '{"env/success": 0.5}\n'
