"""A hook of ``recorder_process.py``: sessions are published a second after they are closed.

So that a test that has heard why they are closed can take back what it did before they are written.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from tape2048_recorder.recording.publisher import Publisher

if TYPE_CHECKING:
    from tape2048_recorder.recording.partial import PartialSession

submit = Publisher.submit


def slow_submit(self: Publisher, session: PartialSession) -> None:
    time.sleep(1.0)
    submit(self, session)


Publisher.submit = slow_submit  # type: ignore[method-assign]
