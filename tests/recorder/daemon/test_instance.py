"""One recorder to a name on a directory, and what it remembers of its games."""

import contextlib
import errno
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.sdk.builders import raising

from tape2048.errors import BusyError, ConfigError, StorageError
from tape2048.files.removal_locks import RemovalLock
from tape2048.maintenance.removal import remove_sessions
from tape2048.session.session import sessions
from tape2048_recorder.daemon import instance
from tape2048_recorder.daemon.instance import GameProgress, GameState, Instance
from tape2048_recorder.record_options import LEASE_MAX, RecorderConfig
from tape2048_recorder.status.status_report import Process

from ..checks import descriptors
from ..materials import Blocks, leave, publish
from ..processes import environment

HOLDER = """
import sys, time
from pathlib import Path
from tape2048_recorder.daemon.instance import Instance
held = Instance(Path(sys.argv[1]), "default")
print("held", flush=True)
time.sleep(600)
"""


@pytest.fixture
def holder(root: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that holds the instance ``default``."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(root)], stdout=subprocess.PIPE, env=environment(), text=True
    ) as process:
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def state_file(root: Path) -> Path:
    return root / ".recorder" / "default.json"


def as_user(uid: int, group: int, do: Callable[[], object]) -> None:
    """Do something in a forked process of another user, in a group and with its umask."""
    if (pid := os.fork()) == 0:
        code = 1
        try:
            os.umask(0o002)
            os.setgroups([group])
            os.setgid(uid)
            os.setuid(uid)
            do()
            code = 0
        finally:
            if code:
                traceback.print_exc()
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


@pytest.mark.root
@pytest.mark.parametrize("users", [(1111, 2222), (2222, 1111)])
def test_two_users_of_a_group_share_a_directory(root: Path, blocks: Blocks, users: tuple[int, int]) -> None:
    """Each records there, and removes the session of the other."""
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")

    def record(instance: str) -> Path:
        with contextlib.closing(Instance(root, instance)) as held:
            held.save_state(GameState(1))
            return publish(root, leave(root, blocks, [0])).path

    def remove() -> None:
        with RemovalLock(root) as lock:
            (removed,) = remove_sessions(root, [sessions(root)[0]], lock)
        assert removed.gone, removed.error

    record("warm")  # imports modules, which other users may not be able to read
    remove()
    shutil.rmtree(root / ".recorder")
    root.parent.chmod(0o755)
    os.chown(root, users[0], 3333)
    root.chmod(0o2775)
    for uid in (1111, 2222):
        as_user(uid, 3333, lambda: record("one"))  # the progress of an instance too, whoever continues it
    for uid in (2222, 1111):
        as_user(uid, 3333, remove)
    assert sessions(root) == []


def test_a_second_one_is_refused_and_told_who_holds_it(root: Path, holder: subprocess.Popen[str]) -> None:
    before = descriptors()
    for _ in range(2):  # the first refusal must not spoil the pid for the second
        with pytest.raises(BusyError, match=f"pid {holder.pid} records into") as caught:
            Instance(root, "default")
        assert caught.value.path == str(root)
        assert "--instance" in (caught.value.hint or "")
    assert descriptors() == before
    Instance(root, "other").close()


def test_a_killed_one_leaves_no_lock(root: Path, holder: subprocess.Popen[str]) -> None:
    os.kill(holder.pid, signal.SIGKILL)
    holder.wait()
    mine = Instance(root, "default")
    assert (root / ".recorder" / "default.lock").read_text() == Process.mine().line
    mine.close()


def test_a_lock_that_says_nothing_is_a_lock(root: Path, holder: subprocess.Popen[str]) -> None:
    (root / ".recorder" / "default.lock").write_bytes(b"")
    with pytest.raises(BusyError, match="another recorder records into"):
        Instance(root, "default")


def test_a_pid_of_another_container_says_so(root: Path, holder: subprocess.Popen[str]) -> None:
    """Its number may be that of any process here, or of none."""
    lock = root / ".recorder" / "default.lock"
    lock.write_text(Process(os.getpid(), 1, "boot pid:[1]").line)
    with pytest.raises(
        BusyError, match=rf"pid {os.getpid()}, in another container or on another host, records into"
    ):
        Instance(root, "default")
    lock.write_text(f"{os.getpid()}\n")  # of an earlier release
    with pytest.raises(BusyError, match=rf"the recorder with pid {os.getpid()} records into"):
        Instance(root, "default")


