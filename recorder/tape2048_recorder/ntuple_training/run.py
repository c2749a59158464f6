"""Training in a directory: files, stop and resumption.

::

    <dir>/
        checkpoint.safetensors   state for resumption; replaced atomically
        metrics.jsonl            a line every few seconds
        network.safetensors      the network so far, float32; replaced with each checkpoint
        network.ntuple           the same for shipping, int16 and compressed, when training ends
        curve.svg                mean score and reach over moves, at the end (extra ``plot``)

A training that stops before its first moves leaves none of them.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from tape2048.errors import DiskFullError
from tape2048.io.training_directory import TrainingDirectory
from tape2048.ntuple.network import save_network
from tape2048_recorder.ntuple_training.trainer import Trainer

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tape2048.io.training_directory import TrainingView
    from tape2048_recorder.ntuple_training.config import TrainingConfig
    from tape2048_recorder.ntuple_training.trainer import Progress

NETWORK = "network.ntuple"
NETWORK_F32 = "network.safetensors"

METRICS_INTERVAL_S = 10.0

#: Interval between attempts at a checkpoint on a full disk: each may write gigabytes before it fails.
ROOM_RETRY_S = 60.0


def run_training(
    config: TrainingConfig,
    directory: Path,
    view: TrainingView[Progress],
    stop: threading.Event,
    hurry: Callable[[], bool] = lambda: False,
) -> Trainer:
    """Train in ``directory`` until the configured number of moves is reached or ``stop`` is set.

    It resumes from the directory's checkpoint if there is one, and ends with a checkpoint and a network
    unless it learned nothing (``moves`` of the trainer is 0). It reports a disk that is full during training
    once, and writes the next checkpoint when there is room; a disk that is full at the end is an error. It
    reports metrics that cannot be written once, and drops their lines.

    ``hurry`` is called while the network is compressed at the end; True cancels that.

    Raises:
        KeyboardInterrupt: ``hurry`` returned True; the checkpoint is complete.
        BusyError: another training runs there.
        ConfigError: the checkpoint is another network's, or there is too little memory.
        FormatError: the checkpoint is damaged.
        StorageError: a write failed; the last checkpoint is intact.
    """
    files = TrainingDirectory(directory, "moves")
    with files.locked():
        if files.has_checkpoint():
            trainer = Trainer.resume(files.checkpoint, config)
            view.event(f"going on from {trainer.moves:,} moves ({files.checkpoint})")
        else:
            trainer = Trainer(config)
        metrics = _Metrics(trainer, files, view)
        full = False  # whether the last checkpoint found no room
        while not trainer.done and not stop.is_set():
            wait_s = min(config.checkpoint_s, ROOM_RETRY_S) if full else config.checkpoint_s
            _learn_until(trainer, time.monotonic() + wait_s, stop, metrics)
            if not trainer.moves:
                continue  # stopped, or a checkpoint fell due, during compilation
            metrics.note()
            try:
                trainer.save_checkpoint(files.checkpoint)
                save_network(trainer.network(), directory / NETWORK_F32, compress=False)
            except DiskFullError as error:
                if trainer.done or stop.is_set():
                    raise
                if not full:
                    view.event(f"{error}: learning goes on, and a checkpoint is written when there is room")
                full = True
            else:
                full = False
                view.event(f"checkpoint at {trainer.moves:,} moves")
        if not trainer.moves:
            view.event("stopped before the first moves: nothing is learned, and no network is written")
            return trainer
        view.event("writing the network as it ships (xz takes its time)")
        network, step = trainer.network(), config.quantise_step
        save_network(network.quantised(step) if step else network, directory / NETWORK, interrupted=hurry)
    return trainer


def _learn_until(trainer: Trainer, due: float, stop: threading.Event, metrics: _Metrics) -> None:
    pause = threading.Event()

    def tick() -> None:
        metrics.tick()
        if stop.is_set() or time.monotonic() >= due:
            pause.set()

    trainer.learn(trainer.config.moves, stop=pause, tick=tick)


class _Metrics:
    """Shows progress, and writes it to the metrics file."""

    def __init__(self, trainer: Trainer, files: TrainingDirectory, view: TrainingView[Progress]) -> None:
        self._trainer = trainer
        self._files = files
        self._view = view
        self._next = time.monotonic() + METRICS_INTERVAL_S
        self._noted = files.cut_metrics(trainer.moves)  # the moves of the last line

    def tick(self) -> None:
        """Show progress, and write a line if one is due."""
        self._view.progress(self._trainer.progress())
        if time.monotonic() >= self._next:
            self.note()

    def note(self) -> None:
        """Write a line, unless nothing has changed since the last."""
        self._next = time.monotonic() + METRICS_INTERVAL_S
        if self._trainer.moves == self._noted:
            return
        progress = self._trainer.progress()
        if self._files.append_metrics(progress._asdict(), self._view.event):
            self._noted = progress.moves
