"""Conversion of a session to runs, and of runs to a session; repacking of a session in the other storage.

Repacking writes a session's rows onto tape, or back. Both hold the same games: rows onto tape and back give
the same ``steps.npy``. A tape holds every move and every final board. ``steps.npy`` may lack some of them, so
some games are replayed. The session is validated before and after, and the rows of both are compared. Ids,
seeds and facts stay the same, except for ``storage``. Columns stay the same, with the new checksum of the
rows.
"""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np

from tape2048._version import __version__
from tape2048.base.text import unix_s, utc_text
from tape2048.errors import FieldError, FormatError, MaintenanceError, ReplayError
from tape2048.files.durable import Draft, fsync_dir, rename_numbered
from tape2048.files.opening import storage_errors
from tape2048.maintenance.validation import check_draft, validate_session
from tape2048.players import engine_text, facts_of_engine, identity_of
from tape2048.runs.a2run2 import RunV2, legal_bits
from tape2048.runs.run import Run, RunMeta, check_meta, check_rules, until_win
from tape2048.session.column_draft import write_column
from tape2048.session.directory import rows_entry
from tape2048.session.layout import (
    ACTION_STEP_DTYPE,
    FORMAT_VERSION,
    MANIFEST,
    ROWS,
    RULES,
    RULES_1,
    RUN_DTYPE,
    START_BOARDS,
    STEPS_HEADER_BYTES,
    STEPS_NPY,
    TAPE,
    step_dtype,
)
from tape2048.session.metadata_writer import finish_session
from tape2048.session.npy_writer import NpyWriter
from tape2048.session.session import Session
from tape2048.session.tape_reader import game_pieces
from tape2048.session.tape_writer import TapeWriter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from numpy.typing import NDArray

    from tape2048.session.columns import Located
    from tape2048.session.layout import Storage

    #: Plays a game again: from its seed, its number of moves and the board that it was given to start from
    #: (or 0) to its boards, ``u64[n + 1]``, and its moves, ``u8[n]``. If the number of moves is wrong, n
    #: differs from it.
    Play = Callable[[int, int, int], tuple[NDArray[np.uint64], NDArray[np.uint8]]]

    #: Makes the :data:`Play` of a session's player, from the session's path and its facts; raises ReplayError
    #: if that player is not available here.
    Replayer = Callable[[Path, Mapping[str, Any]], Play]


#: Losses of a game without recorded moves, where it cannot be replayed.
NO_LAST_MOVE = "the last move and the final board"
NO_CHOICE = "which of two moves was made, where both explain the boards"
#: Characters of a converted session's player.
_PLAYER_CHARS = 1000
#: Part of each error message about rows that were not recorded. An audit recognizes these errors by it, since
#: such a game is not invalid.
SAMPLED = "recorded (sample_rate)"


