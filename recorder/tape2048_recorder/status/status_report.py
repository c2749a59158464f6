"""Reports of a recorder: events, status, summary, and the status file.

The status file is ``<out_dir>/.recorder/<instance>.status.json``, written once a second. Readers can use it
even if the recorder hangs or is dead: the file has the process and the time of writing, from which
:func:`judge` derives the present state. The file is not flushed, because it has no use after a power failure.

Two files alternate. The spare file is written in place, padded to whole blocks, and exchanged atomically with
the other file. So readers see a complete file, and a full disk does not stop the updates: after the first two
writes, no more space is needed.
"""

from __future__ import annotations

import contextlib
import os
import platform
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Protocol

import msgspec
import numpy as np
import numpy.typing as npt

from tape2048.base.text import counted
from tape2048.errors import FieldError, NotRunningError, StorageError
from tape2048.files.durable import rename_exchange, write_all
from tape2048.files.locks import LOCKS_DIRECTORY
from tape2048.files.opening import open_owned, storage_error
from tape2048.session.run_table import REACH_TILES

Level = Literal["info", "warning", "error"]
State = Literal["starting", "recording", "finishing", "paused", "draining", "publishing", "stopped"]


class Tally:
    def __init__(self) -> None:
        self.games = 0
        self.steps = 0
        self.rows = 0
        self.score_sum = 0
        self.score_squares = 0.0
        self.score_max = 0
        self._by_exponent = np.zeros(32, dtype=np.int64)

    def add(self, runs: npt.NDArray[np.void]) -> None:
        if not len(runs):
            return
        self.games += len(runs)
        self.steps += int(runs["steps"].sum())
        self.rows += int(runs["rows"].sum())
        self.score_sum += int(runs["score"].sum(dtype=np.int64))
        self.score_squares += float((runs["score"].astype(np.float64) ** 2).sum())
        self.score_max = max(self.score_max, int(runs["score"].max()))
        exponents = np.log2(np.maximum(runs["highest_tile"], 1)).astype(np.int64)
        self._by_exponent += np.bincount(exponents, minlength=32)

    @property
    def mean_score(self) -> float | None:
        return self.score_sum / self.games if self.games else None

    @property
    def reach(self) -> dict[int, float]:
        """The share of games that reached each of ``REACH_TILES``; 0 before the first game."""
        from_top = self._by_exponent[::-1].cumsum()[::-1]
        return {tile: int(from_top[tile.bit_length() - 1]) / max(self.games, 1) for tile in REACH_TILES}

    @property
    def by_highest_tile(self) -> dict[int, int]:
        return {1 << int(exp): int(self._by_exponent[exp]) for exp in np.flatnonzero(self._by_exponent)}

    @property
    def highest_tile(self) -> int | None:
        return max(self.by_highest_tile, default=None)


class Metric(NamedTuple):
    """A field's Prometheus metric (name without ``tape2048_``, help, label); a counter ends in ``_total``."""

    name: str
    text: str
    label: str = ""


#: Most points of a history.
HISTORY_MAX = 120


class History:
    """The course of a count: a point each second. Without room, every second point is dropped."""

    def __init__(self) -> None:
        self.points: list[tuple[float, int]] = []
        self._every_s = 1.0

    def add(self, elapsed_s: float, count: int) -> None:
        if self.points and elapsed_s < self.points[-1][0] + self._every_s:
            return
        if len(self.points) == HISTORY_MAX:
            del self.points[1::2]
            self._every_s *= 2
        self.points.append((round(elapsed_s, 1), count))


class Counts(msgspec.Struct):
    """Counts since the recorder's start, except counts of games."""

    blocks: Annotated[int, Metric("blocks_total", "Committed blocks.")] = 0
    sessions: Annotated[int, Metric("sessions_total", "Published sessions.")] = 0
    session_bytes: Annotated[int, Metric("session_bytes_total", "Bytes of published sessions.")] = 0
    publish_s: Annotated[float, Metric("publish_seconds_total", "Time spent publishing sessions.")] = 0.0
    publish_last_s: Annotated[
        float | None, Metric("publish_last_seconds", "Time to publish the last session.")
    ] = None
    pauses: Annotated[dict[str, int], Metric("pauses_total", "Pauses of the workers.", "reason")] = {}
    paused_s: Annotated[float, Metric("paused_seconds_total", "Time in which the workers were paused.")] = 0.0
    worker_restarts: Annotated[int, Metric("worker_restarts_total", "Restarts of workers.")] = 0
    workers_silent: Annotated[
        int, Metric("workers_silent_total", "Workers ended because they made no progress.")
    ] = 0
    games_forfeited: Annotated[
        int, Metric("games_forfeited_total", "Games not recorded because of a fault of an engine.")
    ] = 0
    reloads: Annotated[int, Metric("reloads_total", "Reloads of the configuration.")] = 0


