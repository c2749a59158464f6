"""From the command to the first recorded step, with a warm compile cache and with none.

::

    python -m tests.bench.start [--rounds 5] [--cold-rounds 1]

The command is ``tape2048 record`` in a process of its own. Its first step is recorded when the first block's
rows are in the file of the session being written: blocks are made as small as they get, so that this is
milliseconds after the first game ended, and an upper bound of what is asked for.
"""

import os
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
    return figures


BENCHMARK = Benchmark(
    start_figures,
    sizes={"rounds": ROUNDS_MIN, "cold_rounds": 1, "players": PLAYERS},
    smallest={"rounds": 1, "cold_rounds": 0, "players": ("random",)},
    in_memory=True,
)

if __name__ == "__main__":
    BENCHMARK.main("start", __doc__)
