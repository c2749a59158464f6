"""What the files of a publication say of the machine that made them."""

from __future__ import annotations

import getpass
import platform
import re
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from tape2048.base.text import pretty_json, printable
from tape2048.players import file_names, player_text
from tape2048.session.layout import MANIFEST, METADATA_DB
from tape2048.session.metadata import read_metadata
from tape2048.session.metadata_writer import flush_entry, write_metadata
from tape2048.session.public_facts import public_facts

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from tape2048.session.session import Session

#: Facts of columns that name a file.
_FILES = ("judge", "critic")

#: Facts of a session that its recorder's user chose.
_CHOSEN = ("model_tag", "instance")

#: Names of users and hosts that say nothing.
_COMMON = {"root", "localhost"}
_LETTERS_MIN = 3


def public_files(session: Session) -> dict[str, bytes]:
    """Return changed files of an early session, by key: its own name directories or a host.

    A session of another program has no manifest. It stays as it is.
    """
    found: dict[str, bytes] = {}
    facts, manifest = public_facts(session.meta), session.manifest
    if facts != session.meta and manifest is not None and METADATA_DB in manifest.files:
        table = read_metadata(session.path / METADATA_DB)
        if table.blocks is not None:
            with tempfile.TemporaryDirectory() as directory:
                path = Path(directory, METADATA_DB)
                write_metadata(
                    path, runs=table.runs, blocks=table.blocks, session=facts, start_boards=table.start_boards
                )
                entry, found[METADATA_DB] = flush_entry(path), path.read_bytes()
            files = {**manifest.files, METADATA_DB: entry}
            found[MANIFEST] = pretty_json(msgspec.structs.replace(manifest, files=files))
    for name in session.columns:
        path = session.path / f"{name}.json"
        if path.is_file():
            told = msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
            public = told | {key: file_names(told[key]) for key in _FILES if isinstance(told.get(key), str)}
            if public != told:
                found[path.name] = pretty_json(public)
    return {f"{session.path.name}/{key}": content for key, content in found.items()}


def names_in(several: Sequence[Session]) -> list[str]:
    """Return the players, judges, tags and instances that sessions name."""
    found = set()
    for session in several:
        found |= {f"player {player_text(session.meta)}"}
        found |= {f"{key} {session.meta[key]}" for key in _CHOSEN if key in session.meta}
        for name in session.columns:
            facts = session.column(name).info.facts
            found |= {f"{key} {file_names(str(facts[key]))}" for key in _FILES if key in facts}
    return sorted(map(printable, found))


def of_this_machine(several: Sequence[Session], files: Mapping[str, bytes]) -> Iterator[str]:
    """Yield a message for each file that has this machine's host name, or its user's name or home."""
    marks = {"the host's name": platform.node(), "the user's name": _user(), "the home directory": _home()}
    marks = {what: text for what, text in marks.items() if len(text) >= _LETTERS_MIN and text not in _COMMON}
    texts = {}
    for session in several:
        key = f"{session.path.name}/{METADATA_DB}"
        facts = public_facts(session.meta) if key in files else session.meta
        texts[key] = msgspec.json.encode(facts).decode()
    texts |= {
        key: content.decode(errors="replace")
        for key, content in files.items()
        if key.endswith((".md", ".json"))
    }
    for key, text in texts.items():
        for what, mark in marks.items():
            if re.search(rf"(?<!\w){re.escape(mark)}(?!\w)", text):
                yield f"{key} has {what}, {mark}"


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a container's user may have no name
        return ""


def _home() -> str:
    try:
        return str(Path.home())
    except RuntimeError:
        return ""
