"""pack.dat: a whole data set in one file; its reader and writer.

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
                ``u16[4]``   ev_q: values in [0, 1] x 65535, plus 0.5, cut to whole numbers, all in float32.
                             The chosen move's is 65535
                ``u8[6]``    padding, written as zeros; other writers leave anything there
each run        ``u32``      id
                ``u32``      first_step_idx
                ``u32``      num_steps
                ``u64``      max_score
                ``u32``      highest_tile
                ``u16``      engine_len, then so many bytes of UTF-8; 0: no engine
                ``u64``      start_time, seconds since 1970 (UTC), 0 where unknown
                ``f32``      elapsed_s
last 4          ``u32``      CRC-32C of everything before
=============== ============ ======================================================================

The runs are in the order of their steps and cover them. The format does not hold the board after a run's last
move. The widths of the counts are its limits: 2**32 - 1 runs, and runs that start before step 2**32.
"""

from __future__ import annotations

import math
import os
import struct
from typing import TYPE_CHECKING, NamedTuple, Self

import numpy as np

from tape2048.base.text import counted
from tape2048.datasets.run_table import RunTable
from tape2048.datasets.table_rows import ROW_BYTES, TableRows, aligned_records
from tape2048.errors import (
    BookkeepingError,
    FieldError,
    FormatError,
    MagicError,
    TruncatedError,
    VersionError,
)
from tape2048.formats.dataset_layout import DATASET_ROW_DTYPE, LEVELS, PACKDAT_STEP_DTYPE, RUN_STEPS_MAX
from tape2048.formats.npy import check_load
from tape2048.formats.rows import ROW_DTYPE
from tape2048.io.bulk_read import Stretch, read_into
from tape2048.io.durable import new_file, write_all
from tape2048.io.reading import check_crc, crc32c, map_path, open_regular, read_exactly
from tape2048.rows.phases import ALL
from tape2048.runs.a2run2 import VALUE_MAX
from tape2048.runs.files import scan
from tape2048.runs.run import Run, check_meta, check_rules, read_engine

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from numpy.typing import ArrayLike, NDArray

    from tape2048.formats.npy import Load


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
#: Bytes that are written at once.
CHUNK_BYTES = 64 * 1024 * 1024
#: Runs whose steps are checked together, which bounds the memory for it.
_RUNS_AT_ONCE = 256


class Header(NamedTuple):
    """A file's header: its bytes and its fields."""

    packed: bytes
    runs: int
    steps: int
    metadata_offset: int


def read_header(head: bytes, size: int, path: str | os.PathLike[str]) -> Header:
    """Parse a header and compare its counts with the file's size."""
    if head[:4] != MAGIC[: len(head)] or not head:
        raise MagicError(f"not a pack.dat: the magic {MAGIC!r} is missing", path=path, offset=0)
    if len(head) < HEADER_BYTES:
        raise TruncatedError(
            f"the file ends after {size} bytes, within the header of {HEADER_BYTES}", path=path, offset=size
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
            f"the header claims {steps} steps and {runs} runs (at least {needed} bytes). The file has {size}",
            path=path,
            offset=size,
        )
    return Header(head, runs, steps, metadata_offset)


def checksum_of(pieces: Iterable[memoryview]) -> int:
    """Return the CRC-32C of a file's consecutive pieces."""
    checksum = 0
    for piece in pieces:
        checksum = crc32c(piece, checksum)
    return checksum


def parse_runs(content: bytes, header: Header, path: str | os.PathLike[str]) -> RunTable:
    """Parse the run table, the bytes between the steps and the checksum."""
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
                "the runs end within one: an engine's length or the number of runs is wrong",
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
    """Raise for the first step that is invalid or belongs to another run.

    Returns:
        The number of steps whose padding is not zero.
    """
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
                    f"{name} of step {first + at} is {rows[name][at].tolist()}, "
                    f"in run {run['id']} that starts at step {run['first_row']}",
                    path=path,
                    offset=HEADER_BYTES + ROW_BYTES * (first + at) + offset,
                )
    return padded


