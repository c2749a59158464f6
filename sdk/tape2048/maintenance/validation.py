"""Complete validation of a session.

Opening a session makes only cheap checks. Validation makes all others: it verifies every checksum, compares
every row with the run table, checks the columns, and reports unknown files. Files are read in chunks, not
mapped: if another process truncates a file, validation reports an error instead of ending with SIGBUS.
Memory: the run table and one chunk.
"""

from __future__ import annotations

import contextlib
import functools
import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, ParamSpec, TypeAlias, TypeVar

import numpy as np

from tape2048.base.findings import Finding, Report
from tape2048.base.text import counted, unix_s
from tape2048.errors import (
    BookkeepingError,
    ChecksumError,
    FormatError,
    ManifestError,
    NpyError,
    SchemaError,
    TapeError,
)
from tape2048.files.npy import NpyHeader, read_header
from tape2048.files.reading import crc32c, open_regular, read_exactly
from tape2048.session.blocks import BlockSums, check_blocks
from tape2048.session.columns import Columns, check_values, column_files, find_columns, find_drafts
from tape2048.session.directory import PLAIN_NAME, list_names
from tape2048.session.foreign import ForeignRows, Layout
from tape2048.session.layout import MANIFEST, METADATA_DB, SAMPLE_RATE_MAX, START_BOARDS, STEP_DTYPES
from tape2048.session.metadata import Metadata, packed_defect
from tape2048.session.run_table import Owners, from_run_table, ordinals_of
from tape2048.session.session_files import SessionFiles
from tape2048.session.tape_layout import ANCHOR_DTYPE, TAPE_DTYPE, anchor_count
from tape2048.session.tape_reader import (
    Defect,
    anchor_error,
    anchors_of,
    check_anchor_count,
    check_anchor_rows,
    check_games,
    game_pieces,
    tape_runs,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray


_EXPONENT_MAX = 15
#: For rules under which a game continues after two 32768 tiles merge. No game reaches 2**18.
_FOREIGN_EXPONENT_MAX = 17
_ACTION_MAX = 3
_OF_MOVES = np.dtype(("<f4", (4,)))

#: A row of a run: whether a session serves it, its step, its board, and its move (above 3: unknown).
_ROW_DTYPE = np.dtype([("served", "?"), ("step", "<i8"), ("board", "<u8"), ("move", "u1")])

#: Prefix of the fact ``engine`` in sessions of this project's recorder. Other programs may count scores
#: differently.
_RECORDER = "tape2048/"
#: Runs whose outcomes are computed together.
_RUNS_AT_ONCE = 1 << 15


class Place(NamedTuple):
    """The place of some rows: number of the first row, its file, its byte offset, and bytes of a row."""

    first: int
    path: Path
    offset: int
    row_bytes: int

    def plus(self, rows: int) -> Place:
        return self._replace(first=self.first + rows, offset=self.offset + rows * self.row_bytes)


class RowChecks:
    """A comparison of rows with the run table. Update it with chunks in row order, then get the defects.

    If the run table has consistent ranges of rows, each row is compared with them. Otherwise, a row belongs
    to the run of its ``run_id``, as the next row of that run. ``rows_beyond`` counts rows with a tile above
    32768, if another program's rules allow it.
    """

    def __init__(
        self, metadata: Metadata, rows: int, path: Path, layout: Layout, *, whole: bool, foreign: bool
    ) -> None:
        self._path = path
        self._layout = layout
        self._plays = foreign
        self._exponent_max = _FOREIGN_EXPONENT_MAX if foreign else _EXPONENT_MAX
        self._defects: list[TapeError] = []
        self._bad_rows: dict[str, tuple[int, str, Place]] = {}
        self._owners: Owners | None = None
        self._runs = metadata.runs
        self._has_rows = metadata.has_rows
        if metadata.has_rows:
            try:
                self._runs, self._owners = from_run_table(metadata.runs, rows, path)
            except BookkeepingError as error:
                self._defects.append(error)
        self._rate = metadata.session.get("sample_rate")
        if self._rate is not None and (type(self._rate) is not int or not 1 <= self._rate <= SAMPLE_RATE_MAX):
            found = f"sample_rate is {self._rate!r}; expected a whole number from 1 to {SAMPLE_RATE_MAX}"
            self._defects.append(SchemaError(found, path=path))
            self._rate = None
        self._by_id = np.argsort(self._runs["run_id"], kind="stable")
        self._counts = np.zeros(len(self._runs), np.int64)
        self._highest = np.zeros(len(self._runs), np.uint8)
        recorded = self._owners is not None and str(metadata.session.get("engine")).startswith(_RECORDER)
        #: The last row of each recorded run: its board, and its action (above 3 if rows have none).
        self._last = np.full((len(self._runs), 17), 255, np.uint8) if recorded else None
        #: The first board of each run, if games may start from any board.
        self._first = None
        if recorded and START_BOARDS in metadata.session:
            self._first = np.zeros((len(self._runs), 16), np.uint8)
        #: The last row of each run of another program so far.
        self._before = np.zeros(len(self._runs) if self._plays else 0, _ROW_DTYPE)
        self._rows = rows
        self._whole = whole
        self.rows_without_run = self.rows_beyond = 0

    def update(self, given: NDArray[np.void], place: Place) -> None:
        if len(given) == 0:
            return
        chunk, bad_mask = self._layout.steps(given)
        self._note("mask", bad_mask, place, lambda at: self._layout.contradiction(given[at]))
        ids, steps, exps = chunk["run_id"], chunk["step_idx"], np.ascontiguousarray(chunk["exps"])
        owner = self._owner(np.ascontiguousarray(ids), place)
        number = self._number(owner, place.first)
        second = np.flatnonzero(number == 1)
        if self._rate is None and second.size:  # without the fact, the step of a run's second row is the rate
            self._rate = max(1, int(steps[second[0]]))
        expected = number * (self._rate or 1)
        self._note(
            "step_idx",
            (owner >= 0) & (steps != expected),
            place,
            lambda at: f"has step_idx {steps[at]}, expected {expected[at]}",
        )
        halves = exps.view(np.uint64)
        served = owner >= 0
        empty = served & ((halves[:, 0] | halves[:, 1]) == 0)
        self._note("empty", empty, place, lambda _: "has an empty board")
        if exps.max() > _EXPONENT_MAX:
            bad_cell = served & (exps > self._exponent_max).any(axis=1)
            above = f"above {self._exponent_max}"
            self._note("exps", bad_cell, place, lambda at: f"has exponents {exps[at].tolist()}, {above}")
            self.rows_beyond += int((served & (exps > _EXPONENT_MAX).any(axis=1)).sum())
        if "action" in (chunk.dtype.names or ()):
            action = chunk["action"]
            bad_action = served & (action > _ACTION_MAX)
            self._note("action", bad_action, place, lambda at: f"has action {action[at]}, above 3")
        if self._plays and len(self._runs):
            self._check_rules(given, chunk, owner, place)
        begins = np.concatenate(([0], np.flatnonzero(owner[1:] != owner[:-1]) + 1))
        highest = np.maximum.reduceat(exps.reshape(-1), begins * 16)
        known = owner[begins] >= 0
        np.maximum.at(self._highest, owner[begins][known], highest[known])
        if self._first is not None:
            begun = np.flatnonzero((number == 0) & served)
            self._first[owner[begun]] = exps[begun]
        if self._last is not None:
            ends = np.append(begins[1:], len(owner)) - 1
            self._last[owner[ends], :16] = exps[ends]
            if "action" in (chunk.dtype.names or ()):
                self._last[owner[ends], 16] = chunk["action"][ends]

    def _check_rules(
        self, given: NDArray[np.void], chunk: NDArray[np.void], owner: NDArray[np.int64], place: Place
    ) -> None:
        """Compare rows of another program, which have no checksums, with the rules and the previous rows."""
        from tape2048.game.moves import UNKNOWN, recover
        from tape2048.game.rules import exps_to_boards, legal_masks

        exps, names = np.ascontiguousarray(chunk["exps"]), chunk.dtype.names or ()
        rows = np.empty(len(chunk), _ROW_DTYPE)
        rows["served"] = (owner >= 0) & (exps <= _EXPONENT_MAX).all(axis=1)
        rows["board"], rows["step"] = exps_to_boards(np.minimum(exps, _EXPONENT_MAX)), chunk["step_idx"]
        rows["move"] = chunk["action"] if "action" in names else UNKNOWN
        legal, board = legal_masks(np.ascontiguousarray(rows["board"])), rows["board"]
        known = rows["move"] <= _ACTION_MAX
        illegal = rows["served"] & known & (legal >> np.minimum(rows["move"], _ACTION_MAX) & 1 == 0)
        self._note(
            "illegal", illegal, place,
            lambda at: f"has move {rows['move'][at]}, which is illegal on its board {board[at]:#018x}",
        )  # fmt: skip
        types = {name: given.dtype[name] for name in given.dtype.names or ()}
        if types.get("max_rank") == np.uint8:
            rank, high = given["max_rank"], exps.max(axis=1)
            most = _EXPONENT_MAX + 1  # that a mask can tell
            self._note(
                "max_rank", (owner >= 0) & (np.minimum(rank, most) != np.minimum(high, most)), place,
                lambda at: f"has max_rank {rank[at]}; the highest exponent of its board is {high[at]}",
            )  # fmt: skip
        if types.get("seed") in (np.uint32, np.uint64):
            seed = given["seed"]  # 0 in rows of converted runs
            due = self._runs["seed"][owner].astype(seed.dtype) if len(self._runs) else seed
            self._note(
                "seed", (owner >= 0) & (seed != 0) & (seed != due), place,
                lambda at: f"has seed {seed[at]}; the run table has {due[at]}",
            )  # fmt: skip
        if types.get("ev_legal") == np.uint8:
            said = given["ev_legal"]  # 0 where no move has a value
            if types.get("branch_evs") == _OF_MOVES:
                values = given["branch_evs"]
                bits = said[:, None] >> np.arange(4, dtype=np.uint8) & 1
                self._note(
                    "branch_evs", (owner >= 0) & (~np.isfinite(values) & (bits > 0)).any(axis=1), place,
                    lambda at: f"has branch_evs {values[at].tolist()} with ev_legal {said[at]:#06b}; "
                    "expected finite numbers",
                )  # fmt: skip
            self._note(
                "ev_legal", rows["served"] & (said != 0) & (said != legal), place,
                lambda at: f"has ev_legal {said[at]:#06b}; its board {board[at]:#018x} has {legal[at]:#06b}",
            )  # fmt: skip
        order = np.argsort(owner, kind="stable")
        run, before = owner[order], self._before[owner]
        same = run[1:] == run[:-1]
        before[order[1:][same]] = rows[order[:-1][same]]
        self._before[run[run >= 0]] = rows[order[run >= 0]]  # of several rows, the last stays
        pairs = np.flatnonzero(rows["served"] & before["served"] & (rows["step"] == before["step"] + 1))
        if not len(pairs):
            return
        states = np.stack((before["board"][pairs], rows["board"][pairs]), axis=1).reshape(-1)
        moves = np.repeat(before["move"][pairs], 2)[:-1]  # odd places, between two pairs, are dropped below
        moves = recover(states, moves if "action" in names else None).moves[::2]
        astray = np.zeros(len(rows), np.bool_)
        astray[pairs] = moves == UNKNOWN
        self._note(
            "astray", astray, place,
            lambda at: f"has board {board[at]:#018x}. No move and new tile lead there from the previous row "
            f"of its run, {before['board'][at]:#018x}",
        )  # fmt: skip

    def defects(self) -> Iterator[TapeError]:
        """Yield all defects, after the last update."""
        yield from self._defects
        if not self._whole and (self.rows_without_run < self._rows or not len(self._runs)):
            self._bad_rows.pop("unknown", None)  # not a defect: a session opens without these rows
        for count, text, place in self._bad_rows.values():
            more = f" ({count} rows like it)" if count > 1 else ""
            yield BookkeepingError(f"{text}{more}", path=place.path, offset=place.offset)
        yield from self._run_defects()

    def _note(self, kind: str, bad: NDArray[np.bool_], place: Place, describe: Callable[[int], str]) -> None:
        count = int(np.count_nonzero(bad))
        if kind in self._bad_rows:
            before, text, first = self._bad_rows[kind]
            self._bad_rows[kind] = (before + count, text, first)
        elif count:
            at = int(bad.argmax())
            first = place.plus(at)
            self._bad_rows[kind] = (count, f"row {first.first} {describe(at)}", first)

    def _owner(self, ids: NDArray[np.uint64], place: Place) -> NDArray[np.int64]:
        """Return the ordinal of each row's run; -1 if the run is not in the table."""
        if self._owners is not None:
            owner = self._owners.between(place.first, place.first + len(ids))
            due = self._runs["run_id"][owner]
            self._note("run_id", ids != due, place, lambda at: f"has run_id {ids[at]}, expected {due[at]}")
            return owner
        owner = ordinals_of(self._runs["run_id"], ids, self._by_id)
        unknown = owner < 0
        self.rows_without_run += int(np.count_nonzero(unknown))
        self._note(
            "unknown", unknown, place, lambda at: f"has run_id {ids[at]}, which is not in the run table"
        )
        return owner

    def _number(self, owner: NDArray[np.int64], first: int) -> NDArray[np.int64]:
        """Return the 0-based number of each row within its run; 0 without a run."""
        known = owner[owner >= 0]
        added = np.bincount(known, minlength=len(self._runs))
        if self._owners is not None:
            number = np.arange(first, first + len(owner)) - self._runs["first_row"][owner].astype(np.int64)
        else:
            # In a stable sort by run, a row's number is its distance from the first row of its run.
            order = np.argsort(owner, kind="stable")[len(owner) - len(known) :]
            begins = np.cumsum(added) - added
            by_run = owner[order]
            number = np.zeros(len(owner), np.int64)
            number[order] = np.arange(len(known)) - begins[by_run] + self._counts[by_run]
        self._counts += added
        return number

    def _run_defects(self) -> Iterator[BookkeepingError]:
        runs, counts, rate = self._runs, self._counts, self._rate or 1
        steps, tile = runs["steps"].astype(np.int64), runs["highest_tile"].astype(np.int64)
        due = -(-steps // rate)
        seen = np.int64(1) << np.minimum(self._highest, 30).astype(np.int64)
        # A move can double the highest tile of the last board, which is known if every row was kept.
        beyond = (tile > 2 * seen) & (rate == 1) & (counts == steps) & (counts > 0)
        not_a_tile = (tile < 2) | (tile & (tile - 1) != 0)

        def first(bad: NDArray[np.bool_], describe: Callable[[int], str]) -> Iterator[BookkeepingError]:
            if bad.any():
                at, count = int(bad.argmax()), int(np.count_nonzero(bad))
                more = f" ({count} runs like it)" if count > 1 else ""
                yield BookkeepingError(f"run {runs['run_id'][at]} {describe(at)}{more}", path=self._path)

        def has_rows(at: int) -> str:
            return f"has {counted(counts[at], 'row')}"

        def has_tile(at: int) -> str:
            return f"has highest_tile {tile[at]}"

        if self._has_rows:
            table = runs["rows"]
            yield from first(
                table != counts, lambda at: f"{has_rows(at)}, expected {table[at]} by the run table"
            )
        rated = f"at sample rate {rate}, expected"
        yield from first(
            counts != due, lambda at: f"{has_rows(at)} for {counted(steps[at], 'step')} {rated} {due[at]}"
        )
        yield from first(not_a_tile, lambda at: f"{has_tile(at)}, expected a power of two")
        less, beyond = (tile < seen) & ~not_a_tile, beyond & ~not_a_tile
        yield from first(less, lambda at: f"{has_tile(at)}, but its rows show a {seen[at]}")
        yield from first(beyond, lambda at: f"{has_tile(at)}, but its rows show at most a {seen[at]}")
        if self._last is not None and not self._bad_rows:
            moves = (counts - 1) * rate
            last, starts = self._last, self._first
            explained = np.empty(len(last), np.bool_)
            for begin in range(0, len(last), _RUNS_AT_ONCE):
                some = slice(begin, begin + _RUNS_AT_ONCE)
                due_here = outcomes(last[some], moves[some], _some(starts, some))
                explained[some] = due_here.explain(runs[some])
            wrong = (counts == due) & (counts > 0) & ~explained
            yield from first(
                wrong,
                lambda at: outcomes(last[[at]], moves[[at]], _some(starts, [at])).describe(runs[at]),
            )


class TapeChecks:
    """A check of tape and anchors. Update it with pieces in row order, then get the defects."""

    def __init__(
        self,
        runs: NDArray[np.void],
        starts: NDArray[np.uint64],
        anchor_rows: int,
        paths: tuple[Path, Path],
        offsets: tuple[int, int],
    ) -> None:
        self._runs = runs
        self._starts = starts
        self._anchor_rows = anchor_rows
        self._paths = paths
        self._offsets = offsets
        self._games: dict[int, tuple[Defect, np.void]] = {}
        self._anchors: tuple[FormatError, int] | None = None

    def pieces(self, rows_max: int) -> Iterator[tuple[slice, slice, slice]]:
        for games, rows in game_pieces(self._runs, rows_max):
            first, end = (anchor_count(row, self._anchor_rows) for row in (rows.start, rows.stop))
            yield games, rows, slice(first, end)

    def update(self, games: slice, rows: slice, tape: NDArray[np.uint8], anchors: NDArray[np.uint64]) -> None:
        """Check a piece: its bytes, ``u8[n]``, and its anchors, ``u64[m]``."""
        runs = self._runs[games]
        checked = check_games(tape, runs, self._starts[games])
        for defect in checked.defects:
            known, run = self._games.get(defect.code, (defect._replace(games=0), runs[defect.game]))
            self._games[defect.code] = known._replace(games=known.games + defect.games), run
        due = anchors_of(checked.boards, rows.start, self._anchor_rows)
        at = np.flatnonzero(due != anchors)
        numbers = (anchor_count(rows.start, self._anchor_rows) + at) * self._anchor_rows
        owners = np.searchsorted(runs["first_row"].astype(np.int64), numbers, "right") - 1
        sound = checked.sound[owners]  # the boards of games with a defect are not known
        if sound.any():
            first = int(sound.argmax())
            row, path = int(numbers[first]), self._paths[1]
            offset = self._offsets[1] + row // self._anchor_rows * ANCHOR_DTYPE.itemsize
            found, expected = int(anchors[at[first]]), int(due[at[first]])
            error = anchor_error(row, found, expected, runs[owners[first]], path, offset)
            known_error, count = self._anchors or (error, 0)
            self._anchors = known_error, count + int(np.count_nonzero(sound))

    def defects(self) -> Iterator[FormatError]:
        """Yield the first defect of each kind, with the number of its kind, after the last update."""
        for defect, run in self._games.values():
            yield defect.error(run, self._paths[0], self._offsets[0])
        if self._anchors is not None:
            error, count = self._anchors
            if count > 1:
                error = type(error)(
                    f"{error.message} ({count} anchors like it)",
                    path=error.path,
                    offset=error.offset,
                    hint=error.hint,
                )
            yield error


class Outcomes(NamedTuple):
    """The possible scores and highest tiles after the last move of games.

    Column 0 is a move up or down, column 1 a move left or right: lines merge equally towards both ends, so a
    board has at most two outcomes. The score of a board follows from its tiles and the number of moves before
    it: each spawn adds a 2 or a 4 to the sum of the tiles, so the sum determines the number of 4s, and the
    score is the board score minus 4 for each spawned 4. ``tiles`` are those before the spawn.
    """

    moves: NDArray[np.int64]
    before: NDArray[np.int64]
    scores: NDArray[np.int64]
    tiles: NDArray[np.int64]
    legal: NDArray[np.bool_]

    def explain(self, runs: NDArray[np.void]) -> NDArray[np.bool_]:
        """Return which runs have a possible result; a run may have continued after its last board."""
        score, tile = runs["score"].astype(np.int64), runs["highest_tile"].astype(np.int64)
        fits = self.legal & (self.scores == score[:, None])
        # On a board of 2s, the spawn can be the highest tile.
        fits &= (self.tiles == tile[:, None]) | ((self.tiles == 2) & (tile[:, None] == 4))
        ended: NDArray[np.bool_] = self.moves == runs["steps"].astype(np.int64) - 1
        return np.where(ended, fits.any(axis=1), score >= self.before)

    def describe(self, run: np.void) -> str:
        found = f"has score {run['score']} and highest_tile {run['highest_tile']}"
        if self.moves[0] < int(run["steps"]) - 1:
            return f"{found}, but its last row shows a score of {self.before[0]}"
        ways = {f"{self.scores[0, way]} and {self.tiles[0, way]}" for way in range(2) if self.legal[0, way]}
        return f"{found}, but its last row leads to {' or '.join(sorted(ways)) or 'no legal move'}"


def _some(starts: NDArray[np.uint8] | None, which: Any) -> NDArray[np.uint8] | None:
    return None if starts is None else starts[which]


def outcomes(
    rows: NDArray[np.uint8], moves: NDArray[np.int64], starts: NDArray[np.uint8] | None = None
) -> Outcomes:
    """Compute the outcomes of games from their last rows, ``u8[n, 17]``: exponents and action.

    An action above 3 is unknown. ``starts`` has the first boards, from which scores count; None for games
    that start with two spawns.
    """
    exps = rows[:, :16].astype(np.int64)
    tiles = np.where(exps > 0, np.int64(1) << exps, 0)
    spawned, score = tiles.sum(axis=1) // 2, (tiles * (exps - 1)).sum(axis=1)
    if starts is None:
        fours = spawned - (moves + 2)
    else:
        given = starts.astype(np.int64)
        values = np.where(given > 0, np.int64(1) << given, 0)
        fours = spawned - values.sum(axis=1) // 2 - moves
        score -= (values * (given - 1)).sum(axis=1)
    before = score - 4 * fours
    boards = exps.reshape(-1, 4, 4)
    lines = np.stack([boards.transpose(0, 2, 1), boards], axis=1)
    packed = np.take_along_axis(lines, np.argsort(lines == 0, axis=-1, kind="stable"), axis=-1)
    one, other = packed[..., :-1], packed[..., 1:]
    merges = (one == other) & (one > 0)
    merges[..., 1] &= ~merges[..., 0]
    merges[..., 2] &= ~merges[..., 1]
    merged = np.where(merges, np.int64(2) << one, 0)
    gains = merged.sum(axis=(2, 3))
    highest = np.maximum(merged.max(axis=(2, 3)), tiles.max(axis=1)[:, None])
    filled = (lines > 0).sum(axis=-1)
    legal = (gains > 0) | ((filled > 0) & (filled < 4)).any(axis=-1)
    legal &= (rows[:, 16:] > 3) | (rows[:, 16:] >> 1 == np.arange(2))
    return Outcomes(moves, before, before[:, None] + gains, highest, legal)


#: Called with the number of bytes read so far, and of all bytes to read.
Progress: TypeAlias = Callable[[int, int], object]

#: Rows of a chunk: 7 MB, and about four times that in the arrays of the checks.
CHUNK_ROWS = 1 << 18

#: Bytes of a chunk of other files.
CHUNK_BYTES = 8 * 1024 * 1024

_NAMED_MAX = 10  # unknown files that a note names

_P = ParamSpec("_P")
_T = TypeVar("_T")


def validate_session(
    path: str | os.PathLike[str],
    *,
    columns: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
) -> Report:
    """Check a session directory completely.

    Recomputes and compares:

    - the manifest's sizes, checksums and counts;
    - the blocks' checksums, and that the blocks cover each row once;
    - that the runs cover each row once;
    - each row's ``run_id`` and ``step_idx``, exponents <= 15, actions <= 3, and that no board is empty;
    - each run's ``rows == ceil(steps / sample_rate)``, and its ``highest_tile`` with the tiles of its rows;
    - for games of this project's recorder, score and highest tile with the outcomes of the last row;
    - without a manifest, each row with the rules, its ``ev_legal``, ``branch_evs``, ``max_rank`` and
      ``seed``, and the previous row of its game;
    - the facts ``rows`` and ``runs``, the copy of the run table, and each column's type, shape, length and
      rows;
    - for a session on tape, each game with the rules and with its row of the run table, and each anchor.

    Without the fact ``sample_rate``, the first rows determine the rate. Notes, which are not findings, report
    unknown files, unfinished columns, a start in the future or after the end, and, in a session of another
    program, rows of games that are not in the run table.

    Args:
        path: directory of a session, of the recorder or of another program.
        columns: overlay directory with columns of this session to check, too.
        progress: called after each chunk with the number of bytes read so far, and of all bytes.

    Returns:
        All findings. Defects are not raised. A defect can hide others: if a header cannot be read, the rows
        are not checked.

    Example:
        >>> from tape2048 import sessions, validate_session
        >>> report = validate_session(sessions("selfplay")[0])
        >>> report.ok, report.runs
        (True, 200)
    """
    try:
        files = SessionFiles(path)
    except TapeError as error:
        return Report(os.fspath(path), 0, 0, 0, (Finding.of(error),))
    return _Validation(files, progress).run(columns)


def check_draft(draft: Path, kind: type[TapeError]) -> None:
    """Validate a new session completely before it is published; raise an error of ``kind`` for a finding."""
    report = validate_session(draft)
    if report.findings:
        first = report.findings[0]
        raise kind(
            f"the new session does not pass ({first.error}: {first.message}). Nothing was published",
            path=first.path,
            hint="look at the kernel's log (dmesg) for the device, and validate the original sessions",
        )


class _Validation:
    """A validation of one session. Each step adds findings and notes. A defect does not stop later steps."""

    def __init__(self, files: SessionFiles, progress: Progress | None) -> None:
        self._progress = progress
        self._findings: list[Finding] = []
        self._notes: list[str] = []
        self._checksums = 0
        self._bytes_done = 0
        self._files, self._directory = files, files.path
        self._parts = self._collect(lambda: files.parts) or []
        self._manifest = self._collect(lambda: files.manifest)
        self._metadata = self._read_metadata()
        if self._manifest is not None:
            self._add(*files.defects(self._parts))
        names = self._manifest.files if self._manifest else ()
        self._listed = [self._directory / name for name in names if PLAIN_NAME.fullmatch(name)]
        found = map(_stat, {*self._parts, *self._listed})
        self._bytes_total = sum(status.st_size for status in found if status is not None)
        self._layout: Layout | None = None
        self._blocks: BlockSums | None = None

    def _read_metadata(self) -> Metadata | None:
        database = self._directory / METADATA_DB
        if not os.path.lexists(database):
            return None
        metadata = self._collect(lambda: self._files.metadata)
        if metadata is not None and (packed := self._collect(packed_defect, database)):
            self._add(packed)
        return metadata

    def run(self, overlay: str | os.PathLike[str] | None) -> Report:
        on_tape = bool(self._parts) and self._files.on_tape
        headers = self._tape_headers() if on_tape else self._row_headers()
        rows = left_out = beyond = 0
        if headers is None:
            self._read_plain(*self._parts)
        else:
            rows = headers[0].rows if on_tape else sum(header.rows for header in headers)
            read = self._read_tape if on_tape else self._read_rows
            left_out, beyond = read(self._parts, headers, rows)
            self._check_facts(rows)
        self._read_plain(*(path for path in self._listed if path not in self._parts and path.is_file()))
        self._check_names()
        for place in (self._directory, *([] if overlay is None else [Path(overlay, self._directory.name)])):
            self._collect(self._check_columns, place, None if headers is None else rows - left_out - beyond)
        if left_out:
            what = f"{counted(left_out, 'row')} of games that are not in the table runs: left out"
            self._notes.append(what)
        if beyond:
            self._notes.append(f"{counted(beyond, 'row')} after the first 65536 tile of a game: left out")
        runs = len(self._metadata.runs) if self._metadata else 0
        return Report(
            str(self._directory), rows, runs, self._checksums, tuple(self._findings), tuple(self._notes)
        )

    def _tape_headers(self) -> list[NpyHeader] | None:
        tape, anchors = self._parts
        of_tape = self._collect(_read_header, tape, [TAPE_DTYPE])
        of_anchors = self._collect(_read_header, anchors, [ANCHOR_DTYPE]) if of_tape else None
        return [of_tape, of_anchors] if of_tape and of_anchors else None

    def _row_headers(self) -> list[NpyHeader] | None:
        """Read the header of each file of rows; return None if one is invalid or two differ."""
        if self._parts and self._manifest is None:
            self._layout = self._collect(lambda: self._files.layout)
        types = STEP_DTYPES if self._layout is None or self._layout.is_native else (self._layout.dtype,)
        headers: list[NpyHeader] = []
        for part in self._parts:
            header = self._collect(_read_header, part, types)
            if header is None:
                return None
            if headers and header.dtype != headers[0].dtype:
                due = headers[0].dtype.descr
                msg = f"rows of type {header.dtype.descr}; expected {due}, as in {self._parts[0].name}"
                self._add(NpyError(msg, path=part))
                return None
            headers.append(header)
        return headers or None

    def _read_rows(self, parts: list[Path], headers: list[NpyHeader], rows: int) -> tuple[int, int]:
        checks: RowChecks | None = None
        if self._metadata is not None:
            whole = self._metadata.has_rows or self._manifest is not None
            path, foreign = self._directory / METADATA_DB, self._manifest is None
            layout = Layout.of(headers[0].dtype, parts[0])
            checks = RowChecks(self._metadata, rows, path, layout, whole=whole, foreign=foreign)
        self._begin_blocks(rows, headers[0].dtype.itemsize)
        first = 0
        for part, header in zip(parts, headers, strict=True):
            if self._collect(self._read_part, part, header, first, checks) is None:
                break  # the numbers of later rows are unknown
            first += header.rows
        else:
            self._add(*(checks.defects() if checks else ()))
            self._end_blocks(parts[0], headers[0].data_offset if len(parts) == 1 else None)
        return (checks.rows_without_run, checks.rows_beyond) if checks else (0, 0)

    def _read_part(self, path: Path, header: NpyHeader, first: int, checks: RowChecks | None) -> bool:
        with self._summed(path) as (read, _):
            read(np.empty(header.data_offset, np.uint8))
            buffer = np.empty(min(header.rows, CHUNK_ROWS), header.dtype)
            place = Place(first, path, header.data_offset, header.dtype.itemsize)
            for begin in range(0, header.rows, CHUNK_ROWS):
                chunk = buffer[: header.rows - begin]
                content = read(chunk)
                if self._blocks is not None:
                    self._blocks.add((first + begin) * header.dtype.itemsize, content)
                if checks is not None:
                    checks.update(chunk, place.plus(begin))
        return True

    def _read_tape(self, parts: list[Path], headers: list[NpyHeader], rows: int) -> tuple[int, int]:
        checks = self._collect(self._tape_checks, self._metadata, parts, headers) if self._metadata else None
        if checks is None:
            self._read_plain(*parts)
            return 0, 0
        self._begin_blocks(rows, 1)
        if self._collect(self._read_games, checks, parts, headers) is not None:
            self._add(*checks.defects())
            self._end_blocks(parts[0], headers[0].data_offset)
        return 0, 0

    def _tape_checks(self, metadata: Metadata, parts: list[Path], headers: list[NpyHeader]) -> TapeChecks:
        anchor_rows = check_anchor_rows(self._directory, self._manifest)
        runs, starts = tape_runs(metadata, self._directory)
        runs, _ = from_run_table(runs, headers[0].rows, self._directory / METADATA_DB)
        check_anchor_count(headers[1].rows, headers[0].rows, anchor_rows, parts[1])
        offsets = headers[0].data_offset, headers[1].data_offset
        return TapeChecks(runs, starts, anchor_rows, (parts[0], parts[1]), offsets)

    def _read_games(self, checks: TapeChecks, parts: list[Path], headers: list[NpyHeader]) -> bool:
        with self._summed(parts[0]) as (read_tape, _), self._summed(parts[1]) as (read_anchors, _):
            read_tape(np.empty(headers[0].data_offset, np.uint8))
            read_anchors(np.empty(headers[1].data_offset, np.uint8))
            for games, rows, anchors in checks.pieces(CHUNK_ROWS):
                tape = np.empty(rows.stop - rows.start, TAPE_DTYPE)
                found = np.empty(anchors.stop - anchors.start, ANCHOR_DTYPE)
                content = read_tape(tape)
                read_anchors(found)
                if self._blocks is not None:
                    self._blocks.add(rows.start, content)
                checks.update(games, rows, tape, found)
        return True

    def _begin_blocks(self, rows: int, row_bytes: int) -> None:
        if self._metadata is not None and (self._metadata.blocks is not None or self._manifest is not None):
            found = self._collect(check_blocks, self._metadata.blocks, rows, self._directory / METADATA_DB)
            self._blocks = None if found is None else BlockSums(found, row_bytes)

    def _end_blocks(self, path: Path, offset: int | None) -> None:
        if self._blocks is not None:
            self._checksums += len(self._blocks)
            self._add(*self._blocks.defects(path, offset))

    @contextlib.contextmanager
    def _summed(self, path: Path) -> Iterator[tuple[Callable[[NDArray[Any]], memoryview], int]]:
        """Open a file to read in order; yield a reader and the size, and check the checksum at the end."""
        at = total = 0

        def read(into: NDArray[Any]) -> memoryview:
            nonlocal at, total
            read_exactly(fd, into, at, path)
            content = into.view(np.uint8).data
            at, total = at + into.nbytes, crc32c(content, total)
            self._bytes_done += into.nbytes
            if self._progress is not None:
                self._progress(self._bytes_done, self._bytes_total)
            return content

        with open_regular(path) as fd:
            before = os.fstat(fd)
            yield read, before.st_size
            after, names = _stat(path), ("st_dev", "st_ino", "st_size", "st_mtime_ns")
            if after is None or any(getattr(after, name) != getattr(before, name) for name in names):
                msg = "was changed or replaced while it was read"
                hint = "find the program that writes here: published files never change"
                self._add(ChecksumError(msg, path=path, hint=hint))
        entry = self._manifest.files.get(path.name) if self._manifest else None
        if entry is not None:
            self._checksums += 1
            if entry.crc32c != total:
                msg = f"has CRC-32C {total:08x}. The manifest says {entry.crc32c:08x}"
                self._add(ChecksumError(msg, path=path, hint="restore the session from a copy"))

    def _read_plain(self, *paths: Path) -> None:
        def read_all(path: Path) -> None:
            with self._summed(path) as (read, size):
                buffer = np.empty(min(size, CHUNK_BYTES), np.uint8)
                for begin in range(0, size, CHUNK_BYTES):
                    read(buffer[: size - begin])

        for path in paths:
            entry, status = self._manifest and self._manifest.files.get(path.name), _stat(path)
            if entry and status and status.st_size <= entry.bytes:  # a larger file could have terabytes
                self._collect(read_all, path)

    def _check_facts(self, rows: int) -> None:
        if self._metadata is None:
            return
        start, end = (self._metadata.session.get(name) for name in ("started_at", "ended_at"))
        if unix_s(end) < unix_s(start):
            self._notes.append(f"ended_at is {end}, before started_at, {start}: the clock was changed")
        if unix_s(start) > time.time():
            self._notes.append(f"started_at is {start}, in the future: the clock was wrong")
        for name, found in (("rows", rows), ("runs", len(self._metadata.runs))):
            if self._manifest is not None and getattr(self._manifest, name) != found:
                msg = f"{name} is {getattr(self._manifest, name)}. The session has {found}"
                self._add(ManifestError(msg, path=self._directory / MANIFEST))
            # In another program's session, a fact of this name may mean anything.
            fact = self._metadata.session.get(name, found)
            if self._metadata.has_rows and fact != found:
                msg = f"the fact {name} in the table session is {fact!r}. The session has {found}"
                self._add(SchemaError(msg, path=self._directory / METADATA_DB))

    def _check_columns(self, place: Path, rows: int | None) -> None:
        foreign = None
        if self._manifest is None and not self._findings and find_columns(place):
            opened = self._files.open_rows("mmap")
            foreign = opened if isinstance(opened, ForeignRows) else None
        columns = Columns((place,), rows or 0, self._manifest, foreign)
        for name in columns if rows is not None else ():
            found = self._collect(functools.partial(columns.open, name, check=False))
            if found is not None:
                self._collect(check_values, found.info, found.path)
        self._notes += [f"unfinished column: {place / name}" for name in find_drafts(place)]

    def _check_names(self) -> None:
        in_columns = self._collect(column_files, self._directory) or set()
        known = {MANIFEST, METADATA_DB, *in_columns, *(part.name for part in (*self._parts, *self._listed))}
        known |= {f"{name}s.json" for name in (self._layout.dtype.names or () if self._layout else ())}
        names = self._collect(list_names, self._directory) or []
        ours = self._metadata is not None and self._metadata.has_rows and self._metadata.blocks is not None
        if ours and MANIFEST not in names:
            msg = f"found no {MANIFEST}, expected one, since the recorder wrote the other files"
            hint = "restore it from a copy: only the manifest shows whether the files are complete"
            self._add(ManifestError(msg, path=self._directory, hint=hint))
        if unknown := sorted(set(names) - known):
            more = f", and {len(unknown) - _NAMED_MAX:,} more" if len(unknown) > _NAMED_MAX else ""
            self._notes.append(f"not of this session: {', '.join(unknown[:_NAMED_MAX])}{more}")

    def _collect(self, action: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T | None:
        try:
            return action(*args, **kwargs)
        except TapeError as error:
            self._add(error)
            return None

    def _add(self, *errors: TapeError) -> None:
        self._findings += [Finding.of(error) for error in errors]


def _read_header(path: Path, accepted: Sequence[np.dtype[Any]]) -> NpyHeader:
    with open_regular(path) as fd:
        return read_header(fd, path, accepted)


def _stat(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except OSError:
        return None