def session_run(
    session: Session, ordinal: int, play: Play | None = None, *, lossy: bool = False, final_board: bool = True
) -> tuple[Run, bool, tuple[str, ...]]:
    """Return one run of a session as a :class:`Run`.

    A session of rows holds no board after a game's last move, and perhaps no moves (``record_action``) or not
    all boards (``sample_rate``). If the rules leave a move open, the game is replayed. A session on tape
    holds all boards and moves.

    Args:
        session: the session.
        ordinal: index of the run in ``session.runs``.
        play: function that replays a game, as the session's player played it; None: no game is replayed.
        lossy: whether, without ``play``, a game without recorded moves ends at its last recorded board. If
            two moves explain a pair of boards, the run has either of them.
        final_board: whether a game is replayed for its final board alone.

    Returns:
        The run; whether its final board is certain, and not the candidate of
        :func:`tape2048.game.moves.last_boards`; and the losses that ``lossy`` permitted. The run's start is
        the session's, its elapsed time unknown (0).

    Raises:
        ReplayError: the session has no moves, or not all steps, and there is no ``play``; or the replay
            differs from the session.
        FieldError: a tile is above 32768.

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
    # A copy: playing a game again takes seconds, and reading mapped rows of a file that has become shorter
    # kills the process.
    rows = session.rows_of(ordinal).copy()
    steps = int(row["steps"])
    boards = boards_of(rows, name, session.path)
    moves = np.ascontiguousarray(rows["action"]) if "action" in (rows.dtype.names or ()) else None
    is_whole = len(rows) == steps and np.array_equal(rows["step_idx"], np.arange(steps))
    meta = _meta(session, row)
    if is_whole and (moves is not None or not steps):
        final, certain = 0, False
        if moves is not None and steps:
            finals, sure = last_boards(boards[-1:], moves[-1:])
            final, certain = int(finals[0]), bool(sure[0])
        if certain or play is None or not final_board:
            if session.foreign is not None and not final and steps:
                final = int(boards[-1])  # the table may have the score of a longer game: count it again
            run = Run.from_boards(boards, [] if moves is None else moves, final, meta)
            return until_win(run), certain, ()
    if play is not None:
        start = int(boards[0]) if START_BOARDS in session.meta and len(boards) else 0
        states, made = play(int(row["seed"]), steps, start)
        at = rows["step_idx"]
        same = len(made) == steps and (not len(at) or int(at.max()) < steps)
        if not (same and np.array_equal(states[at], boards) and (moves is None or (made[at] == moves).all())):
            raise ReplayError(
                f"the replay of {name} (seed {row['seed']}) differs from the recorded game",
                path=session.path,
                hint="run `tape2048 validate --replay`, which lists all games that differ",
            )
        return Run(states, made, meta), True, ()
    if not is_whole:
        raise ReplayError(
            f"{name} has {len(rows)} rows for {steps} steps: not all were {SAMPLED}",
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
    from tape2048.game.rules import wins

    moves = recover(boards).moves
    if (moves == UNKNOWN).any():
        step = int((moves == UNKNOWN).argmax())
        rules = f": {RULES_1}" if any(wins(boards[step], move) for move in range(4)) else ""
        raise ReplayError(
            f"{name}: no move leads from step {step} to step {step + 1}{rules}",
            path=path,
            hint="Record every row (no sampling) to replay or convert games.",
        )
    open_choice = moves == AMBIGUOUS
    for move in range(4):
        moves[open_choice & (recover(boards, np.full(len(moves), move, np.uint8)).moves == move)] = move
    lost = (NO_LAST_MOVE, NO_CHOICE) if open_choice.any() else (NO_LAST_MOVE,)
    return Run(boards, moves, msgspec.structs.replace(meta, steps=len(moves))), True, lost


class MoveValues(NamedTuple):
    """A session's value for each move of its rows, in some of its columns."""

    columns: tuple[str, ...]
    values: Located
    legal: Located | None  # the moves that have a value; None: all legal moves, and values are normalized


def move_values(session: Session, *, annotated: bool = True) -> MoveValues | None:
    """Find the column of moves' values: ``values`` if ``annotated``, else ``branch_evs``; None without."""
    columns = session.columns
    for name in (*(["values"] if annotated else []), "branch_evs"):
        if name in columns:
            found = columns.open(name)
            if found.info.facts.get("moves") is True and (found.info.dtype, found.info.width) == ("f32", 4):
                names = (name, "ev_legal") if name == "branch_evs" and "ev_legal" in columns else (name,)
                return MoveValues(names, found, columns.open(names[-1]) if names[1:] else None)
    return None


def with_values(run: Run, session: Session, ordinal: int, found: MoveValues) -> RunV2:
    """Return a session's run with the values of its rows as branch values."""
    steps = session.rows_of(ordinal)["step_idx"]
    steps = steps[steps < len(run)]
    numbers = session.numbers_of(ordinal)
    rows = (np.arange(numbers.start, numbers.stop) if isinstance(numbers, slice) else numbers)[: len(steps)]
    values, has = np.zeros((len(run), 4), np.float32), np.zeros(len(run), np.bool_)
    legal = np.full(len(run), 15, np.uint8)
    values[steps], has[steps] = found.values.take(rows), True
    if found.columns[0] == "values":
        return RunV2(run.states, run.moves, run.meta, values, legal, has).normalize_branches()
    if found.legal is not None:
        legal[steps] = found.legal.take(rows)
    valued = legal_bits(legal) & ~np.isnan(values)
    legal = np.packbits(valued, axis=1, bitorder="little")[:, 0]
    return RunV2(run.states, run.moves, run.meta, np.where(valued, values, 0), legal, has & (legal != 0))


def boards_of(rows: NDArray[np.void], name: str, path: str | os.PathLike[str]) -> NDArray[np.uint64]:
    """Pack the boards of a session's rows, ``u64[n]``. A FieldError has the run's name and the path."""
    from tape2048.game.rules import EXPONENT_MAX, exps_to_boards

    if len(rows) and int(rows["exps"].max()) > EXPONENT_MAX:
        raise FieldError(
            f"{name} has a tile of 2**{rows['exps'].max()}; expected at most 2**{EXPONENT_MAX}", path=path
        )
    return exps_to_boards(rows["exps"])


