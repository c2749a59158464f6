"""TOML with the line numbers that the standard parser does not report."""

from __future__ import annotations

import re
import tomllib
from typing import TYPE_CHECKING, Any

from tape2048.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

#: Limit of a configuration file, so that a wrong path (a device, a data file) is not read whole.
CONFIG_BYTES_MAX = 1_000_000

_SAMPLE_HINT = "name another with --config or TAPE2048_CONFIG; `tape2048 config init` writes a sample"


def read_toml(path: Path, sample_hint: str = _SAMPLE_HINT) -> tuple[dict[str, Any], dict[str, int]]:
    """Read the values of a file, and the line of each top-level name."""
    text = _read_text(path, sample_hint)
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        what, line, column = _place(str(error), text)
        raise ConfigError(
            f"found malformed TOML, expected key = value: {what} (line {line}, column {column})",
            path=f"{path}:{line}",
            hint="text needs quotes, true and false do not",
        ) from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(
            f"found TOML that cannot be read, expected key = value: {error}",
            path=path,
            hint="look for a number of thousands of digits, or as many brackets",
        ) from error
    return values, _lines(text)


def _read_text(path: Path, sample_hint: str) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(CONFIG_BYTES_MAX + 1)
    except OSError as error:
        raise ConfigError(
            f"found {error.strerror or error}, expected a TOML file that can be read",
            path=path,
            hint=sample_hint,
        ) from error
    if len(data) > CONFIG_BYTES_MAX:
        raise ConfigError(
            f"found more than {CONFIG_BYTES_MAX:,} bytes, expected a page of TOML",
            path=path,
            hint="check that the path names a configuration",
        )
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"found byte 0x{data[error.start]:02x}, expected UTF-8 text",
            path=path,
            offset=error.start,
            hint="save the file as UTF-8",
        ) from error


def _place(message: str, text: str) -> tuple[str, int, int]:
    """Split the parser's message into text, line and column."""
    what, _, where = message.rpartition(" (at ")
    match = re.fullmatch(r"line (\d+), column (\d+)\)", where)
    if match is not None:
        return what, int(match[1]), int(match[2])
    lines = text.splitlines() or [""]
    return what or message, len(lines), len(lines[-1]) + 1


def _lines(text: str) -> dict[str, int]:
    """Find the first line of each top-level name of a valid file.

    The parser itself separates statements: lines are added until they parse, so that no text inside a
    multi-line value is taken for a key.
    """
    lines: dict[str, int] = {}
    table: str | None = None
    gathered: list[str] = []
    for number, line in enumerate(re.split(r"\r?\n", text), start=1):
        gathered.append(line)
        try:
            statement = tomllib.loads("\n".join(gathered))
        except tomllib.TOMLDecodeError:
            continue
        is_header = gathered[0].lstrip().startswith("[")
        for name in statement:
            table = name if is_header else table
            lines.setdefault(table or name, number - len(gathered) + 1)
        gathered.clear()
    return lines
