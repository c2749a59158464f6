"""The one decoding of a session on tape before it is published: checks, anchors, start boards.

Each game is decoded once, and compared with the rules and with what its worker reported: steps, score,
highest tile, end. The boards on the way are where the anchors come from. Games go through in pieces, so that
memory does not grow with the session.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from crc32c import crc32c

from tape2048.errors import BookkeepingError, TruncatedError
from tape2048.formats.session import FileEntry
from tape2048.tape.layout import ANCHORS_NPY, TAPE_HEADER_BYTES, TAPE_NPY, anchors_header

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

    from numpy.typing import NDArray

    from tape2048_recorder.recording.world import World

#: Rows of a piece: boards that the second-level cache holds. A single game may have more.
_PIECE_ROWS = 1 << 17


class Decoded(NamedTuple):
    """What a session on tape has beside its tape."""

    anchors: FileEntry
    start_boards: NDArray[np.uint64]  # u64[R], in the order of the runs


def decode_games(world: World, session: Path, runs: NDArray[np.void]) -> Generator[float, None, Decoded]:
    """Check the games of a staged session against its ``runs``, and write its anchors, piece by piece."""
    from tape2048.tape.checks import anchors_of, check_games, game_pieces
    from tape2048_recorder.game.engine import start_boards

    path = session / TAPE_NPY
    ends = np.cumsum(runs["rows"], dtype=np.uint64)
    if not np.array_equal(runs["first_row"], ends - runs["rows"]):
        raise BookkeepingError("its runs do not lie one after the other", path=path)
    starts = start_boards(np.ascontiguousarray(runs["seed"]))
    header = anchors_header(int(ends[-1]))
    checksum, size = crc32c(header), len(header)
    boards = np.empty(_PIECE_ROWS, np.uint64)
    files = world.files
    with (
        files.open_fd(path, os.O_RDONLY) as source,
        files.open_fd(session / ANCHORS_NPY, os.O_WRONLY | os.O_CREAT | os.O_EXCL) as target,
    ):
        files.write_all(target, header, 0)
        for piece, rows in game_pieces(runs, _PIECE_ROWS):
            first, end = rows.start, rows.stop
            if end - first > len(boards):
                boards = np.empty(end - first, np.uint64)
            tape = _read(world, source, first, end, path)
            checked = check_games(tape, runs[piece], starts[piece], boards)
            if checked.defects:
                defect = checked.defects[0]
                raise defect.error(runs[piece][defect.game], path)
            anchors = np.ascontiguousarray(anchors_of(checked.boards, first)).data
            files.write_all(target, anchors, size)
            checksum, size = crc32c(anchors, checksum), size + anchors.nbytes
            yield 0.0
        world.os.fsync(target)
    return Decoded(FileEntry(size, checksum), starts)


def _read(world: World, fd: int, first: int, end: int, path: Path) -> NDArray[np.uint8]:
    """Read rows of a tape."""
    tape = np.empty(end - first, np.uint8)
    done = 0
    while done < len(tape):
        count = world.os.preadv(fd, [tape[done:].data], TAPE_HEADER_BYTES + first + done)
        if count == 0:
            raise TruncatedError(
                "the tape ends before its last run", path=path, offset=TAPE_HEADER_BYTES + first + done
            )
        done += count
    return tape
