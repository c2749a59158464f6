"""Reader of a session's tape: decodes ranges of rows, single rows and whole games, and checks each step."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

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
from tape2048.session.blocks import file_blocks, open_checked
from tape2048.session.layout import MANIFEST, METADATA_DB, RULES_1, START_BOARDS, TAPE, Manifest
from tape2048.session.tape_layout import (
    ANCHOR_DTYPE,
    ANCHOR_ROWS,
    ANCHOR_ROWS_MAX,
    ANCHORS_NPY,
    GAME_STEPS_MAX,
    MOVE_BITS,
    TAPE_DTYPE,
    TAPE_HEADER_BYTES,
    TAPE_NPY,
    WIN_BIT,
    anchor_count,
)

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from numpy.typing import NDArray

    from tape2048.files.npy import Load
    from tape2048.session.metadata import Metadata

HINT = "restore the session from a copy"

_DIFFERS = (
    255  # a kind of defect, besides those of tape2048.session.tape_codec: the run table has another number
)


class Defect(NamedTuple):
    """A defect of a game; ``step`` is the number of steps for a defect after the last one.

    ``games`` counts games whose first defect is of this kind, including this game.
    """

    game: int
    step: int
    kind: type[FormatError]
    text: str
    games: int
    code: int

    def error(
        self, run: np.void, path: str | os.PathLike[str], data_offset: int = TAPE_HEADER_BYTES
    ) -> FormatError:
        offset = data_offset + int(run["first_row"]) + self.step
        more = f" ({self.games} runs like it)" if self.games > 1 else ""
        text = f"run {run['run_id']}, step {self.step}: {self.text}{more}"
        return self.kind(text, path=path, offset=offset, hint=HINT)


class Checked(NamedTuple):
    """The result of :func:`check_games`; ``boards`` is undefined in games with a defect."""

    boards: NDArray[np.uint64]
    finals: NDArray[np.uint64]
    defects: list[Defect]
    sound: NDArray[np.bool_]


def check_games(
    tape: NDArray[np.uint8],
    runs: NDArray[np.void],
    starts: NDArray[np.uint64],
    boards: NDArray[np.uint64] | None = None,
) -> Checked:
    """Decode whole games without the GIL, and compare them with the rules and with their run table.

    ``tape`` has these games one after the other, ``runs`` (``RUN_DTYPE[G]``) and ``starts`` (``u64[G]``) are
    theirs; ValueError if the runs do not cover the tape. ``boards`` is an output of at least n entries.
    """
    from tape2048.session.tape_codec import decode, judge

    games = len(runs)
    first = (runs["first_row"] - runs["first_row"][:1]).astype(np.int64)
    steps = runs["rows"].astype(np.int64)
    if not np.array_equal(np.append(first, len(tape)), np.append(0, np.cumsum(steps))[: games + 1]):
        raise ValueError(f"found {games} games that do not cover {len(tape)} bytes, one after the other")
    boards = np.empty(len(tape), np.uint64) if boards is None else boards[: len(tape)]
    starts = np.ascontiguousarray(starts)
    finals, scores, tiles = (np.empty(games, np.uint64) for _ in range(3))
    wrong, kinds, at = np.empty(games, np.uint8), np.empty(games, np.uint8), np.empty(games, np.int64)
    decode(tape, first, steps, starts, boards, finals, wrong)
    judge(tape, first, steps, starts, finals, wrong, scores, tiles, kinds, at)
    found = {"steps": steps, "score": scores, "highest_tile": tiles}
    differs = (kinds == 0) & np.any([runs[name] != values for name, values in found.items()], axis=0)
    kinds[differs] = _DIFFERS
    defects = []
    for kind in np.unique(kinds[kinds != 0]).tolist():
        alike = np.flatnonzero(kinds == kind)
        game = int(alike[0])
        step, row = int(at[game]), runs[game]
        if kind == _DIFFERS:
            name = next(name for name, values in found.items() if values[game] != row[name])
            error: type[FormatError] = BookkeepingError
            text = f"{name} is {found[name][game]}. The run table says {row[name]}"
        else:
            played = tape[first[game] : first[game] + steps[game]]
            error, text = _describe(kind, _board_at(played[:step], starts[game]), played[step:])
        defects.append(Defect(game, step, error, text, len(alike), kind))
    return Checked(boards, finals, defects, kinds == 0)


def anchors_of(
    boards: NDArray[np.uint64], first_row: int, anchor_rows: int = ANCHOR_ROWS
) -> NDArray[np.uint64]:
    """Return the anchors among the boards of consecutive rows from ``first_row`` on, as a view."""
    return boards[-first_row % anchor_rows :: anchor_rows]


def game_pieces(runs: NDArray[np.void], rows_max: int) -> Iterator[tuple[slice, slice]]:
    """Yield games and rows of pieces: whole games of at most ``rows_max`` rows, or a single longer game."""
    ends = (runs["first_row"] + runs["rows"]).astype(np.int64)
    first = begin = 0
    while first < len(ends):
        last = max(first + 1, int(np.searchsorted(ends, begin + rows_max, "right")))
        end = int(ends[last - 1])
        yield slice(first, last), slice(begin, end)
        first, begin = last, end


def anchor_error(  # noqa: PLR0917
    row: int, found: int, due: int, run: np.void, path: str | os.PathLike[str], offset: int
) -> BookkeepingError:
    return BookkeepingError(
        f"run {run['run_id']}, step {row - int(run['first_row'])}: the anchor of row {row} is {found:#018x}. "
        f"The tape leads to {due:#018x}",
        path=path,
        offset=offset,
        hint=HINT,
    )


def _board_at(tape: NDArray[np.uint8], start: np.uint64) -> np.uint64:
    from tape2048.session.tape_codec import decode

    final, wrong, boards = np.empty(1, np.uint64), np.empty(1, np.uint8), np.empty(len(tape), np.uint64)
    decode(tape, np.zeros(1, np.int64), np.array([len(tape)]), np.array([start]), boards, final, wrong)
    return final[0]  # type: ignore[no-any-return]


def _describe(kind: int, board: np.uint64, rest: NDArray[np.uint8]) -> tuple[type[FormatError], str]:
    """Describe a step that breaks the rules, with the board before it; ``rest`` starts with its byte."""
    from tape2048.game.rules import legal_mask, wins
    from tape2048.game.spawning import START_FAULTS, start_fault
    from tape2048.session import tape_codec as codec

    mask = int(legal_mask(board))
    legal = " or ".join(str(move) for move in range(4) if mask >> move & 1)
    if kind == codec.BAD_START:
        fault = START_FAULTS[start_fault(board)]
        return FieldError, f"start_board is {board:#018x}, from which no game can start: it {fault}"
    if kind == codec.BEFORE_END:
        rules = f": {RULES_1}" if any(wins(board, move) for move in range(4)) else ""
        return ReplayError, f"the game stops on board {board:#018x}, where move {legal} is legal{rules}"
    if kind == codec.AFTER_END:
        return ReplayError, f"the game continues after its end, on board {board:#018x}"
    byte = int(rest[0])
    if kind == codec.BIT_7:
        found = f"byte {byte:#04x} has bit 7 set; expected 0"
        if wins(board, byte & 3):
            expected = f"expected {byte & 3 | WIN_BIT:#04x} on board {board:#018x}"
            found = f"byte {byte:#04x}; {expected}: {RULES_1}"
        return FieldError, found
    if kind == codec.ILLEGAL_MOVE:
        return ReplayError, f"move {byte & 3} is illegal on board {board:#018x}; expected {legal}"
    cell = byte >> 2 & 15
    return ReplayError, f"a tile appears in cell {cell}, which is full after move {byte & 3} on {board:#018x}"


# Games whose start is compared with an anchor when a session is opened. Each reads a page.
_PROBED_GAMES = 8


class Tape:
    """The rows of a session on tape; see :func:`open_tape`.

    The board of a row is decoded from the nearest anchor or start of its game before it, and each step on the
    way is checked. If an anchor is wrong, but all steps from it are legal, only :meth:`boards` of rows before
    it and ``validate`` detect it. ``anchor_rows`` is a power of two, and ``runs`` cover the tape.
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
        self._games: tuple[NDArray[np.void], NDArray[np.uint64]] | Callable[[], Metadata] = runs, starts

    def _read_games(self) -> tuple[NDArray[np.void], NDArray[np.uint64]]:
        games = self._games
        if callable(games):
            games = self._games = tape_runs(games(), self._directory)
        return games

    def drop_runs(self, metadata: Callable[[], Metadata]) -> None:
        """Forget the run table and the first boards. ``metadata`` reads them when they are used again."""
        self._games = metadata
        vars(self).pop("first_rows", None)

    @property
    def runs(self) -> NDArray[np.void]:
        return self._read_games()[0]

    @property
    def starts(self) -> NDArray[np.uint64]:
        return self._read_games()[1]

    @cached_property
    def first_rows(self) -> NDArray[np.int64]:
        return self.runs["first_row"].astype(np.int64)

    @property
    def data(self) -> NDArray[np.uint8]:
        """The bytes of all rows, ``u8[N]``, read-only."""
        return self.memory[0]

    @property
    def anchors(self) -> NDArray[np.uint64]:
        """The boards of every K-th row, ``u64[ceil(N / K)]``, read-only."""
        return self.memory[1]

    def __len__(self) -> int:
        return len(self.memory[0])

    def moves(self, rows: slice | NDArray[np.int64]) -> NDArray[np.uint8]:
        return self.data[rows] & np.uint8(MOVE_BITS)

    def boards(self, first: int, end: int) -> NDArray[np.uint64]:
        """Return the boards of the rows in [first, end), 0 <= first <= end <= N: ``u64[n]``."""
        from tape2048.session.tape_codec import decode

        if first >= end:
            return np.empty(0, np.uint64)
        game = int(np.searchsorted(self.first_rows, first, "right")) - 1
        last = int(np.searchsorted(self.first_rows, end, "left"))
        begin, start = self._nearest(np.array([first]), np.array([game]))
        firsts = np.append(begin, self.first_rows[game + 1 : last]) - begin
        starts = np.append(start, self.starts[game + 1 : last])
        steps = np.diff(firsts, append=end - begin[0])
        boards = np.empty(end - int(begin[0]), np.uint64)
        finals, wrong = np.empty(len(steps), np.uint64), np.empty(len(steps), np.uint8)
        decode(self.data[int(begin[0]) : end], firsts, steps, starts, boards, finals, wrong)
        for bad in np.flatnonzero(wrong).tolist():
            self._raise_defect(game + bad)
        due = anchors_of(boards, int(begin[0]), self.anchor_rows)
        anchor = anchor_count(int(begin[0]), self.anchor_rows)
        differs = due != self.anchors[anchor : anchor + len(due)]
        if differs.any():
            row = (anchor + int(differs.argmax())) * self.anchor_rows
            self._raise_defect(int(np.searchsorted(self.first_rows, row, "right")) - 1)
        return boards[first - int(begin[0]) :]

    def boards_at(self, rows: NDArray[np.int64]) -> NDArray[np.uint64]:
        """Return the boards of single rows, all in [0, N): ``u64[n]``; errors are as for :meth:`boards`."""
        from tape2048.session.tape_codec import seek

        games = np.searchsorted(self.first_rows, rows, "right") - 1
        begin, starts = self._nearest(rows, games)
        boards, wrong = np.empty(len(rows), np.uint64), np.empty(len(rows), np.uint8)
        seek(self.data, begin, rows - begin, starts, boards, wrong)
        wrong |= boards == 0  # an anchor
        if wrong.any():
            self._raise_defect(int(games[int(wrong.argmax())]))
        return boards

    def states(self, game: int) -> NDArray[np.uint64]:
        """Return all boards of a game, by its ordinal in :attr:`runs`: ``u64[steps + 1]``."""
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
        anchor = rows // self.anchor_rows
        from_anchor = anchor * self.anchor_rows >= self.first_rows[games]
        begin = np.where(from_anchor, anchor * self.anchor_rows, self.first_rows[games])
        return begin, np.where(from_anchor, self.anchors[anchor], self.starts[games])

    def _raise_defect(self, game: int) -> None:
        """Raise the error of a game, unless its only fault is the valid last byte of a game with a 65536."""
        boards = self.states(game)[:-1]
        run, first, path = self.runs[game], int(self.first_rows[game]), self._directory / ANCHORS_NPY
        due = anchors_of(boards, first, self.anchor_rows)
        anchor = anchor_count(first, self.anchor_rows)
        differs = np.flatnonzero(due != self.anchors[anchor : anchor + len(due)])
        if not differs.size:
            if self.data[first + len(boards) - 1] & WIN_BIT:
                return
            raise ReplayError(f"run {run['run_id']} changed while it was read", path=path)
        at = int(differs[0])
        row = (anchor + at) * self.anchor_rows
        offset = self._offsets[1] + (anchor + at) * ANCHOR_DTYPE.itemsize
        raise anchor_error(row, self.anchors[anchor + at], due[at], run, path, offset)


