"""The status file of a recorder: ``<out_dir>/.recorder/<instance>.status.json``, written once a second.

Readers do not need the recorder, which can hang or be dead: the file names the process and the time of
writing, and :func:`judge` derives the present state. The file is not flushed: after a power failure it has no
use.

Two files alternate. The spare file is written in place, padded to whole blocks, and exchanged atomically. So
readers see a complete file, and a full disk does not stop the updates: after the first two writes no byte is
allocated.
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from tape2048.errors import FieldError, NotRunningError, StorageError
from tape2048.io.durable import open_owned, rename_exchange, storage_error, write_all
from tape2048_recorder.status.report import Status

if TYPE_CHECKING:
    from collections.abc import Sequence

FORMAT_VERSION = 1

#: A running recorder writes each second; a very busy disk may take several.
STALE_S = 10.0

#: A read during two exchanges returns parts of two files; the next attempt succeeds.
_ATTEMPTS = 5
_FILE_BYTES_MAX = 1 << 20
_NAMES_SHOWN = 16
_BLOCK_BYTES = 4096
_SUFFIX = ".status.json"
_DIRECTORY = ".recorder"


class Process(msgspec.Struct, frozen=True):
    """A process by its pid and start time (clock ticks since boot), which together are unique."""

    pid: int
    start_ticks: int

    @classmethod
    def of(cls, pid: int) -> Process | None:
        """Return the process that has this pid now; None without one. A zombie does not count."""
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return None
        return None if fields[0] in {"Z", "X"} else cls(pid, int(fields[19]))

    @property
    def is_there(self) -> bool:
        """Whether it is alive."""
        return Process.of(self.pid) == self


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """The file's content: a status with its recorder and time.

    ``written_at`` is Unix time, ``monotonic_s`` the machine's monotonic clock at the same moment.
    """

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
    """The present meaning of a snapshot.

    Attributes:
        state: the recorder's state, or ``stale`` (no longer written, without a normal end).
        running: whether a recorder is at work.
        age_s: seconds since the file was written; negative where it names a process that cannot have
            written it, at a time to come.
        text: a description of it all.
    """

    state: str
    running: bool
    age_s: float
    text: str


def status_path(out_dir: Path, instance: str) -> Path:
    """Return the path of an instance's status file."""
    return out_dir / _DIRECTORY / f"{instance}{_SUFFIX}"


class StatusFile:
    """Writes a status file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._draft = path.with_name(f".{path.name}.next")

    def write(self, snapshot: Snapshot) -> None:
        """Replace the previous snapshot."""
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
        except (FileNotFoundError, StorageError):  # the first one, or a file system that cannot exchange
            self._draft.replace(self._path)

    def close(self) -> None:
        """Remove the spare file; the last snapshot stays."""
        with contextlib.suppress(OSError):
            self._draft.unlink(missing_ok=True)


def instances(out_dir: Path) -> list[str]:
    """List the instances that have a status in a directory; StorageError if it cannot be listed."""
    directory = out_dir / _DIRECTORY
    try:
        names = os.listdir(directory)  # noqa: PTH208 - a glob hides a refused listing
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise StorageError(f"cannot be listed: {error.strerror or error}", path=directory) from error
    return sorted(name.removesuffix(_SUFFIX) for name in names if name.endswith(_SUFFIX) and name[0] != ".")


def read_snapshot(out_dir: Path, instance: str) -> Snapshot:
    """Read the last status that a recorder wrote."""
    return read_owned(out_dir, instance)[0]


def read_owned(out_dir: Path, instance: str) -> tuple[Snapshot, int]:
    """Read as :func:`read_snapshot`; return the uid of the file's owner too."""
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
                hint="Pass the recorder's out_dir; `tape2048 show` shows a session's files.",
            ) from error
        except FileNotFoundError:
            raise NotRunningError(
                f"no recorder has written its status here as instance {instance!r}",
                path=out_dir,
                hint=_other_instances(out_dir)
                or "Pass the directory that `tape2048 record` writes to (out_dir), and its --instance.",
            ) from None
        except OSError as error:
            raise storage_error(error, path, "reading the status") from error
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            attempt += 1
            if attempt == _ATTEMPTS:
                raise FieldError(
                    f"not the status of a recorder of this version: {error}",
                    path=path,
                    hint="A running recorder replaces it within a second; otherwise remove the file.",
                ) from error
        time.sleep(0.05)


def _other_instances(out_dir: Path) -> str | None:
    """Return a hint with the instances that have a status here; None without any."""
    names: list[str] = []
    with contextlib.suppress(StorageError):
        names = instances(out_dir)
    more = ", ..." if len(names) > _NAMES_SHOWN else ""
    return f"known instances: {', '.join(names[:_NAMES_SHOWN])}{more} (--instance)" if names else None


def snapshots(out_dir: Path, instance: str | None = None) -> Sequence[Snapshot]:
    """Read the last status of one instance in a directory, or of all; raise as :func:`read_snapshot`."""
    names = instances(out_dir) if instance is None else [instance]
    return [read_snapshot(out_dir, name) for name in names or ["default"]]


def judge(snapshot: Snapshot) -> Verdict:
    """Derive the present state from a snapshot."""
    process, status = snapshot.process, snapshot.status
    is_there = process.is_there
    # While the process lives, its monotonic clock is ours too, and cannot be set.
    age_s = time.monotonic() - snapshot.monotonic_s
    if is_there and age_s < 0:
        text = f"stale (written {-age_s:,.0f} s in the future; pid {process.pid} is not its recorder)"
        return Verdict("stale", running=False, age_s=age_s, text=text)
    age_s = age_s if is_there else max(time.time() - snapshot.written_at, 0.0)
    why = f" ({status.why})" if status.why else ""
    if status.state == "stopped":
        return Verdict("stopped", running=False, age_s=age_s, text=f"stopped {age_s:,.0f} s ago{why}")
    if is_there and age_s < STALE_S:
        state = "draining" if status.ending else status.state
        return Verdict(state, running=not status.ending, age_s=age_s, text=f"{state}{why}")
    fate = "is there and does not answer" if is_there else "is gone"
    text = f"stale (last written {age_s:,.0f} s ago; pid {process.pid} {fate})"
    return Verdict("stale", running=False, age_s=age_s, text=text)
