"""Sessions: readers of recorded directories, of data sets and of stores, with columns and locks."""

from typing import TYPE_CHECKING

from tape2048.base.lazy import lazy

if TYPE_CHECKING:
    from tape2048.session.run_table import DEFAULT_THRESHOLDS as DEFAULT_THRESHOLDS
    from tape2048.session.session import Session as Session, sessions as sessions
else:
    __getattr__, __dir__, __all__ = lazy(__name__)
