"""Tables for other tools: rows and runs of a corpus, or runs of run files: Parquet, Arrow, JSON lines, CSV.

Memory is bounded by a row group of a million records. Parquet and Arrow need pyarrow, ``pip install
'tape2048[arrow]'``. They keep NumPy's types: ``exps`` is a fixed-size list of 16 ``uint8``, ids and seeds are
``uint64``. Names are dictionary-encoded. :func:`record_batches` gives the data in memory, for DuckDB, pandas,
Polars, Hugging Face datasets and others.
"""

from __future__ import annotations

import codecs
import csv
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
from tape2048.runs.arrow import pyarrow
from tape2048.runs.registry import FORMATS, TABLE_FORMATS
from tape2048.session.column_draft import shared_columns
from tape2048.session.run_table import check_thresholds

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterator, Sequence

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

#: Facts of a row's game that can be columns of rows, and their names in the run table.
GAME_FACTS = ("score", "highest_tile", "steps", "seed")

_META = {"steps": "u4", "start_unix_s": "u8", "elapsed_s": "f4", "max_score": "u8", "highest_tile": "u4"}


class ExportTable(NamedTuple):
    """Columns, with the words of those that hold codes; and a function: the arrays of a range of records."""

    columns: dict[str, Sequence[str] | None]
    records: int
    values: Callable[[int, int], Sequence[NDArray[Any]]]

    def parts(self, records: int) -> Iterator[Sequence[NDArray[Any]]]:
        """Yield the values of each column, for at most ``records`` records at a time."""
        for first in range(0, self.records, records):
            yield self.values(first, min(self.records, first + records))


def make_table(
    corpus: Corpus, name: TableName, thresholds: Sequence[int] = (), columns: Sequence[str] | None = None
) -> ExportTable:
    """Make a table of a corpus, with ``reached_<tile>`` for each threshold.

    Without ``columns``, ``rows`` has the columns that are equal in all sessions, and the others are logged.
    ``columns`` can also name facts of the game: ``score``, ``highest_tile``, ``steps`` and ``seed``.
    """
    tables_of(corpus)
    if name not in get_args(TableName):
        raise ValueError(f"table {name!r}; expected one of {get_args(TableName)}")
    runs, owners = corpus.runs, corpus.runs["session"]
    labels = _labels(runs["highest_tile"], thresholds)
    sessions, codes = _coded([session.name for session in corpus.sessions])
    if name == "rows":
        return _rows_table(corpus, sessions, codes[owners], labels, columns)
    players, played = _coded([player_label(session.meta) for session in corpus.sessions])
    facts = {"seed": runs["seed"], "steps": runs["steps"], "max_score": runs["score"]}
    facts["highest_tile"] = runs["highest_tile"]
    facts = {"run_id": runs["run_id"], **facts, "rows": corpus.row_counts.astype(np.uint32), **labels}
    facts = {"session": codes[owners], "player": played[owners], **facts}
    return _runs_table(facts, {"session": sessions, "player": players})


def _rows_table(
    corpus: Corpus,
    sessions: Sequence[str],
    owners: NDArray[np.int32],
    labels: dict[str, NDArray[Any]],
    names: Sequence[str] | None,
) -> ExportTable:
    chosen = np.unique(corpus.runs["session"]) if names is None or names else ()
    shared, others = shared_columns([corpus.sessions[ordinal].columns for ordinal in chosen])
    if names is None and others:
        logging.getLogger("tape2048").warning("columns left out: %s", others)
    of_games = [name for name in names or () if name in {*GAME_FACTS} - shared.keys()]
    labels = {name: corpus.runs[name] for name in of_games} | labels
    names = names and [name for name in names if name not in of_games]
    if missing := sorted({*(names or ())} - shared.keys()):
        raise ColumnError(f"no column {missing[0]!r} that is equal in all sessions", hint=others or None)
    fields, more = corpus.dtype.names or (), [*shared] if names is None else names
    columns = dict.fromkeys(("session", *fields, *labels))
    if taken := columns.keys() & {*more}:
        hint = "Export other columns, or rename this column."
        raise ColumnError(f"column {min(taken)!r} has the name of a field of rows", hint=hint)

    def values(first: int, last: int) -> list[NDArray[Any]]:
        corpus.check_files()
        rows, runs = corpus[first:last], corpus.run_index(slice(first, last))
        arrays = [owners[runs], *(rows[field] for field in fields), *(each[runs] for each in labels.values())]
        for name, each in corpus.fetch(slice(first, last), more).items() if more else ():
            half = shared[name].dtype == "bf16"
            arrays.append((each.astype("<u4") << 16).view("<f4") if half else each)
        return arrays

    return ExportTable(columns | dict.fromkeys(more) | {"session": sessions}, len(corpus), values)


