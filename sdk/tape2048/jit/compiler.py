"""``kernel``, the decorator that compiles a function, and its cache on disk.

Machine code is kept on disk, since compiling the game loop takes seconds. An entry is named after everything
that the machine code depends on: the bytecode and the constants of the function, and of all functions and
global values that it reaches. Paths, line numbers, docstrings and comments are left out, so all checkouts and
versions share one cache, and a release compiles only the functions that it changed.

It is ``tape2048/kernels`` in ``$NUMBA_CACHE_DIR`` if set, else in ``$CACHE_DIRECTORY`` (systemd),
``$XDG_CACHE_HOME`` or ``~/.cache``. Its entries are pickles, which can run any code. Each of these
directories and each entry must therefore belong to this user and must not be writable by other users (as
``/tmp`` is). Otherwise, or if the directory cannot be written, each start compiles again, and a warning is
logged.

If several processes start together, as a recorder's workers do, one compiles and the others wait for its
entry. A compilation of more than a second is logged, and the time that it took.

Only kernels that Python calls have machine code and entries. A kernel or a :func:`helper` within another
kernel is compiled as a part of it.
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
import struct
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any, TypeVar, overload

import numba
import numpy as np
from numba.core import compiler, serialize
from numba.core.caching import NullCache
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler_lock import global_compiler_lock
from numba.core.dispatcher import Dispatcher
from numba.core.event import Event, Listener, install_listener
from numba.core.typing.templates import builtin_registry
from numba.extending import _Intrinsic, register_jitable  # type: ignore[attr-defined]

F = TypeVar("F")

# Numba's own cache uses the first two. They have no types.
_dumps: Any = serialize.dumps
_CompileResult: Any = compiler.CompileResult
_njit: Any = numba.njit  # some options have no types

#: Longest wait, in seconds, for another process that compiles the same function.
COMPILING_S_MAX = 120.0

#: Wait, in seconds, after which a warning reports that the lock's holder is stopped.
STOPPED_S = 5.0

#: Time, in seconds, after which a compilation is logged.
SLOW_S = 1.0

#: The logger of compilations. They are warnings, so that a notebook and a script show them.
logger = logging.getLogger("tape2048.compiler")

#: ``struct flock`` of Linux: type, whence, start, length, pid.
_FLOCK = struct.Struct("hhqqi4x")

#: Size of all entries, above which the least recently used ones are removed.
CACHE_BYTES_MAX = 1 << 30

#: Largest entry that is read. The loop of a player has 2 MB.
ENTRY_BYTES_MAX = 64 << 20

_OTHERS_MAY_WRITE = 0o022
_SUFFIX = ".kernel"

#: In machine code that has the address of a function in the process that compiled it, as of kernels that call
#: each other. A later process would jump to 0.
_UNRESOLVED = b".numba.unresolved$"

#: Packages whose functions are named in a key, and not followed: their versions are part of it.
_FIXED = sys.stdlib_module_names | {"llvmlite", "numba", "numpy"}

#: Implementations that an overload has for arguments of a class, such as a player's ``choose``. They are part
#: of the key of every kernel with such an argument.
implementations: defaultdict[type, list[Any]] = defaultdict(list)


def _names(code: CodeType) -> set[str]:
    inner = (_names(const) for const in code.co_consts if isinstance(const, CodeType))
    return set(code.co_names).union(*inner)


def _is_fixed(value: Any) -> bool:
    return str(value).partition(".")[0] in _FIXED


def _closure(function: Any) -> list[Any]:
    return [cell.cell_contents for cell in function.__closure__ or ()]


def _stable(value: object) -> str:
    text = f"{type(value).__name__} {value}"
    if " at 0x" in text:
        raise TypeError(f"found {text}, expected a value without an address")
    return text


def _describe(value: Any, links: list[Any]) -> Any:  # noqa: C901, PLR0911 - a return for each kind of value
    """Return everything in a value that machine code depends on. Add functions and classes to ``links``."""
    match value:
        case FunctionType() | type():
            if _is_fixed(value.__module__):
                return value.__module__, value.__qualname__
            links.append(value)
            return len(links)
        case Dispatcher():
            return _describe((value.py_func, value.targetoptions), links)
        case _Intrinsic():
            return _describe(value._defn, links)  # noqa: SLF001 - as numba's own cache
        case CodeType():
            names = value.co_names, value.co_varnames, value.co_freevars, value.co_cellvars
            form = value.co_flags, value.co_argcount, value.co_kwonlyargcount, value.co_exceptiontable
            return value.co_code, form, names, [_describe(const, links) for const in value.co_consts]
        case dict():
            return [(key, _describe(each, links)) for key, each in value.items()]
        case list() | tuple():
            return _describe(type(value), links), [_describe(each, links) for each in value]
        case set() | frozenset():
            return sorted(repr(_describe(each, links)) for each in value)
        case np.ndarray() | np.generic():
            return value.dtype.str, value.shape, hashlib.sha256(value.tobytes()).hexdigest()
        case None | str() | bytes() | int() | float() | complex():
            return repr(value)
    return value.__name__ if isinstance(value, ModuleType) else _stable(value)


@functools.cache
def _overloads(_count: int) -> dict[int, list[Any]]:
    found = defaultdict(list)
    for function, kind in builtin_registry.globals:
        for template in getattr(kind, "templates", ()):
            if (resolve := getattr(template, "_overload_func", None)) is not None:
                found[id(function)].append((resolve, template._jit_options))  # noqa: SLF001 - as above
    return found


def _description(value: Any) -> tuple[str, list[Any]]:
    """Describe a function or a class by itself. Return the functions and classes that it uses as well."""
    links: list[Any] = []
    if isinstance(value, type):
        return repr((value.__module__, value.__qualname__, _describe(implementations[value], links))), links
    code = value.__code__
    if value.__doc__ is not None and code.co_consts[:1] == (value.__doc__,):
        code = code.replace(co_consts=(None, *code.co_consts[1:]))
    names = sorted(_names(code))
    used = {name: value.__globals__[name] for name in names if name in value.__globals__}
    for prefix, module in [*used.items()]:
        if isinstance(module, ModuleType) and not _is_fixed(module.__name__):
            used |= {f"{prefix}.{name}": vars(module)[name] for name in names if name in vars(module)}
    overloads = [
        found
        for found in _overloads(len(builtin_registry.globals)).get(id(value), ())
        # The imports of a process decide which implementations there are: those in use come with their class.
        if not any(isinstance(each, type) and each in implementations for each in _closure(found[0]))
    ]
    parts = code, value.__defaults__, value.__kwdefaults__, _closure(value), used, overloads
    return repr((value.__module__, value.__qualname__, _describe(parts, links))), links


def _classes(kind: Any) -> Iterator[type]:
    if isinstance(kind, numba.types.BaseTuple):
        if (found := getattr(kind, "instance_class", None)) is not None:
            yield found
        for each in kind:  # type: ignore[attr-defined]
            yield from _classes(each)


def _key(function: Any, signature: Any, codegen: Any) -> str:
    """Return a hash of all that a signature's machine code depends on; TypeError if it is unknown."""
    kinds = getattr(signature, "args", signature)
    reached = [function, *(each for kind in kinds for each in _classes(kind))]
    places = {id(each): place for place, each in enumerate(reached)}
    versions = numba.__version__, np.__version__, sys.implementation.cache_tag
    digest = hashlib.sha256(repr((_stable(signature), codegen.magic_tuple(), versions)).encode())
    for each in reached:  # it grows
        text, links = _description(each)
        for link in links:
            if id(link) not in places:
                places[id(link)] = len(reached)
                reached.append(link)
        digest.update(f"{text}{[places[id(link)] for link in links]}".encode())
    return digest.hexdigest()[:32]


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
    """Make and return a directory in :func:`cache_base`; OSError if another user can write to it."""
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
    """Return the directory of compiled kernels; OSError if it is not private or cannot be written."""
    directory = private_dir("kernels")
    if not os.access(directory, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(directory))
    return directory


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


