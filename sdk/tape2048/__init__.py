"""Self-play sessions of 2048: rows, runs, labels, batches, validation."""

import sys
from typing import TYPE_CHECKING

from tape2048 import errors as errors
from tape2048._version import __version__ as __version__
from tape2048.base.lazy import lazy

if sys.platform == "win32":
    raise ImportError("tape2048 does not run on Windows. Install it in WSL or in a Linux container.")

if TYPE_CHECKING:
    from tape2048.base.findings import Finding as Finding, Report as Report
    from tape2048.base.notebook import plot_board as plot_board
    from tape2048.corpus import Capped as Capped, Corpus as Corpus, sample as sample
    from tape2048.loader.mixture import Mixture as Mixture
    from tape2048.maintenance.validation import validate_session as validate_session
    from tape2048.session.column_draft import write_column as write_column
    from tape2048.session.columns import Column as Column, ColumnInfo as ColumnInfo
    from tape2048.session.games import Game as Game
    from tape2048.session.run_table import DEFAULT_THRESHOLDS as DEFAULT_THRESHOLDS
    from tape2048.session.session import Session as Session, sessions as sessions
else:
    __getattr__, __dir__, __all__ = lazy(__name__)
