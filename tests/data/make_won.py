"""Write ``golden.won`` beside this script: ``python tests/data/make_won.py``.

It is the tape of a game that reaches 65536, compressed: no player reaches it often enough for a test. A beam
search chooses the moves and the spawns, all of them 4s, so that large tiles lie along a snake. The tests
check every step against the reference.
"""

import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numba import njit

from tape2048.game.rules import legal_mask, slide, wins

U64 = np.uint64
#: Two 4s; games of the seed WON_SEED (tests/sdk/tapes.py) begin with them.
START = 0x2200000000000000
BEAM = 64
SNAKE = [0, 1, 2, 3, 7, 6, 5, 4, 8, 9, 10, 11, 15, 14, 13, 12]
WEIGHTS = np.zeros(16)
WEIGHTS[SNAKE] = 0.25 ** np.arange(16)


@njit
def _worth(board: Any) -> float:
    total, empty = 0.0, 0
    for cell in range(16):
        exponent = (board >> U64(60 - 4 * cell)) & U64(15)
        total += WEIGHTS[cell] * float(U64(1) << exponent) if exponent else 0.0
        empty += exponent == U64(0)
    return total * (1 + 0.02 * empty)


@njit
def _expand(boards: Any, out: Any, steps: Any, worth: Any) -> int:
    count = 0
    for i in range(len(boards)):
        for move in range(4):
            if wins(boards[i], move):
                return -1 - (i << 2 | move)
            after = slide(boards[i], move)
            for cell in range(16):
                shift = U64(60 - 4 * cell)
                following = after | U64(2) << shift
                if after != boards[i] and not (after >> shift) & U64(15) and legal_mask(following):
                    out[count], steps[count] = following, i << 7 | move | cell << 2 | 64
                    worth[count] = _worth(following)
                    count += 1
    return count


def won_tape() -> bytes:
    """The bytes of the game."""
    out, steps, worth = np.empty(BEAM * 64, U64), np.empty(BEAM * 64, np.int64), np.empty(BEAM * 64)
    boards, made = np.array([START], U64), []
    while (count := _expand(boards, out, steps, worth)) >= 0:
        _, first = np.unique(out[:count], return_index=True)
        best = first[np.argsort(-worth[first], kind="stable")][:BEAM]
        boards = out[best]
        made.append(steps[best])
    at, move = divmod(-1 - count, 4)
    tape = [128 | move]
    for several in reversed(made):
        at, byte = divmod(int(several[at]), 128)
        tape.append(byte)
    return bytes(tape[::-1])


if __name__ == "__main__":
    (Path(__file__).parent / "golden.won").write_bytes(zlib.compress(won_tape(), 9))
