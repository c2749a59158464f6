"""A training in a directory of its own: what is written when, and how it ends and goes on.

::

    <dir>/
        checkpoint.safetensors   all that going on needs; replaced whole
        metrics.jsonl            a line every few seconds
        network.safetensors      the network so far, float32; replaced with each checkpoint
        network.ntuple           the same as it would ship, int16 and compressed, when training ends
        curve.svg                mean score and reach over moves, at the end (extra ``plot``)

A training that is stopped before its first moves leaves none of them: there is nothing to go on from.
"""

from __future__ import annotations

import contextlib
import math
import os
import time
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from tape2048._durable import publishing_file, stands, storage_error, sweep_drafts, try_lock, write_all
from tape2048.errors import AlreadyRunningError, DiskFullError, OutDirError
from tape2048_recorder.ntuple.files import save_network
from tape2048_recorder.ntuple.trainer import Progress, Trainer

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tape2048_recorder.ntuple.training_config import TrainingConfig

__all__ = ["CHECKPOINT", "METRICS", "NETWORK", "NETWORK_F32", "TrainingView", "run_training"]

CHECKPOINT = "checkpoint.safetensors"
METRICS = "metrics.jsonl"
NETWORK = "network.ntuple"
NETWORK_F32 = "network.safetensors"
LOCK = ".lock"

METRICS_INTERVAL_S = 10.0

#: Between two tries of a checkpoint that found no room: each may write gigabytes before it fails.
ROOM_RETRY_S = 60.0


class TrainingView(Protocol):
    """Where a training's words go."""

    def progress(self, progress: Progress) -> None:
        """How it stands; twice a second or so."""

    def event(self, message: str) -> None:
        """Something happened once that a person should know."""


