"""pack.dat in memory: read, build, append and write; see :mod:`tape2048.datasets.packdat_layout`."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Self

import numpy as np

from tape2048.datasets.packdat_layout import (
    CHUNK_BYTES,
    CRC_BYTES,
    HEADER_BYTES,
    LEVELS,
    PACKDAT_STEP_DTYPE,
    U32_MAX,
    check_content,
    check_fits,
    check_steps,
    checksum_of,
    encode_header,
    encode_runs,
    parse_runs,
    read_header,
)
from tape2048.datasets.run_table import RunTable
from tape2048.datasets.table_rows import ROW_BYTES, TableRows, aligned_records
from tape2048.errors import FieldError
from tape2048.formats.dataset_layout import DATASET_ROW_DTYPE, RUN_STEPS_MAX
from tape2048.formats.npy import check_load
from tape2048.formats.rows import ROW_DTYPE
from tape2048.io.bulk_read import Stretch, read_into
from tape2048.io.durable import new_file, write_all
from tape2048.io.reading import map_path, open_regular, read_exactly
from tape2048.runs.files import scan
from tape2048.runs.run import Run, check_meta
from tape2048.selection import ALL

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from numpy.typing import ArrayLike, NDArray

    from tape2048.datasets.packdat_layout import Header
    from tape2048.formats.npy import Load

_LEVELS = np.float32(65535)
_HALF_LEVEL = np.float32(32768) / LEVELS
# Rows that are converted together: 8 MB.
_FILL_ROWS = 1 << 18


class DataPack(TableRows):
    """A pack.dat in memory, or a view of some of its runs; a source of rows.

    :meth:`load` and :meth:`build` make one. Rows have ``ROW_DTYPE``, with branch values as float32;
    :meth:`records` returns them as in the file. ``Dataset("pack.dat")`` has them as rows of a data set.

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
    _half = np.float32(32768) / np.float32(65535)
    _mask_tells = True
    normalised = 0
    padded = 0

    @classmethod
    def load(cls, path: str | os.PathLike[str], load: Load = "ram") -> Self:
        """Read a file and check all of it: checksum, lengths, and that the runs cover the steps.

        Args:
            path: the file.
            load: ``"ram"`` reads the steps into memory; ``"mmap"`` maps them, which takes a read of the file
                for its checksum and no memory; random batches are slow where it is not in the page cache.

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
            data: the whole file; the rows are views of it.
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
        check_content(header, records, tail, path)
        table = parse_runs(tail[:-CRC_BYTES].tobytes(), header, path)
        table.check_tiles(header.steps, path)
        table.check_ids(U32_MAX, path)
        padded = check_steps(records, table, path)
        pack = cls([records], table)
        pack.padded = padded
        return pack

    @classmethod
    def build(cls, runs: Iterable[Run]) -> Self:
        """Lay runs end to end, in their order, with ids from 0.

        Args:
            runs: the games; :func:`tape2048.conversion.open_source` reads those of files.

        Raises:
            TypeError: an item is not a :class:`Run`.
            FieldError: a value that its field cannot hold, an illegal move, a branch value that is not
                finite, or more runs or steps than the format counts.
        """
        pack = cls([], RunTable.of_metas([]))
        pack.append(runs)
        return pack

    @classmethod
    def merge(cls, packs: Sequence[DataPack]) -> Self:
        """Join packs and views of whole runs, one after the other; the ids count from 0.

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
            FieldError: as :meth:`build`; nothing is added.
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
            workers: threads that decode; None: one for each core.
            on_skip: called with path and error of a file that is left out; None: the error is raised, and
                nothing is added.

        Raises:
            FormatError: a damaged file, without ``on_skip``; no run file.
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
        """Write a new file, which appears whole or not at all. A view writes its runs, renumbered from 0.

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
        """Encode the file in pieces; a view's runs are renumbered."""
        if self.is_view:
            return self.merge([self])._file_parts()  # noqa: SLF001 - of the same class
        table, records = self._table, self._parts[0]
        check_fits("first_step_idx", int(table.rows["first_row"].max(initial=0)))
        pieces = [
            memoryview(encode_header(len(table), len(self))),
            records.data,
            memoryview(encode_runs(table)),
        ]
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
        rows["ev_values"] = _values(steps)
        rows["run_id"], rows["step_index"] = steps["run_id"], steps["index_in_run"]
        return rows

    def fill_dataset(self, out: NDArray[np.uint8]) -> None:
        """Write all rows as those of a data set, ``u8[32 * N]``.

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


def _values(records: NDArray[np.void]) -> NDArray[np.float32]:
    """Return branch values, ``f32[n, 4]``: at most the float32 below 1, and 0 where the mask has none."""
    has = (records["ev_mask"][:, None] >> np.arange(4, dtype=np.uint8)) & 1
    values = records["ev_q"].astype(np.float32) / LEVELS
    np.minimum(values, np.float32(1 - 2**-23), out=values)
    values *= has
    return values
