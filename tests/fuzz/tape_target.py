"""A session on tape as fuzzing sees it: its four files in one piece of bytes.

::

    tape.npy, SPLIT, anchors.npy, SPLIT, the table runs, SPLIT, manifest.json

The table stands here as its packed copy does in ``metadata.db``, 40 bytes a run and then 8 for each start;
SQLite's own bytes are damaged elsewhere. What is done with the parts, and in which order, is what opening and
validating a session does.
"""

from __future__ import annotations

import contextlib
import functools
import io
import json
import random
import re
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
from tests import reference as ref
from tests.fuzz.harness import EXTREMES, Field, Target, pick
from tests.sdk.tapes import TapeGames, games_on_tape, plain_npy

from tape2048.errors import FieldError, FormatError, ManifestError
from tape2048.files.npy import HEADER_TEXT_BYTES_MAX as _TEXT_MAX, NpyHeader, check_header
from tape2048.maintenance.validation import TapeChecks
from tape2048.session.directory import PLAIN_NAME
from tape2048.session.layout import RUN_DTYPE, Manifest, file_defects, parse_manifest
from tape2048.session.metadata import Metadata
from tape2048.session.run_table import from_run_table
from tape2048.session.tape_layout import ANCHOR_DTYPE, TAPE_DTYPE
from tape2048.session.tape_reader import Tape, check_anchor_rows, make_tape

SPLIT = b"\n====\n"

_NAMES = ("tape.npy", "anchors.npy", "metadata.db")
_DB_BYTES = 40
_RUN_BYTES = RUN_DTYPE.itemsize + 8

#: Random games of 28 and 34 steps, which are short ones.
GAMES = games_on_tape(1039, 3051)


class Parts(NamedTuple):
    """What opening and validating a session finds out."""

    data: bytes
    tape: Tape
    boards: np.ndarray[Any, np.dtype[np.uint64]]
    manifest: Manifest


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


def decode(data: bytes) -> Parts:
    tape_bytes, anchor_bytes, table, text = _split(data)
    sizes = dict(zip(_NAMES, (len(tape_bytes), len(anchor_bytes), _DB_BYTES), strict=True))
    directory = cast("Path", _Directory(sizes))
    manifest = parse_manifest(text, "manifest.json", Manifest, version=1, what="session format")
    for name in _NAMES:
        if name not in manifest.files:
            raise ManifestError(f"{name} is not listed", path="manifest.json")
    for defect in file_defects(manifest.files, directory, PLAIN_NAME.fullmatch):
        raise defect
    path = Path("case")
    anchor_rows = check_anchor_rows(path, manifest)
    heads = [
        _header(_head(part), len(part), is_tape=is_tape)
        for part, is_tape in ((tape_bytes, True), (anchor_bytes, False))
    ]
    bytes_, anchors = (
        np.frombuffer(part[head.data_offset :], head.dtype)
        for part, head in zip((tape_bytes, anchor_bytes), heads, strict=True)
    )
    if len(table) % _RUN_BYTES:
        raise FieldError("no whole number of runs")
    count = len(table) // _RUN_BYTES
    runs = np.frombuffer(table, RUN_DTYPE, count)
    starts = np.frombuffer(table, "<u8", offset=count * RUN_DTYPE.itemsize)
    metadata = Metadata(runs, None, {"storage": "tape"}, has_rows=True, start_boards=starts)
    offsets = heads[0].data_offset, heads[1].data_offset
    tape = make_tape(path, metadata, bytes_, anchors, anchor_rows, offsets)
    from_run_table(tape.runs, len(tape), path)
    if (manifest.rows, manifest.runs) != (len(tape), count):
        raise ManifestError("counts differ", path=path)
    checks = TapeChecks(tape.runs, tape.starts, anchor_rows, (path, path), offsets)
    for games, rows, anchor_range in checks.pieces(40):
        checks.update(games, rows, bytes_[rows], anchors[anchor_range])
    defects = list(checks.defects())
    boards = None
    with contextlib.suppress(FormatError):
        boards = tape.boards(0, len(tape))
    assert boards is not None or defects, "found in reading alone"
    if boards is not None:
        # A whole session is read without a look at ends and scores, but at every step and anchor.
        seen = "the anchor of|bit 7|illegal|full|continues"
        assert not any(re.search(seen, defect.message) for defect in defects), "found in validation alone"
    for defect in defects:
        raise defect
    return Parts(data, tape, cast("Any", boards), manifest)


