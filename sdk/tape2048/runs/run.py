"""Runs in memory: games, independent of the formats of their files.

A run of ``n`` moves has ``n + 1`` boards (``states``): the first board, and the board after each move and its
spawn.

A **row** is one step: the board before the move, the move, and the file's values of the four branches. Its
fields equal the fields of a data set directory, so that code for one format reads the others:

===========  =======  ==================================================================
field        type     meaning
===========  =======  ==================================================================
board        ``<u8``  the board before the move, packed
move         ``u1``   0 up, 1 down, 2 left, 3 right
ev_legal     ``u1``   bit ``m`` is set if the source calls move ``m`` legal; 0: no values
ev_values    ``<f4``  [4] branch values of the source, or 0
run_id       ``<u4``  the run's ordinal in its source
step_index   ``<u4``  0-based move number within the run
===========  =======  ==================================================================

``step_index`` is wider than in the data set directory, since a run file may hold more steps.
"""

from __future__ import annotations

import dataclasses
import itertools
import logging
import math
from collections import Counter
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self, TypeAlias

import msgspec
import numpy as np

from tape2048.base.drawing import boards_html, exps_of
from tape2048.base.text import counted, facts_table, is_utf8
from tape2048.base.threads import map_ordered
from tape2048.errors import BookkeepingError, FieldError, ReplayError, TapeError
from tape2048.files.row_source import RowView, row_numbers
from tape2048.runs.games import GameKey, SeenGames
from tape2048.session.layout import RULES_1, TOP_TILE
from tape2048.session.tape_layout import GAME_STEPS_MAX

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import ArrayLike, NDArray

    from tape2048.session.session import Session

    #: A run, then the other fields of :class:`SourceRun`.
    RunFacts = tuple["Run", *tuple[Any, ...]]
    Check = Callable[["Run"], "Run"]

    #: Plays a game again: from its seed, its number of moves and the board that it was given to start from
    #: (or 0) to its boards, ``u64[n + 1]``, and its moves, ``u8[n]``. If the number of moves is wrong, n
    #: differs from it.
    Play = Callable[[int, int, int], tuple[NDArray[np.uint64], NDArray[np.uint8]]]

    #: Makes the :data:`Play` of a session's player, from the session's path and its facts; raises ReplayError
    #: if that player is not available here.
    Replayer = Callable[[Path, Mapping[str, Any]], Play]


#: One row, packed. ``board`` is the first field, so that a batch's boards are a plain strided view.
ROW_DTYPE = np.dtype(
    [
        ("board", "<u8"),
        ("move", "u1"),
        ("ev_legal", "u1"),
        ("ev_values", "<f4", (4,)),
        ("run_id", "<u4"),
        ("step_index", "<u4"),
    ]
)

#: The largest number of steps that the rules allow, and the largest values that fit every format's fields.
_UNSIGNED_MAX = {
    "steps": GAME_STEPS_MAX,
    "start_unix_s": 2**64 - 1,
    "max_score": 2**64 - 1,
    "highest_tile": 2**32 - 1,
}
#: Most bytes of an engine: A2T1 and pack.dat have 16 bits for their number.
ENGINE_BYTES_MAX = 2**16 - 1
_U64, _U8, _F32, _BOOL = map(np.dtype, (np.uint64, np.uint8, np.float32, np.bool_))


