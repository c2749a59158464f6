"""``kernel``: how this project compiles, in one place.

Compiled code is kept on disk, since compiling the game loop takes seconds. Numba's own rule for what
is stale looks at the file of the outermost function alone: a change in a function that was inlined
from another module goes unseen, and the old machine code runs on. The cache directory is therefore
named after the state of all our sources, and one such directory serves one state.

Where: ``$NUMBA_CACHE_DIR`` if set, else ``$CACHE_DIRECTORY`` (systemd), else ``$XDG_CACHE_HOME`` or
``~/.cache``, each with a folder of ours in it. Numba's cache index is a pickle, so a directory that
others can write (``/tmp``) is never used: where none of these works, each start compiles anew.

Processes that start together, as a recorder's workers do, would all compile the same: one does, and the
others wait for what it leaves in the cache.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import os
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numba
from numba.core.compiler_lock import global_compiler_lock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["cache_dir", "kernel"]

F = TypeVar("F")

#: The longest to wait for what another process compiles.
COMPILING_S_MAX = 120.0

#: Directories of earlier source states that are left in place (a checkout that goes back finds its own).
CACHE_STATES_KEPT_MAX = 4


def _source_state() -> str:
    """A name for the state of every module of the packages that hold or feed kernels."""
    sdk = next(parent for parent in Path(__file__).resolve().parents if parent.name == "tape2048")
    roots = [sdk, sdk.with_name("tape2048_recorder"), sdk.parent.parent / "recorder/tape2048_recorder"]
    digest = hashlib.sha256(numba.__version__.encode())
    for root in roots:
        for path in sorted(root.rglob("[!.]*.py")):
            # By content (a millisecond or two): images are built with all times alike, and a constant
            # that changes leaves the size as it was.
            source = path.read_bytes()
            digest.update(f"\n{path}:{len(source)}\n".encode() + source)
    return digest.hexdigest()[:16]


def _cache_base() -> Path | None:
    environ = os.environ
    if base := environ.get("NUMBA_CACHE_DIR"):
        return Path(base)
    if base := environ.get("CACHE_DIRECTORY"):
        return Path(base.split(":")[0])
    if base := environ.get("XDG_CACHE_HOME"):
        return Path(base)
    try:
        return Path.home() / ".cache"
    except RuntimeError:  # no HOME and no entry in the user database
        return None


@functools.cache
def cache_dir() -> Path | None:
    """Where compiled kernels are kept, or None where no directory can be written."""
    base = _cache_base()
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
        _drop_old_states(ours)
    return state


def _drop_old_states(ours: Path) -> None:
    states = []
    for path in ours.glob("kernels-*"):
        with contextlib.suppress(OSError):  # workers start together, and another one may be faster
            states.append((path.stat().st_mtime, path))
    for _, path in sorted(states, reverse=True)[CACHE_STATES_KEPT_MAX:]:
        shutil.rmtree(path, ignore_errors=True)


def kernel(function: F) -> F:
    """Compile at the first call, without the GIL, and keep the machine code on disk.

    The function's types are those of the first call's arguments; pass boards as ``np.uint64``.
    """
    dispatcher: Any = numba.njit(nogil=True, error_model="numpy")(function)
    directory = cache_dir()
    if directory is not None:
        # The setting is read when caching is switched on, and only then: nobody else's kernels move.
        config: Any = numba.config
        before = config.CACHE_DIR
        config.CACHE_DIR = str(directory)
        try:
            dispatcher.enable_caching()
        finally:
            config.CACHE_DIR = before
        name = f"{dispatcher.__module__}.{dispatcher.__qualname__}"
        dispatcher.compile = _one_at_a_time(dispatcher.compile, directory, name)
    return dispatcher  # type: ignore[no-any-return]


def _one_at_a_time(compile_: Callable[[Any], Any], directory: Path, name: str) -> Callable[[Any], Any]:
    """``compile_``, which looks into the cache first, by one process at a time for each signature.

    A kernel's lock is held while the kernels that it calls are compiled under theirs. None calls itself, so
    nobody waits in a circle; and numba's lock among the threads of a process is taken first.
    """

    def compile_alone(signature: Any) -> Any:
        digest = hashlib.sha256(f"{name} {signature}".encode()).hexdigest()[:24]
        with global_compiler_lock, _locked(directory / f"{digest}.lock"):
            return compile_(signature)

    return compile_alone


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold a lock that goes with the process; do without where the file system has none, or after a while.

    Who holds it may have been stopped: to compile what another one compiles costs time, and no more.
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
                fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)  # not flock: a forked child would hold it on
            except (BlockingIOError, PermissionError):
                time.sleep(0.02)
                continue
            except OSError:
                pass
            break
        yield
    finally:
        os.close(fd)
