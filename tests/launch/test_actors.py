"""The watch over a run's own actors; whole runs with faults are in tests/faults."""

from __future__ import annotations

from seedbed.launch.actors import Supervisor


def test_a_learner_that_stood_still_itself_blames_nobody() -> None:
    supervisor = Supervisor(
        lambda index: None,  # type: ignore[arg-type,return-value]
        1,
        stalled=lambda: {0: 99.0},
        most_restarts=1,
        restart=True,
        on_failure=lambda error: None,
        note=lambda text: None,
    )
    assert supervisor._look() == {0: 99.0}
    supervisor._looked -= 60.0  # Ctrl-Z, and fg a minute later
    assert supervisor._look() == {}
    assert supervisor._look() == {0: 99.0}
