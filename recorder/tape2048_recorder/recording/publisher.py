"""The thread that publishes closed sessions, so that fsync does not block the daemon's loop.

It is the only one that publishes, so sessions appear in the order in which they were closed.
"""

from __future__ import annotations

import contextlib
import os
import queue
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from tape2048.errors import DiskFullError, TapeError
from tape2048_recorder.recording.partial import utc_text
from tape2048_recorder.recording.publish import Published, publish

if TYPE_CHECKING:
    from pathlib import Path

    from tape2048_recorder.recording.partial import PartialSession

#: Delay between two tries while the disk is full.
RETRY_S = 1.0


class Outcome(NamedTuple):
    """The outcome of a try to publish, which took ``seconds``; without ``final``, another try follows."""

    session: PartialSession
    published: Published | None
    error: TapeError | None
    final: bool
    seconds: float = 0.0


class Publisher:
    """Publishes into ``out_dir`` in a thread of its own; the daemon's loop collects the outcomes."""

    def __init__(self, out_dir: Path) -> None:
        self._out_dir = out_dir
        self._queue: queue.SimpleQueue[PartialSession | None] = queue.SimpleQueue()
        self._outcomes: deque[Outcome] = deque()
        self._give_up = threading.Event()
        self.pending = 0
        self.wake_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._thread = threading.Thread(target=self._run, name="publisher", daemon=True)
        self._thread.start()

    def submit(self, session: PartialSession) -> None:
        """Publish this session, to which nothing is being written any more."""
        # Some network file systems report a failed write only on close. The journal is for recovery: this
        # recorder has the blocks in memory.
        with contextlib.suppress(OSError):
            session.journal.close()
        self.pending += 1
        self._queue.put(session)

    def outcomes(self) -> list[Outcome]:
        """Return the outcomes since the last call."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self.wake_fd)
        done = []
        while self._outcomes:
            outcome = self._outcomes.popleft()
            self.pending -= outcome.final
            done.append(outcome)
        return done

    def give_up(self) -> None:
        """Stop retrying; unpublished sessions stay for the next start."""
        self._give_up.set()

    def close(self) -> None:
        """End the thread; nothing may be pending."""
        self._give_up.set()
        self._queue.put(None)
        self._thread.join()
        os.close(self.wake_fd)

    def _run(self) -> None:
        while (session := self._queue.get()) is not None:
            self._publish(session)
            session.close()

    def _publish(self, session: PartialSession) -> None:
        while True:
            begin = time.monotonic()
            published: Published | None = None
            error: TapeError | None = None
            final = True
            try:
                published = publish(
                    self._out_dir,
                    session.path,
                    session.facts,
                    session.blocks,
                    ended_at=utc_text(),
                    flush=session.flush,
                )
            except DiskFullError as full:
                final, error = self._give_up.is_set(), full
            except TapeError as refused:
                error = refused
            except Exception as other:  # noqa: BLE001 - the thread's edge: the daemon must be told
                error = TapeError(f"publishing failed: {other!r}", path=session.path)
            seconds = 0.0 if published is None else time.monotonic() - begin
            self._outcomes.append(Outcome(session, published, error, final, seconds))
            os.eventfd_write(self.wake_fd, 1)
            if final:
                return
            self._give_up.wait(RETRY_S)
