"""Streaming checks of a session's rows or tape, piece by piece, in memory bounded by the runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tape2048.base.text import counted
from tape2048.errors import BookkeepingError, ChecksumError, SchemaError, TapeError
from tape2048.formats.session import SAMPLE_RATE_MAX
from tape2048.io.crc import crc32c
from tape2048.session.row_owners import from_run_table
from tape2048.tape.checks import Defect, anchor_error, anchors_of, check_games, game_pieces
from tape2048.tape.layout import ANCHOR_DTYPE, anchor_count

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from numpy.typing import NDArray

    from tape2048.errors import FormatError
    from tape2048.formats.metadata import Metadata
    from tape2048.session.row_owners import Owners

_EXPONENT_MAX = 15
_ACTION_MAX = 3

#: How the fact ``engine`` of a game that this project's recorder played begins; others count differently.
_RECORDER = "tape2048/"
#: Runs whose outcomes are computed at once.
_RUNS_AT_ONCE = 1 << 15


class Place(NamedTuple):
    """The place of some rows: number of the first one, file, its offset there, and bytes of a row."""

    first: int
    path: Path
    offset: int
    row_bytes: int

    def plus(self, rows: int) -> Place:
        """Return the place that many rows later."""
        return self._replace(first=self.first + rows, offset=self.offset + rows * self.row_bytes)


class RowChecks:
    """Comparison of rows with the run table: update with chunks in row order, then get the defects.

    If the run table has consistent ranges of rows, each row is compared with them. Otherwise a row belongs to
    the run that it names, and is the next row of that run.

    Attributes:
        rows_without_run: number of rows so far whose run is not in the table.
    """

    def __init__(self, metadata: Metadata, rows: int, path: Path, *, whole: bool = True) -> None:
        self._path = path
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
        self._by_id = np.argsort(self._runs["id"], kind="stable")
        self._counts = np.zeros(len(self._runs), np.int64)
        self._highest = np.zeros(len(self._runs), np.uint8)
        recorded = self._owners is not None and str(metadata.session.get("engine")).startswith(_RECORDER)
        #: The last row of each recorded run: its board, and its action (above 3 where rows have none).
        self._last = np.full((len(self._runs), 17), 255, np.uint8) if recorded else None
        self._rows = rows
        self._whole = whole
        self.rows_without_run = 0

    def update(self, chunk: NDArray[np.void], place: Place) -> None:
        """Check the next rows, ``STEP_DTYPE[n]`` or ``ACTION_STEP_DTYPE[n]``."""
        if len(chunk) == 0:
            return
        ids, steps, exps = chunk["run_id"], chunk["step_idx"], np.ascontiguousarray(chunk["exps"])
        owner = self._owner(np.ascontiguousarray(ids), place)
        number = self._number(owner, place.first)
        second = np.flatnonzero(number == 1)
        if self._rate is None and second.size:  # without the fact, the first second row of a run has the rate
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
            bad_cell = served & (exps > _EXPONENT_MAX).any(axis=1)
            self._note("exps", bad_cell, place, lambda at: f"has exponents {exps[at].tolist()}, above 15")
        if "action" in (chunk.dtype.names or ()):
            action = chunk["action"]
            bad_action = served & (action > _ACTION_MAX)
            self._note("action", bad_action, place, lambda at: f"has action {action[at]}, above 3")
        begins = np.concatenate(([0], np.flatnonzero(owner[1:] != owner[:-1]) + 1))
        highest = np.maximum.reduceat(exps.reshape(-1), begins * 16)
        known = owner[begins] >= 0
        np.maximum.at(self._highest, owner[begins][known], highest[known])
        if self._last is not None:
            ends = np.append(begins[1:], len(owner)) - 1
            self._last[owner[ends], :16] = exps[ends]
            if "action" in (chunk.dtype.names or ()):
                self._last[owner[ends], 16] = chunk["action"][ends]

    def defects(self) -> Iterator[TapeError]:
        """Yield all defects, after the last update."""
        yield from self._defects
        if not self._whole and (self.rows_without_run < self._rows or not len(self._runs)):
            self._bad_rows.pop("unknown", None)  # no defect: a session opens without these rows
        for count, text, place in self._bad_rows.values():
            more = f" ({count} rows like it)" if count > 1 else ""
            yield BookkeepingError(f"{text}{more}", path=place.path, offset=place.offset)
        yield from self._run_defects()

    def _note(self, kind: str, bad: NDArray[np.bool_], place: Place, describe: Callable[[int], str]) -> None:
        """Count the bad rows of one kind, and describe the first one."""
        count = int(np.count_nonzero(bad))
        if kind in self._bad_rows:
            before, text, first = self._bad_rows[kind]
            self._bad_rows[kind] = (before + count, text, first)
        elif count:
            at = int(bad.argmax())
            first = place.plus(at)
            self._bad_rows[kind] = (count, f"row {first.first} {describe(at)}", first)

    def _owner(self, ids: NDArray[np.uint64], place: Place) -> NDArray[np.int64]:
        """Return the ordinal of each row's run, -1 if the table does not have it."""
        if self._owners is not None:
            owner = self._owners.between(place.first, place.first + len(ids))
            due = self._runs["id"][owner]
            self._note("run_id", ids != due, place, lambda at: f"has run_id {ids[at]}, expected {due[at]}")
            return owner
        sorted_ids = self._runs["id"][self._by_id]
        at_or_after = np.searchsorted(sorted_ids, ids)
        known = at_or_after < len(sorted_ids)
        known[known] = sorted_ids[at_or_after[known]] == ids[known]
        owner = np.full(len(ids), -1, np.int64)
        owner[known] = self._by_id[at_or_after[known]]
        self.rows_without_run += int(np.count_nonzero(~known))
        self._note(
            "unknown", ~known, place, lambda at: f"has run_id {ids[at]}, which the run table does not have"
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
            unknown = len(owner) - len(known)
            order = np.argsort(owner, kind="stable")[unknown:]
            begins = np.cumsum(added) - added
            by_run = owner[order]
            number = np.zeros(len(owner), np.int64)
            number[order] = np.arange(len(known)) - begins[by_run] + self._counts[by_run]
        self._counts += added
        return number

    def _run_defects(self) -> Iterator[BookkeepingError]:
        """Yield the defects that need all rows of a run."""
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
                yield BookkeepingError(f"run {runs['id'][at]} {describe(at)}{more}", path=self._path)

        def has_rows(at: int) -> str:
            return f"has {counted(counts[at], 'row')}"

        def has_tile(at: int) -> str:
            return f"has highest_tile {tile[at]}"

        if self._has_rows:
            table = runs["rows"]
            yield from first(table != counts, lambda at: f"{has_rows(at)}, the run table says {table[at]}")
        rated = f"at sample rate {rate}, expected"
        yield from first(
            counts != due, lambda at: f"{has_rows(at)} for {counted(steps[at], 'step')} {rated} {due[at]}"
        )
        yield from first(not_a_tile, lambda at: f"{has_tile(at)}, expected a power of two")
        less, beyond = (tile < seen) & ~not_a_tile, beyond & ~not_a_tile
        yield from first(less, lambda at: f"{has_tile(at)}, but its rows show a {seen[at]}")
        yield from first(beyond, lambda at: f"{has_tile(at)}, but its rows get no further than {seen[at]}")
        if self._last is not None and not self._bad_rows:
            moves = (counts - 1) * rate
            last = self._last
            explained = np.empty(len(last), np.bool_)
            for begin in range(0, len(last), _RUNS_AT_ONCE):
                some = slice(begin, begin + _RUNS_AT_ONCE)
                explained[some] = outcomes(last[some], moves[some]).explain(runs[some])
            wrong = (counts == due) & (counts > 0) & ~explained
            yield from first(
                wrong, lambda at: outcomes(last[at : at + 1], moves[at : at + 1]).describe(runs[at])
            )


class BlockSums:
    """Streaming checksums of the blocks, from the bytes of the rows in order."""

    def __init__(self, blocks: NDArray[np.void], rows: int, row_bytes: int, path: Path) -> None:
        first = blocks["first_row"].astype(np.int64)
        ends = first + blocks["rows"].astype(np.int64)
        expected = np.concatenate(([0], ends))
        wrong = np.flatnonzero(first != expected[:-1])
        if wrong.size:
            at = wrong[0]
            raise BookkeepingError(
                f"block {at} begins at row {first[at]}; the blocks before it end at row {expected[at]}",
                path=path,
            )
        if expected[-1] != rows:
            raise BookkeepingError(
                f"the {len(blocks)} blocks cover {expected[-1]} rows; the steps have {rows}", path=path
            )
        self._blocks = blocks
        self._ends = (ends * row_bytes).tolist()
        self._at = 0
        self._done = 0
        self._sum = 0
        self._wrong: list[tuple[int, int]] = []

    def __len__(self) -> int:
        """Number of blocks."""
        return len(self._blocks)

    def update(self, content: memoryview) -> None:
        """Add the next bytes of the rows."""
        while len(content) > 0:
            piece = content[: self._ends[self._at] - self._done]
            self._sum = crc32c(piece, self._sum)
            self._done += len(piece)
            content = content[len(piece) :]
            if self._done == self._ends[self._at]:
                if self._sum != int(self._blocks["crc32c"][self._at]):
                    self._wrong.append((self._at, self._sum))
                self._at += 1
                self._sum = 0

    def defects(self, path: Path, data_offset: int | None) -> Iterator[ChecksumError]:
        """Yield a ChecksumError for each changed block; rows in several files have no ``data_offset``."""
        for at, found in self._wrong:
            block = self._blocks[at]
            begin = self._ends[at - 1] if at else 0
            offset = None if data_offset is None else data_offset + begin
            last = int(block["first_row"]) + int(block["rows"]) - 1
            msg = (
                f"block {at} (rows {block['first_row']} to {last}) "
                f"has CRC-32C {found:08x}; expected {int(block['crc32c']):08x}"
            )
            yield ChecksumError(msg, path=path, offset=offset, hint="restore the session from a copy")


class TapeChecks:
    """Comparison of tape and anchors with rules and run table: update in row order, then get the defects."""

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
        """Yield games, rows and anchors of each piece of :func:`game_pieces`."""
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
        sound = checked.sound[owners]  # the boards of other games are not known
        if sound.any():
            first = int(sound.argmax())
            row, path = int(numbers[first]), self._paths[1]
            offset = self._offsets[1] + row // self._anchor_rows * ANCHOR_DTYPE.itemsize
            found, expected = int(anchors[at[first]]), int(due[at[first]])
            error = anchor_error(row, found, expected, runs[owners[first]], path, offset)
            known_error, count = self._anchors or (error, 0)
            self._anchors = known_error, count + int(np.count_nonzero(sound))

    def defects(self) -> Iterator[FormatError]:
        """Yield the first defect of each kind, with their number, after the last update."""
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
    """Scores and highest tiles after a last move: up or down (column 0), left or right (column 1).

    The last recorded board and the number of moves before it give the score: each spawn adds a 2 or a 4 to
    the sum of the tiles, so this sum tells the number of 4s. The score is the board score less 4 for each of
    them. Only the last move can add to it. Lines merge alike towards both of their ends, so a board has at
    most two outcomes.

    Attributes:
        moves: ``i64[n]``, the number of moves before each board.
        before: ``i64[n]``, the score of each board.
        scores: ``i64[n, 2]``, the score after the move.
        tiles: ``i64[n, 2]``, the highest tile after it, without its spawn.
        legal: ``bool[n, 2]``, whether there is such a move.
    """

    moves: NDArray[np.int64]
    before: NDArray[np.int64]
    scores: NDArray[np.int64]
    tiles: NDArray[np.int64]
    legal: NDArray[np.bool_]

    def explain(self, runs: NDArray[np.void]) -> NDArray[np.bool_]:
        """Return which runs (``RUN_DTYPE[n]``) have a possible score and highest tile: ``bool[n]``.

        A run that went on after its board has at least the score of its board.
        """
        score, tile = runs["max_score"].astype(np.int64), runs["highest_tile"].astype(np.int64)
        fits = self.legal & (self.scores == score[:, None])
        # On a board of 2s, the spawn can be the highest tile.
        fits &= (self.tiles == tile[:, None]) | ((self.tiles == 2) & (tile[:, None] == 4))
        ended: NDArray[np.bool_] = self.moves == runs["steps"].astype(np.int64) - 1
        return np.where(ended, fits.any(axis=1), score >= self.before)

    def describe(self, run: np.void) -> str:
        """Return how the only run differs from its board."""
        found = f"has max_score {run['max_score']} and highest_tile {run['highest_tile']}"
        if self.moves[0] < int(run["steps"]) - 1:
            return f"{found}, but its last row shows a score of {self.before[0]}"
        ways = {f"{self.scores[0, way]} and {self.tiles[0, way]}" for way in range(2) if self.legal[0, way]}
        return f"{found}, but its last row leads to {' or '.join(sorted(ways)) or 'no legal move'}"


def outcomes(rows: NDArray[np.uint8], moves: NDArray[np.int64]) -> Outcomes:
    """Compute the outcomes of boards."""
    exps = rows[:, :16].astype(np.int64)
    tiles = np.where(exps > 0, np.int64(1) << exps, 0)
    fours = tiles.sum(axis=1) // 2 - (moves + 2)
    before = (tiles * (exps - 1)).sum(axis=1) - 4 * fours
    boards = exps.reshape(-1, 4, 4)
    lines = np.stack([boards.transpose(0, 2, 1), boards], axis=1)
    packed = np.take_along_axis(lines, np.argsort(lines == 0, axis=-1, kind="stable"), axis=-1)
    one, other = packed[..., :-1], packed[..., 1:]
    merges = (one == other) & (one > 0) & (one < _EXPONENT_MAX)
    merges[..., 1] &= ~merges[..., 0]
    merges[..., 2] &= ~merges[..., 1]
    merged = np.where(merges, np.int64(2) << one, 0)
    gains = merged.sum(axis=(2, 3))
    highest = np.maximum(merged.max(axis=(2, 3)), tiles.max(axis=1)[:, None])
    filled = (lines > 0).sum(axis=-1)
    legal = (gains > 0) | ((filled > 0) & (filled < 4)).any(axis=-1)
    legal &= (rows[:, 16:] > 3) | (rows[:, 16:] >> 1 == np.arange(2))
    return Outcomes(moves, before, before[:, None] + gains, highest, legal)
