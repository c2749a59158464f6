r"""Text and numbers for people and files: counts, times, HTML tables, JSON with file names, whole numbers.

A file's name is bytes. Python's text for bytes that are not UTF-8 fits neither JSON nor Arrow, and is written
with escapes instead: byte 0xff as ``\udcff``.
"""

from __future__ import annotations

import datetime as dt
import html
import math
import operator
import re
import signal
from collections.abc import Mapping, Sequence
from decimal import Decimal, InvalidOperation
from typing import Any, SupportsIndex

import msgspec

#: Numbers with more digits are rejected before they are computed: ``1e999999999`` has a billion digits. 64
#: bits need 20 digits, and 20 digits times the largest factor are exact in Decimal's 28 digits.
DIGITS_MAX = 20


def counted(count: int, noun: str) -> str:
    """Format a count and its noun: ``1 game``, ``2,346 games``."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def split_words(text: str) -> list[str]:
    """Split a list at commas and white space. Two commas in a row give an empty word."""
    return re.split(r"\s*,\s*|\s+", text.strip())


def exit_text(code: int) -> str:
    """Describe a process's exit status, as ``subprocess`` gives it."""
    return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"


def as_int(name: str, value: SupportsIndex) -> int:
    """Convert an integer argument (NumPy's and PyTorch's too) to a Python int, or raise a ValueError."""
    try:
        return operator.index(value)
    except TypeError:
        raise ValueError(f"{name}={value!r}; expected a whole number") from None


def json_bytes(value: object) -> bytes:
    """Encode a value as JSON; text that is not valid Unicode is escaped. TypeError if JSON cannot hold it."""
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        return msgspec.json.encode(_escaped(msgspec.to_builtins(value)))


def pretty_json(value: object) -> bytes:
    """Encode a value as :func:`json_bytes` does, indented and ended by a newline, for a file."""
    return msgspec.json.format(json_bytes(value)) + b"\n"


def _escaped(value: Any) -> Any:
    if isinstance(value, dict):
        return {_escaped(key): _escaped(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_escaped(item) for item in value]
    return valid_text(value) if isinstance(value, str) else value


def valid_text(text: str) -> str:
    """Escape the parts of a text that are not valid Unicode."""
    return text.encode("utf-8", "backslashreplace").decode()


def printable(value: object) -> str:
    r"""Return a value as one line of text, with unprintable characters escaped (``\x1b``)."""
    text = str(value)
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape", "surrogatepass").decode()
        for char in text
    )


def is_utf8(text: str) -> bool:
    return valid_text(text) == text


def unix_s(text: Any) -> float:
    """Return a time as :func:`iso_seconds` does, but NaN for other text and other types."""
    try:
        return iso_seconds(text)
    except (TypeError, ValueError, OverflowError):
        return math.nan


def utc_text(unix_s: float) -> str | None:
    """Return a time in seconds since 1970 as ``2026-11-21T06:00:00Z``; None outside the years 1 to 9999."""
    try:
        return dt.datetime.fromtimestamp(unix_s, dt.UTC).isoformat().replace("+00:00", "Z")
    except (ValueError, OverflowError, OSError):
        return None


def iso_seconds(text: str) -> float:
    """Return a time in ISO 8601 in seconds since 1970, in UTC without an offset, or raise ValueError."""
    is_short = re.fullmatch(r"\d{4}(-\d\d)?", text, re.ASCII)  # a year or a month, which Python does not read
    found = dt.datetime.fromisoformat(f"{text}-01-01"[:10] if is_short else text)
    return (found if found.tzinfo is not None else found.replace(tzinfo=dt.UTC)).timestamp()


def aligned(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return rows as plain lines in columns. A heading that starts with ``>`` is for a column of numbers."""
    names = [heading.removeprefix(">") for heading in headings]
    lines = [names, *(row if "".join(row).isprintable() else [*map(printable, row)] for row in rows)]
    cells = zip(*lines, strict=True)
    widths = [max(len(line) for text in column for line in text.split("\n")) for column in cells]
    form = "  ".join(
        f"{{:{'>' if heading.startswith('>') else '<'}{width}}}"
        for heading, width in zip(headings, widths, strict=True)
    )
    return "".join(f"{form.format(*line).rstrip()}\n" for line in lines)


def html_table(title: str, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = ["".join(f"<th>{html.escape(name.removeprefix('>'))}</th>" for name in headings)]
    lines += ["".join(f"<td>{html.escape(cell)}</td>" for cell in row) for row in rows]
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    return f"<table><caption>{html.escape(title)}</caption>{body}</table>"


_BAR = (
    '<div style="display:inline-block;height:.7em;width:{width:.1f}em;background:#8a8376"></div> {share:.2%}'
)


def facts_table(title: str, facts: Mapping[str, object], bars: Mapping[str, float] | None = None) -> str:
    """Return a table of facts, and below them shares as bars, in HTML."""
    rows = [
        (name, html.escape(f"{fact:,}" if isinstance(fact, int) else str(fact)))
        for name, fact in facts.items()
    ]
    rows += [(name, _BAR.format(width=12 * share, share=share)) for name, share in (bars or {}).items()]
    cells = "".join(f"<tr><th>{html.escape(name)}</th><td>{cell}</td></tr>" for name, cell in rows)
    return f'<table style="text-align:left"><caption>{html.escape(title)}</caption>{cells}</table>'


def read_plain(text: str) -> int | float | str | bool:
    """Parse a value without a setting, such as a player's parameter: a Boolean, a number, or text."""
    if text in ("true", "false"):
        return text == "true"
    number = number_in(text, {})
    if number is None:
        return text
    return int(number) if re.fullmatch(r"[-+]?(\d[\d_]*|0[xX][0-9a-fA-F_]+)", text) else float(number)


def show_plain(value: object) -> str:
    """Format a value for :func:`read_plain`."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def number_in(text: str, suffixes: dict[str, Decimal]) -> Decimal | None:
    """Parse a number with an optional suffix; None for other text."""
    text = text.strip()
    if re.fullmatch(r"0[xX][0-9a-fA-F_]{1,20}", text):
        return Decimal(int(text, 16))
    match = re.fullmatch(
        r"(?P<number>[-+]?[0-9_]*\.?[0-9_]+(?:[eE][-+]?[0-9]+)?) *(?P<suffix>[A-Za-z]*)", text
    )
    if match is None or (match["suffix"] and match["suffix"] not in suffixes):
        return None
    try:
        number = Decimal(match["number"])
    except InvalidOperation:
        return None
    if abs(number.adjusted()) > DIGITS_MAX or len(number.as_tuple().digits) > DIGITS_MAX:
        return None
    return number * suffixes.get(match["suffix"], 1)
