"""Specification of the session directory, which the recorder writes and :class:`tape2048.Session` reads.

::

    <root>/<TS>_model=<tag>/
        steps.npy        one packed record for each decision (the board before the move)
        metadata.db      SQLite: runs, session, blocks
        manifest.json    written last: sizes and checksums of the two above
        <name>.<dtype>.npy + <name>.json      columns, recorded or added later (tape2048.session.columns)

``TS`` is the session's start in UTC, ``YYYYMMDDTHHMMSSZ``; ``-N`` is appended to a name that is taken. A name
that starts with ``.`` is not (yet) a session.

``steps.npy``: NumPy format 1.0, one-dimensional, C order, packed. The header is padded to
:data:`STEPS_HEADER_BYTES`, so that rows start at a cache line and the header, written after the rows, has a
known length.

=========  =======  ===============================================================
field      type     meaning
=========  =======  ===============================================================
run_id     ``<u8``  ``runs.id``
step_idx   ``<u4``  0-based move number within its run
exps       ``u1``   [16] exponents, row-major: 0 is an empty cell, k a tile 2**k
action     ``u1``   only with ``record_action``: 0 up, 1 down, 2 left, 3 right
=========  =======  ===============================================================

The rows of a run are contiguous and in step order. With ``sample_rate = N``, rows with ``step_idx % N == 0``
are kept.

A session **on tape** has the files of :mod:`tape2048.session.tape_layout` instead of ``steps.npy``.

``metadata.db`` has the tables of :data:`SCHEMA` and of :data:`PACKED_SCHEMA`, and perhaps that of
:data:`TIMES_SCHEMA`; ``manifest.json`` is :class:`Manifest`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Literal, TypeAlias, TypeVar

import msgspec
import numpy as np

from tape2048.errors import ManifestError, StorageError, TruncatedError, VersionError, reader_hint
from tape2048.files.reading import read_document

FORMAT_VERSION = 1

#: The fact ``rules`` of new sessions. In rules 1, of sessions without it, two tiles of 32768 do not merge.
RULES = 2
#: The highest tile of any game, which ends with it.
TOP_TILE = 65536
#: The explanation in errors of games that continue after two tiles of 32768 merged.
RULES_1 = "two tiles of 32768 merge, which ends the game, except under rules 1"

#: The fact of a session whose games start from given boards: their number (``count``) and SHA-256, of a
#: recorder, and, if known, their ``games`` (``session.start_games``). The boards are sorted, and a game
#: starts from number ``mix64(seed) % count``. In other sessions, every game starts with two tiles.
START_BOARDS = "start_boards"

STEPS_NPY = "steps.npy"
METADATA_DB = "metadata.db"
MANIFEST = "manifest.json"

#: Names of shards of rows in sessions of other programs.
SHARD_NAME = re.compile(r"steps-(\d{5,6})\.npy")

STEPS_HEADER_BYTES = 192

#: No step has a higher number.
SAMPLE_RATE_MAX = 2**32 - 1

STEP_DTYPE = np.dtype([("run_id", "<u8"), ("step_idx", "<u4"), ("exps", "u1", (16,))])
ACTION_STEP_DTYPE = np.dtype([*STEP_DTYPE.descr, ("action", "u1")])

#: Byte offset of the board in a row.
EXPS_OFFSET = 12

_SIGNED_STEP_DTYPE = np.dtype([("run_id", "<i8"), *STEP_DTYPE.descr[1:]])
_SIGNED_ACTION_STEP_DTYPE = np.dtype([("run_id", "<i8"), *ACTION_STEP_DTYPE.descr[1:]])

#: Accepted row types. A signed ``run_id`` is read as unsigned, bit by bit. The same holds for ids of the run
#: table.
STEP_DTYPES = (STEP_DTYPE, ACTION_STEP_DTYPE, _SIGNED_STEP_DTYPE, _SIGNED_ACTION_STEP_DTYPE)

#: One row of ``runs`` in memory (and in the recorder's journal and messages). In ``metadata.db``,
#: ``run_id`` is the column ``id``, and ``score`` the column ``max_score``.
RUN_DTYPE = np.dtype(
    [
        ("run_id", "<u8"),
        ("seed", "<u8"),
        ("first_row", "<u8"),
        ("rows", "<u4"),
        ("steps", "<u4"),
        ("score", "<u4"),
        ("highest_tile", "<u4"),
    ]
)

#: One row of ``blocks``.
BLOCK_DTYPE = np.dtype([("first_row", "<u8"), ("rows", "<u4"), ("crc32c", "<u4")])

#: The tables of ``metadata.db``. ``runs.seed`` holds the 64-bit seed as SQLite's signed integer.
SCHEMA = """
CREATE TABLE runs(id INTEGER PRIMARY KEY, seed BIGINT, steps INT, max_score INT, highest_tile INT,
                  first_row INT, rows INT);
