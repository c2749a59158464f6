"""Write the golden files beside this script: ``python tests/data/make_golden.py``.

They are made by the builders of the tests, which follow the formats' description and share no code with
the package. A change in one of them is a change of a format.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.sdk import run_builders as build

HERE = Path(__file__).parent


def golden() -> dict[str, bytes]:
    """The files by their names."""
    first = build.game(1, steps_max=12, engine="tape2048 golden é")
    second = build.game(2, steps_max=7, engine=None)
    third = build.game(3, with_branches=False, steps_max=5, engine="")
    v1, v2, plain = build.a2t1_bytes(first), build.a2run2_bytes(second), build.a2run2_bytes(third)
    spec = build.PackSpec([v1, v2, plain], align=64, stats=build.stats_block([first, second, third]))
    return {"golden.a2run": v1, "golden.a2run2": v2, "golden.a2pack": build.a2pack_bytes(spec)}


if __name__ == "__main__":
    for name, content in golden().items():
        (HERE / name).write_bytes(content)
