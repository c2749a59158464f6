"""Random batches for a critic on one core: boards and three labels of 4,096 rows; rows a second.

The rows are the same everywhere, in a directory in memory: nothing waits for a disk. Peers hold the labels
with the rows; tape2048 makes them from its table of games. webdataset, which reads in sequence, has fewer.
"""

import contextlib
import io
import itertools
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import Peer, per_second

ROWS = 4_000_000
GAME_ROWS = 2_500
BATCH = 4096
THRESHOLDS = (8192, 16384, 32768)

#: Rows of a row group of Parquet, and of all shards of webdataset.
GROUP_ROWS = 100_000
SHARD_ROWS = 20_000


def make_data(directory: Path, rows: int = ROWS) -> None:
    """Write sessions of noise; and their boards and labels as ``tokens.npy`` and ``labels.npy``."""
    from tests.bench.corpora import make_corpus

    from tape2048 import Corpus

    corpus = Corpus.open(make_corpus(directory / "sessions", rows, GAME_ROWS), load="ram")
    parts = [batch.copy() for batch in corpus.batches(1 << 16, shuffle=False, thresholds=THRESHOLDS)]
    for field in ("tokens", "labels"):
        np.save(directory / f"{field}.npy", np.concatenate([part[field] for part in parts]))


def _arrays(directory: Path) -> tuple[NDArray[np.uint8], NDArray[np.bool_]]:
    return np.load(directory / "tokens.npy"), np.load(directory / "labels.npy")


def _rates(batches: Iterator[Any]) -> Callable[[float], float]:
    """Measure an endless iterator of batches: pairs, or mappings, of arrays."""

    def work() -> int:
        batch = next(batches)
        values = tuple(batch.values()) if hasattr(batch, "values") else tuple(batch)
        return len(values[0])

    return per_second(work)


def _endless(make: Callable[[int], Any]) -> Iterator[Any]:
    """Yield the batches of epoch after epoch."""
    return itertools.chain.from_iterable(make(epoch) for epoch in itertools.count())


def _draws(rows: int, seed: int = 1) -> Iterator[NDArray[np.int64]]:
    """Yield indices of batches, each row once an epoch."""
    rng = np.random.default_rng(seed)
    while True:
        order = rng.permutation(rows)
        yield from (order[first : first + BATCH] for first in range(0, rows - BATCH + 1, BATCH))


def _ours(directory: Path) -> Callable[[float], float]:
    from tape2048 import Corpus

    corpus = Corpus.open(directory / "sessions", load="ram")
    return _rates(_forever(corpus.batches(BATCH, thresholds=THRESHOLDS, drop_last=True)))


def _our_pool(directory: Path) -> Callable[[float], float]:
    from tape2048 import Corpus

    corpus = Corpus.open(directory / "sessions", load="mmap")
    pooled = corpus.batches(BATCH, thresholds=THRESHOLDS, drop_last=True, pool_rows=1_000_000)
    return _rates(_forever(pooled))


def _forever(batches: Any) -> Iterator[Any]:
    """Yield a loader's batches, each iteration being its next epoch."""
    return _endless(lambda _: batches)


def _take(directory: Path) -> Callable[[float], float]:
    tokens, labels = _arrays(directory)
    return _rates(
        (np.take(tokens, draw, axis=0), np.take(labels, draw, axis=0)) for draw in _draws(len(tokens))
    )


def _index_select(directory: Path) -> Callable[[float], float]:
    import torch

    torch.set_num_threads(1)
    tokens, labels = map(torch.from_numpy, _arrays(directory))
    draws = map(torch.from_numpy, _draws(len(tokens)))
    return _rates((tokens.index_select(0, draw), labels.index_select(0, draw)) for draw in draws)


def _dataloader(directory: Path) -> Callable[[float], float]:
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    torch.set_num_threads(1)
    tokens, labels = map(torch.from_numpy, _arrays(directory))
    loader = DataLoader(TensorDataset(tokens, labels), batch_size=BATCH, shuffle=True, drop_last=True)
    return _rates(_endless(lambda _: loader))


def _table(directory: Path) -> Any:
    import pyarrow as pa

    tokens, labels = _arrays(directory)
    columns = {
        "tokens": pa.FixedSizeListArray.from_arrays(pa.array(tokens.reshape(-1)), 16),
        "labels": pa.FixedSizeListArray.from_arrays(pa.array(labels.reshape(-1)), len(THRESHOLDS)),
    }
    return pa.table(columns)


