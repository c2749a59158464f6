"""Reader of packs; :mod:`tape2048.packs.a2pack` describes the format."""

from __future__ import annotations

import contextlib
import itertools
import operator
import os
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple, SupportsIndex

import numpy as np
from crc32c import crc32c

from tape2048.base.text import as_int, counted
from tape2048.base.threads import map_ordered
from tape2048.errors import BookkeepingError, FieldError, FormatError, NameTakenError, ReplayError
from tape2048.files.durable import new_file, write_all
from tape2048.files.opening import storage_errors
from tape2048.files.reading import check_crc, map_path
from tape2048.files.row_source import ROW_DTYPE
from tape2048.jit.mix import shuffled
from tape2048.packs.a2pack import (
    COMPRESSIONS,
    HEADER_BYTES,
    INDEX_DTYPE,
    KINDS,
    PackLayout,
    PackStats,
    agrees,
    count_stats,
    decompress,
    parse_stats,
    read_layout,
)
from tape2048.runs.a2run import SUFFIX as A2T1_SUFFIX, parse_run
from tape2048.runs.a2run2 import SUFFIX as A2RUN2_SUFFIX, RunV2
from tape2048.runs.run import RunRows, check_rules

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from numpy.typing import NDArray

    from tape2048.runs.jsonl import U64

RunKind = Literal["v1", "v2"]
_SUFFIXES = {"v1": A2T1_SUFFIX, "v2": A2RUN2_SUFFIX}


class RunSlice(NamedTuple):
    """The bytes of a run's file and its kind. The bytes are a view of the pack unless they are compressed.

    Example:
        >>> from tape2048.conversion import convert
        >>> from tape2048.packs import PackReader
        >>> _ = convert("runs", "slices.a2pack")
        >>> PackReader.open("slices.a2pack").get_slice(0).kind
        'v1'
    """

    bytes: memoryview
    kind: RunKind


class EntryInfo(NamedTuple):
    """An entry of a pack's index.

    ``offset`` and ``length`` locate the stored bytes; ``raw_length`` is their length before compression, 0 if
    they are not compressed.

    Example:
        >>> from tape2048.conversion import convert
        >>> from tape2048.packs import PackReader
        >>> _ = convert("runs", "entries.a2pack")
        >>> PackReader.open("entries.a2pack").info(1).compression
        'none'
    """

    kind: RunKind
    offset: int
    length: int
    compression: str
    crc32c: int
    raw_length: int


