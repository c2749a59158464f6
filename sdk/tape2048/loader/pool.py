"""Pools: shuffles in bounded memory, from chunks that are read sequentially.

A chunk is 2**16 consecutive rows of the view. An epoch has all chunks in a random order, which the ranks take
in turns. A rank reads as many of its chunks as fit half of ``pool_rows`` into a pool, and serves the pool's
rows in a random order, while a thread reads the next pool into the other half. Both orders are keyed
bijections: (seed, epoch, index) decides a batch, and resuming in the middle reads one pool again.

A batch is a random sample of its pool's chunks, not of the corpus: with c chunks in a pool, it sees about c
parts of the corpus. The pool should therefore hold hundreds of chunks: 512 chunks have 33M rows or 0.94 GB,
twice that in memory. Where boards suffice and are packed or on tape, the pool has boards alone: 0.27 GB.

With ``pool_sessions``, adjacent chunks with rows of at most so many sessions form a window. The windows have
a random order, and so have the chunks within each window. A corpus in a store is then fetched once in an
epoch, and two windows in the cache suffice. The sessions of the next pool are fetched while a pool is served.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tape2048.errors import TapeError
from tape2048.loader.batch import words_of
from tape2048.loader.gatherer import CHUNK_SHIFT
from tape2048.loader.order import Order
from tape2048.loader.plan import Plan, Pool
from tape2048.loader.shuffle import Permutation

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tape2048.loader.batch import Batch
    from tape2048.loader.gatherer import Gatherer

#: A corpus with fewer chunks per rank has smaller chunks than ``2**CHUNK_SHIFT`` rows, 1.8 MB, which a disk
#: reads at full speed.
CHUNKS_MIN = 64

#: The next pool is read once this fraction (1 in 16) of a pool has been served.
READ_AHEAD_AFTER = 16


class _Epoch(NamedTuple):
    """This rank's share of an epoch; ``starts`` (``i64[P + 1]``) are in the rank's order."""

    chunks: list[NDArray[np.int64]]
    starts: NDArray[np.int64]
    seed: int
    cap_key: int


class _Loaded(NamedTuple):
    """A pool in memory; ``plan`` owns the arrays that ``words`` points to."""

    plan: Plan
    words: NDArray[np.uint64]
    keys: NDArray[np.uint64]


class PoolReader:
    """Reader of pools; each rank serves ``rank_rows``, as many as the rank with the fewest has."""

    def __init__(
        self,
        gatherer: Gatherer,
        rows: int,
        *,
        pool_rows: int,
        pool_sessions: int | None,
        ranks: tuple[int, int],
    ) -> None:
        self._gatherer = gatherer
        self._rows = rows
        self._rank, self._world = ranks
        self._shift = max(0, min(CHUNK_SHIFT, (rows // (CHUNKS_MIN * self._world)).bit_length() - 1))
        size = 1 << self._shift
        if pool_rows < 2 * size:
            raise ValueError(
                f"pool_rows={pool_rows}; expected at least {2 * size}, two chunks of {size} rows"
            )
        self._pool_chunks = pool_rows // 2 >> self._shift
        self._chunks = -(-rows // size)
        self.rank_rows = rows
        if self._world > 1:
            # In some epoch, the rank with the fewest chunks has the short one.
            short = self._chunks * size - rows
            self.rank_rows = max(0, self._chunks // self._world * size - short)
        self._windows = self._cut_windows(pool_sessions)
        # The cache must hold the sessions of any two windows.
        edges = (self._windows << self._shift).tolist()
        between = gatherer.sessions_between
        windows = [between(first, min(end, rows)) for first, end in itertools.pairwise(edges)]
        largest = sorted(windows, key=gatherer.size_of)[-2:]
        hint = "raise cache_max_mb, or lower pool_sessions: the cache holds two windows of so many sessions"
        gatherer.check_fits(set().union(*largest), hint)
        self._epochs: dict[tuple[int, int], _Epoch] = {}
        self._reset()

    def _cut_windows(self, sessions: int | None) -> NDArray[np.int64]:
        """Return the first chunk of each window, and the number of chunks: ``i64[W + 1]``."""
        if sessions is None:
            return np.array([0, self._chunks])
        if sessions < 1:
            raise ValueError(f"pool_sessions={sessions}; expected at least 1")
        starts = np.unique(self._gatherer.session_starts)  # without sessions that have no row
        firsts = np.arange(self._chunks) << self._shift
        first = np.searchsorted(starts, firsts, "right") - 1
        last = np.searchsorted(starts, np.minimum(firsts + (1 << self._shift), self._rows), "left") - 1
        edges = [0]
        while edges[-1] < self._chunks:
            end = int(np.searchsorted(last, first[edges[-1]] + sessions, "left"))
            edges.append(max(end, edges[-1] + 1))
        return np.array(edges)

    def _reset(self) -> None:
        """Start without pools, reader thread, and locks that another thread holds."""
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._pools: dict[tuple[int, int, int], Future[_Loaded]] = {}
        self._reader: ThreadPoolExecutor | None = None
        self._fetcher: threading.Thread | None = None

    def fill(
        self,
        batch: Batch,
        epoch: tuple[int, int],
        places: tuple[int, int],
        order: Order,
    ) -> None:
        """Fill a batch from this rank's order, from the first of ``places`` on; it may span two pools."""
        if self._process != os.getpid():
            self._reset()  # a forked child has its parent's futures but not the thread that completes them
        share = self._epoch(epoch, order.cap_key)
        place, count = places
        done = 0
        assert count <= batch.capacity
        while done < count:
            number = int(np.searchsorted(share.starts, place, "right")) - 1
            begin, end = int(share.starts[number]), int(share.starts[number + 1])
            some = min(count - done, end - place)
            # Not at once: other threads may still need the end of the previous pool.
            ahead = place - begin >= (end - begin) // READ_AHEAD_AFTER
            pool = self._pool(share, epoch, number, ahead=ahead)
            mine = order._replace(keys=pool.keys)
            self._gatherer.run(pool.words, mine, (place - begin, some), words_of(batch, done))
            place, done = place + some, done + some
        self._gatherer.finish(batch, count)

    def _epoch(self, epoch: tuple[int, int], cap_key: int) -> _Epoch:
        with self._lock:
            if epoch not in self._epochs:
                if len(self._epochs) > 1:
                    self._epochs.clear()
                self._epochs[epoch] = self._plan_epoch(*epoch, cap_key)
            return self._epochs[epoch]

    def _plan_epoch(self, seed: int, epoch: int, cap_key: int) -> _Epoch:
        derived = hashlib.sha256(
            b"tape2048 pool 1" + seed.to_bytes(8, "little") + epoch.to_bytes(8, "little")
        )
        chunk_seed, pool_seed, window_seed, _ = np.frombuffer(derived.digest(), "<u8").tolist()
        order = np.empty(self._chunks, np.uint64)
        windows = np.zeros(len(self._windows) - 1, np.uint64)
        Permutation(len(windows), seed=window_seed, epoch=epoch).fill(0, windows)
        done = 0
        for window in windows.tolist():
            first, end = self._windows[window : window + 2].tolist()
            part = order[done : done + end - first]
            # The first window is the only one without pool_sessions.
            Permutation(end - first, seed=chunk_seed ^ window, epoch=epoch).fill(0, part)
            part += np.uint64(first)
            done += len(part)
        mine = order[self._rank :: self._world].astype(np.int64)
        pools, sizes = [], []
        for at in range(0, len(mine), self._pool_chunks):
            chunks = mine[at : at + self._pool_chunks]
            # The short chunk comes last in its pool, so that a shift turns a slot into a chunk.
            chunks = chunks[np.argsort(chunks == self._chunks - 1, kind="stable")]
            pools.append(chunks)
            sizes.append(int(self._lengths(chunks).sum()))
        return _Epoch(pools, np.cumsum([0, *sizes]), pool_seed, cap_key)

    def _lengths(self, chunks: NDArray[np.int64]) -> NDArray[np.int64]:
        first = chunks << self._shift
        ends: NDArray[np.int64] = np.minimum(first + (1 << self._shift), self._rows)
        return ends - first

    def _pool(self, share: _Epoch, epoch: tuple[int, int], number: int, *, ahead: bool) -> _Loaded:
        """Return a pool, read if it is missing; keep the next one (``ahead``) or the previous one as well."""
        with self._lock:
            beside = number + 1 if ahead else number - 1
            kept = {(*epoch, number), (*epoch, beside)}
            self._pools = {key: pool for key, pool in self._pools.items() if key in kept}
            if self._reader is None:
                self._reader = ThreadPoolExecutor(1, thread_name_prefix="tape2048-pool")
            for each in (number, beside) if ahead and beside < len(share.chunks) else (number,):
                if (*epoch, each) not in self._pools:
                    self._pools[*epoch, each] = self._reader.submit(self._read, share, each)
            wanted = self._pools[*epoch, number]
        try:
            return wanted.result()
        except Exception:
            with self._lock:  # the next attempt may succeed: a file was restored, or memory was freed
                if self._pools.get((*epoch, number)) is wanted:
                    del self._pools[*epoch, number]
            raise

    def _read(self, share: _Epoch, number: int) -> _Loaded:
        self._gatherer.store.check_files()
        chunks = share.chunks[number]
        lengths = self._lengths(chunks)
        rows = self._gatherer.allocate_pool(int(lengths.sum()))
        firsts = (chunks << self._shift).astype(np.uint64)
        order = Order.straight(share.cap_key)
        begins = np.cumsum([0, *lengths.tolist()])
        self._gatherer.prefetch(self._sessions_of(share, number))
        for at in np.argsort(firsts).tolist():  # by session, so that each is held once
            first, length = int(firsts[at]), int(lengths[at])
            held = self._gatherer.hold(first, first + length)  # before the previous hold is released
            self._gatherer.read(order, first, rows[begins[at] : begins[at] + length])
        held.close()
        is_idle = self._fetcher is None or not self._fetcher.is_alive()
        if self._gatherer.fetches and number + 1 < len(share.chunks) and is_idle:
            # There is time until this thread reads the next pool, when a part of this one has been served.
            wanted = self._sessions_of(share, number + 1)
            self._fetcher = threading.Thread(target=self._fetch_ahead, args=(wanted,), daemon=True)
            self._fetcher.start()
        keys = Permutation(int(begins[-1]), seed=share.seed, epoch=number).keys
        plan = self._gatherer.with_pool(Pool.of(rows, firsts, self._shift))
        return _Loaded(plan, plan.words, keys)

    def _fetch_ahead(self, sessions: list[int]) -> None:
        """Fetch sessions before they are needed. A failed download is repeated then, and raises its error."""
        with contextlib.suppress(TapeError):
            self._gatherer.prefetch(sessions, 1)

    def _sessions_of(self, share: _Epoch, number: int) -> list[int]:
        if not self._gatherer.fetches:
            return []
        between, size = self._gatherer.sessions_between, 1 << self._shift
        firsts = (share.chunks[number] << self._shift).tolist()
        return sorted({each for first in firsts for each in between(first, first + size)})
