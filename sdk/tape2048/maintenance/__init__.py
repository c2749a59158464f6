"""Maintenance of sessions: validation, merging, removal, quarantine."""

from typing import TYPE_CHECKING

from tape2048.base.lazy import lazy

if TYPE_CHECKING:
    from tape2048.maintenance.merging import Merged as Merged, merge_sessions as merge_sessions
    from tape2048.maintenance.validation import validate_session as validate_session
else:
    __getattr__, __dir__, __all__ = lazy(__name__)
