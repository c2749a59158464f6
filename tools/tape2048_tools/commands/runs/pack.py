"""``a2pack`` (also ``tape2048 pack``): write, check, describe, convert and unpack a2pack files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

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
from tape2048_tools.terminal.output import columns, complain, print_json, print_result, printable
from tape2048_tools.views.opening import progress_bar

if TYPE_CHECKING:
    from pathlib import Path

    from tape2048.packs import PackReader, PackStats

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
    context_settings=ROOT_SETTINGS,
)
def command() -> None:
    """Pack many runs into one read-only file, and read such files.

    The command a2pack has the same subcommands: a2pack stats is tape2048 pack stats.
    """


@command.subcommand(
    "tape2048 pack pack --input runs/ --output runs.a2pack",
    "tape2048 pack pack --input runs/ --output runs.a2pack --align 1 --compress zstd --workers 2",
)
@click.option(
    "--input", "source", type=EXISTING, required=True, metavar="DIR", help="Directory of run files."
)
@click.option("--output", type=PATH, required=True, metavar="FILE", help="The new pack.")
@click.option(
    "--align",
    type=int,
    default=4096,
    metavar="BYTES",
    help="Alignment of entries: 1 to 1 MiB.  [default: 4096]",
)
@click.option("--compress", type=click.Choice(["none", "zstd"]), default="none", help="How to store entries.")
@click.option("--entry-crc/--no-entry-crc", default=True, help="Store a checksum per entry.  [default: yes]")
@WORKERS
@json_option()
@quiet_option()
def pack(*, source: Path, output: Path, align: int, as_json: bool, quiet: bool, **how: Any) -> None:
    """Pack every run file below a directory, in path order.

    Invalid files are left out and named on standard error; the exit code is then 1.
    """
    from tape2048.base.text import counted
    from tape2048.errors import NoRunsError
    from tape2048.packs import pack_directory

    if not (1 <= align <= 1 << 20 and align & (align - 1) == 0):
        raise click.BadParameter(f"{align} is not a power of two from 1 to 1048576", param_hint="--align")
    with progress_bar(f"packing {source.name}", quiet=quiet) as progress:
        try:
            packed = pack_directory(source, output, align=align, progress=progress, **how)
        except NoRunsError as error:
            hint = "`tape2048 convert` packs the runs of sessions, data sets and other packs"
            error.hint = error.hint or hint
            raise
    for skipped in packed.skipped:
        complain(f"left out: {printable(skipped.error)}")
    left_out = [
        {"path": str(skipped.path), "error": type(skipped.error).__name__, "message": str(skipped.error)}
        for skipped in packed.skipped
    ]
    stats = packed.stats
    document = {"path": str(output), "bytes": packed.bytes, "stats": _document(stats), "left_out": left_out}
    counts = f"{counted(stats.count, 'run')}, {counted(stats.total_steps, 'step')}, {packed.bytes:,} bytes"
    print_result(document, lambda: [f"{printable(output)}: {counts}"], as_json=as_json)
    exit_on_findings(packed.skipped)


@command.subcommand(
    "tape2048 pack validate --packfile runs.a2pack && echo sound",
    "tape2048 pack validate --packfile runs.a2pack --json | jq -r '.findings[].message'",
)
@_PACKFILE
@json_option()
@quiet_option()
def validate(*, packfile: Path, as_json: bool, quiet: bool) -> None:
    """Check a pack completely: checksums, runs, padding, statistics.

    An invalid pack is named on standard error, with the reason; the exit code is then 2.
    """
    from tape2048.base.text import counted
    from tape2048.errors import FormatError

    try:
        reader = _open(packfile)
        with progress_bar(f"reading {packfile.name}", quiet=quiet) as progress:
            reader.validate(progress)
    except FormatError as error:
        if as_json:
            found = {"error": type(error).__name__, "message": error.message, "offset": error.offset}
            print_json({"ok": False, "path": str(packfile), "runs": None, "findings": [found]})
            raise click.exceptions.Exit(EXIT_INVALID) from None
        at = "" if error.offset is None else f" at byte {error.offset}"
        complain(f"INVALID: {printable(packfile)} ({type(error).__name__}: {printable(error.message)}{at})")
        raise click.exceptions.Exit(EXIT_INVALID) from None
    document = {"ok": True, "path": str(packfile), "runs": len(reader), "findings": []}
    text = f"OK: {printable(packfile)} ({counted(len(reader), 'run')})"
    print_result(document, lambda: [text], as_json=as_json)


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
    tiles = ", ".join(f"{tile}: {count:,}" for tile, count in found["highest_tile_hist"].items())
    # The engine's name of a recorded game has its seed: there may be as many names as games.
    most = list(found["engine_counts"].items())
    if len(most) > _ENGINES_SHOWN:
        most.sort(key=lambda item: -item[1])
    engines = ", ".join(f"{name or '(none)'}: {count:,}" for name, count in most[:_ENGINES_SHOWN])
    if len(most) > _ENGINES_SHOWN:
        engines += f", and {len(most) - _ENGINES_SHOWN:,} more (--json has all)"
    shown = {key: f"{value:,}" for key, value in found.items() if isinstance(value, int)}
    shown |= {"mean_len": f"{found['mean_len']:,.1f}", "highest_tile_hist": tiles, "engine_counts": engines}
    return shown


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


@command.subcommand("tape2048 pack inspect --packfile runs.a2pack --index 123")
@_PACKFILE
@click.option("--index", type=click.IntRange(0), required=True, metavar="I", help="The run's number, from 0.")
@json_option()
def inspect(*, packfile: Path, index: int, as_json: bool) -> None:
    """Show one run of a pack: its facts and its final board."""
    from tape2048.base.text import counted
    from tape2048_tools.views.run import run_document, run_parts

    reader = _open(packfile)
    if index >= len(reader):
        raise click.BadParameter(f"the pack has {counted(len(reader), 'run')}", param_hint="--index")
    run = reader.decode(index)
    document = {"index": index, **reader.info(index)._asdict(), **run_document(run)}
    print_result(document, lambda: run_parts(run, document), as_json=as_json)


def _open(path: Path) -> PackReader:
    from tape2048.packs import PackReader

    return PackReader.open(path)


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
