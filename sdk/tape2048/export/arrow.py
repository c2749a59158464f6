"""Rows and runs as Arrow data, for DuckDB, pandas, Polars, Hugging Face datasets and others.

Needs pyarrow (``pip install 'tape2048[arrow]'``). :func:`record_batches` gives the data in memory. The
command ``tape2048 export`` and :func:`tape2048.export.write.export` write files.

NumPy's types are kept: ``exps`` is a fixed-size list of 16 ``uint8``, ids and seeds are ``uint64``. Session
names are dictionary-encoded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, BinaryIO

from tape2048._version import __version__
from tape2048.export.table import ExportTable, TableName, make_table
from tape2048.runs.parquet import pyarrow

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import pyarrow as pa
    from numpy.typing import NDArray

    from tape2048.corpus import Corpus

#: Records in a batch: a few megabytes.
BATCH_RECORDS = 131_072

#: Records in a row group of a Parquet file, which the writer holds in memory: 28 MB of rows.
ROW_GROUP_RECORDS = 8 * BATCH_RECORDS


def record_batches(
    corpus: Corpus,
    table: TableName = "rows",
    *,
    thresholds: Sequence[int] = (),
    columns: Sequence[str] | None = None,
    records: int = BATCH_RECORDS,
) -> Iterator[pa.RecordBatch]:
    """Return a corpus's rows or runs as Arrow record batches, in order.

    Args:
        corpus: the source. A view gives its own rows and runs.
        table: ``"rows"`` or ``"runs"``; :func:`tape2048.export.table.make_table` lists their columns.
        thresholds: tiles for which a column ``reached_<tile>`` is added.
        columns: the sessions' columns to add to rows. None: all columns that are equal in all sessions.
        records: maximum number of records in a batch.

    Yields:
        Batches, all of one schema.

    Raises:
        TypeError: ``corpus`` is not a corpus.
        ValueError: ``table`` is unknown, a threshold is invalid, or ``records`` is below 1.

    Example:
        >>> import tape2048
        >>> from tape2048.export import record_batches
        >>> batch = next(record_batches(tape2048.Corpus.open("selfplay"), "runs"))
        >>> batch.num_rows, batch.schema.names[:3]
        (200, ['session', 'player', 'run_id'])
    """
    if records < 1:
        raise ValueError(f"records={records}; expected at least 1")
    return (batch for batch, _ in _batches(make_table(corpus, table, thresholds, columns), records))


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


def write_arrow(
    table: ExportTable, file: BinaryIO, format_: str, compression: str, progress: Callable[[int, int], object]
) -> None:
    pa, parquet = pyarrow()
    records, schema = BATCH_RECORDS, _schema(table)
    if format_ == "parquet":
        records, sink = ROW_GROUP_RECORDS, parquet.ParquetWriter(file, schema, compression=compression)
    else:
        options = pa.ipc.IpcWriteOptions(compression=None if compression == "none" else compression)
        sink = pa.ipc.new_file(file, schema, options=options)
    with sink as writer:
        for batch, done in _batches(table, records):
            writer.write_batch(batch)
            progress(done, table.records)


def _batches(table: ExportTable, records: int) -> Iterator[tuple[pa.RecordBatch, int]]:
    pa, _ = pyarrow()
    dictionaries = [None if column.words is None else pa.array(column.words) for column in table.columns]
    fields = _schema(table)
    done = 0
    for values in table.stretches(records):
        arrays = [_arrow_array(array, words) for array, words in zip(values, dictionaries, strict=True)]
        done += len(values[0])
        yield pa.RecordBatch.from_arrays(arrays, schema=fields), done


def _arrow_array(values: NDArray[Any], dictionary: pa.Array | None) -> pa.Array:
    """Wrap values without a copy, except booleans, which Arrow packs."""
    pa, _ = pyarrow()
    if dictionary is not None:
        return pa.DictionaryArray.from_arrays(pa.array(values), dictionary)
    if values.ndim == 2:
        return pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), values.shape[1])
    return pa.array(values)
