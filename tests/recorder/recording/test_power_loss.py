"""The power fails at each system call of a rotation. What the next start makes of it.

A child plays the rotation of ``crash_server.py`` on an ext4 and on an xfs in a file. strace stops it at its
N-th call. The file system is shut down there and then, without its log or a page being flushed; the child
is killed, the file system mounted again, and a recovery played. What was published has to be there. What
was only confirmed may be gone, unless the kernel had written it to the disk meanwhile; nothing may be wrong.
``FULL_SWEEP=1`` takes every call, the suite a sample. Needs root.
"""

import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.mutants import Mutant, planted

from tape2048.session.session import sessions

from ..checks import assert_sessions_valid, expected_runs, partials, published_runs, recover
from ..disks import LOOPED, Looped, sync
from ..materials import COLUMNED, Blocks
from ..test_crash_sweep import CHANGING, FULL, Point, Server, Stage

pytestmark = pytest.mark.root

#: The blocks of each session of the rotation, by its serial.
OF_SESSION = {1: (0, 1, 3), 2: (4, 5)}

#: What may be said of what a power failure has taken.
MAY_BE_SAID = "rows did not match checksums"


class Powered:
    """Plays the rotation on a file system that loses its power."""

    def __init__(self, server: Server, disk: Looped) -> None:
        self._server = server
        self._disk = disk
        self._count = 0
        self.recoveries = 0  # cuts after which blocks that were only confirmed were recovered
        self._mutants: list[Mutant] = []

    @contextmanager
    def mutated(self, mutant: Mutant) -> Iterator[None]:
        """Play with changed code; recovery stays as it is."""
        self._mutants = [mutant]
        with planted(mutant):  # so that a mutant that does not fit is an error here
            pass
        yield
        self._mutants = []

    def check(self, point: Point, blocks: Blocks, scene: str = "rotation") -> str | None:
        """Lose the power at one call; returns what does not hold afterwards, or None."""
        self._count += 1
        root = self._disk.mount_point / f"root-{self._count}"
        root.mkdir()
        sync(self._disk.mount_point)
        answer = self._server.play(scene, root, point.strace, self._mutants, power=self._disk.mount_point)
        self._disk.power_up()
        try:
            assert "traceback" not in answer, answer["traceback"]
            self.recoveries += self._assert_holds(root, answer, blocks)
        except Exception as error:  # noqa: BLE001 - whatever goes wrong in a check is what is looked for
            return f"{point}: {error!r}"
        finally:
            shutil.rmtree(root, ignore_errors=True)
        return None

    @staticmethod
    def _assert_holds(root: Path, answer: dict[str, list[int]], blocks: Blocks) -> bool:
        """Check it all; returns whether anything was recovered."""
        recovered, listener = recover(root)
        wrong = [said for said in listener.messages("error") if MAY_BE_SAID not in said]
        assert not wrong, wrong
        assert not partials(root), f"left: {partials(root)}"
        assert not (root / ".quarantine").exists()
        assert_sessions_valid(root)
        runs = published_runs(root)
        counts = Counter(run.outcome[0] for run in runs)
        assert all(count == 1 for count in counts.values()), f"published more than once: {counts}"
        safe = {number for serial in answer["published"] for number in OF_SESSION[serial]}
        safe &= set(answer["confirmed"])
        safe |= set(answer["written_back"])
        missing = {run_id for number in safe for run_id in blocks[number].ids} - set(counts)
        assert not missing, f"published (or on the disk) and lost: {sorted(missing)}"
        extra = set(counts) - {run_id for number in answer["confirming"] for run_id in blocks[number].ids}
        assert not extra, f"published and never confirmed: {sorted(extra)}"
        written = expected_runs(blocks)
        for run in runs:
            assert (run.outcome, run.data) == written[run.outcome[0]], f"run {run.outcome[0]} is wrong"
        before = sessions(root)
        assert recover(root)[0] == []
        assert sessions(root) == before
        return bool(recovered)


@pytest.fixture(scope="module", params=["rows", "tape", COLUMNED])
def storage(request: pytest.FixtureRequest) -> str:
    """How the recorder keeps its games."""
    return str(request.param)


@pytest.fixture
def blocks(storage: str, row_blocks: Blocks, tape_blocks: Blocks, column_blocks: Blocks) -> Blocks:
    return {"tape": tape_blocks, COLUMNED: column_blocks}.get(storage, row_blocks)


@pytest.fixture(scope="module")
def server(
    storage: str, blocks_file: Path, tape_blocks_file: Path, column_blocks_file: Path
) -> Iterator[Server]:
    if shutil.which("strace") is None:
        pytest.skip("strace is not installed: no call can be stopped at will")
    server = Server({"tape": tape_blocks_file, COLUMNED: column_blocks_file}.get(storage, blocks_file))
    yield server
    server.close()


@pytest.fixture(scope="module")
def points(server: Server, tmp_path_factory: pytest.TempPathFactory) -> list[Point]:
    """Every call of the rotation that changes something, in the order of their kinds."""
    scratch = tmp_path_factory.mktemp("power")
    return points_of("rotation", server, scratch)


def points_of(scene: str, server: Server, scratch: Path) -> list[Point]:
    (scratch / "template").mkdir()
    return Stage([server], scratch, scene, scratch / "template").points("signal=STOP", CHANGING)


@pytest.fixture(params=LOOPED)
def powered(request: pytest.FixtureRequest, server: Server, fast_dir: Path) -> Iterator[Powered]:
    disk = Looped(request.param, fast_dir)
    try:
        yield Powered(server, disk)
    finally:
        disk.unmount()


def test_the_power_fails_at_each_call(powered: Powered, points: list[Point], blocks: Blocks) -> None:
    chosen = points if FULL else points[:: len(points) // 6]
    assert len(points) > 100
    assert [problem for point in chosen if (problem := powered.check(point, blocks)) is not None] == []


def test_committed_blocks_on_the_disk_are_recovered(
    powered: Powered, server: Server, tmp_path: Path, blocks: Blocks
) -> None:
    points = points_of("slow_rotation", server, tmp_path)
    calls = Counter(point.call for point in points)
    late = [point for point in points if calls[point.call] * 0.4 < int(point.number)]  # after the first ones
    chosen = points if FULL else late[:: len(late) // 14]
    problems = [powered.check(point, blocks, "slow_rotation") for point in chosen]
    assert [problem for problem in problems if problem is not None] == []
    assert powered.recoveries >= 10, f"{powered.recoveries} of {len(chosen)} cuts"


#: Each mutant, and what has to be said of it.
MUTANTS = {
    "directories are not flushed": (
        Mutant("tape2048.files.durable:fsync_path", "os.fsync(fd)", "os.path.isdir(path) or os.fsync(fd)"),
        "and lost",
    ),
    "rows are not flushed": (
        Mutant("tape2048_recorder.recording.publish:_finish_files", "world.os.fsync(fd)", "pass"),
        "ChecksumError",
    ),
    "anchors are not flushed": (
        Mutant("tape2048_recorder.recording.publish:decode_games", "world.os.fsync(target)", "pass"),
        "anchors.npy",
    ),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_the_sweep_finds_a_mutant(powered: Powered, points: list[Point], blocks: Blocks, name: str) -> None:
    mutant, said = MUTANTS[name]
    if name.startswith("anchors") and blocks[0].storage != "tape":
        pytest.skip("rows have no anchors")
    # What is published last stays unflushed longest: the last calls of each kind come first.
    chosen = sorted(points, key=lambda point: -int(point.number))
    with powered.mutated(mutant):
        assert any(said in (powered.check(point, blocks) or "") for point in chosen)
