"""Later boards of a row's game: windows of boards, and fields of a board some moves ahead.

The view decides which rows are served. Their later boards come from all rows of their games: a phase, a
selection or a cap leaves none of them out. A row's number in the view's map becomes its number among these
rows by an addition for each run, so there is no table of rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tape2048.errors import CorpusError
from tape2048.game.scores import SPAWN, TERMS
from tape2048.jit.compiler import kernel
from tape2048.loader.batch import Outputs, output_of, windows_of
from tape2048.loader.order import Order
from tape2048.loader.row_map import address_of
from tape2048.loader.row_view import sample_rate
from tape2048.loader.starts import starts_of
from tape2048.session.batch_fields import field_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tape2048.loader.batch import Batch
    from tape2048.loader.row_view import ViewTables


# The columns of the table of games.
_ADDED = 0  # a row's number among all rows of the games, less its number in the map
_FIRST, _LAST = 1, 2  # numbers of the game's first and last row
_RATE = 3  # steps from a row to the next one
_SCORE, _HIGHEST = 4, 5  # the outcome
_START = 6  # the potential of the first board


@kernel
def _expand(rows: Any, games: Any, apart: Any, numbers: Any, valid: Any) -> None:
    base, run = rows
    for i in range(base.shape[0]):
        number, last = base[i] + games[run[i], _ADDED], games[run[i], _LAST]
        for j in range(apart.shape[0]):
            numbers[i, j] = min(number + apart[j], last)
            valid[i, j] = number + apart[j] <= last


@kernel
def _fill_points(rows: Any, games: Any, moves: Any, exps: Any, points: Any) -> Any:
    """Write the points after boards, or subtract those after boards that are ``moves`` ahead.

    Returns:
        The index of a board that contradicts its game, or -1.
    """
    base, run = rows
    bad = -1
    for i in range(base.shape[0]):
        total = 0
        for cell in range(16):
            total += TERMS[exps[i, cell]]
        r = run[i]  # not a view of the game's row, whose reference count would be updated atomically
        number = base[i] + games[r, _ADDED] + moves
        if number > games[r, _LAST]:
            continue
        step = (number - games[r, _FIRST]) * games[r, _RATE]
        score, final = total - games[r, _START] + SPAWN * step, games[r, _SCORE]
        if score < 0 or score > final or (step == 0 and score != 0):
            bad = i
        left = final - score
        points[i] = points[i] - left if moves else left
    return bad


@kernel
def _fill_highest(rows: Any, games: Any, moves: Any, exps: Any, highest: Any) -> None:
    base, run = rows
    for i in range(base.shape[0]):
        found = exps[i, 0]
        for cell in range(1, 16):
            found = max(found, exps[i, cell])
        r = run[i]
        highest[i] = found if base[i] + games[r, _ADDED] + moves <= games[r, _LAST] else games[r, _HIGHEST]


class Games:
    """The games of a view with all their rows; ``table`` is ``i64[R, 7]``."""

    def __init__(
        self,
        tables: ViewTables,
        whole: ViewTables,
        gatherer: Any,
        rates: NDArray[np.int64] | None = None,
        potentials: NDArray[np.int64] | int = 0,
    ) -> None:
        runs, starts = tables.runs, whole.rowmap.run_starts.astype(np.int64)
        per_run = 1 if rates is None else rates[runs["session"]]
        columns = (
            tables.whole_starts(whole), starts[:-1], starts[1:] - 1, np.broadcast_to(per_run, len(runs)),
            runs["score"], tables.exponents, np.broadcast_to(potentials, len(runs)),
        )  # fmt: skip
        self.table = np.stack([column.astype(np.int64) for column in columns], axis=1)
        self.gatherer = gatherer

    def expand(self, rows: Batch, apart: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Return the rows ``apart`` from a batch's (``[n, K]``, at most the game's last), and a mask."""
        shape = rows.rows, len(apart)
        numbers, valid = np.empty(shape, np.int64), np.empty(shape, np.bool_)
        _expand(numbers_and_runs(rows), self.table, apart, numbers, valid)
        return numbers, valid


def numbers_and_runs(batch: Batch) -> tuple[NDArray[np.int64], NDArray[np.uint32]]:
    """Return the rows' numbers in the map, and their runs."""
    return output_of(batch, "base"), output_of(batch, "run")


