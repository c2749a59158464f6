"""Trainings: their loop, and a directory with a lock, a checkpoint, and metrics.

:class:`Training` is the loop of every training here: of players, of n-tuple critics and of PyTorch critics. A
:class:`Learner` learns, and yields where its state can be saved. The loop shows its progress, writes its
checkpoints and metrics, resumes it, stops it, and waits for space on a full disk. A resumed training drops
the metrics after its checkpoint, and writes them again.

::

    <dir>/
        checkpoint.safetensors   the state for resuming, replaced atomically
        metrics.jsonl            one JSON object a line, with the number of steps so far
"""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from tape2048.errors import BusyError, DiskFullError, FormatError, StateError, StorageError, reader_hint
from tape2048.files.durable import lock_directory, publishing_file, sweep_drafts, write_all
from tape2048.files.opening import open_fd, path_exists, storage_error, storage_errors
from tape2048.files.reading import map_path
from tape2048.files.safetensors import decode, encode

S = TypeVar("S")
L = TypeVar("L", bound="Learner")

CHECKPOINT = "checkpoint.safetensors"
METRICS = "metrics.jsonl"

#: Interval between attempts at a checkpoint on a full disk: each may write gigabytes before it fails.
FULL_RETRY_S = 60.0

_HINT = "resume with the settings and data it was made with, or start over with another --out"
_DAMAGED = "start over with another --out, or restore the file from a copy"


class TrainingProgress(NamedTuple):
    unit: str  # what is counted: steps, games or moves
    done: int  # units learned from
    of: int  # units in all
    per_s: float  # units a second; 0 while it is unknown
    elapsed_s: float
    figures: dict[str, Any]  # values by name, as in a line of metrics


class TrainingView(Protocol):
    def progress(self, progress: TrainingProgress) -> None:
        """Show the progress; called after every step or twice a second."""

    def event(self, message: str) -> None:
        """Show a one-time event."""


class SilentView:
    def progress(self, progress: object) -> None:
        """Ignore the progress."""

    def event(self, message: str) -> None:
        """Ignore the event."""


