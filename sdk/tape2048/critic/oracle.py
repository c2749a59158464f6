"""The oracle: true probabilities of positions, estimated by rollouts that are kept on disk.

It plays N games on from each position with the player that played it. They are kept while they are played, by
player, positions, N and seed: an interrupted oracle goes on, and a finished one is read. The files are in
``tape2048/oracle`` below ``$XDG_CACHE_HOME`` or ``~/.cache``, beside the compiled kernels: safetensors with
``boards`` (``u64[n]``), ``counts`` (``u16[n, 16]``) and, in the table of text, the number of positions done.
"""

from __future__ import annotations

import hashlib
import time
from typing import TYPE_CHECKING, NamedTuple, Protocol

import msgspec
import numpy as np

from tape2048.base.text import as_int
from tape2048.errors import FormatError, StorageError
from tape2048.io.durable import replace_file, storage_errors
from tape2048.io.reading import read_path
from tape2048.io.safetensors import decode, encode

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from numpy.typing import NDArray


FORMAT = "tape2048 oracle 1"

#: Columns of the counts: the exponents of tiles, 0 to 15.
EXPONENTS = 16

#: Counts are ``u16``; the noise of one rollout is unknown.
ROLLOUTS_MIN, ROLLOUTS_MAX = 2, 65_535

#: Seconds of play between two savings, at least.
SAVE_S = 5.0

_REMOVE = "remove the file, and its rollouts are played again"


class Play(Protocol):
    """Plays rollouts; ``play_rollouts`` of the recorder's ``players`` with a player, rollouts and a seed."""

    def __call__(
        self,
        boards: NDArray[np.uint64],
        /,
        *,
        first: int,
        progress: Callable[[int, int], object] | None,
    ) -> NDArray[np.uint16]:
        """Return counts ``u16[n, 16]`` of positions ``u64[n]``, the first of which has the number ``first``.

        ``progress`` is called with the number of games done and of all.
        """


class Rollouts(NamedTuple):
    """The rollouts of positions.

    Attributes:
        counts: those that came to at least the exponent e, ``u16[n, 16]``.
        rollouts: N, games from each position.
        known: positions whose rollouts were on disk.
    """

    counts: NDArray[np.uint16]
    rollouts: int
    known: int

    def shares(self, tile: int) -> NDArray[np.float64]:
        """Return the shares of rollouts that reached a tile, ``f64[n]``."""
        exponent = tile.bit_length() - 1
        if exponent >= EXPONENTS:  # no board has it
            return np.zeros(len(self.counts))
        shares: NDArray[np.float64] = self.counts[:, exponent] / self.rollouts
        return shares


class Oracle(NamedTuple):
    """Rollouts by one player, kept on disk.

    Attributes:
        play: plays them.
        player_sha256: of the player.
        rollouts: N, games from each position, 2 to 65,535.
        seed: of the rollouts, 64 bits.
        directory: of the files; None: see the module.

    Example:
        >>> from pathlib import Path
        >>> import numpy as np
        >>> from tape2048.critic import Oracle
        >>> def play(boards, *, first, progress):
        ...     return np.full((len(boards), 16), 24, np.uint16)
        >>> oracle = Oracle(play, player_sha256="0" * 64, rollouts=48, directory=Path("rollouts"))
        >>> oracle.ask(np.array([0x1100], np.uint64)).shares(2048)
        array([0.5])
    """

    play: Play
    player_sha256: str
    rollouts: int
    seed: int = 0
    directory: Path | None = None

    def ask(
        self, boards: NDArray[np.uint64], *, progress: Callable[[int, int], object] | None = None
    ) -> Rollouts:
        """Play the rollouts of positions, or those that are not on disk yet.

        Args:
            boards: positions before a move, ``u64[n]``, n >= 1.
            progress: called with the number of games done and of all.

        Raises:
            ValueError: no positions, or a number of rollouts out of range.
            FormatError: the file of these rollouts is damaged.
            StorageError: the operating system could not write or read it.
        """
        if not ROLLOUTS_MIN <= as_int("rollouts", self.rollouts) <= ROLLOUTS_MAX:
            raise ValueError(f"rollouts={self.rollouts}; expected {ROLLOUTS_MIN} to {ROLLOUTS_MAX:,}")
        boards = np.ascontiguousarray(boards, "<u8")
        if len(boards) == 0:
            raise ValueError("no positions; expected at least one")
        texts = {
            "format": FORMAT,
            "player_sha256": self.player_sha256,
            "rollouts": str(self.rollouts),
            "seed": str(self.seed),
        }
        digest = hashlib.sha256(msgspec.json.encode(texts) + boards.tobytes()).hexdigest()
        path = (self.directory or _default_directory()) / f"{digest[:32]}.safetensors"
        with storage_errors(path.parent, "making the directory of rollouts"):
            path.parent.mkdir(parents=True, exist_ok=True)
        counts, known = np.zeros((len(boards), EXPONENTS), "<u2"), 0
        if path.exists():
            counts, known = _read(path, texts, boards)
        done, size, total = known, 1, len(boards) * self.rollouts

        def save() -> None:
            arrays = {"boards": boards, "counts": counts}
            with storage_errors(path, "saving rollouts"):
                replace_file(path, b"".join(encode(arrays, {**texts, "positions": str(done)})))

        def told(games: int, _: int) -> None:
            if progress is not None:
                progress(done * self.rollouts + games, total)

        if done == 0:
            save()  # what cannot be kept is not played
        told(0, 0)
        while done < len(boards):
            begin = time.monotonic()
            end = min(done + size, len(boards))
            counts[done:end] = self.play(boards[done:end], first=done, progress=told)
            done = end
            save()
            if time.monotonic() - begin < SAVE_S:
                size *= 2
        return Rollouts(counts, self.rollouts, known)


def _default_directory() -> Path:
    from tape2048.jit.compiler import cache_base

    base = cache_base()
    if base is None:
        raise StorageError(
            "found no directory for rollouts: there is neither a home nor XDG_CACHE_HOME",
            hint="set XDG_CACHE_HOME to a directory",
        )
    return base / "tape2048/oracle"


def _read(path: Path, texts: dict[str, str], boards: NDArray[np.uint64]) -> tuple[NDArray[np.uint16], int]:
    """Read the counts of a file, and the number of its positions that were played."""
    try:
        arrays, found = decode(read_path(path).tobytes(), str(path))
    except FormatError as error:
        raise type(error)(error.message, path=path, offset=error.offset, hint=_REMOVE) from error
    done = found.pop("positions", "")
    counts = arrays.get("counts", boards)
    if (
        found != texts
        or not np.array_equal(arrays.get("boards", counts), boards)
        or (counts.dtype, counts.shape) != (np.dtype("<u2"), (len(boards), EXPONENTS))
        or not (done.isascii() and done.isdecimal() and int(done) <= len(boards))
    ):
        raise FormatError("it does not hold the rollouts that its name stands for", path=path, hint=_REMOVE)
    return counts.copy(), int(done)
