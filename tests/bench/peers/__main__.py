"""Measure tape2048 beside what a user would take instead; write the tables of ``docs/explanation/speed.md``.

::

    make peers                                  # makes .peers and runs this in it; some ten minutes
    python -m tests.bench.peers [engines loaders recorders] [--rounds 5] [--seconds 1] [--no-page]

What does not install or build here is named below the tables, with the reason.
"""

import argparse
import contextlib
import importlib.metadata
import json
import os
import signal
import statistics
import subprocess
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tests.bench.figures import CHECKOUT, RESULTS, ROUNDS_MIN, cpu_name, machine, memory_dir, number
from tests.pages import table, with_parts

from . import Peer, engines, loaders, recorders

PAGE = CHECKOUT / "docs/explanation/speed.md"

#: Groups: the peers, the head of the table, and how much longer than --seconds a turn takes.
GROUPS = {
    "engines": (engines.PEERS, "random play, one core", "moves/s", 1),
    "loaders": (loaders.PEERS, "random batches of 4,096 boards with labels, one core", "rows/s", 1),
    "recorders": (recorders.PEERS, "recorded random play, two workers, into memory", "rows/s", 3),
}


#: A peer measured alone should differ from its median in turns by less than this factor.
ALONE_FACTOR_MAX = 1.25


class Child:
    """A peer in a process of its own, which is stopped (SIGSTOP) except during its turns."""

    def __init__(self, group: str, index: int, directory: Path) -> None:
        command = [sys.executable, "-m", "tests.bench.peers", "--child", group, str(index), str(directory)]
        environment = {**os.environ, "JAX_PLATFORMS": "cpu", "HF_HUB_OFFLINE": "1"}
        self._process = subprocess.Popen(
            command, cwd=CHECKOUT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment,
            start_new_session=True,
        )  # fmt: skip
        #: Why it cannot be measured here, or "".
        self.failure: str = self._answer()
        self._signal(signal.SIGSTOP)

    def _signal(self, number: int) -> None:
        """Send a signal to the peer's process and to all that it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    def _answer(self) -> Any:
        line = self._process.stdout.readline()
        return json.loads(line) if line else f"ended with {self._process.wait()}"

    def measure(self, seconds: float) -> float:
        """Return the rate of a turn of so many seconds."""
        self._signal(signal.SIGCONT)
        self._process.stdin.write(f"{seconds}\n")
        self._process.stdin.flush()
        answer = self._answer()
        self._signal(signal.SIGSTOP)
        if not isinstance(answer, float):
            raise RuntimeError(f"{self._process.args!r}: {answer}")  # noqa: TRY004 - it says what happened
        return answer

    def close(self) -> None:
        """End the process."""
        self._signal(signal.SIGKILL)
        self._process.communicate()


def _serve(group: str, index: int, directory: Path) -> None:
    """Be a peer's process: get ready, and measure for as many seconds as each line asks for."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # libraries print
    if group != "recorders":
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    try:
        measure = GROUPS[group][0][index].prepare(directory)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is the answer
        traceback.print_exc()
        answers.write(json.dumps(f"{type(error).__name__}: {str(error).partition(chr(10))[0]}") + "\n")
        return
    answers.write(json.dumps("") + "\n")
    for line in sys.stdin:
        answers.write(json.dumps(float(measure(float(line)))) + "\n")


class Found(NamedTuple):
    """The results of a group, a value for each peer.

    Attributes:
        rates: one rate for each round; empty if the peer cannot be measured.
        alone: the rate of a fresh process while no other one exists; 0 if the peer cannot be measured.
        failures: why the peer cannot be measured, or "".
    """

    rates: list[list[float]]
    alone: list[float]
    failures: list[str]


