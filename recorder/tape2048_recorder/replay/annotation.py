r"""Values, loss and luck of every move of a session, by a player: columns of the session.

A player values the moves of a board by its own search: :math:`q(b, a)`, which it maximises, NaN for an
illegal move. Values are in points of score, or on the scale of ``expectimax``. For the move :math:`a_t`, with
the afterstate :math:`s_t` and the next board :math:`b_{t+1}`,

.. math::

    loss_t &= \max_a q(b_t, a) - q(b_t, a_t) \ge 0 \\
    luck_t &= V_0(b_{t+1}) - E(s_t)

where :math:`V_0` is the value of a board's best move without look-ahead, 0 without a move, and :math:`E(s)`
its expectation over the spawns. ``expectimax`` and ``greedy`` sum it up over the spawns, and so does
``ntuple`` for moves that it looks ahead at. For other moves, :math:`E(s)` is the network's value of the
afterstate, which its training fits to this expectation: luck is then the network's TD error, and costs
nothing. ``ntuple:look_below=16,look_margin=0`` sums up every expectation, and takes many times as long.

``ntuple`` looks ahead only at moves within ``look_margin`` of the best one. On these boards, each other move
keeps its distance to the best move: :math:`q(b, a) = \max q - (\max q_0 - q_0(b, a))`, with :math:`q_0` the
values without look-ahead. A mixture counts as its first part. A board that the player takes for a smaller one
(``downgrade``) has the smaller board's values, as in :mod:`tape2048_recorder.replay.judging`.

Loss and luck are NaN if the move was not recorded and cannot be recovered from two boards. Luck is NaN if the
next board was not recorded. A game's last board is not among its rows: it has no moves, so its value is 0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tape2048.base.threads import map_ordered
from tape2048.errors import ConfigError
from tape2048.game.moves import last_boards, recover, spawn_between
from tape2048.game.rules import EXPONENT_MAX, exps_to_boards, legal_masks, slide
from tape2048.jit.compiler import kernel
from tape2048.players import player_text
from tape2048.session.column_draft import tokens_of
from tape2048.session.columns import ColumnInfo
from tape2048_recorder.game.player_api import NO_MOVE, rate
from tape2048_recorder.players.options import check_player, make_player, own, player_sha256
from tape2048_recorder.replay.judging import downgrade_boards

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from tape2048.session.session import Session

U64 = np.uint64

#: Players that implement :func:`tape2048_recorder.game.player_api.rate`.
VALUED = ("ntuple", "expectimax", "greedy")

_PIECE_ROWS = 1 << 13  # rows of one thread at a time: handing them over takes 1 to 3% of the time


class Annotator:
    """Makes the columns of rows by a player.

    Attributes:
        facts: the player with its parameters, and its SHA-256.
        columns: ``values``, ``best``, ``loss`` and ``luck``.
    """

    def __init__(self, name: str, args: Mapping[str, Any]) -> None:
        full = check_player(name, args)
        if name not in VALUED:
            raise ConfigError(
                f"player {name!r} has no move values", hint=f"Choose another player: {', '.join(VALUED)}."
            )
        self._player = make_player(name, full)
        text = player_text({"player": name, "player_args": full})
        self.facts = {"player": text, "player_sha256": player_sha256(name, self._player)}
        facts = {"maker": "tape2048 annotate", **self.facts}
        self.columns = (
            ColumnInfo("values", "f32", 4, facts={**facts, "moves": True}),
            ColumnInfo("best", "u8", facts={**facts, "moves": True}),
            ColumnInfo("loss", "f32", facts=facts),
            ColumnInfo("luck", "f32", facts=facts),
        )

    def make(self, session: Session, rows: range) -> dict[str, NDArray[Any]]:
        """Return the columns of some rows, made on all cores."""

        def piece(first: int) -> dict[str, NDArray[Any]]:
            return self.annotate(*moves_of(session, range(first, min(first + _PIECE_ROWS, rows.stop))))

        made = list(map_ordered(piece, range(rows.start, rows.stop, _PIECE_ROWS)))
        return {name: np.concatenate([each[name] for each in made]) for name in made[0]}

    def annotate(
        self, boards: NDArray[np.uint64], moves: NDArray[np.uint8], following: NDArray[np.uint64]
    ) -> dict[str, NDArray[Any]]:
        """Return the columns of boards.

        Args:
            boards: ``u64[n]``, before a move.
            moves: ``u8[n]``, the moves that were made; above 3 if unknown.
            following: ``u64[n]``, the board after each move and its spawn; 0 if unknown.
        """
        seen = boards.copy()
        downgrade_boards(seen, U64(getattr(self._player, "downgrade_exponent", 0) or EXPONENT_MAX + 1))
        out: dict[str, NDArray[Any]] = {
            each.name: np.empty((len(boards), *each.shape[1:]), each.numpy_dtype) for each in self.columns
        }
        _fill(own(self._player), (boards, seen, moves, following), tuple(out.values()))
        return out


def moves_of(
    session: Session, rows: range
) -> tuple[NDArray[np.uint64], NDArray[np.uint8], NDArray[np.uint64]]:
    """Return the boards, moves and next boards of some rows, as for :meth:`Annotator.annotate`."""
    end = min(rows.stop + 1, len(session))
    owners = session.run_index(slice(rows.start, end))
    if session.tape is not None:
        boards = session.tape.boards(rows.start, end)
        moves = session.tape.moves(slice(rows.start, end))
        steps = np.arange(rows.start, end) - session.tape.first_rows[owners]
    else:
        records = session.read_rows(rows.start, end)
        boards = exps_to_boards(tokens_of(session, range(rows.start, end)))
        steps = records["step_idx"].astype(np.int64)
        moves = np.full(len(boards), NO_MOVE, np.uint8)
        if "action" in (records.dtype.names or ()):
            moves = np.ascontiguousarray(records["action"])
        else:
            moves[:-1] = recover(boards).moves
    n = len(rows)
    following = np.zeros(n, np.uint64)
    adjacent = (owners[1:] == owners[:-1]) & (steps[1:] == steps[:-1] + 1)
    following[: len(adjacent)] = np.where(adjacent, boards[1:], U64(0))
    last = np.flatnonzero(steps[:n] + 1 == session.runs["steps"][owners[:n]])
    last = last[moves[last] < NO_MOVE]
    finals, _ = last_boards(boards[last], moves[last])
    following[last] = np.where(legal_masks(finals) == 0, finals, U64(0))
    return boards[:n], moves[:n], following


@kernel
def _fill(player: Any, given: Any, out: Any) -> None:
    boards, seen, moves, following = given
    values, best, loss, luck = out
    rows = boards.shape[0]
    apart = np.empty(4, np.float32)
    mean = np.float32(np.nan)  # the expectation of the row before, if this board follows it
    for i in range(rows):
        move, row = U64(moves[i]), values[i]
        now, own_mean = rate(player, seen[i], move, row)
        if i > 0 and not np.isnan(mean):
            luck[i - 1] = now - mean
        top = 0
        for m in range(1, 4):
            top = m if row[m] > row[top] or np.isnan(row[top]) else top
        best[i] = top
        loss[i] = row[top] - row[move] if move < NO_MOVE else np.float32(np.nan)
        luck[i] = mean = np.float32(np.nan)
        has_spawn = move < NO_MOVE and following[i] != U64(0)
        if has_spawn and spawn_between(boards[i], move, following[i]) != U64(0):
            # The spawn after the seen board: of the same cell and tile.
            after = slide(seen[i], move) | (slide(boards[i], move) ^ following[i])
            if i + 1 < rows and after == seen[i + 1]:
                mean = own_mean
            else:
                luck[i] = rate(player, after, NO_MOVE, apart)[0] - own_mean
