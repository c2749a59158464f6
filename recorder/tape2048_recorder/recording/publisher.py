"""Publishes closed sessions beside the daemon's loop, so that fsync does not block it.

One follows another, so sessions appear in the order in which they were closed.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from tape2048.errors import DiskFullError, TapeError, TooManyFilesError
from tape2048_recorder.recording.partial import utc_text
from tape2048_recorder.recording.publish import Published, publish_steps
from tape2048_recorder.recording.world import REAL, World

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tape2048_recorder.recording.partial import PartialSession

#: Delay between two tries while the disk is full, or no descriptor is free.
RETRY_S = 1.0


class Outcome(NamedTuple):
    """The outcome of a try to publish, which took ``seconds``; without ``final``, another try follows."""

    session: PartialSession
    published: Published | None
    error: TapeError | None
    final: bool
    seconds: float = 0.0


class Publisher:
    """Publishes into ``out_dir`` in the background; the daemon's loop collects the outcomes."""

    def __init__(self, out_dir: Path, world: World = REAL, load: Callable[[], object] = lambda: None) -> None:
        self._out_dir = out_dir
        self._load = load
        self._world = world
        self._queue: deque[PartialSession] = deque()
        self._outcomes: deque[Outcome] = deque()
        self._gives_up = self._ends = False
        self.pending = 0
        self.wake_fd: int = world.os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._background = world.background("publisher", self._steps())

    def submit(self, session: PartialSession) -> None:
        """Publish this session, to which nothing is being written any more."""
        # Some network file systems report a failed write only on close. The journal is for recovery: this
        # recorder has the blocks in memory.
        with contextlib.suppress(OSError):
            session.journal.close()
        self.pending += 1
        self._queue.append(session)
        self._background.wake()

    def outcomes(self) -> list[Outcome]:
        """Return the outcomes since the last call."""
        with contextlib.suppress(BlockingIOError):
            self._world.os.eventfd_read(self.wake_fd)
        done = []
        while self._outcomes:
            outcome = self._outcomes.popleft()
            self.pending -= outcome.final
            done.append(outcome)
        return done

    def give_up(self) -> None:
        """Stop retrying; unpublished sessions stay for the next start."""
        self._gives_up = True
        self._background.wake()

    def close(self) -> None:
        """End the thread, once it has tried each session."""
        self._ends = True
        self.give_up()
        self._background.join()
        self._world.os.close(self.wake_fd)

    def _steps(self) -> Iterator[float]:
        with contextlib.suppress(Exception):  # what needs it fails again, and reports it
            self._load()
        while True:
            if self._queue:
                session = self._queue.popleft()
                yield from self._publish(session)
                session.close()
            elif self._ends:
                return
            else:
                yield math.inf

    def _publish(self, session: PartialSession) -> Iterator[float]:
        while True:
            begin = self._world.now
            published: Published | None = None
            error: TapeError | None = None
            final = True
            try:
                published = yield from publish_steps(
                    self._out_dir,
                    session.path,
                    session.facts,
                    session.blocks,
                    ended_at=utc_text(self._world.time.time()),
                    flush=session.flush,
                    world=self._world,
                )
            except (DiskFullError, TooManyFilesError) as full:
                final, error = self._gives_up, full
            except TapeError as refused:
                error = refused
            except Exception as other:  # noqa: BLE001 - the thread's edge: the daemon must be told
                error = TapeError(f"publishing failed: {other!r}", path=session.path)
            seconds = 0.0 if published is None else self._world.now - begin
            self._outcomes.append(Outcome(session, published, error, final, seconds))
            self._world.os.eventfd_write(self.wake_fd, 1)
            if final:
                return
            until = self._world.now + RETRY_S
            while not self._gives_up and (wait_s := until - self._world.now) > 0:
                yield wait_s
