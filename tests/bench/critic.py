"""What a training of a critic waits for, and how fast embeddings come.

::

    python -m tests.bench.critic [--rows 4000000] [--steps 60] [--rounds 5] [--device auto] [--directory .]

The token path trains the default tower and head; the wait is that of the training loop for its batches,
as a share of the time of its steps. Embeddings are of D = 128, in batches of 4,096 random rows; beside the
loader, in turns, the same gather by ``np.take``, which is what any loader of these files has to beat.
"""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from tape2048.corpus import Corpus
from tape2048.critic.critic_config import CriticConfig

from .corpora import make_corpus
from .figures import ROUNDS_MIN, Benchmark, Figure, alternate, median_of

ROWS = 4_000_000
STEPS = 60
BATCH = 4096
WIDTH = 128
WAIT_TARGET = 5.0
EMBEDDINGS_TARGET = 1e6


def make_embeddings(root: Path, width: int) -> None:
    """Noise as embeddings of every session, under the name of no tower."""
    for session in sorted(root.iterdir()):
        manifest = json.loads((session / "manifest.json").read_text())
        rng = np.random.default_rng(1)
        values = np.lib.format.open_memmap(
            session / "embeddings.bf16.npy", mode="w+", dtype="<u2", shape=(manifest["rows"], width)
        )
        # Random bits of numbers from 0.5 to 2, so that no training sees infinities.
        for first in range(0, manifest["rows"], 1 << 18):
            part = values[first : first + (1 << 18)]
            part[:] = rng.integers(0x3F00, 0x3FFF, part.shape, dtype=np.uint16)
        values.flush()
        facts = {
            "model_sha": "0" * 64, "pooling": "mean", "D": width, "dtype": "bf16", "dtype_bits": "bf16",
            "rows": manifest["rows"], "steps_crc32c": manifest["files"]["steps.npy"]["crc32c"],
        }  # fmt: skip
        (session / "embeddings.json").write_text(json.dumps(facts))


def training_figures(
    root: Path, directory: Path, *, steps: int, rounds: int, config: CriticConfig
) -> list[Figure]:
    """Rows a second and data-wait share of the training loop, tokens and embeddings in turns."""
    from tape2048.torch.training import train_critic

    waits: dict[str, list[float]] = {"tokens": [], "embeddings": []}
    rates: dict[str, list[float]] = {"tokens": [], "embeddings": []}
    for i in range(rounds):
        for name, shares in waits.items():
            out = directory / f"{name}{i}"
            train_critic(
                msgspec.structs.replace(
                    config, data=str(root), out=str(out), use_embeddings=name == "embeddings",
                    steps_max=steps, epochs=10_000, eval_steps=10**9, log_steps=max(1, steps // 4), seed=i,
                    val_share=0.1, test_share=0.0,
                )
            )  # fmt: skip
            lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
            last = [line for line in lines if line["kind"] == "train"][1:]  # the first one warms up
            shares.append(100 * float(np.mean([line["data_wait"] for line in last])))
            rates[name].append(float(np.mean([line["rows_per_s"] for line in last])))
    group = f"training, batches of {config.batch_rows:,}"
    found = [
        median_of(
            waits[name], group=group, name=f"{name}: wait for data", unit="% of a step", target=WAIT_TARGET,
            at_least=False,
        )
        for name in waits
    ]  # fmt: skip
    return found + [median_of(rates[name], group=group, name=name, unit="rows/s") for name in rates]


def embedding_figures(root: Path, *, batch: int, batches: int, rounds: int) -> list[Figure]:
    """Rows a second of the loader with ``use_embeddings``, and of ``np.take`` of the same files."""
    from tape2048.torch import CriticLoader

    corpus = Corpus.open(root)
    loader = CriticLoader(corpus, batch, seed=1, fields=("embeddings", "labels"), label_dtype="float32")
    files = [np.load(session.path / "embeddings.bf16.npy", mmap_mode="r") for session in corpus.sessions]
    rng = np.random.default_rng(0)
    count = min(batches, max(1, len(loader) // (rounds + 1)))

    def timed(work: Callable[[], int]) -> float:
        begin = time.perf_counter()
        rows = work()
        return rows / (time.perf_counter() - begin)

    epoch = iter(loader)
    next(epoch)

    def ours() -> int:
        rows = 0
        for _ in range(count):
            found = next(epoch)
            rows += len(found["embeddings"])
            found["embeddings"][0, 0].item()
        return rows

    def taken() -> int:
        rows = 0
        for _ in range(count):
            out = np.take(files[0], rng.integers(0, len(files[0]), batch), axis=0)
            rows += len(out)
            out[0, 0].item()
        return rows

    mine, theirs, ratios = alternate(lambda: timed(ours), lambda: timed(taken), rounds)
    epoch.close()
    group = f"embeddings of D = {WIDTH}, batches of {batch:,}, {len(corpus):,} rows"
    return [
        median_of(mine, group=group, name="`CriticLoader`", unit="rows/s", target=EMBEDDINGS_TARGET),
        median_of(theirs, group=group, name="`np.take`", unit="rows/s"),
        median_of(ratios, group=group, name="`CriticLoader` / `np.take`", unit="x"),
    ]


def critic_figures(
    directory: Path, *, rows: int, steps: int, rounds: int, batch: int, **config: Any
) -> list[Figure]:
    """All of them; the rest are settings of the training."""
    root = make_corpus(directory / "corpus", rows, game_rows=min(12_500, max(20, rows // 50)))
    make_embeddings(root, WIDTH)
    return [
        *embedding_figures(root, batch=batch, batches=200, rounds=rounds),
        *training_figures(root, directory, steps=steps, rounds=rounds, config=CriticConfig(**config)),
    ]


BENCHMARK = Benchmark(
    critic_figures,
    sizes={
        "rows": ROWS, "steps": STEPS, "batch": BATCH, "rounds": ROUNDS_MIN, "batch_rows": 1024,
        "device": "auto",
    },
    smallest={
        "rows": 20_000, "steps": 8, "batch": 100, "rounds": 1, "batch_rows": 64, "device": "cpu",
        "tower_dim": 8, "tower_layers": 1, "tower_heads": 1,
    },
)  # fmt: skip

if __name__ == "__main__":
    BENCHMARK.main("critic", __doc__)
