"""Output on the standard streams: JSON, tables and text.

On a terminal, tables have colours and fit its width, unless that would cut numbers or break names. Elsewhere
(a pipe, a file), the same tables are plain text: no control characters, nothing cut off. No line has trailing
white space.

All text goes through :func:`tape2048.base.text.printable`: no control character of a file's name, or of a
value in a file, reaches the terminal.
"""

from __future__ import annotations

import contextlib
import errno
import io
import json
import os
import re
import shutil
import sys
from typing import TYPE_CHECKING, Any, TextIO

import click

from tape2048.base.text import aligned, printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from rich.console import Console, RenderableType
    from rich.segment import Segment
    from rich.table import Table
    from rich.text import Text

    from tape2048.errors import TapeError

#: The exit code that a shell reports for a program ended by SIGPIPE, as in ``| head``.
EXIT_PIPE_CLOSED = 128 + 13

_UNBOUNDED_WIDTH = 100_000  # a width beyond any table: without a terminal nothing is wrapped or cut

#: Words up to this length (a session's name) are not broken to fit a table to a terminal.
_UNBROKEN_MAX = 40

_NAMED_MAX = 5  # most runs to list per reason

_PADDING = 2
_TRAILING = re.compile(r"(?: |\x1b\[[0-9;]*m)+$", re.MULTILINE)
_ESCAPE = re.compile(r"\x1b\[[0-9;]*m")


def print_json(document: Any) -> None:
    """Print one JSON document, indented. NaN becomes null."""
    from tape2048.base.text import pretty_json

    text = pretty_json(document).decode()
    if not text.replace("\n", "").isprintable():  # JSON itself escapes the first 32 characters only
        text = "".join(one if one.isprintable() or one == "\n" else json.dumps(one)[1:-1] for one in text)
    print_text(text)


def print_result(document: Any, make_parts: Callable[[], Iterable[RenderableType]], *, as_json: bool) -> None:
    if as_json:
        print_json(document)
    else:
        print_human(*make_parts())


def print_human(*parts: RenderableType) -> None:
    from rich.console import Console
    from rich.table import Table

    class Printing(Console):
        def render(self, *args: Any, **options: Any) -> Iterator[Segment]:
            for one in super().render(*args, **options):
                yield one._replace(text="\n".join(map(printable, one.text.split("\n"))))

    tty = sys.stdout.isatty()
    buffer = io.StringIO()
    console = Printing(
        file=buffer,
        force_terminal=tty,
        color_system="auto" if tty else None,
        width=None if tty else _UNBOUNDED_WIDTH,
        highlight=False,
        emoji=False,
        markup=False,
    )
    width = console.width
    for part in parts:
        console.width = width
        if isinstance(part, Table):
            least = _least_width(part, console)
            if least > width:
                part.padding = (0, 1, 0, 0)
                least -= (_PADDING - 1) * (len(part.columns) - 1)
            console.width = max(width, least)
        console.print(part, soft_wrap=isinstance(part, str))
    # Trailing padding of a line wider than the terminal would become an empty line.
    print_text(_TRAILING.sub(lambda found: "".join(_ESCAPE.findall(found[0])), buffer.getvalue()))


def _least_width(shown: Table, console: Console) -> int:
    from rich.measure import Measurement

    options = console.options.update(width=_UNBOUNDED_WIDTH)
    total = _PADDING * (len(shown.columns) - 1)
    for column in shown.columns:
        parts = [*column.cells, *([column.header] if shown.show_header else [])]
        sizes = [Measurement.get(console, options, part) for part in parts]
        words = min(max((one.minimum for one in sizes), default=0), _UNBROKEN_MAX)
        whole = max((one.maximum for one in sizes), default=0)
        column.no_wrap = column.no_wrap or words == whole  # rich then narrows other columns
        total += whole if column.no_wrap else words
    return total


