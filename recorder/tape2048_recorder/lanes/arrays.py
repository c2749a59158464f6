"""What lanes are made of, as arrays that the kernels take and give back.

A lane keeps no rows while its game is played. It keeps one byte a step, from which the rows are made when
the game has ended: bits 0-1 the move, bits 2-5 which of the empty cells the new tile went to (counted as
:func:`tape2048_recorder.game.engine.spawn` counts), bit 6 whether it was a 4. With the seed that is the whole
game, in a 28th of its rows' memory: 4,096 games of 20,000 steps wait in 82 MB.

The bytes stand in chunks of :data:`CHUNK_STEPS` in one arena for all lanes of a player; a game's chunks are a
linked list, and a finished game's go back to the free ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from tape2048.formats.session import RUN_DTYPE, step_dtype

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["CHUNK_STEPS", "Block", "Finished", "Lanes", "Log", "Waiting", "new_lanes", "new_log"]

Words = npt.NDArray[np.uint64]

#: Steps in a chunk: short games waste less than a page, long ones follow a link each thousand steps.
CHUNK_STEPS = 1024

#: Written at once, after being summed up: less than the second-level cache holds.
_PIECE_BYTES = 1 << 18


class Lanes(NamedTuple):
    """A group of lanes; the first :attr:`counts` ``[0]`` of them play, and the rest of each array is unused.

    Attributes:
        boards: ``u64[L]``.
        legal: ``u8[L]``, legal masks of the boards.
        exps: ``u64[L, 2]``: the boards' exponents, ``u8[L, 16]`` in memory.
        states: ``u64[L]``, the games' generators.
        gammas: ``u64[L]``, their increments.
        steps: ``u64[L]``, moves made.
        ids: ``u64[L]``, the games' numbers.
        seeds: ``u64[L]``, their seeds.
        heads: ``u64[L]``, the first chunk of each game's log.
        tails: ``u64[L]``, its last one.
        over: ``u64[L]``: the lanes whose games have just ended, in order.
        counts: ``u64[4]``: lanes that play; entries of ``over``; of these, how many are recorded, and how
            many have been given another game.
    """

    boards: Words
    legal: npt.NDArray[np.uint8]
    exps: Words
    states: Words
    gammas: Words
    steps: Words
    ids: Words
    seeds: Words
    heads: Words
    tails: Words
    over: Words
    counts: Words


class Log(NamedTuple):
    """The steps of the games in play.

    Attributes:
        steps: ``u8[chunks * CHUNK_STEPS]``.
        links: ``u64[chunks]``, the chunk that follows each.
        free: ``u64[chunks]``, a stack of unused chunks.
        counts: ``u64[1]``: how many are on the stack.
    """

    steps: npt.NDArray[np.uint8]
    links: Words
    free: Words
    counts: Words


class Waiting(NamedTuple):
    """Games that were given and have not begun.

    Attributes:
        ids: ``u64[n]``.
        seeds: ``u64[n]``.
        counts: ``u64[1]``: how many of them have begun.
    """

    ids: Words
    seeds: Words
    counts: Words


class Block(NamedTuple):
    """Rows and runs of finished games.

    Attributes:
        rows: ``u8[rows_max * row_bytes]``.
        runs: ``RUN_DTYPE[runs_max]``.
        counts: ``u64[2]``: rows, runs.
    """

    rows: npt.NDArray[np.uint8]
    runs: npt.NDArray[np.void]
    counts: Words


def new_lanes(count: int) -> Lanes:
    """``count`` lanes, none of which plays."""

    def words(*shape: int) -> Words:
        return np.zeros(shape, dtype=np.uint64)

    return Lanes(
        boards=words(count),
        legal=np.zeros(count, dtype=np.uint8),
        exps=words(count, 2),
        states=words(count),
        gammas=words(count),
        steps=words(count),
        ids=words(count),
        seeds=words(count),
        heads=words(count),
        tails=words(count),
        over=words(count),
        counts=words(4),
    )


def new_log(chunks: int, old: Log | None = None) -> Log:
    """A log of ``chunks`` chunks, with the contents of a smaller one if there is one."""
    before = 0 if old is None else len(old.links)
    free = np.zeros(chunks, dtype=np.uint64)
    added = np.arange(before, chunks, dtype=np.uint64)[::-1]  # the lowest on top
    held = 0 if old is None else int(old.counts[0])
    free[held : held + len(added)] = added
    # Not np.zeros: pages that no game reaches stay untouched.
    steps = np.empty(chunks * CHUNK_STEPS, dtype=np.uint8)
    links = np.zeros(chunks, dtype=np.uint64)
    if old is not None:
        free[:held] = old.free[:held]
        steps[: len(old.steps)] = old.steps
        links[:before] = old.links
    return Log(steps, links, free, np.array([held + len(added)], dtype=np.uint64))


class Finished:
    """The block buffer of a worker that plays in lanes: whole games, in the order in which they ended.

    Args:
        rows_max: rows it holds at first; it grows when a single game needs more.
        runs_max: games it holds.
        record_action: whether rows carry the move.
        sample_rate: keep each N-th step of a game.
    """

    def __init__(self, *, rows_max: int, runs_max: int, record_action: bool, sample_rate: int) -> None:
        self.dtype = step_dtype(record_action=record_action)
        self.record_action = record_action
        self.sample_rate = sample_rate
        self.arrays = Block(
            np.empty(rows_max * self.dtype.itemsize, dtype=np.uint8),
            np.zeros(runs_max, dtype=RUN_DTYPE),
            np.zeros(2, dtype=np.uint64),
        )

    @property
    def rows_finished(self) -> int:
        """Rows in the buffer."""
        return int(self.arrays.counts[0])

    @property
    def rows_max(self) -> int:
        """Rows that the buffer holds."""
        return len(self.arrays.rows) // self.dtype.itemsize

    @property
    def runs(self) -> npt.NDArray[np.void]:
        """``RUN_DTYPE[n]``: the games, ``first_row`` counted from the buffer's start (a view)."""
        return self.arrays.runs[: int(self.arrays.counts[1])]

    @property
    def rows(self) -> npt.NDArray[np.void]:
        """The games' rows (a view)."""
        return self.arrays.rows[: self.rows_finished * self.dtype.itemsize].view(self.dtype)

    def pieces(self) -> Iterator[memoryview]:
        """The bytes of the rows, in order (views)."""
        size = self.rows_finished * self.dtype.itemsize
        for first in range(0, size, _PIECE_BYTES):
            yield self.arrays.rows[first : min(first + _PIECE_BYTES, size)].data

    def resize(self, rows_max: int) -> None:
        """Hold this many rows from now on; nothing is in it."""
        self.arrays = self.arrays._replace(rows=np.empty(rows_max * self.dtype.itemsize, dtype=np.uint8))

    def grow(self) -> None:
        """Double the buffer; what it holds stays."""
        rows = self.arrays.rows
        self.arrays = self.arrays._replace(rows=np.concatenate([rows, np.empty_like(rows)]))

    def drop_block(self) -> None:
        """Forget the games."""
        self.arrays.counts[:] = 0
