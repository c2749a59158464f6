"""Conversion of a session to runs, and of runs to a session."""

from __future__ import annotations

import datetime as dt
import hashlib
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from tape2048._version import __version__
from tape2048.errors import FieldError, ReplayError
from tape2048.formats.metadata import finish_session
from tape2048.formats.session import (
    ACTION_STEP_DTYPE,
    BLOCK_DTYPE,
    FORMAT_VERSION,
    ROWS,
    RUN_DTYPE,
    STEPS_HEADER_BYTES,
    STEPS_NPY,
    TAPE,
    FileEntry,
    session_header,
)
from tape2048.io.durable import Staging, open_fd, storage_errors, write_all
from tape2048.io.reading import crc32c, crc32c_combine
from tape2048.runs.engine_text import engine_text, identity_of
from tape2048.runs.run import Run, RunMeta
from tape2048.tape.writer import TapeWriter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from numpy.typing import NDArray

    from tape2048.formats.session import Storage
    from tape2048.session.session import Session

    #: Plays a game again: from its seed and number of moves to its boards, ``u64[n + 1]``, and its moves,
    #: ``u8[n]``. Where the number is wrong, n is another one.
    Play = Callable[[int, int], tuple[NDArray[np.uint64], NDArray[np.uint8]]]

#: Rows of a block of a written session.
BLOCK_ROWS = 262_144


#: Losses of a game without recorded moves, where it cannot be replayed.
NO_LAST_MOVE = "the last move and the final board"
NO_CHOICE = "which of two moves was made, where both explain the boards"


def session_run(
    session: Session,
    ordinal: int,
    play: Play | None = None,
    *,
    lossy: bool = False,
    final_board: bool = True,
) -> tuple[Run, bool, tuple[str, ...]]:
    """Return one run of a session as a :class:`Run`.

    A session of rows holds no board after a game's last move, and perhaps no moves (``record_action``) or not
    all boards (``sample_rate``). What the rules do not tell is played again. A session on tape holds all.

    Args:
        session: the session.
        ordinal: of the run in ``session.runs``.
        play: plays a game again, as the session's player did; None: nothing is played.
        lossy: without ``play``, end a game without recorded moves at its last recorded board. Where two moves
            explain a pair of boards, the run has one of them.
        final_board: whether a game is played again for its final board alone.

    Returns:
        The run; whether its final board is certain, and not the candidate of
        :func:`tape2048.game.moves.last_boards`; and what ``lossy`` left out. The run's start is the
        session's, its elapsed time unknown (0).

    Raises:
        ReplayError: the session has no moves, or not all steps, and there is no ``play``.
        ReplayError: the game comes out differently.
        FieldError: an invalid move, or a tile above 32768.

    Example:
        >>> from tape2048 import Session
        >>> from tape2048.conversion import session_run, write_session
        >>> from tape2048.runs import read_run
        >>> run = read_run("runs/golden.a2run")
        >>> _ = write_session("of-runs", [run])
        >>> found, certain, lost = session_run(Session.open("of-runs"), 0)
        >>> found.boards.tolist() == run.boards.tolist(), lost
        (True, ())
    """
    from tape2048.game.moves import last_boards

    row = session.runs[ordinal]
    if session.tape is not None:
        made = session.moves(session.numbers_of(ordinal))
        return Run(session.tape.states(ordinal), made, _meta(session, row)), True, ()
    name = f"run {row['id']}"
    rows = session.rows_of(ordinal)
    steps = int(row["steps"])
    boards = boards_of(rows, name, session.path)
    moves = np.ascontiguousarray(rows["action"]) if "action" in (rows.dtype.names or ()) else None
    if moves is not None and len(moves) and int(moves.max()) > 3:
        raise FieldError(f"{name} has move {moves.max()}; expected 0 to 3", path=session.path)
    is_whole = len(rows) == steps and np.array_equal(rows["step_idx"], np.arange(steps))
    meta = _meta(session, row)
    if is_whole and (moves is not None or not steps):
        final, certain = 0, False
        if moves is not None and steps:
            finals, sure = last_boards(boards[-1:], moves[-1:])
            final, certain = int(finals[0]), bool(sure[0])
        if certain or play is None or not final_board:
            return Run.from_boards(boards, [] if moves is None else moves, final, meta), certain, ()
    if play is not None:
        states, made = play(int(row["seed"]), steps)
        at = rows["step_idx"]
        same = len(made) == steps and (not len(at) or int(at.max()) < steps)
        if not (same and np.array_equal(states[at], boards) and (moves is None or (made[at] == moves).all())):
            raise ReplayError(
                f"{name} (seed {row['seed']}) comes out differently when it is replayed",
                path=session.path,
                hint="tape2048 validate --replay lists all games that differ",
            )
        return Run(states, made, meta), True, ()
    if not is_whole:
        raise ReplayError(
            f"{name} has {len(rows)} rows for {steps} steps: not all were recorded (sample_rate)",
            path=session.path,
            hint="Record every row (no sampling) to replay or convert games.",
        )
    if not lossy:
        raise ReplayError(
            f"{name} has no moves: the session was recorded without record_action",
            path=session.path,
            hint="record with record_action = true (--record-action)",
        )
    return _known_part(boards, meta, name, session.path)


