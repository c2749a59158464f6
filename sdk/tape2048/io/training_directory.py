"""The directory of a training: one process at a time, a checkpoint, and metrics that resuming cuts back.

::

    <dir>/
        checkpoint.safetensors   all that resuming needs; replaced whole
        metrics.jsonl            a JSON object a line, with a counter of the steps made before it
"""

from __future__ import annotations

import contextlib
import math
import os
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import msgspec

from tape2048.errors import AlreadyRunningError, OutDirError
from tape2048.io.durable import publishing_file, stands, storage_error, sweep_drafts, write_all
from tape2048.io.staging import lock_directory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from tape2048.errors import TapeError

CHECKPOINT = "checkpoint.safetensors"
METRICS = "metrics.jsonl"

P_contra = TypeVar("P_contra", contravariant=True)


class TrainingView(Protocol[P_contra]):
    """Shows a training to the user."""

    def progress(self, progress: P_contra) -> None:
        """Show how it stands; called after every step or twice a second, so draw when there is time."""

    def event(self, message: str) -> None:
        """Report something that happened once."""


class TrainingDirectory:
    """The files of a training; see the module.

    Args:
        path: the directory; :meth:`locked` makes it.
        counter: the key that counts steps in a line of metrics.

    Attributes:
        path: as given.
        checkpoint: path of the checkpoint.
        metrics: path of the metrics.
    """

    def __init__(self, path: Path, counter: str) -> None:
        self.path = path
        self.checkpoint = path / CHECKPOINT
        self.metrics = path / METRICS
        self._counter = counter
        self._fails = False  # whether it was said that lines cannot be written

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Make and lock the directory, and remove drafts of killed processes.

        A directory that was made here and is still empty at the end is removed.

        Raises:
            AlreadyRunningError: another process has the lock.
            OutDirError: it can neither be made nor opened.
        """
        made = not self.path.exists()
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            fd = lock_directory(self.path)
        except OSError as error:
            raise OutDirError(f"cannot be made or opened ({error.strerror})", path=self.path) from error
        if fd is None:
            raise AlreadyRunningError(
                "another training runs in this directory", path=self.path, hint="name another with --out"
            )
        try:
            sweep_drafts(self.path)  # drafts of checkpoints may have gigabytes
            yield
        finally:
            os.close(fd)
            if made:
                with contextlib.suppress(OSError):
                    self.path.rmdir()

    def has_checkpoint(self) -> bool:
        """Whether there is a checkpoint; StorageError where the operating system would not say."""
        try:
            return stands(self.checkpoint)
        except OSError as error:
            raise storage_error(error, self.checkpoint, "looking for a checkpoint") from error

    def cut_metrics(self, steps: int) -> float:
        """Drop the lines of steps after a checkpoint, which will be made again, and whatever is no line.

        Args:
            steps: counted at the checkpoint; 0 without one.

        Returns:
            The counter of the last line left; 0 where there is none.

        Raises:
            StorageError: the file cannot be read or replaced.
        """
        try:
            lines = self.metrics.read_bytes().splitlines(keepends=True)
        except FileNotFoundError:
            return 0
        except OSError as error:
            raise storage_error(error, self.metrics, "reading metrics") from error
        kept = [line for line in lines if line.endswith(b"\n") and self._count(line) <= steps]
        if kept != lines:
            with publishing_file(self.metrics, replace=True) as file:
                file.writelines(kept)
        return self._count(kept[-1]) if kept else 0

    def _count(self, line: bytes) -> float:
        """The counter of a line; infinite in a line that has none."""
        try:
            count = msgspec.json.decode(line.decode(), type=dict[str, Any]).get(self._counter)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return math.inf
        return count if isinstance(count, int) else math.inf

    def note(self, line: Mapping[str, Any], say: Callable[[str], None]) -> bool:
        """Append a line of metrics, whole or not at all; no log is worth hours of learning.

        Args:
            line: numbers by name, the counter among them.
            say: told why lines cannot be written, once until one can.

        Returns:
            Whether the line was written.
        """
        try:
            _append(self.metrics, msgspec.json.encode(line) + b"\n")
        except OSError as error:
            if not self._fails:
                refused = storage_error(error, self.metrics, "writing metrics")
                say(f"{refused}: learning goes on, and the next lines are tried again")
            self._fails = True
        else:
            self._fails = False
        return not self._fails


def _append(path: Path, line: bytes) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        size = os.fstat(fd).st_size
        try:
            write_all(fd, line)
        except OSError:
            os.ftruncate(fd, size)
            raise
    finally:
        os.close(fd)


def check_same(
    found: Mapping[str, Any], expected: Mapping[str, Any], path: Path, error: type[TapeError], hint: str
) -> None:
    """Refuse the checkpoint of another training.

    Args:
        found: settings of the checkpoint, by name.
        expected: settings of this training.
        path: of the checkpoint.
        error: the class to raise where they differ; the message names all that do.
        hint: of that error.
    """
    differing = [
        f"{name} = {found.get(name)!r}, not {expected.get(name)!r}"
        for name in {**expected, **found}
        if found.get(name) != expected.get(name)
    ]
    if differing:
        raise error(f"the training that stands here has {'; '.join(differing)}", path=path, hint=hint)
