"""Sessions: recorded directories, opened, checked, and locked against removal.

- `Session`: a finished session: rows, runs, labels.
- `sessions`: the paths of the sessions in a directory.
- `DEFAULT_THRESHOLDS`: the tiles of the default labels.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tape2048.base.lazy import lazy

if TYPE_CHECKING:
    from tape2048.session.labels import DEFAULT_THRESHOLDS as DEFAULT_THRESHOLDS
    from tape2048.session.session import Session as Session
    from tape2048.session.session import sessions as sessions
else:
    __getattr__, __dir__, __all__ = lazy(
        __name__,
        session="Session sessions",
        labels="DEFAULT_THRESHOLDS",
    )