def _known_part(
    boards: NDArray[np.uint64], meta: RunMeta, name: str, path: Path
) -> tuple[Run, bool, tuple[str, ...]]:
    """Return a game without moves, up to its last board, as :func:`session_run`."""
    from tape2048.game.moves import AMBIGUOUS, UNKNOWN, recover

    moves = recover(boards).moves
    if (moves == UNKNOWN).any():
        step = int((moves == UNKNOWN).argmax())
        raise ReplayError(
            f"{name}: no move leads from step {step} to step {step + 1}",
            path=path,
            hint="Record every row (no sampling) to replay or convert games.",
        )
    open_choice = moves == AMBIGUOUS
    for move in range(4):
        fits = recover(boards, np.full(len(moves), move, np.uint8)).moves == move
        moves[open_choice & fits] = move
    lost = (NO_LAST_MOVE, NO_CHOICE) if open_choice.any() else (NO_LAST_MOVE,)
    return Run(boards, moves, msgspec.structs.replace(meta, steps=len(moves))), True, lost


def boards_of(rows: NDArray[np.void], name: str, path: str | os.PathLike[str]) -> NDArray[np.uint64]:
    """Pack the boards of a session's rows, ``u64[n]``; a FieldError has the run's name and the path."""
    from tape2048.game.rules import EXPONENT_MAX, exps_to_boards

    if len(rows) and int(rows["exps"].max()) > EXPONENT_MAX:
        raise FieldError(
            f"{name} has a tile of 2**{rows['exps'].max()}; expected at most 2**{EXPONENT_MAX}", path=path
        )
    return exps_to_boards(rows["exps"])


def _meta(session: Session, row: np.void) -> RunMeta:
    facts = session.meta
    player, sha = facts.get("player"), facts.get("player_sha256")
    engine = facts.get("engine")
    text = " ".join(str(fact) for fact in (engine, player) if fact is not None)
    if isinstance(sha, str) and re.fullmatch("[0-9a-f]{64}", sha):
        text = engine_text(text, sha, int(row["seed"]))
    return RunMeta(
        steps=int(row["steps"]),
        start_unix_s=_unix_s(facts.get("started_at")),
        elapsed_s=0.0,
        max_score=int(row["max_score"]),
        highest_tile=int(row["highest_tile"]),
        engine=text or None,
    )


def _unix_s(text: Any) -> int:
    """Parse a timestamp to seconds since 1970; UTC without an offset, 0 if invalid."""
    try:
        moment = dt.datetime.fromisoformat(text)
        aware = moment if moment.tzinfo is not None else moment.replace(tzinfo=dt.UTC)
        return max(0, int(aware.timestamp()))
    except (TypeError, ValueError, OverflowError):
        return 0


def write_session(
    directory: str | os.PathLike[str],
    runs: Iterable[Run],
    facts: dict[str, Any] | None = None,
    *,
    storage: Storage = ROWS,
) -> int:
    """Write a session with moves from runs; it appears whole or not at all.

    A session does not hold branch values, start, elapsed time and engine of a run; of rows, nor the board
    after its last move. A run whose engine's text carries a game's seed keeps the seed; that of any other run
    is a hash of its boards and moves, so that the same game has the same identity everywhere.

    Args:
        directory: the session, which must not exist.
        runs: in their order; ids count from 0.
        facts: added to the table ``session``.
        storage: ``"rows"``, or ``"tape"``, which holds whole games alone.

    Returns:
        The number of runs.

    Raises:
        NameTakenError: ``directory`` exists.
        FieldError: a score or a run that is too large for a session's fields.
        FormatError: a run that no tape holds: see :func:`tape2048.tape.check_games`.
        StorageError: the operating system could not write it.

    Example:
        >>> from tape2048.conversion import write_session
        >>> from tape2048.runs import read_run
        >>> write_session("one-run", [read_run("runs/golden.a2run")])
        1
    """
    target = Path(os.path.abspath(directory))
    with storage_errors(target, "writing it"), Staging(target) as staging:
        write = _write_tape if storage == TAPE else _write_files
        count = write(staging.path, runs, facts or {})
        staging.publish()
    return count