CREATE TABLE session(meta_key TEXT PRIMARY KEY, meta_value TEXT);
CREATE TABLE blocks(first_row INTEGER PRIMARY KEY, rows INT, crc32c INT);
"""

#: The tables of a session on tape, with one more column: the board that the game starts from, after its first
#: two spawns or as it was given, as SQLite's signed integer.
TAPE_SCHEMA = SCHEMA.replace("rows INT);", "rows INT, start_board BIGINT);", 1)

#: The optional table of a converted session's runs, with the start (0 if unknown) and the duration of each.
TIMES_SCHEMA = "CREATE TABLE run_times(id INTEGER PRIMARY KEY, start_unix_s BIGINT, elapsed_s REAL)"
TIMES_DTYPE = np.dtype([("id", "<u8"), ("start_unix_s", "<u8"), ("elapsed_s", "<f4")])

#: A packed copy of the run table, which is read in a tenth of the time. The row of ``runs_packed`` has the
#: table as ``RUN_DTYPE[R]``, in its order, then its column ``start_board``, if there is one, as ``u64[R]``.
#: It also has the CRC-32 of these bytes, which is the file's ``user_version`` (signed), too. The triggers
#: delete the copy when the table changes. A file restored from a dump lacks the ``user_version``. Readers
#: therefore use a copy only if all of these statements are there and the number matches. Other readers and
#: writers can ignore it, but a writer that drops ``runs_packed`` must drop the triggers, too. (CRC-32 is
#: built in; importing CRC-32C takes 30 ms.)
PACKED_SCHEMA = (
    "CREATE TABLE runs_packed(crc32 INT, data BLOB)",
    "CREATE TRIGGER runs_insert AFTER INSERT ON runs BEGIN DELETE FROM runs_packed; END",
    "CREATE TRIGGER runs_update AFTER UPDATE ON runs BEGIN DELETE FROM runs_packed; END",
    "CREATE TRIGGER runs_delete AFTER DELETE ON runs BEGIN DELETE FROM runs_packed; END",
)

#: Name of a published session: start in UTC, model tag, and the counter after a taken name.
SESSION_NAME = re.compile(r"(?P<ts>[0-9]{8}T[0-9]{6}Z)_model=(?P<tag>[A-Za-z0-9][A-Za-z0-9._+-]*)")

#: Bits of a game's number within its lease.
NUMBER_BITS = 40


def name_key(name: str) -> tuple[str, int, str]:
    """Return a sort key of session names: the start, the tag, and the counter as a number."""
    stem, _, count = name.rpartition("-")
    return (stem, int(count), name) if stem and count.isdecimal() else (name, 1, name)


class FileEntry(msgspec.Struct, frozen=True, omit_defaults=True):
    """Size in bytes and CRC-32C of one file of a session, and in a store its SHA-256."""

    bytes: int
    crc32c: int
    sha256: str | None = None


class Manifest(msgspec.Struct, frozen=True, omit_defaults=True):
    """``manifest.json``, written last; ``release`` is empty in sessions of other programs."""

    version: int
    rows: int
    runs: int
    files: dict[str, FileEntry]
    anchor_rows: int | None = None
    release: str = ""


def step_dtype(*, record_action: bool) -> np.dtype[np.void]:
    """Return the row type of ``steps.npy``, with or without the ``action`` field.

    Example:
        >>> step_dtype(record_action=True).names
        ('run_id', 'step_idx', 'exps', 'action')
    """
    return ACTION_STEP_DTYPE if record_action else STEP_DTYPE


#: The fact ``storage`` of a session on tape, and of a session with ``steps.npy``, which may also lack it.
Storage: TypeAlias = Literal["tape", "rows"]
TAPE: Storage = "tape"
ROWS: Storage = "rows"

#: Rows of a block of ``steps.npy``, which share a checksum: of a written file, and of a worker's buffer
#: unless ``block_rows`` is set.
STEPS_BLOCK_ROWS = 262_144


class _ManifestHead(msgspec.Struct):
    version: int
    release: str = ""


M = TypeVar("M")


def read_manifest_file(path: Path, kind: type[M], *, version: int, what: str, bytes_max: int) -> M | None:
    if not os.path.lexists(path):
        return None
    return parse_manifest(
        read_document(path, bytes_max, ManifestError), path, kind, version=version, what=what
    )


def parse_manifest(
    content: bytes, path: str | os.PathLike[str], kind: type[M], *, version: int, what: str
) -> M:
    try:
        head = msgspec.json.decode(content, type=_ManifestHead)
        if head.version != version:
            message = f"{what} version {head.version}; expected {version}"
            raise VersionError(message, path=path, hint=reader_hint(head.release))
        return msgspec.json.decode(content, type=kind)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise ManifestError(f"malformed: {error}", path=path) from error


def file_defects(
    files: Mapping[str, FileEntry], directory: Path, is_name: Callable[[str], object]
) -> Iterator[ManifestError | TruncatedError | StorageError]:
    """Yield the differences between a manifest's files and its directory; ``is_name`` checks the names."""
    manifest = directory / MANIFEST
    for name, entry in files.items():
        if not is_name(name):
            yield ManifestError(f"lists {name!r}, which is not a valid file name", path=manifest)
            continue
        path = directory / name
        try:
            found = path.stat().st_size
        except FileNotFoundError:
            yield ManifestError(f"lists {name}, which is missing from the directory", path=manifest)
            continue
        except OSError as error:
            yield StorageError(f"cannot be read: {error.strerror or error}", path=path)
            continue
        message = f"has {found} bytes. The manifest says {entry.bytes}"
        hint = "restore the directory from a copy"
        if found < entry.bytes:
            yield TruncatedError(message, path=path, offset=found, hint=hint)
        if found > entry.bytes:
            yield ManifestError(f"{name} {message}", path=manifest, hint=hint)
