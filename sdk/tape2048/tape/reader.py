"""Reader of a session's tape: boards of ranges and of single rows, each step checked as it is decoded."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tape2048.errors import (
    BookkeepingError,
    FieldError,
    FormatError,
    ManifestError,
    NpyError,
    ReplayError,
    SchemaError,
    TruncatedError,
)
from tape2048.formats.npy import open_rows
from tape2048.formats.session import MANIFEST, METADATA_DB
from tape2048.tape.checks import HINT, anchor_error, anchors_of, check_games, not_a_start
from tape2048.tape.layout import (
    ANCHOR_DTYPE,
    ANCHOR_ROWS_MAX,
    ANCHORS_NPY,
    GAME_STEPS_MAX,
    MOVE_BITS,
    TAPE,
    TAPE_DTYPE,
    TAPE_NPY,
    anchor_count,
)

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from tape2048.formats.metadata import Metadata
    from tape2048.formats.npy import Load
    from tape2048.formats.session import Manifest

# Games whose start is compared with an anchor when a session is opened, at a page each.
_PROBED_GAMES = 8


class Tape:
    """The rows of a session on tape; made by :func:`open_tape`.

    A row's board is decoded from the nearer of its anchor and its game's start, and each step on the way is
    checked. An anchor that is wrong, but from which every step is legal, shows only in :meth:`boards` of
    rows before it, and in ``validate``.

    Attributes:
        memory: :attr:`data` and :attr:`anchors`, for their addresses.
        anchor_rows: K, a power of two.
        runs: ``RUN_DTYPE[G]`` by ``first_row``; their rows tile the tape.
        starts: ``u64[G]``, the first board of each.
        first_rows: ``i64[G]``, the first row of each.
    """

    def __init__(  # noqa: PLR0917
        self,
        directory: Path,
        data: NDArray[np.uint8],
        anchors: NDArray[np.uint64],
        anchor_rows: int,
        runs: NDArray[np.void],
        starts: NDArray[np.uint64],
        offsets: tuple[int, int],
    ) -> None:
        self._directory = directory
        self._offsets = offsets
        self.memory = data, anchors
        self.anchor_rows = anchor_rows
        self.runs = runs
        self.starts = starts
        self.first_rows = runs["first_row"].astype(np.int64)

    @property
    def data(self) -> NDArray[np.uint8]:
        """The bytes of all rows, ``u8[N]``, read-only."""
        return self.memory[0]

    @property
    def anchors(self) -> NDArray[np.uint64]:
        """Boards of every K-th row, ``u64[ceil(N / K)]``, read-only."""
        return self.memory[1]

    def __len__(self) -> int:
        """Number of rows, N."""
        return len(self.memory[0])

    def moves(self, rows: slice | NDArray[np.int64]) -> NDArray[np.uint8]:
        """Return the moves of some rows: ``u8[n]``, a new array."""
        return self.data[rows] & np.uint8(MOVE_BITS)

    def boards(self, first: int, end: int) -> NDArray[np.uint64]:
        """Decode the boards of the rows in [first, end), 0 <= first <= end <= N: ``u64[n]``."""
        from tape2048.tape.codec import decode

        if first >= end:
            return np.empty(0, np.uint64)
        game = int(np.searchsorted(self.first_rows, first, "right")) - 1
        last = int(np.searchsorted(self.first_rows, end, "left"))
        begin, start = self._nearest(np.array([first]), np.array([game]))
        places = np.append(begin, self.first_rows[game + 1 : last]) - begin
        starts = np.append(start, self.starts[game + 1 : last])
        steps = np.diff(places, append=end - begin[0])
        boards = np.empty(end - int(begin[0]), np.uint64)
        finals, wrong = np.empty(len(steps), np.uint64), np.empty(len(steps), np.uint8)
        decode(self.data[int(begin[0]) : end], places, steps, starts, boards, finals, wrong)
        if wrong.any():
            raise self._defect(game + int(wrong.argmax()))
        due = anchors_of(boards, int(begin[0]), self.anchor_rows)
        anchor = anchor_count(int(begin[0]), self.anchor_rows)
        differs = due != self.anchors[anchor : anchor + len(due)]
        if differs.any():
            row = (anchor + int(differs.argmax())) * self.anchor_rows
            raise self._defect(int(np.searchsorted(self.first_rows, row, "right")) - 1)
        return boards[first - int(begin[0]) :]

    def boards_at(self, rows: NDArray[np.int64]) -> NDArray[np.uint64]:
        """Decode the boards of single rows, all in [0, N): ``u64[n]``; errors as for :meth:`boards`."""
        from tape2048.tape.codec import seek

        games = np.searchsorted(self.first_rows, rows, "right") - 1
        begin, starts = self._nearest(rows, games)
        boards, wrong = np.empty(len(rows), np.uint64), np.empty(len(rows), np.uint8)
        seek(self.data, begin, rows - begin, starts, boards, wrong)
        if wrong.any():
            raise self._defect(int(games[int(wrong.argmax())]))
        return boards

    def states(self, game: int) -> NDArray[np.uint64]:
        """Decode a whole game, by its ordinal in :attr:`runs`: ``u64[steps + 1]``, the final board last."""
        first = int(self.first_rows[game])
        own = slice(game, game + 1)
        tape = self.data[first : first + int(self.runs["rows"][game])]
        checked = check_games(tape, self.runs[own], self.starts[own])
        for defect in checked.defects:
            raise defect.error(self.runs[game], self._directory / TAPE_NPY, self._offsets[0])
        return np.append(checked.boards, checked.finals)

    def _nearest(
        self, rows: NDArray[np.int64], games: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.uint64]]:
        """Return the last row with a known board at or before each row, and that board."""
        anchor = rows // self.anchor_rows
        from_anchor = anchor * self.anchor_rows >= self.first_rows[games]
        begin = np.where(from_anchor, anchor * self.anchor_rows, self.first_rows[games])
        return begin, np.where(from_anchor, self.anchors[anchor], self.starts[games])

    def _defect(self, game: int) -> FormatError:
        """Find what is wrong with a game, by decoding all of it."""
        try:
            boards = self.states(game)[:-1]
        except FormatError as error:
            return error
        run, first, path = self.runs[game], int(self.first_rows[game]), self._directory / ANCHORS_NPY
        due = anchors_of(boards, first, self.anchor_rows)
        anchor = anchor_count(first, self.anchor_rows)
        differs = np.flatnonzero(due != self.anchors[anchor : anchor + len(due)])
        if not differs.size:
            return ReplayError(f"run {run['id']} changed while it was read", path=path)
        at = int(differs[0])
        row = (anchor + at) * self.anchor_rows
        offset = self._offsets[1] + (anchor + at) * ANCHOR_DTYPE.itemsize
        return anchor_error(row, self.anchors[anchor + at], due[at], run, path, offset)


def open_tape(directory: Path, metadata: Metadata, manifest: Manifest | None, load: Load) -> Tape:
    """Open the tape of a session, in time proportional to its runs."""
    anchor_rows = check_anchor_rows(directory, manifest)
    data = open_rows(directory / TAPE_NPY, [TAPE_DTYPE], load)
    anchors = open_rows(directory / ANCHORS_NPY, [ANCHOR_DTYPE], load)
    assert manifest is not None  # checked above; the files have the manifest's sizes
    sizes = manifest.files[TAPE_NPY].bytes, manifest.files[ANCHORS_NPY].bytes
    offsets = sizes[0] - data.nbytes, sizes[1] - anchors.nbytes
    return make_tape(directory, metadata, data, anchors, anchor_rows, offsets)


def make_tape(  # noqa: PLR0917
    directory: Path,
    metadata: Metadata,
    data: NDArray[np.uint8],
    anchors: NDArray[np.uint64],
    anchor_rows: int,
    offsets: tuple[int, int],
) -> Tape:
    """Check that a session's parts fit together, and make its tape; errors as for :func:`open_tape`."""
    runs, starts = tape_runs(metadata, directory)
    path = directory / ANCHORS_NPY
    check_anchor_count(len(anchors), len(data), anchor_rows, path)
    if offsets[1] % ANCHOR_DTYPE.itemsize:
        raise NpyError(
            "the header's length is not a multiple of 8 bytes, which aligns the anchors", path=path, offset=8
        )
    at_anchor = np.flatnonzero(runs["first_row"] % np.uint64(anchor_rows) == 0)
    for game in at_anchor[: _PROBED_GAMES - 1].tolist() + at_anchor[-1:].tolist():
        row = int(runs["first_row"][game])
        anchor = row // anchor_rows
        if anchor < len(anchors) and anchors[anchor] != starts[game]:
            offset = offsets[1] + anchor * ANCHOR_DTYPE.itemsize
            raise anchor_error(row, anchors[anchor], starts[game], runs[game], path, offset)
    return Tape(directory, data, anchors, anchor_rows, runs, starts, offsets)


