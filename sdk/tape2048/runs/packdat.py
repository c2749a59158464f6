"""pack.dat: a whole data set in one file.

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

A pack.dat opens as a session with the columns ``ev_mask``, ``ev_q``, and ``ev_values`` as in a data set.
"""

from __future__ import annotations

import math
import os
import struct
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from tape2048.base.text import counted
from tape2048.errors import (
    BookkeepingError,
    FieldError,
    FormatError,
    MagicError,
    TruncatedError,
    VersionError,
    reader_hint,
)
from tape2048.files.bulk_read import FileRange, allocate, read_into, read_rows
from tape2048.files.checksums import check_crc
from tape2048.files.durable import new_file, write_all
from tape2048.files.npy import Shards, check_load
from tape2048.files.reading import crc32c, map_path, open_regular
from tape2048.loader.phases import ALL
from tape2048.runs.a2run2 import VALUE_MAX, legal_bits
from tape2048.runs.files import scan
from tape2048.runs.games import GameKey, SeenGames
from tape2048.runs.run import ENGINE_BYTES_MAX, ROW_DTYPE, Run, check_meta, check_rules, read_engine
from tape2048.runs.tables import (
    ROW_BYTES,
    OpenTable,
    RunTable,
    TableCorpus,
    run_source,
    values_within_one,
)
from tape2048.session.directory import PACKDAT_MAGIC as MAGIC
from tape2048.session.foreign import ForeignRows
from tape2048.session.session import Session

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from numpy.typing import ArrayLike, NDArray

    from tape2048.files.npy import Load
    from tape2048.runs.conversion import Conversion
    from tape2048.runs.run import Tables

VERSION = 1
PACKDAT_STEP_DTYPE = np.dtype(
    [("board", "<u8"), ("run_id", "<u4"), ("index_in_run", "<u4"), ("move_dir", "u1"), ("ev_mask", "u1"),
     ("ev_q", "<u2", (4,)), ("padding", "u1", (6,))]
)  # fmt: skip
_FIELDS = PACKDAT_STEP_DTYPE[[name for name in PACKDAT_STEP_DTYPE.names or () if name != "padding"]]
LEVELS = np.float32(65535)

_HEADER = struct.Struct("<4sIIQQ")
HEADER_BYTES = _HEADER.size
_RUN_HEAD, _RUN_TAIL = struct.Struct("<IIIQIH"), struct.Struct("<Qf")
_RUN_FIELDS = ("run_id", "first_row", "steps", "score", "highest_tile", "start_unix_s", "elapsed_s")
U32_MAX = 2**32 - 1
_CHUNK_BYTES = 64 * 1024 * 1024  # written at once
_NAME = Path("pack.dat")  # of a pack that has no file


def read_header(head: bytes, size: int, path: str | os.PathLike[str]) -> tuple[int, int, int]:
    """Return the runs, the steps and the offset of the runs; compare them with the file's size."""
    if head[:4] != MAGIC[: len(head)] or not head:
        raise MagicError(f"not a pack.dat: the magic {MAGIC!r} is missing", path=path, offset=0)
    if len(head) < HEADER_BYTES:
        text = f"found {size} bytes, expected at least {HEADER_BYTES} for the header"
        raise TruncatedError(text, path=path, offset=size)
    _, version, runs, steps, offset = _HEADER.unpack(head)
    if version != VERSION:
        message = f"pack.dat version {version}; expected {VERSION}"
        raise VersionError(message, path=path, offset=4, hint=reader_hint())
    if offset != HEADER_BYTES + ROW_BYTES * steps:
        expected = HEADER_BYTES + ROW_BYTES * steps
        text = f"metadata_offset is {offset}; expected {expected} for {steps} steps"
        raise FieldError(text, path=path, offset=20)
    needed = offset + (_RUN_HEAD.size + _RUN_TAIL.size) * runs + 4
    if size < needed:
        text = f"found {size} bytes, expected at least {needed} for the {steps} steps and {runs} runs"
        raise TruncatedError(f"{text} that the header claims", path=path, offset=size)
    return runs, steps, offset


