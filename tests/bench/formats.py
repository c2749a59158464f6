"""Run formats and packs: decoding against plain Python, reading, random access; one core.

::

    python -m tests.bench.formats [--rounds 7]
"""

import functools
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
from crc32c import crc32c
from tests.sdk import run_builders as build

from tape2048.game.rules import legal_masks
from tape2048.packs import PackReader, PackWriter
from tape2048.runs.a2run import read_run, write_run
from tape2048.runs.a2run2 import RunV2
from tape2048.runs.run import Run, RunMeta

from .figures import Benchmark, Figure, alternate, median_of
from .games import play

GROUP = "run formats"


def make_run(steps: int, seed: int) -> RunV2:
    """Boards of any 64 bits (a strong game's take as many bytes), three legal moves of four."""
    rng = np.random.default_rng(seed)
    legal = rng.choice(np.array([7, 11, 13, 14], np.uint8), steps)
    values = rng.random((steps, 4), dtype=np.float32)
    values[(legal[:, None] >> np.arange(4) & 1) == 0] = 0
    states = rng.integers(0, 2**64, steps + 1, dtype=np.uint64)
    moves = rng.integers(0, 4, steps).astype(np.uint8)
    meta = RunMeta(steps, 1_755_927_754, 15.25, 20_504, 2048, "bench")
    return RunV2(states, moves, meta, values, legal, np.ones(steps, np.bool_))


def each(work: Callable[[Any], object], items: Iterable[Any]) -> None:
    """``work`` on each item; a result goes before the next one comes, as where runs are used up in turn."""
    for item in items:
        work(item)


def rate(work: Callable[[], object], amount: float) -> float:
    """``amount`` per second of CPU time of ``work``, which is one thread's."""
    begin = time.process_time()
    work()
    return amount / (time.process_time() - begin)


def a2run2_figures(*, rounds: int, runs: int, steps: int) -> list[Figure]:
    """Decoding and encoding of runs of typical length; of one long run."""
    files = [make_run(steps, seed).to_bytes() for seed in range(runs)]
    size = sum(map(len, files))
    plain = files[:5]
    RunV2.from_bytes(files[0])  # compiles
    plain_size = sum(map(len, plain))
    long = make_run(250 * steps, 1).to_bytes()

    def decode() -> float:
        return rate(lambda: each(RunV2.from_bytes, files), size)

    def decode_plainly() -> float:
        return rate(lambda: each(build.decode_a2run2, plain), plain_size)

    ours, _, ratios = alternate(decode, decode_plainly, rounds)
    alone = [rate(lambda: RunV2.from_bytes(long), len(long)) for _ in range(rounds)]
    some = [make_run(steps, seed) for seed in range(20)]
    encode = [rate(lambda: each(RunV2.to_bytes, some), size / len(files) * len(some)) for _ in range(rounds)]
    return [
        median_of(ratios, group=GROUP, name="a2run2 decode / plain Python", unit="ratio", target=50),
        median_of(
            [value / 1e6 for value in ours],
            group=GROUP, name=f"a2run2 decode, runs of {steps} steps", unit="MB/s a core", target=250,
        ),
        median_of(
            [value / 1e6 for value in alone], group=GROUP, name="a2run2 decode, a long run", unit="MB/s"
        ),
        median_of([value / 1e6 for value in encode], group=GROUP, name="a2run2 encode", unit="MB/s a core"),
    ]  # fmt: skip


