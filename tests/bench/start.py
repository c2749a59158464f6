"""The time to the first recorded step, and to the first batch, with a warm compile cache and with none.

::

    python -m tests.bench.start [--rounds 5] [--cold-rounds 1]

The command is ``tape2048 record`` in a process of its own. Its first step is recorded when the first block's
rows are in the file of the session being written: blocks are made as small as they get, so that this is
milliseconds after the first game ended, and an upper bound of what is asked for.

The first batch is counted in seconds of processor time of a Python process, its imports included.
"""

import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .figures import ROUNDS_MIN, TREES, Benchmark, Figure, median_of

TIMEOUT_S = 300.0
PLAYERS = ("ntuple", "expectimax", "random")

#: What a session's file holds before the first row.
_HEADER_BYTES = 192


def recorder_command(out_dir: Path, player: str, *settings: str) -> list[str]:
    """``tape2048 record``, as it is installed or not."""
    command = [sys.executable, "-m", "tape2048_tools.cli", "record"]
    return [*command, "--player", player, "--out", str(out_dir), *settings]


def recorder_env(**extra: str) -> dict[str, str]:
    """The environment in which the checkout's trees are found."""
    return {**os.environ, "PYTHONPATH": TREES, **extra}


def first_rows_s(player: str, out_dir: Path, cache: Path | None = None) -> float:
    """Seconds from the command to the first rows on file; ``cache``: where kernels are kept."""
    cached = {} if cache is None else {"NUMBA_CACHE_DIR": str(cache)}
    env = recorder_env(TAPE2048_BLOCK_ROWS="1024", **cached)
    begin = time.monotonic()
    child = subprocess.Popen(
        recorder_command(out_dir, player),
        env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        while not _has_rows(out_dir):
            if child.poll() is not None:
                raise RuntimeError(f"the recorder ended with {child.returncode}")
            if time.monotonic() - begin > TIMEOUT_S:
                raise RuntimeError(f"no row in {TIMEOUT_S:g} s")
            time.sleep(0.002)
        return time.monotonic() - begin
    finally:
        child.send_signal(signal.SIGTERM)
        child.wait()
        shutil.rmtree(out_dir, ignore_errors=True)


def _has_rows(out_dir: Path) -> bool:
    # glob leaves names with a dot out of * where the pattern does not have it: the session being written.
    return any(
        path.stat().st_size > _HEADER_BYTES for path in out_dir.glob(".*/**/steps.npy") if path.exists()
    )


def start_figures(directory: Path, *, rounds: int, cold_rounds: int, players: Sequence[str]) -> list[Figure]:
    """Starts with a cache that a first start filled, and starts that compile everything."""
    figures = []
    how: dict[str, Any] = {"group": "first recorded step", "unit": "s"}
    for player in players:
        first_rows_s(player, directory / "warming")
        warm = [first_rows_s(player, directory / f"warm-{i}") for i in range(rounds)]
        figures.append(median_of(warm, name=f"`{player}`, warm cache", **how))
        cold = []
        for i in range(cold_rounds):
            with tempfile.TemporaryDirectory() as cache:
                cold.append(first_rows_s(player, directory / f"cold-{i}", Path(cache)))
        if cold:
            figures.append(median_of(cold, name=f"`{player}`, no cache", **how))
    return figures + (first_batch_figures(directory, rounds=cold_rounds) if cold_rounds else [])


FIRST_BATCHES = {
    "`Corpus.fetch`": "corpus.fetch([0, 1, 2])",
    "`Corpus.batches`": "next(iter(corpus.batches(1024)))",
    "`CriticLoader`": "import tape2048.torch as t; next(iter(t.CriticLoader(corpus, batch_size=1024)))",
}
_OPENS = "import sys; from tape2048 import Corpus; corpus = Corpus.open(sys.argv[1]); "


def first_batch_s(code: str, sessions: Path, cache: Path) -> float:
    """Seconds of processor time of a process that opens a corpus and makes its first batch."""
    env = recorder_env(NUMBA_CACHE_DIR=str(cache))
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-W", "ignore", "-c", _OPENS + code, str(sessions)]
    subprocess.run(command, env=env, check=True, stderr=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def first_batch_figures(directory: Path, *, rounds: int) -> list[Figure]:
    """Each first batch with no cache, then with the cache that it filled."""
    figures = []
    for storage in ("rows", "tape"):
        sessions = directory / f"read-{storage}"
        command = recorder_command(sessions, "random", "--max-games", "100", "--storage", storage)
        subprocess.run(command, env=recorder_env(), check=True, capture_output=True)
        for name, code in FIRST_BATCHES.items():
            cold, warm = [], []
            for _ in range(rounds):
                with tempfile.TemporaryDirectory() as cache:
                    cold.append(first_batch_s(code, sessions, Path(cache)))
                    warm.append(first_batch_s(code, sessions, Path(cache)))
            how: dict[str, Any] = {"group": "first batch, processor time", "unit": "s"}
            figures.append(median_of(cold, name=f"{name}, {storage}, no cache", **how))
            figures.append(median_of(warm, name=f"{name}, {storage}, warm cache", **how))
    return figures


BENCHMARK = Benchmark(
    start_figures,
    sizes={"rounds": ROUNDS_MIN, "cold_rounds": 1, "players": PLAYERS},
    smallest={"rounds": 1, "cold_rounds": 0, "players": ("random",)},
    in_memory=True,
)

if __name__ == "__main__":
    BENCHMARK.main("start", __doc__)
