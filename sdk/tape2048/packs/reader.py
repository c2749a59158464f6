"""Reader of packs; :mod:`tape2048.packs.layout` describes the format."""

from __future__ import annotations

import contextlib
import functools
import os
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple, SupportsIndex

import numpy as np
from crc32c import crc32c

from tape2048.base.text import counted
from tape2048.base.threads import map_ordered
from tape2048.errors import FieldError, FormatError, NameTakenError
from tape2048.io.crc import check_crc
from tape2048.io.durable import new_file, storage_errors, write_all
from tape2048.io.reading import map_path
from tape2048.packs.checks import check_pack
from tape2048.packs.compression import decompress
from tape2048.packs.layout import COMPRESSIONS, read_layout
from tape2048.packs.stats import PackStats, StatsCounter, parse_stats
from tape2048.packs.view import PackedRuns, PackView
from tape2048.runs.a2run import SUFFIX as A2T1_SUFFIX, parse_run
from tape2048.runs.a2run2 import SUFFIX as A2RUN2_SUFFIX, RunV2

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

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


class PackReader(PackedRuns):
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

    @property
    def indices(self) -> NDArray[np.int64]:
        """``i64[R]``: 0 to R - 1."""
        return np.arange(len(self))

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
            FieldError: it cannot be decompressed, or is longer than any game.
            MissingPackageError: the package for the compression is not installed.
        """
        i = self._number(i)
        offset, length, kind, flags, crc, raw_length, _ = self._index.item(i)
        stored = self._view[offset : offset + length]
        hint = "the other entries are not affected"
        if not self._trusted[i]:
            check_crc(crc32c(stored), crc, f"entry {i}", path=self.path, offset=offset, hint=hint)
            self._trusted[i] = 1
        if flags:
            try:
                stored = memoryview(decompress(stored, COMPRESSIONS[flags], raw_length))
            except FieldError as error:
                message = f"entry {i}: {error.message}"
                raise FieldError(message, path=self.path, offset=offset, hint=hint) from error
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

    @property
    def stats(self) -> PackStats:
        """The pack's statistics: from the file, or counted once by decoding all runs."""
        if self._stats is None and self._layout.stats is not None:
            with contextlib.suppress(FormatError):
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

    def _choose(self, chosen: NDArray[np.bool_]) -> PackView:
        return PackView(self, np.flatnonzero(chosen))
