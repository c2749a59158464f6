r"""a2pack: many runs in one read-only file; extension ``.a2pack``.

======== =========== ==================================================================================
part     bytes       layout
======== =========== ==================================================================================
header   28          magic ``A2PACK\0\0``, ``u32`` version = 1, ``u32`` flags = 0, ``u64`` count, ``u32``
                     CRC-32C of bytes 0 to 23
index    32 x count  ``u64`` absolute offset, ``u32`` length, ``u16`` kind (1 = A2T1, 2 = a2run2), ``u16``
                     flags (low byte: 0 stored, 1 zstd, 2 lz4), ``u32`` CRC-32C of the stored payload (0 =
                     left out), ``u32`` raw length (0 where not compressed), ``u64`` 0
padding              zeros up to the alignment (4096 unless told otherwise)
data                 payloads in index order, each aligned, zeros between
stats    optional    ``u32`` length, then a JSON object: :class:`PackStats`
footer   32          ``u64`` end of the data, ``u32`` CRC-32C of the index, ``u32`` CRC-32C of the data or
                     0, ``u64`` offset of the stats or 0, ``u32`` CRC-32C of the footer's first 24 bytes,
                     ``u32`` 0
======== =========== ==================================================================================

Payloads are whole run files, byte for byte. Entries are in order of their offsets and do not overlap. lz4 is
named by the format and read by nothing here.

    >>> from tape2048.packs.reader import PackReader, pack_directory
    >>> packed = pack_directory("runs", "runs.a2pack")  # doctest: +SKIP
    >>> PackReader.open("runs.a2pack").decode(0)  # doctest: +SKIP
"""

from __future__ import annotations

import operator
import os
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple, SupportsIndex

import numpy as np
from crc32c import crc32c

from tape2048.base.text import as_int, counted
from tape2048.base.threads import map_ordered
from tape2048.errors import (
    ChecksumError,
    CompressionError,
    FormatError,
    NameTakenError,
    Skipped,
    VersionError,
)
from tape2048.io.durable import new_file, storage_errors, write_all
from tape2048.io.reading import map_path
from tape2048.packs.checks import check_pack
from tape2048.packs.layout import COMPRESSIONS, read_layout
from tape2048.packs.stats import PackStats, StatsCounter, parse_stats
from tape2048.packs.writer import Compression, Packed, PackWriter, pack_directory, zstandard
from tape2048.runs.a2run import SUFFIX as A2T1_SUFFIX
from tape2048.runs.a2run import parse_run
from tape2048.runs.a2run2 import SUFFIX as A2RUN2_SUFFIX
from tape2048.runs.a2run2 import RunV2
from tape2048.runs.run import RunRows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from tape2048.packs.layout import Layout

__all__ = [
    "Compression",
    "EntryInfo",
    "PackReader",
    "PackStats",
    "PackWriter",
    "Packed",
    "RunKind",
    "RunSlice",
    "Skipped",
    "pack_directory",
]

RunKind = Literal["v1", "v2"]
_SUFFIXES = {"v1": A2T1_SUFFIX, "v2": A2RUN2_SUFFIX}


class RunSlice(NamedTuple):
    """A run's file as it was packed: its bytes (a view of the pack, unless compressed) and its kind."""

    bytes: memoryview
    kind: RunKind


class EntryInfo(NamedTuple):
    """An entry of the index."""

    kind: RunKind
    offset: int
    length: int
    compression: str
    crc32c: int
    raw_length: int


