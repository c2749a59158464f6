"""The run table of pack.dat and of the data set directory, in memory.

Both formats hold the metadata of a run (:class:`tape2048.runs.run.RunMeta`) and the range of its rows. The
engine's name, which thousands of runs share, is an index into a list of names.
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

#: One run. ``engine`` is an index into :attr:`RunTable.engines`, or :data:`NO_ENGINE`. The board after the
#: last move and the game's seed count where ``has_final`` and ``has_seed`` are set.
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
        ("final_board", "<u8"),
        ("seed", "<u8"),
        ("has_final", "?"),
        ("has_seed", "?"),
    ]
)

NO_ENGINE = -1


class RunTable:
    """Runs, and the names of their engines.

    Attributes:
        rows: ``RUN_TABLE_DTYPE[R]``, read-only.
        engines: the names that ``rows["engine"]`` refers to.
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
        """Return the metadata of one run."""
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
        """Return the engine of each run."""
        return [None if index == NO_ENGINE else self.engines[index] for index in self.rows["engine"].tolist()]

    def choose(self, chosen: NDArray[Any]) -> RunTable:
        """Return a table of the runs of a mask or of ordinals."""
        return RunTable(self.rows[chosen], self.engines)

    @classmethod
    def of_metas(cls, metas: Sequence[RunMeta], **columns: Any) -> RunTable:
        """Make a table of runs that lie end to end, with ids from 0; ``columns`` are further fields."""
        for name in ("steps", "max_score", "highest_tile", "start_unix_s", "elapsed_s"):
            columns[name] = [getattr(meta, name) for meta in metas]
        return cls.of_columns(columns, [meta.engine for meta in metas]).renumbered()

    @classmethod
    def of_columns(cls, columns: dict[str, Any], engines: Iterable[str | None]) -> RunTable:
        """Make a table of columns by name, without ``engine``, and of each run's engine."""
        names: dict[str, int] = {}
        found = [NO_ENGINE if name is None else names.setdefault(name, len(names)) for name in engines]
        rows = np.zeros(len(found), RUN_TABLE_DTYPE)
        for name, values in columns.items():
            rows[name] = values
        rows["engine"] = found
        return cls(rows, tuple(names))

    @classmethod
    def joined(cls, tables: Sequence[RunTable]) -> RunTable:
        """Join several tables; ids and first rows stay as they are."""
        if len(tables) == 1:
            return tables[0]
        names: dict[str, int] = {}
        parts = [np.zeros(0, RUN_TABLE_DTYPE)]
        for table in tables:
            index = np.array([names.setdefault(name, len(names)) for name in table.engines] + [NO_ENGINE])
            part = table.rows.copy()
            part["engine"] = index[table.rows["engine"]]  # NO_ENGINE, -1, is the last one
            parts.append(part)
        return cls(np.concatenate(parts), tuple(names))

    def ordered(self) -> RunTable:
        """Sort by first row; a run without steps comes before the one that begins at its row."""
        return self.choose(np.lexsort([self.rows[name] for name in ("id", "steps", "first_row")]))

    def renumbered(self, first_id: int = 0, first_row: int = 0) -> RunTable:
        """Return the table with consecutive ids, and runs that lie end to end."""
        rows = self.rows.copy()
        rows["id"] = np.arange(first_id, first_id + len(rows))
        rows["first_row"] = first_row + np.cumsum(rows["steps"], dtype=np.uint64) - rows["steps"]
        return RunTable(rows, self.engines)

    def check_tiles(self, rows: int, path: str | os.PathLike[str]) -> None:
        """Raise BookkeepingError unless the runs, in their order, cover each row exactly once."""
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
        """Raise BookkeepingError for an id that occurs twice, FieldError for one above ``id_max``."""
        ids = np.sort(self.rows["id"])
        twice = np.flatnonzero(ids[1:] == ids[:-1])
        if twice.size:
            raise BookkeepingError(f"run id {ids[twice[0]]} occurs more than once", path=path)
        if ids.size and int(ids[-1]) > id_max:
            raise FieldError(f"run id {ids[-1]}; a row's run_id holds at most {id_max}", path=path)
