"""A shuffle in bounded memory: chunks are read in order, and batches drawn from some of them at a time.

A chunk is 2**16 rows that follow one another in the view. An epoch takes all chunks in a random order,
dealt to the ranks in turns. A rank puts as many of its chunks as fit half of ``pool_rows`` into a pool,
and serves the pool's rows in a random order; meanwhile a thread reads the next pool into the other half.
Both orders are keyed bijections: what stands in a batch follows from (seed, epoch, number), as without
pools, and resuming in the middle reads one pool again.

What this gives up: rows of one game stand in one or two chunks, so they meet in the same pool; a batch is a
random sample of its pool's chunks, and not of the corpus. With c chunks in a pool, a batch sees some c
places of the corpus (and mostly c games or a few more), other ones in each epoch. So the pool should hold
hundreds of chunks: 512 of them are 33M rows or 0.94 GB, twice that in memory.
"""

from __future__ import annotations

import hashlib
import os
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tape2048.batches import gather_kernel
from tape2048.batches.plan import Order, Outputs, Plan, Pool, address_of
from tape2048.batches.shuffle import Permutation
from tape2048.io.bulk_read import allocate

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tape2048.batches.fields import Batch
    from tape2048.batches.gatherer import Gatherer

__all__ = ["PoolReader"]

#: Rows of a chunk: 1.8 MB, which a disk reads at its full speed. A corpus of fewer than CHUNKS_MIN a rank
#: has smaller ones.
CHUNK_SHIFT = 16
CHUNKS_MIN = 64

#: The next pool begins to be read when one part in so many of a pool was served.
READ_AHEAD_AFTER = 16

_NO_KEYS = np.empty(0, np.uint64)


class _Epoch(NamedTuple):
    """This rank's share of an epoch.

    Attributes:
        chunks: numbers of the chunks of each pool.
        starts: first row of each pool in the rank's order, and their number, ``i64[P + 1]``.
        seed: what the pools' orders are drawn with.
        cap_key: what draws the capped rows that are copied.
    """

    chunks: list[NDArray[np.int64]]
    starts: NDArray[np.int64]
    seed: int
    cap_key: int


class _Loaded(NamedTuple):
    """A pool in memory."""

    plan: Plan
    keys: NDArray[np.uint64]


