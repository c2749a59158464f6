"""Files of players that sessions name without a directory, as ``best.ntuple@0123456789ab``.

The digits are the first of the file's SHA-256. A cache of this user keeps the path that was last used of each
file, so that a session's network is found wherever the session is.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from pathlib import Path

from tape2048.base.text import is_utf8
from tape2048.errors import StorageError
from tape2048.files.durable import replace_file
from tape2048.files.reading import map_path

_DIGITS = 12  # of the SHA-256
_NAMED = re.compile(r"(?P<name>.*)@(?P<digits>[0-9a-f]{12})", re.DOTALL)

#: What to do if :func:`known_file` finds no file of a name with digits.
HINT = (
    "Run the command in the file's directory, or pass the file once, and this machine remembers it: "
    "tape2048 validate SESSION --replay --weights FILE"
)


def named_file(path: Path) -> str:
    """Return a file's name and digits: ``best.ntuple@0123456789ab``; StorageError if it cannot be read."""
    return f"{path.name}@{_sha256(path)[:_DIGITS]}"


def remember_file(path: Path, sha256: str | None = None) -> None:
    """Keep the path of a file for :func:`known_file`, if the cache can be written.

    StorageError if the file cannot be read, which takes its SHA-256 if it is not given.
    """
    digits = (sha256 or _sha256(path))[:_DIGITS]
    text = str(path.absolute())
    with contextlib.suppress(OSError):
        kept = _kept(digits)
        if is_utf8(text) and not (kept.exists() and kept.read_text() == text):
            replace_file(kept, text.encode())


def known_file(name: str) -> Path:
    """Return the path of a file that :func:`named_file` named; any other name is a path.

    The file is searched in the working directory, then where it was last used. If it is in neither, the path
    has the digits, and does not exist.
    """
    match = _NAMED.fullmatch(name)
    if match is None or os.path.lexists(name):
        return Path(name)
    places = [Path(match["name"])]
    with contextlib.suppress(OSError):
        places.append(Path(_kept(match["digits"]).read_text()))
    for place in places:
        with contextlib.suppress(OSError, StorageError):
            if place.is_file() and _sha256(place).startswith(match["digits"]):
                return place
    return Path(name)


def has_digits(name: str) -> bool:
    return _NAMED.fullmatch(name) is not None


def _sha256(path: Path) -> str:
    return hashlib.sha256(map_path(path).data).hexdigest()


def _kept(digits: str) -> Path:
    from tape2048.jit.compiler import private_dir  # loads the compiler

    return private_dir("files") / digits
