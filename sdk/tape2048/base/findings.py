"""Findings: the defects that a validation reports of a session or a data set."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

import msgspec

if TYPE_CHECKING:
    from tape2048.errors import TapeError


class Finding(msgspec.Struct, frozen=True):
    """One defect.

    Attributes:
        error: name of the class in :mod:`tape2048.errors` that opening or reading would raise.
        message: the value that was found, and the value that was expected.
        path: the file or directory with the defect.
        offset: byte offset in that file, if known.
        hint: what to do about it.

    Example:
        >>> from tape2048 import Finding
        >>> Finding("TruncatedError", "the file has 7 bytes; expected 192", offset=7).error
        'TruncatedError'
    """

    error: str
    message: str
    path: str | None = None
    offset: int | None = None
    hint: str | None = None

    @classmethod
    def of(cls, error: TapeError) -> Self:
        """Make the finding of an error."""
        return cls(type(error).__name__, error.message, error.path, error.offset, error.hint)


class Report(msgspec.Struct, frozen=True):
    """The result of a validation.

    Attributes:
        path: the directory.
        rows: number of rows that were checked.
        runs: number of runs in the run table.
        checksums: number of checksums that were recomputed. 0: the third-party directory has none, so
            changed bytes are found only where they break a rule.
        findings: all defects, in the order of their discovery.
        notes: remarks that are not defects, such as on rows that readers leave out.

    Example:
        >>> from tape2048 import sessions, validate_session
        >>> report = validate_session(sessions("selfplay")[0])
        >>> report.runs, report.findings, report.ok
        (200, (), True)
    """

    path: str
    rows: int
    runs: int
    checksums: int
    findings: tuple[Finding, ...]
    notes: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether there are no findings."""
        return not self.findings
