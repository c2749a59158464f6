"""A batch that is still held is never written to, however it was served and whatever refers to it."""

import random
from collections.abc import Callable, Iterable
from pathlib import Path
from sys import getrefcount
from typing import Any

import numpy as np
import pytest

from tape2048 import Corpus
from tape2048.loader import batch as batch_module
from tape2048.session.batch_fields import FIELDS

from ..corpora import OURS, build
from ..session.test_embeddings import embedded

torch = pytest.importorskip("torch")

from torch.utils.data import DataLoader  # noqa: E402 - after the skip

from tape2048.torch import CriticDataset, CriticLoader, collate  # noqa: E402

Options = dict[str, Any]


def through(corpus: Corpus, options: Options, **torchs: Any) -> Iterable[Any]:
    return DataLoader(CriticLoader(corpus, **options), **torchs)


#: Everything that serves batches.
LOADERS: dict[str, Callable[[Corpus, Options], Iterable[Any]]] = {
    "shuffled": lambda corpus, options: corpus.batches(**options),
    "straight": lambda corpus, options: corpus.batches(shuffle=False, **options),
    "pooled": lambda corpus, options: corpus.batches(pool_rows=128, **options),
    "capped": lambda corpus, options: corpus.capped(20).batches(**options),
    "0 threads": lambda corpus, options: CriticLoader(corpus, threads=0, **options),
    "1 thread": lambda corpus, options: CriticLoader(corpus, threads=1, **options),
    "3 threads": lambda corpus, options: CriticLoader(corpus, threads=3, prefetch=2, **options),
    "on the CPU": lambda corpus, options: CriticLoader(corpus, device="cpu", **options),
    "DataLoader": lambda corpus, options: through(corpus, options, batch_size=None),
    "DataLoader, a worker": lambda corpus, options: through(corpus, options, batch_size=None, num_workers=1),
    "rows by number": lambda corpus, options: DataLoader(
        CriticDataset(corpus, fields=options["fields"]), batch_size=options["batch_size"], collate_fn=collate
    ),
}  # fmt: skip

#: Ways to hold a field of a batch. Each keeps the memory in use, also when the batch itself is gone.
HOLDS: tuple[Callable[[Any, str], Any], ...] = (
    lambda batch, field: lambda: batch[field],
    lambda batch, field: _constant(batch[field]),
    lambda batch, field: _constant(batch[field][1:]),
    lambda batch, field: _constant(batch[field][-1]),
    lambda batch, field: _constant(batch[field].reshape(-1)[::2]),
    lambda batch, field: _constant(memoryview(np.asarray(_plain(batch[field])))),
    lambda batch, field: _constant(torch.from_dlpack(_plain(batch[field]))),
)


def _constant(value: Any) -> Callable[[], Any]:
    return lambda: value


def _plain(values: Any) -> Any:
    return values.view(torch.int16) if getattr(values, "dtype", None) == torch.bfloat16 else values


def check_held(batches: Iterable[Any], seed: int, share: float = 1.0) -> None:
    """Hold this share of all fields, each in a random way, and compare them at the end."""
    rng = random.Random(seed)
    held: list[tuple[Any, bytes]] = []
    rows: list[int] = []
    for batch in batches:
        rows += batch["row"].tolist()
        for field in batch:
            get = rng.choice(HOLDS)(batch, field)
            if rng.random() < share:
                held.append((get, _bytes(get())))
        del batch, get
    assert held
    assert len(rows) == len(set(rows)) > 100
    assert all(_bytes(get()) == before for get, before in held)


def _bytes(values: Any) -> bytes:
    return np.asarray(_plain(values)).tobytes()


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    root: Path = tmp_path_factory.mktemp("held")
    build(root, theirs=False, action=True)
    for name in OURS:
        embedded(root / name)
    return Corpus.open(root)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("loader", LOADERS)
def test_a_held_batch_stays_as_it_is(corpus: Corpus, loader: str, seed: int) -> None:
    options = {"batch_size": (7, 16, 30)[seed], "fields": FIELDS, "seed": seed}
    if loader != "rows by number":
        options["label_dtype"] = ("bool", "float32")[seed % 2]
    for share in (1.0, 0.1):
        check_held(LOADERS[loader](corpus, options), seed, share)


@pytest.mark.parametrize("loader", ["shuffled", "straight", "pooled", "0 threads", "1 thread", "3 threads"])
@pytest.mark.parametrize("plant", [lambda _: 0, getrefcount])
def test_a_planted_reuse_is_found(
    corpus: Corpus, loader: str, plant: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same check fails where a buffer counts as free although a view of it is held."""
    monkeypatch.setattr(batch_module, "_references", plant)
    with pytest.raises(AssertionError):
        check_held(LOADERS[loader](corpus, {"batch_size": 16, "fields": FIELDS}), seed=1)


def test_a_new_buffer_is_counted_before_another_thread_sees_it(
    corpus: Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread that looks for a free buffer refers to those that it sees."""
    pool, new, count = batch_module.BatchPool(), corpus.batches(8).buffer, batch_module._references

    def references(batch: Any) -> int:
        looked_at = [] if batch._unused else [*pool._batches]  # by another thread, while a new one is counted
        found = count(batch)
        del looked_at
        return found

    monkeypatch.setattr(batch_module, "_references", references)
    batch = pool.take(new)
    held = batch.owners[0][1:]
    del batch
    assert pool.take(new).owners[0] is not held.base
