"""pack.dat as fuzzing sees it: seeds, fields and seal from the format's description."""

import random
from typing import Any

from crc32c import crc32c
from tests.fuzz.harness import EXTREMES, Field, Target
from tests.sdk import run_builders as build
from tests.sdk.runs.set_builders import packdat_bytes

from tape2048.runs.packdat import DataPack

GAMES = [
    build.game(1, steps_max=3, engine="e"),
    build.game(2, steps_max=1, engine=None),
    build.game(3, steps_max=2, engine="ü", with_branches=False),
    build.game(4, steps_max=0, engine=None, max_score=2**64 - 1),
]

_HEADER, _STEP = 28, 32


def seal(data: bytearray) -> None:
    if len(data) >= 4:
        data[-4:] = crc32c(bytes(data[:-4])).to_bytes(4, "little")


def fields(data: bytes) -> list[Field]:
    found = [Field(4, 4), Field(8, 4), Field(12, 8), Field(20, 8)]
    steps = min(int.from_bytes(data[12:20], "little"), max(0, len(data) - _HEADER) // _STEP)
    for i in range(steps):
        at = _HEADER + _STEP * i
        found += [Field(at + offset, size) for offset, size in ((0, 8), (8, 4), (12, 4), (16, 1), (17, 1))]
        found += [Field(at + 18 + 2 * m, 2) for m in range(4)] + [Field(at + 26, 4), Field(at + 31, 1)]
    at = _HEADER + _STEP * steps
    while at + 38 <= len(data) - 4:
        found += [
            Field(at + offset, size) for offset, size in ((0, 4), (4, 4), (8, 4), (12, 8), (20, 4), (24, 2))
        ]
        engine = int.from_bytes(data[at + 24 : at + 26], "little")
        found += (
            [Field(at + 26 + engine, 8), Field(at + 34 + engine, 4)] if at + 38 + engine < len(data) else []
        )
        at += 38 + engine
    return found


def absurd(rng: random.Random) -> bytes:
    """Steps and offset that agree on a number that the bytes cannot hold."""
    data = bytearray(packdat_bytes(GAMES))
    steps = rng.choice(EXTREMES) % 2**64
    data[12:20] = steps.to_bytes(8, "little")
    data[20:28] = ((_HEADER + _STEP * steps) % 2**64).to_bytes(8, "little")
    seal(data)
    return bytes(data)


PACKDAT = Target(
    "packdat",
    [packdat_bytes(GAMES), packdat_bytes(GAMES[:1]), packdat_bytes([])],
    DataPack.from_bytes,
    DataPack.to_bytes,
    seal,
    fields,
    absurd,
)

TARGETS: dict[str, Any] = {"packdat": PACKDAT}
