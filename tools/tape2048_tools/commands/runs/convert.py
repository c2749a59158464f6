"""``tape2048 convert``: runs from one format to another."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
import msgspec

from tape2048.base.text import counted
from tape2048_tools.terminal.click_extras import PATH, WORKERS, Command, json_option, quiet_option
from tape2048_tools.terminal.output import complain, complain_left_out, print_human, print_json, printable

if TYPE_CHECKING:
    from pathlib import Path

    from tape2048.conversion.sources import Source

EXIT_FINDINGS = 1

#: As :data:`tape2048.conversion.targets.TARGETS`, which would load NumPy for ``--help``.
_TARGETS = ("a2run", "a2run2", "pack", "packdat", "dataset", "session", "jsonl", "parquet")


def conversion_options(command: Any) -> Any:
    """The flags of every command that writes runs in another format."""
    for option in reversed(
        [
            click.option(
                "--to", type=click.Choice(_TARGETS), help="What to write.  [default: by TARGET's name]"
            ),
            click.option("--lossy", is_flag=True, help="Leave out what TARGET has no place for."),
            WORKERS,
            json_option(),
            quiet_option(),
        ]
    ):
        command = option(command)
    return command


@click.command(
    cls=Command,
    examples=[
        "tape2048 convert runs/ runs.a2pack",
        "tape2048 convert selfplay/ --to a2run2 runs2/",
        "tape2048 convert runs.a2pack pack.dat --lossy",
        "tape2048 convert ds/ runs.parquet",
    ],
)
@click.argument("source", type=PATH)
@click.argument("target", type=PATH)
@conversion_options
def command(*, source: Path, target: Path, **how: Any) -> None:
    """Convert the runs in SOURCE to TARGET.

    SOURCE is a run file, a directory of them, a pack, a pack.dat, a data set, a session or a directory of
    sessions, or JSONL or Parquet with one run a row. TARGET's extension says what to write (.a2run,
    .a2run2, .a2pack, .dat, .jsonl, .parquet), or --to does; it appears whole or not at all.

    Where TARGET cannot hold what SOURCE has, nothing is written and the exit code is 61, unless --lossy
    is given; then what was left out is said on standard error. Runs that cannot be read are left out
    and named there too, and the exit code is 1; where none can be read, nothing is written (51).
    """
    from tape2048_recorder.replay.replay import final_boards

    write_converted("converting", source, target, endings=final_boards, **how)


def write_converted(
    label: str, source: Path | Source, target: Path, to: str | None, *, as_json: bool, quiet: bool, **how: Any
) -> None:
    """Convert, and tell what was written, what was lost and what was left out; exit code 1 for the last.

    Args:
        label: stands beside the progress.
        source: see :func:`tape2048.conversion.targets.convert`, as for ``target``, ``to`` and ``how``.
        target: what is written.
        to: its format.
        as_json: whether to print JSON.
        quiet: whether to show no progress.
        how: further arguments of ``convert``.
    """
    from tape2048.conversion.targets import convert
    from tape2048_tools.views.opening import progress_bar

    with progress_bar(label, quiet=quiet) as progress:
        converted = convert(source, target, to, progress=progress, **how)
    for what, count in converted.lost.items():
        complain(f"lost: {what}, of {counted(count, 'run')}")
    complain_left_out((skipped.run, f"{skipped.error}: {skipped.message}") for skipped in converted.skipped)
    if as_json:
        print_json(msgspec.to_builtins(converted))
    else:
        print_human(f"{printable(converted.target)}: {counted(converted.runs, 'run')} ({converted.kind})")
    if converted.skipped:
        raise click.exceptions.Exit(EXIT_FINDINGS)
