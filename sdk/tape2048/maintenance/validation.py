"""Complete validation of a session.

Opening a session makes only cheap checks. Validation makes the others: every checksum, every row against the
run table, the embeddings, and unknown files in the directory. Files are read in chunks and not through a
mapping, so a file that is truncated meanwhile is an error and not a SIGBUS. The run table and one chunk bound
the memory.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeAlias, TypeVar

import numpy as np

from tape2048.base.findings import Finding, Report
from tape2048.base.text import counted
from tape2048.errors import ChecksumError, ManifestError, NpyError, SchemaError, TapeError
from tape2048.formats.metadata import packed_defect, read_metadata
from tape2048.formats.npy import read_header
from tape2048.formats.session import MANIFEST, METADATA_DB, STEP_DTYPES
from tape2048.io.crc import crc32c
from tape2048.io.reading import open_regular, read_exactly
from tape2048.maintenance.checks import BlockSums, Place, RowChecks, TapeChecks
from tape2048.session.directory import (
    PLAIN_NAME,
    as_unsigned,
    check_directory,
    find_steps,
    list_names,
    manifest_defects,
    read_manifest,
)
from tape2048.session.embeddings import EMBEDDINGS_FILES, read_embeddings
from tape2048.session.row_owners import from_run_table
from tape2048.tape.layout import ANCHOR_DTYPE, TAPE_DTYPE, TAPE_NPY
from tape2048.tape.reader import check_anchor_count, check_anchor_rows, tape_runs

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from tape2048.formats.metadata import Metadata
    from tape2048.formats.npy import NpyHeader
    from tape2048.formats.session import Manifest

#: Called with the bytes read so far and the bytes to read in all.
Progress: TypeAlias = Callable[[int, int], object]

#: Rows of a chunk: 7 MB, and about four times that in the arrays of the checks.
CHUNK_ROWS = 1 << 18

#: Bytes of a chunk of other files.
CHUNK_BYTES = 8 * 1024 * 1024

# Endings of the files that SQLite, and programs that write to a temporary name, leave behind.
_LEFTOVER_SUFFIXES = ("-journal", "-wal", "-shm", ".tmp", ".partial")

_P = ParamSpec("_P")
_T = TypeVar("_T")


def validate_session(path: str | os.PathLike[str], *, progress: Progress | None = None) -> Report:
    """Check a session directory completely.

    Recomputes and compares: the manifest's sizes, checksums and counts; the blocks' checksums, and that the
    blocks cover each row once; that the runs tile the rows; each row's ``run_id`` and ``step_idx``; exponents
    <= 15, actions <= 3 and no empty board; each run's ``rows == ceil(steps / sample_rate)``, and its
    ``highest_tile`` with the tiles of its rows; of games that this project's recorder played, score and
    highest tile with the outcomes of the last row; the facts ``rows`` and ``runs``; the copy of the run
    table; that embeddings are complete and of these rows, as far as the loader checks it; and that the
    directory has no other files. A session on tape is decoded: each game by the rules and by its row of the
    run table, and each anchor. Without the fact ``sample_rate``, the first rows give the rate. Rows of games
    that never reached the run table of a foreign session are a note, not a finding.

    Args:
        path: the directory of a session, of the recorder or foreign.
        progress: called after each chunk with the bytes read so far, and all bytes.

    Returns:
        All findings. Defects are never raised. A defect may hide others: a header that cannot be read hides
        the defects of the rows.

    Example:
        >>> from tape2048 import sessions, validate_session
        >>> report = validate_session(sessions("selfplay")[0])
        >>> report.ok, report.runs
        (True, 200)
    """
    return _Validation(progress).run(path)


def check_draft(draft: Path, kind: type[TapeError]) -> None:
    """Validate a new session completely before it is published; raise the given error for a finding."""
    report = validate_session(draft)
    if report.findings:
        first = report.findings[0]
        raise kind(
            f"the new session does not pass ({first.error}: {first.message}); nothing was published",
            path=first.path,
            hint="look at the kernel's log (dmesg) for the device, and validate the sessions that were named",
        )


class _Validation:
    """The state of one validation."""

    def __init__(self, progress: Progress | None) -> None:
        self._progress = progress
        self._findings: list[Finding] = []
        self._checksums = 0
        self._bytes_done = 0
        self._bytes_total = 0
        self._directory = Path()
        self._manifest: Manifest | None = None
        self._metadata: Metadata | None = None
        self._blocks: BlockSums | None = None

    def run(self, path: str | os.PathLike[str]) -> Report:
        directory = self._collect(check_directory, path)
        if directory is None:
            return Report(os.fspath(path), 0, 0, 0, tuple(self._findings))
        self._directory = directory
        database = directory / METADATA_DB
        parts = self._collect(find_steps, directory) or []
        self._manifest = self._collect(read_manifest, directory)
        if os.path.lexists(database):
            self._metadata = self._collect(read_metadata, database)
        if self._metadata is not None:
            packed = self._collect(packed_defect, database)
            self._add(*([packed] if packed else []))
        self._add(*(manifest_defects(self._manifest, parts, directory) if self._manifest else ()))
        listed = [
            directory / name
            for name in (self._manifest.files if self._manifest else ())
            if PLAIN_NAME.fullmatch(name)
        ]
        self._bytes_total = sum(found.st_size for found in map(_stat, {*parts, *listed}) if found is not None)
        on_tape = bool(parts) and parts[0].name == TAPE_NPY
        headers = self._headers(parts, *([[TAPE_DTYPE], [ANCHOR_DTYPE]] if on_tape else [STEP_DTYPES]))
        rows = left_out = 0
        if headers is None:
            self._read_plain(*parts)
        else:
            rows = headers[0].rows if on_tape else sum(header.rows for header in headers)
            left_out = (self._read_tape if on_tape else self._read_rows)(parts, headers, rows)
            self._check_counts(rows)
        self._read_plain(*(path for path in listed if path not in parts and path.is_file()))
        self._check_names(
            {MANIFEST, METADATA_DB, *EMBEDDINGS_FILES, *(part.name for part in (*parts, *listed))}
        )
        if headers is not None and any(os.path.lexists(directory / name) for name in EMBEDDINGS_FILES):
            self._collect(read_embeddings, directory, rows - left_out, self._manifest)
        notes: tuple[str, ...] = ()
        if left_out:
            notes = (f"{counted(left_out, 'row')} of games that never reached the table runs: left out",)
        runs = len(self._metadata.runs) if self._metadata else 0
        return Report(str(directory), rows, runs, self._checksums, tuple(self._findings), notes)

    def _headers(self, parts: list[Path], *accepted: Sequence[np.dtype[Any]]) -> list[NpyHeader] | None:
        """Read the header of each part; return None if one is invalid or two differ.

        ``accepted`` are the row types of each part, or those of all parts.
        """
        headers: list[NpyHeader] = []
        for at, part in enumerate(parts):
            header = self._collect(_read_header, part, accepted[at % len(accepted)])
            if header is None:
                return None
            if headers and len(accepted) == 1 and header.dtype != headers[0].dtype:
                msg = f"rows of type {header.dtype.descr}; {parts[0].name} has {headers[0].dtype.descr}"
                self._add(NpyError(msg, path=part))
                return None
            headers.append(header)
        return headers or None

    def _read_rows(self, parts: list[Path], headers: list[NpyHeader], rows: int) -> int:
        """Read the rows once, for all checksums and checks; return the number of rows without a run."""
        checks: RowChecks | None = None
        if self._metadata is not None:
            whole = self._metadata.has_rows or self._manifest is not None
            checks = RowChecks(self._metadata, rows, self._directory / METADATA_DB, whole=whole)
        self._begin_blocks(rows, headers[0].dtype.itemsize)
        first = 0
        for part, header in zip(parts, headers, strict=True):
            if self._collect(self._read_part, part, header, first, checks) is None:
                return checks.rows_without_run if checks else 0  # the later rows are unknown
            first += header.rows
        self._add(*(checks.defects() if checks else ()))
        self._end_blocks(parts[0], headers[0].data_offset if len(parts) == 1 else None)
        return checks.rows_without_run if checks else 0

    def _read_part(self, path: Path, header: NpyHeader, first: int, checks: RowChecks | None) -> bool:
        with self._summed(path) as (read, _):
            read(np.empty(header.data_offset, np.uint8))
            buffer = np.empty(min(header.rows, CHUNK_ROWS), header.dtype)
            place = Place(first, path, header.data_offset, header.dtype.itemsize)
            for begin in range(0, header.rows, CHUNK_ROWS):
                chunk = buffer[: header.rows - begin]
                content = read(chunk)
                if self._blocks is not None:
                    self._blocks.update(content)
                if checks is not None:
                    checks.update(as_unsigned(chunk), place.plus(begin))
        return True

    def _read_tape(self, parts: list[Path], headers: list[NpyHeader], rows: int) -> int:
        """Read tape and anchors once, side by side, for all checksums, and decode every game."""
        checks = self._collect(self._tape_checks, self._metadata, parts, headers) if self._metadata else None
        if checks is None:
            self._read_plain(*parts)
            return 0
        self._begin_blocks(rows, 1)
        if self._collect(self._read_games, checks, parts, headers) is not None:
            self._add(*checks.defects())
            self._end_blocks(parts[0], headers[0].data_offset)
        return 0

    def _tape_checks(self, metadata: Metadata, parts: list[Path], headers: list[NpyHeader]) -> TapeChecks:
        """Compare run table, manifest and sizes, and return the checks of the games."""
        anchor_rows = check_anchor_rows(self._directory, self._manifest)
        runs, starts = tape_runs(metadata, self._directory)
        runs, _ = from_run_table(runs, headers[0].rows, self._directory / METADATA_DB)
        check_anchor_count(headers[1].rows, headers[0].rows, anchor_rows, parts[1])
        offsets = headers[0].data_offset, headers[1].data_offset
        return TapeChecks(runs, starts, anchor_rows, (parts[0], parts[1]), offsets)

    def _read_games(self, checks: TapeChecks, parts: list[Path], headers: list[NpyHeader]) -> bool:
        with self._summed(parts[0]) as (read_tape, _), self._summed(parts[1]) as (read_anchors, _):
            read_tape(np.empty(headers[0].data_offset, np.uint8))
            read_anchors(np.empty(headers[1].data_offset, np.uint8))
            for games, rows, anchors in checks.pieces(CHUNK_ROWS):
                tape = np.empty(rows.stop - rows.start, TAPE_DTYPE)
                found = np.empty(anchors.stop - anchors.start, ANCHOR_DTYPE)
                content = read_tape(tape)
                read_anchors(found)
                if self._blocks is not None:
                    self._blocks.update(content)
                checks.update(games, rows, tape, found)
        return True

    def _begin_blocks(self, rows: int, row_bytes: int) -> None:
        if self._metadata is not None and self._metadata.blocks is not None:
            blocks, path = self._metadata.blocks, self._directory / METADATA_DB
            self._blocks = self._collect(BlockSums, blocks, rows, row_bytes, path)

    def _end_blocks(self, path: Path, offset: int | None) -> None:
        if self._blocks is not None:
            self._checksums += len(self._blocks)
            self._add(*self._blocks.defects(path, offset))

    @contextlib.contextmanager
    def _summed(self, path: Path) -> Iterator[tuple[Callable[[NDArray[Any]], memoryview], int]]:
        """Open a file to read it front to back, and compare its checksum with the manifest at the end.

        Yields a function that fills an array with the next bytes and returns them, and the file's size.
        """
        at = total = 0

        def read(into: NDArray[Any]) -> memoryview:
            nonlocal at, total
            read_exactly(fd, into, at, path)
            content = into.view(np.uint8).data
            at, total = at + into.nbytes, crc32c(content, total)
            self._bytes_done += into.nbytes
            if self._progress is not None:
                self._progress(self._bytes_done, self._bytes_total)
            return content

        with open_regular(path) as fd:
            before = os.fstat(fd)
            yield read, before.st_size
            after, names = _stat(path), ("st_dev", "st_ino", "st_size", "st_mtime_ns")
            if after is None or any(getattr(after, name) != getattr(before, name) for name in names):
                msg = "changed, or was replaced, while it was read"
                hint = "published files never change: find the program that writes here"
                self._add(ChecksumError(msg, path=path, hint=hint))
        entry = self._manifest.files.get(path.name) if self._manifest else None
        if entry is not None:
            self._checksums += 1
            if entry.crc32c != total:
                msg = f"has CRC-32C {total:08x}; the manifest says {entry.crc32c:08x}"
                self._add(ChecksumError(msg, path=path, hint="restore the session from a copy"))

    def _read_plain(self, *paths: Path) -> None:
        """Read files for their checksums alone."""

        def read_all(path: Path) -> None:
            with self._summed(path) as (read, size):
                buffer = np.empty(min(size, CHUNK_BYTES), np.uint8)
                for begin in range(0, size, CHUNK_BYTES):
                    read(buffer[: size - begin])

        for path in paths:
            self._collect(read_all, path)

    def _check_counts(self, rows: int) -> None:
        if self._metadata is None:
            return
        for name, found in (("rows", rows), ("runs", len(self._metadata.runs))):
            if self._manifest is not None and getattr(self._manifest, name) != found:
                msg = f"{name} is {getattr(self._manifest, name)}; the session has {found}"
                self._add(ManifestError(msg, path=self._directory / MANIFEST))
            # In a foreign session, a fact of this name may mean anything.
            fact = self._metadata.session.get(name, found)
            if self._metadata.has_rows and fact != found:
                msg = f"the fact {name} in the table session is {fact!r}; the session has {found}"
                self._add(SchemaError(msg, path=self._directory / METADATA_DB))

    def _check_names(self, known: set[str]) -> None:
        names = self._collect(list_names, self._directory) or []
        ours = self._metadata is not None and self._metadata.has_rows and self._metadata.blocks is not None
        if ours and MANIFEST not in names:
            msg = f"no {MANIFEST}, though the recorder wrote the rest"
            hint = "restore it from a copy: without it no program can tell whether the files are complete"
            self._add(ManifestError(msg, path=self._directory, hint=hint))
        for name in names:
            # A foreign session may have other files, such as notes.
            leftover = ours or name.startswith(".") or name.endswith(_LEFTOVER_SUFFIXES)
            if name not in known and leftover:
                msg = f"{name} is not a file of this session"
                hint = "a program did not finish, or put it there by mistake; move it away"
                self._add(ManifestError(msg, path=self._directory / name, hint=hint))

    def _collect(self, action: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T | None:
        """Return the action's result; on an error, add a finding and return None."""
        try:
            return action(*args, **kwargs)
        except TapeError as error:
            self._add(error)
            return None

    def _add(self, *errors: TapeError) -> None:
        self._findings += [Finding.of(error) for error in errors]


def _read_header(path: Path, accepted: Sequence[np.dtype[Any]]) -> NpyHeader:
    with open_regular(path) as fd:
        return read_header(fd, path, accepted)


def _stat(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except OSError:
        return None
