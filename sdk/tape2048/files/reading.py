"""Opening, reading, mapping and checksums of untrusted files, which may change at any time.

``mmap.mmap``, and therefore ``np.memmap``, holds a duplicate of the descriptor while the mapping lives: a
corpus of a thousand sessions would reach the usual limit of 1,024 open files. The kernel needs no descriptor
for a mapping, so this module calls the C library directly. (Python 3.13 has ``mmap(trackfd=False)``.)

Functions raise MissingPathError for a missing file, StorageError for a file that is not regular or cannot be
opened, read or mapped, and TruncatedError for a file that shrinks while it is read.
"""

from __future__ import annotations

import codecs
import contextlib
import ctypes
import functools
import mmap
import os
import stat
import sys
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from tape2048.base.text import counted
from tape2048.errors import ChecksumError, FormatError, MissingPathError, StorageError, TruncatedError
from tape2048.files.opening import NO_FILES, storage_error

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from numpy.typing import NDArray

#: Most bytes of one read, so that signals are handled in between. Linux reads at most 2 GiB at once.
READ_BYTES_MAX = 256 * 1024 * 1024

#: Most bytes of a file of text or JSON, unless a format has its own limit.
DOCUMENT_BYTES_MAX = 16 << 20

# Smaller files are read. Mapping takes time for each page and each file, and copying for each byte: reading a
# file of 180 KB takes two thirds of the time of mapping it, and mapping 1.8 MB is a fifth faster than reading
# them. A process has at most 65,530 maps (vm.max_map_count).
_MAPPED_FROM_BYTES = 1 << 20

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_long,  # off_t of the 64-bit systems this runs on; always 0 here
]
_libc.madvise.restype = ctypes.c_int
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_libc.munmap.restype = ctypes.c_int
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_MAP_FAILED: Final = ctypes.c_void_p(-1).value
_MADV_POPULATE_READ: Final = 22  # linux/mman.h, since Linux 5.14. The mmap module has no name for it

# Flags of mmap that the mmap module lacks. macOS has the same MAP_FIXED, and reserves no swap anyway.
_MAP_FIXED: Final = 0x10
_MAP_NORESERVE: Final = 0x4000 if sys.platform == "linux" else 0
_RESERVED: Final = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE


def _map(address: int | None, length: int, protection: int, flags: int, fd: int) -> int:
    found = _libc.mmap(address, length, protection, flags, fd, 0)
    if found == _MAP_FAILED:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return int(found)


class _Mapping:
    """A mapped range, the base of the arrays made from it. It is unmapped when the last array is freed."""

    __slots__ = ("__array_interface__", "_address", "_length")

    def __init__(self, fd: int, length: int, protection: int, flags: int) -> None:
        self._length = 0
        self._address = _map(None, length, protection, flags, fd)
        self._length = length
        self.__array_interface__: dict[str, Any] = {
            "version": 3,
            "typestr": "|u1",
            "shape": (length,),
            "data": (self._address, True),  # True: read-only, beyond any flag of an array
        }

    # Not weakref.finalize, which also runs at exit, while other threads may still read the rows.
    def __del__(self, munmap: Any = _libc.munmap) -> None:
        if self._length:
            munmap(self._address, self._length)


def map_file(fd: int, length: int) -> NDArray[np.uint8]:
    """Map a file; ``fd`` can be closed. Reading a page behind the file's end is SIGBUS. Raises OSError."""
    return np.asarray(_Mapping(fd, length, mmap.PROT_READ, mmap.MAP_SHARED))


class Reserved(_Mapping):
    """Addresses to attach a file to repeatedly. Reading them without a file kills the process."""

    __slots__ = ()

    def __init__(self, length: int) -> None:
        super().__init__(-1, length, 0, _RESERVED)

    def attach(self, fd: int, offset: int = 0, length: int | None = None) -> None:
        """Map ``length`` bytes of a file at ``offset``, a multiple of the page size.

        ``fd`` can be closed afterwards.
        """
        address, length = self._address + offset, self._length if length is None else length
        _map(address, length, mmap.PROT_READ, mmap.MAP_SHARED | _MAP_FIXED, fd)

    def detach(self) -> None:
        """Unmap the file, and keep the addresses reserved."""
        _map(self._address, self._length, 0, _RESERVED | _MAP_FIXED, -1)


def populate(mapped: NDArray[Any]) -> None:
    """Read a mapped array into the page cache and enter its pages in the page table: 0.1 s for 1 GB.

    Random rows then cause no page faults. An old kernel ignores it; a bad page fails at its first access.
    """
    address = mapped.__array_interface__["data"][0]
    begin = address - address % mmap.PAGESIZE
    _libc.madvise(begin, address + mapped.nbytes - begin, _MADV_POPULATE_READ)


def prefer_huge_pages(mapped: NDArray[Any]) -> None:
    """Request huge pages for mapped memory. Call it before the array is used."""
    if hasattr(mmap, "MADV_HUGEPAGE"):
        _libc.madvise(mapped.ctypes.data, mapped.nbytes, mmap.MADV_HUGEPAGE)


def advise(fd: int, offset: int, length: int, how: str) -> None:
    """Advise the system how a range of a file will be read, such as ``"WILLNEED"``, if it takes advice."""
    if hasattr(os, "posix_fadvise"):
        with contextlib.suppress(OSError):  # the file system takes no advice
            os.posix_fadvise(fd, offset, length, getattr(os, f"POSIX_FADV_{how}"))