def a2t1_figures(directory: Path, *, rounds: int, runs: int, steps: int) -> list[Figure]:
    """Opening with the checksum, and the checksum alone."""
    source = make_run(steps, 1)
    run = Run(source.states, source.moves, source.meta)
    paths = [directory / f"{i}.a2run" for i in range(runs)]
    for path in paths:
        write_run(path, run)
    size = paths[0].stat().st_size
    data = paths[0].read_bytes()

    def read() -> float:
        return rate(lambda: each(read_run, paths), size * len(paths))

    def checksum() -> float:
        return rate(lambda: [crc32c(data) for _ in paths], size * len(paths))

    ours, _, ratios = alternate(read, checksum, rounds)
    mapped = functools.partial(read_run, load="mmap")
    in_place = [rate(lambda: each(mapped, paths), size * len(paths)) for _ in range(rounds)]
    return [
        median_of([value / 1e9 for value in in_place], group=GROUP, name='... with load="mmap"', unit="GB/s"),
        median_of(
            [value / 1e9 for value in ours],
            group=GROUP, name=f"A2T1 open and checksum, {steps:,} steps", unit="GB/s", target=2,
        ),
        median_of(ratios, group=GROUP, name="A2T1 open and checksum / crc32c alone", unit="ratio"),
    ]  # fmt: skip


def played(player: str, count: int) -> list[bytes]:
    """Runs of recorded games: a pack takes no others."""
    boards, moves, finals, runs = play(player, count)
    found = []
    for run, final in zip(runs, finals, strict=True):
        rows = slice(int(run["first_row"]), int(run["first_row"] + run["rows"]))
        legal = legal_masks(boards[rows])
        values = ((legal[:, None] >> np.arange(4)) & 1).astype(np.float32)
        meta = RunMeta(len(legal), max_score=int(run["max_score"]), highest_tile=int(run["highest_tile"]))
        states = np.append(boards[rows], final)
        found.append(
            RunV2(states, moves[rows], meta, values, legal, np.ones(len(legal), np.bool_)).to_bytes()
        )
    return found


def pack_figures(directory: Path, *, rounds: int, runs: int, games: int) -> list[Figure]:
    """A pack in the page cache."""
    payloads = played("expectimax", games)
    with PackWriter(directory / "x.a2pack", count_hint=runs) as writer:
        for i in range(runs):
            writer.add(payloads[i % len(payloads)])
    pack = PackReader.open(directory / "x.a2pack")
    count = len(pack)
    rng = np.random.default_rng(1)
    files = [bytes(pack.get_slice(i).bytes) for i in range(min(count, 500))]
    share = [pack.path.stat().st_size / count * len(files)]

    def slices(reader: PackReader) -> float:
        indices = rng.integers(0, count, count).tolist()
        get = reader.get_slice
        begin = time.process_time()
        for i in indices:
            get(i)
        return 1e6 * (time.process_time() - begin) / count

    def decode_pack() -> float:
        return rate(lambda: each(len, pack.iter_indices(range(len(files)))), share[0])

    def decode_files() -> float:
        return rate(lambda: each(RunV2.from_bytes, files), share[0])

    _, _, ratios = alternate(decode_pack, decode_files, rounds)
    everything = [rate(lambda: each(len, pack), count) for _ in range(rounds)]
    later = [slices(pack) for _ in range(rounds)]
    first = [slices(PackReader.open(pack.path)) for _ in range(rounds)]
    return [
        median_of(later, group="packs", name="random get_slice", unit="us", target=5, at_least=False),
        median_of(first, group="packs", name="... with each entry's first checksum", unit="us"),
        median_of(ratios, group="packs", name="decode in sequence / decode alone", unit="ratio", target=0.8),
        median_of(everything, group="packs", name=f"decode of {count:,} runs", unit="runs/s"),
    ]


def measure(directory: Path, *, rounds: int, runs: int, steps: int, packed: int, games: int) -> list[Figure]:
    """All of them."""
    return [
        *a2run2_figures(rounds=rounds, runs=runs, steps=steps),
        *a2t1_figures(directory, rounds=rounds, runs=runs, steps=10 * steps),
        *pack_figures(directory, rounds=rounds, runs=packed, games=games),
    ]


#: Steps of a typical run in the collections that exist.
STEPS = 1_900

BENCHMARK = Benchmark(
    measure,
    sizes={"rounds": 7, "runs": 200, "steps": STEPS, "packed": 5000, "games": 50},
    smallest={"rounds": 1, "runs": 2, "steps": 20, "packed": 20, "games": 2},
)

if __name__ == "__main__":
    BENCHMARK.main("formats", __doc__)
