"""``tape2048 recover``: publish the unfinished sessions of killed recorders."""

from __future__ import annotations

import contextlib
import re
from typing import TYPE_CHECKING

import click

from tape2048_tools.terminal.click_extras import ROOT, exit_on_findings, json_option, new_command
from tape2048_tools.terminal.output import cell, complain, print_result, printable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from tape2048_recorder.status.report import Level, Status

#: ``.<TS>_model=<tag>.<instance>.partial``; a tag may hold dots, an instance may not.
_PARTIAL = re.compile(r"\..*\.(?P<instance>[A-Za-z0-9_-]{1,64})\.partial")


class _Collected:
    """A reporter that collects events."""

    def __init__(self) -> None:
        self.events: list[tuple[Level, str]] = []

    def event(self, level: Level, message: str) -> None:
        self.events.append((level, message))

    def status(self, make_status: Callable[[], Status]) -> None:
        """Ignore the status: nothing plays."""


@new_command(
    "tape2048 recover",
    "tape2048 recover /data/selfplay",
    "tape2048 recover selfplay --instance default --json",
)
@click.argument("root", type=ROOT, required=False)
@click.option("--instance", "instances", multiple=True, help="Recover this instance only (repeatable).")
@json_option("Print one JSON document: sessions and events.")
def command(*, root: Path | None, instances: Sequence[str], as_json: bool) -> None:
    """Publish the unfinished sessions of killed recorders in ROOT: all committed, valid blocks.

    The next start of a recorder does the same. ROOT is by default the out_dir of `tape2048 record`. A second
    call changes nothing. The command is refused while a recorder of the instance runs. The exit code is 1 if
    a session could not be recovered, or blocks did not match their checksums.
    """
    from tape2048.base.text import counted
    from tape2048_recorder.daemon.instance import Instance
    from tape2048_recorder.recording.publish import recover_all
    from tape2048_tools.sessions.summary import default_root

    directory = (root or default_root()).absolute()
    known = _known_instances(directory)
    for instance in instances:
        if instance not in known:
            there = f"; found: {', '.join(known)}" if known else ""
            complain(f"{printable(directory)}: no recorder of instance {instance!r} ever ran here{there}")
    collected = _Collected()
    found: list[Path] = []
    for instance in _unfinished(directory, known):
        if instances and instance not in instances:
            continue
        with contextlib.closing(Instance(directory, instance)):
            found += recover_all(directory, instance, collected)
    errors = [message for level, message in collected.events if level == "error"]
    result = "nothing could be recovered" if errors else "nothing to recover"
    if found:
        result = f"{counted(len(found), 'session')} recovered"
    lines = [*(f"{level}: {message}" for level, message in collected.events), f"{directory}: {result}"]
    document = {
        "root": str(directory),
        "recovered": [str(path) for path in found],
        "events": [{"level": level, "message": message} for level, message in collected.events],
    }
    print_result(document, lambda: map(cell, lines), as_json=as_json)
    exit_on_findings(errors)


def _known_instances(root: Path) -> list[str]:
    """Return the instances that have a lock file: all that ever recorded in a directory."""
    from tape2048.session.locks import LOCKS_DIRECTORY, READERS_LOCK

    try:
        names = {path.name for path in (root / LOCKS_DIRECTORY).iterdir()} - {READERS_LOCK}
    except OSError:
        return []
    return sorted(name.removesuffix(".lock") for name in names if name.endswith(".lock"))


def _unfinished(root: Path, known: list[str]) -> list[str]:
    """Return the known instances with an unfinished session; unknown ones are drafts of other programs."""
    from tape2048.io.reading import reading

    with reading(root):
        found = [_PARTIAL.fullmatch(path.name) for path in root.iterdir()]
    return sorted({match["instance"] for match in found if match is not None}.intersection(known))
