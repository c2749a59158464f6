"""A recorder's run, from its configuration to its summary."""

from __future__ import annotations

import contextlib
import logging
import os
import platform
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from operator import attrgetter
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import msgspec

from tape2048._version import __version__
from tape2048.base.lazy import load_named
from tape2048.base.text import counted, is_utf8
from tape2048.errors import DiskFullError, RecorderError, StartError, StorageError, masked
from tape2048.files.opening import storage_error
from tape2048.players import player_text
from tape2048.session.directory import kind_of_directory
from tape2048_recorder.daemon.daemon import Daemon, Reload
from tape2048_recorder.daemon.instance import GameProgress, Instance, Ledger
from tape2048_recorder.daemon.supervisor import Supervisor
from tape2048_recorder.daemon.weights import Playing
from tape2048_recorder.game.kept_starts import StartBoards, keep_starts
from tape2048_recorder.record_options import RecorderConfig, config_sha256, effective
from tape2048_recorder.recording.partial import utc_text
from tape2048_recorder.recording.publish import recover_all
from tape2048_recorder.recording.recording import DISK_FULL, MEGABYTE, NO_ROOM, SPOOL_FULL, Recording
from tape2048_recorder.recording.world import REAL, World
from tape2048_recorder.status.notify import Manager
from tape2048_recorder.status.prometheus import Metrics
from tape2048_recorder.status.signals import Signals
from tape2048_recorder.status.status_report import (
    Level,
    Process,
    RecordingSummary,
    Reporter,
    Snapshot,
    Status,
    StatusFile,
)

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from tape2048_recorder.shipping import Shipper

#: Interval of writing the status file while the state does not change.
STATUS_FILE_S = 1.0


class _Warnings(logging.Handler):
    """A logging handler that reports the SDK's warnings as events, equal warnings only once."""

    def __init__(self, report: Callable[[Level, str], None]) -> None:
        super().__init__(logging.WARNING)
        self._report = report
        self._reported: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        if (text := record.getMessage()) not in self._reported:
            self._reported.add(text)
            self._report("info" if record.name == "tape2048.compiler" else "warning", text)


class Service:
    """The daemon's reporter. A failed update does not stop the recording."""

    def __init__(
        self,
        view: Reporter,
        config: RecorderConfig,
        instance: Instance,
        env: Mapping[str, str],
    ) -> None:
        self.manager = Manager(env)
        self._view = view
        self.config = config
        self._started_at = utc_text(time.time())
        process = Process.of(os.getpid())
        assert process is not None
        self._process = process
        self._metrics = Metrics(config, lambda text: self.event("warning", text))
        self._file = StatusFile(instance.status_path)
        self._lost = instance.lost
        self._warnings = _Warnings(self.event)
        self._file_fails = False
        self._next = 0.0
        self._last = Status(state="starting", workers=config.worker_count)
        self.shipper: Shipper | None = None

    def __enter__(self) -> Self:
        logging.getLogger("tape2048").addHandler(self._warnings)
        self._tell(self._last)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        logging.getLogger("tape2048").removeHandler(self._warnings)
        failure = str(error) or kind.__name__ if error is not None and kind is not None else None
        last = msgspec.structs.replace(
            self._last,
            state="stopped",
            ending=True,
            why=failure or self._last.why,
            error=failure,
            steps_per_s=0.0,
        )
        self._tell(last)
        if self._lost() is None:
            self._file.close()
        self._metrics.close()
        self.manager.close()

    def event(self, level: Level, message: str) -> None:
        with contextlib.suppress(OSError):  # a closed or full log; the next event tries again
            self._view.event(level, message)

    def status(self, make_status: Callable[[], Status]) -> None:
        status = make_status()
        if self.shipper is not None:
            status = msgspec.structs.replace(status, shipping=self.shipper.status())
        with contextlib.suppress(OSError):
            self._view.status(lambda: status)
        self.manager.status(status, self.config.rotate_steps)
        before, self._last = self._last, status
        now = time.monotonic()
        key = attrgetter("state", "ending", "rotation")
        if key(before) != key(status) or now >= self._next:
            self._next = now + STATUS_FILE_S
            self._tell(status)

    def ship_the_rest(self, signals: Signals, *, by_signal: bool) -> None:
        """Ship what is left; after a signal for some seconds only. A further signal ends it."""
        last = self._last
        shipping = msgspec.structs.replace(last, state="publishing", why="shipping")

        def is_asked_to_end() -> bool:
            self.status(lambda: shipping)
            return bool(signals.take())

        assert self.shipper is not None
        self.shipper.finish(is_asked_to_end, by_signal=by_signal)
        self.status(lambda: last)

    def _tell(self, status: Status) -> None:
        snapshot = Snapshot(
            version=__version__,
            process=self._process,
            host=platform.node(),
            instance=self.config.instance,
            started_at=self._started_at,
            config=effective(self.config),
            config_sha256=config_sha256(self.config),
            written_at=time.time(),
            monotonic_s=time.monotonic(),
            status=status,
        )
        self._metrics.show(snapshot)
        if self._lost() is not None:
            return
        try:
            self._file.write(snapshot)
        except (OSError, StorageError) as error:
            if not self._file_fails:
                self.event("warning", f"the status file cannot be written: {error}")
            self._file_fails = True
        else:
            self._file_fails = False


