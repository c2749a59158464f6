"""``a2pack`` (also ``tape2048 pack``): write, check, describe, convert and unpack a2pack and pack.dat."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from tape2048_tools.commands.runs.convert import LOSSY, complain_missing
from tape2048_tools.progress.panel import progress_bar
from tape2048_tools.terminal.click_extras import (
    EXISTING,
    PATH,
    ROOT_SETTINGS,
    WORKERS,
    exit_on_findings,
    json_option,
    new_group,
    quiet_option,
)
from tape2048_tools.terminal.output import (
    columns,
    complain,
    complain_left_out,
    normalised_note,
    print_json,
    print_result,
    printable,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tape2048.base.findings import Finding
    from tape2048.datasets import DataPack
    from tape2048.packs import PackReader, PackStats
    from tape2048.runs import Run

EXIT_INVALID = 2

_PACKFILE = click.option("--packfile", type=EXISTING, required=True, metavar="FILE", help="The pack.")
_ENGINES_SHOWN = 3
#: More digits than any number of runs has; Python refuses to parse thousands of them.
_DIGITS_MAX = 100


@new_group(
    "tape2048 pack pack --input runs/ --output runs.a2pack",
    "tape2048 pack validate --packfile runs.a2pack",
    "tape2048 pack to-jsonl --packfile runs.a2pack --output runs.jsonl --parallel --steps",
    "tape2048 pack extract --packfile runs.a2pack --indices 0,5,42 --output some/",
    "tape2048 pack merge --packfile a.dat --packfile b.dat --output both.dat",
    context_settings=ROOT_SETTINGS,
)
def command() -> None:
    """Pack many runs into one read-only file, and read such files.

    validate and inspect also read pack.dat; append and merge write new ones.

    The command a2pack has the same subcommands: a2pack stats is tape2048 pack stats.
    """


@command.subcommand(
    "tape2048 pack pack --input runs/ --output runs.a2pack",
    "tape2048 pack pack --input runs/ --output runs.a2pack --align 1 --compress zstd --workers 2",
)
@click.option(
    "--input",
    "source",
    type=EXISTING,
    required=True,
    metavar="PATH",
    help="Directory of run files, or what `tape2048 convert` reads: a session, say.",
)
@click.option("--output", type=PATH, required=True, metavar="FILE", help="The new pack.")
@click.option(
    "--align",
    type=int,
    default=4096,
    metavar="BYTES",
    help="Alignment of entries: 1 to 1 MiB.  [default: 4096]",
)
@click.option(
    "--compress", type=click.Choice(["none", "zstd", "lz4"]), default="none", help="How to store entries."
)
@click.option("--entry-crc/--no-entry-crc", default=True, help="Store a checksum per entry.  [default: yes]")
@LOSSY
@WORKERS
@json_option()
@quiet_option()
def pack(
    *,
    source: Path,
    output: Path,
    align: int,
    lossy: bool,
    workers: int | None,
    as_json: bool,
    quiet: bool,
    **how: Any,
) -> None:
    """Pack every run file below a directory, in path order.

    Files are stored byte for byte. The runs of other sources are packed as by `tape2048 convert`: games of
    sessions are replayed. Invalid files or runs are left out and named on standard error; the exit code is
    then 1.
    """
    from tape2048.base.text import counted
    from tape2048.conversion.sources import kind_of
    from tape2048.conversion.targets import convert
    from tape2048.packs import pack_directory
    from tape2048_recorder.replay.replay import replayer

    if not (1 <= align <= 1 << 20 and align & (align - 1) == 0):
        raise click.BadParameter(f"{align} is not a power of two from 1 to 1048576", param_hint="--align")
    left_out: list[dict[str, str]]
    with progress_bar(f"packing {source.name}", quiet=quiet) as progress:
        if kind_of(source) == "runs":
            packed = pack_directory(source, output, align=align, workers=workers, progress=progress, **how)
            for skipped in packed.skipped:
                complain(f"left out: {printable(skipped.error)}")
            left_out = [
                {"path": str(one.path), "error": type(one.error).__name__, "message": str(one.error)}
                for one in packed.skipped
            ]
        else:
            converted = convert(
                source,
                output,
                "pack",
                lossy=lossy,
                workers=workers,
                replayer=replayer,
                packing={"align": align, **how},
                progress=progress,
            )
            complain_missing(converted.lost, converted.skipped)
            left_out = [
                {"path": one.run, "error": one.error, "message": one.message} for one in converted.skipped
            ]
    stats, size = _open(output).stats, output.stat().st_size
    document = {"path": str(output), "bytes": size, "stats": _document(stats), "left_out": left_out}
    counts = f"{counted(stats.count, 'run')}, {counted(stats.total_steps, 'step')}, {size:,} bytes"
    print_result(document, lambda: [f"{printable(output)}: {counts}"], as_json=as_json)
    exit_on_findings(left_out)


@command.subcommand(
    "tape2048 pack validate --packfile runs.a2pack && echo sound",
    "tape2048 pack validate --packfile runs.a2pack --json | jq -r '.findings[].message'",
)
@_PACKFILE
@json_option()
@quiet_option()
def validate(*, packfile: Path, as_json: bool, quiet: bool) -> None:
    """Check a pack completely: checksums, runs, padding, statistics.

    Of a pack.dat: its checksum, and every row against the run table and the rules of the game.
    An invalid one is named on standard error, with the reason; the exit code is then 2.
    """
    from tape2048.base.findings import Finding
    from tape2048.base.text import counted
    from tape2048.errors import FormatError

    findings: list[Finding] = []
    document: dict[str, Any] = {"ok": False, "path": str(packfile), "runs": None, "findings": []}
    runs, note = 0, ""
    try:
        with progress_bar(f"reading {packfile.name}", quiet=quiet) as progress:
            if _is_packdat(packfile):
                runs, padded = _check_packdat(packfile, findings, progress)
                document["padded_steps"] = padded
                if padded:
                    note = f"; {counted(padded, 'step')} with padding that is not zero, which nothing reads"
            else:
                reader = _open(packfile)
                reader.validate(progress)
                runs = len(reader)
    except FormatError as error:
        findings.append(Finding.of(error))
    if findings:
        document["findings"] = [
            {"error": found.error, "message": found.message, "offset": found.offset} for found in findings
        ]
        if as_json:
            print_json(document)
        for found in () if as_json else findings:
            at = "" if found.offset is None else f" at byte {found.offset}"
            complain(f"INVALID: {printable(packfile)} ({found.error}: {printable(found.message)}{at})")
        raise click.exceptions.Exit(EXIT_INVALID)
    text = f"OK: {printable(packfile)} ({counted(runs, 'run')}{note})"
    print_result(document | {"ok": True, "runs": runs}, lambda: [text], as_json=as_json)


def _check_packdat(
    packfile: Path, findings: list[Finding], progress: Callable[[int, int], object] | None
) -> tuple[int, int]:
    """Check a pack.dat; return its runs, and its steps whose padding is not zero."""
    from tape2048.datasets.packdat import DataPack
    from tape2048.datasets.verify import row_findings

    pack = DataPack.load(packfile, "mmap")
    findings += row_findings(pack, packfile, packfile, progress)
    return len(pack.runs), pack.padded


@command.subcommand(
    "tape2048 pack stats --packfile runs.a2pack", "tape2048 pack stats --packfile x.a2pack --json"
)
@_PACKFILE
@json_option()
def stats(*, packfile: Path, as_json: bool) -> None:
    """Show the statistics of a pack: lengths, highest tiles, engines."""
    found = _document(_open(packfile).stats)
    print_result(found, lambda: [columns(_shown(found))], as_json=as_json)


def _shown(found: dict[str, Any]) -> dict[str, str]:
    shown = {key: f"{value:,}" for key, value in found.items() if isinstance(value, int)}
    shown["mean_len"] = f"{found['mean_len']:,.1f}"
    if found["highest_tile_hist"] is not None:
        tiles = (f"{tile}: {count:,}" for tile, count in found["highest_tile_hist"].items())
        shown["highest_tile_hist"] = ", ".join(tiles)
    if found["engine_counts"] is not None:
        shown["engine_counts"] = _engines(found["engine_counts"])
    return shown


def _engines(counts: dict[str, int]) -> str:
    # The engine's name of a recorded game has its seed: there may be as many names as games.
    most = list(counts.items())
    if len(most) > _ENGINES_SHOWN:
        most.sort(key=lambda item: -item[1])
    engines = ", ".join(f"{name or '(none)'}: {count:,}" for name, count in most[:_ENGINES_SHOWN])
    if len(most) > _ENGINES_SHOWN:
        engines += f", and {len(most) - _ENGINES_SHOWN:,} more (--json has all)"
    return engines


@command.subcommand(
    "tape2048 pack to-jsonl --packfile runs.a2pack --output runs.jsonl --parallel",
    "tape2048 pack to-jsonl --packfile runs.a2pack --output steps.jsonl --steps --workers 2",
)
@_PACKFILE
@click.option("--output", type=PATH, required=True, metavar="FILE", help="The new file.")
@click.option("--parallel/--no-parallel", default=True, help="Use several threads.  [default: yes]")
@WORKERS
@click.option(
    "--steps/--runs-only", "by_step", default=False, help="Write a line a step, or a run (default)."
)
@click.option(
    "--u64",
    type=click.Choice(["number", "text"]),
    default="number",
    help="Packed boards as numbers (default), which some readers round, or as text.",
)
@json_option()
@quiet_option()
def to_jsonl(*, packfile: Path, output: Path, parallel: bool, as_json: bool, quiet: bool, **how: Any) -> None:
    """Write every run as JSON lines."""
    from tape2048.base.text import counted

    reader = _open(packfile)
    with progress_bar(f"writing {output.name}", quiet=quiet) as progress:
        written = reader.to_jsonl(output, parallel, progress=progress, **how)
    text = f"{printable(output)}: {counted(len(reader), 'run')}, {written:,} bytes"
    document = {"path": str(output), "runs": len(reader), "bytes": written}
    print_result(document, lambda: [text], as_json=as_json)


@command.subcommand("tape2048 pack extract --packfile runs.a2pack --indices 0,5,42 --output some/")
@_PACKFILE
@click.option("--indices", required=True, metavar="I,J,...", help="Numbers of runs, from 0.")
@click.option("--output", type=PATH, required=True, metavar="DIR", help="Directory of the files.")
@json_option()
def extract(*, packfile: Path, indices: str, output: Path, as_json: bool) -> None:
    """Write runs to separate files, byte for byte; replace nothing."""
    reader = _open(packfile)
    numbers = _numbers(indices, len(reader))
    written = reader.extract(numbers, output)
    runs = [{"index": i, "path": str(path)} for i, path in zip(numbers, written, strict=True)]
    print_result({"runs": runs}, lambda: map(printable, written), as_json=as_json)


@command.subcommand(
    "tape2048 pack append --packfile pack.dat --input runs/ --output more.dat",
    "tape2048 pack append --packfile pack.dat --input runs.a2pack --output more.dat --workers 2 --json",
)
@_PACKFILE
@click.option(
    "--input", "source", type=EXISTING, required=True, metavar="PATH", help="What holds the new runs."
)
@click.option("--output", type=PATH, required=True, metavar="FILE", help="The new pack.dat.")
@WORKERS
@json_option()
@quiet_option()
def append(
    *, packfile: Path, source: Path, output: Path, workers: int | None, as_json: bool, quiet: bool
) -> None:
    """Write a pack.dat and further runs as a new pack.dat.

    The runs are those of run files, packs, data sets or sessions; new ids continue after the highest one.
    Unreadable runs are left out and named on standard error; the exit code is then 1.
    """
    from tape2048.base.text import counted
    from tape2048.conversion.sources import open_source

    pack = _open_packdat(packfile)
    before = len(pack.runs)
    opened = open_source(source)
    left_out: list[dict[str, str]] = []

    def runs(progress: Callable[[int, int], object] | None) -> Iterator[Run]:
        for number, found in enumerate(opened.runs(workers), start=1):
            if progress is not None:
                progress(number, max(number, opened.count))
            if found.run is not None:
                yield found.run
                continue
            error = found.failure
            left_out.append({"run": found.name, "error": type(error).__name__, "message": error.message})

    with progress_bar(f"reading {source.name}", quiet=quiet) as progress:
        pack.append(runs(progress))
    with progress_bar(f"writing {output.name}", quiet=quiet) as progress:
        pack.save(output, progress)
    complain_left_out((one["run"], f"{one['error']}: {one['message']}") for one in left_out)
    document = {"path": str(output), "runs": len(pack.runs), "rows": len(pack), "left_out": left_out}
    document |= {"added": len(pack.runs) - before, "normalised": pack.normalised}
    text = f"{printable(output)}: {counted(len(pack.runs), 'run')}, {counted(len(pack), 'row')}"
    text += f"; {counted(len(pack.runs) - before, 'run')} added{normalised_note(pack.normalised)}"
    print_result(document, lambda: [text], as_json=as_json)
    exit_on_findings(left_out)


@command.subcommand("tape2048 pack merge --packfile a.dat --packfile b.dat --output both.dat")
@click.option(
    "--packfile", "packfiles", type=EXISTING, required=True, multiple=True, metavar="FILE",
    help="A pack.dat; repeat it, in the order of the runs.",
)  # fmt: skip
@click.option("--output", type=PATH, required=True, metavar="FILE", help="The new pack.dat.")
@json_option()
@quiet_option()
def merge(*, packfiles: tuple[Path, ...], output: Path, as_json: bool, quiet: bool) -> None:
    """Write several pack.dat as one.

    Ids count from 0; rows do not change otherwise.
    """
    from tape2048.base.text import counted
    from tape2048.datasets.packdat import DataPack

    pack = DataPack.merge([_open_packdat(path) for path in packfiles])
    with progress_bar(f"writing {output.name}", quiet=quiet) as progress:
        pack.save(output, progress)
    document = {"path": str(output), "runs": len(pack.runs), "rows": len(pack)}
    text = f"{printable(output)}: {counted(len(pack.runs), 'run')}, {counted(len(pack), 'row')}"
    print_result(document, lambda: [text], as_json=as_json)


@command.subcommand(
    "tape2048 pack inspect --packfile runs.a2pack --index 123",
    "tape2048 pack inspect --packfile pack.dat --index 0 --json",
)
@_PACKFILE
@click.option("--index", type=click.IntRange(0), required=True, metavar="I", help="The run's number, from 0.")
@json_option()
def inspect(*, packfile: Path, index: int, as_json: bool) -> None:
    """Show one run of a pack: its facts and its final board.

    A pack.dat holds no final board: the one that the rules leave is shown, or one of the candidates.
    """
    from tape2048.base.text import counted
    from tape2048_tools.views.run import run_document, run_parts

    facts: dict[str, Any] = {}
    run = None
    if _is_packdat(packfile):
        pack = _open_packdat(packfile)
        count = len(pack.runs)
        if index < count:
            run, (certain, _) = pack.run_and_losses(index)
            row = pack.runs[index]
            facts = {"kind": "packdat", "id": int(row["id"]), "first_step_idx": int(row["first_row"])}
            facts["final_board_certain"] = certain
    else:
        reader = _open(packfile)
        count = len(reader)
        if index < count:
            run, facts = reader.decode(index), reader.info(index)._asdict()
    if run is None:
        raise click.BadParameter(f"the pack has {counted(count, 'run')}", param_hint="--index")
    document = {"index": index, **facts, **run_document(run)}
    print_result(document, lambda: run_parts(run, document), as_json=as_json)


def _open(path: Path) -> PackReader:
    from tape2048.packs import PackReader

    return PackReader.open(path)


def _is_packdat(path: Path) -> bool:
    from tape2048.datasets.directory import is_packdat

    return is_packdat(path)


def _open_packdat(path: Path) -> DataPack:
    from tape2048.datasets.packdat import DataPack

    return DataPack.load(path, "mmap")


def _document(found: PackStats) -> dict[str, Any]:
    import msgspec

    document: dict[str, Any] = msgspec.structs.asdict(found)
    return document


def _numbers(text: str, count: int) -> list[int]:
    from tape2048.base.text import counted

    numbers = []
    for part in text.split(","):
        word = part.strip()
        if not (word.isascii() and word.isdecimal() and len(word) <= _DIGITS_MAX and int(word) < count):
            raise click.BadParameter(
                f"{word!r} is not the number of one of {counted(count, 'run')} (from 0)",
                param_hint="--indices",
            )
        numbers.append(int(word))
    if len(set(numbers)) < len(numbers):
        raise click.BadParameter("a run is named twice", param_hint="--indices")
    return numbers
