"""Rows of other programs: in shards, with rows that belong to no run, or of other row types.

A file of rows can be opened if each row has a run id, a step index and a board:

==============================  ============================================================================
field                           type and meaning
==============================  ============================================================================
``run_id``                      ``u4``, ``u8``, ``i4`` or ``i8``: ``runs.id``
``step_index`` or ``step_idx``  the same types or ``u2``: 0-based move number within the run. ``index_in_run``
                                in a pack.dat
``board`` or ``exps``           ``u8`` or ``i8``, a packed board; or ``u1`` [16], exponents
``move``, ``move_dir`` or       ``u1``, optional: 0 up, 1 down, 2 left, 3 right
``action``
``tile_65536_mask``             ``u2``, optional: bit i is set if cell i (0 is the top left) holds 65536 or
                                more. A packed board has 15 there
==============================  ============================================================================

The order of the fields, padding and the size of a row are free. Every other field that holds a number, or a
list of D numbers, is a column, unless it has the name of a built-in field of batches. The content of
``<field>s.json`` (such as ``valuation_types.json``) becomes the column's fact ``names``. ``branch_evs`` has a
value for each move.

In tape2048, a game ends when two 32768 tiles merge. A run is read up to the move that makes the first
65536, and its ``highest_tile`` is then 65536. Its ``max_score`` stays the score of the whole game.
"""

from __future__ import annotations

import bisect
import os
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tape2048.errors import BookkeepingError, NpyError, TapeError
from tape2048.files.reading import reading
from tape2048.session.directory import as_unsigned
from tape2048.session.layout import STEP_DTYPES, step_dtype
from tape2048.session.run_table import Owners, find_owners, from_run_table, keep_owned

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from numpy.typing import NDArray

    from tape2048.files.npy import Shards
    from tape2048.session.metadata import Metadata

_MASK_TILE = 65536
_LACKS = 2**64 - 1


class Layout(NamedTuple):
    """The names of the fields of a row type. ``move`` and ``mask`` are empty if the type lacks them."""

    dtype: np.dtype[Any]
    run: str
    step: str
    board: str
    move: str
    mask: str

    @classmethod
    def of(cls, dtype: np.dtype[Any], path: Path) -> Layout:
        """Find the fields of a row type; raise NpyError, with ``path``, if one is missing."""

        def find(types: tuple[Any, ...], *names: str) -> str:
            own = dtype.names or ()
            return next((name for name in names if name in own and dtype[name] in map(np.dtype, types)), "")

        integers = "<u4", "<u8", "<i4", "<i8"
        run = find(integers, "run_id")
        step = find((*integers, "<u2"), "step_index", "step_idx", "index_in_run")
        board = find(("<u8", "<i8", ("u1", (16,))), "board", "exps")
        if not (run and step and board):
            found = dtype.descr if dtype.names else dtype
            raise NpyError(
                f"found rows of type {found}, expected run_id and step_index (integers of 4 or 8 bytes) and "
                "board (<u8, packed, or u1 [16], exponents)",
                path=path,
                offset=0,
            )
        move, mask = find(("u1",), "move_dir", "action", "move"), find(("<u2",), "tile_65536_mask")
        return cls(dtype, run, step, board, move, mask)

    @property
    def is_packed(self) -> bool:
        return self.dtype[self.board].subdtype is None

    @property
    def is_native(self) -> bool:
        return self.dtype in STEP_DTYPES

    @property
    def words(self) -> NDArray[np.uint64]:
        """The layout for the kernels, see ``rows.boards.RUN``."""
        offsets = {name: field[1] for name, field in (self.dtype.fields or {}).items()}
        is_short = self.dtype[self.step].itemsize == 2
        return np.array(
            [*(offsets.get(name, _LACKS) for name in self[1:]), self.is_packed, is_short], np.uint64
        )

    def above(self, rows: NDArray[np.void]) -> NDArray[np.bool_]:
        """Return a mask of the rows with a tile of 65536 or more."""
        if self.is_packed:
            return np.array(rows[self.mask] if self.mask else np.zeros(len(rows)), np.bool_)
        return np.array((rows[self.board] > 15).any(axis=1))

    def steps(self, rows: NDArray[np.void]) -> tuple[NDArray[np.void], NDArray[np.bool_]]:
        """Convert rows, 16 for cells in ``tile_65536_mask``; return also a mask of contradicting rows."""
        bad = np.zeros(len(rows), np.bool_)
        if self.is_native:
            return as_unsigned(rows), bad
        from tape2048.game.rules import boards_to_exps  # loads the compiler

        boards = np.ascontiguousarray(rows[self.board])
        out = np.empty(len(rows), step_dtype(record_action=bool(self.move)))
        out["run_id"], out["step_idx"] = rows[self.run], rows[self.step]
        out["exps"] = boards_to_exps(boards.view(np.uint64)) if self.is_packed else boards
        if self.move:
            out["action"] = rows[self.move]
        if self.mask and (some := np.flatnonzero(rows[self.mask])).size:
            bits = rows[self.mask][some][:, None] >> np.arange(16, dtype=np.uint16) & 1
            exps = out["exps"][some]
            bad[some] = np.logical_and(bits, exps < (15 if self.is_packed else 16)).max(axis=1)
            out["exps"][some] = np.maximum(exps, 16 * bits.astype(np.uint8))
        return out, bad

    def contradiction(self, row: np.void) -> str:
        board = f"{row[self.board]:#018x}" if self.is_packed else row[self.board].tolist()
        return f"has {self.mask} {row[self.mask]:#06x}, which contradicts its board {board}"


