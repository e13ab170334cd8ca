import runpy
from pathlib import Path

from seedbed.metrics import registry

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "metrics.md"


def test_every_metric_is_documented() -> None:
    text = PAGE.read_text()
    for metric in registry.registered():
        assert f"| `{metric.name}` | {metric.unit} | {metric.sentence} |" in text


def test_the_page_is_what_the_registry_writes() -> None:
    page = runpy.run_path(str(ROOT / "tools" / "metrics_page.py"))["page"]
    assert PAGE.read_text() == page(), "run .venv/bin/python tools/metrics_page.py"
