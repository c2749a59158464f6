"""A crash at each system call of a rotation, and each of them failing; what the next start makes of it.

A child plays a rotation (``crash_server.py``) and strace kills it at its first write, its second, ... and so
on through every kind of call that changes something, SQLite's included. Each is also made to fail, for want
of room and as if the device were broken. The suite takes a sample of the calls; ``FULL_SWEEP=1`` goes through
all of them, more kinds of failure, and all pairs of a crash and a crash of its recovery.
"""

import itertools
import json
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from queue import SimpleQueue
from typing import Any, NamedTuple

import pytest
from tests.mutants import Mutant, planted

from tape2048 import errors
from tape2048.errors import StorageError
from tape2048.session.session import sessions
from tape2048_recorder.recording.partial import JOURNAL, PartialSession

from .checks import assert_holds
from .materials import COLUMNED, Blocks, make_facts
from .processes import environment

FULL = os.environ.get("FULL_SWEEP") == "1"
SERVERS = 2

#: Calls that change something; FULL_SWEEP kills at the others too.
CHANGING = (
    "write", "writev", "pwrite64", "pwritev", "fsync", "fdatasync", "rename", "renameat", "renameat2",
    "ftruncate", "fallocate", "unlink", "unlinkat", "rmdir", "mkdir", "mkdirat", "openat",
)  # fmt: skip

#: Calls that want room, and those that reach the device.
FILLING = ("write", "writev", "pwrite64", "pwritev", "fsync", "fdatasync", "ftruncate", "mkdir", "mkdirat")
REACHING = (*CHANGING, "preadv", "preadv2", "pread64")

#: Calls that say nothing of files.
OTHER = ("exit_group", "brk", "mmap", "munmap", "mremap", "rt_sigaction", "rt_sigprocmask", "getpid")


