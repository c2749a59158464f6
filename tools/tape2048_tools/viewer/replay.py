"""One game for the page that replays it: its boards, moves and spawns, judged move by move.

The page gets one block of bytes (:func:`pack`): the length of a JSON header (``u32``), the header, and arrays
at multiples of 8 bytes from there on. A game is its first board and a byte for each move, from which the page
makes the boards again: bits 0-1 the move, bits 2-5 the cell of the spawn, bit 6 whether it is a 4.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np

from tape2048.conversion.session_runs import boards_of, session_run
from tape2048.errors import FormatError, ReplayError
from tape2048.game.moves import UNKNOWN, recover
from tape2048.game.rules import boards_to_exps
from tape2048.session.session import Session
from tape2048_tools.viewer.collection import find_run

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from tape2048_recorder.replay.judging import Judged

#: Points of the critic's curves in a report: as many as a wide screen shows.
_CURVE_POINTS = 1500

#: Units of values in points, of a report, and of probabilities.
_POINT = 1.0
_PROBABILITY = 1 / 65_535


class Game(NamedTuple):
    """A game as its boards and moves.

    Attributes:
        states: ``u64[n + 1]``, boards.
        moves: ``u8[n]``; 255 where no move leads from a board to the next one.
        numbers: ``i64[n + 1]``, number of the move before which each board stood; None: 0, 1, ...
        notes: what the recording lacks.
    """

    states: NDArray[np.uint64]
    moves: NDArray[np.uint8]
    numbers: NDArray[np.int64] | None = None
    notes: tuple[str, ...] = ()

    @property
    def exps(self) -> NDArray[np.uint8]:
        """The boards as exponents, ``u8[n + 1, 16]``."""
        return boards_to_exps(self.states)

    @property
    def is_whole(self) -> bool:
        """Whether a known move leads from each board to the next one."""
        return self.numbers is None and not (self.moves > 3).any()

    def step_of(self, position: np.integer[Any]) -> int:
        """Return the number of the move before which a board stood."""
        return int(position if self.numbers is None else self.numbers[position])


def read_game(path: Path, ids: Sequence[int], *, replayed: bool = False) -> Iterator[Game]:
    """Read games of a session.

    Args:
        path: the session.
        ids: of its runs.
        replayed: whether to play again what is not recorded, with the session's player where it is known.

    Raises:
        TapeError: the session is damaged or gone, or has no such run.
    """
    session = Session.open(path)
    order = np.argsort(session.runs["id"], kind="stable")
    table = session.runs[order]
    play = _player_of(session) if replayed and session.tape is None else None  # a tape holds all
    for run in ids:
        yield _read(session, int(order[find_run(table, run)]), play)


def _player_of(session: Session) -> Any:
    from tape2048_recorder.replay.playing import replayer

    try:
        return replayer(session.path, session.meta)
    except FormatError:
        return None  # not a player that can play again; what is recorded is shown


def _read(session: Session, ordinal: int, play: Any) -> Game:
    notes: list[str] = []
    try:
        if play is not None:
            try:
                run, certain, lost = session_run(session, ordinal, play)
            except FormatError as error:
                notes.append(f"not played again: {error.message}")
                run, certain, lost = session_run(session, ordinal, lossy=True)
        else:
            run, certain, lost = session_run(session, ordinal, lossy=True)
    except ReplayError as error:
        rows = session.rows_of(ordinal)
        boards = boards_of(rows, f"run {session.runs['id'][ordinal]}", session.path)
        if not len(boards):
            raise
        found = recover(boards).moves
        return Game(boards, found, rows["step_idx"].astype(np.int64), (*notes, error.message))
    if not certain:
        notes.append("the last spawn is not recorded: shown is the likelier one")
    if lost:
        notes.append(f"not recorded: {', '.join(lost)}")
    return Game(run.states, run.moves, None, tuple(notes))


def pack(
    facts: Mapping[str, Any],
    game: Game,
    judged: Judged | None,
    critic: NDArray[np.float32] | None,
    *,
    small: bool = False,
) -> bytes:
    """Return a game for the page.

    Args:
        facts: what else the page says of it, as JSON.
        game: the game.
        judged: values, losses and luck; None without a judge, or where not all moves are known.
        critic: probabilities of the boards, ``f32[n + 1, T]``; None without.
        small: leave out the values of all four moves, and round: for a report.
    """
    arrays: dict[str, tuple[NDArray[Any], dict[str, Any]]] = {}
    known = recover(game.states, game.moves) if game.is_whole else None
    if known is not None and not (known.moves == UNKNOWN).any():
        fours = (known.exponents - 1).astype(np.uint8)
        arrays["steps"] = (game.moves | known.cells << 2 | fours << 6).astype(np.uint8), {}
    else:
        arrays["boards"] = game.exps, {}
        arrays["moves"] = game.moves, {}
    if game.numbers is not None:
        arrays["numbers"] = game.numbers.astype(np.uint32), {}
    if judged is not None:
        unit = _POINT if facts.get("judge", {}).get("unit") == "points" else _PROBABILITY
        if small:
            arrays["state"] = _whole(judged.state, unit, np.int32)
            arrays["loss"] = _whole(np.nan_to_num(judged.loss), unit, np.int32)
            arrays["luck"] = _whole(np.nan_to_num(judged.luck), unit, np.int32)
        else:
            arrays["state"] = judged.state.astype(np.float64), {}
            arrays["loss"] = judged.loss.astype(np.float32), {}
            arrays["luck"] = judged.luck.astype(np.float32), {}
            arrays["values"] = judged.values.astype(np.float32), {}
    if critic is not None:
        stride = -(-len(critic) // _CURVE_POINTS) if small else 1
        arrays["critic"] = _whole(critic[::stride].T, _PROBABILITY, np.uint16)
    first = game.exps[0].tolist()
    return _packed({**facts, "first": first, "count": len(game.moves), "notes": game.notes}, arrays)


def _whole(values: NDArray[Any], unit: float, dtype: type[np.integer[Any]]) -> tuple[Any, dict[str, Any]]:
    """Return values in units, each as the difference to the one before, which compresses well."""
    units = np.round(np.atleast_2d(values) / unit).astype(np.int64)
    return np.diff(units, prepend=0, axis=1).astype(dtype), {"unit": unit, "rows": len(units)}


_TYPES = {"u1": "u8", "u2": "u16", "u4": "u32", "i4": "i32", "f4": "f32", "f8": "f64"}


def _packed(header: dict[str, Any], arrays: dict[str, tuple[NDArray[Any], dict[str, Any]]]) -> bytes:
    described, parts, at = [], [], 0
    for name, (array, how) in arrays.items():
        data = np.ascontiguousarray(array).tobytes()
        kind = _TYPES[array.dtype.str[1:]]
        described.append({"name": name, "type": kind, "at": at, "count": array.size, **how})
        padding = -len(data) % 8
        parts.append(data + b"\0" * padding)
        at += len(data) + padding
    text = msgspec.json.encode({**header, "arrays": described})
    text += b" " * (-(len(text) + 4) % 8)
    return len(text).to_bytes(4, "little") + text + b"".join(parts)
