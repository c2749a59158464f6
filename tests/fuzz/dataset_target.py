"""The data set directory as fuzzing sees it: its three files in one piece of bytes.

::

    steps.npy, SPLIT, the table runs, SPLIT, manifest.json (nothing: there is none)

The table stands here as what SQLite hands out, 60 bytes a run: SQLite's own bytes take a millisecond to open,
and are damaged in ``test_fuzz_dataset.py`` with the rest of a real directory. What is done with the parts,
and in which order, is what opening a directory does.
"""

from __future__ import annotations

import functools
import io
import json
import random
import re
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
from tests.fuzz.harness import EXTREMES, Field, Target, pick
from tests.fuzz.set_targets import GAMES
from tests.sdk import run_builders as build
from tests.sdk.datasets.set_builders import dataset_rows

from tape2048.errors import FieldError
from tape2048.files.npy import HEADER_TEXT_BYTES_MAX as _TEXT_MAX, NpyHeader, check_header
from tape2048.formats.dataset_layout import DATASET_ROW_DTYPE, DatasetManifest
from tape2048.session.dataset import check_files, check_whole
from tape2048.session.dataset_runs import RunTable, table_of_columns
from tape2048.session.foreign import Layout, check_ends
from tape2048.session.layout import parse_manifest

SPLIT = b"\n====\n"
PATH = Path("metadata.db")

#: id, first_step_idx, num_steps, max_score, highest_tile, start_time; elapsed_s; engine, zeros after it.
_RUN = struct.Struct("<6qf8s")
_ROW = struct.Struct("<QBB4fIH")
_DB_BYTES = 40
_DESCR = (
    "[('board', '<u8'), ('move', '|u1'), ('ev_legal', '|u1'), ('ev_values', '<f4', (4,)), "
    "('run_id', '<u4'), ('step_index', '<u2')]"
)


class Parts(NamedTuple):
    """What opening a data set finds out."""

    data: bytes
    header: NpyHeader
    table: RunTable
    manifest: DatasetManifest | None


class _Directory:
    """Sizes of files by name; to ask for anything outside is a finding."""

    def __init__(self, sizes: dict[str, int]) -> None:
        self._sizes = sizes

    def __str__(self) -> str:
        return "case"

    def __truediv__(self, name: str) -> _File:
        inside = name in self._sizes or re.fullmatch(r"(shards/)?[^/]+", name)
        assert inside, f"{name!r} was asked for"
        assert not name.rpartition("/")[2].startswith("."), f"{name!r} was asked for"
        return _File(name, self._sizes.get(name))


class _File(NamedTuple):
    name: str
    st_size: int | None

    def __str__(self) -> str:
        return self.name

    def stat(self) -> _File:
        if self.st_size is None:
            raise FileNotFoundError(self.name)
        return self


def decode(data: bytes) -> Parts:
    steps, runs, text = _split(data)
    directory = cast("Path", _Directory({"steps.npy": len(steps), "metadata.db": _DB_BYTES}))
    manifest = None
    if text:
        manifest = parse_manifest(text, "manifest.json", DatasetManifest, version=1, what="data set")
        check_files(manifest, directory)
    table = _table(runs)
    head_end = 12 + min(int.from_bytes(steps[8 : 10 if steps[6:7] == b"\x01" else 12], "little"), _TEXT_MAX)
    header = _header(steps[:head_end], len(steps))
    check_whole(manifest, header.rows, table, directory)
    rows = np.frombuffer(steps, np.uint8)[header.data_offset :].view(DATASET_ROW_DTYPE)
    filled = table.to_runs()[table.rows["steps"] > 0]
    first = filled["first_row"].astype(np.int64)
    ends = rows[first], rows[first + filled["steps"] - 1]
    check_ends(filled, ends, Layout.of(DATASET_ROW_DTYPE, PATH), PATH)
    return Parts(data, header, table, manifest)


@functools.lru_cache(maxsize=256)
def _header(head: bytes, size: int) -> NpyHeader:
    # Most damage is elsewhere, and Python's parser would take most of the time. As with the table below:
    # what is refused is not kept, and is refused each time.
    return check_header(head, size, "steps.npy", [DATASET_ROW_DTYPE])


