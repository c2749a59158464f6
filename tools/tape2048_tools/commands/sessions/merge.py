"""``tape2048 merge``: many small sessions as one."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click

from tape2048.base.text import counted
from tape2048_tools.terminal.click_extras import PATH, Command, json_option, quiet_option
from tape2048_tools.terminal.display import size
from tape2048_tools.terminal.output import cell, print_human, print_json
from tape2048_tools.views.opening import progress_bar

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tape2048.maintenance.removal import Removed

EXIT_FAILED = 1


@click.command(
    cls=Command,
    examples=[
        "tape2048 merge selfplay/20260101T*_model=greedy --out merged",
        "tape2048 merge selfplay/20260101T*_model=greedy --out selfplay --remove",
    ],
)
@click.argument("sessions", metavar="SESSION...", type=PATH, nargs=-1, required=True)
@click.option(
    "--out",
    "out_dir",
    type=PATH,
    required=True,
    help="The directory that receives the new session; it gets the name of the earliest one.",
)
@click.option(
    "--remove", is_flag=True, help="Remove the originals when the new one is published; not those being read."
)
@json_option("One JSON document: the new session, what was removed.")
@quiet_option()
def command(*, sessions: Sequence[Path], out_dir: Path, remove: bool, as_json: bool, quiet: bool) -> None:
    """Make one new session of many small ones: same games, same labels, same splits.

    Each SESSION is of the same player, recorded alike. Rows are compared with their checksums while they are
    copied, and the new session is read back before it gets its name. With --remove the exit code is 1 where
    an original could not be removed or is being read; the new session then stands beside it.
    """
    from tape2048.maintenance.merging import merge_sessions

    if remove:
        _check_removable(sessions)
    with progress_bar(f"merging {counted(len(sessions), 'session')}", quiet=quiet) as progress:
        merged = merge_sessions(sessions, out_dir, progress=progress)
    removed = _remove(sessions) if remove else []
    staying = [outcome for outcome in removed if not outcome.gone]
    if as_json:
        print_json(
            {
                "path": str(merged.path),
                "sessions": merged.sessions,
                "rows": merged.rows,
                "games": merged.runs,
                "bytes": merged.bytes,
                "renumbered": merged.renumbered,
                "removed": [str(outcome.path) for outcome in removed if outcome.gone],
                "not_removed": [{"path": str(outcome.path), "why": _why(outcome)} for outcome in staying],
            }
        )
    else:
        counts = (merged.sessions, "session"), (merged.runs, "game"), (merged.rows, "row")
        what = ", ".join(counted(count, noun) for count, noun in counts)
        ids = "; games are numbered anew" if merged.renumbered else ""
        gone = f"; {counted(len(removed) - len(staying), 'original')} removed" if remove else ""
        print_human(
            cell(f"{merged.path}: {what}, {size(merged.bytes)}{ids}{gone}"),
            *(cell(f"not removed: {outcome.path}: {_why(outcome)}") for outcome in staying),
        )
    if staying:
        raise click.exceptions.Exit(EXIT_FAILED)


def _why(outcome: Removed) -> str:
    return "it is read" if outcome.error is None else str(outcome.error)


def _check_removable(sessions: Sequence[Path]) -> None:
    """Refuse before anything is written what would be refused after."""
    from tape2048.errors import MergeError
    from tape2048.maintenance.removal import explain_refusal

    for path in sessions:
        if not os.path.lexists(path):  # a pattern that matched nothing, say: merging says so
            continue
        why = explain_refusal(path.absolute())
        if why is None and (path / "embeddings.json").exists():
            why = "it has embeddings, which are not merged"
        if why is not None:
            raise MergeError(
                f"this session may not be removed: {why}; nothing was merged",
                path=path,
                hint="merge without --remove, or leave it out",
            )


def _remove(sessions: Sequence[Path]) -> list[Removed]:
    from tape2048.errors import TapeError
    from tape2048.maintenance.removal import Removed, clear_leftovers, remove_sessions
    from tape2048.session.locks import RemovalLock

    done: list[Removed] = []
    absolute = [path.absolute() for path in sessions]
    for root in sorted({path.parent for path in absolute}):
        here = [path for path in absolute if path.parent == root]
        try:
            with RemovalLock(root) as upkeep:
                clear_leftovers(root, upkeep)  # of others: `prune` says what could not be removed
                done += remove_sessions(root, here, upkeep)
        except TapeError as error:
            # What was said of them before does not hold: gone is what stays gone after a power failure.
            done = [outcome for outcome in done if outcome.path not in here]
            done += [Removed(path, gone=False, error=error) for path in here]
    return done
