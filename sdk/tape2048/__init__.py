"""Read 2048 self-play sessions: rows, runs, labels, batches, and whether they are sound."""

from tape2048 import errors
from tape2048._version import __version__
from tape2048.base.findings import Finding, Report
from tape2048.corpus import Capped, Corpus
from tape2048.maintenance.validation import validate_session
from tape2048.session.labels import DEFAULT_THRESHOLDS
from tape2048.session.session import Session, sessions

__all__ = [
    "DEFAULT_THRESHOLDS",
    "Capped",
    "Corpus",
    "Finding",
    "Report",
    "Session",
    "__version__",
    "errors",
    "sessions",
    "validate_session",
]
