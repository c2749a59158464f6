"""``tape2048 dataset``: build a data set, append to it, describe it, choose runs from it, check it."""

from __future__ import annotations

import datetime as dt
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click
import msgspec

from tape2048.base.text import counted
from tape2048_tools.terminal.click_extras import PATH, WORKERS, Group, json_option, quiet_option
from tape2048_tools.terminal.display import number, share, size
from tape2048_tools.terminal.output import (
    cell,
    columns,
    complain_left_out,
    finding,
    print_human,
    print_json,
    printable,
    table,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from rich.console import RenderableType

    from tape2048.conversion.dataset_build import Built
    from tape2048.conversion.sources import Source
    from tape2048.datasets.dataset import Dataset

EXIT_FINDINGS = 1

_DATASET = click.argument("dataset", type=PATH)
_SOURCES = click.argument("sources", type=PATH, nargs=-1, required=True)
_SHARD_ROWS = click.option(
    "--shard-rows",
    type=click.IntRange(1),
    metavar="N",
    help="Files of N rows in place of one steps.npy: appending then copies no rows.",
)
_FINAL_BOARDS = click.option(
    "--final-boards",
    is_flag=True,
    help="Play games of sessions again, so that no final board is a guess (runs and packs need that).",
)


@click.group(
    cls=Group,
    examples=[
        "tape2048 dataset build runs/ more.a2pack --output ds",
        "tape2048 dataset append ds selfplay/",
        "tape2048 dataset stats ds",
        "tape2048 dataset filter ds --min-score 50000 --output strong",
        "tape2048 dataset verify ds",
    ],
)
def command() -> None:
    """Build data sets (all steps in one array, runs in SQLite), append to them, filter, check.

    SOURCES are run files, directories of them, packs, pack.dat, data sets, sessions (recorded with
    record_action) or directories of sessions.
    """


@command.command(
    examples=[
        "tape2048 dataset build runs/ --output ds",
        "tape2048 dataset build selfplay/ old.a2pack --output ds --shard-rows 100000000 --workers 4",
        "tape2048 dataset build selfplay/ --output ds --final-boards",
    ]
)
@_SOURCES
@click.option("--output", type=PATH, required=True, metavar="DIR", help="The new one.")
@_SHARD_ROWS
@_FINAL_BOARDS
@WORKERS
@json_option()
@quiet_option()
def build(
    *,
    sources: Sequence[Path],
    output: Path,
    shard_rows: int | None,
    final_boards: bool,
    workers: int | None,
    as_json: bool,
    quiet: bool,
) -> None:
    """Build a data set of every run in SOURCES.

    Runs that cannot be read, or do not fit, are left out and named on standard error; the exit code is
    then 1, or 51 where none is left. The data set appears whole, or not at all.
    """
    from tape2048.conversion.dataset_build import build_dataset

    with _bar("building", quiet=quiet) as progress:
        opened = _opened(sources, final_boards=final_boards)
        built = build_dataset(output, opened, workers=workers, shard_rows=shard_rows, progress=progress)
    _say_built(built, as_json=as_json)


@command.command(
    short_help="Add every run in SOURCES to a data set.",
    examples=["tape2048 dataset append ds new-runs/", "tape2048 dataset append ds selfplay/ --json"],
)
@_DATASET
@_SOURCES
@_FINAL_BOARDS
@WORKERS
@json_option()
@quiet_option()
def append(
    *,
    dataset: Path,
    sources: Sequence[Path],
    final_boards: bool,
    workers: int | None,
    as_json: bool,
    quiet: bool,
) -> None:
    """Add every run in SOURCES to a data set; ids go on after the highest one.

    Whoever reads it, and whatever is killed meanwhile, finds the old data set or the new one. As `build`,
    it leaves out what cannot be read, and exits with 1 then.
    """
    from tape2048.conversion.dataset_build import append_dataset

    with _bar("appending", quiet=quiet) as progress:
        opened = _opened(sources, final_boards=final_boards)
        built = append_dataset(dataset, opened, workers=workers, progress=progress)
    _say_built(built, as_json=as_json)


def _opened(sources: Sequence[Path], *, final_boards: bool) -> Sequence[Path | Source]:
    """The sources; those of sessions say how their games ended where that is wanted."""
    if not final_boards:
        return sources
    from tape2048.conversion import open_source
    from tape2048_recorder.replay import replay

    return [open_source(path, replay.final_boards) for path in sources]


@command.command(
    short_help="Show what a data set holds.",
    examples=["tape2048 dataset stats ds", "tape2048 dataset stats ds --json | jq .score.p50"],
)
@_DATASET
@json_option()
def stats(*, dataset: Path, as_json: bool) -> None:
    """Show what a data set holds: counts, scores, lengths, tiles, engines, what it was made of.

    Costs time in proportion to the runs; no rows are read.
    """
    from tape2048.datasets.dataset import Dataset

    document = _stats(Dataset.open(dataset, load="mmap"))
    if as_json:
        print_json(document)
    else:
        print_human(*_stats_parts(document))


@command.command(
    "filter",
    short_help="Choose runs: count them, or write them as a data set.",
    examples=[
        "tape2048 dataset filter ds --min-score 50000 --min-tile 4096",
        "tape2048 dataset filter ds --engine expectimax --since 2026-01-01 --output recent",
    ],
)
@_DATASET
@click.option("--min-score", type=int, metavar="N", help="Runs with at least this score.")
@click.option("--max-score", type=int, metavar="N", help="Runs with at most this score.")
@click.option("--min-steps", type=int, metavar="N", help="Runs of at least so many steps.")
@click.option("--max-steps", type=int, metavar="N", help="Runs of at most so many steps.")
@click.option("--min-tile", type=int, metavar="TILE", help="Runs that reached this tile (8192, say).")
@click.option("--max-tile", type=int, metavar="TILE", help="Runs that got no further than this tile.")
@click.option(
    "--engine", "engines", multiple=True, metavar="NAME", help="Runs of this engine; may be repeated."
)
@click.option("--since", metavar="TIME", help="Runs that started then or later (ISO 8601; UTC).")
@click.option("--until", metavar="TIME", help="Runs that started before then.")
@click.option("--output", type=PATH, metavar="DIR", help="Write them as a data set.")
@_SHARD_ROWS
@json_option()
@quiet_option()
def filter_(
    *,
    dataset: Path,
    engines: tuple[str, ...],
    since: str | None,
    until: str | None,
    output: Path | None,
    shard_rows: int | None,
    as_json: bool,
    quiet: bool,
    **limits: int | None,
) -> None:
    """Choose runs: say how many there are, or write them as a data set of their own (--output).

    Bounds are inclusive, but for --until. All conditions have to hold. Where no run is left, --output writes
    nothing, and the exit code is 51.
    """
    from tape2048.conversion.dataset_build import write_view
    from tape2048.datasets.dataset import Dataset
    from tape2048_tools.views.opening import progress_bar

    whole = Dataset.open(dataset, load="mmap")
    chosen = whole.filter_by_score(limits["min_score"], limits["max_score"])
    chosen = chosen.filter_by_length(limits["min_steps"], limits["max_steps"])
    chosen = chosen.filter_by_highest_tile(limits["min_tile"], limits["max_tile"])
    if engines:
        chosen = chosen.filter_by_engine(*engines)
    if since is not None or until is not None:
        chosen = chosen.filter_by_time(_moment(since, "--since"), _moment(until, "--until"))
    if output is not None:
        _refuse_nothing(chosen, whole)
        with progress_bar("writing", quiet=quiet) as progress:
            write_view(output, chosen, shard_rows=shard_rows, progress=progress)
    document = {
        "runs": len(chosen.runs),
        "rows": len(chosen),
        "of_runs": len(whole.runs),
        "of_rows": len(whole),
        "output": None if output is None else str(output),
    }
    if as_json:
        print_json(document)
        return
    where = "" if output is None else f", written to {printable(output)}"
    print_human(
        f"{number(len(chosen.runs))} of {counted(len(whole.runs), 'run')}, "
        f"{number(len(chosen))} of {counted(len(whole), 'row')}{where}"
    )


def _refuse_nothing(chosen: Dataset, whole: Dataset) -> None:
    from tape2048.errors import EmptyCorpusError

    if not len(chosen.runs):
        raise EmptyCorpusError(
            f"the filter leaves 0 of {counted(len(whole.runs), 'run')} and 0 of "
            f"{counted(len(whole), 'row')}; nothing was written",
            path=whole.paths[0],
        )


@command.command(
    short_help="Check data sets completely.",
    examples=["tape2048 dataset verify ds", "tape2048 dataset verify ds other --json"],
)
@click.argument("datasets", type=PATH, nargs=-1, required=True)
@json_option()
@quiet_option()
def verify(*, datasets: Sequence[Path], as_json: bool, quiet: bool) -> None:
    """Check data sets completely: every checksum, every row against the run table and the rules.

    The exit code is 1 where anything is wrong. Where one of the paths is no directory (73), none is read.
    """
    from tape2048.datasets.verify import verify_dataset
    from tape2048.errors import NotADatasetError
    from tape2048.io.reading import reading
    from tape2048_tools.views.opening import progress_bar

    for path in datasets:
        with reading(path):
            there, is_directory = path.exists(), path.is_dir()
        if not is_directory:
            problem = "not a directory" if there else "nothing stands at this path"
            raise NotADatasetError(problem, path=path)
    reports = []
    for path in datasets:
        with progress_bar(f"reading {path.name}", quiet=quiet) as progress:
            reports.append(verify_dataset(path, progress=progress))
    if as_json:
        documents = [{"ok": report.ok, **msgspec.to_builtins(report)} for report in reports]
        print_json({"ok": all(report.ok for report in reports), "datasets": documents})
    for report in () if as_json else reports:
        counts = (report.rows, "row"), (report.runs, "run"), (report.checksums, "checksum")
        facts = ", ".join(counted(count, noun) for count, noun in counts)
        word = "ok " if report.ok else "BAD"
        print_human(cell(f"{word} {report.path}: {facts}", "" if report.ok else "bold red"))
        for found in report.findings:
            where = "" if found.path is None else f"{found.path}: "
            print_human(finding(found.error, f"{where}{found.message}", found.hint))
    if not all(report.ok for report in reports):
        raise click.exceptions.Exit(EXIT_FINDINGS)


@contextmanager
def _bar(label: str, *, quiet: bool) -> Iterator[Callable[[int, int, int], None] | None]:
    """A bar over the runs that are read."""
    from tape2048_tools.views.opening import progress_bar

    with progress_bar(label, quiet=quiet) as progress:
        if progress is None:
            yield None
        else:
            yield lambda done, total, _steps: progress(done, total)


def _say_built(built: Built, *, as_json: bool) -> None:
    complain_left_out((skipped.run, f"{skipped.error}: {skipped.message}") for skipped in built.skipped)
    if as_json:
        print_json(msgspec.to_builtins(built))
    else:
        text = f"{printable(built.path)}: {counted(built.runs, 'run')}, {counted(built.steps, 'row')} added"
        left_out = f"; {counted(len(built.skipped), 'run')} left out" if built.skipped else ""
        print_human(f"{text}{left_out}")
    if built.skipped:
        raise click.exceptions.Exit(EXIT_FINDINGS)


def _moment(text: str | None, option: str) -> dt.datetime | None:
    if text is None:
        return None
    try:
        moment = dt.datetime.fromisoformat(text)
    except ValueError:
        raise click.BadParameter(
            f"{text!r} is no moment like 2026-01-31 or 2026-01-31T12:00:00Z", param_hint=option
        ) from None
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=dt.UTC)


