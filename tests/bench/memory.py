"""Resident memory and open descriptors of each of a recorder's processes over a run.

::

    python -m tests.bench.memory --minutes 30 [--player random] [--workers 2]

Prints a line a minute: resident megabytes (10**6 bytes; shared libraries count in full for each process) of
the daemon and of each worker, the highest of samples a second apart, since the daemon's memory rises and
falls with each session. The bound is the block buffer plus 250 MB for each process; flat means that the last
third of the run reaches no higher than the middle third did, but for 5 MB. Sessions go to memory and are
deleted as they appear, by this process and not by the one that is measured. Open descriptors likewise: the
last third may have no more than the middle third, but for the few of a session that is being published.
"""

import contextlib
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from ..recorder.processes import resident_mb, workers_of
from .figures import Benchmark, Figure
from .recording import Deleting
from .start import recorder_command, recorder_env

BOUND_MB = 250.0
GROWTH_MAX_MB = 5.0
DESCRIPTORS_MORE_MAX = 4
BLOCK_ROWS = 262_144
ROW_BYTES = 28
BUFFER_MB = BLOCK_ROWS * ROW_BYTES / 1e6


@contextlib.contextmanager
def recorder(out_dir: Path, player: str, workers: int) -> Iterator[subprocess.Popen[bytes]]:
    """A recorder as a person would start it, its workers at work."""
    with Deleting(out_dir):
        child = subprocess.Popen(
            recorder_command(out_dir, player, "--workers", str(workers)),
            env=recorder_env(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            while not any(out_dir.glob(".*/**/steps.npy")):
                if child.poll() is not None:
                    raise RuntimeError(f"the recorder ended with {child.returncode}")
                time.sleep(0.02)
            yield child
        finally:
            child.send_signal(signal.SIGTERM)
            child.wait()


class Sample(NamedTuple):
    """Megabytes and open descriptors, of the daemon first and then of each worker."""

    megabytes: list[float]
    descriptors: list[float]


def look(pids: list[int]) -> Sample:
    """One moment."""
    return Sample(
        [resident_mb(pid) for pid in pids],
        [float(sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())) for pid in pids],
    )


def highest(samples: list[Sample]) -> Sample:
    """The highest of each number."""
    megabytes, descriptors = zip(*samples, strict=True)
    return Sample(
        [max(column) for column in zip(*megabytes, strict=True)],
        [max(column) for column in zip(*descriptors, strict=True)],
    )


def watch(child: subprocess.Popen[bytes], *, samples: int, interval_s: float, looks: int = 1) -> list[Sample]:
    """The highest of ``looks`` for each sample."""
    found = []
    pids = [child.pid, *workers_of(child.pid)]
    begin = time.monotonic()
    for i in range(samples):
        seen = []
        for k in range(looks):
            time.sleep(max(0.0, begin + (i + (k + 1) / looks) * interval_s - time.monotonic()))
            if [child.pid, *workers_of(child.pid)] != pids:
                raise RuntimeError(f"the processes were {pids}, and are not any more")
            seen.append(look(pids))
        found.append(highest(seen))
        cells = [f"{mb:.1f} ({fds:.0f})" for mb, fds in zip(*found[-1], strict=True)]
        sys.stdout.write(f"| {(time.monotonic() - begin) / 60:.1f} | {' | '.join(cells)} |\n")
        sys.stdout.flush()
    return found


def growth(column: list[float]) -> float:
    """How much higher the last third reaches than the one before it."""
    third = max(1, len(column) // 3)
    return max(column[-third:]) - max(column[-2 * third : -third] or column[:1])


def memory_figures(samples: list[Sample], player: str) -> list[Figure]:
    """The highest of each process against its bound, and how much it grew."""
    figures = []
    for i in range(len(samples[0].megabytes)):
        name = f"worker {i - 1}" if i else "daemon"
        megabytes = [sample.megabytes[i] for sample in samples]
        descriptors = [sample.descriptors[i] for sample in samples]
        bound = BOUND_MB + (BUFFER_MB if i else 0)
        group = f"memory, `{player}`"
        grown, more = growth(megabytes), growth(descriptors)
        figures += [
            Figure(
                group=group, name=f"{name}, highest (at most {bound:.0f})", value=max(megabytes), unit="MB",
                samples=megabytes,
            ),
            Figure(group=group, name=f"{name}, growth (at most {GROWTH_MAX_MB:g})", value=grown, unit="MB"),
            Figure(
                group=group, name=f"{name}, more descriptors (at most {DESCRIPTORS_MORE_MAX})", value=more,
                unit=f"of {max(descriptors):.0f}",
            ),
        ]  # fmt: skip
    return figures


def measure(directory: Path, *, minutes: float, interval_s: float, player: str, workers: int) -> list[Figure]:
    """Run, and print a line for each interval."""
    columns = ["minute", "daemon", *(f"worker {i}" for i in range(workers))]
    sys.stdout.write(
        f"resident MB (descriptors), `{player}`\n\n| {' | '.join(columns)} |\n{'|---' * len(columns)}|\n"
    )
    samples, looks = max(1, round(minutes * 60 / interval_s)), max(1, round(interval_s))
    with recorder(directory / "out", player, workers) as child:
        found = watch(child, samples=samples, interval_s=interval_s, looks=looks)
    return memory_figures(found, player)


BENCHMARK = Benchmark(
    measure,
    sizes={"minutes": 2.0, "interval_s": 10.0, "player": "random", "workers": 2},
    smallest={"minutes": 0.01, "interval_s": 0.2, "player": "random", "workers": 1},
    in_memory=True,
)

if __name__ == "__main__":
    BENCHMARK.main("memory", __doc__)