def test_where_no_directory_can_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(StorageError, match=r"file/\.recorder: preparing the directory failed"):
        Instance(tmp_path / "file", "default")


def test_a_file_system_without_locks(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fcntl, "flock", raising(OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))))
    with pytest.raises(StorageError, match=r"default\.lock: .*No locks available") as caught:
        Instance(root, "default")
    assert "another directory" in caught.value.advice


@pytest.fixture
def mine(root: Path) -> Iterator[Instance]:
    held = Instance(root, "default")
    yield held
    held.close()


def test_what_is_saved_is_loaded(root: Path, mine: Instance) -> None:
    seed = 2**64 - 1
    assert mine.load_state(seed) == GameState(seed)
    state = GameState(seed, 2**40, ((3, 5), (9, 10)))
    mine.save_state(state)
    assert mine.load_state(seed) == state
    assert mine.load_state(seed - 1) == GameState(seed - 1), "another seed begins at its first game"
    expected = b'{"seed":%d,"next_id":%d,"free":[[3,5],[9,10]],"lease":0,"others":[]}' % (seed, 2**40)
    assert state_file(root).read_bytes() == expected


def test_a_seed_goes_on_after_another_was_used(root: Path) -> None:
    begins = []
    for seed in (1, 2, 1, 2, 3, 1):
        held = Instance(root, "default")
        state = held.load_state(seed)
        begins.append(state.next_id)
        memory = GameProgress(held, RecorderConfig(seed=seed))
        memory.cover(state.next_id)
        memory.settle(GameState(seed, state.next_id + 10 * seed, ((4, 5),)))
        held.close()
    assert begins == [0, 0, 10, 20, 0, 20]


def test_each_lease_of_a_seed_goes_on_where_it_was(root: Path, mine: Instance) -> None:
    leases = (0, 1, LEASE_MAX)
    for lease in leases:
        assert mine.load_state(7, lease) == GameState(7, lease << 40, lease=lease)
        memory = GameProgress(mine, RecorderConfig(seed=7, lease=lease))
        memory.cover(lease << 40)
        assert mine.load_state(7, lease).next_id == (lease << 40) + instance.IDS_AHEAD
        memory.settle(GameState(7, (lease << 40) + lease + 1, lease=lease))
    with contextlib.closing(Instance(root, "another")) as other:
        other.state_path.write_bytes(mine.state_path.read_bytes())
        found = {lease: other.load_state(7, lease) for lease in leases}
    assert {lease: state.next_id - (lease << 40) for lease, state in found.items()} == {
        0: 1, 1: 2, LEASE_MAX: LEASE_MAX + 1
    }  # fmt: skip
    assert found[LEASE_MAX].end == 2**63


def test_another_instance_with_the_same_games_is_named(root: Path, mine: Instance) -> None:
    mine.save_state(GameState.new(7, 0))
    mine.save_state(GameState.new(7, 1))
    with contextlib.closing(Instance(root, "other")) as other:

        def repeats(**settings: Any) -> str | None:
            return GameProgress(other, RecorderConfig(instance="other", **settings)).repeats()

        said = repeats(seed=7)
        assert said.startswith(f"{root}: instance 'default' also plays lease 0 of seed 7. ")
        assert said.endswith("Pass --lease 2 to play other games")
        assert "lease 1 of seed 7" in repeats(seed=7, lease=1)
        assert [repeats(seed=7, lease=2), repeats(seed=8), repeats()] == [None] * 3
        state_file(root).write_bytes(b"{")
        assert "found a malformed file" in repeats(seed=7)


def test_what_knew_one_seed_only_is_read(root: Path, mine: Instance) -> None:
    state_file(root).write_bytes(b'{"seed":7,"next_id":30,"free":[[2,4]]}')
    assert mine.load_state(7) == GameState(7, 30, ((2, 4),))
    mine.save_state(GameState(8, 40))
    assert mine.load_state(7) == GameState(7, 30, ((2, 4),))
    assert mine.load_state(8) == GameState(8, 40)


def test_the_least_recent_of_many_seeds_are_forgotten(root: Path, mine: Instance) -> None:
    for seed in range(instance.SEEDS_MAX):
        mine.save_state(GameState(seed, 2**40, ((2**40 - 2, 2**40 - 1),)))
    mine.save_state(GameState(0, 10))
    mine.save_state(GameState(2**64 - 1, 20))
    found = [mine.load_state(seed).next_id for seed in (0, 1, 2, instance.SEEDS_MAX - 1, 2**64 - 1)]
    assert found == [10, 0, 2**40, 2**40, 20]
    assert state_file(root).stat().st_size < 100_000


