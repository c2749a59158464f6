"""Tables for other tools: rows and runs of a corpus, or runs of run files: Parquet, Arrow, JSON lines, CSV.

Memory is bounded by a row group of a million records. A file appears under its name when it is complete, and
replaces another one only with ``replace``. Parquet and Arrow need pyarrow, ``pip install 'tape2048[arrow]'``.
:func:`record_batches` gives the data in memory, for DuckDB, pandas, Polars, Hugging Face datasets and others.

NumPy's types are kept: ``exps`` is a fixed-size list of 16 ``uint8``, ids and seeds are ``uint64``. Names are
dictionary-encoded.
"""

from __future__ import annotations

import csv
import io
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, NamedTuple, TypeAlias, get_args

import msgspec
import numpy as np

from tape2048._version import __version__
from tape2048.base.text import valid_text
from tape2048.errors import ColumnError
from tape2048.files.durable import publishing_file
from tape2048.loader.row_view import tables_of
from tape2048.players import player_label
from tape2048.runs.parquet import pyarrow
from tape2048.runs.registry import FORMATS, TABLE_FORMATS
from tape2048.session.columns import shared_columns
from tape2048.session.run_table import check_thresholds

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Iterator, Sequence

    import pyarrow as pa
    from numpy.typing import NDArray

    from tape2048.corpus import Corpus
    from tape2048.runs.run import U64, RunSource, SkippedRun

#: Exportable tables: one record for each position, or for each game.
TableName: TypeAlias = Literal["rows", "runs"]

#: Records in a batch: a few megabytes.
BATCH_RECORDS = 131_072
#: Records in a row group of a Parquet file, which the writer holds in memory: 28 MB of rows.
ROW_GROUP_RECORDS = 8 * BATCH_RECORDS
#: Records encoded as lines together: as Python objects they take some ten megabytes.
LINE_RECORDS = 16_384


class ExportColumn(NamedTuple):
    """The type of a column.

    ``dtype`` is the type of its values, or of the codes if there are ``words``; ``width`` is the length of
    the list in each record, None for scalars.
    """

    name: str
    dtype: np.dtype[Any]
    width: int | None = None
    words: tuple[str, ...] | None = None


class ExportTable(NamedTuple):
    """Columns and the function that reads their values: of ``first <= record < last``, a list of arrays."""

    name: TableName
    columns: tuple[ExportColumn, ...]
    records: int
    values: Callable[[int, int], list[NDArray[Any]]]

    def parts(self, records: int) -> Iterator[list[NDArray[Any]]]:
        """Yield contiguous values of each column, for at most ``records`` records at a time."""
        for first in range(0, self.records, records):
            values = self.values(first, min(self.records, first + records))
            yield [np.ascontiguousarray(column) for column in values]


def _columns(dtype: str, *names: str) -> list[ExportColumn]:
    return [ExportColumn(name, np.dtype(dtype)) for name in names]


_RUN_COLUMNS = [
    *_columns("<u8", "run_id", "seed"),
    *_columns("<u4", "steps", "max_score", "highest_tile", "rows"),
]
_META_COLUMNS = [
    *_columns("<u4", "steps"),
    *_columns("<u8", "start_unix_s"),
    *_columns("<f4", "elapsed_s"),
    *_columns("<u8", "max_score"),
    *_columns("<u4", "highest_tile"),
]


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
    labels = _columns("?", *(f"reached_{tile}" for tile in tiles))
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

    def read(first: int, last: int) -> list[NDArray[Any]]:
        found = corpus.fetch(slice(first, last), [info.name for info in infos]) if infos else {}
        arrays = [(found[info.name], info.dtype == "bf16") for info in infos]
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

    Also return the runs that could not be read.

    Args:
        sources: from :func:`tape2048.runs.open_source`.
        thresholds: tiles for which labels are added.
        progress: function that is called with the runs read and all runs.

    Example:
        >>> from tape2048.runs import open_source, run_file_table
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
    values = [origins, *facts, engines, *(facts[-1] >= tile for tile in tiles)]
    columns = (origin, *_META_COLUMNS, engine, *_columns("?", *(f"reached_{tile}" for tile in tiles)))
    return ExportTable(
        "runs", columns, len(metas), lambda first, last: [each[first:last] for each in values]
    ), skipped


def _text_column(name: str, texts: Sequence[str]) -> tuple[ExportColumn, NDArray[np.int32]]:
    words = [valid_text(text) for text in texts]
    codes = {word: code for code, word in enumerate(dict.fromkeys(words))}
    numbers = np.array([codes[word] for word in words], np.int32)
    return ExportColumn(name, np.dtype("<i4"), words=tuple(codes)), numbers