def _runs_table(values: dict[str, NDArray[Any]], words: dict[str, Sequence[str]]) -> ExportTable:
    def read(first: int, last: int) -> list[NDArray[Any]]:
        return [each[first:last] for each in values.values()]

    return ExportTable({name: words.get(name) for name in values}, len(next(iter(values.values()))), read)


def _labels(highest: NDArray[Any], thresholds: Sequence[int]) -> dict[str, NDArray[Any]]:
    tiles = check_thresholds(thresholds).tolist() if len(thresholds) else []
    return {f"reached_{tile}": highest >= tile for tile in tiles}


def _coded(texts: Sequence[str]) -> tuple[list[str], NDArray[np.int32]]:
    valid = [valid_text(text) for text in texts]
    codes = {word: code for code, word in enumerate(dict.fromkeys(valid))}
    return [*codes], np.array([codes[word] for word in valid], np.int32)


def run_file_table(
    sources: Sequence[RunSource],
    thresholds: Sequence[int] = (),
    progress: Callable[[int, int], object] | None = None,
) -> tuple[ExportTable, list[SkippedRun]]:
    """Make a table of the metadata of all runs of some sources; also return the unreadable runs.

    The columns are ``source`` (the file's path; of a pack or a data set, also the run's number), ``steps``,
    ``start_unix_s``, ``elapsed_s``, ``max_score``, ``highest_tile``, ``engine`` (empty for none), and
    ``reached_<tile>`` for each threshold.

    Args:
        sources: from :func:`tape2048.runs.open_source`.
        thresholds: tiles for which labels are added.
        progress: function that is called with the runs read and all runs.

    Example:
        >>> from tape2048.runs import open_source, run_file_table
        >>> table, skipped = run_file_table([open_source("runs")])
        >>> table.records, [*table.columns][:2], skipped
        (2, ['source', 'steps'], [])
    """
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
    sources_, origins = _coded(names)
    engines, played = _coded([meta.engine or "" for meta in metas])
    facts = {name: np.array([getattr(meta, name) for meta in metas], dtype) for name, dtype in _META.items()}
    facts = {"source": origins, **facts, "engine": played, **_labels(facts["highest_tile"], thresholds)}
    return _runs_table(facts, {"source": sources_, "engine": engines}), skipped


