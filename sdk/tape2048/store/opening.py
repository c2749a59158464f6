"""Opening of the sessions below some paths."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from tape2048.base.text import counted
from tape2048.errors import CorpusError, EmptyCorpusError, OutDirError, Skipped, TapeError
from tape2048.formats.session import METADATA_DB
from tape2048.io.reading import reading
from tape2048.session.session import Session, sessions

if TYPE_CHECKING:
    from collections.abc import Iterable


def open_sessions(
    root: str | os.PathLike[str] | Iterable[str | os.PathLike[str]], damaged: Literal["raise", "skip"]
) -> tuple[tuple[Session, ...], list[Skipped]]:
    """Every session below some paths, opened, and those left out."""
    if damaged not in {"raise", "skip"}:
        raise ValueError(f"damaged={damaged!r}; expected 'raise' or 'skip'")
    roots = [root] if isinstance(root, str | os.PathLike) else list(root)
    paths = [path for each in roots for path in _session_paths(Path(each))]
    if not paths:
        named = ", ".join(str(Path(each)) for each in roots) or "an empty list of paths"
        raise EmptyCorpusError(
            "no session here", path=named, hint="sessions are directories named <start>_model=<tag>"
        )
    places = [_place(path) for path in paths]
    if len(set(places)) != len(places):
        twice = next(path for path, place in zip(paths, places, strict=True) if places.count(place) > 1)
        raise CorpusError("this session is named twice", path=twice, hint="its rows would count twice")
    opened, skipped = [], []
    for path in paths:
        try:
            opened.append(Session.open(path))
        except TapeError as error:
            if damaged == "raise":
                raise
            skipped.append(Skipped(path, error))
    if not opened:
        found = counted(len(skipped), "session")
        raise EmptyCorpusError(f"none of {found} is whole; the first: {skipped[0].error}")
    return tuple(opened), skipped


def _place(path: Path) -> object:
    """What is the same of two names of one directory."""
    try:
        status = path.stat()
    except OSError:
        return path  # opening it says what is wrong
    return status.st_dev, status.st_ino


def _session_paths(path: Path) -> list[Path]:
    with reading(path):
        is_session, there = (path / METADATA_DB).exists(), path.exists()
    if is_session:
        return [path]
    if not there:
        raise OutDirError("nothing stands at this path", path=path)
    return sessions(path)
