"""Data sets: random batches against a C loop, building from run files, opening against ``cat``.

::

    python -m tests.bench.datasets [--rows 20000000] [--runs 2000] [--rounds 7] [--directory /var/tmp]

**Batches.** 4,096 random rows of a data set in memory, fresh numbers for each call, in turns: ``get_batch``
with and without an array to write into, a view of half of the runs, NumPy's fancy indexing of the same
array (what the original design assumes), and the C loop of ``floor.c`` over the same memory.

**Build.** ``build_dataset`` of a2run2 files with branch values, games of the recorder's default player (some
2,000 steps each), from memory into memory, with two threads.

**Opening.** ``Dataset.open`` into memory against ``cat FILE > /dev/null``, in turns, the file dropped from
the page cache before each.
"""

import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tape2048.conversion.dataset_build import DatasetWriter, build_dataset
from tape2048.datasets.dataset import Dataset
from tape2048.formats.dataset_layout import DATASET_ROW_DTYPE
from tape2048.game.rules import legal_masks
from tape2048.runs.a2run2 import RunV2
from tape2048.runs.run import RunMeta
from tape2048.session.dataset_runs import RunTable

from .figures import Benchmark, Figure, alternate, cat_s, make_cold, median_of, memory_dir, ratios
from .floor import Floor
from .games import play

BATCH = 4096
RUN_STEPS = 2000

#: What a batch of 4,096 may take of the C loop's time.
GATHER_TARGET = 1.5
BUILD_TARGET = 3e6
OPEN_TARGET = 0.9