def _hugging_face(directory: Path) -> Callable[[float], float]:
    import datasets
    from pyarrow import feather

    file = directory / "rows.arrow"
    with contextlib.suppress(FileExistsError):
        feather.write_feather(_table(directory), file, compression="uncompressed")
    import pyarrow as pa

    table = datasets.table.MemoryMappedTable(pa.ipc.open_file(pa.memory_map(str(file))).read_all(), str(file))
    rows = datasets.Dataset(table).with_format("numpy")
    return _rates(rows[draw] for draw in _draws(len(rows)))


def _parquet(directory: Path) -> Callable[[float], float]:
    from pyarrow import parquet

    file = directory / "rows.parquet"
    parquet.write_table(_table(directory), file, row_group_size=GROUP_ROWS)
    reader = parquet.ParquetFile(file)
    rng = np.random.default_rng(1)

    def epoch(_: int) -> Iterator[Any]:
        for group in rng.permutation(reader.num_row_groups):
            table = reader.read_row_group(int(group), use_threads=False)
            columns = [
                table.column(name)
                .combine_chunks()
                .flatten()
                .to_numpy(zero_copy_only=False)
                .reshape(len(table), -1)
                for name in ("tokens", "labels")
            ]
            order = rng.permutation(len(table))
            for first in range(0, len(table) - BATCH + 1, BATCH):
                draw = order[first : first + BATCH]
                yield [column[draw] for column in columns]

    return _rates(_endless(epoch))


def _torchrl(directory: Path) -> Callable[[float], float]:
    import torch
    from tensordict import TensorDict
    from torchrl.data import LazyMemmapStorage, TensorDictReplayBuffer
    from torchrl.data.replay_buffers.samplers import SamplerWithoutReplacement

    torch.set_num_threads(1)
    tokens, labels = map(torch.from_numpy, _arrays(directory))
    storage = LazyMemmapStorage(len(tokens), scratch_dir=str(directory / "torchrl"), existsok=True)
    buffer = TensorDictReplayBuffer(storage=storage, sampler=SamplerWithoutReplacement(), batch_size=BATCH)
    buffer.extend(TensorDict({"tokens": tokens, "labels": labels}, batch_size=[len(tokens)]))

    def work() -> int:
        found = buffer.sample()
        return int((found["tokens"].shape[0] + found["labels"].shape[0]) // 2)

    return per_second(work)


def _grain(directory: Path) -> Callable[[float], float]:
    import grain

    tokens, labels = _arrays(directory)
    rows = grain.MapDataset.range(len(tokens)).shuffle(seed=1)
    batches = rows.map(lambda i: (tokens[i], labels[i])).repeat().batch(BATCH, drop_remainder=True)
    return _rates(itertools.chain.from_iterable([iter(batches)]))


def _webdataset(directory: Path) -> Callable[[float], float]:
    import webdataset

    tokens, labels = _arrays(directory)
    with tarfile.open(directory / "rows.tar", "w") as tar:
        for row in range(SHARD_ROWS):
            for name, value in (("tokens", tokens[row]), ("labels", labels[row])):
                file = io.BytesIO()
                np.save(file, value)
                about = tarfile.TarInfo(f"{row:08}.{name}.npy")
                about.size = file.tell()
                file.seek(0)
                tar.addfile(about, file)
    rows = webdataset.WebDataset(str(directory / "rows.tar"), shardshuffle=False).shuffle(10_000).decode()
    batches = rows.to_tuple("tokens.npy", "labels.npy").batched(BATCH, partial=False)
    return _rates(_endless(lambda _: batches))


#: The loaders; the first is ours.
PEERS = (
    Peer("tape2048, `batches()`, rows in memory", ("tape2048",), _ours),
    Peer("tape2048, `batches(pool_rows=)`, mapped files", ("tape2048",), _our_pool),
    Peer("`np.take`, arrays in memory", ("numpy",), _take),
    Peer("`torch.index_select`, tensors in memory", ("torch",), _index_select),
    Peer("PyTorch's `DataLoader` over a `TensorDataset`", ("torch",), _dataloader),
    Peer("Hugging Face `datasets`, a mapped Arrow file", ("datasets", "pyarrow"), _hugging_face),
    Peer("Parquet, shuffled within row groups", ("pyarrow",), _parquet),
    Peer("TorchRL's replay buffer, mapped tensors", ("torchrl", "tensordict"), _torchrl),
    Peer("grain's `MapDataset`, arrays in memory", ("grain",), _grain),
    Peer("webdataset, shuffled among 10,000", ("webdataset",), _webdataset),
)
