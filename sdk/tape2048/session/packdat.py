"""The format pack.dat: a whole data set in one file.

=============== ============ ======================================================================
part            type         field
=============== ============ ======================================================================
header          ``4s``       magic ``2048``
                ``u32``      version = 1
                ``u32``      num_runs
                ``u64``      num_steps
                ``u64``      metadata_offset = 28 + 32 x num_steps
each step       ``u64``      board before the move
                ``u32``      run_id
                ``u32``      index_in_run
                ``u8``       move_dir: 0 up, 1 down, 2 left, 3 right
                ``u8``       ev_mask: the moves that have a value; 0: no values
                ``u16[4]``   ev_q: values in [0, 1] times 65535, rounded as ``floor(x + 0.5)`` in float32.
                             The value of the chosen move is 65535
                ``u8[6]``    padding, written as zeros; other programs leave any bytes
each run        ``u32``      id
                ``u32``      first_step_idx
                ``u32``      num_steps
                ``u64``      max_score
                ``u32``      highest_tile
                ``u16``      engine_len, then this number of bytes of UTF-8; 0: no engine
                ``u64``      start_time, seconds since 1970 (UTC), 0 if unknown
                ``f32``      elapsed_s
last 4          ``u32``      CRC-32C of everything before
=============== ============ ======================================================================

The runs are in the order of their steps, and cover all steps. The format does not hold the board after the
last move of a run. It holds at most 2**32 - 1 runs, which start before step 2**32.
"""

from __future__ import annotations

import math
import struct
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tape2048.base.text import counted
from tape2048.errors import (
    BookkeepingError,
    FieldError,
    FormatError,
    MagicError,
    TruncatedError,
    VersionError,
)
from tape2048.files.reading import check_crc, crc32c
from tape2048.formats.dataset_layout import PACKDAT_STEP_DTYPE, ROW_BYTES
from tape2048.runs.run import read_engine
from tape2048.session.dataset_runs import RunTable

if TYPE_CHECKING:
    import os

    from numpy.typing import NDArray


MAGIC = b"2048"
VERSION = 1

_HEADER = struct.Struct("<4sIIQQ")
HEADER_BYTES = 28
assert _HEADER.size == HEADER_BYTES
_RUN_HEAD = struct.Struct("<IIIQIH")
_RUN_TAIL = struct.Struct("<Qf")
_RUN_BYTES_MIN = _RUN_HEAD.size + _RUN_TAIL.size
CRC_BYTES = 4
U32_MAX = 2**32 - 1
_ENGINE_BYTES_MAX = 2**16 - 1
#: Runs whose steps are checked together, to bound the memory.
_RUNS_AT_ONCE = 256


class Header(NamedTuple):
    runs: int
    steps: int
    metadata_offset: int


def read_header(head: bytes, size: int, path: str | os.PathLike[str]) -> Header:
    if head[:4] != MAGIC[: len(head)] or not head:
        raise MagicError(f"not a pack.dat: the magic {MAGIC!r} is missing", path=path, offset=0)
    if len(head) < HEADER_BYTES:
        raise TruncatedError(
            f"found {size} bytes, expected at least {HEADER_BYTES} for the header", path=path, offset=size
        )
    _, version, runs, steps, metadata_offset = _HEADER.unpack(head)
    if version != VERSION:
        raise VersionError(f"pack.dat version {version}; expected {VERSION}", path=path, offset=4)
    if metadata_offset != HEADER_BYTES + ROW_BYTES * steps:
        raise FieldError(
            f"metadata_offset is {metadata_offset}; expected {HEADER_BYTES + ROW_BYTES * steps} "
            f"for {steps} steps",
            path=path,
            offset=20,
        )
    needed = metadata_offset + _RUN_BYTES_MIN * runs + CRC_BYTES
    if size < needed:
        raise TruncatedError(
            f"found {size} bytes, expected at least {needed} for the {steps} steps and {runs} runs that the "
            "header claims",
            path=path,
            offset=size,
        )
    return Header(runs, steps, metadata_offset)


def parse_runs(content: bytes, header: Header, path: str | os.PathLike[str]) -> RunTable:
    """Parse the run table: the bytes between the steps and the checksum."""
    records: list[tuple[float, ...]] = []
    engines: list[str | None] = []
    at = 0
    for _ in range(header.runs):
        head_end = at + _RUN_HEAD.size
        try:
            head = _RUN_HEAD.unpack_from(content, at)
            tail_at = head_end + head[5]
            tail = _RUN_TAIL.unpack_from(content, tail_at)
        except struct.error as error:
            raise FieldError(
                f"the bytes end within run number {len(records)}: the length of an engine, or the number of "
                "runs in the header, is wrong",
                path=path,
                offset=header.metadata_offset + at,
            ) from error
        at_engine = header.metadata_offset + head_end
        engine = read_engine(content[head_end:tail_at], path, at_engine, f" of run {head[0]}")
        engines.append(engine or None)
        if not math.isfinite(tail[1]):
            raise FieldError(
                f"elapsed_s of run {head[0]} is {tail[1]}; expected a finite number",
                path=path,
                offset=header.metadata_offset + tail_at + 8,
            )
        records.append(head[:5] + tail)
        at = tail_at + _RUN_TAIL.size
    if at != len(content):
        raise FormatError(
            f"found {counted(len(content) - at, 'byte')} between the last run and the checksum",
            path=path,
            offset=header.metadata_offset + at,
        )
    names = ("id", "first_row", "steps", "max_score", "highest_tile", "start_unix_s", "elapsed_s")
    return RunTable.of_columns(dict(zip(names, zip(*records, strict=True), strict=False)), engines)