def encode(parts: Parts) -> bytes:
    """The bytes, after a look at what was let through: each game by the reference rules, and the headers."""
    tape_bytes, anchor_bytes, table, text = _split(parts.data)
    for part, head, dtype in zip(
        (tape_bytes, anchor_bytes),
        (len(parts.tape.data), len(parts.tape.anchors)),
        (TAPE_DTYPE, ANCHOR_DTYPE),
        strict=True,
    ):
        assert _as_numpy_reads(part[: len(part) - head * dtype.itemsize]) in {None, (head, dtype)}
    said = json.loads(text.decode(errors="surrogateescape"), strict=False)
    assert (said["version"], said["rows"], said["runs"]) == (1, len(parts.tape), len(parts.tape.runs))
    first = 0
    for run, start in zip(parts.tape.runs, parts.tape.starts.tolist(), strict=True):
        assert run["first_row"] == first
        content = parts.tape.data[first : first + int(run["rows"])].tobytes()
        boards, score, highest = _played(content, start)
        assert (run["steps"], run["score"], run["highest_tile"]) == (len(content), score, highest)
        assert parts.boards[first : first + len(content)].tolist() == boards
        first += len(content)
    assert first == len(parts.tape)
    distance = said["anchor_rows"]
    assert distance.bit_count() == 1
    assert parts.tape.anchors.tolist() == parts.boards[::distance].tolist()
    if len(parts.tape):
        rows = np.arange(len(parts.tape))[::-3]
        assert (parts.tape.boards_at(rows) == parts.boards[rows]).all()
    return tape_bytes + SPLIT + anchor_bytes + SPLIT + table + SPLIT + text


@functools.lru_cache(maxsize=256)
def _played(content: bytes, start: int) -> tuple[list[int], int, int]:
    """The boards, the score and the highest tile of a game, by the reference rules."""
    cells, boards, score = ref.unpack(start), [], 0
    assert sorted(cells)[:14] == [0] * 14
    assert {*sorted(cells)[14:]} <= {1, 2}
    for byte in content:
        boards.append(ref.pack(cells))
        after, gained = ref.slide(cells, byte & 3)
        cell = byte >> 2 & 15
        assert byte < 128
        assert after != cells
        assert after[cell] == 0
        after[cell] = 2 if byte & 64 else 1
        cells, score = after, score + gained
    assert not ref.legal_moves(cells)
    return boards, score, 1 << max(cells)


def _head(part: bytes) -> bytes:
    return part[: 12 + min(int.from_bytes(part[8 : 10 if part[6:7] == b"\x01" else 12], "little"), _TEXT_MAX)]


@functools.lru_cache(maxsize=256)
def _header(head: bytes, size: int, *, is_tape: bool) -> NpyHeader:
    return check_header(head, size, "case", [TAPE_DTYPE if is_tape else ANCHOR_DTYPE])


def _split(data: bytes) -> list[bytes]:
    parts = data.split(SPLIT)
    if len(parts) != 4:
        raise FieldError(f"{len(parts)} parts; expected 4")  # of no format: this module's own
    return parts


def seal(data: bytearray) -> None:
    """The manifest's sizes of the two files made to fit."""
    parts = bytes(data).split(SPLIT)
    if len(parts) == 4:
        for name, part in zip((b"tape", b"anchors"), parts, strict=False):
            size = b"%d" % len(part)
            pattern = rb'("%b.npy": ?\{"bytes": ?)\d+' % name
            parts[3] = re.sub(pattern, lambda match, size=size: match[1] + size, parts[3])  # type: ignore[misc]
        data[:] = SPLIT.join(parts)