@pytest.mark.parametrize(
    "content",
    [
        b"", b"{", b"[]", b'{"next_id": 3}', b'{"seed": 1, "next_id": "a"}', b'{"seed": 1, "others": [2]}',
        b"\xff", b'{"x": "\xff"}', b'{"x": ' + b"[" * 50_000,
    ],
)  # fmt: skip
def test_a_memory_that_makes_no_sense_is_an_error(root: Path, mine: Instance, content: bytes) -> None:
    state_file(root).write_bytes(content)
    with pytest.raises(ConfigError, match="found a malformed file") as caught:
        mine.load_state(1)
    assert caught.value.path == str(state_file(root))
    assert caught.value.hint


def test_an_unreadable_progress_file_is_an_error(root: Path, mine: Instance) -> None:
    state_file(root).mkdir()
    with pytest.raises(StorageError, match="found a link, a pipe or another kind") as caught:
        mine.load_state(1)
    assert caught.value.path == str(state_file(root))


class TestGameProgress:
    @pytest.fixture(autouse=True)
    def _near(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(instance, "IDS_AHEAD", 100)

    def test_it_is_always_ahead_of_what_is_handed_out(self, mine: Instance) -> None:
        memory = GameProgress(mine, RecorderConfig(seed=7))
        for next_id in [*range(0, 1000, 7), 5000, 5001, 10**9]:
            memory.cover(next_id)
            assert mine.load_state(7).next_id >= next_id

    def test_a_random_seed_is_not_remembered(self, root: Path, mine: Instance) -> None:
        memory = GameProgress(mine, RecorderConfig())
        memory.cover(10**9)
        memory.settle(GameState(7, 10**9))
        assert not state_file(root).exists()

    def test_a_failed_save_matters_when_the_lead_is_used(self, root: Path, mine: Instance) -> None:
        memory = GameProgress(mine, RecorderConfig(seed=7))
        memory.cover(0)
        state_file(root).unlink()
        state_file(root).mkdir()
        memory.cover(51)
        memory.cover(100)
        with pytest.raises(StorageError, match="instance's progress"):
            memory.cover(101)
        with pytest.raises(StorageError, match="instance's progress"):
            memory.settle(GameState(7, 100))


@pytest.mark.parametrize("name", ["default.lock", "default.json"])
@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_a_foreign_file_in_its_place_is_refused(root: Path, name: str, kind: str) -> None:
    precious = root / "precious"
    precious.write_text("mine")
    path = root / ".recorder" / name
    path.parent.mkdir()
    if kind == "link":
        path.symlink_to(precious)
    else:
        os.mkfifo(path)
    with pytest.raises(StorageError, match="found a link, a pipe") as caught:
        Instance(root, "default").load_state(1)
    assert caught.value.path == str(path)
    assert precious.read_text() == "mine"


def _make_again(root: Path) -> None:
    root.rename(root.with_name("elsewhere"))
    root.mkdir()


def _make_again_and_lock(root: Path) -> None:
    _make_again(root)
    Instance(root, "default").close()


def _remove_and_make_again(root: Path) -> None:
    shutil.rmtree(root)
    root.mkdir()


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (shutil.rmtree, "was removed"),
        (_make_again, "was removed"),
        (_make_again_and_lock, "was replaced"),
        (_remove_and_make_again, "was removed"),
        (lambda root: (root / ".recorder" / "default.lock").unlink(), "was removed"),
        (lambda root: (root / ".recorder").rename(root / "elsewhere"), "was removed"),
    ],
)
def test_a_lock_that_holds_nobody_back_is_lost(
    root: Path, mine: Instance, change: Callable[[Path], object], found: str
) -> None:
    assert mine.lost() is None
    change(root)
    lost = mine.lost()
    assert isinstance(lost, StorageError)
    assert f"the recorder's lock file {found}" in lost.message
    before = {path: path.read_bytes() for path in root.rglob("*.json")}
    with pytest.raises(StorageError, match="the recorder's lock"):
        mine.save_state(GameState(7, 30))
    assert {path: path.read_bytes() for path in root.rglob("*.json")} == before


def test_a_directory_that_is_moved_away_can_come_back(root: Path, mine: Instance) -> None:
    root.rename(root.with_name("elsewhere"))
    assert mine.lost() is None
    root.with_name("elsewhere").rename(root)
    assert mine.lost() is None
