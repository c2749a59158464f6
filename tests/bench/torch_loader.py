"""Rows a second through ``CriticLoader``, as tensors, by number of background threads.

::

    python -m tests.bench.torch_loader [--rows 20000000] [--batches 4000] [--rounds 7] [--directory .]

Tokens and three labels, batches of 4,096 random rows in memory. The consumer takes each batch and touches
it; what is made ahead is not counted. Beside it, in turns: the same batches without torch and without
threads, and torch's own ``DataLoader`` with ``shuffle=True`` over rows by number.
"""

import functools
import itertools
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from tape2048.corpus import Corpus

from .corpora import make_corpus
from .figures import ROUNDS_MIN, Benchmark, Figure, in_turns, median_of

ROWS = 20_000_000
BATCH = 4096
BATCHES = 4000
THREADS = (0, 1, 2)


def rate(batches: Iterable[Any], count: int) -> float:
    """Rows a second of so many batches, each of which is touched."""
    rows = 0
    begin = time.perf_counter()
    for batch in itertools.islice(batches, count):
        rows += len(batch["tokens"])
        batch["tokens"][0, 0].item()
    return rows / (time.perf_counter() - begin)


def contenders(corpus: Corpus, batch: int, rounds: int) -> dict[str, Callable[[int], float]]:
    """What takes turns: each is called with a number of batches, and never serves a row order twice."""
    from torch.utils.data import DataLoader

    from tape2048.torch import CriticLoader, as_torch_dataset, collate

    found: dict[str, Callable[[int], float]] = {}
    for threads in THREADS:
        loader = CriticLoader(corpus, batch, threads=threads, seed=threads)
        found[f"`CriticLoader`, {threads} threads".replace("1 threads", "1 thread")] = (
            lambda count, loader=loader: (  # type: ignore[misc]
                rate(loader, min(count, len(loader) // rounds))
            )
        )
    plain = corpus.batches(batch, seed=9)
    found["`Corpus.batches`, as arrays"] = lambda count: rate(plain, min(count, len(plain) // rounds))
    rows: Any = as_torch_dataset(corpus)
    through = DataLoader(rows, batch_size=batch, shuffle=True, collate_fn=collate)
    # torch first makes a list of all row numbers, which is not counted here.
    found["`DataLoader(shuffle=True)` over rows by number"] = lambda count: _after_first(through, count // 20)
    return found


def _after_first(through: Iterable[Any], count: int) -> float:
    batches = iter(through)
    next(batches)
    return rate(batches, max(1, count))


def torch_figures(directory: Path, *, rows: int, batch: int, batches: int, rounds: int) -> list[Figure]:
    """Rows a second of each."""
    corpus = Corpus.open(make_corpus(directory / "corpus", rows), load="ram")
    measured = contenders(corpus, batch, rounds).items()
    samples = in_turns({name: functools.partial(work, batches) for name, work in measured}, rounds)
    group = f"batches of {batch:,}, of {rows:,} rows"
    return [median_of(found, group=group, name=name, unit="rows/s") for name, found in samples.items()]


BENCHMARK = Benchmark(
    torch_figures,
    sizes={"rows": ROWS, "batch": BATCH, "batches": BATCHES, "rounds": ROUNDS_MIN + 2},
    smallest={"rows": 20_000, "batch": 100, "batches": 100, "rounds": 1},
)

if __name__ == "__main__":
    BENCHMARK.main("torch_loader", __doc__)
