"""Write a corpus's rows or runs to one file for other tools: Parquet, Arrow, or JSON lines.

Memory is bounded by a row group of a million records, however much there is. The file appears under its name
when it is whole, and replaces nothing unless asked to. Parquet and Arrow need pyarrow
(``pip install 'tape2048[arrow]'``); JSON lines need nothing.
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

__all__ = ["COMPRESSIONS", "Format", "default_path", "export", "write_jsonl"]

#: How the file is written.
Format: TypeAlias = Literal["parquet", "arrow", "jsonl"]

#: What compression each can have, the default first. An Arrow file without any can be mapped as it is.
COMPRESSIONS = {"parquet": ("zstd", "snappy", "none"), "arrow": ("none", "zstd", "lz4"), "jsonl": ("none",)}

#: Records that become lines together: Python's objects for them take some ten megabytes.
JSONL_RECORDS = 16_384


def export(
    corpus: Corpus,
    path: str | os.PathLike[str],
    *,
    format: Format,  # noqa: A002 - what everybody calls it
    table: TableName = "rows",
    thresholds: Sequence[int] = (),
    compression: str | None = None,
    replace: bool = False,
    progress: Callable[[int, int], object] | None = None,
) -> int:
    """Write a file.

    Args:
        corpus: what to write; of a view, its rows and runs alone.
        path: the file to be.
        format: ``"parquet"``, ``"arrow"`` (IPC file, Feather version 2) or ``"jsonl"``.
        table: ``"rows"`` (``session, run_id, step_idx, exps``, and ``action`` where recorded) or
            ``"runs"`` (``session, run_id, seed, steps, max_score, highest_tile, rows``).
        thresholds: tiles for which a column ``reached_<tile>`` is added.
        compression: one of :data:`COMPRESSIONS` of the format; by default the first of them.
        replace: whether a file of this name gives way.
        progress: called with the records written and all records.

    Returns:
        Number of records.

    Raises:
        MissingPackageError: Parquet or Arrow without pyarrow.
        NameTakenError: the file exists.
        RowsGoneError: mapped rows were truncated since the corpus was opened.
        StorageError: it cannot be written.
        TypeError: no corpus.
        ValueError: an unknown format, table or compression, or thresholds that are no tiles.
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
    """Write one JSON object a line; ``progress`` gets the records done and all records."""
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
    """The values as Python's own, words for codes."""
    plain: list[Any] = values.tolist()
    return plain if column.words is None else [column.words[code] for code in plain]


def _compression(format_: str, compression: str | None) -> str:
    if format_ not in COMPRESSIONS:
        raise ValueError(f"format {format_!r}; expected one of {tuple(COMPRESSIONS)}")
    known = COMPRESSIONS[format_]
    if compression is None:
        return known[0]
    if compression not in known:
        raise ValueError(f"compression {compression!r} of {format_}; expected one of {known}")
    return compression


def default_path(source: Path, table: TableName, format_: Format) -> Path:
    """A name for a file in the current directory: the source's, the table's and the format's."""
    return Path(f"{Path(source).resolve().name or 'export'}.{table}.{format_}")
