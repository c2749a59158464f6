"""Commands on a terminal of their own, stopped by a signal when they have said some words."""

import os
import pty
import select
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

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
