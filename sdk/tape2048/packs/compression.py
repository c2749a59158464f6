"""Compression of a pack's payloads: zstd and LZ4 frames, decompressed within a limit of memory."""

from __future__ import annotations

import importlib
from typing import Any, Final, Literal

from tape2048.errors import FieldError, MissingPackageError

Compression = Literal["none", "zstd", "lz4"]

# A move adds a tile of 2 or 4. The tiles' sum begins at 4 or more, and is at most 16 x 32768.
_GAME_STEPS_MAX = (16 * 32768 - 4) // 2
# a2run2's longest step; A2T1's have 9 bytes.
_STEP_BYTES_MAX = 32
_ENGINE_BYTES_MAX = 2**16
_OTHER_BYTES_MAX = 128

#: The longest file of a game. A frame of a few bytes can claim gigabytes of zeros; no more are decompressed.
RAW_BYTES_MAX: Final = _GAME_STEPS_MAX * _STEP_BYTES_MAX + _ENGINE_BYTES_MAX + _OTHER_BYTES_MAX

#: zstd's own default.
_ZSTD_LEVEL = 3

_PACKAGES = {"zstd": "zstandard", "lz4": "lz4.frame"}


def codec(compression: str) -> Any:
    """Import the package of a compression."""
    name = _PACKAGES[compression]
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise MissingPackageError(
            f"{compression}-compressed entries need the package {name.partition('.')[0]}",
            hint=f"pip install 'tape2048[{compression}]'",
        ) from error


def compress(payload: bytes | memoryview, compression: str) -> bytes:
    """Compress a payload as one frame."""
    package = codec(compression)
    compressor = package.ZstdCompressor(level=_ZSTD_LEVEL) if compression == "zstd" else package
    frame: bytes = compressor.compress(payload)
    return frame


def decompress(stored: memoryview, compression: str, raw_length: int) -> bytes:
    """Decompress one frame, into at most ``raw_length`` bytes."""
    if raw_length > RAW_BYTES_MAX:
        raise FieldError(
            f"the index claims {raw_length:,} decompressed bytes; a game's file has at most {RAW_BYTES_MAX:,}"
        )
    package = codec(compression)
    damaged = package.ZstdError if compression == "zstd" else RuntimeError
    try:
        raw, whole = (_from_zstd if compression == "zstd" else _from_lz4)(package, stored, raw_length)
    except damaged as error:
        raise FieldError(f"cannot be decompressed: {error}") from error
    if not whole or len(raw) != raw_length:
        raise FieldError(f"not one frame of the {raw_length:,} bytes that the index claims")
    return raw


def _from_zstd(package: Any, stored: memoryview, size: int) -> tuple[bytes, bool]:
    # zstandard allocates the size that the frame claims (-1: none) before it reads any content.
    if package.frame_content_size(stored) not in {-1, size}:
        return b"", False
    return package.ZstdDecompressor().decompress(stored, max_output_size=size, allow_extra_data=False), True


def _from_lz4(package: Any, stored: memoryview, size: int) -> tuple[bytes, bool]:
    frame = package.LZ4FrameDecompressor()
    raw = frame.decompress(stored, max_length=size + 1)
    return raw, frame.eof and not frame.unused_data