def _meta(session: Session, row: np.void) -> RunMeta:
    facts = session.meta
    player, sha = facts.get("player"), facts.get("player_sha256")
    text = " ".join(str(fact) for fact in (facts.get("engine"), player) if fact is not None)
    if isinstance(sha, str) and re.fullmatch("[0-9a-f]{64}", sha):
        text = engine_text(text, sha, int(row["seed"]))
    return RunMeta(
        steps=int(row["steps"]),
        start_unix_s=max(0, int(np.nan_to_num(unix_s(facts.get("started_at"))))),
        elapsed_s=0.0,
        max_score=int(row["max_score"]),
        highest_tile=int(row["highest_tile"]),
        engine=text or None,
    )


def player_of(replayer: Replayer | None, path: Path, facts: Mapping[str, Any]) -> tuple[Play | None, str]:
    """Return the function that replays a session's games, or None; and the reason for None."""
    try:
        return None if replayer is None else replayer(path, facts), "no player was given"
    except ReplayError as error:
        return None, error.message


def write_session(
    directory: str | os.PathLike[str],
    runs: Iterable[Run],
    facts: dict[str, Any] | None = None,
    *,
    storage: Storage = ROWS,
) -> int:
    """Write a session with moves from runs. It appears atomically.

    A session holds no branch values and no elapsed time of a run. A session of rows does not hold the board
    after the last move, either. The session has the start of the runs, if all have the same. Its player is
    the engine of the runs; the names of several are joined, and without any it is ``"converted"``. A run
    whose engine's text contains a game's seed keeps the seed. Any other run gets a hash of its boards and
    moves as its seed, so that the same game has the same identity everywhere.

    Args:
        directory: the session, which must not exist.
        runs: the runs, in the order of the session; ids count from 0.
        facts: further facts for the table ``session``.
        storage: ``"rows"``, or ``"tape"``, which holds only games that ended.

    Returns:
        The number of runs.

    Raises:
        NameTakenError: ``directory`` exists.
        FieldError: a score or a run is too large for a session's fields.
        FormatError: the rules do not allow a run (:func:`tape2048.runs.check_rules`), or a tape cannot hold
            it (:func:`tape2048.session.check_games`).
        StorageError: the operating system could not write it.

    Example:
        >>> from tape2048.conversion import write_session
        >>> from tape2048.runs import read_run
        >>> write_session("one-run", [read_run("runs/golden.a2run")])
        1
    """
    target = Path(os.path.abspath(directory))
    with storage_errors(target, "writing it"), Draft(target) as draft:
        count = (_write_tape if storage == TAPE else _write_files)(draft.path, runs, facts or {})
        draft.publish()
    return count


def _write_files(draft: Path, runs: Iterable[Run], facts: dict[str, Any]) -> int:
    from tape2048.game.rules import boards_to_exps

    table: list[tuple[int, ...]] = []
    players: dict[tuple[str, str | None], None] = {}
    starts: set[int] = set()

    with NpyWriter(draft / STEPS_NPY, ACTION_STEP_DTYPE, STEPS_HEADER_BYTES) as file:
        for run_id, run in enumerate(runs):
            steps = np.zeros(len(run), ACTION_STEP_DTYPE)
            steps["run_id"], steps["step_idx"] = run_id, np.arange(len(run))
            steps["exps"], steps["action"] = boards_to_exps(run.boards), run.moves
            table.append(run_record(run, run_id, file.rows, players))
            starts.add(run.meta.start_unix_s)
            file.append(steps)
        files = {STEPS_NPY: file.finish()}
    facts = {**session_facts(players, starts), "rows": file.rows, "runs": len(table), **facts}
    finish_session(draft, files, np.array(table, RUN_DTYPE), file.blocks, facts)
    return len(table)


def _write_tape(draft: Path, runs: Iterable[Run], facts: dict[str, Any]) -> int:
    count, players, starts = 0, dict[tuple[str, str | None], None](), set[int]()
    with TapeWriter(draft) as writer:
        for run in runs:
            record = np.array([run_record(run, count, 0, players)], RUN_DTYPE)
            starts.add(run.meta.start_unix_s)
            try:
                writer.add_boards(run.boards, run.moves, run.states[-1:], record)
            except FormatError as error:  # its path is in the hidden draft
                hint = "use --to session: a tape holds only games from their first board on"
                raise type(error)(error.message, hint=hint) from error
            count += 1
        writer.finish({**session_facts(players, starts), **facts})
    return count


