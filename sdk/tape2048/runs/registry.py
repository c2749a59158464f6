"""The formats of runs and tables: names, extensions, modules, and the facts that a format cannot hold.

Each module has ``read``, which opens a path as a source of runs, and ``write``, which writes the runs of a
conversion. A module is imported when its format is used: see :func:`load`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from pathlib import Path

#: Facts of a run that a format may be unable to hold, in the words of ``convert``.
VALUES = "branch values"
VALUES_16_BITS = "branch values beyond 16 bits, or of a chosen move that was not best"
VALUES_0_TO_1 = "branch values outside 0 to 1 (normalised), or of a chosen move that was not best"
LOST_VALUES = "chosen values that the source has lost"
FINAL_BOARD = "the final board"
UNCERTAIN = "a final board that is uncertain"
FACTS = "start and elapsed time"
ENGINES = "the engine of each run, as a session has one player"

#: A game of another program, with a ``.meta.json`` beside it.
JSONL_GZ = ".jsonl.gz"


class Format(NamedTuple):
    """A format of runs, of tables, or of both.

    Attributes:
        suffix: extension of its files; "" for a directory.
        module: module of ``tape2048.runs`` that reads and writes its runs; "" if it holds only tables.
        magic: first bytes of its files.
        lacks: facts of a run that it cannot hold.
        compressions: compressions of a table, the default first; empty if it holds no tables.
        is_text: whether a table has lines, which can go to a pipe.
        fields: fields of a pack's rows that become fields of its rows.
    """

    suffix: str
    module: str = ""
    magic: bytes = b""
    lacks: tuple[str, ...] = ()
    compressions: tuple[str, ...] = ()
    is_text: bool = False
    fields: tuple[str, ...] = ()


_WHOLE = (UNCERTAIN, LOST_VALUES)

#: All formats by name. An uncompressed Arrow file can be mapped.
FORMATS = {
    "a2run": Format(".a2run", "files", b"A2T1", (UNCERTAIN, VALUES)),
    "a2run2": Format(".a2run2", "files", b"", _WHOLE),
    "a2pack": Format(".a2pack", "a2pack", b"A2PACK\0\0", _WHOLE),
    "packdat": Format(".dat", "packdat", b"2048", (FINAL_BOARD, VALUES_16_BITS, LOST_VALUES)),
    "dataset": Format("", "dataset", b"", (VALUES_0_TO_1,)),
    "session": Format("", "sessions", b"", (FINAL_BOARD, VALUES, ENGINES)),
    "pack48": Format(
        "",
        "pack48",
        lacks=(FINAL_BOARD, LOST_VALUES, FACTS, ENGINES),
        fields=("board_eval", "max_rank", "seed", "valuation_type"),
    ),
    "tape": Format("", "sessions", b"", (UNCERTAIN, VALUES, ENGINES)),
    "jsonl": Format(".jsonl", "jsonl", b"", (UNCERTAIN, VALUES), ("none",), is_text=True),
    "parquet": Format(".parquet", "parquet", b"PAR1", _WHOLE, ("zstd", "snappy", "none")),
    "arrow": Format(".arrow", compressions=("none", "zstd", "lz4")),
    "csv": Format(".csv", compressions=("none",), is_text=True),
}
#: The formats that :func:`tape2048.runs.convert` writes.
RUN_FORMATS = tuple(name for name, one in FORMATS.items() if one.module)
#: The formats that :func:`tape2048.runs.export` writes.
TABLE_FORMATS = tuple(name for name, one in FORMATS.items() if one.compressions)
#: Formats with one file for each run.
RUN_FILES = ("a2run", "a2run2")
#: Kinds of sources with sessions.
SESSIONS = ("session", "sessions")

#: The modules of the kinds of paths that are not formats: a run file, a directory of run files, a directory
#: of sessions, and games of another program.
_MODULES = {"run": "files", "runs": "files", "sessions": "sessions", "foreign": "foreign_games"}
#: Extensions of files that other programs write; ``.gz`` and ``.zst`` may follow.
_FOREIGN = (".jsonl", ".ndjson", ".json", ".csv", ".tsv", ".parquet", ".arrow", ".feather")


def load(kind: str) -> Any:
    """Import the module of a format, or of a kind of path."""
    return importlib.import_module(f"tape2048.runs.{_MODULES.get(kind) or FORMATS[kind].module}")


def plain_name(path: Path) -> str:
    """Return a file's name in lower case, without ``.gz`` or ``.zst``."""
    return path.name.lower().removesuffix(".gz").removesuffix(".zst")


def is_foreign(path: Path) -> bool:
    """Tell whether a file's name is of a format that other programs write."""
    return plain_name(path).endswith(_FOREIGN)


def kind_of(path: Path) -> str:
    """Return the kind of a path: a format, or ``"run"``, ``"runs"``, ``"sessions"`` or ``"foreign"``.

    Raises:
        MissingPathError: ``path`` does not exist.
        MagicError: the file is of no known kind.
        StorageError: the path cannot be read.
    """
    from tape2048.errors import MagicError
    from tape2048.files.reading import first_bytes, reading  # loads NumPy

    with reading(path):
        is_directory = path.is_dir()
    if is_directory:
        from tape2048.session.directory import is_dataset, is_session, list_names
        from tape2048.session.session import sessions

        names = list_names(path)
        if is_dataset(path, names):
            return "dataset"
        if is_session(names):
            return "session"
        return "sessions" if sessions(path) else "runs"
    head = first_bytes(path, 8)
    for kind, one in FORMATS.items():
        if one.magic and head.startswith(one.magic):
            return "run" if kind == "a2run" else kind
    facts = path.with_name(path.name.removesuffix(JSONL_GZ) + ".meta.json")
    if path.name.endswith(JSONL_GZ) and (facts.exists() or facts.with_suffix(".json.gz").exists()):
        return "run"
    kinds = {".a2run2": "run", ".jsonl": "jsonl", ".ndjson": "jsonl"}
    named = next((kind for suffix, kind in kinds.items() if path.name.endswith(suffix)), "")
    if named or is_foreign(path):
        return named or "foreign"
    found = f"the extension {path.suffix}" if path.suffix else "no extension"
    raise MagicError(
        f"found no known magic, and {found}; expected a file with runs",
        path=path,
        hint="name a2run2 files *.a2run2, and JSON lines *.jsonl: these formats have no magic",
    )
