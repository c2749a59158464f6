"""How many moves ``tape2048 audit`` needs to find a fault, as a table in Markdown.

::

    python -m tests.bench.audit [--seeds 100]

A simulator with the fault plays recordings of more and more moves, with one recording for each seed. The
table has the numbers of moves with which half of the audits, and nine of ten, say "this is not 2048".
"""

import argparse
import collections
import tempfile
from pathlib import Path

from tape2048.conversion.auditing import audit

from ..sdk.simulator import FAULTS, play, write

#: Numbers of moves that are tried: four for each power of two.
MOVES = [round(2 ** (quarter / 4)) for quarter in range(12, 80)]


def found(fault: str, seed: int, moves: int) -> str | None:
    """The check that finds the fault, or None."""
    with tempfile.TemporaryDirectory() as directory:
        result = audit(write(Path(directory, "session"), play(fault, seed, moves)), workers=1)
    return next((check.name for check in result.checks if check.ok is False), None)


def moves_needed(fault: str, seeds: int) -> tuple[int, int, str]:
    """The moves that half of the seeds and nine of ten need, and the check that finds most."""
    half = 0
    for moves in MOVES:
        checks = collections.Counter(name for seed in range(seeds) if (name := found(fault, seed, moves)))
        if not half and checks.total() >= seeds / 2:
            half = moves
        if checks.total() >= 0.9 * seeds:
            return half, moves, checks.most_common(1)[0][0]
    raise AssertionError(f"{fault} is not found in {moves} moves")


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=100)
    seeds = parser.parse_args().seeds
    print(f"| fault ({seeds} seeds) | moves for half | for nine of ten | found by |\n|---|---|---|---|")
    for fault in FAULTS[1:]:
        half, most, check = moves_needed(fault, seeds)
        print(f"| {fault} | {half:,} | {most:,} | {check} |", flush=True)


if __name__ == "__main__":
    main()
