"""The run table of pack.dat and of the data set directory, in memory.

Both formats hold the same facts of a run (:class:`tape2048.runs.run.RunMeta`), and where its rows
lie. The engine's name, which a thousand runs share, is an index into a list of names.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tape2048.errors import BookkeepingError, FieldError
from tape2048.runs.run import RunMeta

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

__all__ = ["NO_ENGINE", "RUN_TABLE_DTYPE", "RunTable"]

#: One run. ``engine`` is an index into :attr:`RunTable.engines`, :data:`NO_ENGINE` for none.
RUN_TABLE_DTYPE = np.dtype(
    [
        ("id", "<u8"),
        ("first_row", "<u8"),
        ("steps", "<u4"),
        ("max_score", "<u8"),
        ("highest_tile", "<u4"),
        ("start_unix_s", "<u8"),
        ("elapsed_s", "<f4"),
        ("engine", "<i4"),
    ]
)

NO_ENGINE = -1


class RunTable:
    """Runs, and the names of their engines.

    Attributes:
        rows: ``RUN_TABLE_DTYPE[R]``, read-only.
        engines: the names that ``rows["engine"]`` counts.
    """

    def __init__(self, rows: NDArray[np.void], engines: Sequence[str] = ()) -> None:
        self.rows = rows
        self.rows.flags.writeable = False
        self.engines = tuple(engines)

    def __len__(self) -> int:
        """Number of runs, R."""
        return len(self.rows)

    def __repr__(self) -> str:
        return f"<RunTable: {len(self):,} runs, engines {', '.join(self.engines) or 'unknown'}>"

    def meta(self, ordinal: int) -> RunMeta:
        """The facts of one run, as single runs carry them."""
        row = self.rows[ordinal]
        return RunMeta(
            steps=int(row["steps"]),
            start_unix_s=int(row["start_unix_s"]),
            elapsed_s=float(row["elapsed_s"]),
            max_score=int(row["max_score"]),
            highest_tile=int(row["highest_tile"]),
            engine=None if row["engine"] == NO_ENGINE else self.engines[row["engine"]],
        )

    def engine_names(self) -> list[str | None]:
        """The engine of each run."""
        return [None if index == NO_ENGINE else self.engines[index] for index in self.rows["engine"].tolist()]

    def choose(self, chosen: NDArray[Any]) -> RunTable:
        """The runs of a mask or of ordinals."""
        return RunTable(self.rows[chosen], self.engines)

    @classmethod
    def of_metas(cls, metas: Iterable[RunMeta], *, first_id: int = 0, first_row: int = 0) -> RunTable:
        """A table of runs that lie end to end, with consecutive ids."""
        names: dict[str, int] = {}
        records = []
        for run_id, meta in enumerate(metas, start=first_id):
            engine = NO_ENGINE if meta.engine is None else names.setdefault(meta.engine, len(names))
            records.append(
                (
                    run_id,
                    first_row,
                    meta.steps,
                    meta.max_score,
                    meta.highest_tile,
                    meta.start_unix_s,
                    meta.elapsed_s,
                    engine,
                )
            )
            first_row += meta.steps
        return cls(np.array(records, RUN_TABLE_DTYPE), tuple(names))

    @classmethod
    def of_columns(cls, columns: dict[str, Any], engines: Iterable[str | None]) -> RunTable:
        """A table of the columns by name, ``engine`` apart, and the engines' names run by run."""
        names: dict[str, int] = {}
        found = [NO_ENGINE if name is None else names.setdefault(name, len(names)) for name in engines]
        rows = np.zeros(len(found), RUN_TABLE_DTYPE)
        for name, values in columns.items():
            rows[name] = values
        rows["engine"] = found
        return cls(rows, tuple(names))

    @classmethod
    def joined(cls, tables: Sequence[RunTable]) -> RunTable:
        """Several tables as one; ids and first rows stay as they are."""
        if len(tables) == 1:
            return tables[0]
        names: dict[str, int] = {}
        parts = [np.zeros(0, RUN_TABLE_DTYPE)]
        for table in tables:
            index = np.array([names.setdefault(name, len(names)) for name in table.engines] + [NO_ENGINE])
            part = table.rows.copy()
            part["engine"] = index[table.rows["engine"]]  # NO_ENGINE is the last one, counted from the end
            parts.append(part)
        return cls(np.concatenate(parts), tuple(names))

    def ordered(self) -> RunTable:
        """The table in the order of its rows; a run without steps comes before the one that begins there."""
        return self.choose(np.lexsort([self.rows[name] for name in ("id", "steps", "first_row")]))

    def check_tiles(self, rows: int, path: str | os.PathLike[str]) -> None:
        """Raise unless the runs, as they stand, cover each row exactly once.

        Raises:
            BookkeepingError: a gap, an overlap, or ranges that do not end at ``rows``.
        """
        first = self.rows["first_row"]
        ends = np.cumsum(self.rows["steps"], dtype=np.uint64)
        expected = np.concatenate((np.zeros(1, np.uint64), ends))
        wrong = np.flatnonzero(first != expected[:-1])
        if wrong.size:
            at = int(wrong[0])
            raise BookkeepingError(
                f"run {self.rows['id'][at]} begins at row {first[at]}; "
                f"the runs before it end at row {expected[at]}",
                path=path,
            )
        if int(expected[-1]) != rows:
            raise BookkeepingError(
                f"the {len(self)} runs have {expected[-1]} rows together; the steps have {rows}", path=path
            )

    def check_ids(self, id_max: int, path: str | os.PathLike[str]) -> None:
        """Raise unless the ids differ from each other and are at most ``id_max``.

        Raises:
            BookkeepingError: an id that stands there twice.
            FieldError: an id that a row's ``run_id`` cannot hold.
        """
        ids = np.sort(self.rows["id"])
        twice = np.flatnonzero(ids[1:] == ids[:-1])
        if twice.size:
            raise BookkeepingError(f"run id {ids[twice[0]]} stands more than once", path=path)
        if ids.size and int(ids[-1]) > id_max:
            raise FieldError(f"run id {ids[-1]}; a row's run_id holds at most {id_max}", path=path)