def encode(parts: Parts) -> bytes:
    """The table put together from what was read; of steps and manifest, what other readers make of them."""
    steps, _, text = _split(parts.data)
    _compare_rows(steps, parts)
    if parts.manifest is not None:
        said = json.loads(text.decode(errors="surrogateescape"), strict=False)
        counts = (parts.header.rows, len(parts.table))
        assert (said["version"], said["num_steps"], said["num_runs"]) == (1, *counts)
        sizes = {"steps.npy": len(steps), "metadata.db": _DB_BYTES}
        for name, entry in said.get("files", {}).items():
            assert entry["bytes"] == sizes[name], "a file of another size"
            assert parts.manifest.files[name].crc32c == entry["crc32c"]
    columns = ("id", "first_row", "steps", "max_score", "highest_tile", "start_unix_s", "elapsed_s")
    rows = zip(*(parts.table.rows[name].tolist() for name in columns), strict=True)
    names = ((name or "").encode("latin-1") for name in parts.table.engine_names())
    runs = sorted((*row, name) for row, name in zip(rows, names, strict=True))
    return steps + SPLIT + b"".join(_RUN.pack(*run) for run in runs) + SPLIT + text


def _compare_rows(steps: bytes, parts: Parts) -> None:
    """What NumPy reads of the file, and whose the rows at both ends of a run are."""
    assert _as_numpy_reads(steps[: parts.header.data_offset]) in {
        None,
        (parts.header.rows, DATASET_ROW_DTYPE),
    }
    assert len(steps) == parts.header.data_offset + _ROW.size * parts.header.rows
    first = 0
    for run_id, count in parts.table.rows[["id", "steps"]].tolist():
        for step in {0, count - 1} if count else ():
            row = _ROW.unpack_from(steps, parts.header.data_offset + _ROW.size * (first + step))
            assert row[-2:] == (run_id, step), "a row that belongs to another run"
        first += count
    assert first == parts.header.rows
    ids = parts.table.rows["id"].tolist()
    assert len(set(ids)) == len(ids)


@functools.lru_cache(maxsize=256)
def _as_numpy_reads(head: bytes) -> tuple[int, np.dtype[Any]] | None:
    """Rows and their type; None for version 3.0, where NumPy's public functions end."""
    file = io.BytesIO(head)
    version = np.lib.format.read_magic(file)
    if version == (3, 0):
        return None
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, fortran, dtype = read(file)
    assert not fortran
    assert file.tell() == len(head)
    (rows,) = shape
    return rows, dtype


def _split(data: bytes) -> list[bytes]:
    parts = data.split(SPLIT)
    if len(parts) != 3:
        raise FieldError(f"{len(parts)} parts; expected 3")  # of no format: this module's own
    return parts


@functools.lru_cache(maxsize=256)
def _table(runs: bytes) -> RunTable:
    if len(runs) % _RUN.size:
        raise FieldError("no whole number of runs")
    found = list(_RUN.iter_unpack(runs))
    if found != sorted(found, key=lambda run: run[0]):
        raise FieldError("SQLite hands out rows by their id")
    *counts, elapsed, names = map(list, zip(*found, strict=True)) if found else [[] for _ in range(8)]
    if any(name != name.rstrip(b"\0").ljust(8, b"\0") for name in names):
        raise FieldError("zeros within a name")
    engines = [name.rstrip(b"\0").decode("latin-1") or None for name in names]
    return table_of_columns(
        cast("list[list[int]]", counts), cast("list[float]", elapsed), engines, "metadata.db"
    )


def seal(data: bytearray) -> None:
    """The manifest's size of ``steps.npy`` made to fit."""
    parts = bytes(data).split(SPLIT)
    if len(parts) == 3:
        size = b"%d" % len(parts[0])
        parts[2] = re.sub(rb'("steps.npy": ?\{"bytes": ?)\d+', lambda match: match[1] + size, parts[2])
        data[:] = SPLIT.join(parts)


def fields(data: bytes) -> list[Field]:
    steps, runs, _ = [*data.split(SPLIT), b"", b""][:3]
    found = [Field(6, 1), Field(7, 1), Field(8, 2)]
    begin = 10 + int.from_bytes(steps[8:10], "little")
    for at in range(begin, len(steps) - _ROW.size + 1, _ROW.size):
        found += [Field(at + 26, 4), Field(at + 30, 2)]
    begin = len(steps) + len(SPLIT)
    for at in range(begin, begin + len(runs) - _RUN.size + 1, _RUN.size):
        found += [Field(at + 8 * i, 8) for i in range(6)] + [Field(at + 48, 4)]
    return found