class PackReader:
    """A sequence of the runs of a pack, or of some of them, with random access; see :meth:`open`.

    ``pack[i]`` and iteration give :class:`RunV2`; A2T1 runs are upgraded. Threads may share a reader. A
    pickled reader holds the path and the entry numbers, not the runs.

    Attributes:
        path: absolute path of the file.
        indices: entry numbers of the runs in the file, ascending: ``i64[R]``.

    Example:
        >>> from tape2048.conversion import convert
        >>> from tape2048.packs import PackReader
        >>> _ = convert("runs", "runs.a2pack")
        >>> pack = PackReader.open("runs.a2pack")
        >>> pack, pack.kind(1), len(pack.rows()) == pack.stats.total_steps
        (<PackReader runs.a2pack: 2 runs>, 'v2', True)
    """

    def __init__(
        self,
        path: Path,
        data: NDArray[np.uint8],
        layout: PackLayout,
        *,
        verify: bool,
        indices: NDArray[np.int64] | None = None,
    ) -> None:
        """Make a reader of a checked file; use :meth:`open` instead."""
        self.path = path
        self.indices = np.arange(len(layout.entries)) if indices is None else indices
        self._data = data
        self._view = data.data
        self._layout = layout
        self._stats: PackStats | None = None
        self._verify = verify
        # 1 for a payload that needs no check: verify is false, it has no checksum, or it was checked before.
        known = layout.entries["crc32c"] == 0 if verify else np.ones(len(layout.entries), np.bool_)
        self._trusted = bytearray(known.tobytes())

    @classmethod
    def open(cls, path: str | os.PathLike[str], *, verify: bool = True) -> PackReader:
        """Map a pack and check its header, index and footer. The payloads are not read.

        Args:
            path: the file.
            verify: whether to check the CRC-32C of each payload at its first use.

        Raises:
            FormatError: the header, the index or the footer is damaged.
            StorageError: the operating system could not open or map it.
        """
        return cls.from_bytes(map_path(path), path, verify=verify)

    @classmethod
    def from_bytes(
        cls, data: NDArray[np.uint8], path: str | os.PathLike[str], *, verify: bool = True
    ) -> PackReader:
        """Open a pack in memory, as :meth:`open` does; errors name ``path``."""
        return cls(Path(os.path.abspath(path)), data, read_layout(data, path), verify=verify)

    def __len__(self) -> int:
        return len(self.indices)

    def __repr__(self) -> str:
        some = "" if self._is_whole else f"{len(self)} of "
        return f"<PackReader {self.path.name}: {some}{counted(len(self._layout.entries), 'run')}>"

    def __reduce__(self) -> tuple[Callable[..., PackReader], tuple[str, bool, NDArray[np.int64] | None]]:
        return _reopen, (str(self.path), self._verify, None if self._is_whole else self.indices)

    @property
    def _is_whole(self) -> bool:
        return len(self) == len(self._layout.entries)

    def _entry(self, i: SupportsIndex) -> int:
        number = operator.index(i)
        if not 0 <= number < len(self):
            raise IndexError(f"{self.path}: run {number}; expected 0 <= run < {len(self)}")
        return int(self.indices[number])

    def kind(self, i: int) -> RunKind:
        """Return the kind of a run's file: ``"v1"`` (A2T1) or ``"v2"`` (a2run2).

        Raises:
            IndexError: ``i`` is negative, or not below ``len(pack)``.
        """
        return self.info(i).kind

    def info(self, i: int) -> EntryInfo:
        """Return the index entry of a run.

        Raises:
            IndexError: as :meth:`kind`.
        """
        offset, length, kind, flags, crc, raw_length, _ = self._layout.entries.item(self._entry(i))
        return EntryInfo(KINDS[kind], offset, length, COMPRESSIONS[flags], crc, raw_length)

    def get_slice(self, i: SupportsIndex) -> RunSlice:
        """Return a run's file, byte for byte as it was packed.

        The first use of a run compares its checksum, if the pack has it.

        Raises:
            IndexError: as :meth:`kind`.
            ChecksumError: the file was damaged.
            FieldError: it cannot be decompressed, or is longer than any game.
            MissingPackageError: the package for the compression is not installed.
        """
        return self._slice(self._entry(i))

    def _slice(self, entry: int) -> RunSlice:
        offset, length, kind, flags, crc, raw_length, _ = self._layout.entries.item(entry)
        stored = self._view[offset : offset + length]
        hint = "make the pack again, or leave this run out: the other entries are not affected"
        if not self._trusted[entry]:
            check_crc(crc32c(stored), crc, f"entry {entry}", path=self.path, offset=offset, hint=hint)
            self._trusted[entry] = 1
        if flags:
            try:
                stored = memoryview(decompress(stored, COMPRESSIONS[flags], raw_length))
            except FieldError as error:
                message = f"entry {entry}: {error.message}"
                raise FieldError(message, path=self.path, offset=offset, hint=hint) from error
        return RunSlice(stored, KINDS[kind])

    def decode(self, i: SupportsIndex) -> RunV2:
        """Decode a run. An A2T1 run is upgraded; its arrays are views of the pack.

        Raises:
            IndexError: as :meth:`kind`.
            FormatError: as :meth:`get_slice`, or a damaged run. The message names the entry. The offset is in
                the pack or, for a compressed entry, in the decompressed bytes.
        """
        return self._decode(self._entry(i))

    def _decode(self, entry: int) -> RunV2:
        payload, kind = self._slice(entry)
        try:
            if kind == "v1":
                return RunV2.from_v1(parse_run(np.frombuffer(payload, np.uint8)))
            return RunV2.from_bytes(payload)
        except FormatError as error:
            record = self._layout.entries[entry]
            base = 0 if record["flags"] else int(record["offset"])
            raise type(error)(
                f"entry {entry}: {error.message}",
                path=self.path,
                offset=None if error.offset is None else base + error.offset,
                hint=error.hint,
            ) from error

    def __getitem__(self, i: SupportsIndex) -> RunV2:
        return self.decode(i)

    def __iter__(self) -> Iterator[RunV2]:
        """Iterate over all runs in order. One thread for each core decodes ahead."""
        return map_ordered(self.decode, range(len(self)))

    def decode_batch(self, indices: Iterable[int], workers: int | None = 1) -> list[RunV2]:
        """Decode several runs.

        Args:
            indices: run numbers, in any order; they may repeat.
            workers: number of threads. None: the number of cores.

        Raises:
            IndexError, FormatError: as :meth:`decode`, for the first run that cannot be decoded.
        """
        return list(map_ordered(self.decode, indices, workers))

    def iter_indices(self, indices: Iterable[int]) -> Iterator[RunV2]:
        """Iterate over the runs with these numbers, in this order. Each run is decoded when it is reached."""
        return map(self.decode, indices)

    def iter_batches(
        self,
        batch_size: int,
        shuffle: bool = False,  # noqa: FBT001, FBT002 - the original design's signature
        seed: int | None = None,
        workers: int | None = None,
    ) -> Iterator[list[RunV2]]:
        """Iterate over all runs once, in batches. The last batch may be smaller.

        Args:
            batch_size: runs in a batch, at least 1.
            shuffle: whether to use a random order instead of the order of the pack.
            seed: seed of that order, which is the same on every machine and for any number of workers. None:
                a new order at every call.
            workers: number of decoding threads. None: the number of cores.

        Raises:
            ValueError: ``batch_size`` or ``workers`` is not an integer of at least 1.
            FormatError: as :meth:`decode`, when the run is reached.
        """
        batch_size = _at_least_1("batch_size", batch_size)
        order = shuffled(len(self), _key(seed)).tolist() if shuffle else range(len(self))
        runs = map_ordered(self.decode, order, workers)
        return iter(lambda: list(itertools.islice(runs, batch_size)), [])

    def iter_step_batches(
        self,
        batch_size: int,
        shuffle: bool = False,  # noqa: FBT001, FBT002 - as iter_batches
        seed: int | None = None,
        workers: int | None = None,
    ) -> Iterator[NDArray[np.void]]:
        """Iterate over the steps of all runs once, in batches. The last batch may be smaller.

        Memory: a few runs. With ``shuffle``, 42 bytes for each step, and twice that while they are decoded.
        To shuffle more steps, convert the pack to a session, a data set or a pack.dat, and open it as a
        corpus.

        The arguments are as for :meth:`iter_batches`. ``shuffle`` uses one random order of all steps.

        Returns:
            For each batch, ``ROW_DTYPE[batch_size]``: see :mod:`tape2048.files.row_source`. ``run_id`` is the
            run's entry number in the pack.

        Raises:
            ValueError: ``batch_size`` or ``workers`` is not an integer of at least 1.
            FormatError: as :meth:`decode`, when the run is reached; with ``shuffle``, at the first batch.

        Example:
            >>> from tape2048.conversion import convert
            >>> from tape2048.packs import PackReader
            >>> _ = convert("runs", "steps.a2pack")
            >>> batches = PackReader.open("steps.a2pack").iter_step_batches(8, shuffle=True, seed=1)
            >>> next(batches)["board"].shape
            (8,)
        """
        batch_size = _at_least_1("batch_size", batch_size)

        def rows_of(entry: int) -> NDArray[np.void]:
            rows = self._decode(entry)[:]
            rows["run_id"] = entry
            return rows

        runs = map_ordered(rows_of, self.indices.tolist(), workers)
        return _shuffled_steps(runs, batch_size, seed) if shuffle else _steps_in_order(runs, batch_size)

    def rows(self, indices: Iterable[int] | None = None, workers: int | None = None) -> RunRows:
        """Decode runs into memory, as one source of rows. A step takes 34 bytes.

        Args:
            indices: run numbers. The ``run_id`` of a row is the position of its run in this list. None: all
                runs.
            workers: number of decoding threads. None: the number of cores.

        Raises:
            IndexError, FormatError: as :meth:`decode`, for the first run that cannot be decoded.
        """
        return RunRows(self.decode_batch(range(len(self)) if indices is None else indices, workers))

    def split(
        self,
        unit: str = "run",
        test_pct: float | None = None,
        test_size: int | None = None,
        seed: int | None = 0,
        order: str = "random",
    ) -> tuple[PackReader, PackReader]:
        """Split the runs into a part for training and a part for testing. Every run is in one part.

        The parts have exactly the requested sizes, but depend on all runs of this pack. If each game must
        stay in its part when games are added, use :meth:`tape2048.Corpus.split`.

        Args:
            unit: unit of ``test_size`` and ``test_pct``: ``"run"``, or ``"step"``, which decodes all runs.
            test_pct: share of the test part, between 0 and 1. Its size is rounded down.
            test_size: size of the test part in runs or steps, instead of ``test_pct``.
            seed: seed of the draw, which is the same on every machine. None: a new draw at every call.
            order: ``"random"``, or ``"sequential"``: the first runs are the test part.

        Returns:
            The training part and the test part, both in the order of the pack. The test part has at least one
            run, and may have all runs. With ``unit="step"``, it has at least the requested steps, since runs
            are not cut.

        Raises:
            ValueError: ``unit`` or ``order`` is unknown, a size is out of range, or not exactly one of
                ``test_pct`` and ``test_size`` is given.
            FormatError: as :meth:`decode`, with ``unit="step"``.

        Example:
            >>> from tape2048.conversion import convert
            >>> from tape2048.packs import PackReader
            >>> _ = convert("runs", "split.a2pack")
            >>> train, test = PackReader.open("split.a2pack").split(test_pct=0.5, seed=42)
            >>> train, len(test), set(train.indices) & set(test.indices)
            (<PackReader split.a2pack: 1 of 2 runs>, 1, set())
        """
        if unit not in {"run", "step"}:
            raise ValueError(f"unit={unit!r}; expected 'run' or 'step'")
        if order not in {"random", "sequential"}:
            raise ValueError(f"order={order!r}; expected 'random' or 'sequential'")
        if (test_pct is None) == (test_size is None):
            raise ValueError(f"test_pct={test_pct}, test_size={test_size}; expected exactly one value")
        if test_pct is not None and not 0 < test_pct < 1:
            raise ValueError(f"test_pct={test_pct}; expected a share between 0 and 1")
        target = 0 if test_size is None else _at_least_1("test_size", test_size)
        sizes = np.ones(len(self), np.int64)
        if unit == "step":
            sizes[:] = list(map_ordered(lambda i: len(self.decode(i)), range(len(self))))
        if test_pct is not None:
            target = max(1, int(test_pct * int(sizes.sum())))
        drawn = shuffled(len(self), _key(seed)) if order == "random" else np.arange(len(self))
        in_test = np.zeros(len(self), np.bool_)
        # The first drawn runs that have the target size together.
        in_test[drawn[: int(np.searchsorted(np.cumsum(sizes[drawn]), target)) + 1]] = True
        return self._choose(self.indices[~in_test]), self._choose(self.indices[in_test])

    def _choose(self, indices: NDArray[np.int64]) -> PackReader:
        return PackReader(self.path, self._data, self._layout, verify=self._verify, indices=indices)

    @property
    def stats(self) -> PackStats:
        """Statistics of the runs, from the file if it has them; otherwise, all runs are decoded once."""
        if self._stats is None and self._layout.stats is not None and self._is_whole:
            with contextlib.suppress(FormatError):
                self._stats = parse_stats(self._layout.stats)
        if self._stats is None:
            self._stats = count_stats([run.meta for run in self])
        return self._stats

    def to_jsonl(
        self,
        path: str | os.PathLike[str],
        parallel: bool = True,  # noqa: FBT001, FBT002 - the original design's signature
        workers: int | None = None,
        *,
        by_step: bool = False,
        u64: U64 = "number",
        progress: Callable[[int, int], object] | None = None,
    ) -> int:
        """Write all runs as JSON lines, one for each run or each step; see :mod:`tape2048.runs.jsonl`.

        Args:
            path: a new file, which appears when it is complete.
            parallel: whether to use several threads.
            workers: number of threads. None: the number of cores.
            by_step: whether to write one line for each step instead of each run.
            u64: how to write packed boards in the lines of runs: ``"number"`` or ``"text"``.
            progress: called with the number of runs done and of all runs.

        Returns:
            Size of the file in bytes. The file is the same for any number of workers.

        Raises:
            NameTakenError: ``path`` exists.
            FormatError: as :meth:`decode`. No file is left at ``path``.
            StorageError: the operating system could not write the file.
        """
        from tape2048.runs.jsonl import run_line, step_lines

        def lines(entry: int) -> bytes:
            run = self._decode(entry)
            return step_lines(run, entry) if by_step else run_line(run, entry, u64)

        written = 0
        encoded = map_ordered(lines, self.indices.tolist(), workers if parallel else 1)
        with new_file(path) as fd:
            for done, part in enumerate(encoded, start=1):
                write_all(fd, part)
                written += len(part)
                if progress is not None:
                    progress(done, len(self))
        return written

    def extract(self, indices: Iterable[int], directory: str | os.PathLike[str]) -> list[Path]:
        """Write runs to separate files, byte for byte as packed.

        Args:
            indices: run numbers.
            directory: directory for the files, created if missing. A file is named ``run_<number>`` with the
                extension of its format.

        Returns:
            The files, in the order of ``indices``.

        Raises:
            NameTakenError: a file exists already. No file was written.
            IndexError, FormatError: as :meth:`get_slice`. No file was written.
            StorageError: the operating system could not write a file.
        """
        slices = [(i, self.get_slice(i)) for i in indices]
        paths = [Path(directory, f"run_{i:06d}{_SUFFIXES[payload.kind]}") for i, payload in slices]
        for path in paths:
            if os.path.lexists(path) or paths.count(path) > 1:
                raise NameTakenError("exists already. Nothing was written", path=path)
        with storage_errors(directory, "making the directory"):
            Path(directory).mkdir(exist_ok=True)
        for path, (_, payload) in zip(paths, slices, strict=True):
            with new_file(path) as fd:
                write_all(fd, payload.bytes)
        return paths

    def validate(self, progress: Callable[[int, int], object] | None = None) -> None:
        """Check the whole file: every checksum, every run, the padding, and the stats against the runs.

        Args:
            progress: called with the number of runs done and of all runs.

        Raises:
            FormatError: the first defect.
        """
        layout, data = self._layout, self._data
        metas = []
        end = HEADER_BYTES + INDEX_DTYPE.itemsize * len(layout.entries)
        for i, entry in enumerate(layout.entries):
            begin = int(entry["offset"])
            self._check_zeros(end, begin)
            end = begin + int(entry["length"])
            if entry["crc32c"]:
                found = crc32c(data[begin:end].data)
                check_crc(found, int(entry["crc32c"]), f"entry {i}", path=self.path, offset=begin)
            try:
                metas.append(check_rules(self._decode(i)).meta)
            except (BookkeepingError, ReplayError) as error:  # from check_rules, which knows no file
                message = f"entry {i}: {error.message}"
                raise type(error)(message, path=self.path, offset=begin, hint=error.hint) from error
            if progress is not None:
                progress(i + 1, len(layout.entries))
        self._check_zeros(end, layout.data_end)
        begin, end = layout.data_begin, layout.data_end
        if layout.data_crc:
            found = crc32c(data[begin:end].data)
            check_crc(found, layout.data_crc, "the data", path=self.path, offset=begin)
        if layout.stats is None:
            return
        try:
            stats = parse_stats(layout.stats)
        except FieldError as error:
            raise FieldError(error.message, path=self.path, offset=end) from error
        if stats is not None and not agrees(stats, metas):
            message = f"found the stats {stats}, expected {count_stats(metas)} by the runs"
            raise BookkeepingError(message, path=self.path, offset=end)

    def _check_zeros(self, begin: int, end: int) -> None:
        padding = self._data[begin:end]
        if padding.any():
            at = begin + int(padding.argmax())
            message = f"found byte {self._data[at]:#04x} in the padding, expected 0"
            raise FieldError(message, path=self.path, offset=at)


