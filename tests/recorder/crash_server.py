"""Plays scenes of a recorder's life in forked children, while strace kills them or fails their calls.

Started by the tests as ``python crash_server.py BLOCKS.npz``. One job, a JSON object, is read from each line
of standard input, and answered by one line. Everything is imported once; a job costs a fork and one strace,
and the calls of the child are counted from the scene's first one, without those of imports.
"""

import contextlib
import ctypes
import json
import mmap
import os
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from disks import shut_down
from materials import SEED, Prepared, load_blocks, make_facts, publish
from tests.mutants import Mutant, planted

from tape2048.errors import TapeError
from tape2048_recorder.daemon.instance import GameProgress, GameState, Instance
from tape2048_recorder.record_options import RecorderConfig
from tape2048_recorder.recording.partial import PartialSession
from tape2048_recorder.recording.publish import recover_all

_PR_SET_PTRACER = 0x59616D61
_PR_SET_PTRACER_ANY = ctypes.c_ulong(-1)

# How far a block got, in the memory that the child shares with its parent.
CONFIRMING = 1  # confirm() was called
CONFIRMED = 2  # ... and has returned: from here on the block may not be lost

# Where it is noted, behind the blocks, that publish() has returned for the session of this serial: from here
# on not even a power failure may take it.
PUBLISHED_AT = 128

# Where it is noted that a block is on the disk, because all that was written before was.
WRITTEN_BACK_AT = 64

_FLAGS = 256
_SHARED_BYTES = 1 << 16


class Silent:
    """A reporter that says nothing."""

    def event(self, level: str, message: str) -> None:
        pass

    def status(self, make_status: object) -> None:
        pass


class Scene:
    """What a child plays; ``flags`` outlive it."""

    def __init__(self, root: Path, blocks: list[Prepared], flags: mmap.mmap) -> None:
        self.root = root
        self.blocks = blocks
        self.flags = flags
        self.errors: list[str] = []
        self._is_slow = False

    def slow_rotation(self) -> None:
        """A rotation that takes so long that the kernel has written to the disk what it had, twice."""
        self._is_slow = True
        self.rotation()

    def rotation(self) -> None:
        """Two sessions with one name: one with a hole, closed while the other one is being written."""
        instance = Instance(self.root, "default")
        recover_all(self.root, "default", Silent())
        GameProgress(instance, RecorderConfig(seed=SEED)).cover(0)
        first = self._begin(1)
        if first is not None:
            # Four workers get ranges. They finish in another order, and one dies in the middle of its write.
            rows = [first.reserve(self.blocks[number].rows) for number in range(4)]
            self._record(first, 1, rows[1])
            self._record(first, 0, rows[0])
            with contextlib.suppress(OSError):
                self.blocks[2].put(first, rows[2], size=len(self.blocks[2].data) // 2)
            self._record(first, 3, rows[3])
            self._write_back()
            first.release(rows[2])
        second = self._begin(2)
        if second is not None:
            self._record(second, 4)
        if first is not None:
            self._publish(first)
        if second is not None:
            self._record(second, 5)
            self._write_back()
            self._publish(second)
        with self._storage_errors():
            GameProgress(instance, RecorderConfig(seed=SEED)).settle(GameState(SEED, 100))
        instance.close()

    def recovery(self) -> None:
        """What the next start does with what it finds."""
        instance = Instance(self.root, "default")
        recover_all(self.root, "default", Silent())
        instance.close()

    def _write_back(self) -> None:
        """What the kernel does after half a minute."""
        if self._is_slow:
            fd = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY)
            ctypes.CDLL(None).syncfs(fd)
            os.close(fd)
            for number in range(len(self.blocks)):
                self.flags[WRITTEN_BACK_AT + number] = self.flags[number] == CONFIRMED

    @contextlib.contextmanager
    def _storage_errors(self) -> Any:
        try:
            yield
        except TapeError as error:
            self.errors.append(type(error).__name__)

    def _begin(self, serial: int) -> PartialSession | None:
        """A new session; as in the recorder, one more try where that fails."""
        for _ in range(2):
            with self._storage_errors():
                return PartialSession(self.root, make_facts(**self.blocks[0].facts), serial)
        return None

    def _record(self, session: PartialSession, number: int, first_row: int | None = None) -> None:
        """Write and confirm a block; as in the recorder, rows that fail give their range back."""
        block = self.blocks[number]
        first_row = session.reserve(block.rows) if first_row is None else first_row
        try:
            block.put(session, first_row)
        except OSError:
            session.release(first_row)
            return
        for _ in range(2):
            self.flags[number] = CONFIRMING
            with contextlib.suppress(OSError):
                session.confirm(block.written(session.serial, first_row))
                self.flags[number] = CONFIRMED
                return
        session.release(first_row)

    def _publish(self, session: PartialSession) -> None:
        """Publish; as in the recorder, again where that fails."""
        session.journal.close()
        for _ in range(2):
            with self._storage_errors():
                publish(self.root, session)
                self.flags[PUBLISHED_AT + session.serial] = 1
                return


