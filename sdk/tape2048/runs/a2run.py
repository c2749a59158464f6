"""A2T1: the format of a file of one run without branch values; extension ``.a2run``.

============== ============== =====================================================
offset         type           field
============== ============== =====================================================
0              ``4s``         magic ``A2T1``
4              ``u8``         version = 1
5              ``u8``         byte order = 0 (little)
6              ``u32``        steps
10             ``u64``        start_unix_s, 0 = unknown
18             ``f32``        elapsed_s
22             ``u64``        max_score
30             ``u32``        highest_tile
34             ``u16``        engine_len
36             bytes          engine, UTF-8; empty: none
36+engine_len  ``u64[n+1]``   states: the first board, and the board after each move and spawn
then           ``u8[n]``      moves, 0 to 3
last 4         ``u32``        CRC-32C of everything before
============== ============== =====================================================

``states`` and ``moves`` of a run are views of the file's bytes. ``states`` is unaligned, since the header has
36 bytes.
"""

from __future__ import annotations

import datetime as dt
import math
import struct
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from crc32c import crc32c

from tape2048.errors import (
    FieldError,
    FormatError,
    MagicError,
    TruncatedError,
    VersionError,
    reader_hint,
)
from tape2048.files.durable import fsync_dir, new_file, write_all
from tape2048.files.npy import Load, check_load
from tape2048.files.opening import storage_errors
from tape2048.files.reading import check_crc, load_path, map_path, read_path
from tape2048.runs.run import Run, RunMeta, check_meta, check_step_count, read_engine

if TYPE_CHECKING:
    import os

    import numpy as np
    from numpy.typing import NDArray

MAGIC = b"A2T1"
SUFFIX = ".a2run"

_HEADER = struct.Struct("<4sBBIQfQIH")


def read_run(path: str | os.PathLike[str], load: Load | None = None) -> Run:
    """Read or map a file, and check all of it.

    Args:
        path: an A2T1 file of any name.
        load: ``"mmap"`` maps the file, ``"ram"`` reads it. None reads a file below 1 MiB, which takes longer
            to map, and maps a larger file.

    Returns:
        A run whose arrays are read-only views of the file's bytes. No file stays open. If a mapped file is
        cut later, access to the missing part ends the process with SIGBUS.

    Raises:
        FormatError: as :func:`parse_run`.
        StorageError: the operating system could not open, map or read it.
        ValueError: an unknown ``load``.

    Example:
        >>> from tape2048.runs import read_run
        >>> run = read_run("runs/golden.a2run")
        >>> len(run.states) == len(run.moves) + 1 == len(run) + 1
        True
    """
    if load is not None:
        check_load(load)
    read = load_path if load is None else map_path if load == "mmap" else read_path
    return parse_run(read(path), path)


def parse_run(data: NDArray[np.uint8], path: str | os.PathLike[str] | None = None) -> Run:
    """Parse the bytes of a whole file into a run of views.

    Args:
        data: ``u8[bytes]``.
        path: path for errors.

    Raises:
        MagicError: not an A2T1 file.
        VersionError: another version or byte order.
        TruncatedError: fewer bytes than the header claims.
        FormatError: more bytes than the header claims.
        ChecksumError: bytes changed after they were written.
        FieldError: more steps than a game can have, the engine is not UTF-8, a move is above 3,
            ``elapsed_s`` is not finite.

    Example:
        >>> import numpy as np
        >>> from tape2048.runs import parse_run
        >>> parse_run(np.fromfile("runs/golden.a2run", np.uint8)).has_branches is None
        True
    """
    head = data[: _HEADER.size].tobytes()
    if head[:4] != MAGIC[: len(head)] or not head:
        raise MagicError(f"not an A2T1 file: the magic {MAGIC!r} is missing", path=path, offset=0)
    if len(head) < _HEADER.size:
        found = f"found {len(head)} bytes, expected at least {_HEADER.size} for the header"
        raise TruncatedError(found, path=path, offset=len(head))
    _, version, order, steps, start, elapsed, score, tile, engine_len = _HEADER.unpack(head)
    for what, value, due, at in (("A2T1 version", version, 1, 4), ("byte order", order, 0, 5)):
        if value != due:
            message = f"{what} {value}; expected {due}"
            raise VersionError(message, path=path, offset=at, hint=reader_hint())
    states_at = _HEADER.size + engine_len
    moves_at = states_at + 8 * (steps + 1)
    crc_at = moves_at + steps
    end = crc_at + 4
    if len(data) != end:
        found = f"found {len(data)} bytes, expected {end} for {steps} steps and an engine of {engine_len}"
        kind, at = (TruncatedError, len(data)) if len(data) < end else (FormatError, end)
        raise kind(f"{found} bytes, as the header claims", path=path, offset=at)
    check_step_count(steps, path, 6)
    stored = int.from_bytes(data[crc_at:].tobytes(), "little")
    check_crc(crc32c(data[:crc_at].data), stored, "the content", path=path, offset=crc_at)
    moves = data[moves_at:crc_at]
    if steps and int(moves.max()) > 3:
        at = int((moves > 3).argmax())
        raise FieldError(f"move {moves[at]} at step {at}; expected 0 to 3", path=path, offset=moves_at + at)
    if not math.isfinite(elapsed):
        raise FieldError(f"elapsed_s is {elapsed}; expected a finite number", path=path, offset=18)
    engine = read_engine(data[_HEADER.size : states_at].tobytes(), path, _HEADER.size) or None
    meta = RunMeta(steps, start, elapsed, score, tile, engine)
    return Run(data[states_at:moves_at].view("<u8"), moves, meta)