def make_rows(directory: Path, rows: int) -> Path:
    """A data set of made-up rows, runs of :data:`RUN_STEPS`."""
    path = directory / "made"
    path.mkdir()
    writer = DatasetWriter(path, None)
    rng = np.random.default_rng(0)
    for first in range(0, rows, 1 << 20):
        part = np.zeros(min(1 << 20, rows - first), DATASET_ROW_DTYPE)
        numbers = np.arange(first, first + len(part))
        part["board"] = rng.integers(0, 2**63, len(part))
        part["run_id"], part["step_index"] = numbers // RUN_STEPS, numbers % RUN_STEPS
        writer.write(part.view(np.uint8))
    steps = [RUN_STEPS] * (rows // RUN_STEPS) + ([rows % RUN_STEPS] if rows % RUN_STEPS else [])
    metas = [RunMeta(count, max_score=i % 2) for i, count in enumerate(steps)]
    writer.tables.append(RunTable.of_metas(metas))
    writer.finish()
    return path


def gather_figures(directory: Path, *, rows: int, calls: int, rounds: int) -> list[Figure]:
    """Batches of random rows, each way, in turns."""
    dataset = Dataset.open(make_rows(directory, rows))
    records = dataset.steps
    floor, raw = Floor(records), np.empty(BATCH * 32, np.uint8)
    out = np.empty(BATCH, DATASET_ROW_DTYPE)
    view = dataset.filter_by_score(1)
    rng = np.random.default_rng(1)
    ways: dict[str, tuple[int, Callable[[Any], Any]]] = {
        "C loop with prefetch": (rows, lambda numbers: floor(numbers.view(np.uint64), raw)),
        "get_batch(out=)": (rows, lambda numbers: dataset.get_batch(numbers, out)),
        "get_batch": (rows, dataset.get_batch),
        "get_batch of a view": (len(view), view.get_batch),
        "steps[numbers]": (rows, lambda numbers: records[numbers]),
    }
    samples: dict[str, list[float]] = {name: [] for name in ways}
    for round_ in range(rounds + 1):  # the first one compiles
        times: dict[str, list[float]] = {name: [] for name in ways}
        for call in range(calls):
            # Another one is first each time: what the caches hold is what the one before has left.
            order = [*ways][call % len(ways) :] + [*ways][: call % len(ways)]
            for name in order if call // len(ways) % 2 else order[::-1]:
                limit, way = ways[name]
                numbers = rng.integers(0, limit, BATCH)
                begin = time.perf_counter()
                way(numbers)
                times[name].append(time.perf_counter() - begin)
        if round_:
            for name, found in times.items():
                samples[name].append(statistics.median(found) * 1e6)
    group = f"{BATCH:,} of {rows:,} rows"
    figures = [median_of(found, group=group, name=name, unit="us") for name, found in samples.items()]
    base = samples["C loop with prefetch"]
    for name in ("get_batch(out=)", "get_batch"):
        how = {"group": group, "name": f"{name} / C loop", "target": GATHER_TARGET, "at_least": False}
        figures.append(median_of(ratios(samples[name], base), unit="", **how))
    return figures


def make_runs(directory: Path, count: int) -> int:
    """Run files of the default player's games, with branch values; returns their steps."""
    directory.mkdir()
    boards, moves, finals, runs = play("expectimax", count)
    rng, directions = np.random.default_rng(2), np.arange(4, dtype=np.uint8)
    for row, final in zip(runs, finals.tolist(), strict=True):
        rows = slice(int(row["first_row"]), int(row["first_row"] + row["rows"]))
        legal = legal_masks(boards[rows])
        values = rng.random((len(legal), 4), np.float32) * (legal[:, None] >> directions & 1)
        meta = RunMeta(len(legal), 0, 0.0, int(row["max_score"]), int(row["highest_tile"]), "bench")
        has = np.ones(len(legal), np.bool_)
        branches = {"branch_values": values.astype(np.float32), "branch_legal": legal, "has_branches": has}
        run = RunV2.from_boards(boards[rows], moves[rows], final, meta, **branches)
        run.save(directory / f"{int(row['id']):06d}.a2run2")
    return len(boards)


def build_figures(directory: Path, *, runs: int, rounds: int) -> list[Figure]:
    """How fast run files become rows."""
    steps = make_runs(directory / "runs", runs)
    rates = []
    for round_ in range(rounds + 1):
        begin = time.perf_counter()
        build_dataset(directory / f"built-{round_}", [directory / "runs"], workers=2)
        if round_:
            rates.append(steps / (time.perf_counter() - begin))
    figure = median_of(
        rates, group=f"build, {runs:,} a2run2 files", name="2 threads", unit="steps/s", target=BUILD_TARGET
    )
    return [figure]


def open_figures(directory: Path, *, rows: int, rounds: int) -> list[Figure]:
    """Opening into memory against ``cat``, both from a cold file."""
    path = make_rows(directory, rows) / "steps.npy"
    size = path.stat().st_size

    def opened_s() -> float:
        make_cold([path], 3 * size)
        begin = time.perf_counter()
        Dataset.open(path.parent)
        return time.perf_counter() - begin

    # Twice as many rounds: they are short, and a disk varies more than a processor.
    opens, cats, speeds = alternate(
        lambda: size / opened_s() / 1e9, lambda: size / cat_s([path], 3 * size) / 1e9, 2 * rounds
    )
    group = f"opening {size / 1e6:,.0f} MB, cold"
    return [
        median_of(opens, group=group, name="Dataset.open", unit="GB/s"),
        median_of(cats, group=group, name="cat", unit="GB/s"),
        median_of(speeds, group=group, name="Dataset.open / cat", unit="", target=OPEN_TARGET),
    ]


def measure(directory: Path, *, rows: int, calls: int, runs: int, rounds: int) -> list[Figure]:
    """All of them."""
    with memory_dir() as memory:
        figures = gather_figures(memory, rows=rows, calls=calls, rounds=rounds)
        figures += build_figures(memory, runs=runs, rounds=rounds)
    return figures + open_figures(directory, rows=rows, rounds=rounds)


BENCHMARK = Benchmark(
    measure,
    sizes={"rows": 20_000_000, "calls": 200, "runs": 2000, "rounds": 7},
    smallest={"rows": 50_000, "calls": 3, "runs": 3, "rounds": 1},
)

if __name__ == "__main__":
    BENCHMARK.main("datasets", __doc__)
