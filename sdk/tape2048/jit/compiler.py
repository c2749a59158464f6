"""``kernel``, the decorator that compiles a function, and its cache on disk.

Machine code is kept on disk, since compiling the game loop takes seconds. Numba itself decides by the file
of the outermost function whether a cache entry is stale: a change in a function that was inlined from another
module goes unseen, and the old machine code runs on. The cache directory is therefore named after a hash of
every module that contains a kernel and of everything those modules import when they load.

It is in ``$NUMBA_CACHE_DIR`` if set, else ``$CACHE_DIRECTORY`` (systemd), ``$XDG_CACHE_HOME`` or
``~/.cache``. Numba's cache index is a pickle, so directories that other users can write (``/tmp``) are never
used; without a usable one, each start compiles again.

Of processes that start together, as a recorder's workers do, one compiles and the others wait for its entry.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import os
import re
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import numba
from numba.core.compiler_lock import global_compiler_lock
from numba.core.event import Event, Listener, install_listener

F = TypeVar("F")

#: Longest wait for another process that compiles the same.
COMPILING_S_MAX = 120.0

#: Directories of earlier source states that are kept (for a checkout that goes back).
CACHE_STATES_KEPT_MAX = 4

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
        # By content: images are built with equal times, and a changed constant may leave the size.
        source = path.read_bytes()
        digest.update(f"\n{path}:{len(source)}\n".encode() + source)
    return digest.hexdigest()[:16]


def cache_base() -> Path | None:
    """Return the directory in which caches are kept; None without a home."""
    for variable in ("NUMBA_CACHE_DIR", "CACHE_DIRECTORY", "XDG_CACHE_HOME"):
        if base := os.environ.get(variable):
            return Path(base.split(":")[0] if variable == "CACHE_DIRECTORY" else base)
    try:
        return Path.home() / ".cache"
    except RuntimeError:  # no HOME and no entry in the user database
        return None


@functools.cache
def cache_dir() -> Path | None:
    """Return the directory of compiled kernels; None if none is writable."""
    base = cache_base()
    if base is None:
        return None
    ours = base / "tape2048"
    state = ours / f"kernels-{_source_state()}"
    try:
        fresh = not state.is_dir()
        state.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.utime(state)
        if not os.access(state, os.W_OK):
            return None
    except OSError:
        return None
    if fresh:
        drop_oldest(ours.glob("kernels-*"), CACHE_STATES_KEPT_MAX)
    return state


def drop_oldest(directories: Iterable[Path], kept_max: int) -> None:
    """Remove all directories but the last used ones."""
    found = []
    for path in directories:
        with contextlib.suppress(OSError):  # another worker may have removed it
            found.append((path.stat().st_mtime, path))
    for _, path in sorted(found, reverse=True)[kept_max:]:
        shutil.rmtree(path, ignore_errors=True)


def kernel(function: F) -> F:
    """Compile at the first call of each signature, without the GIL, and keep the machine code on disk.

    The arguments' types select the signature; pass boards as ``np.uint64``.
    """
    config: Any = numba.config
    if config.DISABLE_JIT:
        from tape2048.errors import ConfigError  # at the top, a changed message would compile all again

        raise ConfigError(
            "$NUMBA_DISABLE_JIT is set; expected numba's compiler, which the kernels need",
            hint="Unset NUMBA_DISABLE_JIT.",
        )
    dispatcher: Any = numba.njit(nogil=True, error_model="numpy")(function)
    directory = cache_dir()
    if directory is not None:
        # The setting is read only when caching is switched on: kernels of other packages do not move.
        before = config.CACHE_DIR
        config.CACHE_DIR = str(directory)
        try:
            dispatcher.enable_caching()
        finally:
            config.CACHE_DIR = before
        name = f"{dispatcher.__module__}.{dispatcher.__qualname__}"
        dispatcher.compile = _one_at_a_time(dispatcher.compile, directory, name)
    return dispatcher  # type: ignore[no-any-return]


@contextlib.contextmanager
def announced(announce: Callable[[], None]) -> Iterator[None]:
    """Call ``announce`` once, before the first function in this context that the cache does not hold."""
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
    """Make ``compile_``, which looks into the cache first, exclusive among processes for each signature.

    A kernel's lock is held while the kernels that it calls are compiled under theirs. None calls itself, so
    there is no deadlock; numba's lock among the threads of a process is taken first.
    """

    def compile_alone(signature: Any) -> Any:
        digest = hashlib.sha256(f"{name} {signature}".encode()).hexdigest()[:24]
        with global_compiler_lock, locked(directory / f"{digest}.lock"):
            return compile_(signature)

    return compile_alone


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a lock that ends with the process. Continue without it if locks are unavailable, or after a while.

    Its holder may have been stopped; compiling the same twice costs nothing but time.
    """
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError:
        yield
        return
    try:
        deadline = time.monotonic() + COMPILING_S_MAX
        while time.monotonic() < deadline:
            try:
                fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)  # not flock, which a forked child would keep
            except (BlockingIOError, PermissionError):
                time.sleep(0.02)
                continue
            except OSError:
                pass
            break
        yield
    finally:
        os.close(fd)