class Server:
    """One ``crash_server.py``."""

    def __init__(self, blocks_file: Path) -> None:
        script = Path(__file__).with_name("crash_server.py")
        self._process = subprocess.Popen(
            # A warning in a child is a defect as well. A child that writes bytecode makes more calls than the
            # later children, which find it.
            [sys.executable, "-B", "-W", "error", str(script), str(blocks_file)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment(), text=True,
        )  # fmt: skip

    def play(
        self,
        scene: str,
        root: Path,
        strace: list[str],
        mutants: Sequence[Mutant] = (),
        power: Path | None = None,
    ) -> dict[str, Any]:
        """Have a child play a scene; see ``crash_server.py``.

        ``power`` is the mount to shut down when the child stops.
        """
        job = {
            "scene": scene,
            "root": str(root),
            "strace": strace,
            "mutants": [list(mutant) for mutant in mutants],
            "power": None if power is None else str(power),
        }
        self._process.stdin.write(json.dumps(job) + "\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        if answer["refused"]:
            pytest.skip(f"strace may not trace processes here: {answer['refused']}")
        return answer

    def close(self) -> None:
        self._process.communicate()


class Point(NamedTuple):
    """One call that is disturbed."""

    call: str
    number: str  # "3": the third one; "3+": that one and all after it
    how: str

    def __str__(self) -> str:
        return f"{self.call} {self.number}: {self.how}"

    @property
    def strace(self) -> list[str]:
        inject = f"inject={self.call}:{self.how}:when={self.number}"
        return ["-o", "/dev/null", "-e", f"trace={self.call}", "-e", inject]


class Stage:
    """Plays one scene again and again, each time in a fresh copy of what it begins with.

    Args:
        servers: that play, one scene at a time each.
        scratch: where the copies go.
        scene: its name.
        template: what the scene finds.
        safe: numbers of the blocks that are confirmed there already.
    """

    def __init__(
        self, servers: list[Server], scratch: Path, scene: str, template: Path, safe: tuple[int, ...] = ()
    ) -> None:
        self._free: SimpleQueue[Server] = SimpleQueue()
        for server in servers:
            self._free.put(server)
        self._scratch = scratch
        self._scene = scene
        self._template = template
        self._safe = safe
        self._mutants: list[Mutant] = []

    @contextmanager
    def mutated(self, mutant: Mutant) -> Iterator[None]:
        """Play, and recover afterwards, with changed code."""
        self._mutants = [mutant]
        with planted(mutant):
            yield
        self._mutants = []

    def trace(self, *strace: str) -> str:
        """What strace says of a child that is not killed."""
        trace = self._scratch / "trace"
        with self._root() as (server, root):
            answer = server.play(self._scene, root, ["-o", str(trace), *strace])
        assert "traceback" not in answer, answer["traceback"]
        assert answer["status"] == 0
        return trace.read_text()

    def calls(self) -> Counter[str]:
        """How often an undisturbed child makes each system call."""
        calls = Counter(re.findall(r"^(\w+)\(", self.trace(), re.MULTILINE))
        calls["read"] -= 1  # in which it waited for strace
        return calls

    def points(self, how: str, names: Sequence[str], *, for_ever: bool = False) -> list[Point]:
        calls = self.calls()
        plus = "+" if for_ever else ""
        return [Point(name, f"{n}{plus}", how) for name in names for n in range(1, calls[name] + 1)]

    def kills(self) -> list[Point]:
        names = [name for name in self.calls() if name not in OTHER] if FULL else CHANGING
        return self.points("signal=KILL", names)

    def check(self, point: Point, blocks: Blocks) -> str | None:
        """Disturb one call; returns what does not hold afterwards, or None."""
        with self._root() as (server, root):
            answer = server.play(self._scene, root, point.strace, self._mutants)
            if "traceback" in answer:
                return f"{point}: {answer['traceback']}"
            if point.how.startswith("signal") and not self._mutants:
                assert answer["status"] == -9, f"{point}: the child was not killed"
            if odd := [
                name
                for name in answer.get("errors", ())
                if not issubclass(getattr(errors, name), StorageError)
            ]:
                return f"{point}: {odd}, expected StorageError or one below it"
            alive = sessions(root) if self._scene == "rotation" else []
            return self._problem(str(point), answer, root, blocks, alive)

    def check_twice(self, point: Point, again: Point, blocks: Blocks) -> str | None:
        """Kill the recorder at one call, and the recovery at another one (if it gets that far)."""
        with self._root() as (server, root):
            answer = server.play(self._scene, root, point.strace)
            alive = sessions(root)
            server.play("recovery", root, again.strace)
            return self._problem(f"{point}, {again}", answer, root, blocks, alive)

    def _problem(
        self, where: str, answer: dict[str, Any], root: Path, blocks: Blocks, alive: list[Path]
    ) -> str | None:
        confirmed = {*self._safe, *answer["confirmed"]}
        confirming = {*self._safe, *answer["confirming"]}
        try:
            assert_holds(root, blocks, confirmed=confirmed, confirming=confirming, published_alive=alive)
        except Exception as error:  # noqa: BLE001 - whatever goes wrong in a check is what is looked for
            return f"{where}: {error!r}"
        return None

    def sweep(self, points: list[Point], blocks: Blocks) -> list[str]:
        """What does not hold, after each of the points."""
        assert points
        return self._map(lambda point: self.check(point, blocks), points)

    def sweep_pairs(self, pairs: list[tuple[Point, Point]], blocks: Blocks) -> list[str]:
        assert pairs
        return self._map(lambda pair: self.check_twice(*pair, blocks), pairs)

    def first_problem(self, points: list[Point], blocks: Blocks) -> str | None:
        """The first thing found that does not hold."""
        for first in range(0, len(points), 2 * SERVERS):
            if problems := self.sweep(points[first : first + 2 * SERVERS], blocks):
                return problems[0]
        return None

    @staticmethod
    def _map(check: Any, points: list[Any]) -> list[str]:
        with ThreadPoolExecutor(SERVERS) as pool:
            return [problem for problem in pool.map(check, points) if problem is not None]

    @contextmanager
    def _root(self) -> Iterator[tuple[Server, Path]]:
        """A server that is free, and a fresh directory."""
        server = self._free.get()
        root = self._scratch / f"root-{id(server)}"
        try:
            shutil.copytree(self._template, root)
            yield server, root
        finally:
            shutil.rmtree(root, ignore_errors=True)
            self._free.put(server)


@pytest.fixture(scope="module", params=["rows", "tape", COLUMNED])
def storage(request: pytest.FixtureRequest) -> str:
    """How the sessions hold their games."""
    return str(request.param)


rows_only = pytest.mark.parametrize("storage", ["rows"], indirect=True)


@pytest.fixture
def blocks(storage: str, row_blocks: Blocks, tape_blocks: Blocks, column_blocks: Blocks) -> Blocks:
    return {"tape": tape_blocks, COLUMNED: column_blocks}.get(storage, row_blocks)


@pytest.fixture(scope="module")
def servers(
    storage: str, blocks_file: Path, tape_blocks_file: Path, column_blocks_file: Path
) -> Iterator[list[Server]]:
    if shutil.which("strace") is None:
        pytest.skip("strace is not installed: no call can be killed or failed at will")
    with ExitStack() as stack:
        file = {"tape": tape_blocks_file, COLUMNED: column_blocks_file}.get(storage, blocks_file)
        servers = [Server(file) for _ in range(SERVERS)]
        for server in servers:
            stack.callback(server.close)
        yield servers


@pytest.fixture
def rotation(servers: list[Server], fast_dir: Path) -> Stage:
    template = fast_dir / "rotation"
    template.mkdir()
    return Stage(servers, fast_dir, "rotation", template)


@pytest.fixture
def recovery(servers: list[Server], fast_dir: Path, blocks: Blocks) -> Stage:
    template = fast_dir / "recovery"
    template.mkdir()
    return Stage(servers, fast_dir, "recovery", template, safe=leave_behind(template, blocks))


def leave_behind(root: Path, blocks: Blocks) -> tuple[int, ...]:
    """What a recorder can leave when it is killed, all at once. Returns the confirmed blocks' numbers."""
    facts = make_facts(**blocks[0].facts)
    first = PartialSession(root, facts, 1)  # a hole in the middle, and a record torn by a crash
    rows = [first.reserve(block.rows) for block in blocks[:4]]
    for number in (0, 1, 3):
        blocks[number].put(first, rows[number])
        first.confirm(blocks[number].written(1, rows[number]))
    first.journal.close()
    with (first.path / JOURNAL).open("ab") as journal:
        journal.write(b"BLCK\x03\0\0\0")
    second = PartialSession(root, facts, 2)  # whole; the next block was written and not confirmed
    blocks[4].record(second)
    blocks[5].put(second, second.reserve(blocks[5].rows))
    second.journal.close()
    third = PartialSession(root, facts, 3)  # published, and killed before its shell was removed
    third.journal.close()
    shutil.rmtree(third.path / "session")
    begun = PartialSession(root, facts, 4)  # killed while it began
    begun.journal.close()
    (begun.path / "facts.json").write_bytes(b"{")
    return 0, 1, 3, 4


@rows_only
def test_what_the_sweep_sees(rotation: Stage) -> None:
    calls = rotation.calls()
    assert calls["pwrite64"] >= 6 + 5 + 3 + 2 * 5, "rows, records, moved rows, the pages of two databases"
    assert calls["fsync"] >= 2 * 8
    assert calls["renameat2"] >= 2
    assert calls["rename"] + calls["renameat"] >= 2
    assert calls["ftruncate"] >= 2


def test_killed_at_calls_of_a_rotation(rotation: Stage, blocks: Blocks) -> None:
    assert rotation.sweep(some(rotation.kills(), 24), blocks) == []


def test_killed_at_calls_of_a_recovery(recovery: Stage, blocks: Blocks) -> None:
    assert recovery.sweep(some(recovery.kills(), 20), blocks) == []


def some(points: list[Point], count: int) -> list[Point]:
    """Points from the first to the last; all of them with ``FULL_SWEEP``."""
    return points if FULL else points[:: -(-len(points) // count)]


FAILING = [("ENOSPC", FILLING), ("EIO", REACHING), *([("EDQUOT", FILLING)] if FULL else [])]


@rows_only
@pytest.mark.parametrize("for_ever", [False, True], ids=["once", "for_ever"])
@pytest.mark.parametrize(("code", "names"), FAILING)
def test_calls_of_a_rotation_fail(
    rotation: Stage, blocks: Blocks, code: str, names: tuple[str, ...], for_ever: bool
) -> None:
    points = rotation.points(f"error={code}", names, for_ever=for_ever)
    assert rotation.sweep(some(points, 16), blocks) == []


@pytest.mark.parametrize("for_ever", [False, True] if FULL else [False], ids=str)
@pytest.mark.parametrize(("code", "names"), FAILING)
def test_calls_of_a_recovery_fail(
    recovery: Stage, blocks: Blocks, code: str, names: tuple[str, ...], for_ever: bool
) -> None:
    points = recovery.points(f"error={code}", names, for_ever=for_ever)
    assert recovery.sweep(some(points, 16), blocks) == []


@rows_only
def test_killed_and_killed_again(rotation: Stage, recovery: Stage, blocks: Blocks) -> None:
    first = rotation.points("signal=KILL", ("fsync", "unlinkat", "rmdir"))
    second = recovery.points("signal=KILL", ("fsync", "rename", "renameat2", "ftruncate", "unlinkat"))
    pairs = list(itertools.product(first, second))
    assert rotation.sweep_pairs(pairs if FULL else pairs[::34], blocks) == []


@rows_only
def test_a_failed_flush_is_never_retried(rotation: Stage, blocks: Blocks) -> None:
    """The second flush would report success for pages that the kernel has dropped."""
    # (What is in compaction.tmp is a new file each time.)
    flushed = re.compile(
        r"^fsync\(\d+<(.*(?<!/compaction\.tmp)/session/steps\.npy)>\) *= (0|-1)", re.MULTILINE
    )
    found = 0
    for point in rotation.points("error=EIO", ("fsync",)):
        trace = rotation.trace("-y", *point.strace[2:])
        results = flushed.findall(trace)
        failed = [path for path, result in results if result == "-1"]
        if not failed:
            continue
        found += 1
        later = results[[result for _, result in results].index("-1") + 1 :]
        assert failed[0] not in {path for path, _ in later}, f"{point}: {failed[0]} was flushed again"
        assert later, f"{point}: the rows were not written anew"
    assert found == 2, "those of the first session, which have been moved, and of the second one"


CALL = re.compile(r"(?m)^(?P<name>\w+)\((?P<arguments>.*)\) += (?P<result>\d+)")
CREATING = ("openat", "mkdir", "mkdirat")
WRITING = ("write", "pwrite64", "ftruncate")


def test_all_is_flushed_before_it_gets_its_name(rotation: Stage) -> None:
    """What a power failure takes is what was not flushed: nothing of that may have its final name."""
    dirty: set[Path] = set()
    named = []
    for call in CALL.finditer(rotation.trace("-y")):
        name, arguments = call["name"], call["arguments"]
        paths = [Path(quoted) for quoted in re.findall(r'"(/[^"]*)"', arguments)]
        opened = re.match(r"\d+<(/[^>]*)>", arguments)
        if name in CREATING and (name != "openat" or "O_CREAT" in arguments):
            dirty |= {paths[0].parent, *paths}
        elif name in WRITING and opened:
            dirty.add(Path(opened[1]))
        elif name == "fsync" and opened:
            dirty.discard(Path(opened[1]))
        elif name in {"rename", "renameat", "renameat2"}:
            source, target = paths
            half = [path for path in dirty if path == source or path.is_relative_to(source)]
            assert not half, f"{target.name} holds what was not flushed: {half}"
            dirty.add(target.parent)
            named.append(target)
        elif name in {"unlinkat", "rmdir"} and named:
            assert named[-1].parent not in dirty, "what could be published again is removed too early"
    assert len(named) == 1 + 2 + 2, "moved blocks, two sessions, the instance's progress twice"
    assert not dirty & {target.parent for target in named}


MUTANTS = {
    "confirmed without a record": ("partial:PartialSession.confirm", "self.journal.append(block)", "pass"),
    "blocks moved in place": (
        "publish:_compact",
        "draft = partial / COMPACTION_DRAFT",
        'draft = partial / f"compacted-{len(compactions(partial)) + 1}"',
    ),
    "moved blocks forgotten": ("partial:staging_of", "[partial, *compactions(partial)][-1]", "partial"),
    "the name before the content": (
        "publish:publish_steps",
        (
            "size = yield from _finish_files(world, staging / STAGED, facts, blocks, extra, given=given)\n"
            "        yield 0.0\n"
            "        path: Path = world.files.rename_numbered(staging / STAGED, out_dir / facts.name)"
        ),
        (
            "path: Path = world.files.rename_numbered(staging / STAGED, out_dir / facts.name)\n"
            "        size = yield from _finish_files(world, path, facts, blocks, extra, given=given)"
        ),
    ),
    "the shell removed from its end": (
        "publish:_remove",
        "for staging in (partial, *compactions(partial)):",
        "for path in compactions(partial):\n        world.rmtree(path)\n    for staging in (partial,):",
    ),
    "leftovers kept": ("publish:_finish_files", "leftover.unlink()", "pass"),
    "recovery not said": ("publish:recover", "ended_at, recovered=True", "ended_at, recovered=False"),
    "holes left": ("publish:_has_holes", "return any(", "return False and any("),
    "a name tried once": (
        "publish:publish_steps",
        "world.files.rename_numbered(staging / STAGED, ",
        "(staging / STAGED).rename(",
    ),
}


@rows_only
@pytest.mark.parametrize("name", MUTANTS)
def test_the_sweep_finds_a_mutant(rotation: Stage, blocks: Blocks, name: str) -> None:
    points = rotation.points("signal=KILL", ("rename", "renameat2", "unlinkat", "rmdir", "write", "fsync"))
    where, old, new = MUTANTS[name]
    with rotation.mutated(Mutant(f"tape2048_recorder.recording.{where}", old, new)):
        found = rotation.first_problem(points, blocks)
    assert found is not None
