"""One life of a recorder in a simulated world: its clock, its loop's selector, its publisher, its end."""

from __future__ import annotations

import contextlib
import errno
import functools
import heapq
import math
import os
import selectors
from collections import Counter, deque
from random import Random
from types import FunctionType, SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from tape2048.errors import MissingPathError, StorageError, TapeError
from tape2048.files import durable, opening
from tape2048.files.locks import LOCKS_DIRECTORY, READERS_LOCK
from tape2048.session import metadata_writer
from tape2048.session.layout import FileEntry
from tape2048_recorder.daemon.daemon import Reload
from tape2048_recorder.daemon.instance import GameProgress, Instance
from tape2048_recorder.daemon.supervisor import WRITING_FACTOR
from tape2048_recorder.ipc.protocol import WorkerSpec
from tape2048_recorder.record_options import RecorderConfig
from tape2048_recorder.recorder import record
from tape2048_recorder.recording.world import World

from .disk import OUT_DIR, ROOMY, Crash, Disk, File, SimulatedPath, System, remove_tree
from .truth import Broken, Truth, defects_of, write_metadata
from .workers import FIRST_PID, Process, Socket

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tape2048_recorder.status.status_report import RecordingSummary, Status

#: Virtual seconds after which a life is asked to end, and after that request, the most that it may take: the
#: drain's and the publishing's time, the graces of both, and stalls.
SPAN_S = 6.0
LAST_SPAN_S = 0.4
DRAIN_S = 2.0
SILENCE_S = 0.5
ENDING_S_MAX = 30.0
#: From a request to reload to its being met: at most one a second, and a tick of a slow daemon.
RELOAD_S = 3.0
#: The longest wait of the loop, which has workers to look after.
WAIT_S_MAX = 1.0
#: From a worker's hanging to its end being sent: looks of a slow daemon count a second at most.
HUNG_S = SILENCE_S + 1.0
HUNG_WRITING_S = WRITING_FACTOR * SILENCE_S + 1.0
#: Looks of the loop at its selector in one life, far more than any needs.
LOOKS_MAX = 20_000

_decode_spec = msgspec.json.Decoder(WorkerSpec).decode


class Event(NamedTuple):
    """Something that happens in a life.

    Attributes:
        life: the number of the life.
        at: virtual seconds after its begin.
        kind: a method of :class:`Life`, without ``on_``.
        args: its arguments.
    """

    life: int
    at: float
    kind: str
    args: tuple[Any, ...] = ()


class Plan(NamedTuple):
    """What decides a history: the seed of all chance in it, each life's settings, and its events."""

    seed: int
    settings: tuple[dict[str, Any], ...]
    events: tuple[Event, ...]


class Background:
    """The publisher's steps, taken by the scheduler."""

    def __init__(self, life: Life, name: str, steps: Iterator[float]) -> None:
        self._life = life
        self._steps = steps
        self._waits = False
        self._turn = 0
        self._ended = False
        self.alive = lambda: True
        life.later(0.0, functools.partial(self._step, 0))

    def _step(self, turn: int) -> None:
        if turn != self._turn or self._ended:
            return  # it was woken meanwhile
        self._turn += 1
        self._waits = False
        try:
            wait_s = next(self._steps)
        except StopIteration:
            self._ended = True
            return
        self._waits = wait_s > 0
        if not math.isinf(wait_s):
            delay_s = wait_s or self._life.step_s()
            if not wait_s:  # a slow disk may take its time for each of many blocks: that is no waiting
                self._life.ends_by += delay_s
            self._life.later(delay_s, functools.partial(self._step, self._turn))

    def wake(self) -> None:
        if self._waits:
            self._waits = False
            self._life.later(0.0, functools.partial(self._step, self._turn))

    def join(self) -> None:
        for _ in range(100_000):
            if self._ended:
                return
            try:
                wait_s = next(self._steps)
            except StopIteration:
                return
            if math.isinf(wait_s):
                break
            self._life.pass_time(wait_s)
        raise Broken("the publisher never ends")