def check_ends(
    runs: NDArray[np.void], ends: tuple[NDArray[np.void], NDArray[np.void]], layout: Layout, path: Path
) -> None:
    """Raise BookkeepingError, with ``path``, if a run's first or last row is of another run or step."""
    for is_last, rows in enumerate(ends):
        steps = (runs["steps"].astype(np.int64) - 1) * is_last
        ids, found = (rows[name].astype(np.int64) for name in (layout.run, layout.step))
        bad, starts = (ids != runs["run_id"]) | (found != steps), runs["first_row"]
        if bad.any():
            at = int(bad.argmax())
            raise BookkeepingError(
                f"row {int(starts[at]) + steps[at]} is step {found[at]} of run {ids[at]}, expected step "
                f"{steps[at]} of run {runs['run_id'][at]} by the run table",
                path=path,
                hint="restore both files from a copy: the rows and the run table do not belong together",
            )


class ForeignRows:
    """The rows of a session of another program. Row numbers count only the rows that are not left out.

    ``rows`` are all rows of the files, as in ``npy.Shards``; ``file_begins``, ``begins`` and ``ends`` are
    places in it: of each file's first row, of each segment, and of the end of its file. ``made`` makes more
    columns from rows. ``dense``: the runs are stored one after the other, with a row for each step.
    ``without_run`` counts rows whose run is not in the table.
    """

    def __init__(
        self,
        paths: list[Path],
        shards: Shards,
        metadata: Metadata,
        database: Path,
        *,
        whole: bool = True,
        tiled: bool = False,
        again: Callable[[], Shards] | None = None,
        made: Mapping[str, Callable[[NDArray[np.void]], NDArray[Any]]] | None = None,
    ) -> None:
        """Find the rows of each run; with ``whole``, a row of no run is an error.

        If the run table says ``tiled`` (runs one after the other, a row for each step), other rows are
        errors. ``again`` reads the files into memory; None for rows that are in memory. ``made`` makes more
        columns from rows.
        """
        layout = self.layout = Layout.of(shards.rows.dtype, paths[0])
        self.made = dict(made or {})
        self._fields: dict[str, NDArray[Any]] = {}
        self._again = again or (lambda: shards)
        with reading(database):
            self._states = [path.stat() for path in paths] if again else []
        self.file_begins, self._tiled = shards.begins, tiled
        self.paths, self.counts, self.words = paths, shards.counts, layout.words
        self.rows = as_unsigned(shards.rows) if layout.is_native else shards.rows
        firsts, total = np.cumsum(shards.counts) - shards.counts, int(shards.counts.sum())
        self._firsts, self._shifts = firsts, shards.begins - firsts
        self.dense = False
        starts, owner = self._assign(metadata, database, whole=whole)
        self.without_run = int(np.diff(starts, append=total)[owner < 0].sum())
        runs, cut_at = self._find_cuts(metadata.runs, starts, owner)
        points = np.unique(np.concatenate((starts, firsts[self.counts > 0], cut_at[cut_at < total])))
        owner = owner[np.searchsorted(starts, points, "right") - 1]
        owner = np.where(points >= cut_at[owner], -1, owner)
        if tiled:
            self.runs, kept = runs, np.arange(len(points))
            self.owners = Owners(points, owner, total, contiguous=True)
        else:
            self.runs, self.owners, kept = keep_owned(runs, points, owner, total)
        numbers = points[kept]
        file = np.searchsorted(firsts, numbers, "right") - 1
        self.begins, self.ends = self.index_of(numbers), (shards.begins + shards.counts)[file]
        self._firsts, _, _ = self.owners.segments()
        self._shifts, self._left_out = self.begins - self._firsts, numbers - self._firsts

    def __len__(self) -> int:
        return self.owners.rows

    def _assign(
        self, metadata: Metadata, path: Path, *, whole: bool
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the first row of each segment, numbered as in the files, and its run (-1: none)."""
        runs, total, layout = metadata.runs, int(self.counts.sum()), self.layout
        owner = np.argsort(runs["first_row" if metadata.has_rows else "run_id"], kind="stable")
        if metadata.has_rows and not self._tiled:
            from_run_table(runs, total, path)
        counts = runs["rows" if metadata.has_rows else "steps"][owner].astype(np.int64)
        owner, counts = owner[counts > 0], counts[counts > 0]
        starts = np.cumsum(counts) - counts
        if counts.sum() == total:
            begin, last = (self.take(self.index_of(at)) for at in (starts, starts + counts - 1))
            if self._tiled:
                check_ends(runs[owner], (begin, last), layout, path)
            ids = runs["run_id"][owner]
            same = (begin[layout.run].astype(np.uint64) == ids) & (last[layout.run].astype(np.uint64) == ids)
            self.dense = bool((same & (begin[layout.step] == 0) & (last[layout.step] == counts - 1)).all())
            if self.dense or (metadata.has_rows and same.all()):
                return starts, owner
        return find_owners(runs, total, self._ids, path, whole=whole or metadata.has_rows)

    def _ids(self, numbers: NDArray[np.int64]) -> NDArray[np.uint64]:
        ids: NDArray[Any] = self.rows[self.layout.run][self.index_of(numbers)]
        return ids.astype(np.uint64)

    def _find_cuts(
        self, runs: NDArray[np.void], starts: NDArray[np.int64], owner: NDArray[np.int64]
    ) -> tuple[NDArray[np.void], NDArray[np.int64]]:
        """Return the run table, cut at the first 65536 of each run, and that row of each, ``i64[R + 1]``."""
        stops = np.append(starts[1:], self.counts.sum())
        cut_at = np.full(len(runs) + 1, self.counts.sum())  # the last entry is for rows of no run
        high, runs = np.flatnonzero(runs["highest_tile"] >= _MASK_TILE), runs.copy()
        order = np.argsort(owner, kind="stable")
        bounds = (np.searchsorted(owner[order], high, side).tolist() for side in ("left", "right"))
        for run, begin, end in zip(high.tolist(), *bounds, strict=True):
            segments = (np.arange(starts[at], stops[at]) for at in order[begin:end])
            numbers = np.concatenate([np.empty(0, np.int64), *segments])
            first = bisect.bisect_left(numbers, 1, key=lambda at: self.layout.above(self._at(at))[0])
            runs["highest_tile"][run] = _MASK_TILE
            if first < len(numbers):
                row = self._at(numbers[first])
                if self.layout.steps(row)[1][0]:
                    text = f"row {numbers[first]} {self.layout.contradiction(row[0])}"
                    raise BookkeepingError(text, path=self.paths[0].parent)
                cut_at[run], runs["steps"][run] = numbers[first], row[self.layout.step][0]
        return runs, cut_at

    def _at(self, number: np.int64) -> NDArray[np.void]:
        return self.take(self.index_of(np.array([number])))

    def in_memory(self) -> NDArray[np.void]:
        """Return all rows in memory, file after file: read again, or copied if a file was replaced."""
        try:
            rows = self._again().rows
        except TapeError:
            if self.in_place():
                raise
        else:
            if self.in_place():
                return rows
        parts = zip(self.file_begins.tolist(), self.counts.tolist(), strict=True)
        whole = self.rows.view(f"V{self.rows.itemsize}")
        return np.concatenate([whole[at : at + count] for at, count in parts]).view(self.rows.dtype)

    def in_place(self) -> bool:
        """Check whether the paths still lead to the files that were opened."""
        try:
            return all(map(os.path.samestat, self._states, map(os.stat, self.paths)))
        except OSError:
            return False

    def field(self, name: str) -> NDArray[Any]:
        """Return a field of all rows, in the order of ``rows``. A field in ``made`` is made once."""
        if name in self.made and name not in self._fields:
            self._fields[name] = self.made[name](self.rows)
        found: NDArray[Any] = self._fields[name] if name in self.made else self.rows[name]
        return found

    def type_made(self, name: str) -> np.dtype[Any]:
        none = self.made[name](self.rows[:0])
        return np.dtype((none.dtype, none.shape[1:]))

    def index_of(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        indices: NDArray[np.int64] = (
            numbers + self._shifts[np.searchsorted(self._firsts, numbers, "right") - 1]
        )
        return indices

    def in_files(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the numbers of rows in the files, where no row is left out."""
        at = np.searchsorted(self._firsts, numbers, "right") - 1
        found: NDArray[np.int64] = numbers + self._left_out[at]
        return found

    def take(self, indices: NDArray[np.int64]) -> NDArray[np.void]:
        # An untyped view, since NumPy copies structured rows field by field.
        return np.take(self.rows.view(f"V{self.rows.itemsize}"), indices).view(self.rows.dtype)

    def read(self, numbers: NDArray[np.int64]) -> NDArray[np.void]:
        """Return rows by number; BookkeepingError for a tile of 65536 or more above the run's highest."""
        found, layout = self.take(self.index_of(numbers)), self.layout
        if not layout.is_native and (above := layout.above(found)).any():
            row = found[above.argmax()]
            raise BookkeepingError(
                f"run {row[layout.run]} has a tile of 65536 or more at step {row[layout.step]}, expected at "
                "most its highest_tile in the run table",
                path=self.paths[0].parent,
                hint="run tape2048 validate, which reports every such row",
            )
        return layout.steps(found)[0]
