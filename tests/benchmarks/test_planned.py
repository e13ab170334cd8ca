"""The script that predicts runs and makes them, and the tables of kept and published rows."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from seedbed.cli.train import configuration

ROOT = Path(__file__).parents[2]


@pytest.fixture
def planned(results: Path) -> Any:
    return importlib.import_module("planned")


@pytest.fixture(scope="module")
def page() -> Iterator[Any]:
    """The tool that writes the tables."""
    with pytest.MonkeyPatch.context() as patched:
        patched.syspath_prepend(str(ROOT / "tools"))
        yield importlib.import_module("plan_page")


def test_every_case_is_a_run_and_they_are_what_was_asked_for(planned: Any) -> None:
    runs = [configuration(flags.split()) for flags in planned.CASES.values()]
    assert len(runs) >= 8
    assert {run.arch for run in runs} == {"seed", "impala", "apex", "sebulba"}
    sizes = {run.placement.envs_per_actor for run in runs}
    assert (min(sizes), max(sizes)) == (2, 64)


def test_a_row_has_both_and_the_plan_sees_the_costs_alone(
    planned: Any, results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[tuple[str, ...]] = []
    seen: list[list[list[str]]] = []

    def play(*words: str) -> str:
        said.append(words)
        file = Path(words[words.index("--results" if words[0] == "bench" else "--costs") + 1])
        if words[0] == "plan":
            seen.append(
                [
                    sorted(row.get("stages", ["served"]))
                    for row in map(json.loads, file.read_text().splitlines())
                ]
            )
            return json.dumps({"seed": {"steps_per_second": 90.0 - len(seen)}})
        if "--serve" in words:
            file.write_text('{"served": {"shm": {}}}\n')
            return ""
        row: dict[str, Any] = {
            "stages": {
                "learner": {},
                "whole": {"steps_per_second": 100.0, "about": "seed, lag 1.0 updates"},
            }
        }
        row |= {
            "bound_steps_per_second": 110.0,
            "settings": {"env": words[1]},
            "time": "",
            "machine": {},
            "commit": "",
            "versions": {},
        }
        with file.open("a") as costs:
            costs.write(json.dumps(row) + "\n")
        return ""

    monkeypatch.setattr(planned, "_seedbed", play)
    cases = ["cartpole seed 2 x 32", "cartpole impala 2 x 32", "minatar impala 2 x 16"]
    monkeypatch.setattr(sys, "argv", ["planned.py", *cases, "--seconds", "0.5"])
    planned.main()
    assert [words[0] for words in said] == [
        "bench",
        "bench",
        "plan",
        "bench",
        "plan",
        "plan",
        "bench",
        "plan",
    ]
    assert ["--serve" in words for words in said].count(True) == 1 and "--serve" in said[0]
    own, served, whole = ["learner"], ["served"], ["learner", "whole"]
    assert seen == [[served, own], [own], [served, whole, own], [own]], "a run is planned without itself"
    found = [json.loads(line) for line in (results / "planned.jsonl").read_text().splitlines()]
    assert [row["name"] for row in found] == cases and [row["measured"] for row in found] == [100.0] * 3
    assert [(row["alone"], row["predicted"]) for row in found] == [(89.0, None), (88.0, 87.0), (86.0, None)]
    monkeypatch.setattr(sys, "argv", ["planned.py", "chess"])
    with pytest.raises(SystemExit, match="no such case: chess"):
        planned.main()


@pytest.mark.thorough
@pytest.mark.slow
def test_a_tiny_run_is_predicted_and_made(
    planned: Any, results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        planned, "CASES", {"tiny": "toy:catch --preset none --agent vtrace --arch seed --hidden 16"}
    )
    monkeypatch.setattr(sys, "argv", ["planned.py", "tiny", "--seconds", "0.5"])
    planned.main()
    row = json.loads((results / "planned.jsonl").read_text())
    assert row["measured"] > 0
    assert row["alone"] > 0
    assert row["predicted"] is None
    assert row["plan"]["bound"] in {each["name"] for each in row["plan"]["resources"]} | {None}
    assumed = " ".join(row["plan"]["assumed"])
    assert "crowded" not in assumed, "this version times everything that a plan needs"
    assert "busy, if they run on cores" not in assumed


@pytest.mark.slow
def test_kept_rows_of_two_cores_are_predicted_within_15_percent(page: Any) -> None:
    found = list(page.on_cores())
    assert len(found) == 8
    assert {each.name: each.off for each in found if abs(each.off) > 0.15} == {}
    written = page.PAGE.read_text()
    assert all(f"| {each.name} | {each.measured:,.0f} |" in written for each in found)


@pytest.mark.thorough
@pytest.mark.slow
def test_rows_of_the_paper_are_predicted_within_30_percent(page: Any) -> None:
    found = page.paper()
    assert len(found) == 11
    assert {one.name: one.off for one, *_ in found if abs(one.off) > 0.30} == {}
    priced = {one.name: price / cost - 1 for one, price, cost in found if cost}
    assert {name: off for name, off in priced.items() if abs(off) > 0.30} == {}
    written = page.PAGE.read_text()
    assert all(f"| {one.name} | {one.measured:,.0f} |" in written for one, *_ in found)


def test_runs_are_judged_by_the_plan_with_an_earlier_runs_loss(
    page: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [("first", 100.0, 130.0, None), ("near", 100.0, 130.0, 110.0), ("far", 100.0, 90.0, 60.0)]
    monkeypatch.setattr(page, "_planned", lambda _: rows)
    lines = list(page._planned_table([]))
    assert "| first | 100 | 130 | **+30%** | – | – |" in lines
    assert "| near | 100 | 130 | **+30%** | 110 | +10% |" in lines
    assert "| far | 100 | 90 | -10% | 60 | **-40%** |" in lines
    assert lines[-1].startswith("1 of 2 predictions")


@pytest.mark.slow
def test_the_page_has_the_planned_rows_as_they_are_predicted(
    page: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    written, rows = page.PAGE.read_text(), page.rows_of("planned.jsonl")
    assert len(rows) == 12
    planned = list(page._planned(rows))
    monkeypatch.setattr(page, "_planned", lambda _: planned)
    assert all(line in written for line in page._planned_table(rows))
    judged = [(measured, made) for _, measured, _, made in planned if made is not None]
    assert len(judged) == 9
    assert sum(abs(made / measured - 1) <= 0.15 for measured, made in judged) >= 6
    assert max(abs(made / measured - 1) for measured, made in judged) < 0.20


def test_a_table_marks_misses_and_counts_them(page: Any) -> None:
    rows = [
        page.Compared("near", 100.0, 110.0),
        page.Compared("far", 100.0, 150.0, "why"),
        page.Compared("none", 100.0, None, "not timed"),
    ]
    lines = list(page.table(rows, 0.15))
    assert "| near | 100 | 110 | +10% |  |" in lines
    assert "| far | 100 | 150 | **+50%** | why |" in lines
    assert "| none | 100 | – | – | not timed |" in lines
    assert lines[-1].startswith("1 of 2 predictions are within 15%")
