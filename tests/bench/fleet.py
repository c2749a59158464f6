"""Nodes of a fleet against plain recorders, and a fleet whose store is away.

::

    python -m tests.bench.fleet [--players ntuple:look_below=0 random] [--rounds 5] [--minutes 10]

**Ratio.** A round records with two nodes of a fleet, one worker each, and with two recorders alone, on tape,
into sessions of 20M rows, which the nodes ship into a store beside their spools while they record. A rate is
the confirmed rows between two looks at the status files. Sessions are deleted as they appear: from the store,
and from where the recorders write.

**Outage.** One node records; its store is renamed, as an unmounted one is gone, and comes back. The spool's
size is looked at meanwhile.
"""

import contextlib
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from tape2048.errors import TapeError
from tape2048_recorder.status.control_socket import Running
from tape2048_recorder.status.status_report import Snapshot, read_snapshot

from .figures import ROUNDS_MIN, Benchmark, Figure, alternate, median_of
from .recording import Deleting
from .start import recorder_env

PLAYERS = ("ntuple:look_below=0", "random")
TARGET = 0.97
NODES = 2
ROTATE_STEPS = 20_000_000
START_S = 120.0


def _start(*args: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "tape2048_tools.cli", *args]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    return subprocess.Popen(command, env=recorder_env(), **quiet)  # type: ignore[call-overload]


def _snapshot(out_dir: Path) -> Snapshot | None:
    with contextlib.suppress(TapeError):
        return read_snapshot(out_dir, "default")
    return None


def _wait_for_rows(out_dir: Path, more_than: int = 0) -> Snapshot:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        seen = _snapshot(out_dir)
        is_there = seen is not None and seen.process.is_there and not seen.status.ending
        if seen is not None and is_there and seen.status.recorded_rows > more_than:
            return seen
        time.sleep(0.1)
    raise RuntimeError(f"{out_dir}: nothing was recorded")


@contextlib.contextmanager
def at_work(commands: Sequence[Sequence[str]], out_dirs: Sequence[Path]) -> Iterator[None]:
    """Run processes until the block ends; their recorders publish, and end."""
    processes = [_start(*command) for command in commands]
    try:
        yield
        for out_dir in out_dirs:
            with contextlib.suppress(TapeError), Running(out_dir, "default") as recorder:
                recorder.stop(drain=False)
        for process in processes:
            process.wait(START_S)
    finally:
        for process in processes:
            process.kill()
            process.wait()


def rate(commands: Sequence[Sequence[str]], out_dirs: Sequence[Path], seconds: float) -> float:
    """Confirmed rows a second of recorders in these directories, summed."""
    with at_work(commands, out_dirs):
        first = [_wait_for_rows(out_dir) for out_dir in out_dirs]
        time.sleep(seconds)
        last = [
            _wait_for_rows(out_dir, seen.status.recorded_rows)
            for out_dir, seen in zip(out_dirs, first, strict=True)
        ]
    return sum(
        (b.status.recorded_rows - a.status.recorded_rows) / (b.monotonic_s - a.monotonic_s)
        for a, b in zip(first, last, strict=True)
    )


def _begin(store: Path, player: str, rotate_steps: int) -> None:
    shutil.rmtree(store, ignore_errors=True)
    begun = _start("fleet", "init", str(store), "--player", player, "--rotate-steps", str(rotate_steps))
    if begun.wait() != 0:
        raise RuntimeError("the fleet could not be begun")


