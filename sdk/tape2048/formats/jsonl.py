"""Runs as JSON lines, for tools that read nothing else.

One line a run: ``run_idx, steps, start_unix_s, elapsed_s, max_score, highest_tile, engine, final_board,
states, moves`` (moves as ``"UP"``, ``"DOWN"``, ``"LEFT"``, ``"RIGHT"``). One line a step: ``run_idx,
step_idx, pre_board`` (16 exponents, row-major), ``chosen`` (a move), ``branches`` (null, or for up, down,
left and right an object of ``legal`` and ``value``).

Packed boards are JSON integers of up to 64 bits: a reader that holds numbers as doubles loses their last
cells. Floats have the fewest digits that read back as the same float32; a value that is not finite is null.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np

from tape2048.formats.a2run2 import RunV2

if TYPE_CHECKING:
    from tape2048.formats.run import Run

__all__ = ["run_line", "step_lines"]


def step_lines(run: Run, run_idx: int) -> memoryview:
    """One line for each step.

    Args:
        run: the run.
        run_idx: its number among the runs of the file.

    Returns:
        The lines, each with its newline, UTF-8.
    """
    from tape2048.formats._jsonl_kernels import STEP_LINE_BYTES_MAX, write_steps

    arrays = RunV2.from_run(run)
    out = np.empty(len(run) * STEP_LINE_BYTES_MAX, np.uint8)
    used = write_steps(
        np.uint64(run_idx),
        # Copies: views of files are unaligned or read-only, absent values broadcast.
        arrays.boards.copy(),
        arrays.moves.copy(),
        arrays.branch_values.copy("C").view(np.uint32),
        arrays.branch_legal.copy(),
        arrays.has_branches.copy(),
        out,
    )
    return out[:used].data


def run_line(run: Run, run_idx: int) -> memoryview:
    """The run as one line; the arguments and the result are those of :func:`step_lines`."""
    from tape2048.formats._jsonl_kernels import write_boards, write_moves

    meta = run.meta
    boards = np.empty(21 * len(run.states), np.uint8)
    moves = np.empty(8 * len(run), np.uint8)
    boards_used = write_boards(run.states.copy(), boards)
    moves_used = write_moves(run.moves.copy(), moves)
    head = msgspec.json.encode(
        {
            "run_idx": run_idx,
            "steps": meta.steps,
            "start_unix_s": meta.start_unix_s,
            "elapsed_s": float(str(np.float32(meta.elapsed_s))),
            "max_score": meta.max_score,
            "highest_tile": meta.highest_tile,
            "engine": meta.engine,
            "final_board": run.final_board,
        }
    )
    return memoryview(
        b"".join(
            [
                head[:-1],
                b',"states":[',
                boards[:boards_used].data,
                b'],"moves":[',
                moves[:moves_used].data,
                b"]}\n",
            ]
        )
    )
