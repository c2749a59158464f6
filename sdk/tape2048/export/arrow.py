"""Rows and runs for whoever reads Parquet or Arrow: DuckDB, pandas, Polars, Hugging Face datasets.

Needs pyarrow (``pip install 'tape2048[arrow]'``). :func:`record_batches` gives the data in memory; the
command ``tape2048 export`` and :func:`tape2048.export.write.export` write files.

Types stay what they are: ``exps`` is a list of fixed size 16 of ``uint8``, ids and seeds are ``uint64``.
The names of sessions are a dictionary, which costs next to nothing in a file however often each comes up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, BinaryIO

try:
    import pyarrow as pa
except ModuleNotFoundError as error:
    if error.name != "pyarrow":  # it is there, and lacks something itself
        raise
    raise ModuleNotFoundError(
        "tape2048.export needs pyarrow, which is not installed: pip install 'tape2048[arrow]'",
        name="pyarrow",
    ) from error

from tape2048.export.table import make_table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from tape2048.corpus import Corpus
    from tape2048.export.table import Column, Table, TableName

__all__ = ["record_batches", "schema", "write_arrow", "write_parquet"]

#: Records in a batch: a few megabytes, whatever there is to export.
BATCH_RECORDS = 131_072

#: Records in a row group of a Parquet file, which its writer holds in memory: 28 MB of rows.
ROW_GROUP_RECORDS = 8 * BATCH_RECORDS


def record_batches(
    corpus: Corpus,
    table: TableName = "rows",
    *,
    thresholds: Sequence[int] = (),
    records: int = BATCH_RECORDS,
) -> Iterator[pa.RecordBatch]:
    """A corpus's rows or runs as Arrow record batches, in order.

    Args:
        corpus: what to take them from; a view gives the rows and runs of the view.
        table: ``"rows"`` or ``"runs"``; :func:`tape2048.export.table.make_table` lists their columns.
        thresholds: tiles for which a column ``reached_<tile>`` is added.
        records: most records in a batch.

    Yields:
        Batches, all of one schema.

    Raises:
        TypeError: no corpus.
        ValueError: an unknown table, thresholds that are no tiles, or less than one record.
    """
    if records < 1:
        raise ValueError(f"records={records}; expected at least 1")
    return _batches(make_table(corpus, table, thresholds), records)


def schema(table: Table) -> pa.Schema:
    """The Arrow schema of a table; no value is null."""
    return pa.schema([pa.field(column.name, _arrow_type(column), nullable=False) for column in table.columns])


def write_parquet(
    table: Table, file: BinaryIO, compression: str, progress: Callable[[int, int], object]
) -> None:
    """Write a Parquet file, row group by row group; ``progress`` gets the records done and all records."""
    from pyarrow import parquet

    done = 0
    with parquet.ParquetWriter(file, schema(table), compression=compression) as writer:
        for batch in _batches(table, ROW_GROUP_RECORDS):
            writer.write_batch(batch, row_group_size=ROW_GROUP_RECORDS)
            done += batch.num_rows
            progress(done, table.records)


def write_arrow(
    table: Table, file: BinaryIO, compression: str, progress: Callable[[int, int], object]
) -> None:
    """Write an Arrow IPC file (Feather version 2), batch by batch; else as :func:`write_parquet`."""
    options = pa.ipc.IpcWriteOptions(compression=None if compression == "none" else compression)
    done = 0
    with pa.ipc.new_file(file, schema(table), options=options) as writer:
        for batch in _batches(table, BATCH_RECORDS):
            writer.write_batch(batch)
            done += batch.num_rows
            progress(done, table.records)


def _batches(table: Table, records: int) -> Iterator[pa.RecordBatch]:
    dictionaries = [None if column.words is None else pa.array(column.words) for column in table.columns]
    fields = schema(table)
    for values in table.stretches(records):
        arrays = [
            _arrow_array(array, dictionary) for array, dictionary in zip(values, dictionaries, strict=True)
        ]
        yield pa.RecordBatch.from_arrays(arrays, schema=fields)


def _arrow_type(column: Column) -> pa.DataType:
    if column.words is not None:
        return pa.dictionary(pa.int32(), pa.string())
    scalar = pa.from_numpy_dtype(column.dtype)
    return scalar if column.width is None else pa.list_(scalar, column.width)


def _arrow_array(values: NDArray[Any], dictionary: pa.Array | None) -> pa.Array:
    """The values without a copy, but for booleans, which Arrow packs."""
    if dictionary is not None:
        return pa.DictionaryArray.from_arrays(pa.array(values), dictionary)
    if values.ndim == 2:
        return pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), values.shape[1])
    return pa.array(values)
