"""The files of the pages: as they are, and as one script, compressed and named by its content."""

from __future__ import annotations

import gzip
import hashlib
import importlib.resources
import re
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

_IMPORT = re.compile(r"^import \{[^}]*\} from '\./(?P<name>\w+\.js)';\n", re.MULTILINE)
# A line's indentation, and comments of whole lines.
_DENSE = re.compile(r"^(?:[ \t]*//[^\n]*\n|[ \t]*/\*\*.*?\*/\n|[ \t]+)", re.MULTILINE | re.DOTALL)
_EXPORT = re.compile(r"^export (?=const |class |function |async )", re.MULTILINE)


def static_files() -> dict[str, bytes]:
    folder = importlib.resources.files(__package__) / "static"
    return {one.name: one.read_bytes() for one in folder.iterdir() if one.is_file()}


def bundle(files: Mapping[str, bytes], entry: str) -> str:
    """Return a module and its imports as one script. All names of the modules differ."""
    parts: dict[str, str] = {}

    def visit(name: str) -> None:
        text = files[name].decode()
        for match in _IMPORT.finditer(text):
            if match["name"] not in parts:
                visit(match["name"])
        parts[name] = _EXPORT.sub("", _IMPORT.sub("", text))

    visit(entry)
    return "\n".join(parts.values())


def dense(script: str) -> str:
    """Return a script without comments and indentation."""
    return _DENSE.sub("", script)


class Assets(NamedTuple):
    """The files of a viewer, each also compressed. ``version`` changes with their content."""

    page: bytes  # index.html, with addresses that name the version
    files: dict[str, tuple[bytes, bytes]]
    version: str


def served() -> Assets:
    """Return the files of a viewer: ``app.js`` is one script, because each request costs a round trip."""
    raw = static_files()
    files = {**raw, "app.js": dense(bundle(raw, "app.js")).encode()}
    version = hashlib.sha256(b"".join(files[name] for name in sorted(files))).hexdigest()[:16]
    index = re.sub(rb'"(/static/[^"]+)"', rb'"\1?v=' + version.encode() + b'"', files.pop("index.html"))
    return Assets(
        index, {name: (data, gzip.compress(data, mtime=0)) for name, data in files.items()}, version
    )
