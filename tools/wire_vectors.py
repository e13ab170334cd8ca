"""Writes the conformance vectors of the wire (docs/wire.md): .venv/bin/python tools/wire_vectors.py [FOLDER]

The vectors are for clients in any language. They are kept in tests/wire/vectors, where a test compares them with what
this tool makes and with what the client in C makes and reads.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from seedbed.transport.framing import Kind, pack
from seedbed.transport.interface import Layout, Layouts, Terms

FOLDER = Path(__file__).parent.parent / "tests" / "wire" / "vectors"

FRAMES: list[tuple[Kind, int, bytes]] = [
    (Kind.ASK, 0, b'{"kind": "join", "protocol": 2, "token": "0123456789abcdef", "envs": 2}'),
    (Kind.ANSWER, 0, b"{}"),
    (Kind.REFUSED, 0, "wrong game: ☃".encode()),
    (Kind.OPENED, 0, b'{"lanes": [{"up": [[[1], "float32"]], "down": [[[1], "int32"]]}]}'),
    (Kind.STEP, 1, bytes(range(64))),
    (Kind.REPLY, 63, bytes(reversed(range(128)))),
    (Kind.CLOSED, 0, b""),
    (Kind.CHALLENGE, 0, bytes(40)),
    (Kind.PROOF, 0, bytes(range(88))),
    (Kind.ADMITTED, 0, bytes(range(32))),
]

REFUSED_BY_CLIENTS: list[tuple[str, bytes]] = [
    ("magic", b"sD\x02\x02" + bytes(12)),
    ("protocol", b"Sd\x03\x02" + bytes(12)),
    ("lane 64", b"Sd\x02\x06\x40" + bytes(11)),
]
"""Headers that are none, with what is wrong."""

DTYPES = (
    *("bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"),
    *("float16", "float32", "float64"),
)

LAYOUTS: dict[str, list[tuple[tuple[int, ...], str]]] = {
    "a step of Catch, 2 environments": [((2, 10, 5), "float32"), ((2,), "float32"), *[((2,), "bool")] * 3],
    "every dtype": [((2, 3), dtype) for dtype in DTYPES],
    "nothing in some": [((0, 5), "float32"), ((), "int64"), ((7,), "uint8"), ((3, 0), "bool")],
    "exactly a line": [((64,), "uint8"), ((65,), "uint8"), ((16,), "float32")],
}

ADMISSIONS: list[tuple[str, bytes]] = [
    ("0123456789abcdef", b""),
    ("a_Token-of-more-than-64-characters-is-hashed-before-it-is-the-key-of-HMAC", bytes(range(32))),
]
"""Tokens, and what proofs are bound to: the certificate's SHA-256, or nothing in plain text."""


def frames() -> list[dict[str, Any]]:
    """Frames, and their bytes."""
    return [
        {
            "kind": kind.name,
            "number": int(kind),
            "lane": lane,
            "body": body.hex(),
            "bytes": pack(kind, lane, body).hex(),
        }
        for kind, lane, body in FRAMES
    ]


def layouts() -> list[dict[str, Any]]:
    """Layouts, and a message of each."""
    made = []
    for name, fields in LAYOUTS.items():
        layout = Layout(tuple(fields))
        arrays = [_numbers(shape, dtype) for shape, dtype in fields]
        terms = Terms((Layouts(layout, Layout((((2,), "int32"),))),)).to_json()
        made.append(
            {
                "name": name,
                "layout": terms["lanes"][0]["up"],
                "offsets": list(layout.offsets[:-1]),
                "bytes": layout.nbytes,
                "arrays": [array.tobytes().hex() for array in arrays],
                "message": layout.join(arrays).hex(),
            }
        )
    return made


def admissions() -> list[dict[str, Any]]:
    """A challenge, the client's proof, and the server's answer; by HMAC of the standard library alone."""
    made = []
    for token, binding in ADMISSIONS:
        challenge, noise = bytes(range(40)), bytes(range(100, 116))
        known = challenge + noise
        macs = {
            side: hmac.new(
                token.encode(), b"seedbed|" + side + b"|" + binding + b"|" + known, hashlib.sha256
            ).digest()
            for side in (b"client", b"server")
        }
        made.append(
            {
                "token": token,
                "binding": binding.hex(),
                "challenge": challenge.hex(),
                "noise": noise.hex(),
                "proof": (known + macs[b"client"]).hex(),
                "answer": macs[b"server"].hex(),
            }
        )
    return made


def _numbers(shape: tuple[int, ...], dtype: str) -> Any:
    count = int(np.prod(shape))
    return (np.arange(1, count + 1) % (2 if dtype == "bool" else 100)).astype(dtype).reshape(shape)


def files() -> dict[str, str]:
    """The files' contents, by name."""
    refused = [{"name": name, "bytes": data.hex()} for name, data in REFUSED_BY_CLIENTS]
    made = {
        "frames": frames(),
        "headers-refused": refused,
        "layouts": layouts(),
        "admissions": admissions(),
    }
    return {f"{name}.json": json.dumps(rows, indent=1) + "\n" for name, rows in made.items()}


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files().items():
        (folder / name).write_text(content)


if __name__ == "__main__":
    main()