class Windows:
    """Windows of K boards; a game's last board repeats. ``left_out`` rows before each run start none."""

    def __init__(self, games: Games, window: int, stride: int, left_out: NDArray[np.int64]) -> None:
        self._games = games
        self._apart = np.arange(window) * stride
        self._left_out = left_out

    def fill(self, batch: Batch, symmetry_key: int) -> None:
        """Fill the boards of a batch from its first rows. All boards of a window are turned alike."""
        found = windows_of(batch)
        assert found is not None
        firsts, boards = found
        numbers, valid = self._games.expand(firsts, self._apart)
        by = np.repeat(output_of(firsts, "base"), len(self._apart)) if symmetry_key else None
        flat = numbers.reshape(-1)
        self._games.gatherer.gather(flat, boards, Order.listed(flat, symmetry_key, by))
        batch.rows = firsts.rows
        if "row" in batch:
            batch["row"][:] = (firsts["row"] + self._left_out[firsts["run"]])[:, None]
        if "weight" in batch:
            batch["weight"][:] *= firsts["weight"][:, None]
        if "valid" in batch:
            batch["valid"][:] = valid


class Ahead:
    """Fields of a board K moves ahead in the game; with fewer moves left, of the game's end."""

    def __init__(self, tables: ViewTables, fields: tuple[str, ...], make: Any) -> None:
        found = [(name, field_of(name)) for name in fields]
        self._fields = [(name, own.moves) for name, own in found if own and own.moves is not None]
        self._apart = np.unique([moves for _, moves in self._fields if moves])
        rates = np.ones(len(tables.store.sessions), np.int64)
        for ordinal in np.flatnonzero(np.diff(tables.runs.firsts)).tolist():
            session = tables.store.sessions[ordinal]
            rates[ordinal] = _check_session(session, *max(self._fields, key=lambda each: each[1]))
        whole, sessions = tables.whole, tables.store.sessions
        starts: NDArray[np.int64] | int = 0
        if any("highest" not in name for name, _ in self._fields):
            starts = tables.runs.each(lambda table: starts_of(table, sessions).potentials)
        self._games = Games(tables, whole, make(whole, ("tokens",)), rates, starts)
        self._runs = tables.runs

    def fill(self, batch: Batch) -> None:
        later = np.empty((batch.rows, len(self._apart), 16), np.uint8)
        if later.size:
            flat, gatherer = self._games.expand(batch, self._apart)[0].reshape(-1), self._games.gatherer
            target = np.array(Outputs(tokens=address_of(later)), np.uint64)
            gatherer.run(gatherer.words, Order.listed(flat), (0, len(flat)), target)
        rows, games = numbers_and_runs(batch), self._games.table
        now: NDArray[Any] | None = None
        for name, moves in self._fields:
            boards = later[:, int(np.searchsorted(self._apart, moves))] if moves else later
            if name.startswith("highest"):
                _fill_highest(rows, games, moves, boards, batch[name])
                np.left_shift(np.uint32(1), batch[name], out=batch[name])
                continue
            if now is None:
                self._check(batch, _fill_points(rows, games, 0, output_of(batch, "tokens"), batch[name]), 0)
                now = batch[name].copy() if len(self._fields) > 1 else batch[name]
            else:
                batch[name][:] = now
            if name == "score_so_far":
                batch[name][:] = games[rows[1], _SCORE] - batch[name]
            if moves:
                self._check(batch, _fill_points(rows, games, moves, boards, batch[name]), moves)

    def _check(self, batch: Batch, bad: int, moves: int) -> None:
        """Raise CorpusError for a board that contradicts its game."""
        if bad < 0:
            return
        number, run = (int(each[bad]) for each in numbers_and_runs(batch))
        added, first, _, rate, score, *_ = self._games.table[run].tolist()
        step, name = (number + added + moves - first) * rate, self._runs["run_id"][run]
        raise CorpusError(
            f"the board at step {step} of run {name} contradicts the game's first board, or the "
            f"final score of {score:,}",
            hint="Leave out the game's session. `tape2048 validate` finds wrong scores.",
        )


def _check_session(session: Any, name: str, moves: int) -> int:
    """Return the steps from a row to the next one; raise CorpusError if a field needs boards in between."""
    rate = sample_rate(session)
    if rate != 1 and (moves or not rate):
        msg = f"{name} needs the board after every move; found a session without some of them"
        hint = "Leave this session out, or take windows of its rows."
        raise CorpusError(msg, path=session.path, hint=hint)
    return rate
