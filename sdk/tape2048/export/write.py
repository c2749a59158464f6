"""Writer of a corpus's rows or runs to one file for other tools: Parquet, Arrow, or JSON lines.

Memory is bounded by a row group of a million records. The file appears under its name when it is complete,
and replaces another one only with ``replace``. Parquet and Arrow need pyarrow
(``pip install 'tape2048[arrow]'``).
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, TypeAlias

import msgspec

from tape2048.errors import MissingPackageError
from tape2048.export.table import make_table
from tape2048.io.durable import publishing_file

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from tape2048.corpus import Corpus
    from tape2048.export.table import Column, Table, TableName

#: Formats of the file.
Format: TypeAlias = Literal["parquet", "arrow", "jsonl"]

#: The compressions of each format, the default first. An uncompressed Arrow file can be mapped.
COMPRESSIONS = {"parquet": ("zstd", "snappy", "none"), "arrow": ("none", "zstd", "lz4"), "jsonl": ("none",)}

#: Records encoded as lines together: as Python objects they take some ten megabytes.
JSONL_RECORDS = 16_384


def export(
    corpus: Corpus,
    path: str | os.PathLike[str],
    *,
    format: Format,  # noqa: A002 - the usual name
    table: TableName = "rows",
    thresholds: Sequence[int] = (),
    compression: str | None = None,
    replace: bool = False,
    progress: Callable[[int, int], object] | None = None,
) -> int:
    """Write a corpus's rows or runs to a file.

    Args:
        corpus: the source; a view gives its own rows and runs.
        path: of the new file.
        format: ``"parquet"``, ``"arrow"`` (IPC file, Feather version 2) or ``"jsonl"``.
        table: ``"rows"`` (``session, run_id, step_idx, exps``, and ``action`` where recorded) or
            ``"runs"`` (``session, run_id, seed, steps, max_score, highest_tile, rows``).
        thresholds: tiles for which a column ``reached_<tile>`` is added.
        compression: one of :data:`COMPRESSIONS` of the format; by default the first of them.
        replace: whether to replace an existing file.
        progress: called with the number of records written and of all records.

    Returns:
        Number of records.

    Raises:
        MissingPackageError: Parquet or Arrow without pyarrow.
        NameTakenError: the file exists.
        RowsGoneError: mapped rows were truncated since the corpus was opened.
        StorageError: the operating system refused something.
        TypeError: ``corpus`` is no corpus.
        ValueError: an unknown format, table or compression, or invalid thresholds.

    Example:
        >>> import tape2048
        >>> from tape2048.export import export
        >>> export(tape2048.Corpus.open("selfplay"), "runs.jsonl", format="jsonl", table="runs")
        200
    """
    how = _compression(format, compression)
    records = make_table(corpus, table, thresholds)
    report = progress or (lambda _done, _total: None)
    if format == "jsonl":
        with publishing_file(path, replace=replace) as file:
            write_jsonl(records, file, report)
        return records.records
    if importlib.util.find_spec("pyarrow") is None:
        raise MissingPackageError(
            f"{format} files need pyarrow, which is not installed", hint="pip install 'tape2048[arrow]'"
        )
    from tape2048.export import arrow

    write = arrow.write_parquet if format == "parquet" else arrow.write_arrow
    with publishing_file(path, replace=replace) as file:
        write(records, file, how, report)
    return records.records


def write_jsonl(table: Table, file: BinaryIO, progress: Callable[[int, int], object]) -> None:
    """Write one JSON object a line.

    Args:
        table: from :func:`tape2048.export.table.make_table`.
        file: a binary file, open for writing.
        progress: called with the number of records written and of all records.

    Example:
        >>> import io, tape2048
        >>> from tape2048.export import write_jsonl
        >>> from tape2048.export.table import make_table
        >>> write_jsonl(make_table(tape2048.Corpus.open("selfplay"), "runs"), io.BytesIO(), print)
        200 200
    """
    encoder = msgspec.json.Encoder()
    names = [column.name for column in table.columns]
    done = 0
    for values in table.stretches(JSONL_RECORDS):
        columns = [_plain(array, column) for array, column in zip(values, table.columns, strict=True)]
        records = [dict(zip(names, record, strict=True)) for record in zip(*columns, strict=True)]
        file.write(encoder.encode_lines(records))
        done += len(records)
        progress(done, table.records)


def _plain(values: NDArray[Any], column: Column) -> list[Any]:
    """Convert values to Python objects, and codes to words."""
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
