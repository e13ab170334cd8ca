from typing import Any

import pytest

from seedbed.architectures.program import Edge, Program, Resources, Role, Traffic
from seedbed.errors import ConfigError
from seedbed.watching.bottleneck import bottleneck, shares, traffic
from seedbed.watching.run import _acting

ACTOR = Role(
    "actor",
    2,
    entry="seedbed.acting.actor:run",
    needs=Resources(0.5),
    dials=(
        Edge(
            "learner",
            (
                Traffic("observation", "up", 100.0, "step"),
                Traffic("unroll", "up", 40.0, "unroll"),
                Traffic("weights", "down", 1000.0, "update"),
            ),
        ),
    ),
)
PROGRAM = Program((Role("learner", 1), ACTOR))
BEFORE = {"seconds": 10.0, "cpu_seconds": 20.0, "weights_version": 5.0, "steps_received": 1000.0}
ROW = {
    "seconds": 20.0,
    "cpu_seconds": 35.0,
    "weights_version": 25.0,
    "steps_received": 6000.0,
    "agent_steps_per_second": 500.0,
    "learner_busy": 0.3,
    "inference_batch": 10.0,
    "inference_milliseconds": 4.0,
}


def test_shares_by_hand() -> None:
    # 50 batches a second of 4 ms; 15 s of the 20 s that two cores have in 10 s.
    assert shares(ROW, BEFORE, 2) == pytest.approx({"learner": 0.3, "inference": 0.2, "cores": 0.75})
    # Two devices that compute them side by side are half as busy, each.
    assert shares(ROW, BEFORE, 2, acting=2)["inference"] == pytest.approx(0.1)
    assert shares({}, {}, None) == {}
    assert shares(ROW, ROW, 2) == pytest.approx({"learner": 0.3, "inference": 0.2})


@pytest.mark.parametrize(
    ("found", "program", "part", "says"),
    [
        (
            {"learner": 0.3, "inference": 0.2, "cores": 0.75},
            PROGRAM,
            "actors",
            "waits for steps of environments",
        ),
        ({"learner": 0.9, "inference": 0.8}, PROGRAM, "learner", "it computes updates 90% of the time"),
        ({"learner": 0.1, "inference": 0.8, "cores": 0.95}, PROGRAM, "inference", "all cores are busy (95%)"),
        ({"cores": 0.5}, Program((Role("learner", 1), Role("worker", 3))), "workers", "acts and learns"),
        ({"cores": 0.5}, Program((Role("learner", 1),)), "learner", "one program"),
        ({"learner": 0.2}, None, "actors", "busy are learner 20% of the time"),
    ],
)
def test_the_bottleneck_has_a_name(
    found: dict[str, float], program: Program | None, part: str, says: str
) -> None:
    name, why = bottleneck(found, program)
    assert name == part and says in why


def test_traffic_is_declared_bytes_times_measured_rates() -> None:
    flows = {each["what"]: each for each in traffic(PROGRAM, ROW, BEFORE, 10)}
    assert flows["observation"]["bytes_per_second"] == 100 * 500
    assert flows["unroll"]["bytes_per_second"] == 40 * 50
    assert flows["weights"]["bytes_per_second"] == 1000 * 2 * 2, "each of two actors fetches each update"
    assert (flows["weights"]["from"], flows["weights"]["to"]) == ("learner", "actor")


def test_a_program_comes_back_from_its_values() -> None:
    assert Program.from_json(PROGRAM.to_json()) == PROGRAM
    for bad in (
        {},
        {"roles": 3, "head": "learner", "hosts": 1},
        {**PROGRAM.to_json(), "roles": [{"name": "x"}]},
    ):
        with pytest.raises(ConfigError, match="not the values of a program"):
            Program.from_json(bad)


@pytest.mark.parametrize(
    ("settings", "number"),
    [
        ({}, 1),
        ({"inference_devices": [0]}, 1),
        ({"inference_devices": [0, 1, 3]}, 3),
        ({"inference_devices": []}, 1),
        ({"forward_servers": 2}, 2),
        ({"forward_servers": 3, "inference_devices": [0, 1]}, 3),
        ({"forward_servers": "two", "inference_devices": "all"}, 1),
    ],
)
def test_devices_and_servers_share_the_calls_of_the_policy(settings: dict[str, Any], number: int) -> None:
    assert _acting(settings) == number
