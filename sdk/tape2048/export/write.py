"""Writer of a table (a corpus's rows or runs, or run files) to one file: Parquet, Arrow, JSON lines or CSV.

Memory is bounded by a row group of a million records. The file appears under its name when it is complete,
and replaces another one only with ``replace``. Parquet and Arrow need pyarrow
(``pip install 'tape2048[arrow]'``).
"""

from __future__ import annotations

import csv
import importlib.util
import io
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, TypeAlias

import msgspec
import numpy as np

from tape2048.errors import MissingPackageError
from tape2048.export.table import make_table
from tape2048.io.durable import publishing_file

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from tape2048.corpus import Corpus
    from tape2048.export.table import Column, Table, TableName
    from tape2048.runs.jsonl import U64

#: Formats of the file.
Format: TypeAlias = Literal["parquet", "arrow", "jsonl", "csv"]

#: The compressions of each format, the default first. An uncompressed Arrow file can be mapped.
COMPRESSIONS = {
    "parquet": ("zstd", "snappy", "none"),
    "arrow": ("none", "zstd", "lz4"),
    "jsonl": ("none",),
    "csv": ("none",),
}

#: Records encoded as lines together: as Python objects they take some ten megabytes.
LINE_RECORDS = 16_384


def export(
    corpus: Corpus,
    path: str | os.PathLike[str],
    *,
    format: Format,  # noqa: A002 - the usual name
    table: TableName = "rows",
    thresholds: Sequence[int] = (),
    compression: str | None = None,
    u64: U64 = "number",
    replace: bool = False,
    progress: Callable[[int, int], object] | None = None,
) -> int:
    """Write a corpus's rows or runs to a file.

    Args:
        corpus: the source; a view gives its own rows and runs.
        path: of the new file.
        format: ``"parquet"``, ``"arrow"`` (IPC file, Feather version 2), ``"jsonl"`` or ``"csv"``.
        table: ``"rows"`` (``session, run_id, step_idx, exps``, and ``action`` where every session has it) or
            ``"runs"`` (``session, run_id, seed, steps, max_score, highest_tile, rows``).
        thresholds: tiles for which a column ``reached_<tile>`` is added.
        compression: one of :data:`COMPRESSIONS` of the format; by default the first of them.
        u64: in JSON lines, ids and seeds as ``"number"``, or as ``"text"``; see :func:`write_jsonl`.
        replace: whether to replace an existing file.
        progress: called with the number of records written and of all records.

    Returns:
        Number of records.

    Raises:
        MissingPackageError: Parquet or Arrow without pyarrow.
        NameTakenError: the file exists.
        CorpusError: mapped rows were truncated since the corpus was opened.
        StorageError: the operating system refused something.
        TypeError: ``corpus`` is no corpus.
        ValueError: an unknown format, table or compression, invalid thresholds, or ``u64`` of another format.

    Example:
        >>> import tape2048
        >>> from tape2048.export import export
        >>> export(tape2048.Corpus.open("selfplay"), "runs.jsonl", format="jsonl", table="runs")
        200
    """
    records = make_table(corpus, table, thresholds)
    return write_table(
        records, path, format=format, compression=compression, u64=u64, replace=replace, progress=progress
    )


def write_table(
    table: Table,
    path: str | os.PathLike[str],
    *,
    format: Format,  # noqa: A002 - the usual name
    compression: str | None = None,
    u64: U64 = "number",
    replace: bool = False,
    progress: Callable[[int, int], object] | None = None,
) -> int:
    """Write a table to a file; return the number of records.

    Args:
        table: from :func:`tape2048.export.table.make_table` or :func:`tape2048.export.table.run_file_table`.
        path: as for :func:`export`, with the other arguments and the errors.
        format: of the file.
        compression: of the format.
        u64: of JSON lines.
        replace: whether to replace an existing file.
        progress: called with the number of records written and of all records.

    Example:
        >>> from tape2048.conversion import open_source
        >>> from tape2048.export import run_file_table, write_table
        >>> write_table(run_file_table([open_source("runs")])[0], "summary.csv", format="csv")
        2
    """
    how = _compression(format, compression)
    if u64 != "number" and (u64 != "text" or format != "jsonl"):
        raise ValueError(f"u64={u64!r} of {format}; expected 'number', or in jsonl 'text'")
    report = progress or (lambda _done, _total: None)
    if format in {"jsonl", "csv"}:
        with publishing_file(path, replace=replace) as file:
            write_lines(table, file, report, format=format, u64=u64)
        return table.records
    if importlib.util.find_spec("pyarrow") is None:
        raise MissingPackageError(
            f"{format} files need pyarrow, which is not installed", hint="pip install 'tape2048[arrow]'"
        )
    from tape2048.export import arrow

    write = arrow.write_parquet if format == "parquet" else arrow.write_arrow
    with publishing_file(path, replace=replace) as file:
        write(table, file, how, report)
    return table.records


