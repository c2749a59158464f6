"""What was said in a history, what the disk holds, and what must be true of both."""

from __future__ import annotations

import os
import struct
from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from crc32c import crc32c

from tape2048.base.findings import Finding
from tape2048.errors import StartError
from tape2048.session.layout import (
    MANIFEST,
    METADATA_DB,
    NUMBER_BITS,
    SESSION_NAME,
    STEPS_HEADER_BYTES,
    STEPS_NPY,
    Manifest,
)
from tape2048_recorder.recording.partial import Facts

from .disk import OUT_DIR
from .workers import GAME_ROWS_MAX, ROW_BYTES, Block, bytes_of

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from .disk import File, System
    from .life import Life

_RUN = struct.Struct("<QQQIIII")
_BLOCK = struct.Struct("<QII")
_RECORD = struct.Struct("<4sIQII")
_JOURNAL_HEADER_BYTES = 16

Game = tuple[int, int]  # its recorder's seed, and its id


class Broken(BaseException):
    """Something is so that must not be."""


class Metadata(msgspec.Struct, array_like=True):
    """In place of ``metadata.db``."""

    runs: bytes
    blocks: bytes
    facts: dict[str, Any]


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Metadata).decode
_decode_manifest = msgspec.json.Decoder(Manifest).decode
_decode_facts = msgspec.json.Decoder(Facts).decode


