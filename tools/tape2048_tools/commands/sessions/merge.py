"""``tape2048 merge``: merge many small sessions into one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from tape2048.base.text import counted
from tape2048_tools.progress.panel import progress_bar
from tape2048_tools.terminal.click_extras import (
    EXISTING,
    PATH,
    exit_on_findings,
    json_option,
    new_command,
    no_job,
    quiet_option,
)
from tape2048_tools.terminal.display import size
from tape2048_tools.terminal.output import cell, print_result

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


@new_command(
    "tape2048 merge selfplay/20260101T*_model=greedy --out merged",
    "tape2048 merge selfplay/20260101T*_model=greedy --out selfplay --remove",
)
@click.argument("sessions", metavar="SESSION...", type=EXISTING, nargs=-1, required=True)
@click.option(
    "--out",
    "out_dir",
    type=PATH,
    required=True,
    help="Directory of the new session, which gets the name of the earliest one.",
)
@click.option(
    "--remove", is_flag=True, help="Remove the originals after publishing, except those being read."
)
@no_job("give each process some of the sessions, such as those of a day: each makes one session of them")
@json_option("Print one JSON document: the new session, the removed ones.")
@quiet_option()
def command(*, sessions: Sequence[Path], out_dir: Path, remove: bool, as_json: bool, quiet: bool) -> None:
    """Merge many small sessions into one: same games, same labels, same splits.

    All sessions must have the same player, settings of recording and storage. Rows are checked against their
    checksums while they are copied, and the new session is read back before it is published. With --remove
    the exit code is 1 if an original could not be removed or is being read.
    """
    from tape2048.maintenance.merging import merge_sessions
    from tape2048_tools.sessions.pruning import check_removable, kept_lines, not_removed, remove_originals

    for path in sessions if remove else ():
        check_removable(path, "merge")
    with progress_bar(f"merging {counted(len(sessions), 'session')}", quiet=quiet) as progress:
        merged = merge_sessions(sessions, out_dir, progress=progress)
    removed = remove_originals(sessions) if remove else []
    staying = not_removed(removed)
    document = {
        "path": str(merged.path),
        "sessions": merged.sessions,
        "rows": merged.rows,
        "games": merged.runs,
        "bytes": merged.bytes,
        "renumbered": merged.renumbered,
        "removed": [str(outcome.path) for outcome in removed if outcome.gone],
        "not_removed": staying,
    }
    counts = (merged.sessions, "session"), (merged.runs, "game"), (merged.rows, "row")
    what = ", ".join(counted(count, noun) for count, noun in counts)
    ids = "; games are renumbered" if merged.renumbered else ""
    gone = f"; {counted(len(removed) - len(staying), 'original')} removed" if remove else ""
    lines = [f"{merged.path}: {what}, {size(merged.bytes)}{ids}{gone}", *kept_lines(staying)]
    print_result(document, lambda: map(cell, lines), as_json=as_json)
    exit_on_findings(staying)