def session_facts(players: Iterable[tuple[str, str | None]], starts: set[int]) -> dict[str, Any]:
    names, hashes = ({*each} for each in zip(*players, strict=True)) if players else (set(), set())
    started_at = utc_text(max(starts)) if len(starts - {0}) == len(starts) == 1 else None
    return {
        "format_version": FORMAT_VERSION,
        "engine": f"tape2048 {__version__}",
        "rules": RULES,
        "player": " + ".join(sorted(filter(None, names)))[:_PLAYER_CHARS] or "converted",
        "player_sha256": hashes.pop() if len(hashes) == 1 else None,
        "sample_rate": 1,
        "record_action": True,
        "recovered": False,
        **({"started_at": started_at} if started_at else {}),
    }


def run_record(
    run: Run, run_id: int, first_row: int, players: dict[tuple[str, str | None], None]
) -> tuple[int, ...]:
    """Check a run and return its row of the run table; add its player. Errors as for `write_session`."""
    meta = run.meta
    check_meta(meta, max_score=2**32 - 1)
    check_rules(run)
    if (identity := identity_of(meta.engine)) is not None:
        seed = identity.seed
    else:
        digest = hashlib.sha256(run.states.tobytes() + run.moves.tobytes()).digest()
        seed = int.from_bytes(digest[:8], "little")
    player = facts_of_engine(meta.engine)
    players[player["player"], player.get("player_sha256")] = None
    return run_id, seed, first_row, len(run), len(run), meta.max_score, meta.highest_tile


#: Rows that are in memory at a time, unless a game is longer.
_PIECE_ROWS = 1 << 18


class Repacked(NamedTuple):
    """The result of :func:`repack_session`: the new session, and sizes in bytes without columns."""

    path: Path
    rows: int
    runs: int
    bytes_before: int
    bytes: int


def repack_session(
    path: str | os.PathLike[str],
    out_dir: str | os.PathLike[str],
    storage: Storage,
    *,
    replayer: Replayer | None = None,
    lossy: bool = False,
    progress: Callable[[int, int], object] | None = None,
) -> Repacked:
    """Write a copy of a session in the other storage, under the same name or the next free one.

    It is published only after a complete validation, and if its rows and runs equal the original's.
    Memory holds the run tables and a part of the rows.

    Args:
        path: a session of the recorder, of ``merge`` or of ``convert``.
        out_dir: the directory for the new session; created if missing.
        storage: ``"tape"`` or ``"rows"``, other than the session's.
        replayer: function that makes the player of a session, as for
            :func:`tape2048.conversion.open_source`. It replays the games of a session without
            ``record_action``, and games that both a 2 and a 4 would end.
        lossy: whether such games end with a 2 if they cannot be replayed. Rows do not show the difference.
        progress: function that is called with the rows written so far, and all rows.

    Raises:
        MaintenanceError: the session has this storage, is from another program or sampled, fails its
            validation, or lacks moves or final boards that cannot be replayed.
        FormatError: the session cannot be opened; or a game did not end or breaks the rules, so a tape cannot
            hold it.
        ReplayError: the replay of a game differs from the session.
        StorageError: an operation of the file system failed.

    Example:
        >>> from tape2048 import Session, sessions
        >>> from tape2048.conversion import repack_session
        >>> repack_session(sessions("selfplay")[0], "repacked", "rows")  # doctest: +IGNORE_EXCEPTION_DETAIL
        Traceback (most recent call last):
        MaintenanceError: the session is in this storage already: rows
    """
    if storage not in {TAPE, ROWS}:
        raise ValueError(f"storage={storage!r}; expected {TAPE!r} or {ROWS!r}")
    root = Path(os.path.abspath(out_dir))
    session = Session.open(path)
    _check_source(session, storage)
    report = validate_session(path)
    if report.findings:
        first = report.findings[0]
        found = f"the session does not pass its validation ({first.error}: {first.message})"
        raise MaintenanceError(found, path=first.path, hint=first.hint or "restore it from a copy")
    advance = progress or (lambda _done, _total: None)
    with storage_errors(root, "writing the session"):
        root.mkdir(parents=True, exist_ok=True)
        target = root / session.name
        with Draft(target) as hidden:
            draft = hidden.path / "session"
            draft.mkdir()
            if storage == TAPE:
                size = _rows_onto_tape(draft, session, replayer, advance, lossy=lossy)
            else:
                size = _tape_as_rows(draft, session, advance)
            written = Session.open(draft)
            for name, info in session.columns.items():
                values, facts = session.column(name).values, {"maker": None, **info.facts}
                write_column(written, name, values, dtype=info.dtype, facts=facts)
            check_draft(draft, MaintenanceError)
            _check_same(session, written)
            published = rename_numbered(draft, target)
            fsync_dir(root)
    assert session.manifest is not None  # checked above
    before = sum((session.path / name).stat().st_size for name in (*session.manifest.files, MANIFEST))
    return Repacked(published, len(session), len(session.runs), before, size)