class TrainingDirectory:
    """The files of a training in ``path``; ``counter`` is the key that counts steps in a line of metrics."""

    def __init__(self, path: Path, counter: str) -> None:
        self.path = path.absolute()
        self.checkpoint = self.path / CHECKPOINT
        self.metrics = self.path / METRICS
        self.counter = counter
        self._fails = False  # whether a failure to write has been reported

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Create and lock the directory, without dead drafts; a new directory that stays empty is removed."""
        made = not self.path.exists()
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            fd = lock_directory(self.path)
        except OSError as error:
            raise StorageError(f"cannot be created or opened ({error.strerror})", path=self.path) from error
        if fd is None:
            raise BusyError(
                "another training runs in this directory", path=self.path, hint="choose another with --out"
            )
        try:
            sweep_drafts(self.path)  # drafts of checkpoints can take gigabytes
            yield
        finally:
            os.close(fd)
            if made:
                with contextlib.suppress(OSError):
                    self.path.rmdir()

    def read_checkpoint(self) -> memoryview | None:
        """Map the checkpoint; None if there is none. StorageError if the directory cannot be read."""
        with storage_errors(self.checkpoint, "looking for a checkpoint"):
            found = path_exists(self.checkpoint)
        return map_path(self.checkpoint).data if found else None

    def cut_metrics(self, steps: int) -> None:
        """Drop malformed lines, and lines of more than ``steps`` steps, which the training will repeat."""
        with storage_errors(self.metrics, "reading metrics"):
            lines = self.metrics.read_bytes().splitlines(keepends=True) if path_exists(self.metrics) else []
        kept = [line for line in lines if line.endswith(b"\n") and self._count(line) <= steps]
        if kept != lines:
            with publishing_file(self.metrics, replace=True) as file:
                file.writelines(kept)

    def _count(self, line: bytes) -> float:
        try:
            count = msgspec.json.decode(line.decode(), type=dict[str, Any]).get(self.counter)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return math.inf
        return count if isinstance(count, int) else math.inf

    def append_metrics(self, line: Mapping[str, Any], report: Callable[[str], None]) -> bool:
        """Append a line atomically; return False on failure. ``report`` gets the first error of a series."""
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
                report(f"{refused}. Training continues without these metrics, and tries again for each line")
            self._fails = True
        else:
            self._fails = False
        return not self._fails


class Learner(Protocol):
    """Trainable state that can be saved from time to time."""

    @property
    def done(self) -> bool:
        """Whether the training is complete."""

    def progress(self) -> TrainingProgress:
        """Return the progress. Its figures contain the counter of the metrics."""

    def train(self, training: Training, /) -> Iterator[None]:
        """Learn until it is done or stopped, and yield where :meth:`save` must be called.

        It must call :meth:`Training.pause` often, and yield soon after this returns true.
        """

    def save(self, path: Path, /) -> None:
        """Write a checkpoint, and replace an earlier one."""


class Training:
    """The loop of a training.

    ``stopped`` is called several times a second; true ends the training after a checkpoint. Without
    ``checkpoint_s`` (seconds), the learner alone decides when to write a checkpoint.
    """

    def __init__(
        self,
        files: TrainingDirectory,
        view: TrainingView,
        stopped: Callable[[], bool],
        checkpoint_s: float = math.inf,
    ) -> None:
        self.files = files
        self.event = view.event
        self.stopped = stopped
        self._show = view.progress
        self._checkpoint_s = checkpoint_s
        self._due = math.inf

    def pause(self, progress: TrainingProgress) -> bool:
        """Show the progress; return whether the learner should yield as soon as it can be saved."""
        self._show(progress)
        return self.stopped() or time.monotonic() >= self._due

    def note(self, line: Mapping[str, Any]) -> bool:
        """Append a line of metrics; return whether it could be written."""
        return self.files.append_metrics(line, self.event)

    def run(self, make: Callable[[memoryview | None], L]) -> L:
        """Train the learner that ``make`` returns for a checkpoint's content, None at the start.

        A full disk is reported once, and the next checkpoint is written when there is space. At the end of
        the training, it is an error.
        """
        content = self.files.read_checkpoint()
        learner = make(content)
        start = learner.progress()
        if content is not None:
            self.event(f"continuing from {start.done:,} {start.unit} ({self.files.checkpoint})")
        self.files.cut_metrics(start.figures[self.files.counter])
        self._due = time.monotonic() + self._checkpoint_s
        full = False  # whether the last checkpoint found no space
        for _ in learner.train(self):
            try:
                learner.save(self.files.checkpoint)
            except DiskFullError as error:
                if learner.done or self.stopped():
                    raise
                if not full:
                    self.event(f"{error}. Training continues, and writes a checkpoint when there is space")
                full = True
            else:
                full = False
                if math.isfinite(self._checkpoint_s):
                    self.event(f"checkpoint at {learner.progress().done:,} {start.unit}")
            wait_s = min(self._checkpoint_s, FULL_RETRY_S) if full else self._checkpoint_s
            self._due = time.monotonic() + wait_s
        return learner


def write_checkpoint(
    path: Path, form: str, config: object, arrays: Mapping[str, npt.NDArray[Any]], **texts: str
) -> None:
    texts = {"format": form, "config": msgspec.json.encode(config).decode(), **texts}
    with publishing_file(path, replace=True) as file:
        file.writelines(encode(arrays, texts))


class ArrayCheckpoint(NamedTuple):
    arrays: dict[str, npt.NDArray[Any]]
    config: dict[str, Any]  # the settings that it was made with
    texts: dict[str, str]

    @classmethod
    def of(cls, content: memoryview, path: Path, form: str) -> ArrayCheckpoint:
        """Decode a checkpoint; StateError if it is damaged or of another format."""
        try:
            arrays, texts = decode(content, str(path))
        except FormatError as error:
            raise StateError(error.message, path=path, offset=error.offset, hint=_DAMAGED) from error
        if (found := texts.get("format", "")) != form:
            hint = "start over with another --out"
            if found > form:  # of a later version: formats end with a number
                hint = f"{reader_hint(texts.get('release'))}, or {hint}"
            raise StateError(f"found the format {found!r:.60}, expected {form!r}", path=path, hint=hint)
        config = decode_state(texts.get("config", ""), path, dict[str, Any])
        return cls(arrays, config, texts)


def decode_state(text: str | bytes, path: Path, kind: type[S]) -> S:
    try:
        return msgspec.json.decode(text, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise StateError(f"not a checkpoint of a training: {error}", path=path, hint=_DAMAGED) from error


def check_array(
    arrays: Mapping[str, npt.NDArray[Any]], name: str, shape: tuple[int, ...], dtype: Any, path: Path
) -> npt.NDArray[Any]:
    array = arrays.get(name)
    if array is None or array.shape != shape or array.dtype != dtype:
        found = "nothing" if array is None else f"{array.dtype} {array.shape}"
        raise StateError(
            f"{name}: found {found}, expected {np.dtype(dtype)} {shape}", path=path, hint=_DAMAGED
        )
    return array


def check_same(found: Mapping[str, Any], expected: Mapping[str, Any], path: Path, hint: str = _HINT) -> None:
    differing = [
        f"{name} = {found.get(name)!r}, not {expected.get(name)!r}"
        for name in {**expected, **found}
        if found.get(name) != expected.get(name)
    ]
    if differing:
        raise StateError(f"the training in this directory has {'; '.join(differing)}", path=path, hint=hint)


def read_metrics(path: Path, last_bytes: int | None = None) -> list[dict[str, Any]]:
    """Return the lines that are JSON objects, of the last bytes if given; malformed lines are skipped."""
    with path.open("rb") as file:
        if last_bytes is not None:
            file.seek(max(0, file.seek(0, os.SEEK_END) - last_bytes))
        lines = file.read().splitlines()
    found = []
    for line in lines:
        with contextlib.suppress(msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            found.append(msgspec.json.decode(line, type=dict[str, Any]))
    return found
