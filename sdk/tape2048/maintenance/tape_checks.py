"""Streaming checks of a session on tape: every game decoded, every anchor compared, a few games at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tape2048.tape.checks import Defect, anchor_error, anchors_of, check_games, game_pieces
from tape2048.tape.layout import ANCHOR_DTYPE, anchor_count

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import NDArray

    from tape2048.errors import FormatError


class TapeChecks:
    """Comparison of tape and anchors with the rules and the run table: update piece by piece, in row order."""

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
