"""Reader of xz files that never expands more bytes than requested."""

from __future__ import annotations

import lzma

from tape2048.base.text import counted
from tape2048.errors import ChecksumError, FormatError, TruncatedError

_MAGIC = b"\xfd7zXZ\x00"

#: Memory that the decompressor may use in addition to its output. `xz -9` needs 65 MB.
_MEMORY_MAX = 256 << 20

_READ_BYTES = 1 << 20  # compressed bytes that the decompressor gets at a time


def is_xz(data: memoryview | bytes) -> bool:
    return bytes(data[: len(_MAGIC)]) == _MAGIC


class XzReader:
    """The expanded bytes of an xz file, from front to back. ``path`` is for messages."""

    def __init__(self, data: memoryview | bytes, path: str) -> None:
        self._data, self._path, self._at = data, path, 0
        self._decompressor = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_MEMORY_MAX)

    def read(self, count: int) -> bytes:
        """Return the next bytes, or all that are left; ChecksumError, FormatError or TruncatedError."""
        parts: list[bytes] = []
        while count and not self._decompressor.eof:
            more: memoryview | bytes = b""
            if self._decompressor.needs_input:
                more = self._data[self._at : self._at + _READ_BYTES]
                self._at += len(more)
                if not more:
                    raise TruncatedError("the compressed file is cut off", path=self._path)
            try:
                parts.append(self._decompressor.decompress(more, count))
            except lzma.LZMAError as error:
                raise ChecksumError(f"the compressed file is damaged: {error}", path=self._path) from error
            count -= len(parts[-1])
        rest = len(self._decompressor.unused_data) + len(self._data) - self._at
        if self._decompressor.eof and rest:
            raise FormatError(
                f"found {counted(rest, 'byte')} behind the compressed part, expected none", path=self._path
            )
        return b"".join(parts)
