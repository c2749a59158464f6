"""Arrays of lanes, which the kernels read and write.

A lane keeps no rows during its game. It logs one byte a step, as a session on tape holds it (bits 0-1 the
move, bits 2-5 the cell of the new tile, bit 6 whether it was a 4), from which the rows are built when
the game has ended. With the seed that is the whole game, in a 28th of its rows' memory: 4,096 games of 20,000
steps take 82 MB.

The log is stored in chunks of :data:`CHUNK_STEPS` bytes in one arena for all lanes of a player; a game's
chunks are a linked list, and are freed after the game.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tape2048_recorder.game.loop import PIECE_BYTES, BlockBuffer

if TYPE_CHECKING:
    from collections.abc import Iterator

Words = npt.NDArray[np.uint64]

#: Steps in a chunk: short games waste less than a page, long ones follow a link every thousand steps.
CHUNK_STEPS = 1024


class Lanes(NamedTuple):
    """A group of ``L`` lanes; the first ``counts[0]`` play, and the rest of each array is unused."""

    boards: Words  # u64[L]
    legal: npt.NDArray[np.uint8]  # u8[L], legal masks of the boards
    exps: Words  # u64[L, 2]: the boards' exponents, u8[L, 16] in memory
    states: Words  # u64[L], states of the games' generators
    gammas: Words  # u64[L], their increments
    steps: Words  # u64[L], moves made
    ids: Words  # u64[L], the games' numbers
    seeds: Words  # u64[L], their seeds
    heads: Words  # u64[L], the first chunk of each game's log
    tails: Words  # u64[L], the last chunk
    over: Words  # u64[L]: the lanes whose games have just ended, in order
    counts: Words  # u64[4]: lanes that play; entries of ``over``; of these, recorded ones and restarted ones


class Log(NamedTuple):
    """Steps of the games in play."""

    steps: npt.NDArray[np.uint8]  # u8[chunks * CHUNK_STEPS]
    links: Words  # u64[chunks], the next chunk of each
    free: Words  # u64[chunks], a stack of unused chunks
    counts: Words  # u64[1]: the height of the stack


class Waiting(NamedTuple):
    """Games that have not begun."""

    ids: Words  # u64[n]
    seeds: Words  # u64[n]
    counts: Words  # u64[1]: how many of these have begun since


class Block(NamedTuple):
    """Rows and runs of finished games."""

    rows: npt.NDArray[np.uint8]  # u8[rows_max * row_bytes]
    runs: npt.NDArray[np.void]  # RUN_DTYPE[runs_max]
    counts: Words  # u64[2]: rows, runs


def new_lanes(count: int) -> Lanes:
    """Return ``count`` idle lanes."""
    arrays: dict[str, npt.NDArray[Any]] = {name: np.zeros(count, dtype=np.uint64) for name in Lanes._fields}
    arrays["legal"] = np.zeros(count, dtype=np.uint8)
    arrays["exps"] = np.zeros((count, 2), dtype=np.uint64)
    arrays["counts"] = np.zeros(4, dtype=np.uint64)
    return Lanes(**arrays)


def new_log(chunks: int, old: Log | None = None) -> Log:
    """Return a log of ``chunks`` chunks, with the contents of a smaller one if given."""
    before = 0 if old is None else len(old.links)
    free = np.zeros(chunks, dtype=np.uint64)
    added = np.arange(before, chunks, dtype=np.uint64)[::-1]  # the lowest on top
    held = 0 if old is None else int(old.counts[0])
    free[held : held + len(added)] = added
    # Not np.zeros: unused pages stay untouched.
    steps = np.empty(chunks * CHUNK_STEPS, dtype=np.uint8)
    links = np.zeros(chunks, dtype=np.uint64)
    if old is not None:
        free[:held] = old.free[:held]
        steps[: len(old.steps)] = old.steps
        links[:before] = old.links
    return Log(steps, links, free, np.array([held + len(added)], dtype=np.uint64))


class Finished(BlockBuffer):
    """The block buffer of lanes: whole games, in the order of their ends."""

    def _allocate(self, rows_max: int) -> None:
        rows = np.empty(rows_max * self.dtype.itemsize, dtype=np.uint8)
        self.arrays = Block(rows, self._runs, np.zeros(2, dtype=np.uint64))

    @property
    def rows_finished(self) -> int:
        """Rows in the buffer."""
        return int(self.arrays.counts[0])

    @property
    def rows_max(self) -> int:
        """Rows the buffer holds."""
        return len(self.arrays.rows) // self.dtype.itemsize

    @property
    def runs(self) -> npt.NDArray[np.void]:
        """``RUN_DTYPE[n]``: the games, ``first_row`` from the buffer's start (a view)."""
        return self.arrays.runs[: int(self.arrays.counts[1])]

    @property
    def rows(self) -> npt.NDArray[Any]:
        """Rows of the games (a view)."""
        return self.arrays.rows[: self.rows_finished * self.dtype.itemsize].view(self.dtype)

    def pieces(self) -> Iterator[memoryview]:
        """Yield the bytes of the rows, in order (views)."""
        size = self.rows_finished * self.dtype.itemsize
        for first in range(0, size, PIECE_BYTES):
            yield self.arrays.rows[first : min(first + PIECE_BYTES, size)].data

    def resize(self, rows_max: int) -> None:
        """Hold this many rows; the buffer must be empty."""
        self._allocate(rows_max)

    def grow(self) -> None:
        """Double the capacity; the rows stay."""
        rows = self.arrays.rows
        self.arrays = self.arrays._replace(rows=np.concatenate([rows, np.empty_like(rows)]))

    def drop_block(self) -> None:
        """Drop the games."""
        self.arrays.counts[:] = 0
