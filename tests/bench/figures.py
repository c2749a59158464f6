"""What the benchmarks found: figures, the machine they were found on, and one table of them all.

Everything here is a median over rounds. Where two things are compared, a round measures both, one after the
other, so that whatever else the machine does hits both; the ratio is the median of the rounds' ratios.
"""

import argparse
import contextlib
import importlib.metadata
import json
import os
import platform
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

CHECKOUT = Path(__file__).resolve().parents[2]
#: Where packages are imported from, as ``PYTHONPATH``.
TREES = os.pathsep.join(str(CHECKOUT / tree) for tree in ("sdk", "recorder", "tools"))
RESULTS = CHECKOUT / "bench-results"
SHM = Path("/dev/shm")
WARM_BYTES = 3 * 10**9

#: What a full run takes, by `benchmarks.md`: medians of at least five.
ROUNDS_MIN = 5


class Figure(msgspec.Struct, kw_only=True):
    """One line of the table."""

    group: str
    name: str
    value: float
    unit: str
    samples: list[float] = []
    note: str = ""


def median_of(samples: Sequence[float], **fields: Any) -> Figure:
    """A figure that is the median of its samples."""
    return Figure(value=statistics.median(samples), samples=list(samples), **fields)


def alternate(
    one: Callable[[], float], other: Callable[[], float], rounds: int
) -> tuple[list[float], list[float], list[float]]:
    """What both measure, in turns: ``(ones, others, ones / others)``, one of each a round."""
    found = in_turns({"one": one, "other": other}, rounds)
    ones, others = found["one"], found["other"]
    return ones, others, ratios(ones, others)


def ratios(ones: Sequence[float], others: Sequence[float]) -> list[float]:
    """Each of the ones by its other, of the same round."""
    return [one / other for one, other in zip(ones, others, strict=True)]


def in_turns(contenders: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, list[float]]:
    """What each measures, once a round, in an order that changes: no contender is always the second."""
    names = list(contenders)
    found: dict[str, list[float]] = {name: [] for name in names}
    for i in range(rounds):
        for name in names[i % len(names) :] + names[: i % len(names)]:
            found[name].append(contenders[name]())
    return found


def make_cold(paths: Sequence[Path], memory: int) -> None:
    """Drop the pages of these files from the cache, and have so many bytes of memory ready."""
    for path in paths:
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    claim_memory(memory)