def run_bytes(run: Run) -> list[bytes]:
    """Encode a run without its branch values; return the consecutive pieces of the file.

    Raises:
        FieldError: a value does not fit its field, or a move is above 3.

    Example:
        >>> from pathlib import Path
        >>> from tape2048.runs import read_run, run_bytes
        >>> b"".join(run_bytes(read_run("runs/golden.a2run"))) == Path("runs/golden.a2run").read_bytes()
        True
    """
    meta = run.meta
    check_meta(meta)
    engine = (meta.engine or "").encode()
    if len(run) and int(run.moves.max()) > 3:
        raise FieldError(f"a move is {run.moves.max()}; expected 0 to 3")
    facts = (meta.steps, meta.start_unix_s, meta.elapsed_s, meta.max_score, meta.highest_tile)
    header = _HEADER.pack(MAGIC, 1, 0, *facts, len(engine))
    parts = [header + engine, run.states.astype("<u8", copy=False).tobytes(), run.moves.tobytes()]
    checksum = 0
    for part in parts:
        checksum = crc32c(part, checksum)
    return [*parts, checksum.to_bytes(4, "little")]


def write_run(path: str | os.PathLike[str], run: Run) -> None:
    """Write a run to a new file, which appears atomically, in an existing directory.

    Args:
        path: the file.
        run: the run. Branch values are left out, and an engine of ``""`` reads back as None.

    Raises:
        NameTakenError: ``path`` exists.
        FieldError: as :func:`run_bytes`.
        StorageError: the operating system could not write it.

    Example:
        >>> from tape2048.runs import read_run, write_run
        >>> write_run("copy.a2run", read_run("runs/golden.a2run"))
        >>> read_run("copy.a2run").equals(read_run("runs/golden.a2run"))
        True
    """
    parts = run_bytes(run)
    with new_file(path) as fd:
        for part in parts:
            write_all(fd, part)


def shard_path(
    root: str | os.PathLike[str], run: Run, name: str | None = None, *, by: Literal["day", "uuid"] = "day"
) -> Path:
    """Make a directory by day or by UUID, and return a run's path in it.

    By day, the path is ``<root>/YYYYMMDD/<name>.a2run``, with the run's start in UTC; an unknown start is
    1970-01-01. By UUID, it is ``<root>/ab/cd/<uuid>.a2run``, where ``ab`` and ``cd`` are the first bytes of
    the UUID, so that directories stay small with millions of runs.

    Args:
        root: directory of the shards, created if its parent exists.
        run: the run.
        name: name of the file without extension; with ``by="uuid"``, a UUID. None: a random UUID.
        by: ``"day"`` or ``"uuid"``.

    Raises:
        StorageError: the directory cannot be made.
        FieldError: the start is after the year 9999.
        ValueError: ``by`` is invalid, or ``name`` is not a UUID and ``by`` is ``"uuid"``.

    Example:
        >>> from tape2048.runs import read_run, shard_path
        >>> shard_path("by-day", read_run("runs/golden.a2run"), "first").name
        'first.a2run'
    """
    stem = str(uuid.uuid4()) if name is None else name
    if by == "uuid":
        stem = str(uuid.UUID(stem))
        target = Path(root, stem[:2], stem[2:4])
    elif by == "day":
        start = run.meta.start_unix_s
        try:
            target = Path(root, f"{dt.datetime.fromtimestamp(start, dt.UTC):%Y%m%d}")
        except (ValueError, OverflowError, OSError) as error:
            raise FieldError(f"start_unix_s is {start}; expected a year up to 9999") from error
    else:
        raise ValueError(f"by={by!r}; expected 'day' or 'uuid'")
    with storage_errors(target, "making the directory"):
        for directory in (Path(root), target.parent, target):
            if not directory.is_dir():
                directory.mkdir(exist_ok=True)
                fsync_dir(directory.parent)
    return target / f"{stem}{SUFFIX}"
