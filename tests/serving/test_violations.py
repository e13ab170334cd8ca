"""The bound on actors from elsewhere that send what cannot be learned from."""

from __future__ import annotations

import pytest

from seedbed.serving import violations
from seedbed.serving.violations import ALLOWED, FORGOTTEN_SECONDS, Violations


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def found(clock: Clock) -> Violations:
    return Violations(clock)


def test_the_time_grows_and_ends(found: Violations, clock: Clock) -> None:
    for _ in range(ALLOWED):
        assert found.note("10.0.0.5") == ""
        assert found.refusal("10.0.0.5") is None, "it may come back at once"
    waits = []
    for _ in range(9):
        said = found.note("10.0.0.5")
        assert said.startswith("actors from 10.0.0.5 are refused for ")
        waits.append(float(said.split()[-2]))
        clock.now += waits[-1] - 0.5
        assert "none is let in for 0 s" in (found.refusal("10.0.0.5") or "")
        assert found.refusal("10.0.0.6") is None, "others are not meant"
        clock.now += 0.5
        assert found.refusal("10.0.0.5") is None
        clock.now += FORGOTTEN_SECONDS - 1
    assert waits == [10, 20, 40, 80, 160, 320, 600, 600, 600]


def test_it_is_forgotten(found: Violations, clock: Clock) -> None:
    for _ in range(ALLOWED + 3):
        found.note("")
    assert "from this machine" in (found.refusal("") or "")
    clock.now += 40 + FORGOTTEN_SECONDS + 1
    for _ in range(ALLOWED):
        assert found.note("") == ""
    assert found.note("").endswith("for 10 s")


def test_places_without_number_take_no_memory_without_bound(
    found: Violations, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(violations, "_MOST_PLACES", 3)
    for _ in range(ALLOWED + 1):
        found.note("10.0.0.1")
    for other in range(2):
        found.note(f"10.0.1.{other}")
    assert found.refusal("10.0.0.1") is not None
    found.note("10.0.1.9")
    assert found.refusal("10.0.0.1") is None, "the one that broke a rule longest ago is forgotten"
    assert len(found._places) == 3