def child(job: dict[str, Any], blocks: list[Prepared], shared: mmap.mmap, go: int) -> None:
    """The forked child: wait for strace, play, leave what is to be said in ``shared``."""
    ctypes.CDLL(None).prctl(_PR_SET_PTRACER, _PR_SET_PTRACER_ANY, 0, 0, 0)
    scene = Scene(Path(job["root"]), blocks, shared)
    play: Callable[[], None] = getattr(scene, job["scene"])
    said: dict[str, Any] = {}
    with contextlib.ExitStack() as stack:
        for fields in job["mutants"]:
            stack.enter_context(planted(Mutant(*fields)))
        os.read(go, 1)
        try:
            play()
        except TapeError as error:
            scene.errors.append(type(error).__name__)
        except BaseException:  # noqa: BLE001 - this is what the tests look for
            said["traceback"] = traceback.format_exc()
    said["errors"] = scene.errors
    text = json.dumps(said).encode()
    shared[_FLAGS : _FLAGS + len(text)] = text


def attach(pid: int, options: list[str]) -> subprocess.Popen[str]:
    """A strace that has stopped the process, so that its next call is the first one counted.

    Raises:
        PermissionError: tracing is not allowed here.
    """
    command = ["strace", *options, "-p", str(pid)]
    strace = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    line = strace.stderr.readline()
    if "attached" not in line:
        strace.wait()
        strace.stderr.close()
        raise PermissionError(line.strip())
    return strace


def cut_power(pid: int, mount: str) -> int:
    """Once the child has stopped (or ended), shut its file system down as a power failure does; its status.

    The child is stopped and not killed: its death would close its files, and a file system may flush then.
    """
    status = os.waitpid(pid, os.WUNTRACED)[1]
    shut_down(mount)
    if os.WIFSTOPPED(status):
        os.kill(pid, signal.SIGKILL)
        status = os.waitpid(pid, 0)[1]
    return status


def perform(job: dict[str, Any], blocks: list[Prepared]) -> dict[str, Any]:
    """Play one job's scene, and say how it ended."""
    shared = mmap.mmap(-1, _SHARED_BYTES)
    ready, go = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(go)
        code = 1
        try:
            child(job, blocks, shared, ready)
            code = 0
        finally:
            os._exit(code)
    os.close(ready)
    strace = None
    refused = None
    if job.get("strace"):
        try:
            strace = attach(pid, job["strace"])
        except PermissionError as error:
            refused = str(error)
    os.write(go, b"!")
    os.close(go)
    status = cut_power(pid, job["power"]) if job.get("power") else os.waitpid(pid, 0)[1]
    if strace is not None:
        strace.wait()
        strace.stderr.close()
    said = shared[_FLAGS:].rstrip(b"\0")
    flags = list(shared[: len(blocks)])
    published = [serial for serial in range(8) if shared[PUBLISHED_AT + serial]]
    written_back = shared[WRITTEN_BACK_AT : WRITTEN_BACK_AT + len(blocks)]
    shared.close()
    return {
        "refused": refused,
        "status": os.waitstatus_to_exitcode(status),
        "confirming": [number for number, flag in enumerate(flags) if flag >= CONFIRMING],
        "confirmed": [number for number, flag in enumerate(flags) if flag == CONFIRMED],
        "published": published,
        "written_back": [number for number in range(len(blocks)) if written_back[number]],
        **(json.loads(said) if said else {}),
    }


def load_kernels(blocks: list[Prepared]) -> None:
    """Publish once, so that the machine code that checks a tape is loaded before a child is forked."""
    with tempfile.TemporaryDirectory() as root:
        session = PartialSession(Path(root), make_facts(storage="tape"), 1)
        blocks[0].record(session)
        publish(Path(root), session)


def main() -> None:
    blocks = load_blocks(Path(sys.argv[1]))
    if blocks[0].storage == "tape":
        load_kernels(blocks)
    for line in sys.stdin:
        print(json.dumps(perform(json.loads(line), blocks)), flush=True)  # noqa: T201 - this is its answer


if __name__ == "__main__":
    main()