def parse_runs(content: bytes, count: int, begin: int, path: str | os.PathLike[str]) -> RunTable:
    """Parse the run table: the bytes between the steps and the checksum, at ``begin``."""
    records: list[tuple[float, ...]] = []
    engines: list[str | None] = []
    at = 0
    for number in range(count):
        head_end = at + _RUN_HEAD.size
        try:
            head = _RUN_HEAD.unpack_from(content, at)
            tail_at = head_end + head[5]
            tail = _RUN_TAIL.unpack_from(content, tail_at)
        except struct.error as error:
            text = f"the bytes end within run number {number}: the length of an engine, or the number of runs"
            raise FieldError(f"{text} in the header, is wrong", path=path, offset=begin + at) from error
        engine = read_engine(content[head_end:tail_at], path, begin + head_end, f" of run {head[0]}")
        if not math.isfinite(tail[1]):
            text = f"elapsed_s of run {head[0]} is {tail[1]}; expected a finite number"
            raise FieldError(text, path=path, offset=begin + tail_at + 8)
        engines.append(engine or None)
        records.append(head[:5] + tail)
        at = tail_at + _RUN_TAIL.size
    if at != len(content):
        text = f"found {counted(len(content) - at, 'byte')} between the last run and the checksum"
        raise FormatError(text, path=path, offset=begin + at)
    columns = zip(_RUN_FIELDS, zip(*records, strict=True), strict=False)
    return RunTable.of_columns(dict(columns), engines)


def check_steps(records: NDArray[np.uint8], table: RunTable, path: str | os.PathLike[str]) -> int:
    """Raise for the first step that is invalid or of another run; return the number of padded steps."""
    steps, padded = records.view(PACKDAT_STEP_DTYPE), 0
    for begin in range(0, len(table), 256):  # runs at once, to bound the memory
        runs = table.rows[begin : begin + 256]
        counts, first = runs["steps"].astype(np.int64), int(runs["first_row"][0])
        rows = steps[first : first + int(counts.sum())]
        numbers = np.arange(len(rows)) - np.repeat(runs["first_row"].astype(np.int64) - first, counts)
        for name, bad, kind, offset in (
            ("run_id", rows["run_id"] != np.repeat(runs["run_id"], counts), BookkeepingError, 8),
            ("index_in_run", rows["index_in_run"] != numbers, BookkeepingError, 12),
            ("move_dir", rows["move_dir"] > 3, FieldError, 16),
            ("ev_mask", rows["ev_mask"] > 15, FieldError, 17),
        ):
            if bad.any():
                at = int(bad.argmax())
                run = runs[int(np.searchsorted(np.cumsum(counts), at, side="right"))]
                found = f"{name} of step {first + at} is {rows[name][at]}, in run {run['run_id']}"
                where = HEADER_BYTES + ROW_BYTES * (first + at) + offset
                raise kind(f"{found}, which starts at step {run['first_row']}", path=path, offset=where)
        padded += int(rows["padding"].any(axis=1).sum())
    return padded


def parse(content: NDArray[np.uint8], path: Path, *, again: bool = False) -> OpenTable:
    """Check every byte of a file, and open it; with ``again``, its mapped rows can be read into memory."""
    runs, steps, begin = read_header(content[:HEADER_BYTES].tobytes(), len(content), path)
    end = len(content) - 4
    stored = int.from_bytes(content[end:].tobytes(), "little")
    check_crc(crc32c(content[:end].data), stored, "the content", path=path, offset=end)
    table = parse_runs(content[begin:end].tobytes(), runs, begin, path)
    table.check(steps, path)
    records = content[HEADER_BYTES:begin]
    return _opened(records, table, path, check_steps(records, table, path), again=again)


def open_rows(path: Path, _load: Load = "mmap") -> OpenTable:
    """Open a file, and check all its bytes. Its rows are mapped."""
    return parse(map_path(path), path, again=True)


def _opened(
    records: NDArray[np.uint8], table: RunTable, path: Path = _NAME, padded: int = 0, *, again: bool = False
) -> OpenTable:
    def shard(found: NDArray[np.uint8]) -> Shards:
        steps = found.view(_FIELDS)
        return Shards(steps, np.array([len(steps)]), np.zeros(1, np.int64))

    def read_again() -> Shards:
        return shard(read_rows([FileRange(path, HEADER_BYTES, len(records))]))

    how: dict[str, Any] = {
        "tiled": True,
        "again": read_again if again else None,
        "made": {"ev_values": values_of_steps},
    }
    rows = ForeignRows([path], shard(records), table.to_metadata(), path, **how)
    return OpenTable(rows, table, None, padded, is_pack=True)


def values_of_steps(steps: NDArray[np.void]) -> NDArray[np.float32]:
    """Convert the values of steps to ``ev_values`` of a data set, ``f32[n, 4]``."""
    has = legal_bits(steps["ev_mask"])
    # At most the largest float32 below 1; 0 for moves that are not in the mask.
    values = np.where(has, np.minimum(steps["ev_q"].astype(np.float32) / LEVELS, VALUE_MAX), np.float32(0))
    values[has & (steps["move_dir"][:, None] == np.arange(4))] = 1
    return values