def check_anchor_rows(directory: Path, manifest: Manifest | None) -> int:
    """Return the rows between anchors; raise ManifestError without a valid number."""
    if manifest is None:
        raise ManifestError(
            f"no {MANIFEST} beside {TAPE_NPY}",
            path=directory,
            hint="restore it from a copy: it says how many rows lie between anchors",
        )
    found = manifest.anchor_rows
    if found is None or not 1 <= found <= ANCHOR_ROWS_MAX or found & (found - 1):
        expected = f"expected a power of two up to {ANCHOR_ROWS_MAX}"
        raise ManifestError(f"anchor_rows is {found}; {expected}", path=directory / MANIFEST)
    return found


def check_anchor_count(anchors: int, rows: int, anchor_rows: int, path: Path) -> None:
    """Raise TruncatedError or NpyError unless there is an anchor in every ``anchor_rows`` rows."""
    expected = anchor_count(rows, anchor_rows)
    if anchors != expected:
        kind = TruncatedError if anchors < expected else NpyError
        raise kind(f"{anchors} anchors for {rows} rows; expected {expected}", path=path, offset=0)


def tape_runs(metadata: Metadata, directory: Path) -> tuple[NDArray[np.void], NDArray[np.uint64]]:
    """Return the run table of a tape by ``first_row``, and the start boards, after :func:`check_runs`."""
    path = directory / METADATA_DB
    if metadata.start_boards is None:
        raise SchemaError(
            f"the table runs lacks first_row, rows or start_board, which {TAPE_NPY} needs", path=path
        )
    if metadata.session.get("storage") != TAPE:
        found = f"the fact storage is {metadata.session.get('storage')!r} beside {TAPE_NPY}"
        raise SchemaError(f"{found}; expected {TAPE!r}", path=path)
    runs, starts = metadata.runs, metadata.start_boards
    order = np.argsort(runs["first_row"], kind="stable")
    if (order[1:] < order[:-1]).any():
        runs, starts = runs[order], starts[order]
    check_runs(runs, starts, path)
    return runs, starts


