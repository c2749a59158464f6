"""The thread that publishes closed sessions, so that their fsyncs hold up nobody.

It is the only one that publishes, so sessions appear in the order in which they were closed.
"""

from __future__ import annotations

import contextlib
import os
import queue
import threading
import time
from collections import deque
from datetime import UTC, datetime
from typing import TYPE_CHECKING, NamedTuple

from tape2048.errors import DiskFullError, TapeError
from tape2048_recorder.recording.publish import Published, publish

if TYPE_CHECKING:
    from pathlib import Path

    from tape2048_recorder.recording.partial import PartialSession

__all__ = ["Outcome", "Publisher", "utc_text"]

#: Between two tries while the disk is full.
RETRY_S = 1.0


def utc_text(moment: datetime | None = None) -> str:
    """A moment (now) in UTC, RFC 3339, in whole seconds."""
    return (moment or datetime.now(UTC)).strftime("%Y-%m-%dT%H:%M:%SZ")


class Outcome(NamedTuple):
    """What became of a closed session; ``final`` is False for a try that will be repeated.

    ``seconds`` is what the try took.
    """

    session: PartialSession
    published: Published | None
    error: TapeError | None
    final: bool
    seconds: float = 0.0


class Publisher:
    """Publishes in a thread of its own; outcomes are collected by the daemon's loop.

    Args:
        out_dir: where sessions are published.
    """

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
        """Publish this session, of which nothing is being written any more."""
        # Some network file systems say only now what became of a write. The journal is for a recorder that is
        # killed: this one has the blocks in memory.
        with contextlib.suppress(OSError):
            session.journal.close()
        self.pending += 1
        self._queue.put(session)

    def outcomes(self) -> list[Outcome]:
        """What has happened since the last call."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self.wake_fd)
        done = []
        while self._outcomes:
            outcome = self._outcomes.popleft()
            self.pending -= outcome.final
            done.append(outcome)
        return done

    def give_up(self) -> None:
        """Stop repeating tries; what is not published stays for the next start."""
        self._give_up.set()

    def close(self) -> None:
        """Wait for the thread; called when nothing is pending."""
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
            try:
                published = publish(
                    self._out_dir,
                    session.path,
                    session.facts,
                    session.blocks,
                    ended_at=utc_text(),
                    flush=session.flush,
                )
            except DiskFullError as error:
                final = self._give_up.is_set()
                self._post(Outcome(session, None, error, final))
                if final:
                    return
                self._give_up.wait(RETRY_S)
            except TapeError as error:
                self._post(Outcome(session, None, error, final=True))
                return
            except Exception as error:  # noqa: BLE001 - the thread's edge: the daemon must hear of it
                wrapped = TapeError(f"publishing failed: {error!r}", path=session.path)
                self._post(Outcome(session, None, wrapped, final=True))
                return
            else:
                self._post(Outcome(session, published, None, final=True, seconds=time.monotonic() - begin))
                return

    def _post(self, outcome: Outcome) -> None:
        self._outcomes.append(outcome)
        os.eventfd_write(self.wake_fd, 1)