def run(
    config: RecorderConfig,
    reporter: Reporter,
    *,
    load: Callable[[], RecorderConfig] | None = None,
    changed: Callable[[RecorderConfig], None] = lambda _: None,
    signals: Signals | None = None,
    boards: npt.NDArray[np.void] | None = None,
    settings_sha256: str | None = None,
) -> RecordingSummary:
    """Record until a limit is reached or a signal is received. Main thread only.

    Args:
        config: the settings.
        reporter: the receiver of events and statuses.
        load: a function that reads the settings again at SIGHUP; None: SIGHUP drains.
        changed: a function to call with the configuration after a reload.
        signals: the open signal handler, if the caller has one.
        boards: the boards to start from, ``START_DTYPE[n]``, drawn by each game's seed; None: start with two
            tiles.
        settings_sha256: SHA-256 of the file of settings, which sessions record with ``to``.

    Returns:
        The summary of the recorded games and published sessions, and the reason for the end.
    """
    if sys.platform != "linux":
        hint = "Record on Linux or in a Linux container. The SDK can read sessions on this system."
        raise StartError(f"found the system {sys.platform}, expected Linux", hint=hint)
    begun = time.monotonic()
    with contextlib.ExitStack() as stack:
        if signals is None:
            signals = stack.enter_context(contextlib.closing(Signals()))
        if load is not None:
            signals.reload_on_hangup()
        player_args = config.all_player_args  # before anything is written
        out_dir = _prepare(Path(config.out_dir), config.min_free_mb)
        instance = stack.enter_context(contextlib.closing(Instance(out_dir, config.instance)))
        config = _of_store(config, out_dir)
        progress = GameProgress(instance, config)
        service = stack.enter_context(Service(reporter, config, instance, os.environ))
        reload = None
        if load is not None:

            def apply(now: RecorderConfig) -> None:
                service.config = now
                changed(now)

            def load_again() -> RecorderConfig:
                return _of_store(load(), out_dir)

            reload = Reload(load_again, service, around=service.manager.reloading, changed=apply)
        played = msgspec.structs.replace(config, seed=progress.state.seed, player_args=player_args)
        starts = None if boards is None else keep_starts(instance.out_dir, boards)
        if config.to is None:
            settings_sha256 = None
        else:
            service.shipper = load_named("tape2048_recorder.shipping:Shipper")(played, out_dir, service.event)
        how: dict[str, Any] = {"begun": begun, "signals": signals, "reload": reload}
        how["settings_sha256"] = settings_sha256
        return record(config, played, service, progress, starts=starts, **how)


