"""The directory of a training: a lock, a checkpoint, and metrics that a resumed training truncates.

::

    <dir>/
        checkpoint.safetensors   the state for resuming, replaced atomically
        metrics.jsonl            a JSON object a line, with a counter of the steps before it
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import msgspec

from tape2048.errors import BusyError, StorageError, TapeError
from tape2048.io.durable import (
    lock_directory,
    open_fd,
    path_exists,
    publishing_file,
    storage_error,
    storage_errors,
    sweep_drafts,
    write_all,
)

CHECKPOINT = "checkpoint.safetensors"
METRICS = "metrics.jsonl"


class TrainingProgress(NamedTuple):
    """How far a training of any kind is."""

    unit: str  # what is counted: steps, games or moves
    done: int  # units learned from
    of: int  # units in all
    per_s: float  # units a second; 0 where that is not known yet
    elapsed_s: float
    figures: dict[str, Any]  # a mapping of names to values, as in lines of metrics and documents


class TrainingView(Protocol):
    """Shows a training to the user."""

    def progress(self, progress: TrainingProgress) -> None:
        """Show the progress; called after every step or twice a second."""

    def event(self, message: str) -> None:
        """Show a one-time event."""


class SilentView:
    """A view that shows nothing."""

    def progress(self, progress: object) -> None:
        """Ignore the progress."""

    def event(self, message: str) -> None:
        """Ignore the event."""


class TrainingDirectory:
    """The files of a training in ``path``; ``counter`` is the key that counts steps in a line of metrics."""

    def __init__(self, path: Path, counter: str) -> None:
        self.path = path
        self.checkpoint = path / CHECKPOINT
        self.metrics = path / METRICS
        self._counter = counter
        self._fails = False  # whether a failure to write has been reported

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Create and lock the directory for the block, and remove drafts of killed processes.

        A directory that was created here and is empty at the end is removed.
        """
        made = not self.path.exists()
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            fd = lock_directory(self.path)
        except OSError as error:
            raise StorageError(f"cannot be created or opened ({error.strerror})", path=self.path) from error
        if fd is None:
            raise BusyError(
                "another training runs in this directory", path=self.path, hint="name another with --out"
            )
        try:
            sweep_drafts(self.path)  # drafts of checkpoints can take gigabytes
            yield
        finally:
            os.close(fd)
            if made:
                with contextlib.suppress(OSError):
                    self.path.rmdir()

    def has_checkpoint(self) -> bool:
        """Check for a checkpoint; StorageError if the operating system cannot tell."""
        with storage_errors(self.checkpoint, "looking for a checkpoint"):
            return path_exists(self.checkpoint)

    def cut_metrics(self, steps: int) -> float:
        """Drop malformed lines, and the lines of steps after a checkpoint, which will be repeated."""
        with storage_errors(self.metrics, "reading metrics"):
            if not path_exists(self.metrics):
                return 0
            lines = self.metrics.read_bytes().splitlines(keepends=True)
        kept = [line for line in lines if line.endswith(b"\n") and self._count(line) <= steps]
        if kept != lines:
            with publishing_file(self.metrics, replace=True) as file:
                file.writelines(kept)
        return self._count(kept[-1]) if kept else 0

    def _count(self, line: bytes) -> float:
        try:
            count = msgspec.json.decode(line.decode(), type=dict[str, Any]).get(self._counter)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return math.inf
        return count if isinstance(count, int) else math.inf

    def append_metrics(self, line: Mapping[str, Any], report: Callable[[str], None]) -> bool:
        """Append a line of metrics atomically; return whether it could be written.

        A failure does not end the training: ``report`` gets the first error of a series.
        """
        try:
            with open_fd(self.metrics, os.O_WRONLY | os.O_APPEND | os.O_CREAT) as fd:
                size = os.fstat(fd).st_size
                try:
                    write_all(fd, msgspec.json.encode(line) + b"\n")
                except OSError:
                    os.ftruncate(fd, size)
                    raise
        except OSError as error:
            if not self._fails:
                refused = storage_error(error, self.metrics, "writing metrics")
                report(f"{refused}: learning continues, and the next lines are tried again")
            self._fails = True
        else:
            self._fails = False
        return not self._fails


def check_same(
    found: Mapping[str, Any], expected: Mapping[str, Any], path: Path, error: type[TapeError], hint: str
) -> None:
    """Refuse the checkpoint of another training."""
    differing = [
        f"{name} = {found.get(name)!r}, not {expected.get(name)!r}"
        for name in {**expected, **found}
        if found.get(name) != expected.get(name)
    ]
    if differing:
        raise error(f"the training in this directory has {'; '.join(differing)}", path=path, hint=hint)


def read_metrics(path: Path, last_bytes: int | None = None) -> list[dict[str, Any]]:
    """Return the lines of metrics that are JSON objects, of the file's end only with ``last_bytes``.

    An incomplete line is skipped.
    """
    with path.open("rb") as file:
        if last_bytes is not None:
            file.seek(max(0, file.seek(0, os.SEEK_END) - last_bytes))
        lines = file.read().splitlines()
    found = []
    for line in lines:
        with contextlib.suppress(msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            found.append(msgspec.json.decode(line, type=dict[str, Any]))
    return found