def cat_s(paths: Sequence[Path], memory: int) -> float:
    """Seconds that ``cat`` takes to read them all, made cold before."""
    make_cold(paths, memory)
    begin = time.perf_counter()
    subprocess.run(["cat", *map(str, paths)], stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - begin


def claim_memory(count: int) -> None:
    """Touch so much memory and give it back, before something is measured that takes as much.

    The host of a virtual machine may take back pages that stand free for some seconds (free page reporting).
    The next to touch them waits for the host: 0.3 in place of 9 GB/s were seen.

    Args:
        count: bytes.
    """
    np.ones(count, np.uint8)


def cpu_rate(work: Callable[[], int]) -> float:
    """How much ``work`` says that it did, per second of this process's CPU time."""
    begin = time.process_time()
    done = work()
    return done / (time.process_time() - begin)


def cpu_name() -> str:
    """The processor's name, as the kernel has it."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def machine() -> dict[str, Any]:
    """What the figures depend on: hardware, versions, and how quiet it was."""
    from llvmlite import binding

    def git(*args: str) -> str:
        done = subprocess.run(["git", *args], cwd=CHECKOUT, capture_output=True, text=True, check=False)
        return done.stdout.strip() if done.returncode == 0 else ""

    packages = ("numpy", "numba", "llvmlite", "msgspec", "crc32c")
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {
        "cpu": f"{cpu_name()} ({binding.get_host_cpu_name()})",
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(pages / 2**30, 1),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        **{name: importlib.metadata.version(name) for name in packages},
        "commit": git("describe", "--always", "--dirty") or None,
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "load_1min": round(os.getloadavg()[0], 2),
        "stolen_s": stolen_s(),
    }


def stolen_s() -> float:
    """CPU time that the hypervisor gave to others since boot, all cores together."""
    fields = Path("/proc/stat").read_text().splitlines()[0].split()
    return int(fields[8]) / os.sysconf("SC_CLK_TCK")


def number(value: float) -> str:
    """Three significant digits, or whole with separators from a thousand on."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def markdown(machine_: dict[str, Any], figures: Sequence[Figure]) -> str:
    """The table, below the machine that it was made on."""
    lines = [", ".join(f"{key} {value}" for key, value in machine_.items() if value is not None), ""]
    lines += ["| what | median | unit | range | rounds | |", "|---" * 6 + "|"]
    for figure in figures:
        samples = figure.samples
        spread = f"{number(min(samples))} to {number(max(samples))}" if samples else ""
        lines.append(
            f"| {figure.group}: {figure.name} | {number(figure.value)} | {figure.unit} | {spread} | "
            f"{len(samples) or ''} | {figure.note} |"
        )
    return "\n".join(lines) + "\n"


def write_table(stem: str, figures: Sequence[Figure], before: dict[str, Any]) -> Path:
    """Write ``bench-results/<stem>.json`` and ``.md``; returns the latter.

    ``before`` is :func:`machine` from before the measurements, so that its load is not our own.
    """
    RESULTS.mkdir(exist_ok=True)
    about = {**before, "stolen_s": round(stolen_s() - before["stolen_s"], 2)}
    document = {"machine": about, "figures": msgspec.to_builtins(list(figures))}
    (RESULTS / f"{stem}.json").write_text(json.dumps(document, indent=1) + "\n")
    path = RESULTS / f"{stem}.md"
    path.write_text(markdown(about, figures))
    return path


def options(doc: str | None, **defaults: Any) -> argparse.Namespace:
    """The command line of a benchmark: an option for each default, of its type; False makes a flag."""
    how = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=doc, formatter_class=how)
    for name, default in defaults.items():
        kind: dict[str, Any] = {"type": type(default), "default": default}
        if default is False:
            kind = {"action": "store_true"}
        elif isinstance(default, tuple):
            kind = {"nargs": "*", "default": default}
        parser.add_argument(f"--{name.replace('_', '-')}", **kind)
    return parser.parse_args()


class Benchmark(NamedTuple):
    """What a module of this package measures: as a command, in ``make bench``, and in the suite.

    Attributes:
        measure: returns figures, given an empty directory and the sizes.
        sizes: each size at full, an option of the command.
        smallest: sizes that show only that it works.
        in_memory: whether the directory is in memory, warmed at full size, or on the disk.
    """

    measure: Callable[..., list[Figure]]
    sizes: dict[str, Any]
    smallest: dict[str, Any]
    in_memory: bool = False

    def run(self, parent: Path | None = None, **sizes: Any) -> list[Figure]:
        """Measure in a directory below ``parent``, by default at full size."""
        if self.in_memory:
            with memory_dir() as directory:
                if sizes != self.smallest:
                    warm_memory(directory)
                return self.measure(directory, **{**self.sizes, **sizes})
        with tempfile.TemporaryDirectory(dir=parent) as disk:
            return self.measure(Path(disk), **{**self.sizes, **sizes})

    def main(self, stem: str, doc: str | None) -> None:
        """Measure with the options of the command line, print, write the table."""
        sizes = vars(options(doc, directory=Path(), **self.sizes))
        before = machine()
        path = write_table(stem, self.run(sizes.pop("directory"), **sizes), before)
        sys.stdout.write(f"{path.read_text()}\n{path}\n")


@contextlib.contextmanager
def memory_dir() -> Iterator[Path]:
    """An empty directory in memory (else in the place for temporary files); it goes at SIGTERM too."""
    parent = SHM if os.access(SHM, os.W_OK) else None
    path = Path(tempfile.mkdtemp(prefix="tape2048-bench-", dir=parent))
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        signal.signal(signal.SIGTERM, before)


def warm_memory(directory: Path, size: int = WARM_BYTES) -> None:
    """Have the machine's memory touched once before it is measured with."""
    chunk = bytes(16 << 20)
    path = directory / "warm"
    with path.open("wb") as file:
        for _ in range(size // len(chunk)):
            file.write(chunk)
    path.unlink()