class Rotation(msgspec.Struct, frozen=True):
    asked: int = 0  # number of requests
    done: int = 0  # number of finished requests. Requests finish in order
    path: str | None = None  # the session that the last request published; None without new rows
    error: str | None = None  # why the last request failed


class Shipping(msgspec.Struct, frozen=True, kw_only=True):
    """The sessions of a recorder that ships them to a store."""

    to: str
    sessions_waiting: Annotated[int, Metric("ship_sessions_waiting", "Sessions not yet shipped.")]
    waiting_s: Annotated[float, Metric("ship_waiting_seconds", "Age of the oldest waiting session.")]
    sessions_shipped: Annotated[int, Metric("ship_sessions_total", "Shipped sessions.")]
    bytes_shipped: Annotated[int, Metric("ship_bytes_total", "Bytes of shipped sessions.")]
    error: str | None = None  # why the last attempt failed

    @property
    def text(self) -> str:
        """The state in one line, for people."""
        why = "" if self.error is None else f": {self.error}"
        return (
            f"{counted(self.sessions_waiting, 'session')} wait for {self.to}, the oldest for "
            f"{self.waiting_s:.0f} s; {self.sessions_shipped:,} shipped{why}"
        )


class Status(msgspec.Struct, frozen=True):
    """A recorder at one moment. Steps are moves made; rows are steps kept."""

    state: Annotated[State, Metric("state", "1 for the recorder's present state.", "state")]
    workers: Annotated[int, Metric("workers", "Configured workers.")]
    player: str | None = None  # the name of its player; None before a worker is ready
    why: str | None = None
    elapsed_s: float = 0.0
    steps_per_s: float = 0.0
    history: list[tuple[float, int]] = []  # seconds since the start and steps, at most HISTORY_MAX points
    steps: Annotated[int, Metric("steps_total", "Moves made, recorded or not.")] = 0
    games: Annotated[int, Metric("games_total", "Games finished.")] = 0
    recorded_rows: Annotated[int, Metric("recorded_rows_total", "Rows in committed blocks.")] = 0
    mean_score: Annotated[float | None, Metric("mean_score", "Mean score of recorded games.")] = None
    score_squares: float = 0.0  # the sum over the recorded games
    reach: Annotated[
        dict[int, float], Metric("reach_ratio", "Share of recorded games that reached a tile.", "tile")
    ] = {}
    session_rows: Annotated[int, Metric("open_session_rows", "Committed rows of the open session.")] = 0
    sessions: int = 0
    free_bytes: Annotated[
        int | None, Metric("disk_free_bytes", "Bytes free on the file system of out_dir.")
    ] = None
    workers_ready: Annotated[int, Metric("workers_ready", "Workers that play.")] = 0
    ending: bool = False  # no game starts any more, also during a pause
    can_record: bool = False  # every worker is ready, and there is room for a block
    workers_overdue: Annotated[
        int, Metric("workers_overdue", "Workers that are being ended because they make no progress.")
    ] = 0
    rows_waiting: Annotated[int, Metric("rows_waiting", "Rows that wait to be written.")] = 0
    sessions_pending: Annotated[int, Metric("sessions_pending", "Closed sessions not yet published.")] = 0
    disk_full_s: Annotated[
        float | None, Metric("disk_full_seconds", "Time until the disk is full (min_free_mb), at this rate.")
    ] = None
    by_highest_tile: Annotated[
        dict[int, int],
        Metric("recorded_games_total", "Recorded games by their highest tile.", "highest_tile"),
    ] = {}
    counts: Counts = msgspec.field(default_factory=Counts)
    rotation: Rotation = Rotation()
    model_share: Annotated[
        float | None, Metric("model_ratio", "Share of the workers' time spent in a batched player.")
    ] = None
    shipping: Shipping | None = None  # None without a store
    games_dropped: int = 0  # at the end: games handed out and not recorded
    error: str | None = None  # the error that ended the recorder

    @property
    def recorded_games(self) -> int:
        return sum(self.by_highest_tile.values())


