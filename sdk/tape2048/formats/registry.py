"""The registry of formats: names, extensions, readers, writers, and the data that each format cannot hold.

Conversion, exports, the commands and the documentation take their formats from here.
"""

from __future__ import annotations

import importlib
from typing import Any, NamedTuple

#: Facts of a run that a format may be unable to hold, in the words of ``convert``.
VALUES = "branch values"
VALUES_16_BITS = "branch values beyond 16 bits, or of a chosen move that was not best"
VALUES_0_TO_1 = "branch values outside 0 to 1 (normalised), or of a chosen move that was not best"
LOST_VALUES = "chosen values that the source has lost"
FINAL_BOARD = "the final board"
UNCERTAIN = "a final board that is uncertain"
FACTS = "start and elapsed time"
ENGINES = "the engine of each run, as a session has one player"


class Format(NamedTuple):
    """A format of runs, of tables, or of both.

    ``reader`` and ``writer`` are ``"module:function"`` or empty, and ``suffix`` is empty for a directory.
    ``lacks`` names the facts of a run that it cannot hold. ``compressions`` of a table start with the
    default; they are empty without tables. ``is_text`` is whether a table has lines, which can go to a pipe.
    """

    suffix: str
    magic: bytes = b""
    reader: str = ""
    writer: str = ""
    lacks: tuple[str, ...] = ()
    compressions: tuple[str, ...] = ()
    is_text: bool = False


_WHOLE = (UNCERTAIN, LOST_VALUES)
_SOURCES, _TARGETS = "tape2048.conversion.sources", "tape2048.conversion.targets"

#: All formats by name. An uncompressed Arrow file can be mapped.
FORMATS = {
    "a2run": Format(
        ".a2run", b"A2T1", f"{_SOURCES}:read_files", f"{_TARGETS}:write_files", (UNCERTAIN, VALUES)
    ),
    "a2run2": Format(".a2run2", b"", f"{_SOURCES}:read_files", f"{_TARGETS}:write_files", _WHOLE),
    "pack": Format(".a2pack", b"A2PACK\0\0", f"{_SOURCES}:read_pack", f"{_TARGETS}:write_pack", _WHOLE),
    "packdat": Format(
        ".dat", b"2048", f"{_SOURCES}:read_rows", f"{_TARGETS}:write_packdat",
        (FINAL_BOARD, VALUES_16_BITS, LOST_VALUES),
    ),
    "dataset": Format("", b"", f"{_SOURCES}:read_rows", f"{_TARGETS}:write_dataset", (VALUES_0_TO_1,)),
    "session": Format(
        "", b"", f"{_SOURCES}:read_sessions", f"{_TARGETS}:write_sessions",
        (FINAL_BOARD, VALUES, FACTS, ENGINES),
    ),
    "pack48": Format(
        "", b"", f"{_SOURCES}:read_sessions", "tape2048.conversion.pack48:write_pack48",
        (FINAL_BOARD, LOST_VALUES, FACTS, ENGINES),
    ),
    "tape": Format(
        "", b"", f"{_SOURCES}:read_sessions", f"{_TARGETS}:write_sessions",
        (UNCERTAIN, VALUES, FACTS, ENGINES),
    ),
    "jsonl": Format(
        ".jsonl", b"", f"{_SOURCES}:read_lines", f"{_TARGETS}:write_lines", (UNCERTAIN, VALUES),
        compressions=("none",), is_text=True,
    ),
    "parquet": Format(
        ".parquet", b"PAR1", f"{_SOURCES}:read_parquet", f"{_TARGETS}:write_parquet", _WHOLE,
        compressions=("zstd", "snappy", "none"),
    ),
    "arrow": Format(".arrow", compressions=("none", "zstd", "lz4")),
    "csv": Format(".csv", compressions=("none",), is_text=True),
}  # fmt: skip

#: The formats that :func:`tape2048.conversion.convert` writes.
RUN_FORMATS = tuple(name for name, one in FORMATS.items() if one.writer)
#: The formats that :func:`tape2048.export.export` writes.
TABLE_FORMATS = tuple(name for name, one in FORMATS.items() if one.compressions)
#: Formats with one file for each run.
RUN_FILES = ("a2run", "a2run2")


def load_function(name: str) -> Any:
    module, _, function = name.partition(":")
    return getattr(importlib.import_module(module), function)