def encode_runs(table: RunTable) -> bytes:
    """Encode a run table."""
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
    """Raise FieldError if a field of 32 bits cannot hold a value."""
    if value > U32_MAX:
        raise FieldError(
            f"{name} would be {value}; pack.dat holds at most {U32_MAX} (32 bits)",
            hint="a data set directory holds more: tape2048 dataset build",
        )


# Rows that are converted together: 8 MB.
_FILL_ROWS = 1 << 18


class DataPack(TableRows):
    """A pack.dat in memory, or a view of some of its runs. A source of rows.

    :meth:`load` and :meth:`build` make one. Rows have ``ROW_DTYPE``, with branch values as float32;
    :meth:`records` returns them as in the file. ``Dataset("pack.dat")`` has rows of a data set instead.

    Attributes:
        normalised: runs that were added here with branch values outside [0, 1], which were normalised.
        padded: steps of the loaded file whose padding is not zero, as some writers leave it.

    Example:
        >>> from tape2048.datasets import DataPack
        >>> from tape2048.runs import scan
        >>> pack = DataPack.build(found.run for found in scan("runs"))
        >>> pack.save("rows.dat")
        >>> len(DataPack.load("rows.dat")) == len(pack), len(pack.runs)
        (True, 2)
    """

    dtype = ROW_DTYPE
    _half = np.float32(32768) / LEVELS
    _mask_tells = True
    normalised = 0
    padded = 0

    @classmethod
    def load(cls, path: str | os.PathLike[str], load: Load = "ram") -> Self:
        """Read a file and check all of it: checksum, lengths, and that the runs cover the steps.

        Args:
            path: the file.
            load: ``"ram"`` reads the steps into memory; ``"mmap"`` maps them, which reads the file once for
                its checksum and takes no memory. Random batches are slow while the file is not in the page
                cache.

        Raises:
            MagicError: not a pack.dat.
            VersionError: another version.
            TruncatedError: fewer bytes than the header claims.
            FormatError: bytes between the last run and the checksum.
            ChecksumError: bytes changed after they were written.
            FieldError: an invalid offset, engine's name, move or value.
            BookkeepingError: runs and steps disagree.
            StorageError: the operating system could not read it.
            ValueError: an unknown ``load``.
        """
        check_load(load)
        if load == "mmap":
            return cls.from_bytes(map_path(path).data, path)
        with open_regular(path) as fd:
            size = os.fstat(fd).st_size
            header = read_header(os.pread(fd, HEADER_BYTES, 0), size, path)
            records = aligned_records(header.steps)
            read_into(records, [Stretch(path, HEADER_BYTES, len(records), fd)])
            records.flags.writeable = False
            tail = np.empty(size - header.metadata_offset, np.uint8)
            read_exactly(fd, tail, header.metadata_offset, path)
        return cls._checked(header, records, tail, path)

    @classmethod
    def from_bytes(
        cls, data: bytes | bytearray | memoryview, path: str | os.PathLike[str] | None = None
    ) -> Self:
        """Parse a file's content, with the checks and errors of :meth:`load`.

        Args:
            data: the whole file. The rows are views of it.
            path: named in errors.
        """
        where = "pack.dat" if path is None else path
        content = np.frombuffer(data, np.uint8)
        content.flags.writeable = False
        header = read_header(content[:HEADER_BYTES].tobytes(), len(content), where)
        records = content[HEADER_BYTES : header.metadata_offset]
        return cls._checked(header, records, content[header.metadata_offset :], where)

    @classmethod
    def _checked(
        cls, header: Header, records: NDArray[np.uint8], tail: NDArray[np.uint8], path: str | os.PathLike[str]
    ) -> Self:
        checksum = checksum_of([memoryview(header.packed), records.data, tail[:-CRC_BYTES].data])
        stored = int.from_bytes(tail[-CRC_BYTES:].tobytes(), "little")
        end = HEADER_BYTES + len(records) + len(tail) - CRC_BYTES
        check_crc(checksum, stored, "the content", path=path, offset=end)
        table = parse_runs(tail[:-CRC_BYTES].tobytes(), header, path)
        table.check_tiles(header.steps, path)
        table.check_ids(U32_MAX, path)
        pack = cls([records], table)
        pack.padded = check_steps(records, table, path)
        return pack

    @classmethod
    def build(cls, runs: Iterable[Run]) -> Self:
        """Lay runs end to end, in their order, with ids from 0.

        Args:
            runs: the games; :func:`tape2048.conversion.open_source` reads games from files.

        Raises:
            TypeError: an item is not a :class:`Run`.
            FieldError: a value that its field cannot hold, a branch value that is not finite, or more runs or
                steps than the format counts.
            FormatError: a run that the rules do not allow, see :func:`tape2048.runs.check_rules`.
        """
        pack = cls([], RunTable.of_metas([]))
        pack.append(runs)
        return pack

    @classmethod
    def merge(cls, packs: Sequence[DataPack]) -> Self:
        """Join packs and views of whole runs, one after the other. The ids count from 0.

        Rows do not change, except for their run ids.

        Args:
            packs: in the order of their rows.

        Raises:
            ValueError: a view of parts of games, see :meth:`phase`.

        Example:
            >>> from tape2048.datasets import DataPack
            >>> from tape2048.runs import read_run
            >>> pack = DataPack.build([read_run("runs/golden.a2run")])
            >>> DataPack.merge([pack, pack]).runs["id"].tolist()
            [0, 1]
        """
        table = RunTable.joined([RunTable.of_metas([]), *(pack.run_table for pack in packs)]).renumbered()
        records = aligned_records(sum(map(len, packs)))
        begin = 0
        for pack in packs:
            pack.refuse_phase()
            end = begin + ROW_BYTES * len(pack)
            part = records[begin:end].view(PACKDAT_STEP_DTYPE)
            pack._gather(np.arange(len(pack)), part)  # noqa: SLF001 - of the same class
            begin = end
        records.view(PACKDAT_STEP_DTYPE)["run_id"] = np.repeat(table.rows["id"], table.rows["steps"])
        records.flags.writeable = False
        merged = cls([records], table)
        merged.padded = sum(pack.padded for pack in packs)
        return merged

    def append(self, runs: Iterable[Run]) -> None:
        """Add runs at the end; their ids continue after the highest one.

        This changes the memory alone; :meth:`save` writes a new file. Existing views do not change.

        Raises:
            TypeError: an item is not a :class:`Run`.
            ValueError: this is a view.
            FieldError, FormatError: as :meth:`build`. Nothing is added.
        """
        from tape2048.datasets.records import packdat_records

        if self.is_view:
            raise ValueError("cannot append to a view; append to its source")
        parts, metas = list(self._parts), []
        begin = rows = len(self)
        first_id = next_id = 1 + int(self.runs["id"].max()) if len(self.runs) else 0
        normalised = 0
        for run in runs:
            if not isinstance(run, Run):
                raise TypeError(f"found {run!r:.200}, expected a Run; open_source(path).runs() has them")
            check_meta(run.meta)
            check_rules(run)
            check_fits("id", next_id)
            check_fits("first_step_idx", rows)
            records = np.empty(ROW_BYTES * len(run), np.uint8)
            normalised += packdat_records(run, next_id, records) > 0
            parts.append(records)
            metas.append(run.meta)
            rows += len(run)
            next_id += 1
        joined = aligned_records(rows)
        np.concatenate([joined[:0], *parts], out=joined)
        joined.flags.writeable = False
        more = RunTable.of_metas(metas).renumbered(first_id, begin)
        grown = type(self)([joined], RunTable.joined([self._table, more]))
        grown.normalised, grown.padded = self.normalised + normalised, self.padded
        vars(self).clear()
        vars(self).update(vars(grown))

    def append_from_directory(
        self,
        directory: str | os.PathLike[str],
        *,
        workers: int | None = None,
        on_skip: Callable[[str, Exception], object] | None = None,
    ) -> None:
        """Add the runs of every run file below a directory, in path order.

        Args:
            directory: with run files, of any kind.
            workers: number of decoding threads. None: the number of cores.
            on_skip: called with path and error of a file that is left out; None: the error is raised, and
                nothing is added.

        Raises:
            FormatError: a damaged file, without ``on_skip``. No run file.
            StorageError: the directory cannot be listed.
        """

        def runs() -> Iterator[Run]:
            for found in scan(directory, workers):
                if found.run is not None:
                    yield found.run
                elif found.error is not None and on_skip is not None:
                    on_skip(str(found.path), found.error)
                elif found.error is not None:
                    raise found.error

        self.append(runs())

    def save(
        self, path: str | os.PathLike[str], progress: Callable[[int, int], object] | None = None
    ) -> None:
        """Write a new file, which appears atomically. A view writes its runs, renumbered from 0.

        Args:
            path: the file.
            progress: called with the bytes written and all bytes.

        Raises:
            NameTakenError: ``path`` exists.
            ValueError: this is a view of parts of games, see :meth:`phase`.
            FieldError: a value that its field cannot hold, such as an engine's name of 64 KiB.
            StorageError: the operating system could not write it.
        """
        pieces = self._file_parts()
        total = sum(len(piece) for piece in pieces)
        done = 0
        with new_file(path) as fd:
            for piece in pieces:
                for begin in range(0, len(piece), CHUNK_BYTES):
                    chunk = piece[begin : begin + CHUNK_BYTES]
                    write_all(fd, chunk)
                    done += len(chunk)
                    if progress is not None:
                        progress(done, total)

    def to_bytes(self) -> bytes:
        """Return the content that :meth:`save` writes."""
        return b"".join(self._file_parts())

    def _file_parts(self) -> list[memoryview]:
        if self.is_view:
            return self.merge([self])._file_parts()  # noqa: SLF001 - of the same class
        table, records = self._table, self._parts[0]
        check_fits("first_step_idx", int(table.rows["first_row"].max(initial=0)))
        check_fits("num_runs", len(table))
        header = _HEADER.pack(MAGIC, VERSION, len(table), len(self), HEADER_BYTES + ROW_BYTES * len(self))
        pieces = [memoryview(header), records.data, memoryview(encode_runs(table))]
        return [*pieces, memoryview(checksum_of(pieces).to_bytes(CRC_BYTES, "little"))]

    def __repr__(self) -> str:
        named = f"{len(self):,} rows, {len(self.runs):,} runs{', a view' if self.is_view else ''}"
        return f"<DataPack: {named}{'' if self.game_phase == ALL else f'; {self.game_phase}'}>"

    def records(self, indices: ArrayLike) -> NDArray[np.void]:
        """Return rows as in the file, ``PACKDAT_STEP_DTYPE[n]``; errors as of :meth:`get_batch`."""
        return self._gather(self._numbers(indices)).view(PACKDAT_STEP_DTYPE)

    def _decode(self, records: NDArray[np.uint8], out: NDArray[np.void] | None = None) -> NDArray[np.void]:
        steps = records.view(PACKDAT_STEP_DTYPE)
        rows = np.empty(len(steps), ROW_DTYPE) if out is None else out
        rows["board"], rows["move"], rows["ev_legal"] = steps["board"], steps["move_dir"], steps["ev_mask"]
        has = (steps["ev_mask"][:, None] >> np.arange(4, dtype=np.uint8)) & 1
        # At most the float32 below 1, and 0 where the mask has none.
        rows["ev_values"] = np.minimum(steps["ev_q"].astype(np.float32) / LEVELS, VALUE_MAX) * has
        rows["run_id"], rows["step_index"] = steps["run_id"], steps["index_in_run"]
        return rows

    def fill_dataset(self, out: NDArray[np.uint8]) -> None:
        """Write all rows in the form of a data set, ``u8[32 * N]``.

        Raises:
            FieldError: a run has more than 65,536 steps.
        """
        from tape2048.game.rules import legal_masks

        longest = int(self.runs["steps"].max(initial=0))
        if longest > RUN_STEPS_MAX:
            raise FieldError(
                f"a run has {longest} steps; rows of a data set hold at most {RUN_STEPS_MAX} of one",
                hint="DataPack.load reads it",
            )
        rows = out.view(DATASET_ROW_DTYPE)
        for begin in range(0, len(self), _FILL_ROWS):
            part = rows[begin : begin + _FILL_ROWS]
            found = self.get_batch(np.arange(begin, begin + len(part)))
            chosen = np.flatnonzero(found["ev_legal"] >> found["move"] & 1)
            found["ev_values"][chosen, found["move"][chosen]] = 1
            found["ev_legal"] = legal_masks(found["board"])
            for name in part.dtype.names or ():
                part[name] = found[name]
