"""Sessions, in rows and on tape, as sources and targets of runs."""

from __future__ import annotations

import bisect
import dataclasses
import hashlib
import itertools
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np

from tape2048._version import __version__
from tape2048.base.text import unix_s, utc_text
from tape2048.errors import FieldError, FormatError, MaintenanceError, ReplayError
from tape2048.files.durable import Draft
from tape2048.files.opening import storage_errors
from tape2048.players import public_player
from tape2048.runs.a2run2 import RunV2, legal_bits
from tape2048.runs.engine_text import engine_text, facts_of_engine, identity_of
from tape2048.runs.run import (
    Run,
    RunMeta,
    Tables,
    check_meta,
    check_rules,
    check_step_count,
    numbered,
    until_win,
)
from tape2048.session.layout import (
    ACTION_STEP_DTYPE,
    FORMAT_VERSION,
    METADATA_DB,
    ROWS,
    RULES,
    RULES_1,
    RUN_DTYPE,
    START_BOARDS,
    STEPS_HEADER_BYTES,
    STEPS_NPY,
    TAPE,
    TIMES_DTYPE,
)
from tape2048.session.metadata import read_facts, read_run_times
from tape2048.session.metadata_writer import finish_session
from tape2048.session.npy_writer import NpyWriter
from tape2048.session.session import Session, sessions as find_sessions
from tape2048.session.session_files import SessionFiles
from tape2048.session.tape_writer import TapeWriter

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from numpy.typing import NDArray

    from tape2048.runs.conversion import Conversion
    from tape2048.runs.run import Play, Replayer, RunFacts, RunSource
    from tape2048.session.columns import Located
    from tape2048.session.layout import Storage


#: Losses of a game without recorded moves, where it cannot be replayed.
NO_LAST_MOVE = "the last move and the final board"
NO_CHOICE = "which of two moves was made, where both explain the boards"
#: Characters of a converted session's player.
_PLAYER_CHARS = 1000
#: The engine of a converted session, with a release, and its player if its runs name none.
_WRITER, _NO_PLAYER = "tape2048 ", "converted"
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
        lossy: whether, without ``play``, a game without recorded moves ends at its last recorded board.
        final_board: whether a game is replayed for its final board alone.

    Returns:
        The run; whether its final board is certain; and the losses that ``lossy`` permitted.

    Raises:
        ReplayError: the session has no moves, or not all steps, and there is no ``play``; or the replay
            differs from the session.
        FieldError: a tile is above 32768.

    Example:
        >>> from tape2048 import Session
        >>> from tape2048.runs import read_run, session_run, write_session
        >>> run = read_run("runs/golden.a2run")
        >>> _ = write_session("of-runs", [run])
        >>> found, certain, lost = session_run(Session.open("of-runs"), 0)
        >>> found.boards.tolist() == run.boards.tolist(), lost
        (True, ())
    """
    from tape2048.game.moves import last_boards

    row = session.runs[ordinal]
    check_step_count(int(row["steps"]), session.path)
    if session.tape is not None:
        made = session.moves(session.numbers_of(ordinal))
        return Run(session.tape.states(ordinal), made, _meta(session, row)), True, ()
    name = f"run {row['run_id']}"
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
    from tape2048.game.moves import UNKNOWN
    from tape2048.game.rules import wins

    moves, is_open = recovered_moves(boards)
    if (moves == UNKNOWN).any():
        step = int((moves == UNKNOWN).argmax())
        rules = f": {RULES_1}" if any(wins(boards[step], move) for move in range(4)) else ""
        raise ReplayError(
            f"{name}: no move leads from step {step} to step {step + 1}{rules}",
            path=path,
            hint="Record every row (no sampling) to replay or convert games.",
        )
    lost = (NO_LAST_MOVE, NO_CHOICE) if is_open else (NO_LAST_MOVE,)
    return Run(boards, moves, msgspec.structs.replace(meta, steps=len(moves))), True, lost


def recovered_moves(boards: NDArray[np.uint64]) -> tuple[NDArray[np.uint8], bool]:
    """Recover moves from boards; return also whether two moves explain a pair. The last of the two counts."""
    from tape2048.game.moves import AMBIGUOUS, recover

    moves = recover(boards).moves
    open_choice = moves == AMBIGUOUS
    for move in range(4) if open_choice.any() else ():
        moves[open_choice & (recover(boards, np.full(len(moves), move, np.uint8)).moves == move)] = move
    return moves, bool(open_choice.any())


class MoveValues(NamedTuple):
    """A session's value for each move of its rows, in some of its columns."""

    columns: tuple[str, ...]
    values: Located
    legal: Located | None  # the moves that have a value; None: all legal moves, and values are normalized