class RunMeta(msgspec.Struct, frozen=True):
    """Metadata of a run.

    Attributes:
        steps: number of moves.
        start_unix_s: start in seconds since 1970 (UTC); 0 if unknown.
        elapsed_s: wall time in seconds; files hold it as a float32.
        max_score: score at the end. In files of some other programs, this is the board score.
        highest_tile: value of the highest tile (8192), not its exponent.
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


#: Integers of 64 bits in JSON lines, as numbers or as text.
U64: TypeAlias = Literal["number", "text"]


class SkippedRun(msgspec.Struct, frozen=True):
    run: str
    error: str
    message: str

    @classmethod
    def of(cls, name: str, error: TapeError) -> SkippedRun:
        return cls(name, type(error).__name__, error.message)


def check_meta(meta: RunMeta, path: str | os.PathLike[str] | None = None, **highest: int) -> None:
    """Raise FieldError unless every run format can hold the metadata; ``highest`` are narrower limits."""
    for name, limit in (_UNSIGNED_MAX | highest).items():
        value = getattr(meta, name)
        if not isinstance(value, int | np.integer) or not 0 <= value <= limit:
            raise FieldError(f"{name} is {value!r}; expected a whole number from 0 to {limit}", path=path)
    try:
        with np.errstate(over="ignore"):
            fits = math.isfinite(meta.elapsed_s) and bool(np.isfinite(np.float32(meta.elapsed_s)))
    except (TypeError, OverflowError):  # not a number, or too large for a float
        fits = False
    if not fits:
        raise FieldError(f"elapsed_s is {meta.elapsed_s!r}; expected a finite float32", path=path)
    engine: object = meta.engine
    if engine is not None and not (isinstance(engine, str) and is_utf8(engine)):
        raise FieldError(f"engine is {engine!r}; expected text or None", path=path)
    check_engine(len((meta.engine or "").encode()), path)


def check_engine(length: int, path: str | os.PathLike[str] | None = None, offset: int | None = None) -> None:
    if length > ENGINE_BYTES_MAX:
        text = f"engine has {length} bytes; expected at most {ENGINE_BYTES_MAX}"
        raise FieldError(text, path=path, offset=offset)


def check_step_count(
    steps: int, path: str | os.PathLike[str] | None = None, offset: int | None = None
) -> None:
    """Raise FieldError for more steps than a game can have, before they take memory."""
    if steps > GAME_STEPS_MAX:
        text = f"found {steps} steps; expected at most {GAME_STEPS_MAX}, as no game is longer"
        raise FieldError(text, path=path, offset=offset)


def read_engine(raw: bytes, path: str | os.PathLike[str] | None, offset: int, whose: str = "") -> str:
    """Decode the engine of a run's file; raise FieldError with the offset of an invalid byte."""
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        message = f"the engine{whose} is not UTF-8: {error.reason}"
        raise FieldError(message, path=path, offset=offset + error.start) from error


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Run(RowView):
    """A game: its boards, its moves and, if the source has them, its branch values.

    As a source of rows, it has one row for each step, with ``run_id`` 0; see
    :mod:`tape2048.files.row_source`.

    Attributes:
        states: ``u64[n + 1]``: the first board, then the board after each move and spawn.
        moves: ``u8[n]``: 0 up, 1 down, 2 left, 3 right.
        meta: metadata of the run; ``meta.steps`` is n.
        branch_values: ``f32[n, 4]`` (up, down, left, right), as in the source, 0 for no value; None if the
            format stores no branch values.
        branch_legal: ``u8[n]``: bit ``m`` is set if the source calls move ``m`` legal, which some files do
            for illegal moves; None as above.
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
        n, given = self.meta.steps, (self.branch_values, self.branch_legal, self.has_branches)
        due: list[tuple[str, tuple[int, ...], Any]] = [("states", (n + 1,), _U64), ("moves", (n,), _U8)]
        if any(array is not None for array in given):
            due += [
                ("branch_values", (n, 4), _F32),
                ("branch_legal", (n,), _U8),
                ("has_branches", (n,), _BOOL),
            ]
        for name, shape, dtype in due:
            array = getattr(self, name)
            if array is None:
                raise ValueError(f"{name} is missing; expected all three branch arrays or none")
            if not isinstance(array, np.ndarray):
                raise TypeError(f"{name} is a {type(array).__name__}; expected {dtype}{list(shape)}")
            if array.shape != shape or array.dtype != dtype:
                raise ValueError(f"{name} is {array.dtype}{list(array.shape)}; expected {dtype}{list(shape)}")

    @classmethod
    def from_boards(
        cls,
        boards: ArrayLike,
        moves: ArrayLike,
        final_board: int,
        meta: RunMeta,
        *,
        branch_values: NDArray[np.float32] | None = None,
        branch_legal: NDArray[np.uint8] | None = None,
        has_branches: NDArray[np.bool_] | None = None,
    ) -> Self:
        """Make a run from the boards before each move and the final board.

        Raises:
            ValueError: lengths or types do not agree, or a number does not fit its type.
        """
        states = np.append(_unsigned("boards", boards, _U64), _unsigned("final_board", [final_board], _U64))
        made = _unsigned("moves", moves, _U8)
        return cls(states, made, meta, branch_values, branch_legal, has_branches)

    @property
    def boards(self) -> NDArray[np.uint64]:
        """The board before each move, ``u64[n]``, a view of ``states``."""
        return self.states[:-1]

    @property
    def final_board(self) -> int:
        """The board after the last move and its spawn."""
        return int(self.states[-1])

    def __len__(self) -> int:
        return len(self.moves)

    def __repr__(self) -> str:
        meta = self.meta
        facts = f"score {meta.max_score:,}, highest tile {meta.highest_tile}"
        return f"<{type(self).__name__}: {counted(meta.steps, 'step')}, {facts}>"

    def _repr_html_(self) -> str:
        meta, last = self.meta, len(self)
        facts: dict[str, object] = {"moves": meta.steps, "score": meta.max_score}
        facts["highest tile"] = meta.highest_tile
        if meta.engine:
            facts["played by"] = meta.engine.partition(" player_sha256=")[0]
        steps = sorted({0, last // 2, last})
        boards = [(exps_of(int(self.states[step])), f"before move {step:,}") for step in steps[:-1]]
        final = exps_at(self.states, self.moves, last)
        return facts_table("Run", facts) + boards_html([*boards, (final, "final board")])

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
        """Check whether all bits are equal: boards, moves, metadata, branch values (NaN included)."""

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
            raise ValueError(f"{name}: found {value!r}, expected a number that {dtype} can hold")
    return given.astype(dtype)


def check_rules(run: Run) -> Run:
    """Return the run if its steps, score and highest tile obey the rules of the game.

    The score may be the score of the moves, or the board score. If the run starts in the middle of a game,
    the score may also include earlier merges. If the run lacks its last move, as after some conversions, the
    score and the highest tile may be from after that move.

    Raises:
        ReplayError: a move is illegal, or is not followed by one new 2 or 4. The message has the step.
        BookkeepingError: the score or the highest tile does not follow from the steps.

    Example:
        >>> from tape2048.runs import check_rules, read_run
        >>> len(check_rules(read_run("runs/golden.a2run"))) > 0
        True
    """
    from tape2048.game.moves import find_fault
    from tape2048.game.rules import final_exponent, slide, wins

    if not len(run):
        return run
    # Copies: numba would compile once more for a mapped file, whose boards are unaligned and read-only.
    states, moves, meta = np.array(run.states), np.array(run.moves), run.meta
    step, merged = find_fault(states, moves, np.uint64(meta.max_score), np.uint64(meta.highest_tile))
    if step < 0:
        return run
    hint = "leave the run out, or restore it from a copy: it was made by other rules, or is damaged"
    if step == len(run):
        raise BookkeepingError(
            f"max_score is {meta.max_score} and highest_tile {meta.highest_tile}. "
            f"The steps end with {merged} and {1 << final_exponent(states[-1])}",
            hint=hint,
        )
    board, following = int(states[step]), int(states[step + 1])
    after = int(slide(states[step], moves[step])) if moves[step] < 4 else board
    found = {following: "no new tile", board: "an illegal move"}.get(after, "other merges or new tiles")
    if after != board and wins(states[step], moves[step]):
        found = RULES_1
    raise ReplayError(
        f"step {step}: move {moves[step]} and one spawned 2 or 4 do not lead from board "
        f"{board:#018x} to {following:#018x}: {found}",
        hint=hint,
    )


def exps_at(states: Sequence[int] | NDArray[Any], moves: Sequence[int] | NDArray[Any], at: int) -> list[int]:
    """Return the 16 exponents of the board at a step, with a 16 for a 65536 that the last move made."""
    if states[at] or not at:
        return exps_of(int(states[at]))
    from tape2048.game.rules import exps_after

    return [*map(int, exps_after(int(states[at - 1]), int(moves[at - 1])))]


def until_win(run: Run) -> Run:
    """Cut a run after the first merge to 65536; ReplayError if it is of this program, under rules 1."""
    from tape2048.game.moves import find_fault, find_win

    if run.meta.highest_tile < 1 << 15:
        return run
    states, moves = np.array(run.states), np.array(run.moves)
    steps = find_win(states, moves) + 1
    if steps > len(run) or not states[steps]:
        return run
    if "tape2048" in (run.meta.engine or ""):
        raise ReplayError(f"step {steps - 1}, board {states[steps - 1]:#018x}: {RULES_1}")
    states[steps] = 0
    _, score = find_fault(states[: steps + 1], moves[:steps], np.uint64(0), np.uint64(0))
    return first_steps(
        dataclasses.replace(run, states=states), steps, max_score=int(score), highest_tile=TOP_TILE
    )


def first_steps(run: Run, steps: int, **facts: Any) -> Run:
    """Return the first steps of a run, with changed fields of its metadata."""
    names = ("moves", "branch_values", "branch_legal", "has_branches")
    parts = {name: None if (array := getattr(run, name)) is None else array[:steps] for name in names}
    meta = msgspec.structs.replace(run.meta, steps=steps, **facts)
    return dataclasses.replace(run, states=run.states[: steps + 1], meta=meta, **parts)  # type: ignore[arg-type]


class RunRows(RowView):
    """A source of rows with the steps of several runs, in the order of the runs.

    A step takes 34 bytes of memory. ``run_id`` is the position of the run, from 0.

    Args:
        runs: the runs.

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
        return len(self._rows)

    def __repr__(self) -> str:
        return f"<RunRows: {counted(len(self), 'row')}, {counted(self._runs, 'run')}>"

    def get_batch(self, indices: ArrayLike) -> NDArray[np.void]:
        """Return the rows with these numbers: ``ROW_DTYPE[len(indices)]``; see :class:`RowView`."""
        return self._rows.take(row_numbers(indices, len(self)))