def packdat_records(run: Run, run_id: int, out: NDArray[np.uint8]) -> int:
    """Write the steps of a run that the rules allow to ``out``; return the number of normalised steps."""
    from tape2048.game.rules import legal_masks

    values, legal, normalised = values_within_one(run, legal_masks(run.boards))
    chosen = np.flatnonzero(legal >> run.moves & 1)
    values[chosen, run.moves[chosen]] = 1
    rows = out.view(PACKDAT_STEP_DTYPE)
    rows["board"], rows["run_id"], rows["index_in_run"] = run.boards, run_id, np.arange(len(run))
    rows["move_dir"], rows["ev_mask"], rows["padding"] = run.moves, legal, 0
    # In float32, as the format's first writer rounds; moves without a value are 0.
    rows["ev_q"] = (values * LEVELS + np.float32(0.5)).astype(np.uint16)
    return normalised


def _check_fits(name: str, value: int, most: int = 0) -> None:
    if value > (most or U32_MAX):
        text = f"{name} would be {value}; expected at most {most or U32_MAX} in a pack.dat"
        hint = "write a data set directory, which holds more: tape2048 dataset build"
        raise FieldError(text, hint=hint)


def _file_parts(records: NDArray[np.uint8], table: RunTable) -> list[memoryview]:
    _check_fits("first_step_idx", int(table.rows["first_row"].max(initial=0)))
    _check_fits("num_runs", len(table))
    runs = bytearray()
    columns = zip(*(table.rows[name].tolist() for name in _RUN_FIELDS), table.engine_names(), strict=True)
    for *head, start, elapsed, engine in columns:
        name = (engine or "").encode()
        _check_fits(f"engine_len of run {head[0]}", len(name), ENGINE_BYTES_MAX)
        runs += _RUN_HEAD.pack(*head, len(name)) + name + _RUN_TAIL.pack(start, elapsed)
    header = _HEADER.pack(MAGIC, VERSION, len(table), len(records) // ROW_BYTES, HEADER_BYTES + len(records))
    pieces, checksum = [memoryview(header), records.data, memoryview(runs)], 0
    for piece in pieces:
        checksum = crc32c(piece, checksum)
    return [*pieces, memoryview(checksum.to_bytes(4, "little"))]


class DataPack(TableCorpus):
    """A pack.dat in memory, or a view of it: a corpus whose records are ``ROW_DTYPE``.

    :meth:`load` and :meth:`build` make one. The records have branch values as float32; :meth:`records`
    returns them as in the file. ``Dataset("pack.dat")`` has records of a data set instead.

    Attributes:
        normalised: runs that were added here with branch values outside [0, 1], which were normalised.
        padded: steps of the loaded file whose padding is not zero, as some writers leave it.

    Example:
        >>> from tape2048.runs import DataPack, scan
        >>> pack = DataPack.build(found.run for found in scan("runs"))
        >>> pack.save("rows.dat")
        >>> len(DataPack.load("rows.dat")) == len(pack), len(pack.runs)
        (True, 2)
    """

    row_dtype = ROW_DTYPE
    _kept = ("normalised", "padded")
    _half = np.float32(32768) / LEVELS
    _mask_tells = True
    normalised = 0
    padded = 0

    @classmethod
    def open(  # type: ignore[override]
        cls, path: str | os.PathLike[str], load: Load = "ram"
    ) -> Self:
        """Read a file as :meth:`load` does, under the name of :meth:`tape2048.Corpus.open`."""
        return cls.load(path, load)

    # In a corpus, `load` is the kind of storage. Here it is the reader, by its name in the format's design.
    @classmethod
    def load(  # type: ignore[override]
        cls, path: str | os.PathLike[str], load: Load = "ram"
    ) -> Self:
        """Read a file and check all of it: checksum, lengths, and that the runs cover the steps.

        ``load="mmap"`` maps the steps, which takes no memory, but random batches are slow while the file is
        not in the page cache.

        Raises:
            FormatError: a subclass, for the first defect found.
            StorageError: the operating system could not read it.
            ValueError: an unknown ``load``.
        """
        check_load(load)
        if load == "mmap":
            place = Path(os.path.abspath(path))
            return cls._of(open_rows(place), place, load)
        with open_regular(path) as fd:
            size = os.fstat(fd).st_size
            content = allocate(size + ROW_BYTES - HEADER_BYTES)[ROW_BYTES - HEADER_BYTES :]  # aligned records
            read_into(content, [FileRange(path, 0, size, fd)])
        return cls.from_bytes(content.data, path)

    @classmethod
    def from_bytes(cls, data: bytes | bytearray | memoryview, path: str | os.PathLike[str] = _NAME) -> Self:
        """Parse a file's content, with the checks and errors of :meth:`load`. The rows are views of it."""
        content = np.frombuffer(data, np.uint8)
        content.flags.writeable = False
        return cls._of(parse(content, Path(path)), Path(path))

    @classmethod
    def _of(cls, found: OpenTable, path: Path = _NAME, load: Load = "ram") -> Self:
        pack = object.__new__(cls)
        pack._become([Session.of_dataset(path, found, load)], "mmap", copies=True)
        pack.padded = found.padded
        return pack

    @classmethod
    def build(cls, runs: Iterable[Run]) -> Self:
        """Lay runs end to end, in their order, with ids from 0; errors as of :meth:`append`."""
        pack = cls._of(_opened(np.empty(0, np.uint8), RunTable.of_metas([])))
        pack.append(runs)
        return pack

    @classmethod
    def merge(cls, packs: Sequence[DataPack]) -> Self:
        """Join packs and views of whole games, one after the other. The ids count from 0.

        A game that they hold more than once comes once, and a warning names the copies.

        Example:
            >>> from tape2048.runs import DataPack, read_run
            >>> pack = DataPack.build([read_run("runs/golden.a2run")])
            >>> DataPack.merge([pack, pack]).runs["run_id"].tolist()
            [0]
        """
        for pack in packs:
            pack.refuse_parts()
        games, kept = SeenGames([str(pack.sessions[0].path) for pack in packs]), []
        for place, pack in enumerate(packs):
            runs = map(pack.run, range(len(pack.runs)))
            firsts = [games.source_of(place, i, run, GameKey.of(run)) for i, run in enumerate(runs)]
            kept.append(pack._of_runs(np.array(firsts, np.int64) < 0))  # noqa: SLF001 - of the same class
            games.report(place, Counter(first for first in firsts if first >= 0))
        return cls._joined(kept)

    @classmethod
    def _joined(cls, packs: Sequence[DataPack]) -> Self:
        table = RunTable.joined([pack.run_table for pack in packs]).renumbered()
        records = allocate(ROW_BYTES * sum(map(len, packs))).view(PACKDAT_STEP_DTYPE)
        begin = 0
        for pack in packs:
            pack._raw.gather_records(np.arange(len(pack)), records[begin : begin + len(pack)])  # noqa: SLF001
            begin += len(pack)
        records["run_id"] = np.repeat(table.rows["run_id"], table.rows["steps"])
        records.flags.writeable = False
        padded = int(records["padding"].any(axis=1).sum())
        return cls._of(_opened(records.view(np.uint8), table, padded=padded))

    def append(self, runs: Iterable[Run]) -> None:
        """Add runs at the end of the pack in memory; their ids continue after the highest id.

        Existing views do not change.

        Raises:
            TypeError: an item is not a :class:`Run`. Nothing is added after an error.
            ValueError: this is a view.
            FieldError: a value that its field cannot hold, a branch value that is not finite, or more runs or
                steps than the format counts.
            FormatError: a run that the rules do not allow, see :func:`tape2048.runs.check_rules`.
        """
        if self.is_view:
            raise ValueError("cannot append to a view; append to its source")
        table, before = self._stored()
        parts, metas, rows, normalised = [before], [], len(self), self.normalised
        first_id = next_id = 1 + int(self.runs["run_id"].max()) if len(self.runs) else 0
        for run in runs:
            if not isinstance(run, Run):
                raise TypeError(f"found {run!r:.200}; expected a Run, as read_run(path) returns")
            check_meta(run.meta)
            check_rules(run)
            _check_fits("id", next_id)
            _check_fits("first_step_idx", rows)
            parts.append(np.empty(ROW_BYTES * len(run), np.uint8))
            normalised += packdat_records(run, next_id, parts[-1]) > 0
            metas.append(run.meta)
            rows, next_id = rows + len(run), next_id + 1
        joined = np.concatenate(parts, out=allocate(ROW_BYTES * rows))
        joined.flags.writeable = False
        more = RunTable.of_metas(metas).renumbered(first_id, len(self))
        grown = self._of(_opened(joined, RunTable.joined([table, more]), padded=self.padded))
        grown.normalised = normalised
        vars(self).clear()
        vars(self).update(vars(grown))

    def append_from_directory(
        self,
        directory: str | os.PathLike[str],
        *,
        workers: int | None = None,
        on_skip: Callable[[str, Exception], object] | None = None,
    ) -> None:
        """Add the runs of every run file below a directory, in path order, read by some threads.

        Games that the pack holds, or that come again, are left out, and a warning counts them. ``on_skip`` is
        called with path and error of a damaged file, which is left out. Without it, the error is raised, and
        nothing is added.
        """
        games, firsts = SeenGames([os.fspath(directory)], self), Counter[int]()

        def runs() -> Iterator[Run]:
            for number, found in enumerate(scan(directory, workers)):
                if found.run is not None:
                    first = games.source_of(0, number, found.run, GameKey.of(found.run))
                    firsts[first] += 1
                    if first < 0:
                        yield found.run
                elif found.error is not None and on_skip is not None:
                    on_skip(str(found.path), found.error)
                elif found.error is not None:
                    raise found.error

        self.append(runs())
        del firsts[-1]
        games.report(0, firsts)

    def save(
        self, path: str | os.PathLike[str], progress: Callable[[int, int], object] | None = None
    ) -> None:
        """Write a new file, which appears atomically. A view of whole games writes them, renumbered from 0.

        ``progress`` is called with the bytes written and all bytes.
        """
        pieces, done = self._parts(), 0
        total = sum(map(len, pieces))
        with new_file(path) as fd:
            for piece in pieces:
                for begin in range(0, len(piece), _CHUNK_BYTES):
                    chunk = piece[begin : begin + _CHUNK_BYTES]
                    write_all(fd, chunk)
                    done += len(chunk)
                    if progress is not None:
                        progress(done, total)

    def to_bytes(self) -> bytes:
        """Return the content that :meth:`save` writes."""
        return b"".join(self._parts())

    def _parts(self) -> list[memoryview]:
        self.refuse_parts()
        whole = self._joined([self]) if self.is_view else self
        table, records = whole._stored()  # noqa: SLF001 - of the same class
        return _file_parts(records, table)

    def _stored(self) -> tuple[RunTable, NDArray[np.uint8]]:
        (session,) = self.sessions
        return session.dataset.table, session.stored.view(np.uint8)

    def _source(self) -> tuple[Callable[..., TableCorpus], tuple[Any, ...]]:
        table, records = self._stored()
        return type(self).from_bytes, (b"".join(_file_parts(records, table)),)

    def __repr__(self) -> str:
        named = f"{len(self):,} rows, {len(self.runs):,} runs{', a view' if self.is_view else ''}"
        return f"<DataPack: {named}{'' if self.game_phase == ALL else f'; {self.game_phase}'}>"

    def records(self, indices: ArrayLike) -> NDArray[np.void]:
        """Return rows as in the file, ``PACKDAT_STEP_DTYPE[n]``; errors as of :meth:`get_batch`."""
        numbers = self._row_numbers(indices)
        steps = np.empty(len(numbers), PACKDAT_STEP_DTYPE)
        self._raw.gather_records(numbers, steps)
        return steps

    def _gather(self, numbers: NDArray[np.int64], out: NDArray[np.void]) -> None:
        _decode(self.records(numbers), out)

    def _records_of(self, session: Session, first: int, count: int) -> NDArray[np.void]:
        return _decode(super()._records_of(session, first, count), np.empty(count, ROW_DTYPE))


def _decode(steps: NDArray[np.void], rows: NDArray[np.void]) -> NDArray[np.void]:
    rows["board"], rows["move"], rows["ev_legal"] = steps["board"], steps["move_dir"], steps["ev_mask"]
    rows["ev_values"] = np.minimum(values_of_steps(steps), VALUE_MAX)
    rows["run_id"], rows["step_index"] = steps["run_id"], steps["index_in_run"]
    return rows


def changes_values(run: Run) -> bool:
    """Whether a pack.dat would not give back all branch values of a run."""
    if run.has_branches is None or not run.has_branches.any():
        return False
    try:
        back = DataPack.build([run]).run(0, run.final_board)
    except FormatError:
        return False  # the writer refuses the run
    values, legal = back.branch_values, back.branch_legal
    return values is None or legal is None or not bool((values == run.branch_values)[legal_bits(legal)].all())


def read(path: Path, kind: str, **_: object) -> Tables:
    """Open a pack.dat as a source of runs."""
    return run_source(DataPack.load(path), path, kind)


def write(flow: Conversion) -> None:
    """Write the runs of a conversion."""
    DataPack.build(flow.runs()).save(flow.target)
