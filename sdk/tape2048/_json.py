r"""JSON of facts in which names of files may stand.

A file's name is bytes. Where those are not UTF-8, Python's text for them is nothing that JSON (or Arrow) can
hold, and is written with escapes instead: byte 0xff as ``\udcff``, as all that is printed says it.
"""

from __future__ import annotations

from typing import Any

import msgspec

__all__ = ["is_utf8", "json_bytes", "valid_text"]


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
