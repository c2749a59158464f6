"""Reader of packs; :mod:`tape2048.packs.layout` describes the format."""

from __future__ import annotations

import functools
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
from tape2048.errors import CompressionError, FormatError, NameTakenError, VersionError
from tape2048.io.crc import check_crc
from tape2048.io.durable import new_file, storage_errors, write_all
from tape2048.io.reading import map_path
from tape2048.packs.checks import check_pack
from tape2048.packs.layout import COMPRESSIONS, read_layout
from tape2048.packs.stats import PackStats, StatsCounter, parse_stats
from tape2048.packs.writer import zstandard
from tape2048.runs.a2run import SUFFIX as A2T1_SUFFIX
from tape2048.runs.a2run import parse_run
from tape2048.runs.a2run2 import SUFFIX as A2RUN2_SUFFIX
from tape2048.runs.a2run2 import RunV2
from tape2048.runs.run import RunRows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from numpy.typing import NDArray

    from tape2048.packs.layout import Layout
    from tape2048.runs.jsonl import U64

RunKind = Literal["v1", "v2"]
_SUFFIXES = {"v1": A2T1_SUFFIX, "v2": A2RUN2_SUFFIX}


class RunSlice(NamedTuple):
    """A run's file as packed: its bytes (a view of the pack, unless compressed) and its kind.

    Example:
        >>> from tape2048.packs import PackReader, pack_directory
        >>> _ = pack_directory("runs", "slices.a2pack")
        >>> PackReader.open("slices.a2pack").get_slice(0).kind
        'v1'
    """

    bytes: memoryview
    kind: RunKind


