"""Four readers that train through a cache which holds a tenth of the store.

::

    python -m tests.bench.shared_cache [--minutes 60] [--sessions 200] [--kind rclone]

Two readers are threads of one process. Two are processes of their own: one with prefetching threads
(``CriticLoader``), and one that is killed (SIGKILL) every half minute and starts again. Each has its own
seed, shuffles one session at a time (``pool_sessions=1``), trains a linear critic, and compares each batch
with that of a local directory with the same sessions.

The exit code is 1 if a reader fails, gets another batch, or never removes a session to make room, or if the
cache ever takes more than ``cache_max_mb``. The kinds are those of ``tests.sdk.store_servers``.
"""

import argparse
import contextlib
import json
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tape2048 import Corpus
from tape2048.session.session import sessions
from tape2048.stores import remote
from tape2048.stores.objects import open_store
from tape2048.stores.remote import SessionCache, put_session
from tape2048_recorder.record_options import RecorderConfig
from tape2048_recorder.recorder import run

from ..recorder.checks import Listener
from ..recorder.processes import PATIENCE_S, environment
from ..sdk.store_servers import Watch, s3_environment, s3_server, size_of

#: About a megabyte on tape each, of games with some thousand moves.
PLAYER: dict[str, Any] = {
    "player": "ntuple",
    "player_args": {"weights": "fast", "look_below": 0},
    "storage": "tape",
}
ROTATE_STEPS = 650_000

BATCH_ROWS, POOL_ROWS = 4096, 1 << 18
_SAY_S = 0.5


class Job(NamedTuple):
    """What a reader's process is told."""

    url: str
    local: str
    cache: str
    cache_mb: int
    megabyte: int
    seeds: list[int]  # of its readers: a thread for each
    loader: bool  # whether they are CriticLoaders


class LinearCritic:
    """The probability of a game's outcome, from a weight for each token of each cell."""

    def __init__(self) -> None:
        self._weights = np.zeros((16, 16), np.float32)

    def train(self, tokens: Any, labels: Any) -> None:
        """Make a step of logistic regression on ``tokens`` (``u8[n, 16]``) and ``labels`` (``[n, k]``)."""
        cells = np.arange(16)
        logits = self._weights[cells, tokens].sum(axis=1)
        errors = (labels[:, 0] - 1 / (1 + np.exp(-logits))) / len(tokens)
        places = (tokens + 16 * cells).reshape(-1)
        steps = np.bincount(places, np.repeat(errors, 16), 256).reshape(16, 16)
        self._weights += np.float32(0.1) * steps.astype(np.float32)


def count_evictions() -> Counter[int]:
    """Count from now on the sessions that each cache of this process removes, by its ``id``."""
    found: Counter[int] = Counter()
    mine = threading.local()
    make_room, remove = SessionCache._make_room, remote._remove

    def making(self: SessionCache, size: int) -> int | None:
        mine.cache = id(self)
        return make_room(self, size)

    def removing(entry: Any, *args: Any) -> bool:
        gone = remove(entry, *args)
        found[mine.cache] += gone and not entry.is_table and not entry.path.name.startswith(".")
        return gone

    SessionCache._make_room = making  # type: ignore[method-assign]
    remote._remove = removing
    return found


def batches_of(corpus: Corpus, seed: int, *, loader: bool) -> Any:
    """The batches of a corpus, one epoch for each iteration."""
    order: dict[str, Any] = {"seed": seed, "pool_rows": POOL_ROWS, "pool_sessions": 1}
    if loader:
        from tape2048.torch import CriticLoader

        return CriticLoader(corpus, batch_size=BATCH_ROWS, threads=1, **order)
    return corpus.batches(BATCH_ROWS, **order)


