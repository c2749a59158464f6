"""The benchmarks, one after the other, with one table of all figures.

::

    python -m tests.bench [batches tapes ...]       # by default all; make bench
"""

import argparse
import importlib

from .figures import Benchmark, Figure, machine, write_table

#: The modules with a ``BENCHMARK``. Each is also a command with options: ``python -m tests.bench.batches``.
NAMES = (
    "batches", "memory", "players", "recording", "run_tables", "start", "tapes", "torch_loader", "viewer",
)  # fmt: skip


def benchmark_of(name: str) -> Benchmark:
    """Import a benchmark."""
    found: Benchmark = importlib.import_module(f"tests.bench.{name}").BENCHMARK
    return found


def main() -> None:
    """Measure at full size, and write the table after each benchmark."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", choices=[[], *NAMES], metavar="NAME")
    before, figures = machine(), list[Figure]()
    for name in parser.parse_args().names or NAMES:
        figures += benchmark_of(name).run()
        path = write_table("table", figures, before)
    print(f"{path.read_text()}\n{path}")


if __name__ == "__main__":
    main()