class RecordingSummary(msgspec.Struct, frozen=True):
    reason: str
    out_dir: str
    sessions: list[str]  # paths of the published sessions, from where those of a store were shipped
    recovered: list[str]  # paths of the sessions recovered from a killed recorder
    games: int
    steps: int
    rows: int
    bytes: int  # of the published sessions
    elapsed_s: float
    mean_score: float | None
    score_max: int
    highest_tile: int | None
    reach: dict[int, float]
    games_dropped: int
    first_step_s: float | None  # from the start to the first move
    played_s: float = 0.0  # from the first move to the last, within 0.05 s
    model_share: float | None = None
    games_forfeited: int = 0
    to: str | None = None  # the store to which sessions are shipped


class Reporter(Protocol):
    """A receiver of a recorder's events and statuses."""

    def event(self, level: Level, message: str) -> None:
        """Report an event to the operator."""

    def status(self, make_status: Callable[[], Status]) -> None:
        """Show a status, about twice a second; ``make_status`` need not be called otherwise."""


# The status file.

FORMAT_VERSION = 1

#: Age at which a status is stale. A running recorder writes every second, or every few on a very busy disk.
STALE_S = 10.0

#: Attempts to read the file. A read during two exchanges returns parts of two files; the next one succeeds.
_ATTEMPTS = 5
_FILE_BYTES_MAX = 1 << 20
_NAMES_SHOWN = 16
_BLOCK_BYTES = 16_384  # more than a status with a full history
STATUS_SUFFIX = ".status.json"


class Process(msgspec.Struct, frozen=True):
    """A process, identified by its pid and its start time (clock ticks since boot) in a ``space``.

    The space is a pid namespace, such as a container's, in one boot of a machine. It is empty if unknown.
    """

    pid: int
    start_ticks: int
    space: str = ""

    @classmethod
    def of(cls, pid: int) -> Process | None:
        """Return the process that has this pid now, or None. Zombies are ignored."""
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return None
        return None if fields[0] in {"Z", "X"} else cls(pid, int(fields[19]), _space())

    @classmethod
    def mine(cls) -> Process:
        return cls.of(os.getpid()) or cls(os.getpid(), 0)

    @classmethod
    def parse(cls, line: str) -> Process | None:
        pid, ticks, *space = (*line.split(maxsplit=2), "", "")[:3]
        return cls(int(pid), int(ticks or 0), space[0].strip()) if pid.isdecimal() else None

    @property
    def line(self) -> str:
        return f"{self.pid} {self.start_ticks} {self.space}\n"

    @property
    def name(self) -> str:
        return f"pid {self.pid}" + ("" if self.is_local else ", in another container or on another host,")

    @property
    def is_local(self) -> bool:
        """Whether the process is in this process's space, and can be seen and signalled."""
        return self.space in {"", _space()}

    @property
    def is_there(self) -> bool:
        found = Process.of(self.pid) if self.is_local else None
        return found is not None and found.start_ticks == self.start_ticks


def _space() -> str:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return ""


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """The content of a status file; ``written_at`` is Unix time, ``monotonic_s`` the clock at that moment."""

    format_version: int = FORMAT_VERSION
    version: str
    process: Process
    host: str
    instance: str
    started_at: str
    config: dict[str, Any]
    config_sha256: str
    written_at: float
    monotonic_s: float
    status: Status


class Verdict(msgspec.Struct, frozen=True):
    """The meaning of a snapshot; ``stale``: updates stopped. ``age_s`` is negative for a future file time."""

    state: str
    running: bool
    age_s: float
    text: str


def status_path(out_dir: Path, instance: str) -> Path:
    return out_dir / LOCKS_DIRECTORY / f"{instance}{STATUS_SUFFIX}"


class StatusFile:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._draft = path.with_name(f".{path.name}.next")

    def write(self, snapshot: Snapshot) -> None:
        data = msgspec.json.format(msgspec.json.encode(snapshot), indent=1)
        data += b" " * (-(len(data) + 1) % _BLOCK_BYTES) + b"\n"
        fd = open_owned(self._draft, os.O_WRONLY | os.O_CREAT)
        try:
            write_all(fd, data, 0)
            os.ftruncate(fd, len(data))
        finally:
            os.close(fd)
        try:
            rename_exchange(self._draft, self._path)
        except (FileNotFoundError, StorageError):  # the first write, or a file system without exchange
            self._draft.replace(self._path)

    def close(self) -> None:
        """Remove the spare file. The last snapshot stays."""
        with contextlib.suppress(OSError):
            self._draft.unlink(missing_ok=True)