def overhead_figures(
    player: str, *, rounds: int, seconds: float, directory: Path, nodes: int = NODES
) -> list[Figure]:
    """Recorded play of a fleet's nodes, as a part of that of as many recorders alone."""
    store = directory / "store"
    _begin(store, player, ROTATE_STEPS)
    spools = [directory / f"spool-{i}" for i in range(nodes)]
    alone = [directory / f"alone-{i}" for i in range(nodes)]
    for place in (*spools, *alone):
        shutil.rmtree(place, ignore_errors=True)  # of the player before, which had another fleet
    how = ["--workers", "1", "--min-free-mb", "0"]
    joins = [["fleet", "join", str(store), "--spool", str(spool), *how] for spool in spools]
    plain = ["record", "--player", player, "--storage", "tape", "--rotate-steps", str(ROTATE_STEPS), *how]

    with contextlib.ExitStack() as stack:
        for place in (store / "sessions", *alone):
            stack.enter_context(Deleting(place))
        ones, others, ratios = alternate(
            lambda: rate(joins, spools, seconds),
            lambda: rate([[*plain, "--out", str(out_dir)] for out_dir in alone], alone, seconds),
            rounds,
        )
    group = f"fleet of {nodes}, `{player}`"
    return [
        median_of(others, group=group, name="recorders alone", unit="steps/s"),
        median_of(ones, group=group, name="nodes", unit="steps/s"),
        median_of(ratios, group=group, name="nodes of recorders alone", unit="ratio", target=TARGET),
    ]


def _bytes_in(spool: Path) -> int:
    """Bytes of the sessions in a spool, the open one too."""
    size = 0
    for path in spool.glob("*_model=*/*"), spool.glob(".*_model=*/*"):
        for file in path:
            with contextlib.suppress(OSError):  # it has just been shipped, or renamed
                size += file.stat().st_size if file.is_file() else 0
    return size


def outage_figures(
    *, seconds: float, spool_max_mb: int, rotate_steps: int, directory: Path, player: str = "random"
) -> list[Figure]:
    """A node's spool while its store is away, and how soon it records again afterwards."""
    store, away, spool = directory / "store", directory / "away", directory / "spool"
    _begin(store, player, rotate_steps)
    limit = ["--workers", "1", "--min-free-mb", "0", "--spool-max-mb", str(spool_max_mb)]
    with (
        Deleting(store / "sessions"),
        at_work([["fleet", "join", str(store), "--spool", str(spool), *limit]], [spool]),
    ):
        _wait_for_rows(spool)
        store.rename(away)
        gone, largest, paused_s = time.monotonic(), 0, 0.0
        while time.monotonic() - gone < seconds:
            largest = max(largest, _bytes_in(spool))
            time.sleep(0.1)
            seen = _snapshot(spool)
            paused_s += 0.1 if seen is not None and seen.status.state == "paused" else 0.0
        rows = _wait_for_rows(spool).status.recorded_rows
        back = time.monotonic()
        away.rename(store)
        _wait_for_rows(spool, rows)
        again_s = time.monotonic() - back
    group = f"store away for {seconds:.3g} s"
    return [
        Figure(
            group=group, name="largest spool, of its limit", value=largest / spool_max_mb / 1e6, unit="ratio",
            target=1.0, at_least=False,
        ),
        Figure(group=group, name="paused meanwhile", value=paused_s, unit="s"),
        Figure(group=group, name="until rows are recorded again", value=again_s, unit="s"),
    ]  # fmt: skip


def measure(
    directory: Path, *, players: Sequence[str], rounds: int, seconds: float, nodes: int, minutes: float,
    spool_max_mb: int, rotate_steps: int,
) -> list[Figure]:  # fmt: skip
    """Both; without minutes, the first."""
    figures = []
    for player in players:
        figures += overhead_figures(player, rounds=rounds, seconds=seconds, directory=directory, nodes=nodes)
    if minutes:
        figures += outage_figures(
            seconds=60 * minutes, spool_max_mb=spool_max_mb, rotate_steps=rotate_steps, directory=directory
        )
    return figures


BENCHMARK = Benchmark(
    measure,
    sizes={
        "players": PLAYERS, "rounds": ROUNDS_MIN, "seconds": 20.0, "nodes": NODES, "minutes": 10.0,
        "spool_max_mb": 200, "rotate_steps": ROTATE_STEPS,
    },
    smallest={
        "players": ("random",), "rounds": 1, "seconds": 0.5, "nodes": 1, "minutes": 0.05, "spool_max_mb": 3,
        "rotate_steps": 200_000,
    },
    in_memory=True,
)  # fmt: skip

if __name__ == "__main__":
    BENCHMARK.main("fleet", __doc__)