def _check_source(session: Session, storage: Storage) -> None:
    if (session.tape is not None) == (storage == TAPE):
        raise MaintenanceError(f"the session is in this storage already: {storage}", path=session.path)
    if rows_entry(session.manifest) is None or session.blocks is None or not session.contiguous:
        found = "a session of another program, without a manifest, block checksums or a single file of rows"
        raise MaintenanceError(found, path=session.path, hint="convert it first: tape2048 convert")
    rate = session.meta.get("sample_rate", 1)
    sampled = np.flatnonzero(session.runs["rows"] != session.runs["steps"])
    if rate != 1 or sampled.size:
        found = f"one step in {rate} was recorded (sample_rate)" if rate != 1 else "some steps are missing"
        raise MaintenanceError(
            f"{found}; a tape needs every step", path=session.path, hint="keep the session in rows"
        )


def _rows_onto_tape(
    draft: Path,
    session: Session,
    replayer: Replayer | None,
    advance: Callable[[int, int], object],
    *,
    lossy: bool,
) -> int:
    play, why = player_of(replayer, session.path, session.meta)
    if play is None and "action" not in (session.dtype.names or ()):
        raise MaintenanceError(
            f"its moves were not recorded (record_action), and its games cannot be replayed: {why}",
            path=session.path,
            hint="make its player and weights available, or keep the session in rows",
        )
    with TapeWriter(draft, given_starts=START_BOARDS in session.meta) as writer:
        for games, rows in game_pieces(session.runs, _PIECE_ROWS):
            runs = []
            for ordinal in range(games.start, games.stop):
                run, certain, _ = session_run(session, ordinal, play)
                if not (certain or lossy):
                    raise MaintenanceError(
                        f"run {session.runs['id'][ordinal]}: both a 2 and a 4 may have ended the game, "
                        f"and it cannot be replayed: {why}",
                        path=session.path,
                        hint="pass --lossy (lossy=True) to assume a 2; rows do not show the difference",
                    )
                runs.append(run)
            boards, moves = (
                np.concatenate([getattr(run, name) for run in runs]) for name in ("boards", "moves")
            )
            finals = np.array([run.final_board for run in runs], np.uint64)
            writer.add_boards(boards, moves, finals, session.runs[games])
            advance(rows.stop, len(session))
        return writer.finish(session.meta)


def _tape_as_rows(draft: Path, session: Session, advance: Callable[[int, int], object]) -> int:
    dtype = step_dtype(record_action=session.meta.get("record_action") is True)
    with NpyWriter(draft / STEPS_NPY, dtype, STEPS_HEADER_BYTES) as file:
        for first in range(0, len(session), _PIECE_ROWS):
            end = min(first + _PIECE_ROWS, len(session))
            file.append(_row_bytes(session, first, end)[:, : dtype.itemsize])
            advance(end, len(session))
        files = {STEPS_NPY: file.finish()}
    return finish_session(draft, files, session.runs, file.blocks, {**session.meta, "storage": ROWS})


def _row_bytes(session: Session, first: int, end: int) -> NDArray[np.uint8]:
    return session.read_rows(first, end).view(np.uint8).reshape(end - first, -1)


def _check_same(session: Session, written: Session) -> None:
    same = len(session) == len(written) and np.array_equal(session.runs, written.runs)
    for first in range(0, len(session) if same else 0, _PIECE_ROWS):
        end = min(first + _PIECE_ROWS, len(session))
        one, other = (_row_bytes(each, first, end) for each in (session, written))
        width = min(one.shape[1], other.shape[1])  # the last byte of the longer is the action
        same = same and np.array_equal(one[:, :width], other[:, :width])
    if not same:
        found = "the new session does not hold the same rows. Nothing was published"
        raise MaintenanceError(
            found, path=session.path, hint="look at the kernel's log (dmesg) for errors of the device"
        )
