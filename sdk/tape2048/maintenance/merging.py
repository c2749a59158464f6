"""Merging of several sessions into one new session with the same games.

The games are in the order of the sessions. Each keeps its rows and its seed, so labels and splits (by player
and seed) do not change. The rows are copied a few games at a time, and compared with the checksums of their
blocks. If all games have different ids, rows and block checksums are copied unchanged. Otherwise, the games
are renumbered, with new checksums: the ids of two recordings without a seed are equal, because each starts
from 0. Tapes are decoded, since the rows of anchors change.

The table ``session`` keeps the facts that all sessions share. The list ``merged_from`` has the other facts of
each session. A column that all sessions have, with the same type, width and facts, is joined in the order of
the rows.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tape2048.base.text import counted, json_bytes
from tape2048.errors import MaintenanceError
from tape2048.files.durable import Draft, fsync_dir, rename_numbered, write_all
from tape2048.files.npy import rows_header
from tape2048.files.opening import open_fd, storage_errors
from tape2048.files.reading import crc32c, open_regular, read_exactly
from tape2048.maintenance.validation import check_draft
from tape2048.session.blocks import BlockSums
from tape2048.session.column_draft import shared_columns, write_column
from tape2048.session.directory import rows_entry
from tape2048.session.layout import (
    RUN_DTYPE,
    SESSION_NAME,
    START_BOARDS,
    STEPS_HEADER_BYTES,
    STEPS_NPY,
    FileEntry,
    name_key,
)
from tape2048.session.metadata_writer import finish_session
from tape2048.session.public_facts import public_facts
from tape2048.session.session import Session
from tape2048.session.tape_layout import TAPE_DTYPE, TAPE_NPY
from tape2048.session.tape_reader import game_pieces
from tape2048.session.tape_writer import TapeWriter

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from tape2048.session.columns import ColumnInfo

#: Facts that define the meaning of rows and labels and the identity of games: equal in all merged sessions.
_SHARED = ("format_version", "player", "player_args", "player_sha256", "sample_rate", "record_action")

#: Facts of each session that the merged session replaces.
_OWN = ("rows", "runs", "started_at", "ended_at", "recovered", "merged_from")

_PIECE_ROWS = 1 << 18  # rows that are copied together: 7 MB


class Merged(NamedTuple):
    """The result of :func:`merge_sessions`.

    Attributes:
        path: the new session.
        sessions: number of merged sessions.
        rows: number of rows.
        runs: number of runs.
        bytes: size of its files in bytes, without columns.
        renumbered: whether the games have new ids.
    """

    path: Path
    sessions: int
    rows: int
    runs: int
    bytes: int
    renumbered: bool


def merge_sessions(
    paths: Sequence[str | os.PathLike[str]],
    out_dir: str | os.PathLike[str],
    *,
    all_columns: bool = False,
    progress: Callable[[int, int], object] | None = None,
) -> Merged:
    """Merge sessions into a new session, and leave the originals unchanged.

    The name of the new session has the earliest start and the model tag. The session is published only after
    a complete validation (:func:`tape2048.validate_session`). It has the columns that all sessions have with
    the same type, width and facts; a warning names the others. Memory: the run tables and a few games.

    Args:
        paths: at least two sessions of one player; they are merged in the order of their starts.
        out_dir: directory for the new session, created if missing.
        all_columns: whether to raise an error instead of leaving out a column.
        progress: called with the number of rows copied so far, and of all rows.

    Returns:
        The new session.

    Raises:
        MaintenanceError: a session is from another program or given twice; two sessions have different
            players or sampling rates, or contain the same game; only some have the action or are on tape; or
            ``all_columns`` is true and a column would be left out.
        FormatError: a session cannot be opened, or its bytes have changed.
        StorageError: an operation of the file system failed.

    Example:
        >>> from tape2048 import sessions
        >>> from tape2048.maintenance import merge_sessions
        >>> merge_sessions(sessions("selfplay"), "merged")  # doctest: +IGNORE_EXCEPTION_DETAIL
        Traceback (most recent call last):
        MaintenanceError: found 1 path, expected at least two sessions
    """
    root = Path(os.path.abspath(out_dir))
    sessions = _open_parts(paths)  # held, and so locked, to the end
    _check_mergeable(sessions)
    columns = columns_to_join(sessions, all_columns=all_columns)
    ids = np.concatenate([session.runs["run_id"] for session in sessions])
    renumbered = len(np.unique(ids)) != len(ids)
    facts = _facts(sessions)
    tables, first_row, first_id = [], 0, 0
    for session in sessions:
        table = session.runs.copy()
        table["first_row"] += np.uint64(first_row)
        if renumbered:
            table["run_id"] = np.arange(first_id, first_id + len(table), dtype=np.uint64)
        tables.append(table)
        first_row, first_id = first_row + len(session), first_id + len(table)
    write = _write_rows if sessions[0].tape is None else _write_tape
    report = progress or (lambda *_: None)
    with storage_errors(root, "writing the merged session"):
        root.mkdir(parents=True, exist_ok=True)
        target = root / _name(facts)
        with Draft(target) as hidden:
            draft = hidden.path / "session"
            draft.mkdir()
            size = write(draft, sessions, tables, facts, report)
            join_columns(draft, sessions, columns)
            check_draft(draft, MaintenanceError)
            published = rename_numbered(draft, target)
            fsync_dir(root)
    return Merged(published, len(sessions), facts["rows"], facts["runs"], size, renumbered)


def columns_to_join(
    sessions: Sequence[Session], *, all_columns: bool, skip: Collection[str] = ()
) -> dict[str, ColumnInfo]:
    """Return the columns that sessions share; log a warning about the others, or raise MaintenanceError."""
    columns, others = shared_columns([session.columns for session in sessions], skip)
    if others and all_columns:
        raise MaintenanceError(f"columns would be lost: {others}", hint="Keep the originals (no --remove).")
    if others:
        logging.getLogger("tape2048").warning("columns left out: %s", others)
    return columns


def join_columns(draft: Path, sessions: Sequence[Session], columns: Mapping[str, ColumnInfo]) -> None:
    merged = Session.open(draft)
    for name, info in columns.items():
        values = (session.column(name).values for session in sessions)
        write_column(merged, name, values, dtype=info.dtype, facts={"maker": None, **info.facts})


def _open_parts(paths: Sequence[str | os.PathLike[str]]) -> list[Session]:
    paths = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
    if len(paths) < 2:
        raise MaintenanceError(
            f"found {counted(len(paths), 'path')}, expected at least two sessions",
            hint="name each session to merge, as in selfplay/*_model=greedy",
        )
    seen: set[str] = set()
    sessions = []
    convert = "convert it first: tape2048 convert"
    for path in paths:
        real = os.path.realpath(path)
        if real in seen:
            raise MaintenanceError("this session is given twice", path=path, hint="name each session once")
        seen.add(real)
        session = Session.open(path, "mmap")
        if session.manifest is None or session.blocks is None or not session.contiguous:
            raise MaintenanceError(
                "found a session of another program, expected one with a manifest and block checksums",
                path=session.path,
                hint=convert,
            )
        if rows_entry(session.manifest) is None:
            raise MaintenanceError(
                f"the rows of this session are in shards; expected one {STEPS_NPY}",
                path=session.path,
                hint=convert,
            )
        missing = [name for name in _SHARED if session.meta.get(name) is None]
        if missing:
            raise MaintenanceError(
                f"this session has no {missing[0]}, which defines its games",
                path=session.path,
                hint="leave it out",
            )
        sessions.append(session)
    return sorted(
        sessions, key=lambda session: (str(session.meta.get("started_at")), name_key(session.path.name))
    )


def _check_mergeable(sessions: list[Session]) -> None:
    first = sessions[0]
    for session in sessions[1:]:
        if (session.tape is None) != (first.tape is None):
            kinds = ("on tape", "of rows") if first.tape is None else ("of rows", "on tape")
            raise MaintenanceError(
                f"found a session {kinds[0]}, expected one {kinds[1]}, as {first.path.name}",
                path=session.path,
                hint="give all sessions one storage first: tape2048 repack",
            )
        if session.dtype != first.dtype:
            raise MaintenanceError(
                f"found rows of {session.dtype.itemsize} bytes, expected {first.dtype.itemsize}, as "
                f"{first.path.name} has (28 without the move, 29 with it)",
                path=session.path,
                hint="merge sessions with record_action and sessions without it separately",
            )
        found, expected = public_facts(session.meta), public_facts(first.meta)
        for name in (*_SHARED, START_BOARDS):
            if found.get(name) != expected.get(name):
                raise MaintenanceError(
                    f"{name} is {_short(found.get(name))}; expected {_short(expected.get(name))}, "
                    f"as in {first.path.name}",
                    path=session.path,
                    hint="merge only sessions of one player with the same settings",
                )
    ordered = np.sort(np.concatenate([session.runs["seed"] for session in sessions]))
    twice = np.flatnonzero(ordered[1:] == ordered[:-1])
    if len(twice):
        seed = ordered[twice[0]]
        where = [session.path for session in sessions if (session.runs["seed"] == seed).any()]
        raise MaintenanceError(
            f"the game of seed {seed} is also in {where[-1].name}; expected each game once",
            path=where[0],
            hint="leave one of them out: it is a copy, or was merged from the others",
        )


def _short(value: object) -> str:
    text = json_bytes(value).decode()
    return text if len(text) <= 80 else f"{text[:77]}..."


def _facts(sessions: list[Session]) -> dict[str, Any]:
    metas = [public_facts(session.meta) for session in sessions]
    first = metas[0]
    shared = {
        name: value
        for name, value in first.items()
        if name not in _OWN and all(name in meta and meta[name] == value for meta in metas)
    }
    own = [
        {
            "name": session.path.name,
            "rows": len(session),
            "runs": len(session.runs),
            **{name: value for name, value in meta.items() if name not in shared and name not in _OWN},
            **{name: meta[name] for name in _OWN[2:] if name in meta},
        }
        for session, meta in zip(sessions, metas, strict=True)
    ]
    return {
        **shared,
        "started_at": str(first.get("started_at")),
        "ended_at": max(str(session.meta.get("ended_at")) for session in sessions),
        "recovered": any(session.meta.get("recovered") is True for session in sessions),
        "rows": sum(len(session) for session in sessions),
        "runs": sum(len(session.runs) for session in sessions),
        "merged_from": own,
    }


def _name(facts: dict[str, Any]) -> str:
    started = facts["started_at"].replace("-", "").replace(":", "")
    name = f"{started}_model={facts.get('model_tag', 'merged')}"
    if not SESSION_NAME.fullmatch(name):
        raise MaintenanceError(
            f"found started_at {facts['started_at']!r} and model_tag {facts.get('model_tag')!r}, expected "
            "values that make a valid name of a session"
        )
    return name


def _pieces(session: Session) -> Iterator[tuple[slice, NDArray[Any]]]:
    """Yield a session piece by piece, as games and their rows; raise ChecksumError for a changed block."""
    name, dtype = (STEPS_NPY, session.dtype) if session.tape is None else (TAPE_NPY, TAPE_DTYPE)
    assert session.manifest is not None
    assert session.blocks is not None
    path, offset = session.path / name, session.manifest.files[name].bytes - len(session) * dtype.itemsize
    sums = BlockSums(session.blocks, dtype.itemsize)
    with open_regular(path) as source:
        for games, rows in game_pieces(session.runs, _PIECE_ROWS):
            piece = np.empty(rows.stop - rows.start, dtype)
            read_exactly(source, piece, offset + rows.start * dtype.itemsize, path)
            sums.add(rows.start * dtype.itemsize, piece.view(np.uint8).data)
            for changed in sums.defects(path, offset) if rows.stop == len(session) else ():
                raise changed
            yield games, piece


def _write_rows(
    directory: Path,
    sessions: list[Session],
    tables: list[NDArray[np.void]],
    facts: dict[str, Any],
    report: Callable[[int, int], object],
) -> int:
    header = rows_header(sessions[0].dtype, facts["rows"], STEPS_HEADER_BYTES)
    checksum, rows = crc32c(header), 0
    blocks = []
    with open_fd(directory / STEPS_NPY, os.O_WRONLY | os.O_CREAT | os.O_EXCL) as fd:
        write_all(fd, header)
        for session, table in zip(sessions, tables, strict=True):
            assert session.blocks is not None
            own = session.blocks.copy()
            own["first_row"] += np.uint64(rows)
            sums, begin = BlockSums(session.blocks, session.dtype.itemsize), 0
            for games, piece in _pieces(session):
                piece["run_id"] = np.repeat(table["run_id"][games], table["rows"][games])
                data = piece.view(np.uint8).data
                sums.add(begin, data)
                begin += len(data)
                checksum = crc32c(data, checksum)
                write_all(fd, data)
                rows += len(piece)
                report(rows, facts["rows"])
            own["crc32c"] = [*sums.found().values()]
            blocks.append(own)
        os.fsync(fd)
    steps = FileEntry(STEPS_HEADER_BYTES + rows * sessions[0].dtype.itemsize, checksum)
    all_runs = np.concatenate(tables, dtype=RUN_DTYPE)
    return finish_session(directory, {STEPS_NPY: steps}, all_runs, np.concatenate(blocks), facts)


def _write_tape(
    directory: Path,
    sessions: list[Session],
    tables: list[NDArray[np.void]],
    facts: dict[str, Any],
    report: Callable[[int, int], object],
) -> int:
    """Write a session on tape as :func:`_write_rows` does. Every game is decoded and checked."""
    with TapeWriter(directory, given_starts=START_BOARDS in facts) as writer:
        for session, table in zip(sessions, tables, strict=True):
            assert session.tape is not None
            for games, piece in _pieces(session):
                writer.add(piece, table[games], session.tape.starts[games])
                report(writer.rows, facts["rows"])
        return writer.finish(facts)
