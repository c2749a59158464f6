"""``tape2048 recover``: publish what killed recorders left, as the next start would."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tape2048_tools.terminal.click_extras import PATH, Command, json_option
from tape2048_tools.terminal.output import cell, complain, print_human, print_json, printable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tape2048_recorder.status.report import Level, Status

EXIT_FINDINGS = 1

#: ``.<TS>_model=<tag>.<instance>.partial``; a tag may hold dots, an instance may not.
_PARTIAL = re.compile(r"\..*\.(?P<instance>[A-Za-z0-9_-]{1,64})\.partial")


class _Collected:
    """A reporter that keeps what it is told."""

    def __init__(self) -> None:
        self.events: list[tuple[Level, str]] = []

    def event(self, level: Level, message: str) -> None:
        self.events.append((level, message))

    def status(self, make_status: Callable[[], Status]) -> None:
        """Nothing is playing."""


@click.command(
    cls=Command,
    examples=[
        "tape2048 recover",
        "tape2048 recover /data/selfplay",
        "tape2048 recover selfplay --instance default --json",
    ],
)
@click.argument("root", type=PATH, required=False)
@click.option("--instance", "instances", multiple=True, help="Only what this instance left (repeatable).")
@json_option("One JSON document: sessions, and what was said.")
def command(*, root: Path | None, instances: Sequence[str], as_json: bool) -> None:
    """Publish what killed recorders left in ROOT: each confirmed block whose checksum holds.

    The next start of a recorder does the same; here nothing is played. ROOT is where `tape2048 record` would
    write where not given. Calling it again changes nothing. It is refused while a recorder of the instance
    runs. The exit code is 1 where something could not be recovered, or blocks did not match their checksums.
    """
    from tape2048.base.text import counted
    from tape2048_recorder.config.loading import load_config
    from tape2048_recorder.daemon.instance import Instance
    from tape2048_recorder.recording.publish import recover_all

    directory = (root or Path(load_config({}, os.environ).config.out_dir)).absolute()
    known = _locked_ever(directory)
    for instance in instances:
        if instance not in known:
            there = f"; those that did: {', '.join(known)}" if known else ""
            complain(f"{printable(directory)}: nobody recorded here as instance {instance!r}{there}")
    collected = _Collected()
    found: list[Path] = []
    for instance in _unfinished(directory, known):
        if instances and instance not in instances:
            continue
        lock = Instance(directory, instance)
        try:
            found += recover_all(directory, instance, collected)
        finally:
            lock.close()
    errors = [message for level, message in collected.events if level == "error"]
    if as_json:
        print_json(
            {
                "root": str(directory),
                "recovered": [str(path) for path in found],
                "events": [{"level": level, "message": message} for level, message in collected.events],
            }
        )
    else:
        print_human(
            *(cell(f"{level}: {message}") for level, message in collected.events),
            cell(
                f"{directory}: {counted(len(found), 'session')} recovered"
                if found
                else f"{directory}: nothing {'could be recovered' if errors else 'to recover'}"
            ),
        )
    if errors:
        raise click.exceptions.Exit(EXIT_FINDINGS)


def _locked_ever(root: Path) -> list[str]:
    """The instances of which there is a lock file: those that ever recorded in a directory."""
    from tape2048.session.locks import LOCKS_DIRECTORY, READERS_LOCK

    try:
        names = [entry.name for entry in (root / LOCKS_DIRECTORY).iterdir()]
    except OSError:
        return []
    return sorted(
        name.removesuffix(".lock") for name in names if name.endswith(".lock") and name != READERS_LOCK
    )


def _unfinished(root: Path, known: list[str]) -> list[str]:
    """Those of the known instances that left something unfinished.

    Other programs' unfinished directories have such names too (``convert`` writing a session).

    Raises:
        OutDirError: the directory cannot be listed.
    """
    from tape2048.errors import OutDirError

    try:
        names = [entry.name for entry in root.iterdir()]
    except OSError as error:
        raise OutDirError(f"cannot be listed: {error.strerror or error}", path=root) from error
    found = {match["instance"] for name in names if (match := _PARTIAL.fullmatch(name))}
    return sorted(found.intersection(known))
