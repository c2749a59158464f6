r"""Text and numbers for people and files: counts in words, JSON of file names, integers from callers.

A file's name is bytes. Where those are not UTF-8, Python's text for them is nothing that JSON (or Arrow) can
hold, and is written with escapes instead: byte 0xff as ``\udcff``, as all that is printed says it.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from typing import SupportsIndex


def counted(count: int, noun: str) -> str:
    """A count and its noun: ``1 game``, ``2,346 games``."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def as_int(name: str, value: SupportsIndex) -> int:
    """An integer argument (NumPy's and PyTorch's too) as a Python int, which fits JSON and does not overflow.

    Args:
        name: of the argument, for the message.
        value: as it was given.

    Raises:
        ValueError: it is no integer.
    """
    try:
        return operator.index(value)
    except TypeError:
        raise ValueError(f"{name}={value!r}; expected a whole number") from None


def json_bytes(value: object) -> bytes:
    """A value as JSON, in UTF-8; text that is not valid Unicode is escaped.

    Raises:
        TypeError: JSON cannot hold it.
    """
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        return msgspec.json.encode(_escaped(msgspec.to_builtins(value)))


def _escaped(value: Any) -> Any:
    """The same dictionaries and lists, with all text valid Unicode."""
    if isinstance(value, dict):
        return {_escaped(key): _escaped(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_escaped(item) for item in value]
    return valid_text(value) if isinstance(value, str) else value


def valid_text(text: str) -> str:
    """The text, with what is not valid Unicode escaped."""
    return text.encode("utf-8", "backslashreplace").decode()


def is_utf8(text: str) -> bool:
    """Whether a text (a file's name) is valid Unicode, and JSON holds it as it is."""
    return valid_text(text) == text
