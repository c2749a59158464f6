"""``kernel``, the decorator that compiles a function, and its cache on disk.

Machine code is kept on disk, since compiling the game loop takes seconds. Numba's cache compares only the
file of the outermost function: after a change in a function that was inlined from another module, it would
run the old machine code. The cache directory is therefore named after a hash of every module that contains a
kernel, and of all modules that these import when they load.

It is ``tape2048/kernels-<hash>`` in ``$NUMBA_CACHE_DIR`` if set, else in ``$CACHE_DIRECTORY`` (systemd),
``$XDG_CACHE_HOME`` or ``~/.cache``. Its entries are pickles, which can run any code. Each of these
directories and each entry must therefore belong to this user and must not be writable by other users (as
``/tmp`` is). Otherwise, or if the directory cannot be written, each start compiles again, and a warning is
logged.

If several processes start together, as a recorder's workers do, one compiles and the others wait for its
entry.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import hashlib
import logging
import os
import pickle
import re
import shutil
import struct
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import numba
from numba.core import compiler, serialize
from numba.core.caching import NullCache
from numba.core.compiler_lock import global_compiler_lock
from numba.core.event import Event, Listener, install_listener

F = TypeVar("F")

# Numba's own cache uses these two. They have no types.
_dumps: Any = serialize.dumps
_CompileResult: Any = compiler.CompileResult

#: Longest wait, in seconds, for another process that compiles the same function.
COMPILING_S_MAX = 120.0

#: Wait, in seconds, after which a warning reports that the lock's holder is stopped.
STOPPED_S = 5.0

#: ``struct flock`` of Linux: type, whence, start, length, pid.
_FLOCK = struct.Struct("hhqqi4x")

#: Cache directories that are kept: of earlier sources, other checkouts and other environments. Each has up to
#: 50 MB.
CACHE_STATES_KEPT_MAX = 16

#: Largest entry that is read. The loop of a player has 2 MB.
ENTRY_BYTES_MAX = 64 << 20

_OTHERS_MAY_WRITE = 0o022
_SUFFIX = ".kernel"

#: An import at the top of a module: ``from M import NAMES`` or ``import M``. A literal newline is found ten
#: times as fast as ``^``; every process searches two megabytes.
_IMPORT = re.compile(r"\n(?:from ([\w.]+) import (\([^)]*\)|[^\n]*)|import ([\w.]+))")
_COMPILES = re.compile(r"\n(?:from|import) (numba|tape2048\.jit\.(intrinsics|compiler import .*kernel))\b")


def _imports(source: str) -> set[str]:
    found = set()
    for module, names, plain in _IMPORT.findall(source):
        found.add(module or plain)
        found.update(f"{module}.{name}" for name in re.findall(r"\w+", names))
    return found


def _kernel_sources() -> dict[str, Path]:
    sdk = next(parent for parent in Path(__file__).resolve().parents if parent.name == "tape2048")
    paths, imported, waiting = {}, {}, []
    for root in (sdk, sdk.with_name("tape2048_recorder"), sdk.parent.parent / "recorder/tape2048_recorder"):
        for path in root.rglob("[!.]*.py"):
            parts = path.relative_to(root.parent).with_suffix("").parts
            module = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            source = "\n" + path.read_text(encoding="utf-8")
            paths[module], imported[module] = path, _imports(source)
            if _COMPILES.search(source):
                waiting.append(module)
    closure = set()
    while waiting:
        module = waiting.pop()
        if module not in closure:
            closure.add(module)
            waiting += imported[module] & paths.keys()
    return {module: paths[module] for module in sorted(closure)}


def _source_state() -> str:
    digest = hashlib.sha256(numba.__version__.encode())
    for path in _kernel_sources().values():
        # By content, since time and size are not enough: files in container images have equal times, and a
        # changed constant may leave the size.
        source = path.read_bytes()
        digest.update(f"\n{path}:{len(source)}\n".encode() + source)
    return digest.hexdigest()[:16]


def cache_base() -> Path | None:
    """Return the directory in which caches are kept; None if the user has no home directory."""
    for variable in ("NUMBA_CACHE_DIR", "CACHE_DIRECTORY", "XDG_CACHE_HOME"):
        if base := os.environ.get(variable):
            return Path(base.split(":")[0] if variable == "CACHE_DIRECTORY" else base)
    try:
        return Path.home() / ".cache"
    except RuntimeError:  # no HOME and no entry in the user database
        return None


def private_dir(*names: str) -> Path:
    """Make and return the directory ``tape2048/...`` in :func:`cache_base`, private to this user.

    Raises:
        OSError: the directory cannot be made, or another user owns it or can write to it.
    """
    path = cache_base()
    if path is None:
        raise FileNotFoundError(errno.ENOENT, "found no home directory", "~")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        for name in ("", "tape2048", *names):
            path /= name
            path.mkdir(mode=0o700, exist_ok=True)
            _refuse_others(path.stat(), path)
    except FileExistsError as error:  # a file
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), error.filename) from error
    return path


def _refuse_others(status: os.stat_result, path: Path) -> None:
    found = None
    if status.st_uid != os.geteuid():
        found = f"it belongs to user {status.st_uid}, expected user {os.geteuid()}"
    elif status.st_mode & _OTHERS_MAY_WRITE:
        found = f"other users can write to it (chmod go-w {path})"
    if found is not None:
        raise PermissionError(errno.EPERM, found, str(path))


def open_cache() -> Path:
    """Return the directory of compiled kernels.

    Raises:
        OSError: the directory is not private (:func:`private_dir`), or it cannot be written.
    """
    state = private_dir(f"kernels-{_source_state()}")
    os.utime(state)
    if not os.access(state, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(state))
    drop_oldest(state.parent.glob("kernels-*"), CACHE_STATES_KEPT_MAX)
    return state


@functools.cache
def cache_dir() -> Path | None:
    """Return the directory of compiled kernels; None, after a warning, if there is none."""
    try:
        return open_cache()
    except OSError as error:
        _warn(error.filename, error.strerror)
        return None


@functools.cache
def _warn(where: object, why: object) -> None:
    logging.getLogger("tape2048").warning(
        "%s: compiled code cannot be kept (%s), so each start compiles again. Repair this directory, or set "
        "XDG_CACHE_HOME to another directory",
        where,
        why,
    )


def drop_oldest(directories: Iterable[Path], kept_max: int) -> None:
    """Remove all directories except for the ``kept_max`` most recently used."""
    found = []
    for path in directories:
        with contextlib.suppress(OSError):  # another worker may have removed it
            found.append((path.stat().st_mtime, path))
    for _, path in sorted(found, reverse=True)[kept_max:]:
        shutil.rmtree(path, ignore_errors=True)


def kernel(function: F) -> F:
    """Compile a function at its first call with new argument types, and keep the machine code on disk.

    The compiled function runs without the GIL. Pass boards as ``np.uint64``.
    """
    config: Any = numba.config
    if config.DISABLE_JIT:
        # Imported here: at the top, every change of errors.py would compile all kernels again.
        from tape2048.errors import ConfigError

        raise ConfigError(
            "$NUMBA_DISABLE_JIT is set; expected numba's compiler, which the kernels need",
            hint="Unset NUMBA_DISABLE_JIT.",
        )
    dispatcher: Any = numba.njit(nogil=True, error_model="numpy")(function)
    directory = cache_dir()
    if directory is not None:
        dispatcher._cache = _DiskCache(function, directory)  # noqa: SLF001 - as enable_caching() does
        name = f"{dispatcher.__module__}.{dispatcher.__qualname__}"
        dispatcher.compile = _one_at_a_time(dispatcher.compile, directory, name)
    return dispatcher  # type: ignore[no-any-return]


class _DiskCache(NullCache):
    """The machine code of a function: a file for each signature, which :func:`read_entry` reads.

    Numba's own cache writes without fsync and reads without a check: a power failure leaves empty files, and
    every later start fails. Here, an entry with a wrong checksum is compiled and written again.
    """

    def __init__(self, function: Any, directory: Path) -> None:
        self._function, self._directory = function, directory

    def _path(self, signature: Any, codegen: Any) -> Path:
        """Return the file of a signature, named after everything that its machine code depends on."""
        function, code = self._function, self._function.__code__
        parts = (
            str(signature),
            codegen.magic_tuple(),
            sys.implementation.cache_tag,
            _file_digest(code.co_filename),
            (code.co_filename, code.co_firstlineno, code.co_code),
            _dumps(tuple(cell.cell_contents for cell in function.__closure__ or ())),
        )
        digest = hashlib.sha256(repr(parts).encode()).hexdigest()[:32]
        return self._directory / f"{function.__name__}-{digest}{_SUFFIX}"

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        target_context.refresh()
        # Any error: a missing, damaged or unreadable entry is compiled again.
        with contextlib.suppress(Exception):
            entry = read_entry(self._path(sig, target_context.codegen()))
            found, code = pickle.loads(entry)  # noqa: S301 - of this user, as checked
            if found == sig:
                return _CompileResult._rebuild(target_context, *code)  # noqa: SLF001 - as numba's own cache
        return None

    def save_overload(self, sig: Any, data: Any) -> None:
        if data.library.has_dynamic_globals:  # it contains addresses of this process
            return
        try:
            path = self._path(sig, data.codegen)
        except OSError:  # its source is not a file, or has just been removed
            return
        draft = path.with_suffix(f".{os.getpid()}")
        content = _dumps((sig, data._reduce()))  # noqa: SLF001 - as numba's own cache
        try:
            # A process with other sources may have removed the directory (drop_oldest).
            path.parent.mkdir(mode=0o700, exist_ok=True)
            fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            with open(fd, "wb") as file:  # noqa: PTH123 - a descriptor
                file.writelines((hashlib.sha256(content).digest(), content))
            draft.replace(path)
        except OSError as error:  # the disk is full, for example
            with contextlib.suppress(OSError):
                draft.unlink(missing_ok=True)
            _warn(self._directory, error.strerror)


@functools.cache
def _file_digest(path: str) -> str:
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


def read_entry(path: Path) -> bytes:
    """Return the pickle in an entry, whose first 32 bytes are its SHA-256.

    Raises:
        OSError: it cannot be read, or another user owns it or can write to it.
        ValueError: it is damaged.
    """
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(fd, "rb") as file:  # noqa: PTH123 - a descriptor
        status = os.fstat(fd)
        _refuse_others(status, path)  # the directories may have been exchanged since they were checked
        if status.st_size <= ENTRY_BYTES_MAX:
            digest, content = file.read(32), file.read(ENTRY_BYTES_MAX)
            if hashlib.sha256(content).digest() == digest:
                return content
    raise ValueError(f"{path}: found {status.st_size} bytes, expected a SHA-256 and content that has it")


def damaged_entries(directory: Path) -> tuple[list[Path], int]:
    """Return the damaged entries of a directory, entries of other users included, and the number of all."""
    paths, damaged = sorted(directory.glob(f"*{_SUFFIX}")), []
    for path in paths:
        try:
            read_entry(path)
        except FileNotFoundError:  # replaced just now
            continue
        except (OSError, ValueError):
            damaged.append(path)
    return damaged, len(paths)


@contextlib.contextmanager
def announced(announce: Callable[[], None]) -> Iterator[None]:
    """Call ``announce`` once, before the first compilation of a function that is not in the cache."""
    with install_listener("numba:compile", _Announcer(announce)):
        yield


class _Announcer(Listener):
    def __init__(self, announce: Callable[[], None]) -> None:
        self._announce: Callable[[], None] | None = announce

    def on_start(self, event: Event) -> None:  # noqa: ARG002 - numba's interface; the cache was asked before
        announce, self._announce = self._announce, None
        if announce is not None:
            announce()

    def on_end(self, event: Event) -> None:
        pass


def _one_at_a_time(compile_: Callable[[Any], Any], directory: Path, name: str) -> Callable[[Any], Any]:
    """Return ``compile_`` under a lock, so that only one process at a time compiles a signature.

    ``compile_`` looks into the cache first. While a kernel's lock is held, the kernels that it calls are
    compiled under locks of their own. No kernel calls itself, directly or not, so there is no deadlock.
    Numba's lock among the threads of a process is taken first.
    """

    def compile_alone(signature: Any) -> Any:
        digest = hashlib.sha256(f"{name} {signature}".encode()).hexdigest()[:24]
        with global_compiler_lock, locked(directory / f"{digest}.lock", f"compiles {name}"):
            return compile_(signature)

    return compile_alone


@contextlib.contextmanager
def locked(path: Path, what: str) -> Iterator[None]:
    """Hold the lock of a file during the block. The lock ends with the process.

    The block runs without the lock if locks are unavailable, or after a wait of :data:`COMPILING_S_MAX`: its
    holder may be stopped, which is logged as a warning. Doing the work twice only takes time.

    Args:
        path: the file.
        what: activity of a holder, for the warning: ``compiles NAME``.
    """
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError:
        yield
        return
    try:
        begin, is_said = time.monotonic(), False
        while (waited := time.monotonic() - begin) < COMPILING_S_MAX:
            try:
                fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)  # not flock: a forked child would keep it
            except (BlockingIOError, PermissionError):
                is_said = is_said or (waited >= STOPPED_S and _warn_of_stopped(fd, what))
                time.sleep(0.02)
                continue
            except OSError:
                pass
            break
        yield
    finally:
        os.close(fd)


def _warn_of_stopped(fd: int, what: str) -> bool:
    """Log a warning if the holder of a file's lock is stopped; return whether it is."""
    with contextlib.suppress(OSError, struct.error):  # it has just ended
        asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        pid = _FLOCK.unpack(fcntl.fcntl(fd, fcntl.F_GETLK, asked))[-1]
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        if state in {"T", "t"}:
            logging.getLogger("tape2048").warning(
                "process %d is stopped while it %s; waiting up to %g s. Continue it (kill -CONT) or end it",
                *(pid, what, COMPILING_S_MAX),
            )
            return True
    return False
