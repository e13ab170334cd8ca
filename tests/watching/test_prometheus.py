"""What Prometheus reads of runs, read by Prometheus's own parser."""

import math
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families
from watched_runs import NOW, a_run, ended

from seedbed.watching.prometheus import exposition
from seedbed.watching.watcher import Watcher


def gauges(folder: Path) -> dict[tuple[str, str, str], float]:
    """Returns the values by gauge, folder of the run, and member of a family or state."""
    text, kind = exposition(Watcher([folder], last=None).look())
    assert kind.startswith("text/plain")
    found = {}
    for family in text_string_to_metric_families(text.decode()):
        assert family.type == "gauge" and family.documentation
        for sample in family.samples:
            labels = sample.labels
            assert {"run", "env", "agent", "arch"} < labels.keys()
            key = (sample.name, Path(labels["run"]).name, labels.get("of") or labels.get("state", ""))
            assert key not in found
            found[key] = sample.value
    return found


def test_the_newest_row_of_each_run_is_told(tmp_path: Path) -> None:
    for name, steps in (("a", 7.0), ("b", 9.0)):
        rows = [
            {**NOW, "agent_steps": 1.0},
            {**NOW, "agent_steps": steps, "loss/policy": 0.5, "elo": 3.0, "elo/8": 4.0},
        ]
        a_run(tmp_path / name, rows)
    found = gauges(tmp_path)
    assert found["seedbed_agent_steps", "a", ""] == 7 and found["seedbed_agent_steps", "b", ""] == 9
    assert found["seedbed_loss", "a", "policy"] == 0.5
    assert (found["seedbed_elo", "a", ""], found["seedbed_elo", "a", "8"]) == (3, 4)
    assert found["seedbed_state", "a", "running"] == 1


def test_a_run_that_is_over_has_its_state_alone(tmp_path: Path) -> None:
    ended(a_run(tmp_path / "over", [{**NOW, "agent_steps": 7.0}]), "frames are spent")
    assert gauges(tmp_path) == {("seedbed_state", "over", "ended"): 1}


def test_names_of_another_version_are_left_out_and_no_number_is_told_as_it_is(tmp_path: Path) -> None:
    a_run(tmp_path / "run", [{**NOW, "agent_steps": 7.0, "later_name": 1.0, "mean_return": math.nan}])
    found = gauges(tmp_path)
    assert not any(name == "seedbed_later_name" for name, *_ in found)
    assert math.isnan(found["seedbed_mean_return", "run", ""])


def test_what_a_run_is_called_is_no_syntax(tmp_path: Path) -> None:
    name = 'a "run"\\ {x="1"}'
    a_run(tmp_path / name, [{**NOW, "agent_steps": 7.0}])
    assert gauges(tmp_path)["seedbed_agent_steps", name, ""] == 7
    a_run(tmp_path / "of\udcff bytes", [{**NOW, "agent_steps": 8.0}])
    assert gauges(tmp_path)["seedbed_agent_steps", "of? bytes", ""] == 8