class Selector:
    """As ``selectors.DefaultSelector``; waiting is what makes the world go on."""

    def __init__(self, life: Life) -> None:
        self._life = life
        self._keys: dict[int, tuple[Any, Any]] = {}

    def register(self, what: Any, events: int, data: Any) -> None:
        fd = what if isinstance(what, int) else what.fileno()
        assert events == selectors.EVENT_READ
        assert fd not in self._keys
        assert fd >= 0
        self._keys[fd] = (what, SimpleNamespace(data=data))

    def unregister(self, what: Any) -> None:
        del self._keys[what if isinstance(what, int) else what.fileno()]

    def close(self) -> None:
        self._keys.clear()

    def select(self, timeout: float) -> list[tuple[Any, int]]:
        life = self._life
        life.looks += 1
        if life.looks > LOOKS_MAX or life.now > life.ends_by:
            raise Broken(f"the recorder does not end: {life.now:.0f} s, {life.looks} looks")
        if timeout > WAIT_S_MAX:
            raise Broken(f"the loop would wait for {timeout:.0f} s")
        until = life.now + max(timeout, life.lag_s)
        while True:
            ready = [(key, 1) for fd, (_, key) in self._keys.items() if life.is_ready(fd)]
            if ready:
                return ready
            if not life.advance(until):
                return []