def open_tape(directory: Path, metadata: Metadata, manifest: Manifest | None, load: Load) -> Tape:
    """Open the tape of a session, in time that grows with its runs and not with its rows."""
    anchor_rows = check_anchor_rows(directory, manifest)
    assert manifest is not None  # checked by check_anchor_rows(). The files have the manifest's sizes
    data = open_checked(directory / TAPE_NPY, [TAPE_DTYPE], load, metadata.blocks)
    path = directory / ANCHORS_NPY
    anchors = open_checked(path, [ANCHOR_DTYPE], load, file_blocks(path, manifest.files[ANCHORS_NPY]))
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
    runs, starts = tape_runs(metadata, directory)
    path = directory / ANCHORS_NPY
    check_anchor_count(len(anchors), len(data), anchor_rows, path)
    if offsets[1] % ANCHOR_DTYPE.itemsize:
        raise NpyError(
            f"the header has {offsets[1]} bytes; expected a multiple of 8, to align the anchors",
            path=path,
            offset=8,
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
    """Return the rows between anchors; raise ManifestError if the number is missing or invalid."""
    if manifest is None:
        raise ManifestError(
            f"found {TAPE_NPY} without {MANIFEST}, which has the number of rows between anchors",
            path=directory,
            hint="restore the manifest from a copy",
        )
    found = manifest.anchor_rows
    if found is None or not 1 <= found <= ANCHOR_ROWS_MAX or found & (found - 1):
        expected = f"expected a power of two up to {ANCHOR_ROWS_MAX}"
        raise ManifestError(f"anchor_rows is {found}; {expected}", path=directory / MANIFEST)
    return found


def check_anchor_count(anchors: int, rows: int, anchor_rows: int, path: Path) -> None:
    """Raise TruncatedError or NpyError unless there is an anchor for every ``anchor_rows`` rows."""
    expected = anchor_count(rows, anchor_rows)
    if anchors != expected:
        kind = TruncatedError if anchors < expected else NpyError
        raise kind(f"found {anchors} anchors for {rows} rows, expected {expected}", path=path, offset=0)


def tape_runs(metadata: Metadata, directory: Path) -> tuple[NDArray[np.void], NDArray[np.uint64]]:
    """Return the run table of a tape by ``first_row``, and the start boards, after :func:`check_runs`."""
    path = directory / METADATA_DB
    if metadata.start_boards is None:
        raise SchemaError(
            "the table runs lacks first_row, rows or start_board, which a session on tape needs", path=path
        )
    if metadata.session.get("storage") != TAPE:
        found = f"the fact storage is {metadata.session.get('storage')!r} in a session with {TAPE_NPY}"
        raise SchemaError(f"{found}; expected {TAPE!r}", path=path)
    runs, starts = metadata.runs, metadata.start_boards
    order = np.argsort(runs["first_row"], kind="stable")
    if (order[1:] < order[:-1]).any():
        runs, starts = runs[order], starts[order]
    check_runs(runs, path)
    if START_BOARDS not in metadata.session:
        check_two_tiles(runs, starts, path)
    return runs, starts


def check_runs(runs: NDArray[np.void], path: Path | str) -> None:
    """Raise BookkeepingError unless each run has a row for each step, and a possible number of steps."""
    rows, steps = runs["rows"], runs["steps"]
    wrong = np.flatnonzero((rows != steps) | (rows > GAME_STEPS_MAX) | (rows == 0))
    if wrong.size:
        run = runs[wrong[0]]
        found = f"run {run['run_id']} has {run['rows']} rows for {run['steps']} steps"
        expected = f"expected equal numbers from 1 to {GAME_STEPS_MAX}"
        raise BookkeepingError(f"{found}; {expected}", path=path)


def check_two_tiles(runs: NDArray[np.void], starts: NDArray[np.uint64], path: Path | str) -> None:
    """Raise FieldError unless every start board has two tiles, each a 2 or a 4."""
    # Two bits are set, each the first or the second of its nibble, and not both in one nibble.
    rest = starts & (starts - np.uint64(1))
    two = (rest != 0) & (rest & (rest - np.uint64(1)) == 0)
    small = (starts & np.uint64(0xCCCCCCCCCCCCCCCC)) == 0
    apart = starts & starts >> np.uint64(1) & np.uint64(0x1111111111111111) == 0
    wrong = np.flatnonzero(~(two & small & apart))
    if wrong.size:
        found = f"start_board is {starts[wrong[0]]:#018x}; expected two tiles, each a 2 or a 4"
        raise FieldError(f"run {runs['run_id'][wrong[0]]}, step 0: {found}", path=path, hint=HINT)
