"""Sessions written in the other storage: rows onto tape, and back.

Both hold the same games: rows onto tape and back are the same ``steps.npy``. A tape holds every move and each
game's final board, which ``steps.npy`` has only in part, so that some games are played again.

The session is validated before and after, and the rows of both are compared. Ids, seeds and facts stay as
they are, but for ``storage``; embeddings belong to the files they were made of, and are not copied.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tape2048.conversion.session_runs import BLOCK_ROWS, boards_of, session_run, write_rows
from tape2048.errors import MaintenanceError, ReplayError
from tape2048.formats.metadata import finish_session
from tape2048.formats.session import ROWS, STEPS_NPY, TAPE
from tape2048.io.durable import Staging, fsync_dir, rename_numbered, storage_errors
from tape2048.maintenance.validation import check_draft, validate_session
from tape2048.session.session import Session
from tape2048.tape.reader import game_pieces
from tape2048.tape.writer import TapeWriter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from tape2048.conversion.session_runs import Play
    from tape2048.conversion.sources import Replayer
    from tape2048.formats.session import Storage

#: Different from that of a recorder's unfinished sessions, which its next start finishes.
_STAGING_SUFFIX = ".repacking"

#: Rows that are in memory at a time, unless a game is longer.
_PIECE_ROWS = 1 << 18


class Repacked(NamedTuple):
    """The result of :func:`repack_session`: the new session, its rows and runs, and both sizes in bytes."""

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
    """Write a session in the other storage, under the same name or the next free one, and leave the original.

    It is published only after a complete validation, and if its rows and runs are those of the original.
    Memory holds the run tables and a piece of the rows.

    Args:
        path: a session of the recorder, of ``merge`` or of ``convert``.
        out_dir: the directory for the new session; created if missing.
        storage: ``"tape"`` or ``"rows"``, other than the session's.
        replayer: makes the player of a session, as for :func:`tape2048.conversion.open_source`. It plays the
            games of a session without ``record_action`` again, and those that both a 2 and a 4 would end.
        lossy: let a 2 end such games where they cannot be played again; no row tells the difference.
        progress: called with the rows written so far, and all rows.

    Raises:
        MaintenanceError: the session has this storage, is foreign or sampled, fails its validation, or lacks
            moves or final boards that cannot be played again.
        FormatError: it cannot be opened; or a game breaks off or breaks the rules, which no tape holds.
        ReplayError: a game comes out differently.
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
        raise MaintenanceError(found, path=first.path, hint="restore it from a copy")
    advance = progress or (lambda _done, _total: None)
    with storage_errors(root, "writing the session"):
        root.mkdir(parents=True, exist_ok=True)
        target = root / session.name
        with Staging(target, _STAGING_SUFFIX) as staging:
            draft = staging.path / "session"
            draft.mkdir()
            if storage == TAPE:
                size = _write_tape(draft, session, replayer, advance, lossy=lossy)
            else:
                size = _write_rows(draft, session, advance)
            check_draft(draft, MaintenanceError)
            _check_same(session, Session.open(draft))
            published = rename_numbered(draft, target)
            fsync_dir(root)
    before = sum((session.path / name).stat().st_size for name in (*_files(session), "manifest.json"))
    return Repacked(published, len(session), len(session.runs), before, size)


def _files(session: Session) -> list[str]:
    return list(session.manifest.files) if session.manifest else []


def _check_source(session: Session, storage: Storage) -> None:
    """Refuse what has this storage already, and what a tape cannot hold."""
    if (session.tape is not None) == (storage == TAPE):
        raise MaintenanceError(f"the session is in this storage already: {storage}", path=session.path)
    has_one_file = session.tape is not None or STEPS_NPY in _files(session)
    if session.manifest is None or session.blocks is None or not session.contiguous or not has_one_file:
        found = "a foreign session, without a manifest, block checksums or one file of rows"
        raise MaintenanceError(found, path=session.path, hint="convert it first: tape2048 convert")
    rate = session.meta.get("sample_rate", 1)
    sampled = np.flatnonzero(session.runs["rows"] != session.runs["steps"])
    if rate != 1 or sampled.size:
        found = (
            f"only every {rate}th step was recorded (sample_rate)" if rate != 1 else "not all steps are there"
        )
        raise MaintenanceError(f"{found}; a tape holds each", path=session.path, hint="it stays as it is")


