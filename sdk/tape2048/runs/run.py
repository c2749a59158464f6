"""Runs in memory: one game, independent of its file's format.

A run of ``n`` moves has ``n + 1`` boards (``states``): the first one, and the one after each move and its
spawn.

A session identifies its games by player and seed; run files have no fields for these. A run from a recorded
session carries them in its engine's text ::

    tape2048 0.1.0 expectimax player_sha256=<64 hex digits> seed=<number>

and :func:`tape2048.conversion.session_runs.write_session` reads them back, so that a game keeps its identity
(which splits hash) through every format.
"""

from __future__ import annotations

import dataclasses
import math
import re
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np

from tape2048.base.text import counted, is_utf8
from tape2048.errors import FieldError
from tape2048.formats.rows import ROW_DTYPE, RowView, row_numbers

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable
    from typing import Any, Self

    from numpy.typing import ArrayLike, NDArray


_IDENTITY = re.compile(
    r"(?P<engine>.*?) ?\bplayer_sha256=(?P<player>[0-9a-f]{64}) seed=(?P<seed>0|[1-9][0-9]{0,19})", re.DOTALL
)


class Identity(NamedTuple):
    """A game's player and seed, and the rest of its engine's text."""

    engine: str
    player_sha256: str
    seed: int


def engine_text(engine: str, player_sha256: str, seed: int) -> str:
    """Return an engine's text that carries a game's identity; :func:`identity_of` reads it."""
    return f"{engine} player_sha256={player_sha256} seed={seed}".lstrip()


def identity_of(engine: str | None) -> Identity | None:
    """Return the identity that an engine's text carries, or None."""
    match = _IDENTITY.fullmatch(engine) if engine is not None else None
    if match is None or int(match["seed"]) >= 2**64:
        return None
    return Identity(match["engine"], match["player"], int(match["seed"]))


def split_seed(engine: str | None) -> tuple[str | None, int | None]:
    """Split the seed off an engine's text; thousands of runs share the rest."""
    if engine is None or identity_of(engine) is None:
        return engine, None
    text, _, seed = engine.rpartition(" seed=")
    return text, int(seed)


def join_seed(engine: str | None, seed: int | None) -> str | None:
    """Undo :func:`split_seed`."""
    return engine if seed is None else f"{engine} seed={seed}"


#: The largest values that fit every run format's fields.
_UNSIGNED_MAX = {
    "steps": 2**32 - 1,
    "start_unix_s": 2**64 - 1,
    "max_score": 2**64 - 1,
    "highest_tile": 2**32 - 1,
}
_U64, _U8, _F32, _BOOL = map(np.dtype, (np.uint64, np.uint8, np.float32, np.bool_))
_FLOAT32_MAX = float(np.finfo(np.float32).max)


class RunMeta(msgspec.Struct, frozen=True):
    """Metadata of a run.

    Attributes:
        steps: moves made.
        start_unix_s: start, seconds since 1970 (UTC); 0 where unknown.
        elapsed_s: wall time in seconds; files hold it as a float32.
        max_score: the score at the end; some files of other programs hold the board score here.
        highest_tile: the tile's value (8192), not its exponent.
        engine: name of the player, or None.

    Example:
        >>> from tape2048.runs import RunMeta
        >>> RunMeta(steps=3).engine is None
        True
    """

    steps: int
    start_unix_s: int = 0
    elapsed_s: float = 0.0
    max_score: int = 0
    highest_tile: int = 0
    engine: str | None = None


def check_meta(meta: RunMeta, path: str | os.PathLike[str] | None = None, **highest: int) -> None:
    """Raise unless the fields of every run format can hold the metadata; ``highest`` are narrower limits."""
    for name, limit in (_UNSIGNED_MAX | highest).items():
        value = getattr(meta, name)
        if not isinstance(value, int | np.integer) or not 0 <= value <= limit:
            raise FieldError(f"{name} is {value!r}; expected a whole number from 0 to {limit}", path=path)
    try:
        fits = math.isfinite(meta.elapsed_s) and abs(meta.elapsed_s) <= _FLOAT32_MAX
    except (TypeError, OverflowError):  # not a number, or too large for a float
        fits = False
    if not fits:
        raise FieldError(f"elapsed_s is {meta.elapsed_s!r}; expected a finite float32", path=path)
    engine: object = meta.engine
    if engine is not None and not (isinstance(engine, str) and is_utf8(engine)):
        raise FieldError(f"engine is {engine!r}; expected text or None", path=path)