@overload
def kernel(function: F) -> F: ...
@overload
def kernel(*, allocates: bool) -> Callable[[F], F]: ...
def kernel(function: Any = None, *, allocates: bool = False) -> Any:
    """Compile at the first call with new types, kept on disk; runs without the GIL. Boards: ``np.uint64``.

    Set ``allocates`` for a kernel that creates arrays. Other kernels do not count references: counted at each
    move, they take a fifth of the time of a game.
    """
    if function is None:
        return functools.partial(kernel, allocates=allocates)
    config: Any = numba.config
    if config.DISABLE_JIT:
        # Imported here: at the top, every change of errors.py would compile all kernels again.
        from tape2048.errors import ConfigError

        raise ConfigError(
            "$NUMBA_DISABLE_JIT is set; expected numba's compiler, which the kernels need",
            hint="Unset NUMBA_DISABLE_JIT.",
        )
    dispatcher: Any = _njit(nogil=True, error_model="numpy", _nrt=allocates)(function)
    inner = {**_AS_INNER, "_nrt": allocates}
    within: Any = _njit(error_model="numpy", no_cpython_wrapper=True, **inner)(function)
    dispatcher.get_call_template, dispatcher.get_overload = within.get_call_template, within.get_overload
    dispatcher._compiling_counter = within._compiling_counter  # noqa: SLF001 - by which recursion is found
    directory = cache_dir()
    if directory is not None:
        dispatcher._cache = _DiskCache(function, directory)  # noqa: SLF001 - as enable_caching() does
    dispatcher.compile = _one_at_a_time(dispatcher, directory)
    return dispatcher


