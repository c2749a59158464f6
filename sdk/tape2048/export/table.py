"""The rows and runs of a corpus as columns, which every export format writes."""

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

#: Exportable tables: one record for each position, or one for each game.
TableName: TypeAlias = Literal["rows", "runs"]


class Column(NamedTuple):
    """The type of a column."""

    name: str
    dtype: np.dtype[Any]  # type of its values, or of the codes where there are words
    width: int | None = None  # length of the list in each record; None for scalars
    words: tuple[str, ...] | None = None  # the meaning of the codes 0, 1, ...; None for numbers


class Table(NamedTuple):
    """Columns and the function that reads their values."""

    name: TableName  # `"rows"` or `"runs"`
    columns: tuple[Column, ...]
    records: int
    # The values of each column for `first <= record < last`: `[n]`, or `[n, width]`.
    values: Callable[[int, int], list[NDArray[Any]]]

    def stretches(self, records: int) -> Iterator[list[NDArray[Any]]]:
        """Yield contiguous values of each column, for at most ``records`` records at a time."""
        for first in range(0, self.records, records):
            values = self.values(first, min(self.records, first + records))
            yield [np.ascontiguousarray(column) for column in values]


def make_table(corpus: Corpus, name: TableName, thresholds: Sequence[int] = ()) -> Table:
    """Make a table of a corpus.

    ``rows`` has ``session`` (its name), ``run_id``, ``step_idx``, ``exps`` (16 exponents), and ``action``
    where recorded. ``runs`` has ``session``, ``run_id``, ``seed``, ``steps``, ``max_score``,
    ``highest_tile``, and ``rows``, the number of the run's rows in the view. Both have ``reached_<tile>``
    for each threshold.

    Args:
        corpus: the source; a view gives its own rows and runs.
        name: ``"rows"`` or ``"runs"``.
        thresholds: tiles for which labels are added.

    Raises:
        TypeError: ``corpus`` is no corpus.
        ValueError: an unknown table, or invalid thresholds.
    """
    check_corpus(corpus)
    if name not in get_args(TableName):
        raise ValueError(f"table {name!r}; expected one of {get_args(TableName)}")
    tiles = check_thresholds(thresholds).tolist() if len(thresholds) else []
    reached = corpus.run_labels(tiles) if tiles else np.empty((len(corpus.runs), 0), np.bool_)
    labels = tuple(Column(f"reached_{tile}", np.dtype(np.bool_)) for tile in tiles)
    # Sessions in two directories may share a name, and a dictionary has each word once.
    names = [valid_text(session.name) for session in corpus.sessions]
    codes = {word: code for code, word in enumerate(dict.fromkeys(names))}
    session = Column("session", np.dtype("<i4"), words=tuple(codes))
    owners = np.array([codes[word] for word in names], np.int32)[corpus.runs["session"]]

    def row_values(first: int, last: int) -> list[NDArray[Any]]:
        corpus.store.check_files()
        rows = corpus[first:last]
        runs = _runs_between(corpus.row_starts, first, last)
        return [owners[runs], *(rows[field] for field in corpus.dtype.names or ()), *reached[runs].T]

    def run_values(first: int, last: int) -> list[NDArray[Any]]:
        runs = corpus.runs[first:last]
        fields = [runs[field] for field in ("id", "seed", "steps", "max_score", "highest_tile")]
        return [owners[first:last], *fields, counts[first:last], *reached[first:last].T]

    if name == "rows":
        types = [(field, corpus.dtype[field]) for field in corpus.dtype.names or ()]
        fields = [Column(field, t.base, t.shape[0] if t.shape else None) for field, t in types]
        return Table(name, (session, *fields, *labels), len(corpus), row_values)
    counts = corpus.row_counts.astype(np.uint32)
    return Table(name, (session, *_RUN_COLUMNS, *labels), len(corpus.runs), run_values)


_RUN_COLUMNS = (
    *(Column(name, np.dtype("<u8")) for name in ("run_id", "seed")),
    *(Column(name, np.dtype("<u4")) for name in ("steps", "max_score", "highest_tile", "rows")),
)


def _runs_between(starts: NDArray[np.int64], first: int, last: int) -> NDArray[np.int64]:
    """Return the ordinal of the run of each row ``first <= row < last``."""
    begin = int(np.searchsorted(starts, first, "right")) - 1
    end = int(np.searchsorted(starts, last, "left"))
    edges: NDArray[np.int64] = np.clip(starts[begin : end + 1], first, last)
    return np.repeat(np.arange(begin, end), edges[1:] - edges[:-1])