class PackReader:
    """A pack: a sequence of runs, each reachable at once. See :meth:`open`.

    ``pack[i]`` and iteration give :class:`RunV2`; A2T1 runs are upgraded. Any thread may use one reader.
    Pickling sends the path alone.

    Attributes:
        path: the file, absolute.
    """

    def __init__(self, path: Path, data: NDArray[np.uint8], layout: Layout, *, verify: bool) -> None:
        """Put together what :meth:`open` has read."""
        self.path = path
        self._data = data
        self._view = data.data
        self._layout = layout
        self._index = layout.entries
        self._stats: PackStats | None = None
        self._verify = verify
        # 1 where a payload needs no (further) look: none is wanted, none can be had, or it was summed.
        known = self._index["crc32c"] == 0 if verify else np.ones(len(self._index), np.bool_)
        self._trusted = bytearray(known.tobytes())

    @classmethod
    def open(cls, path: str | os.PathLike[str], *, verify: bool = True) -> PackReader:
        """Map a pack and check its header, index and footer; the payloads are not read.

        Args:
            path: the file.
            verify: check a payload's CRC-32C when it is first used.

        Raises:
            FormatError: as the classes that :func:`~tape2048.packs.layout.read_layout` names.
            StorageError: the operating system could not open or map it.
        """
        return cls.from_bytes(map_path(path), path, verify=verify)

    @classmethod
    def from_bytes(
        cls, data: NDArray[np.uint8], path: str | os.PathLike[str], *, verify: bool = True
    ) -> PackReader:
        """A pack that stands in memory; as :meth:`open`, with ``path`` as its name in errors."""
        return cls(Path(os.path.abspath(path)), data, read_layout(data, path), verify=verify)

    def __len__(self) -> int:
        """Number of runs."""
        return len(self._index)

    def __repr__(self) -> str:
        return f"<PackReader {self.path.name}: {counted(len(self), 'run')}>"

    def __reduce__(self) -> tuple[Callable[..., PackReader], tuple[str, bool]]:
        return _reopen, (str(self.path), self._verify)

    def kind(self, i: int) -> RunKind:
        """``"v1"`` (A2T1) or ``"v2"`` (a2run2).

        Raises:
            IndexError: no such entry; a negative number is none.
        """
        return self.info(i).kind

    def info(self, i: int) -> EntryInfo:
        """What the index says of an entry.

        Raises:
            IndexError: no such entry.
        """
        entry = self._index[self._number(i)]
        return EntryInfo(
            kind="v1" if entry["kind"] == 1 else "v2",
            offset=int(entry["offset"]),
            length=int(entry["length"]),
            compression=COMPRESSIONS[int(entry["flags"])],
            crc32c=int(entry["crc32c"]),
            raw_length=int(entry["raw_length"]),
        )

    def get_slice(self, i: SupportsIndex) -> RunSlice:
        """A run's file, byte for byte as it was packed.

        Its checksum, where the pack has one, is checked at the first use of the entry.

        Raises:
            IndexError: no such entry.
            ChecksumError: the payload was changed.
            CompressionError: it cannot be unpacked.
            VersionError: it is compressed in a way that is not known here.
            MissingPackageError: it is compressed, and the package for that is not installed.
        """
        i = self._number(i)
        offset, length, kind, flags, crc, raw_length, _ = self._index.item(i)
        stored = self._view[offset : offset + length]
        if not self._trusted[i]:
            computed = crc32c(stored)
            if computed != crc:
                raise ChecksumError(
                    f"CRC-32C of entry {i} is {computed:#010x}; the index says {crc:#010x}",
                    path=self.path,
                    offset=offset,
                    hint="the other entries are not touched by this",
                )
            self._trusted[i] = 1
        if flags:
            stored = memoryview(self._unpack(i, stored, flags, raw_length))
        return RunSlice(stored, "v1" if kind == 1 else "v2")

    def decode(self, i: SupportsIndex) -> RunV2:
        """A run; A2T1 is upgraded (its arrays are views of the pack).

        Raises:
            IndexError: no such entry.
            FormatError: as :meth:`get_slice`, and what the run's own format raises; the message names the
                entry, and the offset is that in the pack (in the unpacked bytes of a compressed entry).
        """
        i = self._number(i)
        payload, kind = self.get_slice(i)
        try:
            if kind == "v1":
                return RunV2.from_v1(parse_run(np.frombuffer(payload, np.uint8)))
            return RunV2.from_bytes(payload)
        except FormatError as error:
            base = 0 if self._index["flags"][i] else int(self._index["offset"][i])
            raise type(error)(
                f"entry {i}: {error.message}",
                path=self.path,
                offset=None if error.offset is None else base + error.offset,
                hint=error.hint,
            ) from error

    __getitem__ = decode

    def decode_batch(self, indices: Iterable[int], workers: int | None = 1) -> list[RunV2]:
        """Several runs, in the order asked for.

        Args:
            indices: entry numbers, repeats allowed.
            workers: threads; None: one for each core.

        Raises:
            IndexError, FormatError: as :meth:`decode`, for the first bad one.
        """
        return list(map_ordered(self.decode, indices, workers))

    def __iter__(self) -> Iterator[RunV2]:
        """Every run, in order."""
        return map(self.decode, range(len(self)))

    def iter_indices(self, indices: Iterable[int]) -> Iterator[RunV2]:
        """The runs with these numbers, in this order, each decoded when its turn comes."""
        return map(self.decode, indices)

    def iter_batches(
        self,
        batch_size: int,
        shuffle: bool = False,  # noqa: FBT001, FBT002 - the original design's signature
        seed: int | None = None,
        workers: int | None = None,
    ) -> Iterator[list[RunV2]]:
        """Every run once, in batches; the last batch may be smaller.

        Args:
            batch_size: runs in a batch, at least 1.
            shuffle: in a random order in place of the pack's.
            seed: decides that order, the same on every machine and for any number of workers; None: a
                fresh one.
            workers: threads that decode; None: one for each core.

        Raises:
            ValueError: ``batch_size`` or ``workers`` is less than 1, or no whole number.
            FormatError: as :meth:`decode`, in its run's turn.
        """
        batch_size = as_int("batch_size", batch_size)
        if batch_size < 1:
            raise ValueError(f"batch_size={batch_size}; expected at least 1")
        order = _shuffled(len(self), seed) if shuffle else range(len(self))
        return self._batches(order, batch_size, workers)

    def rows(self, indices: Iterable[int] | None = None, workers: int | None = None) -> RunRows:
        """The steps of all runs (or of some) as one source of rows, decoded into memory.

        A step takes 23 to 27 bytes. The ``run_id`` of a row is the ordinal among the runs asked for.
        """
        return RunRows(self.decode_batch(range(len(self)) if indices is None else indices, workers))

    @property
    def stats(self) -> PackStats:
        """The pack in numbers: from the file where it has them, else counted once, which decodes it all."""
        if self._stats is None and self._layout.stats is not None:
            self._stats = parse_stats(self._layout.stats)
        if self._stats is None:
            counter = StatsCounter()
            for run in self:
                counter.add(run.meta)
            self._stats = counter.result()
        return self._stats

    def to_jsonl(
        self,
        path: str | os.PathLike[str],
        parallel: bool = True,  # noqa: FBT001, FBT002 - the original design's signature
        workers: int | None = None,
        *,
        by_step: bool = False,
        progress: Callable[[int, int], object] | None = None,
    ) -> int:
        """Write every run as JSON lines, one a run or one a step; see :mod:`tape2048.runs.jsonl`.

        Args:
            path: a new file, which appears when it is whole.
            parallel: on several threads.
            workers: how many; None: one for each core.
            by_step: one line for each step.
            progress: called with runs done and runs in all.

        Returns:
            Bytes written; the same for any number of workers.

        Raises:
            NameTakenError: something stands at ``path``.
            FormatError: as :meth:`decode`; nothing is left at ``path``.
            StorageError: the operating system refused.
        """
        from tape2048.runs.jsonl import run_line, step_lines

        def lines(i: int) -> bytes:
            run = self.decode(i)
            return step_lines(run, i) if by_step else run_line(run, i)

        written = 0
        with new_file(path) as fd:
            for done, part in enumerate(map_ordered(lines, range(len(self)), workers if parallel else 1), 1):
                write_all(fd, part)
                written += len(part)
                if progress is not None:
                    progress(done, len(self))
        return written

    def extract(self, indices: Iterable[int], directory: str | os.PathLike[str]) -> list[Path]:
        """Write runs to files of their own, byte for byte as they were packed.

        Args:
            indices: entry numbers.
            directory: made where it is missing; files are ``run_<number>`` and the format's extension.

        Returns:
            The files, in the order of ``indices``.

        Raises:
            NameTakenError: one of the files exists; none was written.
            IndexError, FormatError: as :meth:`get_slice`; none was written.
            StorageError: the operating system refused.
        """
        indices = list(indices)
        slices = [self.get_slice(i) for i in indices]
        paths = [
            Path(directory, f"run_{i:06d}{_SUFFIXES[payload.kind]}")
            for i, payload in zip(indices, slices, strict=True)
        ]
        for path in paths:
            if os.path.lexists(path) or paths.count(path) > 1:
                raise NameTakenError("the name is taken; nothing was written", path=path)
        with storage_errors(directory, "making the directory"):
            Path(directory).mkdir(exist_ok=True)
        for path, payload in zip(paths, slices, strict=True):
            with new_file(path) as fd:
                write_all(fd, payload.bytes)
        return paths

    def validate(self, progress: Callable[[int, int], object] | None = None) -> None:
        """Read all of it: every checksum, every run, the padding, and the stats against the runs.

        Args:
            progress: called with runs done and runs in all.

        Raises:
            FormatError: the first defect.
        """
        check_pack(self._data, self._layout, (run.meta for run in self), self.path, progress)

    def _number(self, i: SupportsIndex) -> int:
        number = operator.index(i)
        if not 0 <= number < len(self._index):
            raise IndexError(f"entry {number}; expected 0 <= entry < {len(self)}")
        return number

    def _batches(self, order: Sequence[int], size: int, workers: int | None) -> Iterator[list[RunV2]]:
        batch: list[RunV2] = []
        for run in map_ordered(self.decode, order, workers):
            batch.append(run)
            if len(batch) == size:
                yield batch
                batch = []
        if batch:
            yield batch

    def _unpack(self, i: int, stored: memoryview, flags: int, raw_length: int) -> bytes:
        offset = int(self._index["offset"][i])
        if COMPRESSIONS[flags] != "zstd":
            raise VersionError(
                f"entry {i} is compressed with {COMPRESSIONS[flags]}; only zstd can be read here",
                path=self.path,
                offset=offset,
            )
        package = zstandard()
        try:
            claimed = package.frame_content_size(stored)
            # zstandard allocates what the frame claims, before it looks at a byte of content.
            if claimed not in (-1, raw_length):
                raise CompressionError(
                    f"entry {i} holds {claimed} bytes; the index says {raw_length}",
                    path=self.path,
                    offset=offset,
                )
            raw: bytes = package.ZstdDecompressor().decompress(
                stored, max_output_size=raw_length, allow_extra_data=False
            )
        except package.ZstdError as error:
            raise CompressionError(
                f"entry {i} cannot be unpacked: {error}", path=self.path, offset=offset
            ) from error
        if len(raw) != raw_length:
            raise CompressionError(
                f"entry {i} unpacks to {len(raw)} bytes; the index says {raw_length}",
                path=self.path,
                offset=offset,
            )
        return raw


def _reopen(path: str, verify: bool) -> PackReader:  # noqa: FBT001 - pickle calls by position
    return PackReader.open(path, verify=verify)


def _shuffled(count: int, seed: int | None) -> list[int]:
    """A permutation of [0, count): sorted by a hash of seed and number, which no NumPy release changes."""
    key = secrets.randbits(64) if seed is None else seed & (2**64 - 1)
    # SplitMix64's sequence and finaliser (Steele, Lea, Flood 2014).
    z = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(key)
    z = (z ^ z >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ z >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    order: list[int] = np.argsort(z ^ z >> np.uint64(31), kind="stable").tolist()
    return order
