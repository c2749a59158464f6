"""Self-play sessions of 2048: rows, runs, labels, batches, validation.

- `Session`: a finished session: rows, runs, labels.
- `sessions`: paths of the sessions in a directory.
- `Corpus`: many sessions as one sequence of rows.
- `Capped`: a corpus with a cap on the rows of each game in an epoch.
- `DEFAULT_THRESHOLDS`: tiles of the default labels.
- `validate_session`: checks a session completely.
- `Report`: the result of a validation.
- `Finding`: one defect in a report.
"""

from typing import TYPE_CHECKING

from tape2048 import errors as errors
from tape2048._version import __version__ as __version__
from tape2048.base.lazy import lazy

if TYPE_CHECKING:
    from tape2048.base.findings import Finding as Finding
    from tape2048.base.findings import Report as Report
    from tape2048.corpus import Capped as Capped
    from tape2048.corpus import Corpus as Corpus
    from tape2048.maintenance.validation import validate_session as validate_session
    from tape2048.session.labels import DEFAULT_THRESHOLDS as DEFAULT_THRESHOLDS
    from tape2048.session.session import Session as Session
    from tape2048.session.session import sessions as sessions
else:
    __getattr__, __dir__, __all__ = lazy(
        __name__,
        corpus="Capped Corpus",
        **{
            "base.findings": "Finding Report",
            "maintenance.validation": "validate_session",
            "session.labels": "DEFAULT_THRESHOLDS",
            "session.session": "Session sessions",
        },
    )
