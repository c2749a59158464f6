"""Writer of a session on tape from games in memory."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from tape2048.errors import ReplayError
from tape2048.formats.metadata import finish_session
from tape2048.formats.session import (
    ANCHOR_DTYPE,
    ANCHOR_ROWS,
    ANCHORS_NPY,
    BLOCK_DTYPE,
    RUN_DTYPE,
    TAPE,
    TAPE_HEADER_BYTES,
    TAPE_NPY,
    FileEntry,
    anchors_header,
    tape_header,
)
from tape2048.io.durable import open_fd, write_all
from tape2048.io.reading import crc32c, crc32c_combine
from tape2048.tape.reader import anchors_of, check_games

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

#: Rows of a block, as the recorder writes them.
BLOCK_ROWS = 262_144


class TapeWriter:
    """The files of one unpublished session on tape, game by game. A context manager.

    Every game is decoded once when it is added, for its anchors, and compared with the rules and its row of
    the run table. Errors of the operating system are OSError.

    Args:
        directory: exists, and has neither tape nor anchors.

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

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._open = contextlib.ExitStack()
        self._fds: list[int] = []
        self._runs: list[NDArray[np.void]] = []
        self._starts: list[NDArray[np.uint64]] = []
        self._blocks: list[tuple[int, int, int]] = []  # first row, rows, checksum
        self._anchors_crc = 0
        self._anchors = 0
        self.rows = 0

    def __enter__(self) -> Self:
        for name in (TAPE_NPY, ANCHORS_NPY):
            opened = open_fd(self._directory / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
            self._fds.append(self._open.enter_context(opened))
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def add(self, tape: NDArray[np.uint8], runs: NDArray[np.void], starts: NDArray[np.uint64]) -> None:
        """Append whole games.

        Args:
            tape: ``u8[n]``, the bytes of the games, one after the other.
            runs: ``RUN_DTYPE[G]``, their rows of the run table; ``first_row`` is set here.
            starts: ``u64[G]``, their first boards.

        Raises:
            FormatError: the first defect, as for :func:`check_games`.
        """
        runs = runs.copy()
        runs["first_row"] = np.uint64(self.rows) + np.cumsum(runs["rows"], dtype=np.uint64) - runs["rows"]
        checked = check_games(tape, runs, starts)
        for defect in checked.defects:
            raise defect.error(runs[defect.game], self._directory / TAPE_NPY)
        tape_fd, anchors_fd = self._fds
        write_all(tape_fd, tape.data, TAPE_HEADER_BYTES + self.rows)
        anchors = np.ascontiguousarray(anchors_of(checked.boards, self.rows)).view(np.uint8)
        write_all(anchors_fd, anchors.data, TAPE_HEADER_BYTES + self._anchors * ANCHOR_DTYPE.itemsize)
        self._anchors_crc = crc32c(anchors.data, self._anchors_crc)
        self._anchors += len(anchors) // ANCHOR_DTYPE.itemsize
        rest = tape
        while len(rest):
            if not self._blocks or self._blocks[-1][1] == BLOCK_ROWS:
                self._blocks.append((self.rows + len(tape) - len(rest), 0, 0))
            first, rows, checksum = self._blocks[-1]
            piece = rest[: BLOCK_ROWS - rows]
            self._blocks[-1] = first, rows + len(piece), crc32c(piece.data, checksum)
            rest = rest[len(piece) :]
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
        """Append whole games from their boards.

        Args:
            boards: ``u64[n]``, the board before each step of each game, one game after the other.
            moves: ``u8[n]``.
            finals: ``u64[G]``, the board after the last step of each game.
            runs: ``RUN_DTYPE[G]``, as for :meth:`add`.

        Raises:
            ReplayError: a run has no steps, or no single spawn leads from a board and its move to the next.
            FormatError: as for :meth:`add`.
        """
        from tape2048.tape.codec import encode

        steps = runs["rows"].astype(np.int64)
        if not steps.all():
            raise ReplayError(
                f"run {runs['id'][steps == 0][0]} has no steps; expected a game up to its end",
                path=self._directory,
            )
        first = np.cumsum(steps) - steps
        tape = np.empty(len(boards), np.uint8)
        boards, moves = np.ascontiguousarray(boards), np.ascontiguousarray(moves)
        bad = int(encode(boards, moves, first, steps, np.ascontiguousarray(finals), tape))
        if bad >= 0:
            game = int(np.searchsorted(first, bad, "right")) - 1
            raise ReplayError(
                f"run {runs['id'][game]}, step {bad - first[game]}: move {moves[bad]} and one spawn do not "
                f"lead from board {boards[bad]:#018x} to the next one",
                path=self._directory,
                hint="games with gaps stay in steps.npy",
            )
        self.add(tape, runs, boards[first])

    def finish(self, facts: dict[str, Any]) -> int:
        """Write headers, metadata and manifest, and flush all files.

        Args:
            facts: content of the table ``session``; ``rows``, ``runs`` and ``storage`` are set here.

        Returns:
            The size of all files.
        """
        runs = np.concatenate([np.empty(0, RUN_DTYPE), *self._runs])
        starts = np.concatenate([np.empty(0, np.uint64), *self._starts])
        blocks = np.array(self._blocks, BLOCK_DTYPE)
        heads = tape_header(self.rows), anchors_header(self.rows)
        for fd, head in zip(self._fds, heads, strict=True):
            write_all(fd, head, 0)
            os.fsync(fd)
        tape_crc = crc32c(heads[0])
        for _, rows, checksum in self._blocks:
            tape_crc = crc32c_combine(tape_crc, checksum, rows)
        anchor_bytes = self._anchors * ANCHOR_DTYPE.itemsize
        anchors_crc = crc32c_combine(crc32c(heads[1]), self._anchors_crc, anchor_bytes)
        files = {
            TAPE_NPY: FileEntry(TAPE_HEADER_BYTES + self.rows, tape_crc),
            ANCHORS_NPY: FileEntry(TAPE_HEADER_BYTES + anchor_bytes, anchors_crc),
        }
        facts = {**facts, "storage": TAPE, "rows": self.rows, "runs": len(runs)}
        return finish_session(
            self._directory, files, runs, blocks, facts, start_boards=starts, anchor_rows=ANCHOR_ROWS
        )
