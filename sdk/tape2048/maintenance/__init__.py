"""Maintenance of sessions: validation, merging, removal, quarantine.

- `validate_session`: the complete check of a session.
- `merge_sessions`: a new session made of several.
- `Merged`: the result of a merge.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tape2048.base.lazy import lazy

if TYPE_CHECKING:
    from tape2048.maintenance.merging import Merged as Merged
    from tape2048.maintenance.merging import merge_sessions as merge_sessions
    from tape2048.maintenance.validation import validate_session as validate_session
else:
    __getattr__, __dir__, __all__ = lazy(
        __name__,
        validation="validate_session",
        merging="merge_sessions Merged",
    )
