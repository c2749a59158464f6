"""``tape2048 dataset``: build, extend, describe, filter and check data sets."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import click
import msgspec

from tape2048.base.text import counted, printable
from tape2048.errors import EmptyCorpusError, NotASessionError
from tape2048.files.reading import reading
from tape2048.runs.dataset import Built, Dataset, append_dataset, build_dataset, write_view
from tape2048.session.directory import is_packdat
from tape2048_tools.commands.runs.convert import LOSSY, WRITING, complain_missing
from tape2048_tools.commands.sessions.show import quantiles_table, tiles_table
from tape2048_tools.progress.panel import progress_bar
from tape2048_tools.sessions.summary import distribution
from tape2048_tools.terminal.click_extras import (
    EXISTING,
    exit_on_findings,
    int_option,
    json_option,
    new_group,
    options,
    out_option,
    quiet_option,
)
from tape2048_tools.terminal.display import number, size
from tape2048_tools.terminal.output import (
    cell,
    columns,
    copies_note,
    finding,
    normalised_note,
    print_result,
    table,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from rich.console import RenderableType


_DATASET = click.argument("dataset", type=EXISTING)
_SOURCES = click.argument("sources", type=EXISTING, nargs=-1, required=True)
_SHARD_ROWS = int_option(
    "--shard-rows", "Write files of N rows instead of one steps.npy. Appending then copies no rows.", least=1
)
_BUILD_OPTIONS = options(LOSSY, WRITING)


@new_group(
    "tape2048 dataset build runs/ more.a2pack --out ds",
    "tape2048 dataset append ds selfplay/",
    "tape2048 dataset stats ds",
    "tape2048 dataset filter ds --min-score 50000 --out strong",
    "tape2048 dataset verify ds",
)
def command() -> None:
    """Build, extend, filter and check data sets: all steps in one array, and the runs in SQLite.

    SOURCES are run files, directories of run files, packs, pack.dat, data sets, sessions or directories of
    sessions. Games of sessions are replayed, as by `tape2048 convert`.
    """


@command.subcommand("tape2048 dataset build selfplay/ old.a2pack --out ds --shard-rows 100000000")
@_SOURCES
@out_option("The new data set.", "DIR")
@_SHARD_ROWS
@_BUILD_OPTIONS
def build(*, out: Path, shard_rows: int | None, **how: Any) -> None:
    """Build a data set from every run in SOURCES.

    Copies of a game are left out and counted. Runs that are unreadable or do not fit are left out and listed
    on standard error. The exit code is then 1, or 3 if no run is left. The data set appears when it is
    complete.
    """
    _build("building", build_dataset, out, shard_rows=shard_rows, **how)


@command.subcommand("tape2048 dataset append ds selfplay/ --json")
@_DATASET
@_SOURCES
@_BUILD_OPTIONS
def append(*, dataset: Path, **how: Any) -> None:
    """Add every run in SOURCES to a data set.

    Games that the data set holds are left out and counted. The ids of new runs continue after the highest id.
    Readers see the old data set or the new one, even after a kill. Like `build`, this leaves out unreadable
    runs and then exits with 1.
    """
    _build("appending", append_dataset, dataset, **how)


def _build(
    label: str, build: Callable[..., Built], path: Path, *, as_json: bool, quiet: bool, **how: Any
) -> None:
    from tape2048_recorder.replay.replay import replayer

    with progress_bar(label, quiet=quiet) as bar:
        progress = None if bar is None else lambda done, total, _steps: bar(done, total)
        built = build(path, replayer=replayer, progress=progress, **how)
    complain_missing(built.lost, built.skipped)
    text = f"{printable(built.path)}: {counted(built.runs, 'run')}, {counted(built.steps, 'row')} added"
    text += normalised_note(built.normalised) + copies_note(built.copies)
    if built.skipped:
        text += f"; {counted(len(built.skipped), 'run')} left out"
    print_result(msgspec.to_builtins(built), lambda: [text], as_json=as_json)
    exit_on_findings(built.skipped)


@command.subcommand("tape2048 dataset stats ds --json | jq .score.p50")
@_DATASET
@json_option()
def stats(*, dataset: Path, as_json: bool) -> None:
    """Show a data set: counts, scores, lengths, tiles, sources.

    This reads the run table, and no rows.
    """
    opened = Dataset.open(dataset, load="mmap")
    path, manifest = opened.paths[0], msgspec.to_builtins(opened.manifests[0]) or {}
    document: dict[str, Any] = {
        "path": str(path),
        "rows": len(opened),
        "runs": len(opened.runs),
        "bytes": sum(part.stat().st_size for part in (path, *path.rglob("*")) if part.is_file()),
        **{key: manifest.get(key) for key in ("created", "updated")},
        **distribution(opened.runs),
        "engines": Counter(name or "" for name in opened.run_table.engine_names()),
        **{key: manifest.get(key, []) for key in ("sources", "skipped")},
    }
    print_result(document, lambda: _stats_parts(document), as_json=as_json)


def _stats_parts(document: dict[str, Any]) -> list[RenderableType]:
    facts = {name: number(document[name]) for name in ("rows", "runs")} | {"size": size(document["bytes"])}
    facts |= {name: document[name] or "-" for name in ("created", "updated")}
    facts["left out"] = counted(len(document["skipped"]), "run")
    found: list[RenderableType] = [cell(document["path"], "bold"), columns(facts)]
    if document["runs"]:
        engines = table("engine", ">runs")
        for name, count in document["engines"].most_common():
            engines.add_row(cell(name or "(none)"), number(count))
        found += ["", quantiles_table(document), "", tiles_table(document), "", engines]
    if document["sources"]:
        sources = table("source", "kind", ">runs", ">rows", ">left out")
        for source in document["sources"]:
            numbers = (number(source[key]) for key in ("runs", "steps", "skipped"))
            sources.add_row(cell(source["path"]), source["kind"], *numbers)
        found += ["", sources]
    return found


@command.subcommand(
    "tape2048 dataset filter ds --engine expectimax --since 2026-01-01 --out recent", name="filter"
)
@_DATASET
@click.option("--min-score", type=int, metavar="N", help="Runs with at least this score.")
@click.option("--max-score", type=int, metavar="N", help="Runs with at most this score.")
@click.option("--min-steps", type=int, metavar="N", help="Runs of at least N steps.")
@click.option("--max-steps", type=int, metavar="N", help="Runs of at most N steps.")
@click.option("--min-highest-tile", type=int, metavar="TILE", help="Runs that reached TILE, such as 8192.")
@click.option("--max-highest-tile", type=int, metavar="TILE", help="Runs whose highest tile is at most TILE.")
@click.option("--engine", "model", multiple=True, metavar="NAME", help="Runs of this engine (repeatable).")
@click.option("--since", metavar="TIME", help="Runs that started at TIME or later (ISO 8601; UTC).")
@click.option("--until", metavar="TIME", help="Runs that started before TIME.")
@out_option("Write the runs as a data set.", "DIR", required=False)
@_SHARD_ROWS
@json_option()
@quiet_option()
def filter_(
    *, dataset: Path, out: Path | None, shard_rows: int | None, as_json: bool, quiet: bool, **filters: Any
) -> None:
    """Count the selected runs, or write them as a data set.

    A run must meet all conditions. Bounds are inclusive, except --until. If no run is left, --out writes
    nothing and exits with 3.
    """
    whole = Dataset.open(dataset, load="mmap")
    runs = rows = 0
    try:
        chosen = whole.where(**{name: value for name, value in filters.items() if value not in {None, ()}})
        runs, rows = len(chosen.runs), len(chosen)
        if out is not None:
            with progress_bar("writing", quiet=quiet) as progress:
                write_view(out, chosen, shard_rows=shard_rows, progress=progress)
    except EmptyCorpusError as error:
        if out is not None:
            raise EmptyCorpusError(f"{error.message}. Nothing was written", path=whole.paths[0]) from error
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    of_runs, of_rows = len(whole.runs), len(whole)
    counts = {"runs": runs, "rows": rows, "of_runs": of_runs, "of_rows": of_rows}
    document = {**counts, "output": out and str(out)}
    text = f"{number(runs)} of {counted(of_runs, 'run')}, {number(rows)} of {counted(of_rows, 'row')}"
    text += f", written to {printable(out)}" if out else ""
    print_result(document, lambda: [text], as_json=as_json)


@command.subcommand("tape2048 dataset verify ds other --json")
@click.argument("datasets", type=EXISTING, nargs=-1, required=True)
@json_option()
@quiet_option()
def verify(*, datasets: Sequence[Path], as_json: bool, quiet: bool) -> None:
    """Check data sets, or pack.dat files, completely.

    This checks every checksum, and every row against the run table and the rules of the game. The exit code
    is 1 if there are findings. If a path is neither a directory nor a pack.dat, nothing is read, and the exit
    code is 3.
    """
    from tape2048.runs.verify import verify_dataset

    for path in datasets:
        with reading(path):
            is_directory = path.is_dir()
        if not is_directory and not is_packdat(path):
            raise NotASessionError("neither a directory nor a pack.dat", path=path)
    reports = []
    for path in datasets:
        with progress_bar(f"reading {path.name}", quiet=quiet) as progress:
            reports.append(verify_dataset(path, progress=progress))
    ok, parts = all(report.ok for report in reports), []
    for report in reports:
        counts = (report.rows, "row"), (report.runs, "run"), (report.checksums, "checksum")
        facts = ", ".join(counted(count, noun) for count, noun in counts)
        word = "ok " if report.ok else "BAD"
        parts.append(cell(f"{word} {report.path}: {facts}", "" if report.ok else "bold red"))
        for found in report.findings:
            where = "" if found.path is None else f"{found.path}: "
            parts.append(finding(found.error, f"{where}{found.message}", found.hint))
    documents = [{"ok": report.ok, **msgspec.to_builtins(report)} for report in reports]
    print_result({"ok": ok, "datasets": documents}, lambda: parts, as_json=as_json)
    exit_on_findings(not ok)
