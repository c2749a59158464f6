"""Write the golden files beside this script: ``python tests/data/make_golden.py``.

They are made by the builders of the tests, which follow the formats' description and share no code with
the package. A change in one of them is a change of a format.
"""

import json
import lzma
import struct
import sys
from pathlib import Path

import numpy as np
from crc32c import crc32c

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.sdk import run_builders as build
from tests.sdk.tapes import games_on_tape, plain_npy

HERE = Path(__file__).parent

#: Weights of the n-tuple critic, by stage: the exponents in the cells 0, 1, 2 and 5, and those of its tiles.
CRITIC_WEIGHTS = {
    0: {(0, 0, 0, 0): (12, -34), (1, 0, 2, 0): (32767, 5), (6, 5, 4, 3): (-7, -32767)},
    1: {(0, 0, 0, 0): (1, 2), (7, 7, 7, 7): (300, -300)},
}


def golden() -> dict[str, bytes]:
    """The files by their names."""
    first = build.game(1, steps_max=12, engine="tape2048 golden é")
    second = build.game(2, steps_max=7, engine=None)
    third = build.game(3, with_branches=False, steps_max=5, engine="")
    v1, v2, plain = build.a2t1_bytes(first), build.a2run2_bytes(second), build.a2run2_bytes(third)
    spec = build.PackSpec([v1, v2, plain], align=64, stats=build.stats_block([first, second, third]))
    games = games_on_tape(1039, 3051)
    return {
        "golden.a2run": v1,
        "golden.a2run2": v2,
        "golden.a2pack": build.a2pack_bytes(spec),
        "golden.tape.npy": plain_npy("|u1", games.tape),
        "golden.anchors.npy": plain_npy("<u8", games.boards[::16]),
    }


def critic() -> bytes:
    """An n-tuple critic of two tiles, a tuple and two stages, before its compression."""
    tables = {}
    for stage, weights in CRITIC_WEIGHTS.items():
        table = np.zeros((2, 16, 16, 16, 16), "<i2")
        for exps, values in weights.items():
            table[(slice(None), *exps)] = values
        tables[f"{stage}/0125"] = table.reshape(2, -1)
    facts = {
        "thresholds": [64, 256], "corpus_hash": "c" * 64, "where": "id < 9",
        "split": {"fractions": {"train": 0.75, "val": 0.25}, "salt": "é"},
        "players": [{"name": "toy:depth=2", "sha256": "a" * 64, "games": 8}],
        "seed": 3, "step": 24, "metrics": {"loss": 0.25}, "training": {"kind": "ntuple"},
    }  # fmt: skip
    data = [table.tobytes() for _, table in sorted(tables.items())]
    texts = {
        "release": "1.0.0", "format": "tape2048 n-tuple critic 1", "stages": "128", "step": "0.03125",
        "facts": json.dumps(facts, ensure_ascii=False, separators=(",", ":")),
        "crc32c": f"{crc32c(b''.join(data)):08x}",
    }  # fmt: skip
    header: dict[str, object] = {"__metadata__": texts}
    for number, (name, table) in enumerate(sorted(tables.items())):
        begin = number * table.nbytes
        offsets = [begin, begin + table.nbytes]
        header[name] = {"dtype": "I16", "shape": list(table.shape), "data_offsets": offsets}
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + b"".join(data)


if __name__ == "__main__":
    for name, content in golden().items():
        (HERE / name).write_bytes(content)
    # Another version of xz may compress it to other bytes.
    (HERE / "golden.critic").write_bytes(lzma.compress(critic(), preset=6))