#: Runs that one thread decodes together.
_JOB_RUNS = 16


class SourceRun(NamedTuple):
    """One run of a source, or its error.

    Example:
        >>> from tape2048.runs import open_source
        >>> [found.error for found in open_source("runs/golden.a2run").runs()]
        [None]
    """

    name: str  # of the run for people: a file's path, an entry's number, or a run's id
    run: Run | None
    ending_known: bool = True  # whether the final board is certain; otherwise, it is a candidate
    values_lost: int = 0  # steps without the value of the chosen move, which the source does not hold
    lost: tuple[str, ...] = ()  # losses that `lossy` permitted, such as the last move
    id: int | None = None  # in its session; None for other sources
    given_start: bool = False  # whether it started from a given board, as its session says
    place: tuple[int, int] | None = None  # its session's index in `RunSource.sessions`, and its run there
    error: TapeError | None = None

    @property
    def skipped(self) -> SkippedRun:
        """Name and error of a run that could not be read."""
        assert self.error is not None
        return SkippedRun.of(self.name, self.error)

    @classmethod
    def attempt(
        cls, name: str, read: Callable[[Any], RunFacts], item: Any, check: Check = check_rules
    ) -> SourceRun:
        """Return the run and facts that ``read`` returns, or the error of ``read`` or ``check``."""
        try:
            run, *facts = read(item)
            return cls(name, check(until_win(run)), *facts)
        except TapeError as error:
            return cls(name, None, error=error.detach())

    def checked(self) -> Run:
        """Return the run, or raise its error."""
        if self.error is not None:
            raise self.error
        assert self.run is not None
        return self.run


