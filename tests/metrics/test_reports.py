import copy
import json
import math
import pickle
from pathlib import Path

import numpy as np
import pytest
from harness import PLACED, at_once, placed
from numpy.typing import NDArray

from seedbed.errors import ConfigError
from seedbed.metrics.reports import (
    Summary,
    _unit_of,
    draw_curve,
    read_curve,
    read_summary,
    short_number,
    title,
    together,
)
from seedbed.metrics.sinks import JsonLines


def metrics(path: Path, rows: list[tuple[float, float, float]]) -> Path:
    path.touch()
    sink = JsonLines(path)
    for steps, seconds, mean_return in rows:
        sink.write({"agent_steps": steps, "seconds": seconds, "mean_return": mean_return})
    sink.close()
    return path


def picture(path: Path) -> NDArray[np.float64]:
    from matplotlib.image import imread

    return np.asarray(imread(path), np.float64)


def summary() -> Summary:
    return Summary(
        env="CartPole-v1",
        arch="seed",
        agent="vtrace",
        transport="shm",
        seed=1,
        seconds=20.5,
        agent_steps=1000,
        env_frames=1000,
        agent_steps_per_second=math.nan,
        mean_return=None,
        best_mean_return=None,
        episodes=0,
        weights_version=3,
        policy_lag_mean=0.5,
        policy_lag_max=2,
        params_sha256="ab",
        stopped_because="the budget was spent",
        more={"run": "runs/x"},
    )


def test_a_summary_is_one_json_object_without_nan(tmp_path: Path) -> None:
    path = tmp_path / "run" / "summary.json"
    summary().write(path)
    summary().write(path)
    value = read_summary(path)
    assert value["agent_steps_per_second"] is None
    assert value["run"] == "runs/x"
    assert "more" not in value
    assert json.loads(json.dumps(value)) == summary().to_json()
    assert [file.name for file in path.parent.iterdir()] == ["summary.json"]


def test_all_of_a_summary_are_attributes() -> None:
    found = summary()
    for one in (found, copy.deepcopy(found), pickle.loads(pickle.dumps(found))):
        for name, value in one.to_json().items():
            assert getattr(one, name) == value or math.isnan(getattr(one, name))
            assert name in dir(one)
    assert found.run_dir is None and not hasattr(found, "commit")
    with pytest.raises(
        AttributeError, match="attribute of a summary 'mean_retrun': did you mean mean_return"
    ):
        _ = found.mean_retrun


@pytest.mark.parametrize("text", [None, "[1]", "{"])
def test_a_bad_summary_is_an_error(tmp_path: Path, text: str | None) -> None:
    path = tmp_path / "summary.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ConfigError, match="summary"):
        read_summary(path)


def test_a_curve_leaves_out_what_a_resumed_run_went_back_behind(tmp_path: Path) -> None:
    rows = [(10, 60, 1), (20, 120, 2), (30, 180, 3), (20, 130, 5), (40, 200, 6), (50, 210, math.nan)]
    curve = read_curve(metrics(tmp_path / "m.jsonl", rows))
    assert curve.agent_steps.tolist() == [10, 20, 40]
    assert curve.mean_return.tolist() == [1, 5, 6]
    assert curve.seconds[0] == 60.0


def test_several_runs_meet_where_all_of_them_are() -> None:
    xs = [np.array([0.0, 10.0]), np.array([2.0, 20.0])]
    grid, ys = together(xs, [np.array([0.0, 10.0]), np.array([4.0, 40.0])])
    assert (grid[0], grid[-1]) == (2.0, 10.0)
    np.testing.assert_allclose(ys[0], grid)
    np.testing.assert_allclose(ys[1], 2 * grid)


def test_a_run_that_has_reached_the_goal_stays_there() -> None:
    xs = [np.array([0.0, 10.0]), np.array([2.0, 20.0]), np.array([0.0, 15.0])]
    ys = [np.array([0.0, 50.0]), np.array([4.0, 40.0]), np.array([0.0, 30.0])]
    grid, found = together(xs, ys, goal=40)
    assert (grid[0], grid[-1]) == (2.0, 15.0), "the third one never came there"
    assert found[0][-1] == 50 and found[2][-1] == 30
    grid, found = together(xs[:2], ys[:2], goal=40)
    assert grid[-1] == 20.0 and (found[0][-1], found[1][-1]) == (50, 40)


