"""The rows and the runs of a corpus as columns, a stretch at a time: what every export writes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, get_args

import numpy as np

from tape2048.base.text import valid_text
from tape2048.session.labels import check_thresholds
from tape2048.store.view import check_corpus

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from tape2048.corpus import Corpus

__all__ = ["Column", "Table", "TableName", "make_table"]

#: What can be exported: one record for each position, or one for each game.
TableName: TypeAlias = Literal["rows", "runs"]


class Column(NamedTuple):
    """What a column holds.

    Attributes:
        name: of the column.
        dtype: of its values; of the codes, where there are words.
        width: values in each record; None where that is one, and no list.
        words: what the codes 0, 1, ... stand for; None for a column of numbers.
    """

    name: str
    dtype: np.dtype[Any]
    width: int | None = None
    words: tuple[str, ...] | None = None


class Table(NamedTuple):
    """Columns, and where their values come from.

    Attributes:
        name: ``"rows"`` or ``"runs"``.
        columns: in order.
        records: how many there are.
        values: the values of each column for ``first <= record < last``: ``[n]``, or ``[n, width]``.
    """

    name: TableName
    columns: tuple[Column, ...]
    records: int
    values: Callable[[int, int], list[NDArray[Any]]]

    def stretches(self, records: int) -> Iterator[list[NDArray[Any]]]:
        """Contiguous values of each column, for at most so many records at a time."""
        for first in range(0, self.records, records):
            values = self.values(first, min(self.records, first + records))
            yield [np.ascontiguousarray(column) for column in values]


def make_table(corpus: Corpus, name: TableName, thresholds: Sequence[int] = ()) -> Table:
    """A table of a corpus.

    ``rows``: ``session`` (its name), ``run_id``, ``step_idx``, ``exps`` (16 exponents), and ``action``
    where rows have it. ``runs``: ``session``, ``run_id``, ``seed``, ``steps``, ``max_score``,
    ``highest_tile``, and ``rows``, how many the view has of the run. Both: ``reached_<tile>`` for each
    threshold.

    Args:
        corpus: the rows or runs are its own, and no others.
        name: which table.
        thresholds: tiles whose labels are added.

    Raises:
        TypeError: no corpus.
        ValueError: another name, or thresholds that are no tiles.
    """
    check_corpus(corpus)
    if name not in get_args(TableName):
        raise ValueError(f"table {name!r}; expected one of {get_args(TableName)}")
    tiles = check_thresholds(thresholds).tolist() if len(thresholds) else []
    reached = corpus.run_labels(tiles) if tiles else np.empty((len(corpus.runs), 0), np.bool_)
    labels = tuple(Column(f"reached_{tile}", np.dtype(np.bool_)) for tile in tiles)
    # Sessions of two directories may have one name, and a dictionary has each word once.
    names = [valid_text(session.name) for session in corpus.sessions]
    codes = {word: code for code, word in enumerate(dict.fromkeys(names))}
    session = Column("session", np.dtype("<i4"), words=tuple(codes))
    owners = np.array([codes[word] for word in names], np.int32)[corpus.runs["session"]]
    if name == "rows":
        columns = (session, *_row_columns(corpus), *labels)
        return Table(name, columns, len(corpus), _row_values(corpus, owners, reached))
    columns = (session, *_RUN_COLUMNS, *labels)
    return Table(name, columns, len(corpus.runs), _run_values(corpus, owners, reached))


def _row_columns(corpus: Corpus) -> list[Column]:
    columns = []
    for name in corpus.dtype.names or ():
        dtype = corpus.dtype[name]
        columns.append(Column(name, dtype.base, dtype.shape[0] if dtype.shape else None))
    return columns


_RUN_COLUMNS = (
    Column("run_id", np.dtype("<u8")),
    Column("seed", np.dtype("<u8")),
    Column("steps", np.dtype("<u4")),
    Column("max_score", np.dtype("<u4")),
    Column("highest_tile", np.dtype("<u4")),
    Column("rows", np.dtype("<u4")),
)


def _row_values(
    corpus: Corpus, owners: NDArray[np.int32], reached: NDArray[np.bool_]
) -> Callable[[int, int], list[NDArray[Any]]]:
    def values(first: int, last: int) -> list[NDArray[Any]]:
        corpus.store.check_files()
        rows = corpus[first:last]
        runs = _runs_between(corpus.row_starts, first, last)
        fields = [rows[name] for name in corpus.dtype.names or ()]
        return [owners[runs], *fields, *reached[runs].T]

    return values


def _runs_between(starts: NDArray[np.int64], first: int, last: int) -> NDArray[np.int64]:
    """The ordinal of the run of each row ``first <= row < last``."""
    begin = int(np.searchsorted(starts, first, "right")) - 1
    end = int(np.searchsorted(starts, last, "left"))
    edges: NDArray[np.int64] = np.clip(starts[begin : end + 1], first, last)
    return np.repeat(np.arange(begin, end), edges[1:] - edges[:-1])


def _run_values(
    corpus: Corpus, owners: NDArray[np.int32], reached: NDArray[np.bool_]
) -> Callable[[int, int], list[NDArray[Any]]]:
    runs, counts = corpus.runs, corpus.row_counts.astype(np.uint32)

    def values(first: int, last: int) -> list[NDArray[Any]]:
        part = runs[first:last]
        fields = [part[name] for name in ("id", "seed", "steps", "max_score", "highest_tile")]
        return [owners[first:last], *fields, counts[first:last], *reached[first:last].T]

    return values
