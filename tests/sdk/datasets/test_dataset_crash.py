"""SIGKILL, a full disk and a broken one at each system call of an append and of a build.

A child appends (or builds) and strace kills it at its first write, its second, ... and so on through every
kind of call that changes something, or makes that call fail. Whatever happened, a data set is the old one or
the new one, whole, and the next append goes through and leaves nothing behind. ``FULL_SWEEP=1`` disturbs
every call.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tape2048 import errors
from tape2048.conversion.dataset_build import append_dataset, build_dataset
from tape2048.datasets.dataset import Dataset
from tape2048.datasets.verify import verify_dataset
from tape2048.errors import StorageError

from .set_builders import GAMES, dataset_rows, write_runs

FULL = os.environ.get("FULL_SWEEP") == "1"
CHECKOUT = Path(__file__).resolve().parents[3]

CHANGING = (
    "write", "pwrite64", "fsync", "rename", "renameat2", "unlink", "unlinkat", "rmdir", "mkdir", "openat",
    "link", "flock",
)  # fmt: skip
FILLING = ("write", "pwrite64", "fsync", "mkdir")


class Server:
    """One ``append_child.py``."""

    def __init__(self, scratch: Path, runs: Path) -> None:
        paths = os.pathsep.join(str(CHECKOUT / tree) for tree in ("sdk", "recorder", "tools"))
        script = Path(__file__).with_name("append_child.py")
        self._process = subprocess.Popen(
            [sys.executable, str(script)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": paths},
        )  # fmt: skip
        self._send({"target": str(scratch / "warm"), "source": str(runs)})

    def _send(self, job: dict[str, Any]) -> None:
        self._process.stdin.write(json.dumps(job) + "\n")
        self._process.stdin.flush()

    def play(self, scene: str, target: Path, source: Path, strace: list[str], **more: Any) -> dict[str, Any]:
        self._send({"scene": scene, "target": str(target), "source": str(source), "strace": strace, **more})
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        if "refused" in answer:
            pytest.skip(f"strace may not trace processes here: {answer['refused']}")
        return answer

    def close(self) -> None:
        self._process.communicate()


@pytest.fixture(scope="module")
def scratch() -> Iterator[Path]:
    # In memory: hundreds of appends flush hundreds of files each.
    where = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=where, prefix="tape2048-test-") as path:
        yield Path(path)


@pytest.fixture(scope="module")
def runs(scratch: Path) -> Path:
    return write_runs(scratch / "runs")


@pytest.fixture(scope="module")
def server(scratch: Path, runs: Path) -> Iterator[Server]:
    if shutil.which("strace") is None:
        pytest.skip("strace is not installed: no call can be killed or failed at will")
    made = Server(scratch, runs)
    yield made
    made.close()


def _is_storage(error: str) -> bool:
    """Whether an append may end so when a call fails. SQLite only says that it cannot open a file."""
    return error in {"", "left out", "SchemaError"} or issubclass(getattr(errors, error), StorageError)


OLD = dataset_rows()
NEW = np.concatenate([dataset_rows(), dataset_rows(first_id=len(GAMES))])


class Stage:
    """Plays a scene again and again, each time in a fresh copy of what it begins with."""

    def __init__(self, server: Server, scratch: Path, runs: Path, scene: str, shard_rows: int | None) -> None:
        self._server = server
        self._runs = runs
        self._scene = scene
        self._more = {"shard_rows": shard_rows}
        self._root = scratch / "stage"
        self._template = scratch / f"template-{shard_rows}"
        if scene == "append" and not self._template.exists():
            build_dataset(self._template, [runs], shard_rows=shard_rows)

    def play(self, strace: list[str]) -> tuple[Path, dict[str, Any]]:
        shutil.rmtree(self._root, ignore_errors=True)
        self._root.mkdir()
        target = self._root / "ds"
        if self._scene == "append":
            shutil.copytree(self._template, target)
        return target, self._server.play(self._scene, target, self._runs, strace, **self._more)

    def calls(self) -> Counter[str]:
        trace = self._root.with_name("trace")
        _, answer = self.play(["-o", str(trace)])
        assert (answer["status"], answer["error"]) == (0, "")
        return Counter(re.findall(r"^(\w+)\(", trace.read_text(), re.MULTILINE))

    def sweep(self, how: str, names: tuple[str, ...]) -> tuple[list[str], int, Counter[str]]:
        """What does not hold after each of the points; how many points there were; and what was found."""
        problems: list[str] = []
        found: Counter[str] = Counter()
        calls = {name: count for name, count in self.calls().items() if name in names}
        points = [(name, n) for name, count in calls.items() for n in range(1, count + 1)]
        # The last of each kind is past the exchange more often than not.
        chosen = points if FULL else [*points[:: max(1, len(points) // 16)], *calls.items()]
        for name, n in chosen:
            inject = f"inject={name}:{how}:when={n}"
            target, answer = self.play(["-o", "/dev/null", "-e", f"trace={name}", "-e", inject])
            if how.startswith("signal"):
                assert answer["status"] == -9, f"{name} {n}: the child was not killed"
            elif not _is_storage(answer["error"]):
                problems.append(f"{name} {n}: {answer['error']}, expected StorageError or one below it")
            try:
                if answer["error"] == "left out":  # a run that could not be read, which it said
                    assert verify_dataset(target).ok
                    continue
                found[self._state(target)] += 1
                self._next_goes_through(target)
            except Exception as error:  # noqa: BLE001 - whatever goes wrong in a check is what is looked for
                problems.append(f"{name} {n}: {error!r}")
        return problems, len(chosen), found

    def _state(self, target: Path) -> str:
        if not target.exists():
            assert self._scene == "build"
            return "none"
        report = verify_dataset(target)
        assert report.ok, report.findings
        rows = Dataset(target).get_batch(np.arange(report.rows))
        state = "old" if len(rows) == len(OLD) else "new"
        np.testing.assert_array_equal(rows, OLD if state == "old" else NEW)
        return state

    def _next_goes_through(self, target: Path) -> None:
        if target.exists():
            before = len(Dataset(target).runs)
            append_dataset(target, [self._runs], workers=1)
            assert len(Dataset(target).runs) == before + len(GAMES)
            assert verify_dataset(target).ok
            left = [path.name for path in target.parent.iterdir() if path != target]
            assert left == [], "the next append removes what was left"


@pytest.fixture(params=[None, 20], ids=["one_file", "shards"])
def append(request: pytest.FixtureRequest, server: Server, scratch: Path, runs: Path) -> Stage:
    return Stage(server, scratch, runs, "append", request.param)


@pytest.fixture
def build(server: Server, scratch: Path, runs: Path) -> Stage:
    return Stage(server, scratch, runs, "build", None)


@pytest.mark.slow
def test_killed_at_each_call_of_an_append(append: Stage) -> None:
    problems, points, found = append.sweep("signal=KILL", CHANGING)
    assert problems == []
    assert points > 15
    assert set(found) == {"old", "new"}, "killed before the exchange, and after it"


@pytest.mark.slow
@pytest.mark.parametrize(("code", "names"), [("ENOSPC", FILLING), ("EIO", CHANGING)])
def test_each_call_of_an_append_fails(append: Stage, code: str, names: tuple[str, ...]) -> None:
    problems, points, _ = append.sweep(f"error={code}", names)
    assert problems == []
    assert points > 10


@pytest.mark.slow
def test_killed_at_each_call_of_a_build(build: Stage) -> None:
    problems, points, found = build.sweep("signal=KILL", CHANGING)
    assert problems == []
    assert points > 15
    assert set(found) == {"none", "old"}


def test_all_is_flushed_before_the_exchange(append: Stage, scratch: Path) -> None:
    """What a power failure takes is what was not flushed: nothing of that may get the data set's name."""
    trace = scratch / "ordered"
    append.play(["-y", "-o", str(trace)])
    dirty: set[str] = set()
    exchanged = False
    for line in trace.read_text().splitlines():
        name, _, rest = line.partition("(")
        paths = re.findall(r'"([^"]*)"', rest)
        opened = re.match(r"\d+<([^>]*)>", rest)
        if name in {"openat", "mkdir", "link"} and (name != "openat" or "O_CREAT" in rest):
            dirty |= {paths[-1], str(Path(paths[-1]).parent)}
        elif name in {"write", "pwrite64"} and opened:
            dirty.add(opened[1])
        elif name == "fsync" and opened:
            dirty.discard(opened[1])
        elif name == "renameat2":
            staged = paths[0]
            half = [path for path in dirty if path.startswith(staged) and not path.endswith("-journal")]
            # What is linked was flushed when it was made.
            assert [path for path in half if "/shards/" not in path] == []
            dirty.add(str(Path(paths[1]).parent))
            exchanged = True
        elif exchanged and name in {"unlinkat", "rmdir", "unlink"}:
            assert str(Path(staged).parent) not in dirty, "the old data set is removed too early"
    assert exchanged
