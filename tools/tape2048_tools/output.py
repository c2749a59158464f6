"""Standard output: one JSON document, or text for people.

Everything that a command says on standard output goes through :func:`print_json` or :func:`print_human`.
On a terminal people get colours and tables of its width. Elsewhere (a pipe, a file) the same tables are
plain text: no control characters, nothing cut off, no trailing white space.

Text from outside (names of files, values in them) is shown by :func:`printable`: an escape sequence in a
file's name must not reach the terminal.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import sys
from typing import TYPE_CHECKING, Any, TextIO

import click

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType
    from rich.table import Table
    from rich.text import Text

__all__ = [
    "cell",
    "columns",
    "complain",
    "drop_unwritten",
    "finding",
    "print_human",
    "print_json",
    "print_lines",
    "print_text",
    "printable",
    "table",
]

#: What a shell reports for a program that SIGPIPE ended; the usual answer to ``| head``.
EXIT_PIPE_CLOSED = 128 + 13

#: A width that no table of ours reaches: without a terminal nothing is wrapped or cut.
_UNBOUNDED_WIDTH = 100_000


def printable(value: object) -> str:
    r"""A value as one line of printable text; what is not printable is escaped (``\x1b``)."""
    text = str(value)
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape", "surrogatepass").decode()
        for char in text
    )


def print_json(document: Any) -> None:
    """Print one JSON document, indented. NaN becomes null."""
    import msgspec

    _emit(msgspec.json.format(msgspec.json.encode(_encodable(document)), indent=2).decode() + "\n")


def print_text(text: str) -> None:
    """Print lines for a program to read (CSV), as they are."""
    _emit(text)


def print_human(*parts: RenderableType) -> None:
    """Print text and tables, as the place that they go to can show them."""
    from rich.console import Console

    tty = sys.stdout.isatty()
    buffer = io.StringIO()
    console = Console(
        file=buffer,
        force_terminal=tty,
        color_system="auto" if tty else None,
        width=None if tty else _UNBOUNDED_WIDTH,
        highlight=False,
        emoji=False,
        markup=False,
    )
    for part in parts:
        console.print(part, soft_wrap=isinstance(part, str))
    text = buffer.getvalue()
    _emit(text if tty else "".join(f"{line.rstrip()}\n" for line in text.splitlines()))


def print_lines(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table of very many rows as plain lines; a heading that starts with ``>`` is one of numbers.

    On a terminal too: fitting ten thousand rows to its width takes rich half a minute.
    """
    names = [heading.removeprefix(">") for heading in headings]
    lines = [names, *(row if "".join(row).isprintable() else [*map(printable, row)] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    numbers = [heading.startswith(">") for heading in headings]
    form = "  ".join(
        f"{{:>{width}}}" if is_number else f"{{:<{width}}}"
        for width, is_number in zip(widths, numbers, strict=True)
    )
    _emit("".join(f"{form.format(*line).rstrip()}\n" for line in lines))


def table(*headings: str, title: str | None = None) -> Table:
    """An empty table; a heading that starts with ``>`` is that of a column of numbers."""
    from rich.table import Table

    made = Table(
        title=title, title_justify="left", title_style="bold", box=None, pad_edge=False, padding=(0, 2, 0, 0)
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
    """Names and values (text, or what rich can show), one pair a line, without headings."""
    made = table("", "")
    made.show_header = False
    for name, value in values.items():
        made.add_row(cell(name, style="bold"), value if hasattr(value, "__rich_console__") else cell(value))
    return made


def cell(value: object, style: str = "") -> Text:
    """A value from outside as text that is neither markup nor control characters."""
    from rich.text import Text

    return Text(printable(value), style=style)


def finding(error: str, message: str, hint: str | None) -> Text:
    """One defect: the class of its error, what is wrong where, and what to do."""
    from rich.text import Text

    text = Text.assemble((error, "bold red"), ": ", printable(message))
    return text if hint is None else text.append(f"\n  hint: {printable(hint)}")


def drop_unwritten(stream: TextIO) -> None:
    """Write what a stream still holds, or let it go: the interpreter would try once more, and complain."""
    try:
        stream.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def complain(text: str) -> None:
    """Write a line to standard error; where nobody reads that, the exit code has to do."""
    with contextlib.suppress(OSError):
        click.echo(text, err=True)
    drop_unwritten(sys.stderr)


def _encodable(value: Any) -> Any:
    """The document with names that are not valid Unicode (a file's) escaped, as JSON has no bytes."""
    if isinstance(value, dict):
        return {_encodable(key): _encodable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_encodable(item) for item in value]
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    return value


def _emit(text: str) -> None:
    # Text that the output's encoding lacks is escaped too; by default a name could end the command.
    encoding = sys.stdout.encoding or "utf-8"
    try:
        sys.stdout.write(text.encode(encoding, "backslashreplace").decode(encoding))
        sys.stdout.flush()
    except BrokenPipeError:
        drop_unwritten(sys.stdout)
        raise click.exceptions.Exit(EXIT_PIPE_CLOSED) from None
    except OSError as error:
        from tape2048.errors import DiskFullError, StorageError

        drop_unwritten(sys.stdout)
        kind = DiskFullError if error.errno in (errno.ENOSPC, errno.EDQUOT) else StorageError
        raise kind(
            f"writing to standard output failed ({error.strerror})", hint="check where the output is sent"
        ) from error
