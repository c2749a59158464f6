"""Commands on a terminal of their own: stopped by a signal when they have said some words, or given keys."""

import os
import pty
import select
import signal
import subprocess
import termios
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

#: How long anything may take before a test gives up.
PATIENCE_S = 120.0


def stopped_on_terminal(
    command: Sequence[str],
    cwd: Path,
    number: signal.Signals,
    *,
    after: Sequence[bytes],
    env: Mapping[str, str] = os.environ,
) -> str:
    """All that it wrote. It was sent the signal when it had written ``after``, and ended with 0."""
    primary, secondary = pty.openpty()
    child = subprocess.Popen(
        command,
        cwd=cwd,
        env={**env, "TERM": "xterm-256color", "COLUMNS": "100", "LINES": "40"},
        stdin=secondary,
        stdout=secondary,
        stderr=secondary,
    )
    os.close(secondary)
    seen = b""
    signalled = False
    deadline = time.monotonic() + PATIENCE_S
    try:
        while time.monotonic() < deadline:
            if not select.select([primary], [], [], 1)[0]:
                continue
            try:
                seen += os.read(primary, 1 << 16)
            except OSError:  # the other side is closed: it has ended
                break
            if not signalled and all(words in seen for words in after):
                child.send_signal(number)
                signalled = True
        assert child.wait(PATIENCE_S) == 0
    finally:
        child.kill()
        child.wait()
        os.close(primary)
    return seen.decode()


class OnTerminal:
    """A command on a terminal of its own, to which keys are sent. A context.

    Attributes:
        shown: all that it has written.
        child: its process, in a process group of its own.
    """

    def __init__(
        self,
        command: Sequence[str],
        cwd: Path,
        *,
        env: Mapping[str, str] = os.environ,
        size: tuple[int, int] = (100, 30),
    ) -> None:
        self._primary, self._secondary = pty.openpty()
        termios.tcsetwinsize(self._primary, size[::-1])
        self._before = self.settings
        self.shown = ""
        lean = {name: value for name, value in env.items() if name not in {"COLUMNS", "LINES"}}
        self.child = subprocess.Popen(
            command,
            cwd=cwd,
            env={**lean, "TERM": "xterm-256color"},
            stdin=self._secondary,
            stdout=self._secondary,
            stderr=self._secondary,
            process_group=0,  # one that its parent is not in, so that it can be stopped
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.child.kill()
        self.child.wait()
        os.close(self._primary)
        os.close(self._secondary)

    @property
    def settings(self) -> list[object]:
        return termios.tcgetattr(self._secondary)

    def send(self, keys: str) -> None:
        """Type these keys."""
        os.write(self._primary, keys.encode())

    def read(self) -> bool:
        """Read some of what it writes within a moment; tell whether there was any."""
        if not select.select([self._primary], [], [], 0.05)[0]:
            return False
        self.shown += os.read(self._primary, 1 << 16).decode("utf-8", "replace")
        return True

    def read_all(self) -> None:
        """Read until no more comes."""
        while self.read():
            pass

    def wait_for(self, words: str, since: int = 0) -> int:
        """Wait until it has written these words, after so many characters; return how many it has written."""
        deadline = time.monotonic() + PATIENCE_S
        while words not in self.shown[since:]:
            assert time.monotonic() < deadline, self.shown[-3000:]
            assert self.child.poll() is None, self.shown[-3000:]
            self.read()
        return len(self.shown)

    def code(self) -> int:
        """Wait for its end; return its exit code."""
        deadline = time.monotonic() + PATIENCE_S
        while self.child.poll() is None and time.monotonic() < deadline:
            self.read()
        self.read_all()
        return self.child.wait(timeout=1)

    @property
    def is_restored(self) -> bool:
        """Whether the terminal is as it was: its settings, its first screen, its cursor."""
        left, entered = self.shown.rfind("\x1b[?1049l"), self.shown.rfind("\x1b[?1049h")
        cursor = self.shown.rfind("\x1b[?25h") > self.shown.rfind("\x1b[?25l")
        return self.settings == self._before and left > entered and cursor