def print_lines(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table of many rows as plain lines, also on a terminal: rich is slow with 10,000 rows."""
    print_text(aligned(headings, rows))


def columns_that_fit(
    headings: Sequence[str], rows: Sequence[Sequence[str]], less_needed: Sequence[str], *, gap: int
) -> list[int]:
    """Return the columns that fit, ``gap`` apart, without as many of the ``less_needed`` as necessary."""
    kept = list(range(len(headings)))
    if not sys.stdout.isatty():
        return kept
    lines = [[heading.removeprefix(">") for heading in headings], *rows]
    cells = zip(*lines, strict=True)
    widths = [max(len(line) for text in column for line in text.split("\n")) for column in cells]
    width = shutil.get_terminal_size().columns
    for heading in less_needed:
        if sum(widths[i] + gap for i in kept) - gap > width and heading in headings:
            kept.remove(headings.index(heading))
    return kept


def table(*headings: str, title: str | None = None) -> Table:
    """Make an empty table. A heading that starts with ``>`` is for a column of numbers."""
    from rich.table import Table

    made = Table(
        title=title,
        title_justify="left",
        title_style="bold",
        box=None,
        pad_edge=False,
        padding=(0, _PADDING, 0, 0),
    )
    for heading in headings:
        number = heading.startswith(">")
        made.add_column(
            heading.removeprefix(">"),
            justify="right" if number else "left",
            no_wrap=number,
            overflow="fold",
            header_style="bold",
        )
    return made


def columns(values: dict[str, Any]) -> Table:
    made = table("", "")
    made.show_header = False
    for name, value in values.items():
        made.add_row(cell(name, style="bold"), value if hasattr(value, "__rich_console__") else cell(value))
    return made


def cell(value: object, style: str = "") -> Text:
    """Turn an untrusted value into text without markup and control characters."""
    from rich.text import Text

    return Text(printable(value), style=style)


def finding(error: str, message: str, hint: str | None) -> Text:
    from rich.text import Text

    text = Text.assemble((printable(error), "bold red"), ": ", printable(message))
    return text if hint is None else text.append(f"\n  hint: {printable(hint)}")


def error_finding(error: TapeError) -> Text:
    return finding(type(error).__name__, str(error), error.advice)


def drop_unwritten(stream: TextIO) -> None:
    """Flush a stream, or drop its buffer: at exit the interpreter would try again, and print an error."""
    try:
        stream.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def complain(text: str) -> None:
    """Write a line to standard error; ignore failures, as the exit code remains."""
    with contextlib.suppress(OSError):
        click.echo(printable(text), err=True)
    drop_unwritten(sys.stderr)


def complain_left_out(left_out: Iterable[tuple[str, str]]) -> None:
    counts: dict[str, int] = {}
    for name, reason in left_out:
        kind = reason.replace(name.rpartition(": ")[2], "")  # without the run's name
        counts[kind] = counts.get(kind, 0) + 1
        if counts[kind] <= _NAMED_MAX:
            complain(f"left out: {name}: {reason}")
    for count in counts.values():
        if count > _NAMED_MAX:
            complain(f"left out: {count - _NAMED_MAX:,} more for this reason")


def copies_note(runs: int) -> str:
    """Return a note on the runs that are copies of others, for the end of a result; empty for 0."""
    from tape2048.base.text import counted

    return f"; {counted(runs, 'run')} left out as copies" if runs else ""


def normalised_note(runs: int) -> str:
    """Return a note on the runs whose branch values were normalised, for the end of a result; empty for 0."""
    from tape2048.base.text import counted

    return f"; branch values outside 0 to 1 were normalised in {counted(runs, 'run')}" if runs else ""


def unwritten(error: OSError) -> Exception:
    """Return the exception for a failed write to standard output, and drop its buffer."""
    drop_unwritten(sys.stdout)
    if isinstance(error, BrokenPipeError):
        return click.exceptions.Exit(EXIT_PIPE_CLOSED)
    from tape2048.errors import DiskFullError, StorageError

    kind = DiskFullError if error.errno in (errno.ENOSPC, errno.EDQUOT) else StorageError
    return kind(f"writing to standard output failed ({error.strerror})", hint="Check the output's target.")


def print_text(text: str) -> None:
    """Write text to standard output; characters that its encoding lacks are escaped."""
    encoding = sys.stdout.encoding or "utf-8"
    try:
        sys.stdout.write(text.encode(encoding, "backslashreplace").decode(encoding))
        sys.stdout.flush()
    except OSError as error:
        raise unwritten(error) from error
