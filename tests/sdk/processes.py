"""What docs/how-to/processes.md says of processes: ``python -m tests.sdk.processes OBJECT PLACE``.

Makes an object, uses it, and uses it again in threads and in a child of each kind. The output is a JSON
object: for each of them ``same``, or the name of the error.
"""

import hashlib
import json
import multiprocessing
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import numpy as np

from tape2048 import Corpus

KINDS = ("fork", "spawn", "forkserver")
PATIENCE_S = 60


def digest(arrays: Iterable[Any]) -> str:
    made = hashlib.sha256()
    for array in arrays:
        made.update(np.ascontiguousarray(array).tobytes())
    return made.hexdigest()


def rows_of(corpus: Corpus) -> str:
    return digest(corpus.fetch(slice(0, 200), ("tokens", "labels", "step")).values())


def filled(batches: Any) -> str:
    buffer = batches.buffer()
    batches.fill(buffer, epoch=0, index=1)
    return digest(buffer[name] for name in buffer)


def loader_of(place: str) -> Any:
    from tape2048.torch import CriticLoader

    return CriticLoader(Corpus.open(place), batch_size=50, seed=3, fields=("tokens", "row"))


def epoch_of(loader: Any) -> str:
    loader.set_epoch(0)
    return digest(batch["row"] for batch in loader)


class Iteration(NamedTuple):
    iterator: Iterator[Any]


def iteration_of(place: str) -> Iteration:
    return Iteration(iter(loader_of(place)))


def next_of(iteration: Iteration) -> str:
    next(iteration.iterator)
    return ""


def through_workers(loader: Any, kind: str = "fork") -> str:
    from torch.utils.data import DataLoader

    loader.set_epoch(0)
    through = DataLoader(
        loader, batch_size=None, num_workers=1, multiprocessing_context=kind, timeout=PATIENCE_S
    )
    return digest(batch["row"] for batch in loader.counting(through))


def dataset_of(place: str) -> Any:
    from tape2048.torch import as_torch_dataset

    return as_torch_dataset(Corpus.open(place))


def through_rows(dataset: Any, kind: str = "fork") -> str:
    from torch.utils.data import DataLoader, Subset

    from tape2048.torch import collate

    through: Any = DataLoader(
        Subset(dataset, range(200)), 50, collate_fn=collate, num_workers=1, multiprocessing_context=kind,
        timeout=PATIENCE_S,
    )  # fmt: skip
    return digest(batch["tokens"] for batch in through)


class Row(NamedTuple):
    """How an object is made and used; whether it starts processes, and whether threads may share it."""

    make: Callable[[str], Any]
    use: Callable[..., str]
    has_workers: bool = False
    for_threads: bool = True


def open_batches(place: str) -> Any:
    return Corpus.open(place).batches(50, seed=3)


def open_here(place: str) -> Corpus:
    return Corpus.open(place, cache=f"cache-{hashlib.sha256(place.encode()).hexdigest()[:8]}")


ROWS = {
    "`Corpus` of rows": Row(Corpus.open, rows_of),
    "`Corpus` on tape": Row(Corpus.open, rows_of),
    '`Corpus` with `load="ram"`': Row(partial(Corpus.open, load="ram"), rows_of),
    "`Corpus` of a bucket": Row(open_here, rows_of),
    "`Corpus` of the Hub": Row(open_here, rows_of),
    "`Batches.fill`": Row(open_batches, filled),
    "`CriticLoader`, a new iteration": Row(loader_of, epoch_of, for_threads=False),
    "`CriticLoader`, the parent's iteration": Row(iteration_of, next_of, for_threads=False),
    "`DataLoader` of a `CriticLoader`": Row(loader_of, through_workers, has_workers=True),
    "`DataLoader` of `as_torch_dataset`": Row(dataset_of, through_rows, has_workers=True),
}


def outcome(use: Callable[[], str], expected: str) -> str:
    try:
        return "same" if use() == expected else "other rows"
    except Exception as error:  # noqa: BLE001 - its name is the outcome
        return type(error).__name__


def child(use: Callable[[Any], str], thing: Any, pipe: Connection, expected: str) -> None:
    pipe.send(outcome(partial(use, thing), expected))


def in_child(kind: str, use: Callable[[Any], str], thing: Any, expected: str) -> str:
    context: Any = multiprocessing.get_context(kind)
    ours, theirs = context.Pipe()
    process = context.Process(target=child, args=(use, thing, theirs, expected))
    try:
        process.start()
    except TypeError as error:  # it cannot be pickled
        return type(error).__name__
    found = str(ours.recv()) if ours.poll(PATIENCE_S) else "no answer"
    process.join(PATIENCE_S)
    process.kill()
    return found


def in_threads(use: Callable[[Any], str], thing: Any, expected: str) -> str:
    """In eight threads at once, several times: the first outcome that is not ``same``."""
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(outcome, [partial(use, thing)] * 32, [expected] * 32))
    return next((each for each in found if each != "same"), "same")


def main(name: str, place: str) -> dict[str, str]:
    row = ROWS[name]
    thing = row.make(place)
    expected = row.use(thing)
    if row.has_workers:
        return {kind: outcome(partial(row.use, thing, kind), expected) for kind in KINDS}
    found = {kind: in_child(kind, row.use, thing, expected) for kind in KINDS}
    return found | ({"threads": in_threads(row.use, thing, expected)} if row.for_threads else {})


if __name__ == "__main__":
    warnings.simplefilter("ignore", DeprecationWarning)  # newer Pythons warn of forks beside threads
    print(json.dumps(main(*sys.argv[1:])))  # noqa: T201