def instances(out_dir: Path) -> list[str]:
    """List the instances with a status file in a directory; StorageError if it cannot be listed."""
    directory = out_dir / LOCKS_DIRECTORY
    try:
        names = os.listdir(directory)  # noqa: PTH208 - a glob reports an unreadable directory as empty
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise StorageError(f"cannot be listed: {error.strerror or error}", path=directory) from error
    return sorted(
        name.removesuffix(STATUS_SUFFIX) for name in names if name.endswith(STATUS_SUFFIX) and name[0] != "."
    )


def read_snapshot(out_dir: Path, instance: str) -> Snapshot:
    return read_owned(out_dir, instance)[0]


def read_owned(out_dir: Path, instance: str) -> tuple[Snapshot, int]:
    """Read the last status that a recorder wrote, and the uid of the file's owner."""
    path = status_path(out_dir, instance)
    attempt = 0
    while True:
        try:
            with open(open_owned(path, os.O_RDONLY), "rb") as file:  # noqa: PTH123 - a descriptor
                data, owner = file.read(_FILE_BYTES_MAX), os.fstat(file.fileno()).st_uid
            return msgspec.json.decode(data, type=Snapshot), owner
        except NotADirectoryError as error:
            raise StorageError(
                "found a file, expected the directory that a recorder writes to",
                path=out_dir,
                hint="Pass the recorder's out_dir. To see a session, use `tape2048 show`.",
            ) from error
        except FileNotFoundError:
            hint = "Pass the directory that `tape2048 record` writes to (out_dir), and its --instance."
            names: list[str] = []
            with contextlib.suppress(StorageError):
                names = instances(out_dir)
            if names:
                more = ", ..." if len(names) > _NAMES_SHOWN else ""
                hint = f"Choose a known --instance: {', '.join(names[:_NAMES_SHOWN])}{more}."
            found = f"no recorder has written a status here as instance {instance!r}"
            raise NotRunningError(found, path=out_dir, hint=hint) from None
        except OSError as error:
            raise storage_error(error, path, "reading the status") from error
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            attempt += 1
            if attempt == _ATTEMPTS:
                raise FieldError(
                    f"not the status of a recorder of this version: {error}",
                    path=path,
                    hint="Remove the file. A running recorder writes it again within a second.",
                ) from error
        time.sleep(0.05)


def snapshots(out_dir: Path, instance: str | None = None) -> Sequence[Snapshot]:
    """Read the last status of one instance in a directory, or of all; errors as in :func:`read_snapshot`."""
    names = instances(out_dir) if instance is None else [instance]
    return [read_snapshot(out_dir, name) for name in names or ["default"]]


def _ago(age_s: float) -> str:
    for size, unit in ((86400, "days"), (3600, "h"), (60, "min")):
        if age_s >= 2 * size:
            return f"{age_s / size:,.0f} {unit} ago"
    return f"{age_s:,.0f} s ago"


def judge(snapshot: Snapshot) -> Verdict:
    """Derive the present state; in another container or host, only the time of writing is known."""
    process, status = snapshot.process, snapshot.status
    is_there, is_local = process.is_there, process.is_local
    # While the process runs, it has the same monotonic clock as this process, which cannot be set.
    age_s = time.monotonic() - snapshot.monotonic_s if is_there else time.time() - snapshot.written_at
    if is_there and age_s < 0:
        text = f"stale (written {-age_s:,.0f} s in the future; pid {process.pid} is not its recorder)"
        return Verdict("stale", running=False, age_s=age_s, text=text)
    age_s = max(age_s, 0.0) if is_local else abs(age_s)  # a fast clock must not hide the recorder's end
    why = f" ({status.why})" if status.why else ""
    if status.state == "stopped":
        return Verdict("stopped", running=False, age_s=age_s, text=f"stopped {_ago(age_s)}{why}")
    if age_s < STALE_S and (is_there or not is_local):
        state = "draining" if status.ending else status.state
        where = "" if is_local else f" on {snapshot.host}; it cannot be signalled from here"
        return Verdict(state, running=not status.ending, age_s=age_s, text=f"{state}{why}{where}")
    fate = "is running but does not write it" if is_there else "has ended"
    if not is_local and snapshot.host != platform.node():
        fate = f"on {snapshot.host} cannot be seen from here, and its clock may differ"
    text = f"stale (last written {_ago(age_s)}; pid {process.pid} {fate})"
    return Verdict("stale", running=False, age_s=age_s, text=text)