def read(job: Job, seed: int, said: dict[str, Any], evictions: Counter[int]) -> None:
    """Read and train until the process ends; ``said`` has what was read so far."""
    mine = batches_of(Corpus.open(job.local), seed, loader=False)
    corpus = Corpus.open(job.url, cache=job.cache, cache_max_mb=job.cache_mb)
    theirs = batches_of(corpus, seed, loader=job.loader)
    (cache,) = {id(session.source.cache) for session in corpus.sessions}  # type: ignore[attr-defined]
    critic = LinearCritic()
    while True:
        for found, expected in zip(theirs, mine, strict=True):
            for name in ("tokens", "labels"):
                assert np.array_equal(found[name], expected[name]), f"another batch: {said}"
            critic.train(np.asarray(found["tokens"]), np.asarray(found["labels"]))
            said["rows"] += len(found["tokens"])
            said["evictions"] = evictions[cache]
        said["epochs"] += 1


def run_readers(job: Job) -> None:
    """Run the readers of a process, and print what they have read; an error of one ends the process."""
    remote.MEGABYTE = job.megabyte
    evictions = count_evictions()
    said: list[dict[str, Any]] = [{"rows": 0, "epochs": 0, "evictions": 0} for _ in job.seeds]
    failed = threading.Event()

    def go_on(seed: int, mine: dict[str, Any]) -> None:
        try:
            read(job, seed, mine, evictions)
        finally:
            failed.set()

    for seed, mine in zip(job.seeds, said, strict=True):
        threading.Thread(target=go_on, args=(seed, mine), daemon=True).start()
    while not failed.wait(_SAY_S):
        print(json.dumps(said), flush=True)
    sys.exit("a reader has ended")  # its traceback is above


class Reader:
    """A process of readers; ``sums`` are over its lives, for each of its readers."""

    def __init__(self, job: Job, log: Path) -> None:
        self._job, self._log = job, log
        self.sums = [Counter[str]() for _ in job.seeds]
        self.lives = 0
        self._start()

    def _start(self) -> None:
        self.lives += 1
        self._reading_since: float | None = None
        job = self._job._replace(seeds=[seed + 100 * self.lives for seed in self._job.seeds])
        with self._log.open("wb") as output, self._log.with_suffix(".err").open("ab") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.bench.shared_cache", "--reader", json.dumps(job)],
                stdout=output, stderr=errors, env=environment(),
            )  # fmt: skip

    @property
    def said(self) -> list[Counter[str]]:
        """What its readers have read in all lives."""
        lines = [line for line in self._log.read_text().splitlines(keepends=True) if line.endswith("\n")]
        now = json.loads(lines[-1]) if lines else [{} for _ in self.sums]
        return [Counter(before) + Counter(more) for before, more in zip(self.sums, now, strict=True)]

    def reads_since(self, seconds: float) -> bool:
        """Whether this life has been seen to read, and that so many seconds ago."""
        if self._reading_since is None and self.said != self.sums:
            self._reading_since = time.monotonic()
        return self._reading_since is not None and time.monotonic() - self._reading_since >= seconds

    def kill(self) -> None:
        """Kill it, and keep what it read."""
        self.process.kill()
        self.process.wait()
        self.sums = self.said
        self._log.write_text("")

    def kill_and_start(self) -> None:
        """Kill it, and start another one."""
        self.kill()
        self._start()

    @property
    def errors(self) -> str:
        """The end of what it wrote to its standard error."""
        return self._log.with_suffix(".err").read_text()[-2000:]


class Held(NamedTuple):
    """What was found: each reader's sums, kills, the cache's bound and its most bytes, and problems."""

    readers: list[Counter[str]]
    kills: int
    bound: int
    most: int
    problems: list[str]


def record_sessions(root: Path, count: int) -> None:
    """Record sessions into a directory, as a recorder publishes them."""
    limits = {"max_steps": count * ROTATE_STEPS, "rotate_steps": ROTATE_STEPS, "block_rows": 16_384}
    config = {**PLAYER, **limits, "out_dir": str(root), "workers": 1, "seed": 1, "min_free_mb": 0}
    run(RecorderConfig(**config), Listener())


