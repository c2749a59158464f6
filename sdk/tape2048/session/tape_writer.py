"""Writer of a session on tape from games in memory."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from tape2048.errors import ReplayError
from tape2048.game.spawning import spawn_between
from tape2048.jit.compiler import kernel
from tape2048.session.layout import RUN_DTYPE, TAPE
from tape2048.session.metadata_writer import finish_session
from tape2048.session.npy_writer import NpyWriter
from tape2048.session.tape_layout import (
    ANCHOR_DTYPE,
    ANCHOR_ROWS,
    ANCHORS_NPY,
    TAPE_BLOCK_ROWS,
    TAPE_DTYPE,
    TAPE_HEADER_BYTES,
    TAPE_NPY,
)
from tape2048.session.tape_reader import anchors_of, check_games, check_two_tiles

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray


U8 = np.uint8
U64 = np.uint64


@kernel
def encode(  # noqa: PLR0917
    boards: Any, moves: Any, first: Any, steps: Any, finals: Any, tape: Any
) -> Any:
    """Encode games from boards ``u64[n]``, moves ``u8[n]`` and finals ``u64[G]`` into ``tape``, ``u8[n]``.

    ``first`` and ``steps`` (``i64[G]``) are each game's first index in all arrays, and its length.

    Returns:
        -1, or the index of the first step whose move and one spawn do not lead to the next board.
    """
    for game in range(first.shape[0]):
        end = first[game] + steps[game]
        for at_byte in range(first[game], end):
            move = U64(moves[at_byte])
            following = boards[at_byte + 1] if at_byte + 1 < end else finals[game]
            spawn = spawn_between(boards[at_byte], move, following) if move < U64(4) else U64(0)
            if spawn == U64(0):
                return at_byte
            is_four = (spawn & U64(15)) - U64(1)
            tape[at_byte] = U8(move | (spawn >> U64(4)) << U64(2) | is_four << U64(6))
    return -1


class TapeWriter:
    """A context manager that writes the files of an unpublished session on tape, game by game.

    Every game is decoded when it is added, for its anchors, and compared with the rules and with its row of
    the run table. Errors of the operating system are raised as OSError.

    Args:
        directory: existing directory without tape and anchors.
        given_starts: whether games may start from any board that a game can reach. If true, pass the fact
            ``start_boards`` to :meth:`finish`.

    Attributes:
        rows: number of rows so far.

    Example:
        >>> from pathlib import Path
        >>> Path("on-tape").mkdir()
        >>> with TapeWriter(Path("on-tape")) as writer:  # of no games: writer.add takes them
        ...     size = writer.finish({"engine": "toy"})
        >>> sorted(path.name for path in Path("on-tape").iterdir())
        ['anchors.npy', 'manifest.json', 'metadata.db', 'tape.npy']
    """

    def __init__(self, directory: Path, *, given_starts: bool = False) -> None:
        self._directory = directory
        self._given_starts = given_starts
        self._open = contextlib.ExitStack()
        self._runs: list[NDArray[np.void]] = []
        self._starts: list[NDArray[np.uint64]] = []
        self.rows = 0

    def __enter__(self) -> Self:
        self._tape, self._anchors = (
            self._open.enter_context(
                NpyWriter(self._directory / name, dtype, TAPE_HEADER_BYTES, TAPE_BLOCK_ROWS)
            )
            for name, dtype in ((TAPE_NPY, TAPE_DTYPE), (ANCHORS_NPY, ANCHOR_DTYPE))
        )
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def add(self, tape: NDArray[np.uint8], runs: NDArray[np.void], starts: NDArray[np.uint64]) -> None:
        """Append whole games, ``first_row`` computed; FormatError as for :func:`check_games`."""
        runs = runs.copy()
        runs["first_row"] = np.uint64(self.rows) + np.cumsum(runs["rows"], dtype=np.uint64) - runs["rows"]
        if not self._given_starts:
            check_two_tiles(runs, starts, self._directory / TAPE_NPY)
        checked = check_games(tape, runs, starts)
        for defect in checked.defects:
            raise defect.error(runs[defect.game], self._directory / TAPE_NPY)
        self._tape.append(tape)
        self._anchors.append(anchors_of(checked.boards, self.rows))
        self._runs.append(runs)
        self._starts.append(starts)
        self.rows += len(tape)

    def add_boards(
        self,
        boards: NDArray[np.uint64],
        moves: NDArray[np.uint8],
        finals: NDArray[np.uint64],
        runs: NDArray[np.void],
    ) -> None:
        """Append whole games from their boards, one game after the other; ``finals`` are the last boards.

        Raises ReplayError for a run without steps, or if a move and one spawn do not lead to the next board;
        FormatError as for :meth:`add`.
        """
        steps = runs["rows"].astype(np.int64)
        if not steps.all():
            raise ReplayError(
                f"run {runs['run_id'][steps == 0][0]} has no steps; expected a complete game",
                path=self._directory,
            )
        first = np.cumsum(steps) - steps
        tape = np.empty(len(boards), np.uint8)
        boards, moves = np.ascontiguousarray(boards), np.ascontiguousarray(moves)
        bad = int(encode(boards, moves, first, steps, np.ascontiguousarray(finals), tape))
        if bad >= 0:
            game = int(np.searchsorted(first, bad, "right")) - 1
            raise ReplayError(
                f"run {runs['run_id'][game]}, step {bad - first[game]}: move {moves[bad]} and one spawn do "
                f"not lead from board {boards[bad]:#018x} to the next board",
                path=self._directory,
                hint="store games that lack steps as rows (steps.npy), not on tape",
            )
        self.add(tape, runs, boards[first])

    def finish(self, facts: dict[str, Any], run_times: NDArray[np.void] | None = None) -> int:
        """Write headers, metadata (``rows``, ``runs``, ``storage`` added) and manifest; return the size."""
        runs = np.concatenate([np.empty(0, RUN_DTYPE), *self._runs])
        starts = np.concatenate([np.empty(0, np.uint64), *self._starts])
        blocks = self._tape.blocks
        files = {TAPE_NPY: self._tape.finish(), ANCHORS_NPY: self._anchors.finish()}
        facts = {**facts, "storage": TAPE, "rows": self.rows, "runs": len(runs)}
        how: dict[str, Any] = {"start_boards": starts, "run_times": run_times}
        return finish_session(self._directory, files, runs, blocks, facts, **how, anchor_rows=ANCHOR_ROWS)
