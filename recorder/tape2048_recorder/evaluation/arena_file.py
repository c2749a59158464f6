"""The file of an arena's results, from which a killed arena is resumed.

The file is JSON lines. The first line holds the settings that all players share. Every other line holds
finished games of a player, with the moves and CPU time since the player's previous line. If a process was
killed while it wrote a line, the next process removes that part of a line::

    {"arena": 1, "seed": 1, "starts": null}
    {"player": "greedy", "sha256": "...", "numbers": [0, 1], "scores": [2004, 912], "highest": [7, 6], ...}
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from typing import TYPE_CHECKING, Annotated, Self

import msgspec
import numpy as np

from tape2048._version import __version__
from tape2048.errors import BusyError, ConfigError, FieldError, NotASessionError
from tape2048.files.durable import write_all
from tape2048.files.opening import storage_errors, try_lock
from tape2048_recorder.evaluation.evaluated_games import Played
from tape2048_recorder.evaluation.paired_games import Results

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

    import numpy.typing as npt

_VERSION = 1

_OTHER = "Choose another --out."

Word = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


class _Head(msgspec.Struct, forbid_unknown_fields=True):
    arena: int
    seed: int
    starts: str | None  # SHA-256 of the boards that games start from
    release: str = __version__  # that started the file


class _Line(msgspec.Struct, forbid_unknown_fields=True):
    player: str
    sha256: str
    numbers: list[Word]
    scores: list[Word]
    highest: list[Annotated[int, msgspec.Meta(ge=0, le=16)]]
    moves: Word
    cpu_s: float
    peak_bytes: int = 0
    forfeits: dict[int, str] = {}

    def __post_init__(self) -> None:
        if not len(self.numbers) == len(self.scores) == len(self.highest):
            raise ValueError("numbers, scores and highest differ in length")


class ArenaFile:
    """The file of an arena, locked while it is open.

    ``starts`` is ``u64[n]``; None: new games. Raises BusyError if another arena is writing the file,
    ConfigError for another seed or other boards, FieldError for a malformed line, and NotASessionError for
    another file.
    """

    def __init__(self, path: Path, seed: int, starts: npt.NDArray[np.uint64] | None) -> None:
        self.path = path
        sha256 = None if starts is None else hashlib.sha256(starts.tobytes()).hexdigest()
        head = _Head(_VERSION, seed, sha256)
        with contextlib.ExitStack() as stack, storage_errors(path, "opening the results"):
            self._fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
            stack.callback(os.close, self._fd)
            if not try_lock(self._fd):
                raise BusyError("another arena is writing this file", path=path, hint=f"Wait. {_OTHER}")
            self._lines = self._read(head)
            stack.pop_all()

    def _read(self, head: _Head) -> list[_Line]:
        data = b""
        while part := os.pread(self._fd, 1 << 24, len(data)):
            data += part
        whole = data[: data.rfind(b"\n") + 1]
        if not whole:
            if data and not msgspec.json.encode(head).startswith(data):
                raise NotASessionError(
                    "found another file, expected results of an arena", path=self.path, hint=_OTHER
                )
            os.ftruncate(self._fd, 0)
            self._write(head)
            return []
        first, *rest = whole.splitlines()
        try:
            found = msgspec.json.decode(first, type=_Head)
        except msgspec.MsgspecError as error:
            what = f"found another file, expected results of an arena (line 1: {error})"
            raise NotASessionError(what, path=self.path, hint=_OTHER) from error
        for name in ("arena", "seed", "starts"):
            if (theirs := getattr(found, name)) != (ours := getattr(head, name)):
                raise ConfigError(
                    f"found results with {name} = {theirs}, expected {ours}", path=self.path, hint=_OTHER
                )
        os.ftruncate(self._fd, len(whole))
        return [self._line(number, line) for number, line in enumerate(rest, 2)]

    def _line(self, number: int, line: bytes) -> _Line:
        try:
            return msgspec.json.decode(line, type=_Line)
        except msgspec.MsgspecError as error:
            hint = "Remove the line. Its games are then played again."
            raise FieldError(f"line {number}: {error}", path=self.path, hint=hint) from error

    def _write(self, line: msgspec.Struct) -> None:
        write_all(self._fd, msgspec.json.encode(line) + b"\n")

    def results(self, player: str, sha256: str, games: int) -> Results:
        """Return a player's results below number ``games``; ConfigError if another version made them."""
        results = Results(games)
        for line in self._lines:
            if line.player != player:
                continue
            if line.sha256 != sha256:
                raise ConfigError(
                    f"found results of {player} with the SHA-256 {line.sha256[:12]}, expected {sha256[:12]}: "
                    "the player has changed",
                    path=self.path,
                    hint=_OTHER,
                )
            numbers = np.array(line.numbers, np.uint64)
            mine = numbers < games
            results.add(
                Played(
                    numbers=numbers[mine],
                    scores=np.array(line.scores, np.uint64)[mine],
                    highest=np.array(line.highest, np.uint8)[mine],
                    moves=line.moves,
                    cpu_s=line.cpu_s,
                    peak_bytes=line.peak_bytes,
                    forfeits={number: why for number, why in line.forfeits.items() if number < games},
                )
            )
        return results

    def add(self, player: str, sha256: str, part: Played) -> None:
        line = _Line(
            player=player,
            sha256=sha256,
            numbers=part.numbers.tolist(),
            scores=part.scores.tolist(),
            highest=part.highest.tolist(),
            moves=part.moves,
            cpu_s=part.cpu_s,
            peak_bytes=part.peak_bytes,
            forfeits=dict(part.forfeits),
        )
        with storage_errors(self.path, "writing results"):
            self._write(line)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._fd)
