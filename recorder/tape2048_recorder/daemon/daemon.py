"""The daemon: one loop over workers, signals, the publisher and the clock.

Signal handlers only note a signal, and the loop acts on it:

* The first SIGTERM or SIGINT drains: games in progress finish within ``drain_timeout_s``, and everything is
  published. If a limit has already started a drain, that drain continues.
* A second SIGTERM or SIGINT, or SIGUSR2, hurries: workers are killed, and committed blocks are published.
* SIGUSR1 rotates.
* SIGHUP reloads the settings. Without a configuration file (a terminal was closed) it drains.

A reload can change limits and intervals (:data:`LIVE`). Other settings stay until the next start. An
unreadable or invalid file changes nothing.

The daemon reports through a :class:`~tape2048_recorder.status.status_report.Reporter`, and does not exit the
process. It logs the warnings of workers as its own warnings, so that equal warnings are reported once.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import logging
import math
import os
import selectors
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec

from tape2048.base.settings import settings_of
from tape2048.base.text import counted
from tape2048.errors import (
    FormatError,
    PlayerError,
    RecorderError,
    StartError,
    StorageError,
    TapeError,
    error_class,
)
from tape2048.session.layout import RUN_DTYPE
from tape2048_recorder.daemon.supervisor import Supervisor, Watch, WorkerPlace
from tape2048_recorder.ipc.protocol import (
    DRAIN,
    HURRY,
    Ask,
    BlockWritten,
    Bye,
    Confirmed,
    Crashed,
    Forfeited,
    FromWorker,
    NoMoreGames,
    NoRoom,
    PlayGames,
    Ready,
    Reserve,
    Starts,
    Warns,
    WriteFailed,
)
from tape2048_recorder.record_options import RecorderConfig, row_bytes
from tape2048_recorder.recording.recording import (
    DISK_FULL,
    MEGABYTE,
    NO_LIMIT,
    PUBLISHING,
    SPOOL_FULL,
    Recording,
    largest_file,
)
from tape2048_recorder.recording.world import REAL, World
from tape2048_recorder.status.signals import ROTATE, STOP_NOW, Signals
from tape2048_recorder.status.status_report import (
    Counts,
    History,
    Reporter,
    Rotation,
    State,
    Status,
    Tally,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from tape2048_recorder.daemon.instance import GameProgress, Ledger
    from tape2048_recorder.daemon.weights import Playing
    from tape2048_recorder.recording.publish import PublishOutcome

#: Interval at which pauses, restarts and deadlines are checked.
TICK_S = 0.05
STATUS_INTERVAL_S, LIMITS_INTERVAL_S = 0.5, 0.25

#: Time after the drain for workers to write finished games, and for the daemon to find space for them.
HURRY_GRACE_S, ROOM_GRACE_S = 5.0, 3.0

#: A pause ends when no worker has waited for this long, which is longer than the delay between two tries.
FLOWING_S = 2.0

#: Share of ``max_ram_mb`` at which the open session is published. Its runs are in memory until then.
RAM_ROTATES_AT = 0.9

#: Shortest time between two rotations above ``max_ram_mb``. If that is not enough, recording ends.
RAM_ROTATES_S = 60.0

#: Time limit for writing finished games before a rotation. A slice of play takes 0.05 s, and a block little
#: more.
FLUSH_S = 10.0

#: Time over which the shown rate is averaged.
RATE_WINDOW_S = 10.0

#: The metrics' labels of pauses, by the prefixes of their reasons.
_PAUSES = {DISK_FULL: "disk_full", PUBLISHING: "publishing", SPOOL_FULL: "spool_full"}

#: The settings that a reload can change.
LIVE = frozenset(
    {
        "max_games",
        "max_steps",
        "max_wall_s",
        "max_ram_mb",
        "max_disk_mb",
        "spool_max_mb",
        "min_free_mb",
        "rotate_steps",
        "rotate_s",
        "flush_s",
        "block_rows",
        "drain_timeout_s",
        "worker_silence_s",
        "log_interval_s",
        "log_level",
    }
)

#: Shortest time between two reloads.
RELOAD_S = 1.0

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class Rotations:
    """The requests to rotate now, and their outcomes.

    Finished games can be in the workers' buffers for up to ``flush_s``. A request increases the word
    ``flush`` of each slot. A worker that sees it writes its finished games, and sets ``flushed`` to the same
    number when the block is committed. When all workers have done so, or after :data:`FLUSH_S`, the open
    session is closed. Workers that are starting or have died hold no games.
    """

    def __init__(self, supervisor: Supervisor, recording: Recording) -> None:
        self._supervisor = supervisor
        self._recording = recording
        self.state = Rotation()
        self._flushing: list[float] = []  # times of the requests whose session is still open
        #: For each later request: the serials of the sessions that must be published before it is done.
        self._waiting: deque[set[int]] = deque()

    def ask(self, now: float) -> None:
        """Request a rotation, which follows when finished games are written."""
        self.state = msgspec.structs.replace(self.state, asked=self.state.asked + 1)
        self._flushing.append(now)
        self._supervisor.shared.slots["flush"] = self.state.asked

    def tick(self, now: float) -> None:
        """Close the open session if a rotation is due or requested."""
        self._recording.rotate_if_due()
        if not self._flushing:
            return
        slots = self._supervisor.shared.slots
        workers = [worker.index for worker in self._supervisor.workers if worker.ready]
        flushed = (slots["flushed"][workers] == slots["flush"][workers]).all()
        if flushed or now - self._flushing[0] >= FLUSH_S:
            serials = self._recording.close_open()
            self._waiting.extend(set(serials) for _ in self._flushing)
            self._flushing.clear()
            self._finish(None, None)

    def _finish(self, path: str | None, error: str | None) -> None:
        done = self.state.done
        while self._waiting and not self._waiting[0]:
            self._waiting.popleft()
            done += 1
        if done != self.state.done:
            self.state = Rotation(self.state.asked, done, path, error)

    def on_outcome(self, outcome: PublishOutcome) -> None:
        if outcome.final:
            for serials in self._waiting:
                serials.discard(outcome.session.serial)
            published = outcome.published
            path = None if published is None or published.path is None else str(published.path)
            self._finish(path, None if outcome.error is None else str(outcome.error))


def merged(running: RecorderConfig, wanted: RecorderConfig) -> tuple[RecorderConfig, list[str], list[str]]:
    """Merge the live settings; return also the names of the changed, and of those that need a restart."""
    differ = [name for name in settings_of(type(running)) if getattr(running, name) != getattr(wanted, name)]
    changed = [name for name in differ if name in LIVE]
    after = msgspec.structs.replace(running, **{name: getattr(wanted, name) for name in changed})
    return after, changed, [name for name in differ if name not in LIVE]


@dataclasses.dataclass(eq=False)
class Reload:
    """The reloading of the settings on request, at most once a second."""

    load: Callable[[], RecorderConfig]
    reporter: Reporter
    around: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext
    changed: Callable[[RecorderConfig], None] = lambda _: None

    def __post_init__(self) -> None:
        self._asked = False
        self._next = float("-inf")

    def ask(self, *, ending: bool = False) -> None:
        """Request a reload; it is ignored if the recorder is ``ending``."""
        if ending:
            self.reporter.event("warning", "reload: nothing is changed: the recorder is ending")
        else:
            self._asked = True

    def due(self, now: float) -> bool:
        """Whether a reload is due; ``now`` is ``time.monotonic``."""
        return self._asked and now >= self._next

    def read(self, running: RecorderConfig, now: float) -> RecorderConfig:
        """Read the settings; return the configuration in effect from now on."""
        self._asked = False
        self._next = now + RELOAD_S

        def shown(name: str, config: RecorderConfig) -> str:
            return settings_of(type(running))[name].show(getattr(config, name))

        with self.around():
            try:
                wanted = self.load()
            except TapeError as error:
                hint = "" if error.hint is None else f" ({error.hint})"
                self.reporter.event("error", f"reload: nothing is changed: {error}{hint}")
                return running
            after, changed, refused = merged(running, wanted)
            self.changed(after)
            for name in refused:
                stays = f"reload: {name} stays {shown(name, running)}"
                self.reporter.event("warning", f"{stays}; {shown(name, wanted)} needs a restart")
            news = [f"{name} = {shown(name, wanted)} (was {shown(name, running)})" for name in changed]
            self.reporter.event("info", f"reload: {', '.join(news) or 'no setting changed'}")
        return after


def error_of(message: Crashed, *, first: bool) -> TapeError | None:
    """Return the error that ends the recorder, or None if another worker can succeed.

    A user's player that raises an exception or returns invalid answers would do so again, so the recorder
    ends, with its games published. An error while a worker starts is final for the ``first`` worker of a
    slot. A later worker may lack a resource, such as memory, only for a while.
    """
    kind = error_class(message.kind)
    if issubclass(kind, (PlayerError, StartError)):
        return kind(message.error, hint=message.hint)
    return StartError(f"a worker could not start: {message.error}") if first else None


def resident_bytes(pids: Iterable[int]) -> int:
    """Return the resident memory of these processes in bytes; shared pages count for each process."""
    total = 0
    for pid in pids:
        with contextlib.suppress(OSError, IndexError):  # the process has just ended
            total += int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE_BYTES
    return total


@dataclasses.dataclass(kw_only=True, eq=False)
class Daemon:
    """The loop that runs workers and recording; ``begun`` is monotonic. Without ``reload``, SIGHUP drains."""

    config: RecorderConfig
    reporter: Reporter
    supervisor: Supervisor
    recording: Recording
    ledger: Ledger
    progress: GameProgress
    playing: Playing
    signals: Signals
    begun: float
    reload: Reload | None = None
    world: World = REAL

    def __post_init__(self) -> None:
        self._selector: selectors.BaseSelector = self.world.selector()
        self._phase: Literal["recording", "draining", "publishing"] = "recording"
        self._deadline = float("inf")
        self._stop_signal: str | None = None  # the first signal that asked to end
        self._hurried = False
        self._paused: str | None = None
        self._flowing_since: float | None = None  # during a pause: the time since which no worker has waited
        self._fatal: TapeError | None = None
        self._starting = [f"starting {counted(self.config.worker_count, 'worker')}"]
        self._next_status = 0.0
        self._next_limits = 0.0
        self.reason = ""
        self.tally = Tally()
        self._rotations = Rotations(self.supervisor, self.recording)
        self._ram_rotated_at, self._ram_rotation = -math.inf, 0
        self._watch = Watch(self.supervisor, lambda what: self.reporter.event("warning", what))
        self.counts = Counts()  # excluding the pause in progress
        self._paused_at = 0.0  # start of the pause in progress
        self._rate: deque[tuple[float, int]] = deque()  # times and steps in the last RATE_WINDOW_S
        self._history = History()
        self.sessions: list[str] = []  # only names: weeks of recording publish 100,000 sessions
        self.games_dropped = 0
        self.finished_games_lost, self.lost_because = 0, ""
        self.first_step_s: float | None = None
        self.played_s = 0.0  # from the first move to the last
        self._steps = 0

    def run(self) -> None:
        """Record until a limit, a signal or an error ends the recording, and publish the sessions."""
        self._selector.register(self.signals.fd, selectors.EVENT_READ, self._on_signal)
        try:
            for worker in self.supervisor.workers:
                if worker.alive:
                    self._listen(worker)
            next_tick = 0.0
            while not (self._phase == "publishing" and self.recording.idle):
                routine = True
                for key, _ in self._selector.select(max(next_tick - self.world.now, 0.0)):
                    routine = key.data() and routine
                now = self.world.now
                if now >= next_tick or not routine:
                    self._tick(now)
                    next_tick = now + TICK_S
            self._end_pause(self.world.now)
            self.reporter.status(self.status)  # the last status, after everything is published
        finally:
            self.supervisor.close()
            self.recording.publisher.close()
            self._selector.close()
        if self._fatal is not None:
            raise self._fatal

    def _listen(self, worker: WorkerPlace) -> None:
        self._selector.register(worker.channel, selectors.EVENT_READ, lambda: self._on_worker(worker))

    def _on_signal(self) -> None:
        for name in self.signals.take():
            if name == ROTATE.name:
                self._rotations.ask(self.world.now)
            elif name == "SIGHUP" and self.reload is not None:
                self.reload.ask(ending=self._phase != "recording")
            elif name == STOP_NOW.name or self._stop_signal is not None:
                self._hurry(name)
            else:
                self._stop_signal = name
                if self._phase != "recording":
                    what = f"{name} was received: the recorder is already ending ({self.reason})"
                    self.reporter.event("info", what)
                else:
                    self.stop(f"{name} was received")

    def _hurry(self, name: str) -> None:
        if self._phase == "recording":
            self.stop(f"{name} was received")
        if not self._hurried:
            named = f"{name} again" if name == self._stop_signal else name
            self.reporter.event("warning", f"{named}: killing the workers, publishing committed blocks")
        self._hurried = True
        self.supervisor.kill_all()
        self.recording.publisher.give_up()

    def _on_worker(self, worker: WorkerPlace) -> bool:
        """Handle a worker's messages; return whether all are routine, so that no tick is needed."""
        routine = True
        try:
            messages, is_open = worker.channel.receive_ready()
            for message in messages:
                routine = isinstance(message, Ask | Reserve | BlockWritten) and routine
                self._on_message(worker, message)
        except (msgspec.MsgspecError, FormatError) as error:
            # The worker's state cannot be trusted. Another worker plays its games again.
            worker.last_error = f"it sent an invalid message: {error}"
            is_open = False
        if not is_open:
            self._on_death(worker)
        return is_open and routine

    def _on_message(self, worker: WorkerPlace, message: FromWorker) -> None:
        match message:
            case Starts() | Warns() | Forfeited():
                self._on_news(worker, message)
            case Ready():
                self._on_ready(worker, message)
            case Ask(want=want):
                self._on_ask(worker, want)
            case Reserve(rows=rows, generation=generation, divisible=divisible):
                worker.waiting_rows, worker.waiting_generation = rows, generation
                worker.waiting_divisible = divisible
                self._answer_waiting(worker)
            case BlockWritten():
                worker.unconfirmed = message
                self._confirm(worker)
            case WriteFailed():
                worker.range = None
                self.recording.write_failed(message)
                if message.errno == errno.EFBIG and not message.first_row and not worker.waiting_divisible:
                    self._on_file_limit()
            case Bye(games_dropped=dropped, finished_dropped=finished):
                worker.said_bye = True
                self.games_dropped += dropped
                self._lose(finished)
            case Crashed():
                self._on_crash(worker, message)
            case _:
                self._give_up(self.playing.on_message(worker, message))

    def _on_file_limit(self) -> None:
        """End, because a single game does not fit into a file."""
        what, hint = f"{largest_file()}, too few for a game", "Raise the limit, or record into another --out."
        self.recording.fail(what)
        self._fatal = self._fatal or StorageError(what, path=self.recording.out_dir, hint=hint)
        if self._phase == "recording":
            self.stop(what)
            self._deadline = self.world.now  # no game can be written any more

    def _on_news(self, worker: WorkerPlace, message: Starts | Warns | Forfeited) -> None:
        if isinstance(message, Starts):
            self._on_phase(message.phase)
        elif isinstance(message, Warns):
            logging.getLogger("tape2048").warning("%s", message.text)
        else:
            if not self.ledger.forfeit(worker.index, message.game):
                self._give_up(RecorderError(f"worker {worker.index} forfeited a game that it did not hold"))
            self.counts.games_forfeited += 1
            self.reporter.event("warning", message.why)

    def _on_phase(self, phase: str) -> None:
        if phase not in self._starting:  # several workers report the same phase
            self._starting.append(phase)
            self.reporter.event("info", phase)

    def _on_crash(self, worker: WorkerPlace, message: Crashed) -> None:
        worker.last_error = message.error
        first = message.starting and not worker.has_recorded
        error = error_of(message, first=first)
        if first:
            self._give_up(error)
        elif error is not None:  # drain: the other workers' games are valid
            self._fatal = self._fatal or error
            if self._phase == "recording":
                self.stop(message.error)

    def _on_ready(self, worker: WorkerPlace, message: Ready) -> None:
        worker.ready = self._phase == "recording"  # a worker that is ready later has no games, and is killed
        self._on_phase("playing the first games")
        self.recording.begin(message.generation)
        self._give_up(self.playing.on_ready(worker.index, message))

    def _on_ask(self, worker: WorkerPlace, want: int) -> None:
        games = None
        if self._phase == "recording" and self.supervisor.allow(worker, self._rows_left()):
            try:
                self.progress.cover(self.ledger.next_id + want)
                games = self.ledger.take(worker.index, want) if want else (0, 0)
            except StorageError as error:
                self._give_up(error)
        worker.answer(NoMoreGames() if games is None else PlayGames(*games))

    def _rows_left(self) -> int:
        rows = self.supervisor.rows_unconfirmed
        steps = self.config.max_steps or NO_LIMIT
        return min(steps - self.tally.rows - rows, self.recording.rows_left(self.world.now, rows))

    def _answer_waiting(self, worker: WorkerPlace) -> None:
        assert worker.waiting_rows is not None
        why = self.recording.why_not(worker.waiting_rows)
        if why is not None and why.startswith(DISK_FULL) and worker.waiting_divisible:
            worker.waiting_rows = None
            worker.answer(NoRoom())
            return
        if why is None:
            try:
                worker.range = self.recording.place(worker.waiting_rows, worker.waiting_generation)
            except StorageError as error:
                why = str(error)
            else:
                worker.waiting_rows = None
                worker.answer(worker.range)
                return
        self._pause(why)

    def _confirm(self, worker: WorkerPlace) -> None:
        assert worker.unconfirmed is not None
        block = self.recording.confirm(worker.unconfirmed)
        if block is None:  # the disk is full; every tick tries again
            self._pause(self.recording.why_not(0) or "the journal cannot be written")
            return
        worker.unconfirmed = None
        worker.range = None
        self.counts.blocks += 1
        if not self.ledger.confirm(worker.index, block.runs["run_id"]):
            self._give_up(RecorderError(f"worker {worker.index} recorded games that it did not hold"))
        self.tally.add(block.runs)
        worker.rows_counted += block.rows
        self.supervisor.note_progress(worker)
        worker.answer(Confirmed())

    def _on_death(self, worker: WorkerPlace) -> None:
        assert worker.process is not None
        self._selector.unregister(worker.channel)
        if worker.range is not None:
            self.recording.release(worker.range)
        back = self.ledger.release(worker.index)
        pid, error, said_bye, was_ready = worker.process.pid, worker.last_error, worker.said_bye, worker.ready
        unconfirmed = worker.unconfirmed
        how = self.supervisor.reap(worker)
        if said_bye or self._phase == "publishing":
            return
        if self._phase == "draining":
            reported = error is not None and self._fatal is not None  # it is the reason of the drain
            if was_ready and not self._hurried and not reported:
                what = f"worker {worker.index} (pid {pid}) ended while draining: {how}"
                self.reporter.event("warning", what)
            self.games_dropped += back
            if unconfirmed is not None and not self._hurried:  # written, but not in the journal
                self._lose(len(unconfirmed.runs) // RUN_DTYPE.itemsize)
            return
        what = f"(pid {pid}) ended: {how}" + (f"; its error: {error}" if error else "")
        self._restart_later(worker, what, f"; {counted(back, 'unrecorded game')} will be played again")

    def _restart_later(self, worker: WorkerPlace, what: str, then: str = "") -> None:
        self.supervisor.schedule_restart(worker, self.world.now)
        if self.supervisor.is_hopeless:
            said = f"{self.supervisor.deaths_in_a_row} workers died without recording. The last one {what}"
            hint = "See its standard error above. SIGKILL usually means that memory ran out."
            self._give_up(RecorderError(said, hint=hint))
        else:
            then += f", another starts in {worker.start_at - self.world.now:.1f} s"
            self.reporter.event("warning", f"worker {worker.index} {what}{then}")

    def _tick(self, now: float) -> None:
        self._give_up(self.progress.instance.lost())
        for outcome in self.recording.outcomes():
            self._on_outcome(outcome)
        for worker in self.supervisor.workers:
            self._retry(worker, now)
        self._watch.look(now, self.config.worker_silence_s)
        self.playing.tick(self.recording, now, look=self._phase == "recording")
        self._rotations.tick(now)
        self._resume_if_flowing(now)
        if (steps := int(self.supervisor.shared.slots["steps"].sum())) != self._steps:
            self._steps = steps
            self.first_step_s = now - self.begun if self.first_step_s is None else self.first_step_s
            self.played_s = now - self.begun - self.first_step_s
        if self._phase == "recording":
            if self.reload is not None and self.reload.due(now):
                self.counts.reloads += 1
                self.config = self.recording.config = self.reload.read(self.config, now)
                self.supervisor.pace(self.config)
                self.ledger.limit(self.config.max_games)
                self.supervisor.shared.slots["rows_max"] = 0  # workers ask again
            self._check_limits(now)
        if self._phase == "draining":
            self._check_drain(now)
        if self._phase == "publishing" and now >= self._deadline:
            self.recording.publisher.give_up()
        if now >= self._next_status:
            self._next_status = now + STATUS_INTERVAL_S
            self.reporter.status(self.status)

    def _retry(self, worker: WorkerPlace, now: float) -> None:
        """Retry what failed for a worker: commit its block, find space for it, or restart the worker."""
        if worker.unconfirmed is not None:
            self._confirm(worker)
        elif worker.waiting_rows is not None:
            self._answer_waiting(worker)
        elif self._phase == "recording" and not worker.alive and now >= worker.start_at:
            if worker.said_bye and (
                self.ledger.exhausted or not self.supervisor.allow(worker, self._rows_left())
            ):
                return  # until another worker dies, and its games are available again
            try:
                self.supervisor.start(worker)
            except OSError as error:
                self._restart_later(worker, f"could not be started: {error.strerror or error}")
            else:
                self.counts.worker_restarts += 1
                self._listen(worker)

    def _check_limits(self, now: float) -> None:
        if self.ledger.exhausted and not any(worker.ready for worker in self.supervisor.workers):
            self.supervisor.kill_all()  # those that are still starting, without games
            self.reason = self.ledger.why_exhausted(self.config.max_games)
            self._publish_rest(now)
            return
        if now < self._next_limits:
            return
        self._next_limits = now + LIMITS_INTERVAL_S
        ram_bytes = 0
        if self.config.max_ram_mb is not None:
            ram_bytes = resident_bytes([os.getpid(), *self.supervisor.pids])
        met = self.limit_met(
            ram_bytes=0 if self._rotates_for(ram_bytes, now) else ram_bytes,
            rows=self.tally.rows + self.supervisor.rows_unconfirmed,
            elapsed_s=0.0 if self.first_step_s is None else now - self.begun - self.first_step_s,
            disk_bytes=self.recording.size_bytes(now, self.supervisor.rows_unconfirmed),
        )
        if met is not None:
            self.stop(met)

    def _rotates_for(self, ram_bytes: int, now: float) -> bool:
        """Publish the open session if memory is near ``max_ram_mb``; return whether that is in progress."""
        share = ram_bytes / MEGABYTE / (self.config.max_ram_mb or math.inf)
        if share < RAM_ROTATES_AT:
            self._ram_rotated_at = -math.inf
            return False
        if self._ram_rotated_at == -math.inf or (share >= 1 and now - self._ram_rotated_at >= RAM_ROTATES_S):
            used = f"{ram_bytes / MEGABYTE:.0f} MB are resident"
            what = f"{used}, near max_ram_mb = {self.config.max_ram_mb}: publishing the session"
            self.reporter.event("info", what)
            self._rotations.ask(now)
            self._ram_rotated_at, self._ram_rotation = now, self._rotations.state.asked
        return self._rotations.state.done < self._ram_rotation

    def limit_met(self, *, rows: int, elapsed_s: float, disk_bytes: int, ram_bytes: int) -> str | None:
        """Describe the limit that is reached, or return None. The ledger enforces ``max_games``."""
        if rows >= (self.config.max_steps or math.inf):
            return f"max_steps = {self.config.max_steps} was reached ({counted(rows, 'row')})"
        if elapsed_s >= (self.config.max_wall_s or math.inf):
            return f"max_wall_s = {self.config.max_wall_s:g} was reached"
        megabytes = disk_bytes / MEGABYTE
        if megabytes >= (self.config.max_disk_mb or math.inf):
            return f"max_disk_mb = {self.config.max_disk_mb} was reached ({megabytes:.0f} MB of sessions)"
        megabytes = ram_bytes / MEGABYTE
        if megabytes >= (self.config.max_ram_mb or math.inf):
            return f"max_ram_mb = {self.config.max_ram_mb} was reached ({megabytes:.0f} MB resident)"
        return None

    def stop(self, reason: str) -> None:
        self.reason = reason
        self._phase = "draining"
        drain_s = self.config.drain_timeout_s
        self._deadline = self.world.now + drain_s
        self.recording.draining = True
        self.supervisor.command(DRAIN)
        self.reporter.event("info", f"{reason}: finishing the games in progress, at most {drain_s:g} s")

    def _check_drain(self, now: float) -> None:
        workers = [worker for worker in self.supervisor.workers if worker.alive]
        for worker in workers:
            if not worker.ready and worker.process is not None:  # it is still starting, without games
                worker.process.kill()
        if not workers:
            self._publish_rest(now)
        elif now >= self._deadline + HURRY_GRACE_S:
            self.supervisor.kill_all()
        elif now >= self._deadline:
            self.supervisor.command(HURRY)
            for worker in workers:
                if worker.waiting_rows is not None and now >= self._deadline + ROOM_GRACE_S:
                    worker.waiting_rows = None
                    worker.answer(NoRoom())

    def _publish_rest(self, now: float) -> None:
        self._phase = "publishing"
        self._deadline = now + self.config.drain_timeout_s
        self.recording.close_open()

    def _give_up(self, error: TapeError | None) -> None:
        """End with this error, if it is not None, after publishing committed blocks."""
        if self._fatal is None and error is not None:
            self._fatal = error
            self.reason = str(error)
            self._phase = "draining"
            self._hurried = True
            self._deadline = self.world.now + self.config.drain_timeout_s
            self.supervisor.kill_all()

    def _on_outcome(self, outcome: PublishOutcome) -> None:
        self._rotations.on_outcome(outcome)
        self.counts.publish_s += outcome.seconds
        if (published := outcome.published) is not None:
            self.counts.publish_last_s = outcome.seconds
            self.counts.session_bytes += published.bytes
            if published.path is not None:
                self.sessions.append(published.path.name)
                self.reporter.event("info", f"published {published.path.name}: {published.contents}")
            if published.rows_lost:
                lost = f"{counted(published.rows_lost, 'row')} did not match checksums and are lost"
                self.reporter.event("error", lost)
        elif outcome.error is not None and not outcome.final:  # a full disk, or no free descriptor
            self._pause(str(outcome.error))
        elif outcome.error is not None:
            self.reporter.event("error", f"{outcome.error}. The next start will try again")
            self._fatal = self._fatal or outcome.error
            if self._phase == "recording":
                self.stop(f"a session could not be published ({outcome.error})")

    def _pause(self, why: str) -> None:
        """Report once that workers wait. It is called repeatedly while they wait."""
        self._flowing_since = None
        before, self._paused = self._paused, why
        if before is None:
            kind = next((_PAUSES[text] for text in _PAUSES if why.startswith(text)), "write_failed")
            self.counts.pauses[kind] = self.counts.pauses.get(kind, 0) + 1
            self._paused_at = self.world.now
            kept = f"paused: {why}; finished games are kept, and written as soon as that is possible"
            if self._phase != "recording":
                left_s = max(self._deadline + ROOM_GRACE_S - self.world.now, 0.0)
                kept = f"ending: {why}; finished games wait to be written, at most {left_s:.0f} s"
            self.reporter.event("warning", kept)

    def _lose(self, games: int) -> None:
        """Note finished games that could not be written, and why."""
        if games:
            self.finished_games_lost += games
            self.lost_because = self._paused or self.lost_because

    def _resume_if_flowing(self, now: float) -> None:
        """Report the end of a pause after a delay, because free space varies on a nearly full disk."""
        if self._paused is None:
            return
        if self._flowing_since is None:
            self._flowing_since = now
        elif now - self._flowing_since >= FLOWING_S:
            self._end_pause(now)
            if self._phase == "recording":
                self.reporter.event("info", "recording again")

    def _end_pause(self, now: float) -> None:
        if self._paused is not None:
            self.counts.paused_s += now - self._paused_at
            self._paused = None

    @property
    def stopped_by_signal(self) -> bool:
        return self._stop_signal is not None or self._hurried

    @property
    def model_share(self) -> float | None:
        """The share of the workers' time spent in a batched player; None without a batched player."""
        slots = self.supervisor.shared.slots
        played_ns = int(slots["played_ns"].sum())
        return min(int(slots["model_ns"].sum()) / played_ns, 1.0) if played_ns else None

    def status(self) -> Status:
        now, workers, slots = self.world.now, self.supervisor.workers, self.supervisor.shared.slots
        ready = sum(worker.ready for worker in workers)
        state: State = "paused" if self._paused is not None and self._phase == "recording" else self._phase
        why = "; ".join(filter(None, (self.reason, self._paused))) or None
        if state == "recording" and self.ledger.exhausted:
            state, why = "finishing", why or self.ledger.why_exhausted(self.config.max_games)
        elif state == "recording" and not ready:
            state, why = "starting", why or self._starting[-1].partition(": ")[0]
        steps = int(slots["steps"].sum())
        self._rate.append((now, steps))
        self._history.add(now - self.begun, steps)
        while now - self._rate[0][0] > RATE_WINDOW_S:
            self._rate.popleft()
        then, before = self._rate[0]
        steps_per_s = (steps - before) / (now - then) if now > then else 0.0
        bytes_per_s = steps_per_s * row_bytes(self.config) / self.config.sample_rate
        free = disk_full_s = None
        with contextlib.suppress(OSError):
            free = self.recording.free_bytes()
            if bytes_per_s > 0:
                disk_full_s = max(free - self.config.min_free_mb * MEGABYTE, 0) / bytes_per_s
        room = self.recording.why_not(self.config.rows_buffered_max) is None
        return Status(
            state=state,
            player=self.playing.player_name,
            ending=self._phase != "recording",
            why=why,
            elapsed_s=now - self.begun,
            steps_per_s=steps_per_s,
            history=[*self._history.points],
            model_share=self.model_share,
            steps=steps,
            games=int(slots["games"].sum()),
            recorded_rows=self.tally.rows,
            mean_score=self.tally.mean_score,
            score_squares=self.tally.score_squares,
            reach=self.tally.reach,
            session_rows=self.recording.open_rows,
            sessions=len(self.sessions),
            free_bytes=free,
            workers=len(workers),
            workers_ready=ready,
            can_record=ready == len(workers) and room,
            workers_overdue=self._watch.overdue,
            rows_waiting=sum(worker.waiting_rows or 0 for worker in workers),
            sessions_pending=self.recording.sessions_pending,
            disk_full_s=disk_full_s,
            by_highest_tile=self.tally.by_highest_tile,
            counts=msgspec.structs.replace(
                self.counts,
                sessions=len(self.sessions),
                pauses=dict(self.counts.pauses),
                paused_s=self.counts.paused_s + (0.0 if self._paused is None else now - self._paused_at),
                workers_silent=self._watch.ended,
            ),
            games_dropped=self.games_dropped,
            rotation=self._rotations.state,
        )
