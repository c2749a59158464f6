"""Commands on a terminal, as a person runs them."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import signal
    from collections.abc import Mapping, Sequence
    from pathlib import Path


def signalled_on_a_terminal(
    command: Sequence[str],
    number: signal.Signals,
    after: Sequence[bytes],
    *,
    cwd: Path,
    env: Mapping[str, str],
) -> str:
    """What a command shows that gets a signal once it has shown all of ``after``, and ends with code 0."""
    primary, secondary = pty.openpty()
    process = subprocess.Popen(
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
    deadline = time.monotonic() + 60
    try:
        while time.monotonic() < deadline:
            if not select.select([primary], [], [], 1)[0]:
                continue
            try:
                seen += os.read(primary, 1 << 16)
            except OSError:  # the other side is closed: it has ended
                break
            if not signalled and all(text in seen for text in after):
                process.send_signal(number)
                signalled = True
        assert process.wait(timeout=30) == 0
    finally:
        process.kill()
        process.wait()
        os.close(primary)
    return seen.decode()