class EntryInfo(NamedTuple):
    """An entry of the index.

    Example:
        >>> from tape2048.packs import PackReader, pack_directory
        >>> _ = pack_directory("runs", "entries.a2pack")
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
    """A pack opened by :meth:`open`: a sequence of runs with random access.

    ``pack[i]`` and iteration give :class:`RunV2`; A2T1 runs are upgraded. Threads may share a reader.
    Pickling sends the path alone.

    Attributes:
        path: the file, absolute.

    Example:
        >>> from tape2048.packs import PackReader, pack_directory
        >>> _ = pack_directory("runs", "runs.a2pack")
        >>> pack = PackReader.open("runs.a2pack")
        >>> pack, pack.kind(1), len(pack.rows()) == pack.stats.total_steps
        (<PackReader runs.a2pack: 2 runs>, 'v2', True)
    """

    def __init__(self, path: Path, data: NDArray[np.uint8], layout: Layout, *, verify: bool) -> None:
        """Assemble a reader; :meth:`open` is the public way."""
        self.path = path
        self._data = data
        self._view = data.data
        self._layout = layout
        self._index = layout.entries
        self._stats: PackStats | None = None
        self._verify = verify
        # 1 where a payload needs no check: none is wanted, it has no checksum, or it was checked.
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
        """Open a pack in memory, as :meth:`open`; errors name ``path``."""
        return cls(Path(os.path.abspath(path)), data, read_layout(data, path), verify=verify)

    def __len__(self) -> int:
        """Number of runs."""
        return len(self._index)

    def __repr__(self) -> str:
        return f"<PackReader {self.path.name}: {counted(len(self), 'run')}>"

    def __reduce__(self) -> tuple[Callable[..., PackReader], tuple[str]]:
        return functools.partial(PackReader.open, verify=self._verify), (str(self.path),)

    def kind(self, i: int) -> RunKind:
        """Return the kind of an entry: ``"v1"`` (A2T1) or ``"v2"`` (a2run2).

        Raises:
            IndexError: no such entry, or a negative number.
        """
        return self.info(i).kind

    def info(self, i: int) -> EntryInfo:
        """Return an entry of the index.

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
        """Return a run's file, byte for byte as packed.

        The first use of an entry checks its checksum, where the pack has one.

        Raises:
            IndexError: no such entry.
            ChecksumError: the payload was changed.
            CompressionError: it cannot be decompressed.
            VersionError: an unsupported compression.
            MissingPackageError: the package for the compression is not installed.
        """
        i = self._number(i)
        offset, length, kind, flags, crc, raw_length, _ = self._index.item(i)
        stored = self._view[offset : offset + length]
        if not self._trusted[i]:
            hint = "the other entries are not affected"
            check_crc(crc32c(stored), crc, f"entry {i}", path=self.path, offset=offset, hint=hint)
            self._trusted[i] = 1
        if flags:
            stored = memoryview(self._unpack(i, stored, flags, raw_length))
        return RunSlice(stored, "v1" if kind == 1 else "v2")

    def decode(self, i: SupportsIndex) -> RunV2:
        """Decode a run; A2T1 is upgraded (its arrays are views of the pack).

        Raises:
            IndexError: no such entry.
            FormatError: as :meth:`get_slice` and the run's own format; the message names the entry, and the
                offset is that in the pack (in the decompressed bytes of a compressed entry).
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
        """Decode several runs.

        Args:
            indices: entry numbers, in any order, repeats allowed.
            workers: threads; None: one for each core.

        Raises:
            IndexError, FormatError: as :meth:`decode`, for the first defective one.
        """
        return list(map_ordered(self.decode, indices, workers))

    def __iter__(self) -> Iterator[RunV2]:
        """Every run, in order."""
        return map(self.decode, range(len(self)))

    def iter_indices(self, indices: Iterable[int]) -> Iterator[RunV2]:
        """Iterate over the runs with these numbers, in this order; each is decoded when it is reached."""
        return map(self.decode, indices)

    def iter_batches(
        self,
        batch_size: int,
        shuffle: bool = False,  # noqa: FBT001, FBT002 - the original design's signature
        seed: int | None = None,
        workers: int | None = None,
    ) -> Iterator[list[RunV2]]:
        """Iterate over all runs once, in batches; the last batch may be smaller.

        Args:
            batch_size: runs in a batch, at least 1.
            shuffle: use a random order in place of the pack's.
            seed: decides that order, the same on every machine and for any number of workers; None: a
                fresh one.
            workers: threads that decode; None: one for each core.

        Raises:
            ValueError: ``batch_size`` or ``workers`` is not an integer of at least 1.
            FormatError: as :meth:`decode`, when the run is reached.
        """
        batch_size = as_int("batch_size", batch_size)
        if batch_size < 1:
            raise ValueError(f"batch_size={batch_size}; expected at least 1")
        order = _shuffled(len(self), seed) if shuffle else range(len(self))
        runs = map_ordered(self.decode, order, workers)
        return iter(lambda: list(itertools.islice(runs, batch_size)), [])

    def rows(self, indices: Iterable[int] | None = None, workers: int | None = None) -> RunRows:
        """Decode all runs (or some) into memory, as one source of rows; a step takes 23 to 27 bytes.

        Args:
            indices: entry numbers; a row's ``run_id`` is the ordinal among them. None: all entries.
            workers: threads that decode; None: one for each core.

        Raises:
            IndexError, FormatError: as :meth:`decode`, for the first defective one.
        """
        return RunRows(self.decode_batch(range(len(self)) if indices is None else indices, workers))

    @property
    def stats(self) -> PackStats:
        """The pack's statistics: from the file, or counted once by decoding all runs."""
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
        u64: U64 = "number",
        progress: Callable[[int, int], object] | None = None,
    ) -> int:
        """Write every run as JSON lines, one a run or one a step; see :mod:`tape2048.runs.jsonl`.

        Args:
            path: a new file, which appears when it is whole.
            parallel: use several threads.
            workers: their number; None: one for each core.
            by_step: write one line a step.
            u64: packed boards as ``"number"`` or ``"text"``, one line a run.
            progress: called with runs done and runs in all.

        Returns:
            Bytes written; the same for any number of workers.

        Raises:
            NameTakenError: ``path`` exists.
            FormatError: as :meth:`decode`; nothing is left at ``path``.
            StorageError: the operating system could not write it.
        """
        from tape2048.runs.jsonl import run_line, step_lines

        def lines(i: int) -> bytes:
            run = self.decode(i)
            return step_lines(run, i) if by_step else run_line(run, i, u64)

        written = 0
        with new_file(path) as fd:
            for done, part in enumerate(map_ordered(lines, range(len(self)), workers if parallel else 1), 1):
                write_all(fd, part)
                written += len(part)
                if progress is not None:
                    progress(done, len(self))
        return written

    def extract(self, indices: Iterable[int], directory: str | os.PathLike[str]) -> list[Path]:
        """Write runs to files of their own, byte for byte as packed.

        Args:
            indices: entry numbers.
            directory: made where it is missing; files are ``run_<number>`` with the format's extension.

        Returns:
            The files, in the order of ``indices``.

        Raises:
            NameTakenError: one of the files exists; none was written.
            IndexError, FormatError: as :meth:`get_slice`; none was written.
            StorageError: the operating system could not write them.
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
        """Check every checksum, every run, the padding, and the stats against the runs.

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
            found = package.frame_content_size(stored)
            if found in (-1, raw_length):  # zstandard allocates the claimed size before it reads any content
                raw: bytes = package.ZstdDecompressor().decompress(
                    stored, max_output_size=raw_length, allow_extra_data=False
                )
                found = len(raw)
        except package.ZstdError as error:
            raise CompressionError(
                f"entry {i} cannot be decompressed: {error}", path=self.path, offset=offset
            ) from error
        if found != raw_length:
            raise CompressionError(
                f"entry {i} holds {found} bytes; the index says {raw_length}", path=self.path, offset=offset
            )
        return raw


def _shuffled(count: int, seed: int | None) -> list[int]:
    """Permute [0, count) by a hash of seed and number, independent of NumPy's generators."""
    key = secrets.randbits(64) if seed is None else seed & (2**64 - 1)
    # SplitMix64's sequence and finaliser (Steele, Lea, Flood 2014).
    z = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(key)
    z = (z ^ z >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ z >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    order: list[int] = np.argsort(z ^ z >> np.uint64(31), kind="stable").tolist()
    return order