def write_metadata(
    system: System,
    path: Any,
    *,
    runs: NDArray[np.void],
    blocks: NDArray[np.void],
    session: dict[str, Any],
    start_boards: None = None,
    run_times: None = None,
) -> None:
    """As SQLite does: in several writes."""
    assert start_boards is run_times is None, "rows are simulated, and no tapes"
    data = _encode(Metadata(runs.tobytes(), blocks.tobytes(), session))
    fd = system.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
    try:
        done = 0
        for end in (len(data) // 2, len(data)):
            while done < end:
                done += system.pwrite(fd, data[done:end], done)
    finally:
        system.close(fd)


class Content(NamedTuple):
    """A whole session."""

    games: list[Game]
    recovered: bool


def read_session(directory: File) -> Content:
    """Read a session, and check every byte of it.

    Raises:
        ValueError: it is not whole.
    """
    files = directory.entries or {}
    if set(files) != {MANIFEST, METADATA_DB, STEPS_NPY}:
        raise ValueError(f"found {sorted(files)}")
    try:
        manifest = _decode_manifest(bytes(files[MANIFEST].data))
        metadata = _decode(bytes(files[METADATA_DB].data))
    except msgspec.MsgspecError as error:
        raise ValueError(str(error)) from error
    for name, entry in manifest.files.items():
        data = files[name].data
        if (len(data), crc32c(data)) != (entry.bytes, entry.crc32c):
            raise ValueError(f"{name} differs from the manifest")
    rows = memoryview(files[STEPS_NPY].data)[STEPS_HEADER_BYTES:]
    seed = metadata.facts["seed"]
    games, at = [], 0
    for game, _, first, count, *_ in _RUN.iter_unpack(metadata.runs):
        expected = bytes_of(game)
        if first != at or rows[at * ROW_BYTES : (at + count) * ROW_BYTES] != expected:
            raise ValueError(f"game {game} at row {first} is not as it was played")
        games.append((seed, game))
        at += count
    if at * ROW_BYTES != len(rows) or (manifest.rows, manifest.runs) != (at, len(games)) or not games:
        raise ValueError(
            f"{len(rows) / ROW_BYTES} rows, {at} of them of runs, {manifest.rows} in the manifest"
        )
    for first, count, checksum in _BLOCK.iter_unpack(metadata.blocks):
        if crc32c(rows[first * ROW_BYTES : (first + count) * ROW_BYTES]) != checksum:
            raise ValueError(f"the block at row {first} differs from its checksum")
    return Content(games, metadata.facts["recovered"])


def defects_of(directory: File, path: str) -> list[Finding]:
    """As ``validate_session``."""
    try:
        read_session(directory)
    except ValueError as error:
        return [Finding("ChecksumError", str(error), path=path)]
    return []


def intact_games(partial: File) -> list[Game]:
    """The games of a partial session that were confirmed and whose rows the disk holds."""
    files = partial.entries or {}
    try:
        facts = _decode_facts(bytes(files["facts.json"].data))
    except (KeyError, msgspec.MsgspecError):
        return []
    stages = {
        int(name.partition("-")[2]): each for name, each in files.items() if name.startswith("compacted-")
    }
    stage = (stages[max(stages)] if stages else partial).entries or {}
    journal = stage.get("journal")
    steps = ((stage["session"].entries or {}) if "session" in stage else {}).get(STEPS_NPY)
    if journal is None or steps is None:
        return []
    games: list[Game] = []
    data, at = bytes(journal.data), _JOURNAL_HEADER_BYTES
    while at + _RECORD.size <= len(data):
        magic, runs, first, count, checksum = _RECORD.unpack_from(data, at)
        end = at + _RECORD.size + runs * _RUN.size
        if (
            magic != b"BLCK"
            or end + 4 > len(data)
            or data[end : end + 4] != struct.pack("<I", crc32c(data[at:end]))
        ):
            break
        begin = STEPS_HEADER_BYTES + first * ROW_BYTES
        rows = steps.data[begin : begin + count * ROW_BYTES]
        if len(rows) == count * ROW_BYTES and crc32c(rows) == checksum:
            games += [(facts.seed, run[0]) for run in _RUN.iter_unpack(data[at + _RECORD.size : end])]
        at = end + 4
    return games


class Truth:
    """What was said, over all lives of a history.

    Attributes:
        safe: confirmed games that nothing has endangered; they have to be published in the end.
    """

    def __init__(self) -> None:
        self.safe: dict[Game, Block] = {}
        self._confirmed: dict[int, set[Game]] = {}  # by life
        self._written: set[Game] = set()
        self._held: dict[Game, object] = {}
        self._said: dict[str, frozenset[Game]] = {}  # sessions that were said to be published
        self._said_by: dict[int, set[str]] = {}
        self._whole: dict[str, Content] = {}  # sessions that were looked at
        self._dropped: dict[int, list[tuple[int, int]]] = {}  # ranges of files that a failed flush lost

    # As it happens.

    def hand_out(self, process: Any, first: int, count: int) -> None:
        lease = process.life.config.lease
        if not lease << NUMBER_BITS <= first < first + count <= (lease + 1) << NUMBER_BITS:
            raise Broken(f"games {first} to {first + count - 1} are not those of lease {lease}")
        for number in range(first, first + count):
            game = (process.seed, number)
            if any(game in games for games in self._confirmed.values()):
                raise Broken(f"game {number} is handed out, and is recorded already")
            holder: Any = self._held.get(game)
            if holder is not None and holder.code is None and holder.life is process.life:
                raise Broken(f"game {number} is handed out to two workers")
            self._held[game] = process

    def write(self, block: Block) -> None:
        self._written.update(block.games)

    def confirm(self, life: Life, block: Block) -> None:
        self._confirmed.setdefault(life.number, set()).update(block.games)
        self.safe.update(dict.fromkeys(block.games, block))

    def confirmed_in(self, life: Life) -> frozenset[Game]:
        return frozenset(self._confirmed.get(life.number, ()))

    @property
    def published(self) -> set[Game]:
        """The games of sessions that were said to be published."""
        return {game for games in self._said.values() for game in games}

    def lose(self, file: File, at: int, size: int) -> None:
        self._dropped.setdefault(file.ino, []).append((at, at + size))

    def say_published(self, life: Life, name: str) -> None:
        self._said_by.setdefault(life.number, set()).add(name)
        if name in self._said:
            raise Broken(f"{name} is published twice")
        self._said[name] = frozenset(self._read(life, name).games)

    def after_power_loss(self, life: Life) -> None:
        """What is neither published nor intact need not come back."""
        self._whole.clear()
        kept = self.published
        for name, file in sorted((entries_of(life)).items()):
            if name.endswith(".partial"):
                kept.update(intact_games(file))
            elif SESSION_NAME.match(name):
                kept.update(self._read(life, name).games)
        self.safe = {game: block for game, block in self.safe.items() if game in kept}

    # Looking.

    def _read(self, life: Life, name: str) -> Content:
        found = self._whole.get(name)
        if found is None:
            try:
                directory = entries_of(life)[name]
                found = read_session(directory)
            except KeyError:
                raise Broken(f"{name} was said to be published, and is not there") from None
            except ValueError as error:
                raise Broken(f"{name} is not whole: {error}") from None
            self._whole[name] = found
        return found

    def _is_dropped(self, block: Block) -> bool:
        ranges = self._dropped.get(block.file.ino, ())
        return any(begin < block.end and end > block.begin for begin, end in ranges)

    def check(self, life: Life) -> None:
        """What must be true after a life, however it ended."""
        names = {name for name in entries_of(life) if SESSION_NAME.match(name)}
        counts: Counter[Game] = Counter()
        for name in sorted(names):
            counts.update(self._read(life, name).games)
        twice = [game for game, count in counts.items() if count > 1]
        if twice:
            raise Broken(f"published more than once: {twice}")
        strange = counts.keys() - self._written
        if strange:
            raise Broken(f"published and never written: {sorted(strange)}")
        for name, games in self._said.items():
            if name not in names or frozenset(self._read(life, name).games) != games:
                raise Broken(f"{name} was said to be published, and is not there any more")
        if life.crashed is None:
            self._check_end(life, counts)

    def _check_end(self, life: Life, counts: Counter[Game]) -> None:
        """What a life that was not interrupted has said of itself."""
        if life.system.opened:
            raise Broken(f"left open: {life.system.opened}")
        mine = self._said_by.get(life.number, set())
        confirmed = self._confirmed.get(life.number, set())
        if life.error is not None:
            if life.calm and not (isinstance(life.error, StartError) and not confirmed):
                raise Broken(f"without any trouble: {life.error}")
            return
        summary = life.summary
        limit = life.config.max_steps
        if limit is not None and summary.rows >= limit + GAME_ROWS_MAX * life.config.worker_count:
            raise Broken(f"it recorded {summary.rows} rows with max_steps = {limit}")
        said = {name.rpartition("/")[2] for name in summary.sessions}
        if said != mine:
            raise Broken(f"its summary names {sorted(said)}, its events {sorted(mine)}")
        own = [game for name in sorted(said) for game in self._said[name]]
        lost = {game for game in confirmed if game not in counts}
        harmed = {game for game in lost if game in self.safe and self._is_dropped(self.safe[game])}
        if lost - harmed:
            raise Broken(f"confirmed, and not published at the end: {sorted(lost - harmed)}")
        told = any("did not match checksums" in message for _, _, message in life.events)
        if harmed and not told:
            raise Broken(f"lost, and nobody said so: {sorted(harmed)}")
        # A block that was lost may have been confirmed after its worker's death.
        if summary.games < len(own) or (not told and summary.games != len(own)):
            raise Broken(f"its summary has {summary.games} games, its sessions {len(own)}")
        unsaid = [
            name
            for name in self.left(life)
            if intact_games(entries_of(life)[name])  # an empty shell is removed by the next start
            and not any(level == "error" and name in message for _, level, message in life.events)
        ]
        if unsaid:
            raise Broken(f"left, and not spoken of: {unsaid}")
        life.check_requests()

    def left(self, life: Life) -> list[str]:
        """Partial sessions that a life has left."""
        return [name for name in entries_of(life) if name.endswith(".partial")]

    def check_last(self, life: Life) -> None:
        """What must be true after a last life without any trouble."""
        if self.left(life):
            raise Broken(f"never recovered: {self.left(life)}")
        found = {
            game
            for name in entries_of(life)
            if SESSION_NAME.match(name)
            for game in self._read(life, name).games
        }
        lost = [
            game for game, block in self.safe.items() if game not in found and not self._is_dropped(block)
        ]
        if lost:
            raise Broken(f"confirmed and lost: {sorted(lost)}")


def entries_of(life: Life) -> dict[str, File]:
    out_dir = (life.disk.root.entries or {})[OUT_DIR[1:]]
    return out_dir.entries or {}