def map_path(path: str | os.PathLike[str]) -> NDArray[np.uint8]:
    """Map a regular file as a read-only ``u8[bytes]``. No descriptor stays open."""
    return load_path(path, read_below=0)


def read_path(path: str | os.PathLike[str]) -> NDArray[np.uint8]:
    return load_path(path, read_below=sys.maxsize)


def load_path(path: str | os.PathLike[str], read_below: int = _MAPPED_FROM_BYTES) -> NDArray[np.uint8]:
    """Return a regular file as a read-only ``u8[bytes]``: in memory if below ``read_below``, else mapped."""
    with open_regular(path) as fd:
        size = os.fstat(fd).st_size
        if size >= max(1, read_below):
            return map_file(fd, size)
        data = np.empty(size, np.uint8)
        read_exactly(fd, data, 0, path)
    data.flags.writeable = False
    return data


@contextlib.contextmanager
def open_regular(path: str | os.PathLike[str]) -> Iterator[int]:
    """Open a regular file for reading, and translate the OSErrors of the block as :func:`reading` does."""
    fd = -1
    try:
        # Without O_NONBLOCK, opening a FIFO would wait for a writer that may never come.
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise StorageError("is not a regular file", path=path)
        yield fd
    except OSError as error:
        raise _refused(error, path) from error
    finally:
        if fd >= 0:
            os.close(fd)


def read_document(path: Path, bytes_max: int = DOCUMENT_BYTES_MAX, error: Any = FormatError) -> bytes:
    """Return a file of text or JSON without its byte order mark; raise ``error`` for a larger file."""
    with open_regular(path) as fd:
        if (size := os.fstat(fd).st_size) > bytes_max:
            raise error(f"the file has {size} bytes; expected at most {bytes_max}", path=path)
        return os.pread(fd, bytes_max, 0).removeprefix(codecs.BOM_UTF8)


def first_bytes(path: str | os.PathLike[str], count: int) -> bytes:
    """Return the first ``count`` bytes of a regular file, or all bytes of a shorter file."""
    with open_regular(path) as fd:
        return os.pread(fd, count, 0)


def read_exactly(fd: int, into: NDArray[Any], offset: int, path: str | os.PathLike[str]) -> None:
    """Fill a contiguous array with the file's bytes from ``offset`` on; ``path`` is for errors."""
    view = into.view(np.uint8).reshape(-1).data
    done = 0
    while done < len(view):
        with reading(path):
            count = os.preadv(fd, [view[done : done + READ_BYTES_MAX]], offset + done)
        if count == 0:
            raise TruncatedError(
                f"the file ended {counted(len(view) - done, 'byte')} early while it was read",
                path=path,
                offset=offset + done,
                hint="find the program that writes to this file, and read it again afterwards",
            )
        done += count


@contextlib.contextmanager
def reading(path: str | os.PathLike[str]) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise _refused(error, path) from error


def _refused(error: OSError, path: str | os.PathLike[str]) -> StorageError:
    if error.errno in NO_FILES:
        return storage_error(error, path, "reading")
    kind = MissingPathError if isinstance(error, FileNotFoundError) else StorageError
    return kind(f"cannot be read: {error.strerror or error}", path=path)


_CHUNK_BYTES = 8 * 1024 * 1024

_POLYNOMIAL = 0x82F63B78
_ONE = 1 << 31  # the polynomial 1, reflected


def _multiply(a: int, b: int) -> int:
    product = 0
    bit = _ONE
    while a:
        if a & bit:
            product ^= b
            a ^= bit
        bit >>= 1
        b = b >> 1 ^ _POLYNOMIAL if b & 1 else b >> 1
    return product


@functools.cache
def _power_of_two(n: int) -> int:
    return _ONE >> 1 if n == 0 else _multiply(_power_of_two(n - 1), _power_of_two(n - 1))


@functools.lru_cache(maxsize=1024)
def _shift(length: int) -> int:
    result, n = _ONE, 3
    while length:
        if length & 1:
            result = _multiply(_power_of_two(n), result)
        length >>= 1
        n += 1
    return result


def crc32c_combine(first: int, second: int, second_length: int) -> int:
    return _multiply(_shift(second_length), first) ^ second


def crc32c(data: Any, value: int = 0) -> int:
    """Return the CRC-32C of bytes; ``value`` is the CRC-32C of the bytes before them."""
    from crc32c import crc32c as compute  # late: the package takes 30 ms to read its own metadata

    return compute(data, value)


def crc32c_file(
    fd: int,
    size: int,
    path: str | os.PathLike[str],
    *,
    offset: int = 0,
    on_chunk: Callable[[NDArray[np.uint8]], object] = lambda _: None,
) -> int:
    """Return the CRC-32C of a byte range; ``on_chunk`` gets each chunk, which the next overwrites."""
    buffer = np.empty(min(size, _CHUNK_BYTES), np.uint8)
    checksum = 0
    for begin in range(0, size, _CHUNK_BYTES):
        chunk = buffer[: size - begin]
        read_exactly(fd, chunk, offset + begin, path)
        checksum = crc32c(chunk.data, checksum)
        on_chunk(chunk)
    return checksum


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
