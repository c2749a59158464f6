"""Columns that every export format writes, made from the rows and runs of a corpus or from run files."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, get_args

import numpy as np

from tape2048.base.text import valid_text
from tape2048.errors import ColumnError
from tape2048.loader.batch import Batch
from tape2048.loader.row_view import tables_of
from tape2048.players import player_label
from tape2048.session.columns import shared_columns
from tape2048.session.run_table import check_thresholds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from tape2048.conversion.sources import RunSource
    from tape2048.corpus import Corpus
    from tape2048.formats.dataset_layout import SkippedRun

#: Exportable tables: one record for each position, or for each game.
TableName: TypeAlias = Literal["rows", "runs"]


class ExportColumn(NamedTuple):
    name: str
    dtype: np.dtype[Any]  # type of its values, or of the codes where there are words
    width: int | None = None  # length of the list in each record; None for scalars
    words: tuple[str, ...] | None = None  # the meaning of the codes 0, 1, ...; None for numbers


class ExportTable(NamedTuple):
    name: TableName  # `"rows"` or `"runs"`
    columns: tuple[ExportColumn, ...]
    records: int
    # The values of each column for `first <= record < last`: `[n]`, or `[n, width]`.
    values: Callable[[int, int], list[NDArray[Any]]]

    def stretches(self, records: int) -> Iterator[list[NDArray[Any]]]:
        """Yield contiguous values of each column, for at most ``records`` records at a time."""
        for first in range(0, self.records, records):
            values = self.values(first, min(self.records, first + records))
            yield [np.ascontiguousarray(column) for column in values]


def make_table(
    corpus: Corpus, name: TableName, thresholds: Sequence[int] = (), columns: Sequence[str] | None = None
) -> ExportTable:
    """Make a table of a corpus, with ``reached_<tile>`` for each threshold.

    Without ``columns``, ``rows`` has the columns that are equal in all sessions, and the others are logged.
    """
    tables_of(corpus)
    if name not in get_args(TableName):
        raise ValueError(f"table {name!r}; expected one of {get_args(TableName)}")
    tiles = check_thresholds(thresholds).tolist() if len(thresholds) else []
    reached = corpus.run_labels(tiles) if tiles else np.empty((len(corpus.runs), 0), np.bool_)
    labels = tuple(ExportColumn(f"reached_{tile}", np.dtype(np.bool_)) for tile in tiles)
    session, codes = _text_column("session", [session.name for session in corpus.sessions])
    owners = codes[corpus.runs["session"]]
    more, read_more = _session_columns(corpus, columns if name == "rows" else ())

    def row_values(first: int, last: int) -> list[NDArray[Any]]:
        corpus.check_files()
        rows = corpus[first:last]
        runs = corpus.run_index(slice(first, last))
        fields = (rows[field] for field in corpus.dtype.names or ())
        return [owners[runs], *fields, *reached[runs].T, *read_more(first, last)]

    def run_values(first: int, last: int) -> list[NDArray[Any]]:
        runs = corpus.runs[first:last]
        fields = [runs[field] for field in ("id", "seed", "steps", "max_score", "highest_tile")]
        return [owners[first:last], played[first:last], *fields, counts[first:last], *reached[first:last].T]

    if name == "rows":
        types = [(field, corpus.dtype[field]) for field in corpus.dtype.names or ()]
        fields = [ExportColumn(field, t.base, t.shape[0] if t.shape else None) for field, t in types]
        own = (session, *fields, *labels)
        if taken := {each.name for each in own} & {each.name for each in more}:
            msg = f"column {min(taken)!r} has the name of a field of rows"
            raise ColumnError(msg, hint="Export other columns, or rename this column.")
        return ExportTable(name, (*own, *more), len(corpus), row_values)
    counts = corpus.row_counts.astype(np.uint32)
    player, codes = _text_column("player", [player_label(session.meta) for session in corpus.sessions])
    played = codes[corpus.runs["session"]]
    return ExportTable(name, (session, player, *_RUN_COLUMNS, *labels), len(corpus.runs), run_values)


def _session_columns(
    corpus: Corpus, names: Sequence[str] | None
) -> tuple[list[ExportColumn], Callable[[int, int], list[NDArray[Any]]]]:
    chosen = np.unique(corpus.runs["session"]) if names is None or names else ()
    shared, others = shared_columns([corpus.sessions[ordinal].columns for ordinal in chosen])
    if names is None and others:
        logging.getLogger("tape2048").warning("columns left out: %s", others)
    if missing := sorted({*(names or ())} - shared.keys()):
        raise ColumnError(f"no column {missing[0]!r} that is equal in all sessions", hint=others or None)
    infos = [shared[name] for name in (shared if names is None else names)]
    if not infos:
        return [], lambda _first, _last: []
    from tape2048.loader.column_fields import plan_fields  # loads the compiler
    from tape2048.loader.gatherer import Gatherer

    tables, tiles = tables_of(corpus), np.empty(0, np.int64)
    layout, planned = plan_fields(tables, [info.name for info in infos], tiles, "bool")
    gatherer = Gatherer(tables, layout.fields, tiles, columns=planned)

    def read(first: int, last: int) -> list[NDArray[Any]]:
        batch = Batch.allocate(layout, last - first)
        gatherer.gather(np.arange(first, last), batch)
        arrays = [(batch.arrays[info.name], info.dtype == "bf16") for info in infos]
        return [(each.astype("<u4") << 16).view("<f4") if half else each for each, half in arrays]

    types = zip(infos, read(0, 0), strict=True)
    return [ExportColumn(info.name, values.dtype, info.width) for info, values in types], read


def run_file_table(
    sources: Sequence[RunSource],
    thresholds: Sequence[int] = (),
    progress: Callable[[int, int], object] | None = None,
) -> tuple[ExportTable, list[SkippedRun]]:
    """Read all runs of some sources, and make a table of their metadata.

    The columns are ``source`` (the file's path; of a pack or a data set, also the run's number), ``steps``,
    ``start_unix_s``, ``elapsed_s``, ``max_score``, ``highest_tile``, ``engine`` (empty for none), and
    ``reached_<tile>`` for each threshold.

    Args:
        sources: from :func:`tape2048.conversion.open_source`.
        thresholds: tiles for which labels are added.
        progress: function that is called with the runs read and all runs.

    Returns:
        The table, and the runs that could not be read.

    Raises:
        StorageError: a file cannot be read.
        ValueError: a threshold is invalid.

    Example:
        >>> from tape2048.conversion import open_source
        >>> from tape2048.export import run_file_table
        >>> table, skipped = run_file_table([open_source("runs")])
        >>> table.records, [column.name for column in table.columns][:2], skipped
        (2, ['source', 'steps'], [])
    """
    tiles = check_thresholds(thresholds).tolist() if len(thresholds) else []
    names, metas, skipped = [], [], []
    count = sum(source.count for source in sources)
    for done, found in enumerate((found for source in sources for found in source.runs()), start=1):
        if found.run is None:
            skipped.append(found.skipped)
        else:
            names.append(found.name)
            metas.append(found.run.meta)
        if progress is not None:
            progress(done, max(done, count))
    origin, origins = _text_column("source", names)
    engine, engines = _text_column("engine", [meta.engine or "" for meta in metas])
    facts = [np.array([getattr(meta, name) for meta in metas], dtype) for name, dtype, *_ in _META_COLUMNS]
    labels = [ExportColumn(f"reached_{tile}", np.dtype(np.bool_)) for tile in tiles]
    values = [origins, *facts, engines, *(facts[-1] >= tile for tile in tiles)]
    columns = (origin, *_META_COLUMNS, engine, *labels)
    return ExportTable(
        "runs", columns, len(metas), lambda first, last: [v[first:last] for v in values]
    ), skipped


def _text_column(name: str, texts: Sequence[str]) -> tuple[ExportColumn, NDArray[np.int32]]:
    words = [valid_text(text) for text in texts]
    codes = {word: code for code, word in enumerate(dict.fromkeys(words))}
    column = ExportColumn(name, np.dtype("<i4"), words=tuple(codes))
    return column, np.array([codes[word] for word in words], np.int32)


_META_COLUMNS = (
    ExportColumn("steps", np.dtype("<u4")),
    ExportColumn("start_unix_s", np.dtype("<u8")),
    ExportColumn("elapsed_s", np.dtype("<f4")),
    ExportColumn("max_score", np.dtype("<u8")),
    ExportColumn("highest_tile", np.dtype("<u4")),
)
_RUN_COLUMNS = (
    *(ExportColumn(name, np.dtype("<u8")) for name in ("run_id", "seed")),
    *(ExportColumn(name, np.dtype("<u4")) for name in ("steps", "max_score", "highest_tile", "rows")),
)
