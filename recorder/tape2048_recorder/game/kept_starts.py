"""The file of the boards from which a recorder's games start (``start_from``).

``<out_dir>/.recorder/starts-<sha256>`` holds the distinct boards as ``u64``, ascending. Its name contains the
SHA-256 of its content, so every worker, and the recovery of a session on tape after a crash, uses the same
boards. A published session contains the start board of each of its games.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from tape2048.errors import ChecksumError, FieldError
from tape2048.files.durable import replace_file
from tape2048.files.locks import LOCKS_DIRECTORY
from tape2048.files.opening import storage_errors
from tape2048.files.reading import read_path
from tape2048.session.start_games import GAME_DTYPE, StartGames

if TYPE_CHECKING:
    import numpy.typing as npt

_NAME = "starts-"

#: A board to start from, and the identity of its game. If that is unknown, ``player_sha256`` is empty, and
#: ``seed`` is the board.
START_DTYPE = np.dtype([("board", "<u8"), ("seed", "<u8"), ("player_sha256", "S64")])


def with_games(
    boards: npt.NDArray[np.uint64],
    seeds: npt.NDArray[np.uint64] | None = None,
    players: npt.NDArray[np.bytes_] | None = None,
) -> npt.NDArray[np.void]:
    """Return boards with the identities of their games, ``START_DTYPE[N]``; None: the games are unknown."""
    starts = np.zeros(len(boards), START_DTYPE)
    starts["board"], starts["seed"] = boards, boards if seeds is None else seeds
    if players is not None:
        starts["player_sha256"] = players
    return starts


class StartBoards(msgspec.Struct, frozen=True, omit_defaults=True):
    """The fact ``start_boards`` of a session: the number of boards, their SHA-256, and any known games."""

    count: int
    sha256: str
    games: StartGames | None = None

    def path(self, out_dir: Path) -> Path:
        return out_dir / LOCKS_DIRECTORY / f"{_NAME}{self.sha256}"


def keep_starts(out_dir: Path, given: npt.NDArray[np.void]) -> StartBoards:
    """Write the distinct boards (at least one) of ``START_DTYPE[n]`` to their file.

    If a board is from several games, its game is the first one. StorageError if the file cannot be written.
    """
    boards, first = np.unique(given["board"], return_index=True)
    data = boards.astype("<u8").tobytes()
    starts = StartBoards(len(boards), hashlib.sha256(data).hexdigest(), _games_of(given[first]))
    path = starts.path(out_dir)
    with storage_errors(path, "writing the boards to start from"):
        path.parent.mkdir(exist_ok=True)
        replace_file(path, data)
    return starts


def _games_of(starts: npt.NDArray[np.void]) -> StartGames | None:
    players, index = np.unique(starts["player_sha256"], return_inverse=True)
    if players.tolist() == [b""] and (starts["seed"] == starts["board"]).all():
        return None
    if len(players) > 1 << 16:
        raise FieldError(f"found start boards of {len(players):,} players, expected at most {1 << 16:,}")
    games = np.empty(len(starts), GAME_DTYPE)
    games["seed"], games["player"] = starts["seed"], index
    return StartGames([player.decode("ascii", "replace") for player in players.tolist()], games.tobytes())


def load_starts(path: Path) -> npt.NDArray[np.uint64]:
    """Read the boards, ``u64[n]``; ChecksumError if they do not match the SHA-256 in the file's name."""
    data = read_path(path)
    found = hashlib.sha256(data.data).hexdigest()
    if path.name != f"{_NAME}{found}":
        raise ChecksumError(
            f"found boards with SHA-256 {found}, expected the SHA-256 in the file's name",
            path=path,
            hint="Restore the file from a copy, or start a recorder with the same --from to write it again.",
        )
    return data.view("<u8")


def seeds_key(path: Path) -> int:
    """Return a 64-bit key, derived from the boards, to combine with the recorder's seed.

    Readers take two games of a player with the same seed for the same game. The key gives games from other
    boards other seeds.
    """
    return int(path.name[len(_NAME) :][:16], 16)