def fields(data: bytes) -> list[Field]:
    tape, anchors, table, _ = [*data.split(SPLIT), b"", b"", b""][:4]
    found = [Field(at, size) for at, size in ((6, 1), (7, 1), (8, 2))]
    found += [Field(at, 1) for at in range(128, len(tape))]
    begin = len(tape) + len(SPLIT)
    found += [Field(begin + at, size) for at, size in ((6, 1), (8, 2))]
    found += [Field(at, 8) for at in range(begin + 128, begin + len(anchors) - 7, 8)]
    begin += len(anchors) + len(SPLIT)
    count = len(table) // _RUN_BYTES
    for at in range(begin, begin + RUN_DTYPE.itemsize * count, RUN_DTYPE.itemsize):
        found += [Field(at + 8 * i, 8) for i in range(3)] + [Field(at + 24 + 4 * i, 4) for i in range(4)]
    starts = begin + RUN_DTYPE.itemsize * count
    return found + [Field(starts + 8 * i, 8) for i in range(count)]


def absurd(rng: random.Random) -> bytes:
    """Other numbers in the manifest; too many rows; moved borders; another distance of anchors."""
    how = int(rng.random() * 4)
    if how == 3:
        distance, told = pick(rng, (2, 3, 12, 64, 4096, 8192)), pick(rng, (8, 16, 64))
        if rng.random() < 0.5:
            return seed_of(GAMES, distance)
        return seed_of(GAMES, 16).replace(b'"anchor_rows": 16', b'"anchor_rows": %d' % told)
    tape, anchors, table, text = _seeds()[0].split(SPLIT)
    if how == 0:
        found = pick(rng, list(re.finditer(rb"\d+", text)))
        number = pick(rng, (int(found[0]) + int(rng.random() * 5) - 2, pick(rng, EXTREMES)))
        text = text[: found.start()] + b"%d" % number + text[found.end() :]
    elif how == 1:
        rows = pick(rng, EXTREMES) % 2**63
        tape = plain_npy("|u1", GAMES.tape, rows)
        anchors = plain_npy("<u8", GAMES.boards[::16], -(-rows // 16))
        runs = GAMES.runs[:1].copy()
        runs["rows"] = runs["steps"] = rows % 2**32
        table = runs.tobytes() + GAMES.starts[:1].tobytes()
        text = text.replace(b'"rows": %d' % len(GAMES.tape), b'"rows": %d' % rows)
    else:
        runs = GAMES.runs.copy()
        border = int(GAMES.runs["rows"][0]) + int(rng.random() * 5) - 2
        runs["rows"] = runs["steps"] = [border, len(GAMES.tape) - border]
        runs["first_row"][1] = border
        table = runs.tobytes() + GAMES.starts.tobytes()
        if rng.random() < 0.5:  # or a game that is left out
            table = GAMES.runs[:1].tobytes() + GAMES.starts[:1].tobytes()
            text = text.replace(b'"runs": 2', b'"runs": 1')
    data = bytearray(SPLIT.join((tape, anchors, table, text)))
    seal(data)
    return bytes(data)


def seed_of(games: TapeGames, anchor_rows: int) -> bytes:
    """A sound session."""
    parts = [plain_npy("|u1", games.tape), plain_npy("<u8", games.boards[::anchor_rows])]
    sizes = (*map(len, parts), _DB_BYTES)
    files = {name: {"bytes": size, "crc32c": 7} for name, size in zip(_NAMES, sizes, strict=True)}
    counts = {"rows": len(games.tape), "runs": len(games.runs)}
    text = json.dumps({"version": 1, **counts, "files": files, "anchor_rows": anchor_rows}).encode()
    return SPLIT.join((*parts, games.runs.tobytes() + games.starts.tobytes(), text))


@functools.cache
def _seeds() -> list[bytes]:
    return [seed_of(GAMES, 16), seed_of(games_on_tape(1039), 4), seed_of(games_on_tape(), 16)]


TAPE = Target("tape", _seeds(), decode, encode, seal, fields, absurd)
