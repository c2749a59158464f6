"""The session directory, to the byte: what the recorder writes and :class:`tape2048.Session` reads.

::

    <root>/<TS>_model=<tag>/
        steps.npy        one packed record for each decision (the board before the move)
        metadata.db      SQLite: runs, session, blocks
        manifest.json    written last: sizes and checksums of the two above
        embeddings.bf16.npy + embeddings.json      made later, by the offline job

``TS`` is the session's start in UTC, ``YYYYMMDDTHHMMSSZ``, with ``-N`` appended to the whole name
where that name is taken. A name that starts with ``.`` is not (yet) a session.

``steps.npy``: NumPy format 1.0, one-dimensional, C order, packed. The header is padded to
:data:`STEPS_HEADER_BYTES`, so that rows start at a cache line and the header's length does not
depend on the number of rows (it is written when the file already holds them).

=========  =======  ===============================================================
field      type     meaning
=========  =======  ===============================================================
run_id     ``<u8``  ``runs.id``
step_idx   ``<u4``  0-based move number within its run
exps       ``u1``   [16] exponents, row-major, cell 0 first: 0 empty, 1 = 2, 2 = 4
action     ``u1``   only with ``record_action``: 0 up, 1 down, 2 left, 3 right
=========  =======  ===============================================================

The rows of one run are contiguous and in step order. With ``sample_rate = N`` the rows with
``step_idx % N == 0`` are kept. ``metadata.db`` has the tables of :data:`SCHEMA` and the copy of
:data:`PACKED_SCHEMA`; ``manifest.json`` is :class:`Manifest`.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec
import numpy as np

from tape2048.formats.npy import rows_header

FORMAT_VERSION = 1

STEPS_NPY = "steps.npy"
METADATA_DB = "metadata.db"
MANIFEST = "manifest.json"

#: Shards of rows, as foreign sessions name them.
SHARD_NAME = re.compile(r"steps-(\d{6})\.npy")

STEPS_HEADER_BYTES = 192

#: No step has a higher number.
SAMPLE_RATE_MAX = 2**32 - 1

STEP_DTYPE = np.dtype([("run_id", "<u8"), ("step_idx", "<u4"), ("exps", "u1", (16,))])
ACTION_STEP_DTYPE = np.dtype([*STEP_DTYPE.descr, ("action", "u1")])
assert STEP_DTYPE.itemsize == 28
assert ACTION_STEP_DTYPE.itemsize == 29

#: Where in a row its board is.
EXPS_OFFSET = 12
assert STEP_DTYPE.fields is not None
assert STEP_DTYPE.fields["exps"][1] == EXPS_OFFSET

_SIGNED_STEP_DTYPE = np.dtype([("run_id", "<i8"), *STEP_DTYPE.descr[1:]])
_SIGNED_ACTION_STEP_DTYPE = np.dtype([("run_id", "<i8"), *ACTION_STEP_DTYPE.descr[1:]])

#: Row types that are taken. The seed leaves open whether ``run_id`` is signed; its bits are read as
#: unsigned either way, and so are the ids of the run table.
STEP_DTYPES = (STEP_DTYPE, ACTION_STEP_DTYPE, _SIGNED_STEP_DTYPE, _SIGNED_ACTION_STEP_DTYPE)

#: One row of ``runs`` in memory (and in the recorder's journal and messages).
RUN_DTYPE = np.dtype(
    [
        ("id", "<u8"),
        ("seed", "<u8"),
        ("first_row", "<u8"),
        ("rows", "<u4"),
        ("steps", "<u4"),
        ("max_score", "<u4"),
        ("highest_tile", "<u4"),
    ]
)
assert RUN_DTYPE.itemsize == 40

#: One row of ``blocks``.
BLOCK_DTYPE = np.dtype([("first_row", "<u8"), ("rows", "<u4"), ("crc32c", "<u4")])
assert BLOCK_DTYPE.itemsize == 16

#: The tables of ``metadata.db``. ``runs.seed`` holds the 64-bit seed as SQLite's signed integer.
SCHEMA = """
CREATE TABLE runs(id INTEGER PRIMARY KEY, seed BIGINT, steps INT, max_score INT, highest_tile INT,
                  first_row INT, rows INT);
CREATE TABLE session(meta_key TEXT PRIMARY KEY, meta_value TEXT);
CREATE TABLE blocks(first_row INTEGER PRIMARY KEY, rows INT, crc32c INT);
"""

#: Beside them a copy of the run table: the one row of ``runs_packed`` has it as ``RUN_DTYPE[R]``, in the
#: order of the table, with its CRC-32, which is also the file's ``user_version`` (as a signed number). Of a
#: large table it is read in a tenth of the time. The triggers empty it once anybody changes the table, and a
#: file that was made anew from a dump has no such ``user_version``: whoever finds all of these statements, a
#: row and its number knows that it is the table. A reader need not know of any of it; a writer need not
#: either, but whoever drops ``runs_packed`` drops the triggers with it. (CRC-32, since Python has it:
#: importing CRC-32C takes 30 ms.)
PACKED_SCHEMA = (
    "CREATE TABLE runs_packed(crc32 INT, data BLOB)",
    "CREATE TRIGGER runs_insert AFTER INSERT ON runs BEGIN DELETE FROM runs_packed; END",
    "CREATE TRIGGER runs_update AFTER UPDATE ON runs BEGIN DELETE FROM runs_packed; END",
    "CREATE TRIGGER runs_delete AFTER DELETE ON runs BEGIN DELETE FROM runs_packed; END",
)

#: A published session's name: start in UTC, model tag, and the counter of a name that was taken.
SESSION_NAME = re.compile(r"(?P<ts>\d{8}T\d{6}Z)_model=(?P<tag>[A-Za-z0-9][A-Za-z0-9._+-]*)")


class FileEntry(msgspec.Struct, frozen=True):
    """Size in bytes and CRC-32C of one file of a session."""

    bytes: int
    crc32c: int


class Manifest(msgspec.Struct, frozen=True):
    """``manifest.json``: the last file of a session to be written."""

    version: int
    rows: int
    runs: int
    files: dict[str, FileEntry]


def step_dtype(*, record_action: bool) -> np.dtype[np.void]:
    """The row type of ``steps.npy``, with or without the ``action`` field."""
    return ACTION_STEP_DTYPE if record_action else STEP_DTYPE


def session_header(dtype: np.dtype[Any], rows: int) -> bytes:
    """The header of a session's ``steps.npy``, ``STEPS_HEADER_BYTES`` long; see :func:`rows_header`."""
    return rows_header(dtype, rows, STEPS_HEADER_BYTES)
