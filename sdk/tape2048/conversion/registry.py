"""The formats of runs: names, extensions, first bytes, and the parts of a run that each one holds."""

from __future__ import annotations

from typing import NamedTuple


class RunFormat(NamedTuple):
    """A format that holds runs."""

    suffix: str  # of its files; "" for directories
    magic: bytes = b""
    values: bool = True  # whether it holds branch values
    final_board: bool = True


#: The formats that :func:`tape2048.conversion.convert` writes.
FORMATS = {
    "a2run": RunFormat(".a2run", b"A2T1", values=False),
    "a2run2": RunFormat(".a2run2"),
    "pack": RunFormat(".a2pack", b"A2PACK\0\0"),
    "packdat": RunFormat(".dat", b"2048", final_board=False),
    "dataset": RunFormat(""),
    "session": RunFormat("", values=False, final_board=False),
    "jsonl": RunFormat(".jsonl", values=False),
    "parquet": RunFormat(".parquet", b"PAR1"),
}

#: Formats with one file for each run.
RUN_FILES = ("a2run", "a2run2")

#: Kinds of sources besides these formats: a run's file, a directory of them, a directory of sessions.
SESSIONS = ("session", "sessions")