def compare(group: str, directory: Path, rounds: int, seconds: float) -> Found:
    """Measure the peers of a group in turns, and then each one alone."""
    peers, _, _, longer = GROUPS[group]
    if group == "loaders":
        loaders.make_data(directory)
    children: list[Child] = []
    rates: list[list[float]] = [[] for _ in peers]
    try:
        for index in range(len(peers)):
            sys.stderr.write(f"{group}: {peers[index].name}\n")
            children.append(Child(group, index, directory))
        for turn in range(rounds):
            sys.stderr.write(f"{group}: round {turn + 1} of {rounds}\n")
            for place in range(len(peers)):
                index = (place + turn) % len(peers)
                if not children[index].failure:
                    rates[index].append(children[index].measure(seconds * longer))
    finally:
        for child in children:
            child.close()
    alone = []
    for index, child in enumerate(children):
        if child.failure:
            alone.append(0.0)
            continue
        sys.stderr.write(f"{group}: {peers[index].name}, alone\n")
        only = Child(group, index, directory)
        alone.append(only.measure(seconds * longer))
        only.close()
    return Found(rates, alone, [child.failure for child in children])


def tables_of(found: dict[str, Found], about: str) -> str:
    """Return the tables in Markdown: medians, ratios to ours of the same rounds, versions, missing peers."""
    parts, missing = [], []
    for group, (rates, alone, failures) in found.items():
        peers, what, unit, _ = GROUPS[group]
        rows = [
            _row(peer, own, rates[0], one) for peer, own, one in zip(peers, rates, alone, strict=True) if own
        ]
        parts.append(table([what, unit, "of tape2048", "measured alone", "versions"], iter(rows)))
        missing += [f"{peer.name} ({why})" for peer, why in zip(peers, failures, strict=True) if why]
    note = f"Not measured here: {'; '.join(missing)}.\n" if missing else ""
    return "\n".join([*parts, f"{about}\n{note}"])


def _row(peer: Peer, rates: Sequence[float], ours: Sequence[float], alone: float) -> list[str]:
    median = statistics.median(rates)
    ratio = statistics.median(one / other for one, other in zip(rates, ours, strict=True))
    share = "1" if rates is ours else f"{ratio:.2g}"
    differs = "" if 1 / ALONE_FACTOR_MAX < alone / median < ALONE_FACTOR_MAX else " (differs)"
    versions = ", ".join(map(_version, peer.packages))
    return [peer.name, rate_text(median), share, rate_text(alone) + differs, versions]


def rate_text(rate: float) -> str:
    """Return a rate to two or three digits: ``45.1M``, ``312k``."""
    for size, letter in ((1e6, "M"), (1e3, "k")):
        if rate >= size:
            return f"{number(rate / size)}{letter}"
    return number(rate)


def _version(package: str) -> str:
    try:
        return f"{package} {importlib.metadata.version(package)}"
    except importlib.metadata.PackageNotFoundError:
        return package


def main() -> None:
    """Measure, print, write the results and the page; or be one of the processes that are measured."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("groups", nargs="*", default=list(GROUPS), metavar="GROUP")
    parser.add_argument("--rounds", type=int, default=ROUNDS_MIN)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--no-page", action="store_true", help="leave the page in docs/ as it is")
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        _serve(args.child[0], int(args.child[1]), Path(args.child[2]))
        return
    before, found = machine(), {}
    for group in args.groups:
        with memory_dir() as directory:
            found[group] = compare(group, directory, args.rounds, args.seconds)
    about = (
        f"Made by `make peers` on {cpu_name()}, {before['cores']} cores, Python {before['python']}; "
        f"medians of {args.rounds} rounds, in turns."
    )
    text = tables_of(found, about)
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "peers.md").write_text(text)
    rates = {
        group: dict(zip([p.name for p in GROUPS[group][0]], each.rates, strict=True))
        for group, each in found.items()
    }
    (RESULTS / "peers.json").write_text(json.dumps({"machine": before, "rates": rates}, indent=1) + "\n")
    sys.stdout.write(text)
    if not args.no_page and set(found) == set(GROUPS):
        PAGE.write_text(with_parts(PAGE.read_text(), {"peers": lambda: text}))


if __name__ == "__main__":
    main()
