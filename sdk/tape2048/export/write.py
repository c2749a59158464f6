"""Writer of a table (a corpus's rows or runs, or run files) to one file: Parquet, Arrow, JSON lines or CSV.

Memory is bounded by a row group of a million records. The file appears under its name when it is complete,
and replaces another one only with ``replace``. Parquet and Arrow need pyarrow
(``pip install 'tape2048[arrow]'``).
"""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import msgspec
import numpy as np

from tape2048.export.arrow import write_arrow
from tape2048.export.table import ExportColumn, ExportTable, TableName, make_table
from tape2048.files.durable import publishing_file
from tape2048.formats.registry import FORMATS, TABLE_FORMATS
from tape2048.runs.parquet import pyarrow

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Sequence

    from numpy.typing import NDArray

    from tape2048.corpus import Corpus
    from tape2048.runs.jsonl import U64

#: Records encoded as lines together: as Python objects they take some ten megabytes.
LINE_RECORDS = 16_384


def export(
    corpus: Corpus,
    path: str | os.PathLike[str],
    *,
    format: str,  # noqa: A002 - the usual name
    table: TableName = "rows",
    thresholds: Sequence[int] = (),
    columns: Sequence[str] | None = None,
    compression: str | None = None,
    u64: U64 = "number",
    replace: bool = False,
    progress: Callable[[int, int], object] | None = None,
) -> int:
    """Write a corpus's rows or runs to a file.

    Args:
        corpus: the source. A view gives its own rows and runs.
        path: the new file.
        format: ``"parquet"``, ``"arrow"`` (IPC file, Feather version 2), ``"jsonl"`` or ``"csv"``.
        table: ``"rows"`` (``session, run_id, step_idx, exps``, and ``action`` where every session has it) or
            ``"runs"`` (``session, player, run_id, seed, steps, max_score, highest_tile, rows``).
        thresholds: tiles for which a column ``reached_<tile>`` is added.
        columns: the sessions' columns to add to rows. None: all columns that are equal in all sessions.
        compression: a compression that :data:`tape2048.formats.registry.FORMATS` lists for the format; by
            default the first.
        u64: in JSON lines, ids and seeds as ``"number"``, or as ``"text"``; see :mod:`tape2048.runs.jsonl`.
        replace: whether to replace an existing file.
        progress: function that is called with the number of records written and of all records.

    Returns:
        Number of records.

    Raises:
        MissingPackageError: Parquet or Arrow without pyarrow.
        NameTakenError: the file exists.
        CorpusError: mapped rows were truncated since the corpus was opened.
        StorageError: the operating system could not read rows or write the file.
        TypeError: ``corpus`` is not a corpus.
        ValueError: ``format``, ``table`` or ``compression`` is unknown, a threshold is invalid, or the format
            has no option ``u64``.

    Example:
        >>> import tape2048
        >>> from tape2048.export import export
        >>> export(tape2048.Corpus.open("selfplay"), "runs.jsonl", format="jsonl", table="runs")
        200
    """
    records = make_table(corpus, table, thresholds, columns)
    return write_table(
        records, path, format=format, compression=compression, u64=u64, replace=replace, progress=progress
    )


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
        table: from :func:`tape2048.export.table.make_table` or :func:`tape2048.export.table.run_file_table`.
        path: the new file; errors as for :func:`export`.
        format: format of the file, as for :func:`export`.
        compression: compression of the file, as for :func:`export`.
        u64: form of ids and seeds in JSON lines, as for :func:`export`.
        replace: whether to replace an existing file.
        progress: function that is called with the number of records written and of all records.

    Example:
        >>> from tape2048.conversion import open_source
        >>> from tape2048.export import run_file_table, write_table
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
    encoder = msgspec.json.Encoder()
    as_text = [u64 == "text" and each.dtype == np.uint64 and each.width is None for each in table.columns]
    names = [column.name for column in table.columns]
    if format == "csv":
        wide = [column for column in table.columns if column.width is not None]
        numbered = {column.name: [f"{column.name}_{i}" for i in range(column.width or 0)] for column in wide}
        file.write(_csv_lines([[each for name in names for each in numbered.get(name, [name])]]))
    done = 0
    for values in table.stretches(LINE_RECORDS):
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
            written = [list(map(str, c)) if text else c for c, text in zip(columns, as_text, strict=True)]
            records = [dict(zip(names, record, strict=True)) for record in zip(*written, strict=True)]
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