@functools.cache
def routine(kernel_of_words: Any, count: int) -> int:
    """Return the address of a kernel that takes ``count`` words, ``u64``, and returns one.

    Compiled code calls it with ``memory.call_at``. A part of a kernel is so compiled once it is needed.
    """
    words = (numba.uint64,) * count
    result = kernel_of_words.get_compile_result(numba.uint64(*words))
    address: int = result.library.get_pointer_to_function(result.fndesc.llvm_cfunc_wrapper_name)
    return address


class _InnerLibrary(JITCodeLibrary):
    """The code of a kernel within another kernel, without machine code of its own."""

    def _finalize_final_module(self) -> None:
        self._finalized = True

    def get_pointer_to_function(self, name: str) -> int:  # noqa: ARG002 - numba's interface
        self._ensure_finalized()  # type: ignore[no-untyped-call]
        return 0

    @property
    def codegen(self) -> Any:
        return self

    def set_env(self, name: str, env: Any) -> None:
        pass


class _HelperLibrary(_InnerLibrary):
    """The code of a function that only compiled code calls.

    Numba optimises each function, and makes machine code of it, before it links it into a caller, which
    optimises it again: half the time of a compilation.
    """

    def _optimize_final_module(self) -> None:
        pass


class _InnerCompiler(compiler.Compiler):
    library: type[_InnerLibrary] = _InnerLibrary

    def __init__(self, typing: Any, target: Any, _library: Any, *others: Any) -> None:
        library: Any = self.library
        super().__init__(typing, target, library(target.codegen(), "inner"), *others)  # type: ignore[no-untyped-call]


class _HelperCompiler(_InnerCompiler):
    library = _HelperLibrary


#: Options of numba for functions that only compiled code calls.
AS_HELPER: dict[str, Any] = {"pipeline_class": _HelperCompiler, "no_cfunc_wrapper": True, "_nrt": False}
_AS_INNER = {**AS_HELPER, "pipeline_class": _InnerCompiler}


@overload
def helper(function: F) -> F: ...
@overload
def helper(*, forceinline: bool) -> Callable[[F], F]: ...
def helper(function: Any = None, *, forceinline: bool = False) -> Any:
    """Compile a function as a part of the kernels that call it, as numba's ``register_jitable``."""
    # Optimised by itself first, what a search inlines is 5% faster.
    options = {**_AS_INNER, "forceinline": True} if forceinline else AS_HELPER
    decorate = register_jitable(**options)
    return decorate if function is None else decorate(function)