def _write_files(draft: Path, runs: Iterable[Run], facts: dict[str, Any]) -> int:
    from tape2048.game.rules import boards_to_exps

    table: list[tuple[int, ...]] = []
    players: set[str | None] = set()

    def parts() -> Iterator[NDArray[np.void]]:
        done = 0
        for run_id, run in enumerate(runs):
            steps = np.zeros(len(run), ACTION_STEP_DTYPE)
            steps["run_id"], steps["step_idx"] = run_id, np.arange(len(run))
            steps["exps"], steps["action"] = boards_to_exps(run.boards), run.moves
            table.append(_run_record(run, run_id, done, players))
            done += len(run)
            yield steps

    entry, blocks = write_rows(draft, ACTION_STEP_DTYPE, parts())
    facts = {**_facts(players), "rows": int(blocks["rows"].sum()), "runs": len(table), **facts}
    finish_session(draft, {STEPS_NPY: entry}, np.array(table, RUN_DTYPE), blocks, facts)
    return len(table)


def write_rows(
    draft: Path, dtype: np.dtype[Any], parts: Iterable[NDArray[np.void]]
) -> tuple[FileEntry, NDArray[np.void]]:
    """Write ``steps.npy`` of consecutive parts of rows, and flush it; return its entry and its blocks.

    A block has whole parts, and at most :data:`BLOCK_ROWS` rows, unless one part is larger.
    """
    blocks: list[tuple[int, int, int]] = []  # first row, rows, checksum
    done = 0
    with open_fd(draft / STEPS_NPY, os.O_WRONLY | os.O_CREAT | os.O_EXCL) as fd:
        for part in parts:
            data = np.ascontiguousarray(part).view(np.uint8).data
            write_all(fd, data, STEPS_HEADER_BYTES + done * dtype.itemsize)
            if blocks and blocks[-1][1] + len(part) <= BLOCK_ROWS:
                first, rows, checksum = blocks[-1]
                blocks[-1] = first, rows + len(part), crc32c(data, checksum)
            elif len(part):
                blocks.append((done, len(part), crc32c(data)))
            done += len(part)
        header = session_header(dtype, done)
        write_all(fd, header, 0)
        os.fsync(fd)
    total = crc32c(header)
    for _, rows, checksum in blocks:
        total = crc32c_combine(total, checksum, rows * dtype.itemsize)
    entry = FileEntry(STEPS_HEADER_BYTES + done * dtype.itemsize, total)
    return entry, np.array(blocks, BLOCK_DTYPE)


def _write_tape(draft: Path, runs: Iterable[Run], facts: dict[str, Any]) -> int:
    count, players = 0, set[str | None]()
    with TapeWriter(draft) as writer:
        for run in runs:
            record = np.array([_run_record(run, count, 0, players)], RUN_DTYPE)
            writer.add_boards(run.boards, run.moves, run.states[-1:], record)
            count += 1
        writer.finish({**_facts(players), **facts})
    return count


def _facts(players: set[str | None]) -> dict[str, Any]:
    return {
        "format_version": FORMAT_VERSION,
        "engine": f"tape2048 {__version__}",
        "player": "converted",
        "player_sha256": players.pop() if len(players) == 1 else None,
        "sample_rate": 1,
        "record_action": True,
        "recovered": False,
    }


def _run_record(run: Run, run_id: int, first_row: int, players: set[str | None]) -> tuple[int, ...]:
    """Return a run's record of the run table; add its player to ``players``."""
    meta = run.meta
    for name in ("max_score", "highest_tile"):
        if getattr(meta, name) > 2**32 - 1:
            raise FieldError(f"{name} is {getattr(meta, name)}; a session holds at most {2**32 - 1}")
    if (identity := identity_of(meta.engine)) is not None:
        seed, player = identity.seed, identity.player_sha256
    else:
        digest = hashlib.sha256(run.states.tobytes() + run.moves.tobytes()).digest()
        seed, player = int.from_bytes(digest[:8], "little"), None
    players.add(player)
    return run_id, seed, first_row, len(run), len(run), meta.max_score, meta.highest_tile