def read_engine(raw: bytes, path: str | os.PathLike[str] | None, offset: int, whose: str = "") -> str:
    """Decode the engine of a run's file; a FieldError names ``path``, and the offset of the invalid byte."""
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        message = f"the engine{whose} is not UTF-8: {error.reason}"
        raise FieldError(message, path=path, offset=offset + error.start) from error


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Run(RowView):
    """One game: its boards, moves and, where the source has them, branch values.

    As a source of rows it has one row a step, ``run_id`` 0; see :mod:`tape2048.formats.rows`.

    Attributes:
        states: ``u64[n + 1]``: the first board, then the board after each move and spawn.
        moves: ``u8[n]``: 0 up, 1 down, 2 left, 3 right.
        meta: metadata of the run; ``meta.steps`` is n.
        branch_values: ``f32[n, 4]`` (UDLR) as in the source, 0 for no value; None where the format stores no
            branch values.
        branch_legal: ``u8[n]``: bit ``m`` set where the source says ``Legal`` for move ``m`` (some
            files say ``Legal(0.0)`` of illegal moves); None as above.
        has_branches: ``bool[n]``: whether the source has branch values for this step; None as above.

    Example:
        >>> from tape2048.runs import Run, RunMeta
        >>> run = Run.from_boards([0x11], [3], 0x21, RunMeta(steps=1))
        >>> run, run.states.tolist(), run[0]["move"]
        (<Run: 1 step, score 0, highest tile 0>, [17, 33], np.uint8(3))
    """

    states: NDArray[np.uint64]
    moves: NDArray[np.uint8]
    meta: RunMeta
    branch_values: NDArray[np.float32] | None = None
    branch_legal: NDArray[np.uint8] | None = None
    has_branches: NDArray[np.bool_] | None = None

    def __post_init__(self) -> None:
        steps = self.meta.steps
        _check_array("states", self.states, (steps + 1,), _U64)
        _check_array("moves", self.moves, (steps,), _U8)
        if self.branch_values is None and self.branch_legal is None and self.has_branches is None:
            return
        _check_array("branch_values", self.branch_values, (steps, 4), _F32)
        _check_array("branch_legal", self.branch_legal, (steps,), _U8)
        _check_array("has_branches", self.has_branches, (steps,), _BOOL)

    @classmethod
    def from_boards(
        cls, boards: ArrayLike, moves: ArrayLike, final_board: int, meta: RunMeta, **branches: Any
    ) -> Self:
        """Make a run from the boards before each move and the final board.

        Args:
            boards: ``u64[n]``.
            moves: ``u8[n]``.
            final_board: the board after the last move and its spawn.
            meta: metadata of the run.
            branches: the three branch arrays, by name.

        Raises:
            ValueError: lengths or types do not agree, or a number does not fit its type.
        """
        states = np.append(_unsigned("boards", boards, _U64), _unsigned("final_board", [final_board], _U64))
        return cls(states, _unsigned("moves", moves, _U8), meta, **branches)

    @property
    def boards(self) -> NDArray[np.uint64]:
        """``u64[n]``: the board before each move; a view of ``states``."""
        return self.states[:-1]

    @property
    def final_board(self) -> int:
        """The board after the last move and its spawn."""
        return int(self.states[-1])

    def __len__(self) -> int:
        """Number of steps, n."""
        return len(self.moves)

    def __repr__(self) -> str:
        meta = self.meta
        return (
            f"<{type(self).__name__}: {counted(meta.steps, 'step')}, score {meta.max_score:,}, "
            f"highest tile {meta.highest_tile}>"
        )

    def get_batch(self, indices: ArrayLike) -> NDArray[np.void]:
        """Return the steps with these numbers: ``ROW_DTYPE[len(indices)]``; see :class:`RowView`."""
        numbers = row_numbers(indices, len(self))
        rows = np.zeros(len(numbers), ROW_DTYPE)
        rows["board"] = self.states[numbers]
        rows["move"] = self.moves[numbers]
        if self.branch_legal is not None and self.branch_values is not None:
            rows["ev_legal"] = self.branch_legal[numbers]
            rows["ev_values"] = self.branch_values[numbers]
        rows["step_index"] = numbers
        return rows

    def equals(self, other: Run) -> bool:
        """Compare all bits: boards, moves, metadata, branch values (NaN included)."""

        def bits(run: Run) -> list[bytes | None]:
            arrays = (run.states, run.moves, run.branch_values, run.branch_legal, run.has_branches)
            return [None if array is None else array.tobytes() for array in arrays]

        return self.meta == other.meta and bits(self) == bits(other)


def _unsigned(name: str, values: ArrayLike, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Convert numbers to an unsigned type without rounding or wrapping."""
    if isinstance(values, np.ndarray) and values.dtype == dtype:
        return values
    # As objects: NumPy turns a list with boards below and above 2**63 into floats.
    given = np.asarray(values, object)
    for value in given.flat:
        if not isinstance(value, int | np.integer) or not 0 <= value < 1 << 8 * dtype.itemsize:
            raise ValueError(f"{name}: found {value!r}, expected a number of {dtype}")
    return given.astype(dtype)


def _check_array(name: str, array: NDArray[Any] | None, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
    if array is None:
        raise ValueError(f"{name} is missing; expected all three branch arrays or none")
    if not isinstance(array, np.ndarray):
        raise TypeError(f"{name} is a {type(array).__name__}; expected {dtype}{list(shape)}")
    if array.shape != shape or array.dtype != dtype:
        raise ValueError(f"{name} is {array.dtype}{list(array.shape)}; expected {dtype}{list(shape)}")


class RunRows(RowView):
    """The steps of several runs as one source of rows, in the order of the runs.

    Args:
        runs: the runs; a step takes 34 bytes of memory, and ``run_id`` is the run's ordinal.

    Example:
        >>> from tape2048.runs import RunRows, read_run
        >>> run = read_run("runs/golden.a2run")
        >>> len(RunRows([run, run])) == 2 * len(run)
        True
    """

    def __init__(self, runs: Iterable[Run]) -> None:
        parts = [run[:] for run in runs]
        for number, part in enumerate(parts):
            part["run_id"] = number
        self._runs = len(parts)
        self._rows = np.concatenate([np.empty(0, ROW_DTYPE), *parts])

    def __len__(self) -> int:
        """Number of steps of all runs."""
        return len(self._rows)

    def __repr__(self) -> str:
        return f"<RunRows: {counted(len(self), 'row')}, {counted(self._runs, 'run')}>"

    def get_batch(self, indices: ArrayLike) -> NDArray[np.void]:
        """Return the rows with these numbers: ``ROW_DTYPE[len(indices)]``; see :class:`RowView`."""
        return self._rows.take(row_numbers(indices, len(self)))