class Signals:
    """As :class:`tape2048_recorder.status.signals.Signals`."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.names: list[str] = []
        self.taken: Counter[str] = Counter()

    def take(self) -> list[str]:
        names, self.names = self.names, []
        self.taken.update(names)
        return names


class Life:
    """One life: made, lived once, looked at.

    Args:
        number: its place in the history.
        plan: the history's.
        disk: what earlier lives have left.
        truth: what was said so far.
    """

    def __init__(self, number: int, plan: Plan, disk: Disk, truth: Truth) -> None:
        self.number = number
        self.disk = disk
        disk.free = ROOMY
        self.truth = truth
        self._seed = plan.seed
        self.random = self.random_of("life")
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0
        self.now = 1000.0 * (number + 1)
        self._begun = self.now
        self._wall_s = 1_700_000_000.0 + 20.0 * number
        self.looks = self.starts = 0
        self.ends_by = self.now + SPAN_S + ENDING_S_MAX
        self.lag_s = self.random.choice((0.0, 0.1, 0.3))
        self._step_s = self.random.choice((0.0, 0.005, 0.1))
        self.system = System(disk, self.random_of("disk"), lambda: self.now, FIRST_PID + 1000 * number)
        self.system.fails = self._fails
        self._failing: list[list[Any]] = []
        self.sockets: dict[int, Socket] = {}
        self.processes: list[Process] = []
        self._spawns_fail = 0
        settings = dict(plan.settings[min(number, len(plan.settings) - 1)])
        self._wanted = self.config = RecorderConfig(
            player="random", out_dir=OUT_DIR, drain_timeout_s=DRAIN_S, worker_silence_s=SILENCE_S,
            flush_s=settings.pop("flush_s", 1.0), **settings,
        )  # fmt: skip
        self.events: list[tuple[float, str, str]] = []
        self._make_status: Callable[[], Status] | None = None
        self._statuses = 0
        self.signals = Signals(self.system.new_fd())
        self.asked_to_end = False
        self.rotations: deque[frozenset[Any]] = deque()  # what was confirmed before each that is not done
        self._rotations_done = 0
        self.reloads = 0
        self._stalled_until = 0.0
        self._reloaded_at = -math.inf
        self.reload_late: str | None = None
        self.summary: RecordingSummary | None = None
        self.error: TapeError | None = None
        self.crashed: str | None = None
        self._power = False
        self.troubles = 0
        self.calm = True
        path_class: Any = type("Path", (SimulatedPath,), {"system": self.system})
        self.out_dir: Any = path_class(OUT_DIR)
        self.world = self._make_world(path_class)
        for event in plan.events:
            if event.life == number:
                self.later(event.at, functools.partial(getattr(self, f"on_{event.kind}"), *event.args))
        span_s = SPAN_S if number + 1 < len(plan.settings) else LAST_SPAN_S
        self.later(span_s, functools.partial(self.on_signal, "SIGTERM"))

    def random_of(self, *what: Any) -> Random:
        return Random(f"{self._seed} {self.number} {what}")

    # The world.

    def _make_world(self, path_class: type) -> World:
        system: Any = self.system
        opened = bound(opening, os=system, Path=path_class)
        names = ("is_shared", "open_fd", "open_owned", "path_exists", "storage_error", "storage_errors")
        opened = {name: getattr(opened, name) for name in names}
        files = bound(durable, os=system, Path=path_class, _renameat2=system.renameat2, **opened)
        files.try_lock = lambda fd, shared=False: True
        finish = bound(
            metadata_writer,
            os=system,
            write_file=files.write_file,
            fsync_dir=files.fsync_dir,
            write_metadata=functools.partial(write_metadata, system),
            flush_entry=self._flush_entry,
        )
        any_of: Any = SimpleNamespace

        def simulated(found: Any) -> Any:
            return found

        return World(
            os=system,
            time=any_of(
                monotonic=lambda: self.now, monotonic_ns=self.clock_ns, time=lambda: self.now + self._wall_s
            ),
            rmtree=remove_tree,
            socketpair=simulated(self._socketpair),
            popen=simulated(self._popen),
            selector=simulated(functools.partial(Selector, self)),
            files=files,
            load_path=self._load_path,
            background=functools.partial(Background, self),
            finish_session=finish.finish_session,
            validate=self._validate,
            quarantine=self._quarantine,
            make_readers_lock=self._make_readers_lock,
        )

    def _load_path(self, path: SimulatedPath) -> Any:
        try:
            return memory(path.read_bytes())
        except FileNotFoundError as error:
            raise MissingPathError("no such file or directory", path=path) from error
        except OSError as error:
            raise StorageError(f"cannot be read: {error.strerror}", path=path) from error

    def _flush_entry(self, path: SimulatedPath) -> FileEntry:
        fd = self.system.open(path, os.O_RDONLY)
        try:
            self.system.fsync(fd)
            data = self.system.pread(fd, 1 << 40, 0)
        finally:
            self.system.close(fd)
        return FileEntry(len(data), crc(data))

    def _validate(self, path: SimulatedPath) -> Any:
        return SimpleNamespace(findings=defects_of(self.system._find(str(path)), str(path)))

    def _quarantine(self, _root: Any, path: SimulatedPath, findings: Any, *, by: str) -> Any:
        raise Broken(f"{by} puts {path.name} away: {findings[0].message}")

    def _make_readers_lock(self, root: Any) -> None:
        (root / LOCKS_DIRECTORY).mkdir(exist_ok=True)
        (root / LOCKS_DIRECTORY / READERS_LOCK).touch()

    def _socketpair(self) -> tuple[Socket, Socket]:
        if self._fails("socket", "") is not None:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        ours, theirs = Socket(self.system.new_fd()), Socket(self.system.new_fd())
        ours.peer, theirs.peer = theirs, ours
        self.sockets[ours.fd] = ours
        self.sockets[theirs.fd] = theirs
        return ours, theirs

    def _popen(self, arguments: list[str], **_: Any) -> Process:
        if self._spawns_fail:
            self._spawns_fail -= 1
            raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        spec = _decode_spec(arguments[-1])
        passed = self.sockets[spec.socket_fd]
        # The daemon closes its copy; the process keeps its own.
        theirs = Socket(self.system.new_fd())
        theirs.peer, passed.peer.peer = passed.peer, theirs
        self.starts += 1
        process = Process(self, spec, theirs)
        self.processes.append(process)
        return process

    def next_pid(self) -> int:
        return FIRST_PID + 1000 * self.number + 1 + self.starts

    def is_ready(self, fd: int) -> bool:
        ours = self.sockets.get(fd)
        if ours is not None:
            return ours.is_ready
        return fd == self.signals.fd and bool(self.signals.names)

    # Time.

    def clock_ns(self) -> int:
        return int(self.now * 1e9)

    def later(self, delay_s: float, act: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._heap, (self.now + delay_s, self._count, act))

    def advance(self, until: float) -> bool:
        """Let the next thing happen, or time pass; returns whether anything happened before ``until``."""
        if self._heap and self._heap[0][0] <= until:
            at, _, act = heapq.heappop(self._heap)
            self.now = max(self.now, at)
            act()
            return True
        self.now = max(self.now, until)
        return False

    def pass_time(self, seconds: float) -> None:
        """Let others go on while the daemon waits for something else than its selector."""
        until = self.now + seconds
        while self.advance(until):
            pass

    def step_s(self) -> float:
        """The time that a step of the publisher takes."""
        return self._step_s * self.random.random()

    # Events.

    def on_signal(self, name: str) -> None:
        if name == "SIGUSR1":
            self.rotations.append(self.truth.confirmed_in(self))
        elif name == "SIGHUP":
            self.later(RELOAD_S, functools.partial(self._check_reload, self.now))
        elif not self.asked_to_end:
            self._check_hung()
            self.asked_to_end = True
            self.ends_by = min(self.ends_by, self.now + ENDING_S_MAX)
        self.signals.names.append(name)

    def _check_hung(self) -> None:
        for process in self.processes:
            limit_s = HUNG_WRITING_S if process.hangs_writing else HUNG_S
            if process.hangs and max(process.hung_at, self._stalled_until) + limit_s < self.now:
                raise Broken(f"worker {process.spec.index} hangs, and nobody ends it")

    @property
    def _ends(self) -> bool:
        said = any("finishing the games" in message for _, _, message in self.events)
        # It says why it ends early, as no worker can start, only at its end.
        return self.asked_to_end or said or (self._make_status is not None and self._make_status().ending)

    @property
    def _is_limited(self) -> bool:
        """Whether it may end with a game, of which nobody says anything."""
        return self._wanted.max_games is not None or self.config.max_games is not None

    def _check_reload(self, asked_at: float) -> None:
        """A request to reload is met soon, unless it ends meanwhile."""
        if self.now < self._stalled_until + RELOAD_S:
            self.later(RELOAD_S, functools.partial(self._check_reload, asked_at))
            return
        if self.calm and not self._ends and not self._is_limited and self._reloaded_at < asked_at:
            self.reload_late = f"{RELOAD_S} s after it was asked to, nothing was reloaded"

    def on_config(self, **settings: Any) -> None:
        self._wanted = msgspec.structs.replace(self._wanted, **settings)
        self.on_signal("SIGHUP")

    def on_settings(self, settings: tuple[tuple[str, Any], ...], again_s: float | None) -> None:
        """Other settings are to be read, and some seconds later once more."""
        self.on_config(**dict(settings))
        if again_s is not None:
            self.later(again_s, functools.partial(self.on_signal, "SIGHUP"))

    def on_kill(self) -> None:
        self.crashed = "it was killed"
        self.system.die()

    def on_power(self) -> None:
        self._power = True
        self.on_kill()

    def on_die_at(self, calls: int, power: bool) -> None:
        self._power = power
        self.system.crash_at = self.system.calls + calls

    def on_full(self, seconds: float, left: int) -> None:
        self.calm = False
        taken = self.disk.free - left
        self.disk.free -= taken

        def again() -> None:
            self.disk.free += taken

        self.later(seconds, again)

    def on_fail(self, name: str, code: int, count: int, part: str) -> None:
        """The next operations of this name on paths with this part fail."""
        self.calm = False
        self._failing.append([name, code, count, part])

    def on_unwritten(self, part: str) -> None:
        """The kernel cannot write what is pending of a file, and says so only to those who flush it."""
        self.calm = False
        found = [file for path, file in walk(self.disk.root, "") if part in path and file.pending]
        if found:
            self.disk.fail_to_write(self.random.choice(found), self.random)

    def on_mishap(self, index: int, mishap: str) -> None:
        self.calm = False
        for process in self.processes:
            if process.code is None and process.spec.index == index:
                process.misbehave(mishap)

    def on_slow(self, step_s: float) -> None:
        self.calm = self.calm and step_s < 0.1
        self._step_s = step_s

    def on_wall(self, seconds: float) -> None:
        self._wall_s += seconds

    def on_stall(self, seconds: float) -> None:
        """The daemon is stopped for a while."""
        self._stalled_until = max(self._stalled_until, self.now + seconds)
        self.pass_time(seconds)

    def on_spawns(self, count: int) -> None:
        self.calm = False
        self._spawns_fail = count

    def _fails(self, name: str, path: str) -> int | None:
        for each in self._failing:
            if each[0] == name and each[3] in path:
                each[2] -= 1
                if each[2] <= 0:
                    self._failing.remove(each)
                self.troubles += 1
                code: int = each[1]
                return code
        return None

    # As a reporter.

    @property
    def manager(self) -> Any:
        return SimpleNamespace(starting=lambda text: None)

    def event(self, level: str, message: str) -> None:
        self.events.append((self.now, level, message))
        if "no room: publishing" in message and level == "error" and not self._ends and not self._is_limited:
            raise Broken(f"publishing is not tried again: {message}")
        if message.startswith("published "):
            self.truth.say_published(self, message.split()[1].rstrip(":"))

    def _status(self, make_status: Callable[[], Status]) -> None:
        self._make_status = make_status
        self._statuses += 1
        if self._statuses % 4 == 1 or self.rotations:
            self._check_rotations(make_status())

    def _check_rotations(self, status: Status) -> None:
        """A request is done when what was confirmed before it is published."""
        while self.rotations and self._rotations_done < status.rotation.done:
            self._rotations_done += 1
            before = self.rotations.popleft()
            left = before - self.truth.published
            if left and self.calm:
                raise Broken(f"a rotation is done, and not published: {sorted(left)}")

    def check_requests(self) -> None:
        """What a life that has ended well has made of requests."""
        status = self._make_status()
        taken = self.signals.taken["SIGUSR1"]
        if (status.rotation.asked, status.rotation.done) != (taken, taken):
            raise Broken(f"{taken} rotations were asked for: {status.rotation}")
        if self.calm and self.config.rotate_s is None:
            full = self.summary.rows // self.config.rotate_steps if not self.reloads else math.inf
            if len(self.summary.sessions) > taken + full + 1:
                raise Broken(f"{len(self.summary.sessions)} sessions, {taken} rotations: {self.summary}")
        if (status.why or "") != self.summary.reason:
            raise Broken(f"the last status gives {status.why!r} as the reason of {self.summary.reason!r}")
        if self.reload_late is not None:
            raise Broken(self.reload_late)

    def _load(self) -> RecorderConfig:
        self._reloaded_at = self.now
        self.reloads += 1
        return self._wanted

    def _changed(self, config: RecorderConfig) -> None:
        self.config = config

    # The life itself.

    def live(self) -> None:
        """Live it to its end; afterwards the disk is as the next life finds it.

        Raises:
            Broken: something happened that must not.
        """
        reporter: Any = SimpleNamespace(event=self.event, status=self._status, manager=self.manager)
        try:
            with contextlib.closing(Instance(self.out_dir, "default", self.world)) as instance:
                progress = GameProgress(instance, self.config, self.world)
                self.summary = record(
                    self.config,
                    msgspec.structs.replace(self.config, seed=progress.state.seed),
                    reporter,
                    progress,
                    begun=self.now,
                    signals=self.signals,  # type: ignore[arg-type]
                    reload=Reload(self._load, reporter, changed=self._changed),
                    world=self.world,
                )
        except Crash:
            self.crashed = self.crashed or f"it died at operation {self.system.calls}"
        except TapeError as error:
            self.error = error
        self.system.crash_at = None
        self._failing.clear()
        if self.crashed is not None and self._power:
            self.disk.lose_power(self.random_of("power"))
            self.truth.after_power_loss(self)

    def says(self) -> str:
        lines = [f"{at - self._begun:8.3f} {level}: {message}" for at, level, message in self.events]
        how = self.crashed or (self.summary and f"ended: {self.summary.reason}") or f"error: {self.error}"
        return "\n".join([f"life {self.number}", *lines, f"{self.now - self._begun:8.3f} {how}"])


def bound(module: Any, **names: Any) -> Any:
    """The functions of a module, with other things behind these names; all else is the product's code."""
    made: dict[str, Any] = {**vars(module), **names}
    for name, found in vars(module).items():
        if name in names or getattr(found, "__module__", None) != module.__name__:
            continue
        plain = getattr(found, "__wrapped__", found)
        if isinstance(plain, FunctionType):
            copy = FunctionType(plain.__code__, made, name, plain.__defaults__)
            copy.__kwdefaults__ = plain.__kwdefaults__
            made[name] = contextlib.contextmanager(copy) if plain is not found else copy
    return SimpleNamespace(**made)


def memory(data: bytes) -> Any:
    import numpy as np

    return np.frombuffer(data, np.uint8)


def crc(data: bytes) -> int:
    from crc32c import crc32c

    return crc32c(data)


def walk(file: File, path: str) -> Iterator[tuple[str, File]]:
    if file.entries is None:
        yield path, file
        return
    for name, each in file.entries.items():
        yield from walk(each, f"{path}/{name}")
