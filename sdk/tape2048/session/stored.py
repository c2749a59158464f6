"""Sessions in stores. The modules of stores are imported when a store is named."""

from __future__ import annotations

import contextlib
import os
from operator import methodcaller
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from tape2048.base.lazy import load_named
from tape2048.base.text import counted
from tape2048.base.threads import map_ordered
from tape2048.session.session import session_names

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tape2048.session.session import Session

#: The directory of a store that has its sessions.
SESSIONS = "sessions"

#: The default bound of a cache, in MB: about a dozen sessions of 1e9 rows on tape.
CACHE_MAX_MB = 20_000

_OPEN = "tape2048.stores.remote_session:open_remote"
_LIST = "tape2048.stores.remote:list_directory"

#: Sessions that are fetched at the same time.
_FETCHES = 4


def is_url(path: object) -> bool:
    """Check whether a path is the address of a store: text with a scheme."""
    return isinstance(path, str) and "://" in path


def open_stored(url: str, cache: str | os.PathLike[str] | None, max_mb: int | None) -> Any:
    """Open a store of sessions, and its cache."""
    return load_named(_OPEN)(url, cache, max_mb)


def session_paths(root: Path) -> list[str]:
    """List the paths of the sessions in a directory; if it is a store, without removed sessions.

    Errors are as for :func:`tape2048.session.session.sessions`. The paths are plain text, because 10,000
    ``Path`` objects take longer.
    """
    names = load_named(_LIST)(root) if (root / SESSIONS).is_dir() else []
    inside, names = (root / SESSIONS, names) if names else (root, session_names(root))
    return [f"{inside}{os.sep}{name}" for name in names]


class Hold:
    """A context manager that holds sessions: their rows stay mapped until it is closed or freed."""

    def __init__(self) -> None:
        self._sessions: list[Any] = []
        self._pid = os.getpid()

    @classmethod
    def of(cls, sessions: Iterable[Session]) -> Hold:
        remote: list[Any] = [session for session in sessions if session.is_remote]
        check_fits(remote, "these rows are read together")
        hold = cls()

        def acquire(session: Any) -> None:
            session.acquire()
            hold._sessions.append(session)

        try:
            for _ in map_ordered(acquire, remote, min(_FETCHES, max(1, len(remote)))):
                pass
        except BaseException:
            hold.close()
            raise
        return hold

    def close(self) -> None:
        """Release the sessions. A forked child does not release the sessions of its parent."""
        while self._sessions and self._pid == os.getpid():
            self._sessions.pop().release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self, suppress: Any = contextlib.suppress) -> None:
        with suppress(Exception):  # when the interpreter exits, globals are missing
            self.close()


def check_fits(sessions: Sequence[Session], what: str, hint: str | None = None) -> None:
    """Raise CorpusError if all of these sessions together exceed the limit of the cache."""
    remote: dict[str, Any] = {session.name: session for session in sessions if session.is_remote}
    if remote:
        size = sum(session.bytes for session in remote.values())
        one = next(iter(remote.values()))
        one.source.cache.check_fits(size, f"{counted(len(remote), 'session')}: {what}", hint)


def prefetch(sessions: Iterable[Session], threads: int | None = None) -> None:
    remote: list[Any] = [session for session in sessions if session.is_remote]
    for _ in map_ordered(methodcaller("prefetch"), remote, threads or min(_FETCHES, max(1, len(remote)))):
        pass