def check_runs(runs: NDArray[np.void], starts: NDArray[np.uint64], path: Path | str) -> None:
    """Check the run table of a tape, as far as it can be checked alone."""
    rows, steps = runs["rows"], runs["steps"]
    wrong = np.flatnonzero((rows != steps) | (rows > GAME_STEPS_MAX) | (rows == 0))
    if wrong.size:
        run = runs[wrong[0]]
        found = f"run {run['id']} has {run['rows']} rows for {run['steps']} steps"
        expected = f"expected one for each step, and 1 to {GAME_STEPS_MAX}"
        raise BookkeepingError(f"{found}; {expected}", path=path)
    # Two bits are set, each the first or the second of its nibble, and not both of one.
    rest = starts & (starts - np.uint64(1))
    two = (rest != 0) & (rest & (rest - np.uint64(1)) == 0)
    small = (starts & np.uint64(0xCCCCCCCCCCCCCCCC)) == 0
    apart = starts & starts >> np.uint64(1) & np.uint64(0x1111111111111111) == 0
    wrong = np.flatnonzero(~(two & small & apart))
    if wrong.size:
        raise FieldError(
            f"run {runs['id'][wrong[0]]}, step 0: {not_a_start(starts[wrong[0]])}", path=path, hint=HINT
        )