def _reopen(path: str, verify: bool, indices: NDArray[np.int64] | None) -> PackReader:  # noqa: FBT001
    pack = PackReader.open(path, verify=verify)
    return pack if indices is None else pack._choose(indices)  # noqa: SLF001 - of the same module


def _key(seed: int | None) -> int:
    return secrets.randbits(64) if seed is None else seed


def _at_least_1(name: str, value: int) -> int:
    value = as_int(name, value)
    if value < 1:
        raise ValueError(f"{name}={value}; expected at least 1")
    return value


def _steps_in_order(runs: Iterator[NDArray[np.void]], batch_size: int) -> Iterator[NDArray[np.void]]:
    parts: list[NDArray[np.void]] = []
    count = 0
    for rows in runs:
        parts.append(rows)
        count += len(rows)
        if count < batch_size:
            continue
        joined = np.concatenate(parts)
        whole = count - count % batch_size
        for begin in range(0, whole, batch_size):
            yield joined[begin : begin + batch_size]
        parts, count = [joined[whole:]], count - whole
    if count:
        yield np.concatenate(parts)


def _shuffled_steps(
    runs: Iterator[NDArray[np.void]], batch_size: int, seed: int | None
) -> Iterator[NDArray[np.void]]:
    rows = np.concatenate([np.empty(0, ROW_DTYPE), *runs])
    order = shuffled(len(rows), _key(seed))
    for begin in range(0, len(rows), batch_size):
        yield rows.take(order[begin : begin + batch_size])  # takes a ninth of the time of rows[...]