def check_steps(records: NDArray[np.uint8], table: RunTable, path: str | os.PathLike[str]) -> int:
    """Raise for the first invalid or misplaced step; return the number of steps with padding not 0."""
    steps = records.view(PACKDAT_STEP_DTYPE)
    padded = 0
    lengths = table.rows["steps"].astype(np.int64)
    for begin in range(0, len(table), _RUNS_AT_ONCE):
        runs = table.rows[begin : begin + _RUNS_AT_ONCE]
        if not len(runs):
            continue
        first = int(runs["first_row"][0])
        counts = lengths[begin : begin + _RUNS_AT_ONCE]
        rows = steps[first : first + int(counts.sum())]
        numbers = np.arange(len(rows)) - np.repeat(runs["first_row"].astype(np.int64) - first, counts)
        checks = (
            ("run_id", rows["run_id"] != np.repeat(runs["id"], counts), BookkeepingError, 8),
            ("index_in_run", rows["index_in_run"] != numbers, BookkeepingError, 12),
            ("move_dir", rows["move_dir"] > 3, FieldError, 16),
            ("ev_mask", rows["ev_mask"] > 15, FieldError, 17),
        )
        padded += int(rows["padding"].any(axis=1).sum())
        for name, bad, kind, offset in checks:
            if bad.any():
                at = int(bad.argmax())
                run = runs[int(np.searchsorted(np.cumsum(counts), at, side="right"))]
                raise kind(
                    f"{name} of step {first + at} is {rows[name][at].tolist()}, in run {run['id']}, which "
                    f"starts at step {run['first_row']}",
                    path=path,
                    offset=HEADER_BYTES + ROW_BYTES * (first + at) + offset,
                )
    return padded


def encode_runs(table: RunTable) -> bytes:
    parts = []
    for row, engine in zip(table.rows.tolist(), table.engine_names(), strict=True):
        name = (engine or "").encode()
        if len(name) > _ENGINE_BYTES_MAX:
            raise FieldError(
                f"the engine of run {row[0]} has {len(name)} bytes; expected at most {_ENGINE_BYTES_MAX}"
            )
        run_id, first_row, steps, max_score, tile, start, elapsed = row[:7]
        parts += [
            _RUN_HEAD.pack(run_id, first_row, steps, max_score, tile, len(name)),
            name,
            _RUN_TAIL.pack(start, elapsed),
        ]
    return b"".join(parts)


def check_fits(name: str, value: int) -> None:
    if value > U32_MAX:
        raise FieldError(
            f"{name} would be {value}; expected at most {U32_MAX} (32 bits) in a pack.dat",
            hint="write a data set directory, which holds more: tape2048 dataset build",
        )


def parse(
    content: NDArray[np.uint8], path: str | os.PathLike[str]
) -> tuple[NDArray[np.uint8], RunTable, int]:
    """Parse a whole file: records, runs, number of padded steps. FormatError for the first defect."""
    header = read_header(content[:HEADER_BYTES].tobytes(), len(content), path)
    records = content[HEADER_BYTES : header.metadata_offset]
    end = len(content) - CRC_BYTES
    stored = int.from_bytes(content[end:].tobytes(), "little")
    check_crc(crc32c(content[:end].data), stored, "the content", path=path, offset=end)
    table = parse_runs(content[header.metadata_offset : end].tobytes(), header, path)
    table.check(header.steps, U32_MAX, path)
    return records, table, check_steps(records, table, path)


def file_parts(records: NDArray[np.uint8], table: RunTable) -> list[memoryview]:
    """Return the consecutive parts of the file of some records and their runs."""
    check_fits("first_step_idx", int(table.rows["first_row"].max(initial=0)))
    check_fits("num_runs", len(table))
    header = _HEADER.pack(MAGIC, VERSION, len(table), len(records) // ROW_BYTES, HEADER_BYTES + len(records))
    pieces = [memoryview(header), records.data, memoryview(encode_runs(table))]
    checksum = 0
    for piece in pieces:
        checksum = crc32c(piece, checksum)
    return [*pieces, memoryview(checksum.to_bytes(CRC_BYTES, "little"))]