@dataclasses.dataclass(frozen=True, repr=False, eq=False)
class RunSource:
    """A source of runs."""

    path: Path
    kind: str  # a format, or "run", "runs" or "sessions"
    count: int  # damaged runs included
    _items: Callable[[], Iterable[tuple[str, Any]]]  # names, and what `_read` takes
    _read: Callable[[Any], RunFacts]
    columns: tuple[str, ...] = ()  # that do not become part of its runs
    games: SeenGames | None = None  # of this source and others, without copies; None: of this source alone
    place: int = 0  # of this source among them
    sessions: tuple[Session, ...] = ()  # that hold its runs

    def __repr__(self) -> str:
        return f"<RunSource {self.path}: {self.kind}, {self.count:,} runs>"

    def warn_of_columns(self, held: Collection[str] = ()) -> None:
        """Log a warning that names the columns, except those that the target holds."""
        if lost := [name for name in self.columns if name not in held]:
            found = f"{self.path}: columns left out: {', '.join(lost)}"
            logging.getLogger("tape2048").warning("%s", found)

    def runs(self, workers: int | None = None) -> Iterator[SourceRun]:
        """Decode every run on several threads; iterate over them in order, without copies of a game."""
        for found in self.map(lambda runs: runs, workers):
            yield from found

    def map(self, work: Callable[[list[SourceRun]], list[Any]], workers: int | None = None) -> Iterator[Any]:
        """Do as :meth:`every`, and leave out the results of copies of a game."""
        games = self.games or SeenGames([str(self.path)])
        found: Counter[int] = Counter()

        def job(runs: list[SourceRun]) -> list[tuple[Run | None, GameKey | None, Any]]:
            keys = [None if one.run is None else GameKey.of(one.run) for one in runs]
            return [*zip([one.run for one in runs], keys, work(runs), strict=True)]

        number = 0
        for group in self.every(job, workers):
            kept = []
            for run, key, result in group:
                first = -1 if run is None or key is None else games.source_of(self.place, number, run, key)
                kept += [result] if first < 0 else []
                found[first] += 1
                number += 1
            yield kept
        del found[-1]
        games.report(self.place, found)

    def every(
        self,
        work: Callable[[list[SourceRun]], list[Any]],
        workers: int | None = None,
        check: Check = check_rules,
    ) -> Iterator[Any]:
        """Apply ``work``, which returns a result for each run, to groups of runs on the threads that decode.

        The groups of results come in the order of the runs.
        """

        def job(items: list[tuple[str, Any]]) -> Any:
            return work([SourceRun.attempt(name, self._read, item, check) for name, item in items])

        items = iter(self._items())
        return map_ordered(job, iter(lambda: list(itertools.islice(items, _JOB_RUNS)), []), workers)


class Tables(NamedTuple):
    """A source with run tables, which show the games that it shares with other sources."""

    sessions: Sequence[Session]
    serve: Callable[[list[NDArray[np.int64]]], RunSource]  # of the given runs of each session


def numbered(
    path: Path, kind: str, count: int, name: Callable[[int], str], read: Callable[[int], RunFacts]
) -> RunSource:
    """Make a source whose runs have the numbers 0 to ``count - 1``."""
    return RunSource(path, kind, count, lambda: ((name(i), i) for i in range(count)), read)
