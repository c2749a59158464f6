"""Opening of sessions: those below directories, and those of stores."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

from tape2048.base.text import counted
from tape2048.errors import CorpusError, EmptyCorpusError, MissingPathError, Skipped, TapeError
from tape2048.formats.session import METADATA_DB
from tape2048.io.objects import DirectoryStore, is_url
from tape2048.io.reading import reading
from tape2048.session.remote import CACHE_MAX_MB, SESSIONS, list_sessions
from tape2048.session.remote_session import open_remote
from tape2048.session.session import Session, sessions

if TYPE_CHECKING:
    from collections.abc import Iterable

#: Path or address; what tells two sessions apart; of a session in a store, the session or its error.
_Found: TypeAlias = "tuple[Path | str, object, Session | TapeError | None]"


def open_sessions(
    root: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    damaged: Literal["raise", "skip"] = "raise",
    cache: str | os.PathLike[str] | None = None,
    cache_max_mb: int | None = CACHE_MAX_MB,
) -> tuple[tuple[Session, ...], list[Skipped]]:
    """Open every session below some paths and URLs; return the open and the skipped ones, as ``Corpus.open``.

    Those of stores are opened by their run tables alone.
    """
    if damaged not in {"raise", "skip"}:
        raise ValueError(f"damaged={damaged!r}; expected 'raise' or 'skip'")
    found = _find_sessions(root, cache, cache_max_mb)
    seen: set[object] = set()
    for path, place, _ in found:
        if place in seen:
            raise CorpusError("this session is named twice", path=path, hint="its rows would count twice")
        seen.add(place)
    opened, skipped = [], []
    for path, _, one in found:
        try:
            if isinstance(one, TapeError):
                raise one
            opened.append(Session.open(path) if one is None else one)
        except TapeError as error:
            if damaged == "raise":
                raise
            skipped.append(Skipped(Path(path), error.detach()))
    if not opened:
        counts = counted(len(skipped), "session")
        raise EmptyCorpusError(f"none of {counts} is whole; the first: {skipped[0].error}")
    return tuple(opened), skipped


def _find_sessions(
    root: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    cache: str | os.PathLike[str] | None,
    cache_max_mb: int | None,
) -> list[_Found]:
    roots = [root] if isinstance(root, str | os.PathLike) else list(root)
    found: list[_Found] = []
    for each in roots:
        if cache is not None or is_url(each):
            # By name, which stands for the content: no session counts twice, from two stores either.
            sessions = open_remote(os.fspath(each), cache, cache_max_mb).sessions()
            found += [(address, address.rpartition("/")[2], one) for address, one in sessions]
        else:
            found += [(path, _identity(path), None) for path in _session_paths(Path(each))]
    if not found:
        named = ", ".join(str(Path(each)) for each in roots) or "an empty list of paths"
        raise EmptyCorpusError(
            "no session here", path=named, hint="sessions are directories named <start>_model=<tag>"
        )
    return found


def _identity(path: Path) -> object:
    """Return a value that is equal for two names of one directory."""
    try:
        status = path.stat()
    except OSError:
        return path  # opening it raises the error
    return status.st_dev, status.st_ino


def _session_paths(path: Path) -> list[Path]:
    with reading(path):
        is_session, exists = (path / METADATA_DB).exists(), path.exists()
    if is_session:
        return [path]
    if not exists:
        raise MissingPathError("nothing stands at this path", path=path)
    if (path / SESSIONS).is_dir():  # the store of a fleet, in a directory
        return [path / SESSIONS / name for name in list_sessions(DirectoryStore(path))]
    return sessions(path)
