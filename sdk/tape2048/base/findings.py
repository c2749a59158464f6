"""Findings: what a validation reports of a session or a data set."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

import msgspec

if TYPE_CHECKING:
    from tape2048.errors import TapeError


class Finding(msgspec.Struct, frozen=True):
    """One thing that is wrong.

    Attributes:
        error: name of the class in :mod:`tape2048.errors` that opening or reading would raise.
        message: what was found, and what was expected.
        path: the file or directory it was found in.
        offset: the byte in that file, where one makes sense.
        hint: what to do about it.
    """

    error: str
    message: str
    path: str | None = None
    offset: int | None = None
    hint: str | None = None

    @classmethod
    def of(cls, error: TapeError) -> Self:
        """The finding that says what an error says."""
        return cls(type(error).__name__, error.message, error.path, error.offset, error.hint)


class Report(msgspec.Struct, frozen=True):
    """The result of a validation.

    Attributes:
        path: the directory.
        rows: number of rows that were checked.
        runs: number of runs in the run table.
        checksums: number of checksums that were recomputed; 0 means that the directory (one of
            others) has none, and that changed bytes can only show where they break a rule.
        findings: everything that is wrong, in the order it was found.
    """

    path: str
    rows: int
    runs: int
    checksums: int
    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.findings