_SHAPES = ("({0}, 1)", "(1, {0})", "()", "(-{0},)", "({0}.0,)", "(True,)", "{0}", "[{0}]", "({0}, )")


def absurd(rng: random.Random) -> bytes:
    """Other numbers in the manifest, headers that say something else, or rows that are not there."""
    how = int(rng.random() * 3)
    if how == 0:
        steps, runs, text = _seeds()[0].split(SPLIT)
        numbers = list(re.finditer(rb"\d+", text))
        found = pick(rng, numbers)
        number = pick(rng, (int(found[0]) + int(rng.random() * 5) - 2, pick(rng, EXTREMES)))
        return SPLIT.join((steps, runs, text[: found.start()] + b"%d" % number + text[found.end() :]))
    if how == 1:
        count = sum(len(game.moves) for game in GAMES)
        shape = pick(rng, _SHAPES).format(count)
        header = npy_bytes(b"", count).replace(b"(%d,)" % count, shape.encode())
        if rng.random() < 0.2:
            header = header.replace(b"False", b"True ")
        header += b" " * (256 - len(header))
        return _seeds()[0].replace(npy_bytes(b"", count), header[:256])
    steps = pick(rng, EXTREMES)
    runs = [(0, 0, steps % 2**63, 0, 2, 0, 0.0, b"")]
    data = bytearray(_seed([], steps, runs, _manifest(steps, 1) if rng.random() < 0.5 else b""))
    seal(data)
    return bytes(data)


def npy_bytes(rows: bytes, count: int, *, width: int = 2, total: int = 256) -> bytes:
    text = f"{{'descr': {_DESCR}, 'fortran_order': False, 'shape': ({count},), }}".encode()
    head = b"\x93NUMPY" + bytes([1 if width == 2 else 2, 0])
    room = total - len(head) - width
    return head + room.to_bytes(width, "little") + text.ljust(room - 1) + b"\n" + rows


def run_records(games: Sequence[build.PlainRun]) -> list[tuple[Any, ...]]:
    found, first = [], 0
    for run_id, game in enumerate(games):
        count, score = len(game.moves), min(game.max_score, 2**63 - 1)
        facts = (run_id, first, count, score, game.highest_tile, game.start_unix_s, game.elapsed_s)
        found.append((*facts, (game.engine or "").encode("latin-1")))
        first += count
    return found


def _manifest(steps: int, runs: int, **more: Any) -> bytes:
    files = {"steps.npy": {"bytes": 0, "crc32c": 7}, "metadata.db": {"bytes": _DB_BYTES, "crc32c": 1}}
    return json.dumps({"version": 1, "num_steps": steps, "num_runs": runs, "files": files, **more}).encode()


def _seed(games: Sequence[build.PlainRun], count: int, runs: list[tuple[Any, ...]], manifest: bytes) -> bytes:
    # NumPy's own header ends at a multiple of 64 bytes; ours has 256.
    steps = npy_bytes(dataset_rows(games).tobytes(), count, width=2 if manifest else 4)
    return SPLIT.join((steps, b"".join(_RUN.pack(*run) for run in runs), manifest))


@functools.cache
def _seeds() -> list[bytes]:
    seeds = []
    for games, how in ((GAMES, "ours"), (GAMES[:2], "bare"), (GAMES[1:2], "four"), ([], "ours")):
        steps = sum(len(game.moves) for game in games)
        source = {"path": "a", "kind": "a2run2", "runs": len(games), "steps": steps, "skipped": 0}
        skipped = {"run": "b.a2run", "error": "FieldError", "message": "no"}
        manifest = {
            "ours": _manifest(steps, len(games), steps_crc32c=3, sources=[source], skipped=[skipped]),
            "four": json.dumps(
                {"version": 1, "num_steps": steps, "num_runs": len(games), "created": "2025-01-01T00:00:00Z"}
            ).encode(),
            "bare": b"",
        }[how]
        data = bytearray(_seed(games, steps, run_records(games), manifest))
        seal(data)
        seeds.append(bytes(data))
    return seeds


DATASET = Target("dataset", _seeds(), decode, encode, seal, fields, absurd)
