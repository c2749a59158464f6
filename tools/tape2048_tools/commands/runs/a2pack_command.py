"""``a2pack``: write, check, describe, convert and unpack a2pack and pack.dat."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import click
import msgspec

from tape2048.base.findings import Finding
from tape2048.base.text import counted, printable, split_words
from tape2048.errors import FormatError
from tape2048.runs.a2pack import PackReader
from tape2048.runs.conversion import convert, open_sources
from tape2048.runs.packdat import DataPack
from tape2048.session.directory import is_packdat
from tape2048_tools.commands.runs.convert import LOSSY, U64, complain_missing, skipped_documents
from tape2048_tools.progress.panel import progress_bar
from tape2048_tools.terminal.click_extras import (
    EXISTING,
    PATH,
    ROOT_SETTINGS,
    exit_on_findings,
    int_option,
    json_option,
    new_group,
    options,
    quiet_option,
)
from tape2048_tools.terminal.output import columns, complain, copies_note, normalised_note, print_result

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tape2048.runs.run import Run, SkippedRun

EXIT_INVALID = 2

#: ``a2pack`` keeps its own names of flags: ``--workers`` for threads, and ``--output`` for the new file.
_WORKERS = int_option("--workers", "Number of threads.  [default: the number of cores]", least=1)
_WRITING = options(_WORKERS, json_option(), quiet_option())
_PACKFILE = click.option("--packfile", type=EXISTING, required=True, metavar="FILE", help="The pack.")
_ENGINES_SHOWN = 3


def _output(what: str, metavar: str = "FILE") -> Callable[[Any], Any]:
    return click.option("--output", type=PATH, required=True, metavar=metavar, help=what)


def _input(what: str) -> Callable[[Any], Any]:
    return click.option("--input", "source", type=EXISTING, required=True, metavar="PATH", help=what)


@new_group(
    "a2pack pack --input runs/ --output runs.a2pack",
    "a2pack validate --packfile runs.a2pack",
    "a2pack to-jsonl --packfile runs.a2pack --output runs.jsonl --parallel --steps",
    "a2pack extract --packfile runs.a2pack --indices 0,5,42 --output some/",
    "a2pack merge --packfile a.dat --packfile b.dat --output both.dat",
    context_settings=ROOT_SETTINGS,
)
def command() -> None:
    """Pack many runs into one read-only file, and read such files.

    validate and inspect also read pack.dat files. append and merge read pack.dat files, and write a new one.
    """


@command.subcommand("a2pack pack --input runs/ --output runs.a2pack --align 1 --compress zstd --workers 2")
@_input("Directory of run files, or another source of `tape2048 convert`, such as a session.")
@_output("The new pack.")
@int_option("--align", "Alignment of entries in bytes: a power of 2.", default=4096, least=1, most=1 << 20)
@click.option(
    "--compress", type=click.Choice(["none", "zstd", "lz4"]), default="none", show_default=True,
    help="Compression of entries.",
)  # fmt: skip
@click.option("--entry-crc/--no-entry-crc", default=True, help="Store a checksum per entry.  [default: yes]")
@LOSSY
@_WRITING
def pack(
    *, source: Path, output: Path, lossy: bool, workers: int | None, as_json: bool, quiet: bool, **how: Any
) -> None:
    """Pack run files below a directory, or the runs of another source.

    Run files are packed in path order, and stored byte for byte; copies of a game are left out and counted.
    Games of sessions are replayed, as by `tape2048 convert`. Invalid files and runs are left out and listed
    on standard error. The exit code is then 1.
    """
    from tape2048_recorder.replay.replay import replayer

    if how["align"] & (how["align"] - 1):
        raise click.BadParameter(f"{how['align']} is not a power of two", param_hint="--align")
    conversion: dict[str, Any] = {"lossy": lossy, "workers": workers, "replayer": replayer, "packing": how}
    with progress_bar(f"packing {source.name}", quiet=quiet) as progress:
        done = convert(source, output, "a2pack", progress=progress, **conversion)
    complain_missing(done.lost, done.skipped)
    stats, size = PackReader.open(output).stats, output.stat().st_size
    document = {"path": str(output), "bytes": size, "stats": msgspec.structs.asdict(stats)}
    document |= {"left_out": skipped_documents(done.skipped, "path"), "copies": done.copies}
    counts = f"{counted(stats.count, 'run')}, {counted(stats.total_steps, 'step')}, {size:,} bytes"
    counts += copies_note(done.copies)
    print_result(document, lambda: [f"{printable(output)}: {counts}"], as_json=as_json)
    exit_on_findings(done.skipped)


@command.subcommand("a2pack validate --packfile runs.a2pack --json | jq -r '.findings[].message'")
@_PACKFILE
@json_option()
@quiet_option()
def validate(*, packfile: Path, as_json: bool, quiet: bool) -> None:
    """Check a pack completely: checksums, runs, padding, statistics.

    For a pack.dat, this checks the checksum, and every row against the run table and the rules of the game.
    If the file is invalid, the reasons are printed on standard error, and the exit code is 2.
    """
    findings: list[Finding] = []
    runs, note, padding = 0, "", {}
    try:
        with progress_bar(f"reading {packfile.name}", quiet=quiet) as progress:
            if is_packdat(packfile):
                from tape2048.runs.verify import row_findings

                rows = DataPack.load(packfile, "mmap")
                findings += row_findings(rows, packfile, packfile, progress)
                runs, padding = len(rows.runs), {"padded_steps": rows.padded}
                if rows.padded:
                    note = f"; {counted(rows.padded, 'step')} with nonzero padding, which has no meaning"
            else:
                reader = PackReader.open(packfile)
                reader.validate(progress)
                runs = len(reader)
    except FormatError as error:
        findings.append(Finding.of(error))
    names = ("error", "message", "offset")
    listed = [{name: getattr(found, name) for name in names} for found in findings]
    document = {"ok": not findings, "path": str(packfile), "findings": listed, **padding}
    document["runs"] = None if findings else runs
    text = f"OK: {printable(packfile)} ({counted(runs, 'run')}{note})"
    if as_json or not findings:
        print_result(document, lambda: [text], as_json=as_json)
    for found in () if as_json else findings:
        at = "" if found.offset is None else f" at byte {found.offset}"
        complain(f"INVALID: {packfile} ({found.error}: {found.message}{at})")
    if findings:
        raise click.exceptions.Exit(EXIT_INVALID)


@command.subcommand("a2pack stats --packfile runs.a2pack --json")
@_PACKFILE
@json_option()
def stats(*, packfile: Path, as_json: bool) -> None:
    """Show the statistics of a pack: lengths, highest tiles, engines."""
    found = msgspec.structs.asdict(PackReader.open(packfile).stats)
    print_result(found, lambda: [columns(_shown(found))], as_json=as_json)


def _shown(found: dict[str, Any]) -> dict[str, str]:
    shown = {key: f"{value:,}" for key, value in found.items() if isinstance(value, int)}
    shown["mean_len"] = f"{found['mean_len']:,.1f}"
    if (tiles := found["highest_tile_hist"]) is not None:
        shown["highest_tile_hist"] = ", ".join(f"{tile}: {count:,}" for tile, count in tiles.items())
    if (engines := found["engine_counts"]) is not None:
        # The engine of a recorded game contains its seed, so that every game can have another name.
        more = len(engines) - _ENGINES_SHOWN
        most = Counter(engines).most_common(_ENGINES_SHOWN) if more > 0 else engines.items()
        first = ", ".join(f"{name or '(none)'}: {count:,}" for name, count in most)
        shown["engine_counts"] = first + (f", and {more:,} more (--json lists all)" if more > 0 else "")
    return shown


@command.subcommand("a2pack to-jsonl --packfile runs.a2pack --output steps.jsonl --steps --workers 2")
@_PACKFILE
@_output("The new file.")
@click.option("--parallel/--no-parallel", default=True, help="Use several threads.  [default: yes]")
@click.option(
    "--steps/--runs-only", "by_step", default=False, help="Write one line per step, or per run (default)."
)
@U64
@_WRITING
def to_jsonl(*, packfile: Path, output: Path, parallel: bool, as_json: bool, quiet: bool, **how: Any) -> None:
    """Write every run as JSON lines."""
    reader = PackReader.open(packfile)
    with progress_bar(f"writing {output.name}", quiet=quiet) as progress:
        written = reader.to_jsonl(output, parallel, progress=progress, **how)
    text = f"{printable(output)}: {counted(len(reader), 'run')}, {written:,} bytes"
    document = {"path": str(output), "runs": len(reader), "bytes": written}
    print_result(document, lambda: [text], as_json=as_json)


@command.subcommand("a2pack extract --packfile runs.a2pack --indices 0,5,42 --output some/")
@_PACKFILE
@click.option("--indices", required=True, metavar="I,J,...", help="Numbers of runs, from 0.")
@_output("Directory of the files.", "DIR")
@json_option()
def extract(*, packfile: Path, indices: str, output: Path, as_json: bool) -> None:
    """Write runs to separate new files, byte for byte."""
    reader = PackReader.open(packfile)
    words, known = split_words(indices), {str(i): i for i in range(len(reader))}
    if len(set(words)) < len(words) or not known.keys() >= {*words}:
        found = f"found {indices!r:.80}, expected different numbers, separated by commas; the pack has "
        found += f"{counted(len(reader), 'run')}, numbered from 0"
        raise click.BadParameter(found, param_hint="--indices")
    written = reader.extract([known[word] for word in words], output)
    runs = [{"index": known[word], "path": str(path)} for word, path in zip(words, written, strict=True)]
    print_result({"runs": runs}, lambda: map(printable, written), as_json=as_json)


@command.subcommand("a2pack append --packfile pack.dat --input runs.a2pack --output more.dat --json")
@_PACKFILE
@_input("Source of the new runs.")
@_output("The new pack.dat.")
@_WRITING
def append(
    *, packfile: Path, source: Path, output: Path, workers: int | None, as_json: bool, quiet: bool
) -> None:
    """Write a new pack.dat with the runs of a pack.dat and further runs.

    The further runs are in run files, packs, data sets or sessions. Their ids continue after the highest id.
    Games that the pack.dat holds are left out and counted. Unreadable runs are left out and listed on
    standard error. The exit code is then 1.
    """
    rows = DataPack.load(packfile, "mmap")
    (opened,) = open_sources([source], target=rows)
    before = len(rows.runs)
    skipped: list[SkippedRun] = []

    def runs(progress: Callable[[int, int], object] | None) -> Iterator[Run]:
        for number, found in enumerate(opened.runs(workers), start=1):
            if progress is not None:
                progress(number, max(number, opened.count))
            if found.run is not None:
                yield found.run
            else:
                skipped.append(found.skipped)

    with progress_bar(f"reading {source.name}", quiet=quiet) as progress:
        rows.append(runs(progress))
    complain_missing({}, skipped)
    more: dict[str, Any] = {"added": len(rows.runs) - before, "normalised": rows.normalised}
    more["left_out"] = skipped_documents(skipped, "run")
    more["copies"] = opened.games.left_out if opened.games else 0
    note = f"; {counted(more['added'], 'run')} added{normalised_note(rows.normalised)}"
    note += copies_note(more["copies"])
    _save(rows, output, more, note, as_json=as_json, quiet=quiet)
    exit_on_findings(skipped)


@command.subcommand("a2pack merge --packfile a.dat --packfile b.dat --output both.dat")
@click.option(
    "--packfile", "packfiles", type=EXISTING, required=True, multiple=True, metavar="FILE",
    help="A pack.dat. Repeat the option for each, in the order of their runs.",
)  # fmt: skip
@_output("The new pack.dat.")
@json_option()
@quiet_option()
def merge(*, packfiles: tuple[Path, ...], output: Path, as_json: bool, quiet: bool) -> None:
    """Merge several pack.dat files into a new one.

    The new ids are 0, 1, 2, ... Rows do not change otherwise. A game that the files hold more than once is
    written once, and its copies are counted.
    """
    packs = [DataPack.load(path, "mmap") for path in packfiles]
    rows = DataPack.merge(packs)
    copies = sum(len(pack.runs) for pack in packs) - len(rows.runs)
    _save(rows, output, {"copies": copies}, copies_note(copies), as_json=as_json, quiet=quiet)


def _save(
    rows: DataPack, output: Path, more: dict[str, Any], note: str, *, as_json: bool, quiet: bool
) -> None:
    with progress_bar(f"writing {output.name}", quiet=quiet) as progress:
        rows.save(output, progress)
    document = {"path": str(output), "runs": len(rows.runs), "rows": len(rows), **more}
    text = f"{printable(output)}: {counted(len(rows.runs), 'run')}, {counted(len(rows), 'row')}{note}"
    print_result(document, lambda: [text], as_json=as_json)


@command.subcommand("a2pack inspect --packfile pack.dat --index 0 --json")
@_PACKFILE
@click.option("--index", type=click.IntRange(0), required=True, metavar="I", help="The run's number, from 0.")
@json_option()
def inspect(*, packfile: Path, index: int, as_json: bool) -> None:
    """Show one run of a pack: its facts and its final board.

    A pack.dat holds no final boards. If the rules leave several final boards, one of them is shown.
    """
    from tape2048_tools.views.run import run_document, run_parts

    pack = DataPack.load(packfile, "mmap") if is_packdat(packfile) else PackReader.open(packfile)
    count = len(pack.runs if isinstance(pack, DataPack) else pack)
    if index >= count:
        found = f"found {index}, but the pack has {counted(count, 'run')}, numbered from 0"
        raise click.BadParameter(found, param_hint="--index")
    facts: dict[str, Any] = {"kind": "packdat"}
    if isinstance(pack, DataPack):
        run, certain, _ = pack.run_and_losses(index)
        row = pack.runs[index]
        facts |= {"run_id": int(row["run_id"]), "first_step_idx": int(row["first_row"])}
        facts["final_board_certain"] = certain
    else:
        run, facts = pack.decode(index), pack.info(index)._asdict()
    document = {"index": index, **facts, **run_document(run)}
    print_result(document, lambda: run_parts(run, document), as_json=as_json)