def export(
    corpus: Corpus,
    path: str | os.PathLike[str],
    *,
    format: str | None = None,  # noqa: A002 - the usual name
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
        format: as for :func:`write_table`. None: by the path's extension.
        table: as for :func:`record_batches`.
        thresholds: as for :func:`record_batches`.
        columns: as for :func:`record_batches`.
        **how: the options of :func:`write_table`.

    Example:
        >>> import tape2048
        >>> from tape2048.runs import export
        >>> export(tape2048.Corpus.open("selfplay"), "runs.jsonl", table="runs")
        200
    """
    return write_table(
        make_table(corpus, table, thresholds, columns), path, format=format or format_of(path), **how
    )


def format_of(path: str | os.PathLike[str]) -> str:
    """Return the format of a table by the extension of its name; ValueError for an unknown one."""
    suffix = Path(path).suffix
    found = next((name for name in TABLE_FORMATS if suffix and FORMATS[name].suffix == suffix), None)
    if found is None:
        raise ValueError(f"no table has the extension {suffix!r}; expected one of {', '.join(TABLE_FORMATS)}")
    return found


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
    """Write a table to a new file; return the number of records.

    Args:
        table: from :func:`tape2048.runs.exports.make_table` or :func:`run_file_table`.
        path: the new file, which appears when it is complete.
        format: ``"parquet"``, ``"arrow"`` (IPC file, Feather version 2), ``"jsonl"`` or ``"csv"``.
        compression: one of the format's in :data:`tape2048.runs.registry.FORMATS`; by default the first.
        u64: in JSON lines, ids and seeds as ``"number"``, or as ``"text"``; see :mod:`tape2048.runs.jsonl`.
        replace: whether to replace an existing file; otherwise NameTakenError.
        progress: function that is called with the number of records written and of all records.

    Example:
        >>> from tape2048.runs import open_source, run_file_table, write_table
        >>> write_table(run_file_table([open_source("runs")])[0], "summary.csv", format="csv")
        2
    """
    compression, report = check_format(format, compression, u64), progress or (lambda _done, _total: None)
    with publishing_file(path, replace=replace) as file:
        if FORMATS[format].is_text:
            write_lines(table, file, report, format=format, u64=u64)
        else:
            write_arrow(table, file, format, compression, report)
    return table.records


def check_format(format_: str, compression: str | None, u64: str) -> str:
    """Return the compression, by default the format's first; raise ValueError for an unknown option."""
    if format_ not in TABLE_FORMATS:
        raise ValueError(f"format {format_!r}; expected one of {TABLE_FORMATS}")
    known = FORMATS[format_].compressions
    if compression not in {None, *known}:
        raise ValueError(f"compression {compression!r} of {format_}; expected one of {known}")
    if u64 != "number" and (u64 != "text" or format_ != "jsonl"):
        raise ValueError(f"u64={u64!r} of {format_}; expected 'number', or in jsonl 'text'")
    return compression or known[0]


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
        table: one record for each position, or for each game.
        thresholds: tiles for which a column ``reached_<tile>`` is added.
        columns: the sessions' columns to add to rows, and ``score``, ``highest_tile``, ``steps`` and ``seed``
            of the game. None: all columns that are equal in all sessions.
        records: maximum number of records in a batch.

    Example:
        >>> import tape2048
        >>> from tape2048.runs import record_batches
        >>> batch = next(record_batches(tape2048.Corpus.open("selfplay"), "runs"))
        >>> batch.num_rows, batch.schema.names[:3]
        (200, ['session', 'player', 'run_id'])
    """
    if records < 1:
        raise ValueError(f"records={records}; expected at least 1")
    return _batches(make_table(corpus, table, thresholds, columns), records)[1]


def _batches(table: ExportTable, records: int) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    pa, _ = pyarrow()
    words = [None if words is None else pa.array(words, pa.string()) for words in table.columns.values()]

    def arrays(values: Sequence[NDArray[Any]]) -> Iterator[Any]:
        for array, own in zip(values, words, strict=True):
            flat = pa.array(np.ascontiguousarray(array).reshape(-1))
            if own is not None:
                yield pa.DictionaryArray.from_arrays(flat, own)
            else:
                yield flat if array.ndim == 1 else pa.FixedSizeListArray.from_arrays(flat, array.shape[1])

    types = zip(table.columns, arrays(table.values(0, 0)), strict=True)
    fields = [pa.field(name, each.type, nullable=False) for name, each in types]
    schema = pa.schema(fields, metadata={"tape2048_release": __version__})
    parts = table.parts(records)
    return schema, (pa.RecordBatch.from_arrays([*arrays(values)], schema=schema) for values in parts)


def write_arrow(
    table: ExportTable, file: BinaryIO, format_: str, compression: str, progress: Callable[[int, int], object]
) -> None:
    pa, parquet = pyarrow()
    schema, batches = _batches(table, ROW_GROUP_RECORDS if format_ == "parquet" else BATCH_RECORDS)
    if format_ == "parquet":
        sink = parquet.ParquetWriter(file, schema, compression=compression)
    else:
        options = pa.ipc.IpcWriteOptions(compression=None if compression == "none" else compression)
        sink = pa.ipc.new_file(file, schema, options=options)
    done = 0
    with sink as writer:
        for batch in batches:
            writer.write_batch(batch)
            done += batch.num_rows
            progress(done, table.records)


def write_lines(
    table: ExportTable,
    file: BinaryIO,
    progress: Callable[[int, int], object],
    *,
    format: str,  # noqa: A002 - as in export
    u64: U64 = "number",
) -> None:
    """Write JSON lines, one object per record, or CSV (RFC 4180, UTF-8), one line per record after the names.

    In CSV, a list becomes columns, ``exps_0`` to ``exps_15``; truth values are ``true`` and ``false``.
    """
    encoder, text, done = msgspec.json.Encoder(), codecs.getwriter("utf-8")(file), 0
    lines = csv.writer(text, lineterminator="\n")
    if format == "csv":
        types = zip(table.columns, table.values(0, 0), strict=True)
        names = [
            [name] if each.ndim == 1 else [f"{name}_{i}" for i in range(each.shape[1])]
            for name, each in types
        ]
        lines.writerow([name for each in names for name in each])
    for values in table.parts(LINE_RECORDS):
        columns: list[Any] = []
        for array, words in zip(values, table.columns.values(), strict=True):
            plain = _plain(array, words)
            if format == "csv" and array.ndim == 2:
                columns += zip(*plain, strict=True)
            elif format == "csv" and array.dtype == np.bool_:
                columns.append(["true" if value else "false" for value in plain])
            elif u64 == "text" and array.dtype == np.uint64 and array.ndim == 1:
                columns.append(map(str, plain))
            else:
                columns.append(plain)
        records = zip(*columns, strict=True)
        if format == "csv":
            lines.writerows(records)
        else:
            file.write(
                encoder.encode_lines([dict(zip(table.columns, each, strict=True)) for each in records])
            )
        done += len(values[0])
        progress(done, table.records)


def _plain(values: NDArray[Any], words: Sequence[str] | None) -> list[Any]:
    if values.dtype in (np.float16, np.float32):  # with the shortest digits
        values = np.array([float(str(value)) for value in values.flat]).reshape(values.shape)
    plain: list[Any] = values.tolist()
    return plain if words is None else [words[code] for code in plain]