def export(
    corpus: Corpus,
    path: str | os.PathLike[str],
    *,
    format: str,  # noqa: A002 - the usual name
    table: TableName = "rows",
    thresholds: Sequence[int] = (),
    columns: Sequence[str] | None = None,
    **how: Any,
) -> int:
    """Write a corpus's rows or runs to a file; return the number of records.

    A CorpusError says that mapped rows were truncated since the corpus was opened.

    Args:
        corpus: as for :func:`record_batches`.
        path: the new file.
        format: as for :func:`write_table`.
        table: as for :func:`record_batches`.
        thresholds: as for :func:`record_batches`.
        columns: as for :func:`record_batches`.
        **how: the options of :func:`write_table`.

    Example:
        >>> import tape2048
        >>> from tape2048.runs import export
        >>> export(tape2048.Corpus.open("selfplay"), "runs.jsonl", format="jsonl", table="runs")
        200
    """
    return write_table(make_table(corpus, table, thresholds, columns), path, format=format, **how)


def write_table(
    table: ExportTable,
    path: str | os.PathLike[str],
    *,
    format: str,  # noqa: A002 - the usual name
    compression: str | None = None,
    u64: U64 = "number",
    replace: bool = False,
    progress: Callable[[int, int], object] | None = None,
) -> int:
    """Write a table to a file; return the number of records.

    Args:
        table: from :func:`tape2048.runs.exports.make_table` or :func:`run_file_table`.
        path: the new file.
        format: ``"parquet"``, ``"arrow"`` (IPC file, Feather version 2), ``"jsonl"`` or ``"csv"``.
        compression: a compression that :data:`tape2048.runs.registry.FORMATS` lists for the format; by
            default the first.
        u64: in JSON lines, ids and seeds as ``"number"``, or as ``"text"``; see :mod:`tape2048.runs.jsonl`.
        replace: whether to replace an existing file.
        progress: function that is called with the number of records written and of all records.

    Raises:
        MissingPackageError: Parquet or Arrow without pyarrow.
        NameTakenError: the file exists.
        StorageError: the operating system could not read rows or write the file.
        ValueError: ``format`` or ``compression`` is unknown, or the format has no option ``u64``.

    Example:
        >>> from tape2048.runs import open_source
        >>> from tape2048.runs import run_file_table, write_table
        >>> write_table(run_file_table([open_source("runs")])[0], "summary.csv", format="csv")
        2
    """
    if format not in TABLE_FORMATS:
        raise ValueError(f"format {format!r}; expected one of {TABLE_FORMATS}")
    known, is_text = FORMATS[format].compressions, FORMATS[format].is_text
    how = known[0] if compression is None else compression
    if how not in known:
        raise ValueError(f"compression {compression!r} of {format}; expected one of {known}")
    if u64 != "number" and (u64 != "text" or format != "jsonl"):
        raise ValueError(f"u64={u64!r} of {format}; expected 'number', or in jsonl 'text'")
    report = progress or (lambda _done, _total: None)
    if not is_text:
        pyarrow()  # before a file is made
    with publishing_file(path, replace=replace) as file:
        if is_text:
            write_lines(table, file, report, format=format, u64=u64)
        else:
            write_arrow(table, file, format, how, report)
    return table.records


def record_batches(
    corpus: Corpus,
    table: TableName = "rows",
    *,
    thresholds: Sequence[int] = (),
    columns: Sequence[str] | None = None,
    records: int = BATCH_RECORDS,
) -> Iterator[pa.RecordBatch]:
    """Return a corpus's rows or runs as Arrow record batches, all of one schema, in order.

    Args:
        corpus: the source. A view gives its own rows and runs.
        table: ``"rows"`` or ``"runs"``; :func:`tape2048.runs.exports.make_table` lists their columns.
        thresholds: tiles for which a column ``reached_<tile>`` is added.
        columns: the sessions' columns to add to rows. None: all columns that are equal in all sessions.
        records: maximum number of records in a batch.

    Raises:
        TypeError: ``corpus`` is not a corpus.
        ValueError: ``table`` is unknown, a threshold is invalid, or ``records`` is below 1.

    Example:
        >>> import tape2048
        >>> from tape2048.runs import record_batches
        >>> batch = next(record_batches(tape2048.Corpus.open("selfplay"), "runs"))
        >>> batch.num_rows, batch.schema.names[:3]
        (200, ['session', 'player', 'run_id'])
    """
    if records < 1:
        raise ValueError(f"records={records}; expected at least 1")
    return _batches(make_table(corpus, table, thresholds, columns), records)