def _stats(dataset: Dataset) -> dict[str, Any]:
    from tape2048_tools.sessions.summary import quantiles, tiles

    runs = dataset.runs
    manifest = dataset.manifests[0]
    engines: dict[str, int] = {}
    for name in dataset.run_table.engine_names():
        engines[name or ""] = engines.get(name or "", 0) + 1
    path = dataset.paths[0]
    return {
        "path": str(path),
        "rows": len(dataset),
        "runs": len(runs),
        "bytes": sum(part.stat().st_size for part in path.rglob("*") if part.is_file()),
        "created": manifest.created if manifest else None,
        "updated": manifest.updated if manifest else None,
        "score": quantiles(runs["max_score"]),
        "steps": quantiles(runs["steps"]),
        "tiles": msgspec.to_builtins(tiles(runs)),
        "engines": engines,
        "sources": msgspec.to_builtins(manifest.sources) if manifest else [],
        "skipped": msgspec.to_builtins(manifest.skipped) if manifest else [],
    }


def _stats_parts(document: dict[str, Any]) -> list[RenderableType]:
    facts = {
        "rows": number(document["rows"]),
        "runs": number(document["runs"]),
        "size": size(document["bytes"]),
        "created": document["created"] or "-",
        "updated": document["updated"] or "-",
        "left out": counted(len(document["skipped"]), "run"),
    }
    parts: list[RenderableType] = [cell(document["path"], "bold"), columns(facts)]
    if document["runs"]:
        quantiles = table("runs", ">mean", ">10%", ">50%", ">90%", ">max")
        for name, key in (("score", "score"), ("steps", "steps")):
            quantiles.add_row(name, *(number(value) for value in document[key].values()))
        shown = table(">highest tile", ">runs", ">share", ">reached")
        for tile in document["tiles"]:
            shown.add_row(
                str(tile["tile"]), number(tile["games"]), share(tile["share"]), share(tile["reach"])
            )
        engines = table("engine", ">runs")
        for name, count in sorted(document["engines"].items(), key=lambda item: -item[1]):
            engines.add_row(cell(name or "(none)"), number(count))
        parts += ["", quantiles, "", shown, "", engines]
    if document["sources"]:
        sources = table("source", "kind", ">runs", ">rows", ">left out")
        for source in document["sources"]:
            counts = (number(source[key]) for key in ("runs", "steps", "skipped"))
            sources.add_row(cell(source["path"]), source["kind"], *counts)
        parts += ["", sources]
    return parts