def _of_store(config: RecorderConfig, out_dir: Path) -> RecorderConfig:
    """Return the configuration with the lease that the store gave, and with a limit for waiting sessions."""
    if config.to is None:
        return config
    lease, limit_mb = config.lease, config.spool_max_mb
    if lease is None:
        lease = load_named("tape2048_recorder.shipping:take_lease")(config.to, out_dir, config.instance)
    if limit_mb is None:
        limit_mb = load_named("tape2048_recorder.shipping:spool_mb")(config)
    return msgspec.structs.replace(config, lease=lease, spool_max_mb=limit_mb)


def record(
    config: RecorderConfig,
    played: RecorderConfig,
    service: Service,
    progress: GameProgress,
    *,
    begun: float,
    signals: Signals,
    reload: Reload | None,
    starts: StartBoards | None = None,
    settings_sha256: str | None = None,
    world: World = REAL,
) -> RecordingSummary:
    """Record as :func:`run`, with the lock held; ``played`` has the seed and all parameters in effect."""
    out_dir = progress.instance.out_dir
    playing, recording, recovered = _start(
        config, played, service, progress, starts=starts, settings_sha256=settings_sha256, world=world
    )
    if (repeats := progress.repeats()) is not None:
        service.event("warning", repeats)
    daemon = Daemon(
        config=config,
        reporter=service,
        supervisor=playing.supervisor,
        recording=recording,
        ledger=Ledger(progress.state, games_max=config.max_games, workers=config.worker_count),
        progress=progress,
        playing=playing,
        signals=signals,
        begun=begun,
        reload=reload,
        world=world,
    )
    lease = f", lease {config.lease}" if config.lease else ""
    begins = "" if starts is None else f" from {counted(starts.count, 'board')} of {config.start_from}"
    service.event(
        "info",
        f"recording {player_text(effective(config))} with {counted(config.worker_count, 'worker')}"
        f"{begins} into {out_dir} (seed {played.seed}{lease}, instance {config.instance})",
    )
    try:
        daemon.run()
    finally:
        playing.close()
        if progress.instance.lost() is None:  # otherwise the daemon has raised that error
            try:
                progress.settle(daemon.ledger.state())
            except StorageError as error:  # not fatal: all recorded games are published
                service.event("warning", f"{error}. The next start with this seed skips some games")
    if config.to is not None:
        service.ship_the_rest(signals, by_signal=daemon.stopped_by_signal)
    return _summary(daemon, out_dir, recovered)


def _start(
    config: RecorderConfig,
    played: RecorderConfig,
    service: Service,
    progress: GameProgress,
    *,
    starts: StartBoards | None,
    settings_sha256: str | None,
    world: World,
) -> tuple[Playing, Recording, list[Path]]:
    """Start the workers, and recover sessions while they compile; return also the recovered sessions."""
    instance = progress.instance
    with contextlib.ExitStack() as stack:
        with _resource_errors("the memory shared with workers could not be allocated", "open files"):
            file = None if starts is None else starts.path(instance.out_dir)
            supervisor = Supervisor(played, world, file)
        stack.callback(supervisor.close)
        playing = stack.enter_context(
            contextlib.closing(
                Playing(
                    played, instance.out_dir, supervisor, service, starts, settings_sha256=settings_sha256
                )
            )
        )
        with _resource_errors("no process or thread could be started", "tasks"):
            for worker in supervisor.workers:
                supervisor.start(worker)
            service.manager.starting("recovering sessions of the last recorder, if it was killed")
            recovered = recover_all(instance.out_dir, played.instance, service, world)
            progress.cover(progress.state.next_id)
            recording = Recording(instance.out_dir, config, playing.facts, world)
        stack.pop_all()  # from now on, the daemon ends the workers
    return playing, recording, recovered