def _write_tape(
    draft: Path,
    session: Session,
    replayer: Replayer | None,
    advance: Callable[[int, int], object],
    *,
    lossy: bool,
) -> int:
    """Write a session of rows onto tape; return the new files' size."""
    play, why = None, "no player was given"
    if replayer is not None:
        try:
            play = replayer(session.path, session.meta)
        except ReplayError as error:
            why = error.message
    with TapeWriter(draft) as writer:
        for games, rows in game_pieces(session.runs, _PIECE_ROWS):
            boards, moves, finals = _games(session, games, rows, play, why, lossy=lossy)
            writer.add_boards(boards, moves, finals, session.runs[games])
            advance(rows.stop, len(session))
        return writer.finish(session.meta)


def _games(
    session: Session, games: slice, rows: slice, play: Play | None, why: str, *, lossy: bool
) -> tuple[NDArray[np.uint64], NDArray[np.uint8], NDArray[np.uint64]]:
    """Return boards, moves and final boards of some games; ``why`` there is no ``play`` is for errors."""
    from tape2048.game.moves import last_boards

    records = session.read_rows(rows.start, rows.stop)
    boards = boards_of(records, f"one of the runs {games.start} to {games.stop - 1}", session.path)
    if "action" not in (records.dtype.names or ()):
        if play is None:
            raise MaintenanceError(
                f"its moves were not recorded (record_action), and its games cannot be played again: {why}",
                path=session.path,
                hint="bring its player back, with its weights, or leave the session as it is",
            )
        runs = [session_run(session, game, play)[0] for game in range(games.start, games.stop)]
        moves = np.concatenate([run.moves for run in runs])
        return boards, moves, np.array([run.final_board for run in runs], np.uint64)
    moves = np.ascontiguousarray(records["action"])
    ends = np.cumsum(session.runs["rows"][games], dtype=np.int64)
    finals, certain = last_boards(boards[ends - 1], moves[ends - 1])
    for game in np.flatnonzero(~certain).tolist():
        ordinal = games.start + game
        if play is not None:
            finals[game] = session_run(session, ordinal, play)[0].final_board
        elif not lossy:
            raise MaintenanceError(
                f"run {session.runs['id'][ordinal]}: both a 2 and a 4 may have ended the game, "
                f"and it cannot be played again: {why}",
                path=session.path,
                hint="--lossy (lossy=True) takes a 2: no row tells the difference",
            )
    return boards, moves, finals


def _write_rows(draft: Path, session: Session, advance: Callable[[int, int], object]) -> int:
    """Write a session on tape as rows; return the new files' size."""

    def parts() -> Iterator[NDArray[np.void]]:
        for first in range(0, len(session), BLOCK_ROWS):
            end = min(first + BLOCK_ROWS, len(session))
            yield session.read_rows(first, end)
            advance(end, len(session))

    entry, blocks = write_rows(draft, session.dtype, parts())
    return finish_session(draft, {STEPS_NPY: entry}, session.runs, blocks, {**session.meta, "storage": ROWS})


def _check_same(session: Session, written: Session) -> None:
    """Compare all runs and rows of the original and of the new session."""
    same = len(session) == len(written) and np.array_equal(session.runs, written.runs)
    for first in range(0, len(session) if same else 0, _PIECE_ROWS):
        end = min(first + _PIECE_ROWS, len(session))
        one, other = (each.read_rows(first, end).view(np.uint8) for each in (session, written))
        same = same and np.array_equal(one, other)
    if not same:
        found = "the new session does not hold the same rows; nothing was published"
        raise MaintenanceError(
            found, path=session.path, hint="look at the kernel's log (dmesg) for the device"
        )
