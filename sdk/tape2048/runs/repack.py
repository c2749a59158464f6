"""Repacking of a session: its rows onto tape, or back.

Rows onto tape and back give the same ``steps.npy``. A tape holds every move and every final board, which
``steps.npy`` may lack, so some games are replayed. The session is validated before and after, and the rows of
both are compared. Ids, seeds, columns and facts stay the same, except for ``storage``.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tape2048.errors import MaintenanceError
from tape2048.files.durable import Draft, fsync_dir, rename_numbered
from tape2048.files.opening import storage_errors
from tape2048.maintenance.validation import check_draft, validate_session
from tape2048.runs.sessions import player_of, session_run
from tape2048.session.column_draft import write_column
from tape2048.session.directory import rows_entry
from tape2048.session.layout import (
    MANIFEST,
    METADATA_DB,
    ROWS,
    START_BOARDS,
    STEPS_HEADER_BYTES,
    STEPS_NPY,
    TAPE,
    step_dtype,
)
from tape2048.session.metadata import read_run_times
from tape2048.session.metadata_writer import finish_session
from tape2048.session.npy_writer import NpyWriter
from tape2048.session.session import Session
from tape2048.session.tape_reader import game_pieces
from tape2048.session.tape_writer import TapeWriter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from tape2048.runs.run import Replayer
    from tape2048.session.layout import Storage

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

    Args:
        path: a session of the recorder, of ``merge`` or of ``convert``.
        out_dir: the directory for the new session; created if missing.
        storage: ``"tape"`` or ``"rows"``, other than the session's.
        replayer: function that makes the player of a session, as for :func:`tape2048.runs.open_source`. It
            replays games without ``record_action``, and games that both a 2 and a 4 would end.
        lossy: whether such games end with a 2 if they cannot be replayed. Rows do not show the difference.
        progress: function that is called with the rows written so far, and all rows.

    Raises:
        MaintenanceError: the session has this storage, is from another program or sampled, fails its
            validation, or lacks moves or final boards that cannot be replayed.
        FormatError: the session cannot be opened; or a game did not end or breaks the rules, so a tape cannot
            hold it.
        ReplayError: the replay of a game differs from the session.

    Example:
        >>> from tape2048 import Session, sessions
        >>> from tape2048.runs import repack_session
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
        raise MaintenanceError(found, path=first.path, hint=first.hint)
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
    if rate != 1 or (session.runs["rows"] != session.runs["steps"]).any():
        found = f"one step in {rate} was recorded (sample_rate), or some are missing; a tape needs every step"
        raise MaintenanceError(found, path=session.path)


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
        found = f"its moves were not recorded (record_action), and its games cannot be replayed: {why}"
        raise MaintenanceError(found, path=session.path)
    with TapeWriter(draft, given_starts=START_BOARDS in session.meta) as writer:
        for games, rows in game_pieces(session.runs, _PIECE_ROWS):
            runs = []
            for ordinal in range(games.start, games.stop):
                run, certain, _ = session_run(session, ordinal, play)
                if not (certain or lossy):
                    found = f"run {session.runs['run_id'][ordinal]}: both a 2 and a 4 may have ended the "
                    found += f"game, and it cannot be replayed: {why}"
                    hint = "pass --lossy (lossy=True) to assume a 2; rows do not show the difference"
                    raise MaintenanceError(found, path=session.path, hint=hint)
                runs.append(run)
            boards = np.concatenate([run.boards for run in runs])
            moves = np.concatenate([run.moves for run in runs])
            finals = np.array([run.final_board for run in runs], np.uint64)
            writer.add_boards(boards, moves, finals, session.runs[games])
            advance(rows.stop, len(session))
        return writer.finish(session.meta, read_run_times(session.path / METADATA_DB))


def _tape_as_rows(draft: Path, session: Session, advance: Callable[[int, int], object]) -> int:
    dtype = step_dtype(record_action=session.meta.get("record_action") is True)
    with NpyWriter(draft / STEPS_NPY, dtype, STEPS_HEADER_BYTES) as file:
        done = 0
        for rows in _row_bytes(session):
            file.append(rows[:, : dtype.itemsize])
            advance(done := done + len(rows), len(session))
        files = {STEPS_NPY: file.finish()}
    times = read_run_times(session.path / METADATA_DB)
    facts = {**session.meta, "storage": ROWS}
    return finish_session(draft, files, session.runs, file.blocks, facts, run_times=times)


def _row_bytes(session: Session) -> Iterator[NDArray[np.uint8]]:
    for first in range(0, len(session), _PIECE_ROWS):
        end = min(first + _PIECE_ROWS, len(session))
        yield session.read_rows(first, end).view(np.uint8).reshape(end - first, -1)


def _check_same(session: Session, written: Session) -> None:
    same = len(session) == len(written) and np.array_equal(session.runs, written.runs)
    for one, other in zip(_row_bytes(session), _row_bytes(written), strict=same):
        width = min(one.shape[1], other.shape[1])  # the last byte of the longer is the action
        same = same and np.array_equal(one[:, :width], other[:, :width])
    if not same:
        found = "the new session does not hold the same rows. Nothing was published"
        hint = "look at the kernel's log (dmesg) for errors of the device"
        raise MaintenanceError(found, path=session.path, hint=hint)
