"""Trains in a directory until it is killed or stopped; prints a line at each event.

Arguments: the directory, and the configuration's settings as JSON.
"""

from __future__ import annotations

import json
import signal
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from tape2048.errors import TapeError
from tape2048_recorder.ntuple_training.config import TrainingConfig
from tape2048_recorder.ntuple_training.trainer import run_training

if TYPE_CHECKING:
    from tape2048.training import TrainingProgress


class Lines:
    """A view that writes a line for each event, and one for the first moves."""

    def __init__(self) -> None:
        self._begun = False

    def progress(self, progress: TrainingProgress) -> None:
        if progress.figures["moves"] and not self._begun:
            self._begun = True
            self.event("learning has begun")

    def event(self, message: str) -> None:
        print(message, flush=True)  # noqa: T201 - this is how it speaks


def main() -> int:
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    try:
        trainer = run_training(TrainingConfig(**json.loads(sys.argv[2])), Path(sys.argv[1]), Lines(), stop)
    except TapeError as error:
        print(f"{type(error).__name__}: {error}", flush=True)  # noqa: T201
        return error.exit_code
    print(f"ended at {trainer.moves}", flush=True)  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main())