def write_lines(
    table: Table,
    file: BinaryIO,
    progress: Callable[[int, int], object],
    *,
    format: Format,  # noqa: A002 - as in export
    u64: U64 = "number",
) -> None:
    """Write JSON lines or CSV, as :func:`write_jsonl` and :func:`write_csv`."""
    if format == "csv":
        write_csv(table, file, progress)
    else:
        write_jsonl(table, file, progress, u64)


def write_jsonl(
    table: Table, file: BinaryIO, progress: Callable[[int, int], object], u64: U64 = "number"
) -> None:
    """Write one JSON object a line.

    Ids and seeds are integers below 2**64, which some readers round: :mod:`tape2048.runs.jsonl` names them.
    As text, every reader has all digits.

    Args:
        table: from :func:`tape2048.export.table.make_table`.
        file: a binary file, open for writing.
        progress: called with the number of records written and of all records.
        u64: columns of 64 bits as ``"number"`` or as ``"text"``.

    Example:
        >>> import io, tape2048
        >>> from tape2048.export import write_jsonl
        >>> from tape2048.export.table import make_table
        >>> write_jsonl(make_table(tape2048.Corpus.open("selfplay"), "runs"), io.BytesIO(), print)
        200 200
    """
    encoder = msgspec.json.Encoder()
    names = [column.name for column in table.columns]
    as_text = [u64 == "text" and column.dtype == np.uint64 for column in table.columns]
    for columns, done in _plain_columns(table):
        texts = (list(map(str, c)) if text else c for c, text in zip(columns, as_text, strict=True))
        records = [dict(zip(names, record, strict=True)) for record in zip(*texts, strict=True)]
        file.write(encoder.encode_lines(records))
        progress(done, table.records)


def write_csv(table: Table, file: BinaryIO, progress: Callable[[int, int], object]) -> None:
    """Write comma-separated values (RFC 4180, UTF-8): a line of names, then one line a record.

    A list becomes columns, ``exps_0`` to ``exps_15``. Truth values are ``true`` and ``false``. Lines end with
    a line feed alone.

    Args:
        table: from :func:`tape2048.export.table.make_table`.
        file: a binary file, open for writing.
        progress: called with the number of records written and of all records.

    Example:
        >>> import io, tape2048
        >>> from tape2048.export import write_csv
        >>> from tape2048.export.table import make_table
        >>> write_csv(make_table(tape2048.Corpus.open("selfplay"), "runs"), io.BytesIO(), print)
        200 200
    """
    names = [
        name
        for column in table.columns
        for name in ([column.name] if column.width is None else _numbered(column.name, column.width))
    ]
    file.write(_csv_lines([names]))
    for columns, done in _plain_columns(table):
        flat: list[Any] = []
        for values, column in zip(columns, table.columns, strict=True):
            if column.width is not None:
                flat += zip(*values, strict=True)
            elif column.dtype == np.bool_:
                flat.append(["true" if value else "false" for value in values])
            else:
                flat.append(values)
        file.write(_csv_lines(zip(*flat, strict=True)))
        progress(done, table.records)


def _numbered(name: str, count: int) -> list[str]:
    return [f"{name}_{i}" for i in range(count)]


def _csv_lines(records: Iterable[Iterable[Any]]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(records)
    return text.getvalue().encode()


def _plain_columns(table: Table) -> Iterator[tuple[list[list[Any]], int]]:
    """Yield stretches of a table as Python objects, each with the number of records up to its end."""
    done = 0
    for values in table.stretches(LINE_RECORDS):
        done += len(values[0])
        yield [_plain(array, column) for array, column in zip(values, table.columns, strict=True)], done


def _plain(values: NDArray[Any], column: Column) -> list[Any]:
    """Convert values to Python objects, and codes to words; a float32 has its shortest digits."""
    if column.dtype == np.float32:
        return [float(str(value)) for value in values]
    plain: list[Any] = values.tolist()
    return plain if column.words is None else [column.words[code] for code in plain]


def _compression(format_: str, compression: str | None) -> str:
    if format_ not in COMPRESSIONS:
        raise ValueError(f"format {format_!r}; expected one of {tuple(COMPRESSIONS)}")
    known = COMPRESSIONS[format_]
    if compression is not None and compression not in known:
        raise ValueError(f"compression {compression!r} of {format_}; expected one of {known}")
    return compression or known[0]


def default_path(source: Path, table: TableName, format_: Format) -> Path:
    """Return a path in the current directory, named after the source, the table and the format."""
    return Path(f"{Path(source).resolve().name or 'export'}.{table}.{format_}")
