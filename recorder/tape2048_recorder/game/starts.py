"""The boards that a recorder's games start from, where it was given some: a file beside its sessions.

``<out_dir>/.recorder/starts-<sha256>`` holds them as ``u64``, ascending and each once. Its name is the
SHA-256 of its content, so that every worker, and the recovery of a killed recorder's session on tape, use the
boards that its games had. Once a session is published, it holds the start board of each game itself.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from tape2048.errors import ChecksumError
from tape2048.io.durable import replace_file, storage_errors
from tape2048.io.reading import read_path
from tape2048.session.locks import LOCKS_DIRECTORY

if TYPE_CHECKING:
    import numpy.typing as npt

_NAME = "starts-"


class StartBoards(msgspec.Struct, frozen=True):
    """The fact ``start_boards`` of a session: the number of boards, and their SHA-256."""

    count: int
    sha256: str

    def path(self, out_dir: Path) -> Path:
        """Return the file of the boards in a recorder's directory."""
        return out_dir / LOCKS_DIRECTORY / f"{_NAME}{self.sha256}"


def keep_starts(out_dir: Path, boards: npt.NDArray[np.uint64]) -> StartBoards:
    """Write the distinct boards, of at least one, to their file; StorageError if that fails."""
    data = np.unique(boards).astype("<u8").tobytes()
    starts = StartBoards(len(data) // 8, hashlib.sha256(data).hexdigest())
    path = starts.path(out_dir)
    with storage_errors(path, "writing the boards to start from"):
        path.parent.mkdir(exist_ok=True)
        replace_file(path, data)
    return starts


def load_starts(path: Path) -> npt.NDArray[np.uint64]:
    """Read the boards of a file, ``u64[n]``.

    Raises:
        MissingPathError: there is no such file.
        ChecksumError: the file has other boards than its name says.
    """
    data = read_path(path)
    found = hashlib.sha256(data.data).hexdigest()
    if path.name != f"{_NAME}{found}":
        raise ChecksumError(
            f"the boards to start from have SHA-256 {found}; expected that of the file's name",
            path=path,
            hint="restore the file from a copy, or start a recorder with the same --from",
        )
    return data.view("<u8")


def seeds_key(path: Path) -> int:
    """Return the number that gives the games of these boards other seeds than those of other boards.

    A player's games with one seed are one game for every reader, wherever they were recorded.
    """
    return int(path.name[len(_NAME) :][:16], 16)