def write_arrow(
    table: ExportTable, file: BinaryIO, format_: str, compression: str, progress: Callable[[int, int], object]
) -> None:
    pa, parquet = pyarrow()
    records, schema, done = BATCH_RECORDS, _schema(table), 0
    if format_ == "parquet":
        records, sink = ROW_GROUP_RECORDS, parquet.ParquetWriter(file, schema, compression=compression)
    else:
        options = pa.ipc.IpcWriteOptions(compression=None if compression == "none" else compression)
        sink = pa.ipc.new_file(file, schema, options=options)
    with sink as writer:
        for batch in _batches(table, records):
            writer.write_batch(batch)
            done += batch.num_rows
            progress(done, table.records)


def _schema(table: ExportTable) -> pa.Schema:
    pa, _ = pyarrow()
    fields = []
    for column in table.columns:
        kind = pa.from_numpy_dtype(column.dtype)
        if column.words is not None:
            kind = pa.dictionary(pa.int32(), pa.string())
        elif column.width is not None:
            kind = pa.list_(kind, column.width)
        fields.append(pa.field(column.name, kind, nullable=False))
    return pa.schema(fields, metadata={"tape2048_release": __version__})


def _batches(table: ExportTable, records: int) -> Iterator[pa.RecordBatch]:
    pa, _ = pyarrow()
    dictionaries = [None if column.words is None else pa.array(column.words) for column in table.columns]
    schema = _schema(table)
    for values in table.parts(records):
        arrays = [_arrow_array(array, words) for array, words in zip(values, dictionaries, strict=True)]
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def _arrow_array(values: NDArray[Any], dictionary: pa.Array | None) -> pa.Array:
    """Wrap values without a copy, except booleans, which Arrow packs."""
    pa, _ = pyarrow()
    if dictionary is not None:
        return pa.DictionaryArray.from_arrays(pa.array(values), dictionary)
    if values.ndim == 2:
        return pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), values.shape[1])
    return pa.array(values)


def write_lines(
    table: ExportTable,
    file: BinaryIO,
    progress: Callable[[int, int], object],
    *,
    format: str,  # noqa: A002 - as in export
    u64: U64 = "number",
) -> None:
    """Write JSON lines, one object per record, or CSV (RFC 4180, UTF-8), one line per record after the names.

    In JSON lines, ids and seeds are integers below 2**64, which some readers round, or text: see
    :mod:`tape2048.runs.jsonl`. In CSV, a list becomes columns, ``exps_0`` to ``exps_15``; truth values are
    ``true`` and ``false``; lines end with a line feed.
    """
    encoder, done = msgspec.json.Encoder(), 0
    if format == "csv":
        names = [[f"{name}_{i}" for i in range(width or 0)] or [name] for name, _, width, _ in table.columns]
        file.write(_csv_lines([[name for each in names for name in each]]))
    for values in table.parts(LINE_RECORDS):
        done += len(values[0])
        columns = [_plain(array, column) for array, column in zip(values, table.columns, strict=True)]
        if format == "csv":
            flat: list[Any] = []
            for texts, column in zip(columns, table.columns, strict=True):
                if column.width is not None:
                    flat += zip(*texts, strict=True)
                elif column.dtype == np.bool_:
                    flat.append(["true" if value else "false" for value in texts])
                else:
                    flat.append(texts)
            file.write(_csv_lines(zip(*flat, strict=True)))
        else:
            for i, column in enumerate(table.columns):
                if u64 == "text" and column.dtype == np.uint64 and column.width is None:
                    columns[i] = list(map(str, columns[i]))
            keys = [column.name for column in table.columns]
            records = [dict(zip(keys, each, strict=True)) for each in zip(*columns, strict=True)]
            file.write(encoder.encode_lines(records))
        progress(done, table.records)


def _csv_lines(records: Iterable[Iterable[Any]]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(records)
    return text.getvalue().encode()


def _plain(values: NDArray[Any], column: ExportColumn) -> list[Any]:
    """Convert values to Python objects, and codes to words. Short floats get their shortest digits."""
    if column.dtype in (np.float16, np.float32):
        values = np.array([float(str(value)) for value in values.flat]).reshape(values.shape)
    plain: list[Any] = values.tolist()
    return plain if column.words is None else [column.words[code] for code in plain]


def default_path(source: Path, table: TableName, format_: str) -> Path:
    return Path(f"{Path(source).resolve().name or 'export'}.{table}.{format_}")