def test_of_few_runs_the_range_is_shown_and_of_more_an_interval(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from matplotlib.figure import Figure

    drawn: list[Figure] = []
    monkeypatch.setattr(Figure, "savefig", lambda self, *_, **__: drawn.append(self))
    files = [
        metrics(tmp_path / f"{seed}.jsonl", [(100 * n, n, n + seed) for n in range(1, 9)])
        for seed in range(5)
    ]
    for count, band in ((3, "range"), (5, "95% interval")):
        draw_curve({"": files[:count]}, tmp_path / "curve.png", "a curve")
        legend = drawn[-1].axes[0].get_legend()
        assert legend is not None
        assert [text.get_text() for text in legend.get_texts()] == ["interquartile mean", band]


def test_curves_are_pictures(tmp_path: Path) -> None:
    files = [
        metrics(tmp_path / f"{seed}.jsonl", [(100 * n, n, n + seed) for n in range(1, 40)])
        for seed in range(3)
    ]
    heading = title("CartPole-v1", "seed", "vtrace", [0, 1, 2])
    pictures = []
    several: dict[str, dict[str, list[Path]]] = {
        "one": {"": files[:1]},
        "three": {"": files},
        "none": {"": [metrics(tmp_path / "e", [])]},
        "groups": {"rate 1": files[:2], "rate 2": files[2:]},
        "many": {f"rate {number}": files[number % 3 :][:1] for number in range(24)},
    }
    for name, chosen in several.items():
        draw_curve(chosen, tmp_path / "out" / f"{name}.png", heading, goal=30)
        pictures.append(picture(tmp_path / "out" / f"{name}.png"))
    assert pictures[0].shape[0] > 400
    assert not np.array_equal(pictures[0], pictures[1])
    assert not np.array_equal(pictures[0], pictures[2])
    assert not np.array_equal(pictures[1], pictures[3])
    assert pictures[4].shape[1] > pictures[3].shape[1], "many names stand beside the panels"


def test_many_curves_have_colours_of_their_own_and_the_best_ones_are_named_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from matplotlib.figure import Figure

    drawn: list[Figure] = []
    monkeypatch.setattr(Figure, "savefig", lambda self, *_, **__: drawn.append(self))
    groups = {
        f"rate {number}": [
            metrics(tmp_path / f"{number}.jsonl", [(100 * n, n, n * number) for n in range(1, 9)])
        ]
        for number in range(24)
    }
    draw_curve(groups, tmp_path / "many.png", "many")
    (figure,) = drawn
    assert len({str(line.get_color()) for line in figure.axes[0].lines}) == 24
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == [
        f"rate {number}" for number in range(23, 5, -1)
    ]
    assert legend.get_title().get_text() == "the best 18 of 24"


def test_titles_and_ticks() -> None:
    assert title("E", "seed", "vtrace", [1]) == "E · vtrace agent · seed architecture · seed 1"
    assert title("E", "seed", "vtrace", [1, 2]).endswith("seeds 1, 2")
    assert title("E", "seed", "vtrace", range(100, 120)).endswith("seeds 100 … 119 (20)")
    assert [short_number(x) for x in (0, 950, 2500, 1.5e6, 2e9)] == ["0", "950", "2.5k", "1.5M", "2G"]


@pytest.mark.parametrize(
    ("seconds", "unit"),
    [(0.0, ("seconds", 1)), (179.0, ("seconds", 1)), (180.0, ("minutes", 60)), (10_800.0, ("hours", 3600))],
)
def test_the_time_axis_has_a_unit_that_fits(seconds: float, unit: tuple[str, int]) -> None:
    assert _unit_of(seconds) == unit


@pytest.mark.parametrize("kind", PLACED)
def test_what_is_no_file_is_neither_read_nor_drawn_over(kind: str, tmp_path: Path) -> None:
    file = metrics(tmp_path / "metrics.jsonl", [(1, 1, 1)])
    for name in ("summary.json", "curve.png"):
        placed(kind, tmp_path / name)
    with pytest.raises(ConfigError, match=rf"summary\.json: ({PLACED[kind]})"):
        at_once(lambda: read_summary(tmp_path / "summary.json"))
    with pytest.raises(OSError, match=PLACED[kind]):
        at_once(lambda: draw_curve({"": [file]}, tmp_path / "curve.png", "a curve"))
    assert kind != "link" or (tmp_path / "aim").read_text() == "mine"


def test_a_summary_takes_the_place_of_a_link(tmp_path: Path) -> None:
    for name in ("summary.json", "summary.json~"):
        placed("link", tmp_path / name)
    summary().write(tmp_path / "summary.json")
    assert (tmp_path / "aim").read_text() == "mine"
    assert read_summary(tmp_path / "summary.json")["env"] == "CartPole-v1"


def test_a_heading_of_odd_letters_is_drawn(tmp_path: Path) -> None:
    file = metrics(tmp_path / "metrics.jsonl", [(1, 1, 1)])
    draw_curve({"": [file]}, tmp_path / "curve.png", "level=\udcff · a $ of\nmoney$ {")
    assert (tmp_path / "curve.png").stat().st_size
