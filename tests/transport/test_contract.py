"""Every carrier keeps the contract of the seam."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from seedbed.testing.transport import CARRIERS, CHECKS, PROCESS_CHECKS, Carrier, Stage, run_check

_check = pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
_carrier = pytest.mark.parametrize("carrier", CARRIERS, ids=lambda carrier: carrier.name)


@pytest.mark.timeout(90)
@_carrier
@_check
def test_contract(check: Callable[[Stage], None], carrier: Carrier, tmp_path: Path) -> None:
    run_check(check, carrier, tmp_path)


@pytest.mark.timeout(90)
@pytest.mark.parametrize(
    "carrier", [c for c in CARRIERS if c.between_processes], ids=lambda carrier: carrier.name
)
@pytest.mark.parametrize("check", PROCESS_CHECKS, ids=lambda check: check.__name__)
def test_contract_between_processes(check: Callable[[Stage], None], carrier: Carrier, tmp_path: Path) -> None:
    run_check(check, carrier, tmp_path)
