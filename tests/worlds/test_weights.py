"""Weights over the limit of a message, row by row: how they travel, and what is said before anything is compiled."""

from typing import Any

import pytest

from seedbed.architectures.compatibility import why_not
from seedbed.config.resolve import configure
from seedbed.envs.make import spec_of
from seedbed.launch.build import build_agent

HEAVY = (20_000, 20_000)  # 1.5 GiB of float32, twice where the value has layers of its own
DQN = {"agent": "dqn", "arch": "apex"}
ROWS: list[tuple[dict[str, Any], str | None]] = [
    ({"arch": "seed", "hidden": HEAVY}, None),
    (
        {"arch": "impala", "hidden": HEAVY},
        "the weights take 3,060 MiB, and a message of impala holds 1,024 MiB at most",
    ),
    (
        {"arch": "impala", "hidden": HEAVY},
        "--hidden or --lstm, or an architecture whose weights stay where they are",
    ),
    ({"arch": "impala", "hidden": (10_000, 10_000)}, None),  # 766 MiB
    (
        {"arch": "impala", "hidden": (10_000, 10_000), "transport": "grpc"},
        "a message of impala holds 256 MiB at most",
    ),
    ({"arch": "impala", "hidden": (10_000, 10_000), "listen": ("127.0.0.1:0",)}, "holds 256 MiB at most"),
    ({"arch": "rapid", "hidden": HEAVY}, "a message of rapid holds 1,024 MiB"),
    ({**DQN, "hidden": HEAVY}, "a message of apex holds 1,024 MiB"),
    ({**DQN, "arch": "gorila", "hidden": (10_000, 10_000)}, "a message of gorila holds 1,024 MiB at most"),
    ({**DQN, "arch": "gorila", "hidden": (10_000, 10_000)}, "more --shards"),
    ({**DQN, "arch": "gorila", "hidden": (10_000, 10_000), "shards": 2}, None),
]


@pytest.mark.parametrize(("settings", "words"), ROWS)
def test_weights_that_no_message_holds_are_refused_as_such(
    settings: dict[str, Any], words: str | None
) -> None:
    config = configure("toy:catch", preset="none", **settings)
    reason = why_not(config, build_agent(config, spec_of("toy:catch")))
    assert (reason is None) if words is None else (words in str(reason)), reason
