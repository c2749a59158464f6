"""Checksums that a file stores."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tape2048.errors import ChecksumError

if TYPE_CHECKING:
    import os


def check_crc(
    computed: int,
    stored: int,
    what: str,
    *,
    path: str | os.PathLike[str] | None,
    offset: int,
    hint: str = "the file was damaged or cut; restore it from a copy",
) -> None:
    if computed != stored:
        raise ChecksumError(
            f"the CRC-32C of {what} is {computed:#010x}, expected {stored:#010x} as stored in the file",
            path=path,
            offset=offset,
            hint=hint,
        )
