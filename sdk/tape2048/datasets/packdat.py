"""pack.dat in memory: reading, building, appending, writing; the bytes: :mod:`tape2048.session.packdat`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from tape2048.datasets.dataset import TableCorpus
from tape2048.files.bulk_read import FileRange, allocate, read_into
from tape2048.files.durable import new_file, write_all
from tape2048.files.npy import check_load
from tape2048.files.reading import open_regular
from tape2048.files.row_source import ROW_DTYPE
from tape2048.formats.dataset_layout import LEVELS, PACKDAT_STEP_DTYPE, ROW_BYTES
from tape2048.loader.phases import ALL
from tape2048.runs.a2run2 import VALUE_MAX
from tape2048.runs.files import scan
from tape2048.runs.run import Run, check_meta, check_rules
from tape2048.session.dataset import OpenDataset, of_records, open_packdat, values_of_steps
from tape2048.session.dataset_runs import RunTable
from tape2048.session.packdat import HEADER_BYTES, check_fits, file_parts, parse
from tape2048.session.session import Session

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from numpy.typing import ArrayLike, NDArray

    from tape2048.files.npy import Load

#: Bytes that are written at once.
CHUNK_BYTES = 64 * 1024 * 1024


class DataPack(TableCorpus):
    """A pack.dat in memory, or a view of it: a corpus whose records are ``ROW_DTYPE``.

    :meth:`load` and :meth:`build` make one. The records have branch values as float32; :meth:`records`
    returns them as in the file. ``Dataset("pack.dat")`` has records of a data set instead.

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

    row_dtype = ROW_DTYPE
    _kept = ("normalised", "padded")
    _half = np.float32(32768) / LEVELS
    _mask_tells = True
    normalised = 0
    padded = 0

    @classmethod
    def open(cls, *args: Any, **options: Any) -> Self:
        """Read a file as :meth:`load` does, under the name of :meth:`tape2048.Corpus.open`."""
        return cls.load(*args, **options)

    # In a corpus, `load` is the kind of storage. Here it is the reader, by its name in the format's design.
    @classmethod
    def load(  # type: ignore[override]
        cls, path: str | os.PathLike[str], load: Load = "ram"
    ) -> Self:
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
            return cls._of(open_packdat(Path(path)), Path(path), load)
        with open_regular(path) as fd:
            size = os.fstat(fd).st_size
            content = allocate(size + ROW_BYTES - HEADER_BYTES)[ROW_BYTES - HEADER_BYTES :]  # aligned records
            read_into(content, [FileRange(path, 0, size, fd)])
        return cls.from_bytes(content.data, path)

    @classmethod
    def from_bytes(
        cls, data: bytes | bytearray | memoryview, path: str | os.PathLike[str] | None = None
    ) -> Self:
        """Parse a file's content, with the checks and errors of :meth:`load`.

        Args:
            data: the whole file. The rows are views of it.
            path: path for errors.
        """
        content = np.frombuffer(data, np.uint8)
        content.flags.writeable = False
        where = Path("pack.dat" if path is None else path)
        records, table, padded = parse(content, where)
        return cls._of(of_records(records, table, where, padded), where)

    @classmethod
    def _of(cls, found: OpenDataset, path: Path = Path("pack.dat"), load: Load = "ram") -> Self:
        pack = object.__new__(cls)
        pack._become([Session.of_dataset(path, found, load)], "mmap")
        pack.padded = found.padded
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
        pack = cls._of(of_records(np.empty(0, np.uint8), RunTable.of_metas([]), Path("pack.dat")))
        pack.append(runs)
        return pack

    @classmethod
    def merge(cls, packs: Sequence[DataPack]) -> Self:
        """Join packs and views of whole runs, one after the other. The ids count from 0.

        Rows do not change, except for their run ids.

        Args:
            packs: in the order of their rows.

        Raises:
            ValueError: a view of parts of games.

        Example:
            >>> from tape2048.datasets import DataPack
            >>> from tape2048.runs import read_run
            >>> pack = DataPack.build([read_run("runs/golden.a2run")])
            >>> DataPack.merge([pack, pack]).runs["id"].tolist()
            [0, 1]
        """
        table = RunTable.joined([RunTable.of_metas([]), *(pack.run_table for pack in packs)]).renumbered()
        records = allocate(ROW_BYTES * sum(map(len, packs))).view(PACKDAT_STEP_DTYPE)
        begin = 0
        for pack in packs:
            pack.refuse_parts()
            pack._raw.gather_records(np.arange(len(pack)), records[begin : begin + len(pack)])  # noqa: SLF001
            begin += len(pack)
        records["run_id"] = np.repeat(table.rows["id"], table.rows["steps"])
        records.flags.writeable = False
        padded = sum(pack.padded for pack in packs)
        return cls._of(of_records(records.view(np.uint8), table, Path("pack.dat"), padded))

    def append(self, runs: Iterable[Run]) -> None:
        """Add runs at the end; their ids continue after the highest id.

        This changes only the pack in memory; :meth:`save` writes a new file. Existing views do not change.

        Raises:
            TypeError: an item is not a :class:`Run`.
            ValueError: this is a view.
            FieldError, FormatError: as for :meth:`build`. Nothing is added.
        """
        from tape2048.datasets.records import packdat_records

        if self.is_view:
            raise ValueError("cannot append to a view; append to its source")
        table, before = self._stored()
        parts, metas = [before], []
        begin = rows = len(self)
        first_id = next_id = 1 + int(self.runs["id"].max()) if len(self.runs) else 0
        normalised = 0
        for run in runs:
            if not isinstance(run, Run):
                raise TypeError(f"found {run!r:.200}; expected a Run, as read_run(path) returns")
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
        joined = allocate(ROW_BYTES * rows)
        np.concatenate(parts, out=joined)
        joined.flags.writeable = False
        more = RunTable.of_metas(metas).renumbered(first_id, begin)
        grown = self._of(of_records(joined, RunTable.joined([table, more]), Path("pack.dat"), self.padded))
        grown.normalised = self.normalised + normalised
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
            directory: a directory with run files of any kind.
            workers: number of decoding threads. None: the number of cores.
            on_skip: function that is called with path and error of a file that is left out; None: the error
                is raised, and nothing is added.

        Raises:
            FormatError: a file is damaged, and there is no ``on_skip``; or there is no run file.
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
            progress: function that is called with the bytes written and all bytes.

        Raises:
            NameTakenError: ``path`` exists.
            ValueError: this is a view of parts of games.
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
        table, records = self._stored()
        return file_parts(records, table)

    def _stored(self) -> tuple[RunTable, NDArray[np.uint8]]:
        (session,) = self.sessions
        assert session.dataset is not None
        return session.dataset.table, session.stored.view(np.uint8)

    def _source(self) -> tuple[Callable[..., TableCorpus], tuple[Any, ...]]:
        table, records = self._stored()
        return type(self).from_bytes, (b"".join(file_parts(records, table)),)

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
        rows = np.empty(count, ROW_DTYPE)
        _decode(super()._records_of(session, first, count), rows)
        return rows


def _decode(steps: NDArray[np.void], rows: NDArray[np.void]) -> None:
    rows["board"], rows["move"], rows["ev_legal"] = steps["board"], steps["move_dir"], steps["ev_mask"]
    rows["ev_values"] = np.minimum(values_of_steps(steps), VALUE_MAX)
    rows["run_id"], rows["step_index"] = steps["run_id"], steps["index_in_run"]
