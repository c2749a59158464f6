"""``tape2048 export``: write rows, runs, or a summary of run files to one file for other tools."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tape2048.base.text import split_words
from tape2048.errors import NotASessionError
from tape2048.runs.registry import FORMATS, TABLE_FORMATS
from tape2048_tools.commands.runs.convert import U64
from tape2048_tools.progress.panel import progress_bar
from tape2048_tools.terminal.click_extras import (
    COLUMNS,
    EXISTING,
    exit_on_findings,
    force_option,
    json_option,
    new_command,
    out_option,
    quiet_option,
)
from tape2048_tools.terminal.display import size
from tape2048_tools.terminal.output import cell, complain_left_out, print_result, unwritten

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tape2048.runs.exports import TableName
    from tape2048.runs.run import RunSource, SkippedRun


def _tiles(_ctx: click.Context, _param: click.Parameter, value: str | None) -> tuple[int, ...]:
    from tape2048.session.run_table import check_thresholds

    if value is None:
        return ()
    words = split_words(value)
    if not all(word.isdecimal() for word in words):
        raise click.BadParameter(f"found {value!r}, expected tiles such as 8192,16384")
    try:
        return tuple(check_thresholds([int(word) for word in words]).tolist())
    except ValueError as error:
        raise click.BadParameter(f"{error}; write them as 8192,16384") from error


@new_command(
    "tape2048 export selfplay --format parquet --labels 8192,16384,32768",
    'tape2048 export selfplay --runs --format jsonl --out - --where "score >= 100000" | jq .steps',
    "tape2048 export selfplay/20260101T000000Z_model=ntuple --out rows.arrow",
    "tape2048 export selfplay --out rows.csv --with score,highest_tile,steps",
    "tape2048 export selfplay --format parquet --with loss,values --columns annotations",
    "tape2048 export traces/ --runs --out traces.csv",
)
@click.argument("sources", type=EXISTING, nargs=-1, required=True)
@click.option(
    "--format", "format_", type=click.Choice(TABLE_FORMATS),
    help="Format; parquet and arrow (Feather version 2) need the extra [arrow].  [default: by --out's name]",
)  # fmt: skip
@click.option("--rows/--runs", default=True, help="Write one record per position (default), or per game.")
@out_option(
    "The file; - is standard output (jsonl, csv).  [default: <source>.<rows|runs>.<format>]", required=False
)
@click.option(
    "--labels", metavar="TILES", callback=_tiles, help="Tiles of columns reached_<tile>, such as 8192,16384."
)
@click.option(
    "--with", "names", metavar="NAMES",
    help="Columns to add to rows, and score, highest_tile, steps, seed of the game.  [default: all columns]",
)  # fmt: skip
@COLUMNS
@click.option("--where", metavar="SQL", help="Condition on runs of sessions, such as score >= 50000.")
@click.option(
    "--compression", metavar="NAME",
    help="For parquet: zstd (default), snappy, none. For arrow: none (default), zstd, lz4.",
)  # fmt: skip
@U64
@force_option("the file")
@json_option()
@quiet_option("Print nothing, and show no progress bar.")
def command(
    *,
    sources: Sequence[Path],
    format_: str | None,
    rows: bool,
    out: Path | None,
    labels: tuple[int, ...],
    names: str | None,
    overlay: Path | None,
    where: str | None,
    compression: str | None,
    u64: Any,
    force: bool,
    as_json: bool,
    quiet: bool,
) -> None:
    """Write the rows or runs of sessions to one file for other tools.

    Each of SOURCES is a session, or a directory of sessions. The file appears when it is complete.

    With --runs, SOURCES can also be run files, directories of run files, packs or data sets. The metadata of
    a run becomes one record. Unreadable runs are left out and listed on standard error. The exit code is then
    1.

    pyarrow.json, Hugging Face datasets, jq before 1.7 and JavaScript round large seeds in jsonl: see --u64.
    """
    from tape2048.base.text import counted
    from tape2048.corpus import Corpus
    from tape2048.runs.exports import (
        check_format,
        format_of,
        make_table,
        run_file_table,
        write_lines,
        write_table,
    )

    if format_ is None and out is None:
        raise click.UsageError(f"Missing option --format ({', '.join(TABLE_FORMATS)}), or --out FILE")
    try:
        format_ = format_ or format_of(str(out))
        check_format(format_, compression, u64)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    to_stdout = out is not None and str(out) == "-"
    if to_stdout and not FORMATS[format_].is_text:
        raise click.UsageError(f"--out -: {format_} needs a file; only jsonl and csv can go to a pipe")
    table: TableName = "rows" if rows else "runs"
    skipped: list[SkippedRun] = []
    if not rows and (run_files := _open_run_files(sources)):
        if where is not None:
            raise click.UsageError("--where: found run files, expected sessions")
        with progress_bar("reading runs", quiet=quiet) as progress:
            found, skipped = run_file_table(run_files, labels, progress)
    else:
        corpus = Corpus.open(sources, where, load="mmap", columns=overlay)
        wanted = None if names is None else [name for name in split_words(names) if name]
        found = make_table(corpus, table, labels, wanted)
    complain_left_out((one.run, f"{one.error}: {one.message}") for one in skipped)
    if to_stdout:
        try:
            write_lines(found, sys.stdout.buffer, lambda _done, _total: None, format=format_, u64=u64)
            sys.stdout.buffer.flush()
        except OSError as error:
            raise unwritten(error) from error
        exit_on_findings(skipped)
        return
    path = out or Path(f"{sources[0].resolve().name or 'export'}.{table}.{format_}")
    with progress_bar(f"writing {path.name}", quiet=quiet) as progress:
        records = write_table(
            found, path, format=format_, compression=compression, u64=u64, replace=force, progress=progress
        )
    document = {"path": str(path), "format": format_, "table": table, "records": records}
    document["bytes"] = written = path.stat().st_size
    text = f"{path}: {counted(records, table.removesuffix('s'))}, {size(written)}"
    if as_json or not quiet:
        print_result(document, lambda: [cell(text)], as_json=as_json)
    exit_on_findings(skipped)


def _open_run_files(paths: Sequence[Path]) -> list[RunSource]:
    """Open run files; return an empty list for sessions, and for paths that ``Corpus.open`` rejects."""
    from tape2048.runs.conversion import open_sources
    from tape2048.runs.registry import kind_of

    are_files = {kind_of(path) not in {"session", "sessions"} for path in paths if path.exists()}
    if len(are_files) > 1:
        raise click.UsageError("some of SOURCES are sessions, and some are run files; export them separately")
    try:
        return open_sources(paths) if True in are_files else []
    except NotASessionError:
        return []
