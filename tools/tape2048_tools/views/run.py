"""One run as text and as documents: its facts, its moves, its boards."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tape2048_tools.terminal.display import board, number
from tape2048_tools.terminal.output import cell, columns

if TYPE_CHECKING:
    from rich.console import RenderableType

    from tape2048.runs.run import Run


def exps_of(packed: int) -> list[int]:
    """Return the 16 exponents of a packed board."""
    return [packed >> (60 - 4 * i) & 15 for i in range(16)]


def run_document(run: Run, last: str = "final") -> dict[str, Any]:
    """Return the run's facts, for ``--json`` and for :func:`run_parts`; None for unknown ones.

    Args:
        run: the run.
        last: the name of its last board: ``final``, or ``last`` where the final one was not recorded.
    """
    import datetime as dt

    import numpy as np

    from tape2048.runs.a2run2 import Move

    meta = run.meta
    try:
        started = (
            dt.datetime.fromtimestamp(meta.start_unix_s, dt.UTC).isoformat() if meta.start_unix_s else None
        )
    except (ValueError, OverflowError, OSError):
        started = None  # outside the years of datetime
    counts = np.bincount(run.moves, minlength=4)
    return {
        "steps": meta.steps,
        "start_unix_s": meta.start_unix_s or None,
        "started": started,
        "elapsed_s": round(meta.elapsed_s, 6) or None,
        "moves_per_s": meta.steps / meta.elapsed_s if meta.elapsed_s > 0 else None,
        "max_score": meta.max_score,
        "highest_tile": meta.highest_tile,
        "engine": meta.engine,
        "moves": {move.name: int(counts[move]) for move in Move},
        "moves_unknown": int(counts[len(Move) :].sum()),
        "steps_with_branches": None if run.has_branches is None else int(run.has_branches.sum()),
        f"{last}_board": run.final_board,
        f"{last}_exps": exps_of(run.final_board),
    }


def run_parts(run: Run, document: dict[str, Any]) -> list[RenderableType]:
    """Return a document of :func:`run_document`, which may have further keys, and its last board as text."""
    written = {
        "steps": number(document["steps"]),
        "max_score": number(document["max_score"]),
        "moves_per_s": f"{document['moves_per_s'] or 0:,.1f}",
        "moves": ", ".join(f"{name} {number(count)}" for name, count in document["moves"].items()),
    }
    unsaid = {"moves_unknown"} if not document["moves_unknown"] else set()
    if not any(document["moves"].values()) and document["moves_unknown"]:
        unsaid = {"moves"}
    shown = {
        key: written.get(key, value)
        for key, value in document.items()
        if value is not None and not key.endswith(("_board", "_exps")) and key not in unsaid
    }
    title = "final board" if "final_board" in document else "last recorded board"
    return [columns(shown), "", cell(title, "bold"), board(exps_of(run.final_board))]


def step_document(run: Run, step: int) -> dict[str, Any]:
    """Return one board of the run, its move and spawn, and its branch values.

    Args:
        run: the run.
        step: 0 to ``len(run)``; the last one is the final board, which has no move.
    """
    from tape2048.game.moves import recover
    from tape2048.runs.a2run2 import Move, RunV2

    exps = exps_of(int(run.states[step]))
    document: dict[str, Any] = {"step": step, "board": int(run.states[step]), "exps": exps}
    if step == len(run):
        return document | {"move": None, "spawn": None, "branches": None}
    found = recover(run.states[step : step + 2], run.moves[step : step + 1])
    spawn = None
    if found.moves[0] < len(Move):
        spawn = {"cell": int(found.cells[0]), "tile": 1 << int(found.exponents[0])}
    branches = None if run.has_branches is None else RunV2.from_run(run).steps[step].branches
    return document | {
        "move": Move(move).name if (move := int(run.moves[step])) < len(Move) else None,
        "spawn": spawn,
        "branches": None if branches is None else [branch._asdict() for branch in branches],
    }