@contextlib.contextmanager
def store_of(kind: str, directory: Path, local: Path) -> Iterator[str]:
    """A store with the sessions of a local directory; its URL."""
    with contextlib.ExitStack() as stack:
        place = directory / "served/bucket/place"
        url = f"file://{place}"
        if kind != "directory":
            address = stack.enter_context(s3_server(kind, directory / "served"))
            stack.enter_context(s3_environment(address))
            url = "s3://bucket/place"
        if kind != "moto":  # the files that rclone serves
            place.mkdir(parents=True)
        store = open_store(url if kind == "moto" else str(place))
        for path in sessions(local):
            put_session(store, path, "00000a")
        yield url


def hold(
    directory: Path, local: Path, *, seconds: float, kind: str, cache_mb: int, kill_s: float = 30.0,
    megabyte: int = 10**6,
) -> Held:  # fmt: skip
    """Read for so many seconds, and until each reader has removed a session; returns what was found.

    Args:
        directory: an empty one.
        local: the sessions, in a directory.
        seconds: how long, at least.
        kind: of store.
        cache_mb: what the cache may have.
        kill_s: time between two kills.
        megabyte: bytes of a "megabyte", so that small sessions need small caches.
    """
    cache = directory / "cache"
    cache.mkdir()
    problems, kills = list[str](), 0
    next(iter(batches_of(Corpus.open(local), 0, loader=False)))  # compiles what the readers load
    with store_of(kind, directory, local) as url, Watch(cache, 0.05) as watch:
        job = Job(url, str(local), str(cache), cache_mb, megabyte, [1, 2], loader=False)
        readers = [
            Reader(job, directory / "threads"),
            Reader(job._replace(seeds=[3], loader=True), directory / "loader"),
            Reader(job._replace(seeds=[4]), directory / "killed"),
        ]
        end = time.monotonic() + seconds
        try:
            while not problems and time.monotonic() < end + PATIENCE_S:
                time.sleep(0.2)
                problems += [each.errors for each in readers if each.process.poll() is not None]
                if readers[-1].reads_since(kill_s):
                    readers[-1].kill_and_start()
                    kills += 1
                every = [said for each in readers for said in each.said]
                if time.monotonic() >= end and all(said["evictions"] for said in every):
                    break
        finally:
            for each in readers:
                each.kill()
    every = [said for each in readers for said in each.said]
    problems += [
        f"reader {i} removed nothing: {said}" for i, said in enumerate(every) if not said["evictions"]
    ]
    if not 0 < watch.most <= cache_mb * megabyte:
        problems.append(f"the cache had {watch.most:,} bytes; its bound is {cache_mb * megabyte:,}")
    return Held(every, kills, cache_mb * megabyte, watch.most, problems)


def main() -> int:
    """Read, print what was found."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--sessions", type=int, default=200)
    parser.add_argument("--kind", choices=("rclone", "moto", "directory"), default="rclone")
    parser.add_argument("--reader", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.reader:
        run_readers(Job(*json.loads(args.reader)))
    directory = Path(tempfile.mkdtemp(prefix="shared_cache"))
    try:
        local = directory / "local"
        record_sessions(local, args.sessions)
        cache_mb = size_of(local) // 10**7
        held = hold(directory, local, seconds=60 * args.minutes, kind=args.kind, cache_mb=cache_mb)
    finally:
        shutil.rmtree(directory)
    print("| reader | rows read | epochs | sessions removed |\n|---|---|---|---|")
    for name, said in zip(("thread", "thread", "CriticLoader", "killed"), held.readers, strict=True):
        print(f"| {name} | {said['rows']:,} | {said['epochs']} | {said['evictions']:,} |")
    print(f"\n{args.minutes:g} minutes, {held.kills} kills; at most {held.most:,} bytes of {held.bound:,}")
    print("\n".join(held.problems) or "no problem")
    return 1 if held.problems else 0


if __name__ == "__main__":
    sys.exit(main())