def run_training(
    config: TrainingConfig,
    directory: Path,
    view: TrainingView,
    stop: threading.Event,
    hurry: Callable[[], bool] = lambda: False,
) -> Trainer:
    """Train in ``directory`` until the configured number of moves is reached or ``stop`` is set.

    Goes on from the directory's checkpoint if it has one. Stopped or done, it has written one with all that
    it learned, and the network; where it learned nothing (``moves`` of the trainer is 0), neither. A disk
    that is full while it learns is said once, and costs lines of metrics: the next checkpoint is written when
    there is room. One that is full at the end ends it with an error. Metrics that cannot be written for
    another reason are said once, too, and cost their lines alone.

    ``hurry`` is asked while the network is compressed at the end: True leaves that one unwritten.

    Raises:
        KeyboardInterrupt: ``hurry`` said so; the checkpoint has all that was learned.
        AlreadyRunningError: another training runs there.
        ConfigError: the checkpoint is another network's, or there is too little memory.
        FormatError: the checkpoint is damaged.
        StorageError: the operating system said no; the last checkpoint is whole.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutDirError(f"cannot be made ({error.strerror})", path=directory) from error
    checkpoint = directory / CHECKPOINT
    with _locked(directory):
        sweep_drafts(directory)  # of a checkpoint that SIGKILL met: gigabytes
        try:
            goes_on = stands(checkpoint)
        except OSError as error:
            raise storage_error(error, checkpoint, "looking for a checkpoint") from error
        if goes_on:
            trainer = Trainer.resume(checkpoint, config)
            view.event(f"going on from {trainer.moves:,} moves ({checkpoint})")
        else:
            trainer = Trainer(config)
        full = _FullDisk(view)
        metrics = _Metrics(trainer, directory / METRICS, view, full)
        while not trainer.done and not stop.is_set():
            wait_s = min(config.checkpoint_s, ROOM_RETRY_S) if full.said else config.checkpoint_s
            _learn_until(trainer, time.monotonic() + wait_s, stop, metrics)
            if not trainer.moves:
                continue  # stopped, or a checkpoint was due, while kernels were compiled
            metrics.note()
            try:
                trainer.save_checkpoint(checkpoint)
                save_network(trainer.network(), directory / NETWORK_F32, compress=False)
            except DiskFullError as error:
                if trainer.done or stop.is_set():
                    raise
                full.met(error)
            else:
                full.said = False
                view.event(f"checkpoint at {trainer.moves:,} moves")
        if not trainer.moves:
            view.event("stopped before the first moves: nothing is learned, and no network is written")
            return trainer
        view.event("writing the network as it ships (xz takes its time)")
        network, step = trainer.network(), config.quantise_step
        save_network(network.quantised(step) if step else network, directory / NETWORK, interrupted=hurry)
    return trainer


def _learn_until(trainer: Trainer, due: float, stop: threading.Event, metrics: _Metrics) -> None:
    import threading

    pause = threading.Event()

    def tick() -> None:
        metrics.tick()
        if stop.is_set() or time.monotonic() >= due:
            pause.set()

    trainer.learn(trainer.config.moves, stop=pause, tick=tick)


class _FullDisk:
    """Says that there is no room, once until there is again; ``said``: whether it has."""

    def __init__(self, view: TrainingView) -> None:
        self._view = view
        self.said = False

    def met(self, error: DiskFullError) -> None:
        if not self.said:
            self.said = True
            self._view.event(f"{error}: learning goes on, and a checkpoint is written when there is room")


class _Metrics:
    """Shows progress, and keeps it."""

    def __init__(self, trainer: Trainer, path: Path, view: TrainingView, full: _FullDisk) -> None:
        self._full = full
        self._trainer = trainer
        self._path = path
        self._view = view
        self._next = time.monotonic() + METRICS_INTERVAL_S
        self._fails = False  # whether it was said that lines cannot be written
        self._noted = self._forget_after(trainer.moves)  # the moves of the last line

    def tick(self) -> None:
        """Show how it stands, and note it where the last note is some seconds old."""
        self._view.progress(self._trainer.progress())
        if time.monotonic() >= self._next:
            self.note()

    def note(self) -> None:
        """Write a line, unless the last one says as much."""
        self._next = time.monotonic() + METRICS_INTERVAL_S
        if self._trainer.moves == self._noted:
            return
        line: dict[str, Any] = self._trainer.progress()._asdict()
        try:
            _append(self._path, msgspec.json.encode(line) + b"\n")
        except OSError as error:
            refused = storage_error(error, self._path, "writing metrics")
            if isinstance(refused, DiskFullError):
                self._full.met(refused)
            elif not self._fails:  # no log is worth hours of learning; the next checkpoint says more
                self._fails = True
                self._view.event(f"{refused}: learning goes on, and the next lines are tried again")
            return
        self._fails = False
        self._noted = line["moves"]

    def _forget_after(self, moves: int) -> float:
        """Drop the lines past the checkpoint that is gone on from, and one that a kill cut off.

        Returns:
            The moves of the last line that is left; 0 where there is none.
        """
        try:
            lines = self._path.read_bytes().splitlines(keepends=True)
            kept = [line for line in lines if line.endswith(b"\n") and _moves_of(line) <= moves]
            if kept != lines:
                with publishing_file(self._path, replace=True) as file:
                    file.writelines(kept)
            return _moves_of(kept[-1]) if kept else 0
        except FileNotFoundError:
            return 0
        except OSError as error:
            raise storage_error(error, self._path, "reading metrics") from error


def _append(path: Path, line: bytes) -> None:
    """Add a line to a file, whole or not at all."""
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


def _moves_of(line: bytes) -> float:
    """The moves in a line of metrics; infinite in a line that is none."""
    try:
        return msgspec.json.decode(line.decode(), type=_Noted).moves
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return math.inf


class _Noted(msgspec.Struct):
    moves: int


@contextlib.contextmanager
def _locked(directory: Path) -> Iterator[None]:
    try:
        fd = os.open(directory / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise storage_error(error, directory, "taking the lock") from error
    try:
        if not try_lock(fd):
            raise AlreadyRunningError(
                "another training runs in this directory", path=directory, hint="name another with --out"
            )
        yield
    finally:
        os.close(fd)
