"""``tape2048 rotate``: have a running recorder publish its open session."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tape2048_tools.terminal.click_extras import exit_on_findings, json_option, new_command, running_recorder
from tape2048_tools.terminal.output import complain, print_human, print_json, printable

if TYPE_CHECKING:
    from pathlib import Path


@new_command(
    "tape2048 rotate",
    "tape2048 rotate /data/selfplay --instance gpu0",
    'tape2048 show "$(tape2048 rotate selfplay)"',
)
@running_recorder("Longest time to wait.", 600.0)
@json_option("Print one JSON document: the path, or null.")
def command(*, directory: Path, instance: str | None, timeout_s: float, as_json: bool) -> None:
    """Have the recorder of DIRECTORY (selfplay) publish its open session now; print the session's path.

    The session holds all finished games, including those in the memory of workers; games in play go into the
    next one. If no game has finished since the last session, nothing is published and the exit code is 1. A
    worker that cannot write within 10 s (the disk is full) is skipped.
    """
    from tape2048_recorder.status.control import Running

    with Running(directory, instance) as recorder:
        path = recorder.rotate(timeout_s)
    if as_json:
        print_json({"path": path})
    elif path is not None:
        print_human(printable(path))
    else:
        complain("nothing to publish: no game has finished since the last session")
    exit_on_findings(path is None)