class PoolReader:
    """Reads pools and fills batches from them.

    Args:
        gatherer: of the view.
        rows: of an epoch, all ranks together.
        row_bytes: of a row.
        pool_rows: most rows in memory.
        rank: this one.
        world_size: how many there are.

    Attributes:
        rank_rows: rows that each rank serves in an epoch: those of the rank that has the fewest.

    Raises:
        ValueError: fewer ``pool_rows`` than two chunks.
    """

    def __init__(
        self,
        gatherer: Gatherer,
        *,
        rows: int,
        row_bytes: int,
        pool_rows: int,
        rank: int,
        world_size: int,
    ) -> None:
        self._gatherer = gatherer
        self._rows = rows
        self._row_bytes = row_bytes
        self._rank = rank
        self._world = world_size
        fine = (rows // (CHUNKS_MIN * world_size)).bit_length() - 1
        self._shift = max(0, min(CHUNK_SHIFT, fine))
        size = 1 << self._shift
        if pool_rows < 2 * size:
            raise ValueError(f"pool_rows={pool_rows}; expected at least two chunks of {size} rows")
        self._pool_chunks = pool_rows // 2 >> self._shift
        self._chunks = -(-rows // size)
        self.rank_rows = rows
        if world_size > 1:
            # The rank with the fewest rows may be the one that has the short chunk, in another epoch if
            # not in this.
            short = self._chunks * size - rows
            self.rank_rows = max(0, self._chunks // world_size * size - short)
        self._epochs: dict[tuple[int, int], _Epoch] = {}
        self._begin_reading()

    def _begin_reading(self) -> None:
        """Have no pool, no thread that reads one, and no lock that is held."""
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._pools: dict[tuple[int, int, int], Future[_Loaded]] = {}
        self._reader: ThreadPoolExecutor | None = None

    def fill(
        self,
        batch: Batch,
        *,
        seed: int,
        epoch: int,
        first: int,
        count: int,
        cap_key: int,
        symmetry_key: int,
    ) -> None:
        """Fill a batch with ``count`` rows of this rank's order of an epoch, from its ``first`` on.

        A batch across the end of a pool takes the rest from the next one.
        """
        if self._process != os.getpid():
            self._begin_reading()  # a fork has what its parent waits for, and not the thread that reads it
        share = self._epoch(seed, epoch, cap_key)
        done = 0
        while done < count:
            place = first + done
            number = int(np.searchsorted(share.starts, place, "right")) - 1
            begin, end = int(share.starts[number]), int(share.starts[number + 1])
            some = min(count - done, end - place)
            # Not at once: other threads may still be at the end of the pool before, which would have to go.
            ahead = place - begin >= (end - begin) // READ_AHEAD_AFTER
            loaded = self._pool(share, (seed, epoch), number, ahead=ahead)
            order = Order(gather_kernel.SHUFFLED, cap_key=cap_key, symmetry_key=symmetry_key)
            places = place - begin, some
            self._gatherer.fill_part(loaded.plan, order, places, batch, loaded.keys, at=done)
            done += some
        self._gatherer.finish(batch, count)

    def _epoch(self, seed: int, epoch: int, cap_key: int) -> _Epoch:
        with self._lock:
            if (seed, epoch) not in self._epochs:
                if len(self._epochs) > 1:
                    self._epochs.clear()
                self._epochs[seed, epoch] = self._deal(seed, epoch, cap_key)
            return self._epochs[seed, epoch]

    def _deal(self, seed: int, epoch: int, cap_key: int) -> _Epoch:
        derived = hashlib.sha256(
            b"tape2048 pool 1" + seed.to_bytes(8, "little") + epoch.to_bytes(8, "little")
        )
        chunk_seed, pool_seed = np.frombuffer(derived.digest()[:16], "<u8").tolist()
        order = np.empty(self._chunks, np.uint64)
        Permutation(self._chunks, seed=chunk_seed, epoch=epoch).fill(0, order)
        mine = order[self._rank :: self._world].astype(np.int64)
        pools, sizes = [], []
        for at in range(0, len(mine), self._pool_chunks):
            chunks = mine[at : at + self._pool_chunks]
            # The one short chunk stands last in its pool, so that slots are chunks by a shift.
            chunks = chunks[np.argsort(chunks == self._chunks - 1, kind="stable")]
            pools.append(chunks)
            sizes.append(int(self._lengths(chunks).sum()))
        return _Epoch(pools, np.cumsum([0, *sizes]), pool_seed, cap_key)

    def _lengths(self, chunks: NDArray[np.int64]) -> NDArray[np.int64]:
        first = chunks << self._shift
        ends: NDArray[np.int64] = np.minimum(first + (1 << self._shift), self._rows)
        return ends - first

    def _pool(self, share: _Epoch, epoch: tuple[int, int], number: int, *, ahead: bool) -> _Loaded:
        """A pool, read if it is not there; and beside it the next one (``ahead``), or the one before."""
        with self._lock:
            beside = number + 1 if ahead else number - 1
            kept = {(*epoch, number), (*epoch, beside)}
            self._pools = {key: pool for key, pool in self._pools.items() if key in kept}
            for each in (number, beside) if ahead and beside < len(share.chunks) else (number,):
                if (*epoch, each) not in self._pools:
                    self._pools[*epoch, each] = self._submit(share, each)
            wanted = self._pools[*epoch, number]
        try:
            return wanted.result()
        except Exception:
            with self._lock:  # a file that was restored, or memory that was freed: next time it may go
                if self._pools.get((*epoch, number)) is wanted:
                    del self._pools[*epoch, number]
            raise

    def _submit(self, share: _Epoch, number: int) -> Future[_Loaded]:
        if self._reader is None:
            self._reader = ThreadPoolExecutor(1, thread_name_prefix="tape2048-pool")
        return self._reader.submit(self._read, share, number)

    def _read(self, share: _Epoch, number: int) -> _Loaded:
        self._gatherer.check_files()
        chunks = share.chunks[number]
        lengths = self._lengths(chunks)
        rows = allocate(int(lengths.sum()) * self._row_bytes).reshape(-1, self._row_bytes)
        firsts = (chunks << self._shift).astype(np.uint64)
        end = 0
        for first, length in zip(firsts.tolist(), lengths.tolist(), strict=True):
            target = Outputs(records=address_of(rows[end:]))
            order = np.array(Order(gather_kernel.STRAIGHT, cap_key=share.cap_key), np.uint64)
            plan = self._gatherer.plan.words
            gather_kernel.fill(plan, order, (first, length), _NO_KEYS, np.array(target, np.uint64))
            end += length
        keys = Permutation(end, seed=share.seed, epoch=number).keys
        return _Loaded(self._gatherer.plan_of(Pool(rows, firsts, self._shift)), keys)
