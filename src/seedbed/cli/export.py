"""``seedbed export RUN …``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import tyro

from seedbed.cli.parse import parse, print_line


@dataclass(frozen=True)
class Export:
    """Settings of the file."""

    run: Annotated[str, tyro.conf.Positional]
    """The run folder."""
    format: Literal["stablehlo", "onnx", "run"] = "stablehlo"
    """JAX's StableHLO, ONNX (extra onnx), or a run folder that only plays."""
    out: str | None = None
    """File or folder to write; none: policy.FORMAT in the run folder."""
    trust: tuple[str, ...] = ()
    """Names (module:name) that the run may have imported, if this user did not begin it here."""


def run(arguments: list[str]) -> None:
    """Writes the file and its contract; see :func:`seedbed.evaluation.export.export`."""
    flags = parse(
        "export", Export, arguments, about="Write the policy of a run for programs without Seedbed."
    )
    from seedbed.evaluation.export import export

    print_line(str(export(flags.run, format=flags.format, out=flags.out, trust=flags.trust)))