def _summary(daemon: Daemon, out_dir: Path, recovered: list[Path]) -> RecordingSummary:
    """Summarise a recording that has ended; raise an error if it lost finished games or recorded none."""
    if daemon.finished_games_lost:
        why = daemon.lost_because
        is_full = any(text in why for text in (DISK_FULL, NO_ROOM, SPOOL_FULL))
        raise (DiskFullError if is_full else StorageError)(
            f"{counted(daemon.finished_games_lost, 'finished game')} could not be written before the drain "
            f"timed out, and are lost ({why})",
            path=out_dir,
            hint=f"{'Free some space' if is_full else 'Remove the cause'} and start again. With --seed, the "
            "next start plays them again. All written games are published.",
        )
    tally = daemon.tally
    if not tally.games and not daemon.stopped_by_signal:
        raise _nothing_recorded(daemon, out_dir)
    return RecordingSummary(
        reason=daemon.reason,
        out_dir=str(out_dir),
        to=daemon.config.to and masked(daemon.config.to),
        sessions=[str(out_dir / name) for name in daemon.sessions],
        recovered=[str(path) for path in recovered],
        games=tally.games,
        steps=tally.steps,
        rows=tally.rows,
        bytes=daemon.counts.session_bytes,
        elapsed_s=daemon.world.now - daemon.begun,
        mean_score=tally.mean_score,
        score_max=tally.score_max,
        highest_tile=tally.highest_tile,
        reach=tally.reach,
        games_dropped=daemon.games_dropped,
        games_forfeited=daemon.counts.games_forfeited,
        first_step_s=daemon.first_step_s,
        played_s=daemon.played_s,
        model_share=daemon.model_share,
    )


def _nothing_recorded(daemon: Daemon, out_dir: Path) -> StartError:
    dropped = f"; {counted(daemon.games_dropped, 'game')} had not ended" if daemon.games_dropped else ""
    hint = "Raise this limit."
    if daemon.games_dropped:
        hint = f"Raise this limit, or drain_timeout_s ({daemon.config.drain_timeout_s:g} s) to finish games."
    elif daemon.ledger.used_up:
        hint = "Choose another --lease."
    elif daemon.reason.startswith("max_disk_mb"):
        hint = "Raise this limit, or remove sessions with `tape2048 prune`."
    return StartError(f"nothing was recorded: {daemon.reason}{dropped}", path=out_dir, hint=hint)


@contextlib.contextmanager
def _resource_errors(message: str, resource: str) -> Iterator[None]:
    try:
        yield
    except (OSError, RuntimeError) as error:  # RuntimeError: a thread could not be started
        raise RecorderError(
            f"{message}: {getattr(error, 'strerror', None) or error}",
            hint=f"Check the limits of memory and {resource} with `tape2048 doctor`.",
        ) from error


def _prepare(out_dir: Path, min_free_mb: int) -> Path:
    resolved = Path(os.path.realpath(out_dir))
    for directory in (resolved, *resolved.parents):
        kind = kind_of_directory(directory)
        if kind is not None:
            found = kind if directory == resolved else f"{kind}, which contains {resolved}"
            raise StorageError(
                f"found {found}; expected a directory for sessions that is not part of a recording",
                path=directory,
                hint=f"Choose another --out, such as {directory.parent} or a new directory in it.",
            )
    try:
        out_dir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        if not isinstance(error, FileExistsError | NotADirectoryError):
            raise storage_error(error, out_dir, "making the output directory") from error
        found = "a file"
        for part in (out_dir, *out_dir.parents):
            if part.is_symlink() and not part.exists():
                above = "" if part == out_dir else f" at {part}"
                found = f"a broken symbolic link{above} ({part.readlink()})"
                break
        hint = "Choose another --out."
        raise StorageError(f"found {found}, expected a directory", path=out_dir, hint=hint) from error
    out_dir = out_dir.resolve()
    if not is_utf8(str(out_dir)):
        raise StorageError(
            "found a path that is not valid UTF-8, expected UTF-8, because sessions record it as text",
            path=out_dir,
            hint="Rename the directory, or choose another --out.",
        )
    free = shutil.disk_usage(out_dir).free
    if free < min_free_mb * MEGABYTE:
        raise DiskFullError(
            f"found {free // MEGABYTE} MB free, expected at least min_free_mb = {min_free_mb}",
            path=out_dir,
            hint="Free some space, or lower min_free_mb.",
        )
    return out_dir