def move_values(session: Session, *, annotated: bool = True) -> MoveValues | None:
    """Find the column of moves' values: the network's if ``annotated``, else ``branch_evs``; None without."""
    columns = session.columns
    for name in (*(["network_values", "values"] if annotated else []), "branch_evs"):
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
    if found.columns[0] != "branch_evs":
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
        found = f"{name} has a tile of 2**{rows['exps'].max()}"
        raise FieldError(f"{found}; expected at most 2**{EXPONENT_MAX}", path=path)
    return exps_to_boards(rows["exps"])


def _meta(session: Session, row: np.void) -> RunMeta:
    facts = session.meta
    player, engine, sha = facts.get("player"), facts.get("engine"), facts.get("player_sha256")
    player = public_player(player, {})[0] if isinstance(player, str) else player
    is_known = isinstance(sha, str) and re.fullmatch("[0-9a-f]{64}", sha)
    if not is_known and "rules" in facts and str(engine).startswith(_WRITER):  # which did not play
        engine, player = None, None if player == _NO_PLAYER else player
    text = " ".join(str(fact) for fact in (engine, player) if fact is not None)
    if is_known:
        text = engine_text(text, str(sha), int(row["seed"]))
    return RunMeta(
        steps=int(row["steps"]),
        start_unix_s=max(0, int(np.nan_to_num(unix_s(facts.get("started_at"))))),
        elapsed_s=0.0,
        max_score=int(row["score"]),
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
    """Write a session with moves from runs, atomically; return the number of runs.

    A session holds no branch values of a run, and a session of rows not the board after the last move. The
    start and elapsed time of the runs are in the table ``run_times``. The session's player is
    the engine of the runs; the names of several are joined, and without any it is ``"converted"``. A run
    whose engine's text contains a game's seed keeps the seed. Any other run gets a hash of its boards and
    moves as its seed, so that the same game has the same identity everywhere.

    Args:
        directory: the session, which must not exist.
        runs: the runs, in the order of the session; ids count from 0.
        facts: further facts for the table ``session``.
        storage: ``"rows"``, or ``"tape"``, which holds only games that ended.

    Raises:
        NameTakenError: ``directory`` exists.
        FieldError: a score or a run is too large for a session's fields.
        FormatError: the rules do not allow a run (:func:`tape2048.runs.check_rules`), or a tape cannot hold
            it (:func:`tape2048.session.tape_reader.check_games`).
        StorageError: the operating system could not write it.

    Example:
        >>> from tape2048.runs import read_run, write_session
        >>> write_session("one-run", [read_run("runs/golden.a2run")])
        1
    """
    from tape2048.game.rules import boards_to_exps

    target = Path(os.path.abspath(directory))
    table: list[tuple[int, ...]] = []
    players: dict[tuple[str, str | None], None] = {}
    times: list[tuple[int, int, float]] = []

    def records() -> Iterator[tuple[Run, tuple[int, ...]]]:
        for run in runs:
            table.append(run_record(run, len(table), sum(table[-1][2:4]) if table else 0, players))
            times.append((table[-1][0], run.meta.start_unix_s, run.meta.elapsed_s))
            yield run, table[-1]

    with storage_errors(target, "writing it"), Draft(target) as draft:
        if storage == TAPE:
            with TapeWriter(draft.path) as writer:
                for run, record in records():
                    row = np.array([record], RUN_DTYPE)
                    row["first_row"] = 0
                    try:
                        writer.add_boards(run.boards, run.moves, run.states[-1:], row)
                    except FormatError as error:  # its path is in the hidden draft
                        hint = "use --to session: a tape holds only games from their first board on"
                        raise type(error)(error.message, hint=hint) from error
                writer.finish(*_facts_and_times(players, times, facts or {}))
        else:
            with NpyWriter(draft.path / STEPS_NPY, ACTION_STEP_DTYPE, STEPS_HEADER_BYTES) as file:
                for run, record in records():
                    steps = np.zeros(len(run), ACTION_STEP_DTYPE)
                    steps["run_id"], steps["step_idx"] = record[0], np.arange(len(run))
                    steps["exps"], steps["action"] = boards_to_exps(run.boards), run.moves
                    file.append(steps)
                files = {STEPS_NPY: file.finish()}
            counts = {"rows": file.rows, "runs": len(table)}
            own, more = _facts_and_times(players, times, {**counts, **(facts or {})})
            finish_session(draft.path, files, np.array(table, RUN_DTYPE), file.blocks, own, run_times=more)
        draft.publish()
    return len(table)


def _facts_and_times(
    players: Iterable[tuple[str, str | None]], times: list[tuple[int, int, float]], facts: Mapping[str, Any]
) -> tuple[dict[str, Any], NDArray[np.void] | None]:
    """Return the facts of a session, and the times of its runs unless the facts say the same."""
    found = session_facts(players, {start for _, start, _ in times})
    if "started_at" in facts:  # the caller's
        return {**found, **facts}, None
    one_start = "started_at" in found or not any(start for _, start, _ in times)
    is_plain = one_start and not any(elapsed for *_, elapsed in times)
    return {**found, **facts}, None if is_plain else np.array(times, TIMES_DTYPE)


def session_facts(players: Iterable[tuple[str, str | None]], starts: set[int]) -> dict[str, Any]:
    names, hashes = ({*each} for each in zip(*players, strict=True)) if players else (set(), set())
    started_at = utc_text(max(starts)) if len(starts - {0}) == len(starts) == 1 else None
    return {
        "format_version": FORMAT_VERSION,
        "engine": f"{_WRITER}{__version__}",
        "rules": RULES,
        "player": " + ".join(sorted(filter(None, names)))[:_PLAYER_CHARS] or _NO_PLAYER,
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


def read(
    path: Path,
    kind: str,
    *,
    replayer: Replayer | None = None,
    lossy: bool = False,
    final_boards: bool = True,
    values: bool = True,
    **_: object,
) -> Tables:
    """Open a session, or a directory of sessions; options of :func:`tape2048.runs.open_source`."""
    # A session that cannot be replayed is an error before it is opened.
    early = [_play_of(path, replayer, lossy=lossy)] if kind == "session" else None
    sessions = [Session.open(one, "mmap") for one in ([path] if kind == "session" else find_sessions(path))]

    def serve(served: list[NDArray[np.int64]]) -> RunSource:
        pairs = [pair for pair in zip(sessions, served, strict=True) if len(pair[1]) or not len(pair[0].runs)]
        plays = early or [_play_of(one.path, replayer, lossy=lossy) for one, _ in pairs]
        columns = [move_values(one, annotated=values) for one, _ in pairs]
        tables = [read_run_times(one.path / METADATA_DB) for one, _ in pairs]
        times = [{key: more for key, *more in table.tolist()} for table in tables]
        ends = list(itertools.accumulate(len(ordinals) for _, ordinals in pairs))

        def at(i: int) -> tuple[int, int]:
            number = bisect.bisect_right(ends, i)
            return number, int(pairs[number][1][i - ends[number]])

        def name(i: int) -> str:
            number, ordinal = at(i)
            session = pairs[number][0]
            return f"{session.path}: run {session.runs['run_id'][ordinal]}"

        def read_one(i: int) -> RunFacts:
            place = number, ordinal = at(i)
            session, column = pairs[number][0], columns[number]
            run, *facts = session_run(session, ordinal, plays[number], lossy=lossy, final_board=final_boards)
            if column is not None:
                run = with_values(run, session, ordinal, column)
            certain, lost = facts
            run_id = int(session.runs["run_id"][ordinal])
            if run_id in times[number]:
                start, elapsed = times[number][run_id]
                meta = msgspec.structs.replace(run.meta, start_unix_s=start, elapsed_s=elapsed)
                run = dataclasses.replace(run, meta=meta)
            return run, certain, 0, lost, run_id, START_BOARDS in session.meta, place

        source = numbered(path, kind, ends[-1] if ends else 0, name, read_one)
        unheld: set[str] = set()
        for (one, _), found in zip(pairs, columns, strict=True):
            unheld |= {*one.columns} - {*(found.columns if found else ())}
            # Without the player, a seed identifies no game.
            if one.foreign is not None and not one.meta.get("player_sha256") and one.runs["seed"].any():
                unheld.add("seed")
            unheld |= {START_BOARDS} & {*one.meta}
        held = tuple(one for one, _ in pairs)
        return dataclasses.replace(source, columns=tuple(sorted(unheld)), sessions=held)

    return Tables(sessions, serve)


def write(flow: Conversion) -> None:
    """Write the runs of a conversion to a session of rows, or on tape."""
    facts = {"converted_from": flow.source.kind} | ({"player": flow.player} if flow.player else {})
    write_session(flow.target, flow.runs(), facts, storage=TAPE if flow.kind == "tape" else ROWS)


def _play_of(path: Path, replayer: Replayer | None, *, lossy: bool) -> Play | None:
    """Return the function that replays a session's games; None if there is none, or on tape.

    Raises MaintenanceError if a replay is needed for moves and ``lossy`` is not set, and ReplayError if it is
    needed for boards.
    """
    files = SessionFiles(path)
    if files.on_tape:
        return None  # a tape holds every move and the final boards
    facts = read_facts(files.path / METADATA_DB)
    play, why = player_of(replayer, files.path, facts)
    if play is not None:
        return play
    rate = facts.get("sample_rate", 1)
    if isinstance(rate, int) and rate > 1:
        raise ReplayError(
            f"one step in {rate} was {SAMPLED}, and its games cannot be replayed: {why}",
            path=files.path,
            hint="read its rows with `tape2048 export` or Session, or record with sample_rate = 1",
        )
    if not files.layout.move and not lossy:
        raise MaintenanceError(
            f"its moves were not recorded, and its games cannot be replayed: {why}",
            path=files.path,
            hint="pass --lossy to end each game at its last recorded board, without its last move, or record "
            "with --record-action",
        )
    return None