class _DiskCache(NullCache):
    """The machine code of a function: a file for each signature, which :func:`read_entry` reads.

    Numba's own cache writes without fsync and reads without a check: a power failure leaves empty files, and
    every later start fails. Here, an entry with a wrong checksum is compiled and written again.
    """

    def __init__(self, function: Any, directory: Path) -> None:
        self._function, self._directory = function, directory

    def _path(self, signature: Any, codegen: Any) -> Path:
        key = _key(self._function, signature, codegen)
        return self._directory / f"{self._function.__name__}-{key}{_SUFFIX}"

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        target_context.refresh()
        # Any error: a missing, damaged or unreadable entry is compiled again.
        with contextlib.suppress(Exception):
            path = self._path(sig, target_context.codegen())
            content = read_entry(path)
            found, code = pickle.loads(content)  # noqa: S301 - of this user, as checked
            if found == sig and _UNRESOLVED not in content:
                os.utime(path)  # it was used
                return _CompileResult._rebuild(target_context, *code)  # noqa: SLF001 - as numba's own cache
        return None

    def save_overload(self, sig: Any, data: Any) -> None:
        if data.library.has_dynamic_globals:  # it contains addresses of this process
            return
        try:
            path = self._path(sig, data.codegen)
        except TypeError:  # it has no key
            return
        draft = path.with_suffix(f".{os.getpid()}")
        content = _dumps((sig, data._reduce()))  # noqa: SLF001 - as numba's own cache
        try:
            path.parent.mkdir(mode=0o700, exist_ok=True)
            fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            with open(fd, "wb") as file:  # noqa: PTH123 - a descriptor
                file.writelines((hashlib.sha256(content).digest(), content))
            draft.replace(path)
            _drop_unused(self._directory)
        except OSError as error:  # the disk is full, for example
            with contextlib.suppress(OSError):
                draft.unlink(missing_ok=True)
            _warn(self._directory, error.strerror)


def _drop_unused(directory: Path) -> None:
    found = []
    for path in directory.iterdir():
        with contextlib.suppress(FileNotFoundError):  # another process removed it
            status = path.stat()
            found.append((status.st_mtime, status.st_size, path))
    total = 0
    for _, size, path in sorted(found, reverse=True):
        total += size
        if total > CACHE_BYTES_MAX:
            path.unlink(missing_ok=True)


def read_entry(path: Path) -> bytes:
    """Return the pickle behind its SHA-256; ValueError if damaged, OSError if another user can write it."""
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


def _one_at_a_time(dispatcher: Any, directory: Path | None) -> Callable[[Any], Any]:
    """Return ``compile`` under a lock for each kernel: no kernel calls itself, so there is no deadlock."""
    compile_, name = dispatcher.compile, f"{dispatcher.__module__}.{dispatcher.__qualname__}"

    def compile_alone(signature: Any) -> Any:
        lock: Any = contextlib.nullcontext()
        if directory is not None:
            digest = hashlib.sha256(f"{name} {signature}".encode()).hexdigest()[:24]
            lock = locked(directory / f"{digest}.lock", f"compiles {name}")
        with global_compiler_lock, lock, _logged(dispatcher, signature, directory):
            return compile_(signature)

    return compile_alone


@contextlib.contextmanager
def _logged(dispatcher: Any, signature: Any, directory: Path | None) -> Iterator[None]:
    begin, is_done, is_said = time.monotonic(), threading.Event(), threading.Event()

    def watch() -> None:
        while not is_done.wait(SLOW_S):
            if signature in dispatcher.stats.cache_misses:  # else it may be loaded
                kept = "at each start" if directory is None else f"once for this version, kept in {directory}"
                logger.warning("compiling %s: %s", dispatcher.__module__, kept)
                is_said.set()
                return

    threading.Thread(target=watch, daemon=True).start()
    try:
        yield
    finally:
        is_done.set()
        if is_said.is_set():
            logger.warning("compiled %s in %.1f s", dispatcher.__module__, time.monotonic() - begin)


@contextlib.contextmanager
def locked(path: Path, what: str) -> Iterator[None]:
    """Hold the lock of a file during the block. The lock ends with the process.

    The block runs without the lock if locks are unavailable, or after :data:`COMPILING_S_MAX`, with a
    warning: doing the work twice only takes time. ``what`` is a holder's activity, ``compiles NAME``.
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
