"""``tape2048 export``: write rows or runs to one file for other tools."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from tape2048_tools.terminal.click_extras import (
    EXISTING,
    PATH,
    force_option,
    json_option,
    new_command,
    quiet_option,
)
from tape2048_tools.terminal.display import size
from tape2048_tools.terminal.output import cell, print_human, print_json, unwritten
from tape2048_tools.views.opening import progress_bar

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tape2048.corpus import Corpus
    from tape2048.export.table import TableName
    from tape2048.export.write import Format

#: The value of ``--output`` for standard output.
_STDOUT = "-"


def _tiles(_ctx: click.Context, _param: click.Parameter, value: str | None) -> tuple[int, ...]:
    """Parse ``8192,16384``."""
    from tape2048.session.labels import check_thresholds

    if value is None:
        return ()
    words = value.split(",")
    if not all(word.strip().isdecimal() for word in words):
        raise click.BadParameter(f"found {value!r}, expected tiles separated by commas, as 8192,16384")
    try:
        return tuple(check_thresholds([int(word) for word in words]).tolist())
    except ValueError as error:
        raise click.BadParameter(f"{error}; write them as 8192,16384") from error


@new_command(
    "tape2048 export selfplay --format parquet --labels 8192,16384,32768",
    'tape2048 export selfplay --runs --format jsonl --output - --where "max_score >= 100000" | jq .steps',
    "tape2048 export selfplay/20260101T000000Z_model=ntuple --format arrow --output rows.arrow",
)
@click.argument("sources", type=EXISTING, nargs=-1, required=True)
@click.option(
    "--format",
    "format_",
    type=click.Choice(["parquet", "arrow", "jsonl"]),
    required=True,
    help="Format of the file; parquet and arrow (Feather version 2) need the extra [arrow].",
)
@click.option("--rows/--runs", default=True, help="Write one record a position (default), or a game.")
@click.option(
    "--output",
    "-o",
    type=PATH,
    help="The file to write; - is standard output (jsonl).  [default: <source>.<rows|runs>.<format>]",
)
@click.option("--labels", metavar="TILES", callback=_tiles, help="Add columns reached_<tile>, as 8192,16384.")
@click.option("--where", metavar="SQL", help="Condition on runs, such as max_score >= 50000.")
@click.option(
    "--compression", metavar="NAME", help="parquet: zstd (default), snappy, none; arrow: none, zstd, lz4."
)
@force_option("the file")
@json_option()
@quiet_option("Print nothing, and show no progress bar.")
def command(
    *,
    sources: Sequence[Path],
    format_: Format,
    rows: bool,
    output: Path | None,
    labels: tuple[int, ...],
    where: str | None,
    compression: str | None,
    force: bool,
    as_json: bool,
    quiet: bool,
) -> None:
    """Write the rows or runs of sessions to one file for other tools.

    Each of SOURCES is a session, or a directory of sessions. The file appears when it is complete.
    """
    from tape2048.base.text import counted
    from tape2048.corpus import Corpus
    from tape2048.export.write import COMPRESSIONS, default_path, export

    if compression is not None and compression not in COMPRESSIONS[format_]:
        raise click.UsageError(
            f"--compression {compression}: {format_} supports {', '.join(COMPRESSIONS[format_])}"
        )
    to_stdout = output is not None and str(output) == _STDOUT
    if to_stdout and format_ != "jsonl":
        raise click.UsageError(f"--output -: {format_} needs a file; only jsonl can go to a pipe")
    table: TableName = "rows" if rows else "runs"
    corpus = Corpus.open(sources, where, load="mmap")
    if to_stdout:
        _to_stdout(corpus, table, labels)
        return
    path = default_path(sources[0], table, format_) if output is None else output
    with progress_bar(f"writing {path.name}", quiet=quiet) as progress:
        records = export(
            corpus,
            path,
            format=format_,
            table=table,
            thresholds=labels,
            compression=compression,
            replace=force,
            progress=progress,
        )
    written = path.stat().st_size
    if as_json:
        kind = {"format": format_, "table": table}
        print_json({"path": str(path), **kind, "records": records, "bytes": written})
    elif not quiet:
        print_human(cell(f"{path}: {counted(records, table.removesuffix('s'))}, {size(written)}"))


def _to_stdout(corpus: Corpus, table: TableName, labels: tuple[int, ...]) -> None:
    from tape2048.export.table import make_table
    from tape2048.export.write import write_jsonl

    try:
        write_jsonl(make_table(corpus, table, labels), sys.stdout.buffer, lambda _done, _total: None)
        sys.stdout.buffer.flush()
    except OSError as error:
        raise unwritten(error) from error
