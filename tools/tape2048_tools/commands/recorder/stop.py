"""``tape2048 stop``: stop a running recorder, and wait until it has ended."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from tape2048_tools.terminal.click_extras import json_option, new_command, running_recorder
from tape2048_tools.terminal.output import print_result, printable

if TYPE_CHECKING:
    from pathlib import Path


@new_command(
    "tape2048 stop",
    "tape2048 stop /data/selfplay --instance gpu0 --now",
    "tape2048 stop selfplay --timeout-s 300",
)
@running_recorder("Longest time to wait; the recorder continues to stop after that.  [default: unlimited]")
@click.option(
    "--drain/--now",
    default=True,
    help="Finish the games in play first (default; at most drain_timeout_s), or drop them and the finished "
    "games that workers have not written (at most those of flush_s).",
)
@json_option("Print one JSON document: the last status.")
def command(
    *, directory: Path, instance: str | None, drain: bool, timeout_s: float | None, as_json: bool
) -> None:
    """Stop the recorder of DIRECTORY (selfplay), and wait until it has ended.

    It publishes everything and exits with 0, so that a service stays stopped (`Restart=on-failure`). If it
    ends with an error, this command prints the error and exits with 40.
    """
    import msgspec

    from tape2048.base.text import counted
    from tape2048.errors import RecorderError
    from tape2048_recorder.status.control import Running
    from tape2048_tools.progress.jobs import dropped_words

    with Running(directory, instance) as recorder:
        recorder.stop(drain=drain)
        if not recorder.wait(timeout_s):
            raise RecorderError(
                f"the recorder (pid {recorder.process.pid}) did not end within {timeout_s:g} s",
                path=directory,
                hint="it continues to stop; `tape2048 stop --now` publishes at once what is confirmed",
            )
        last = recorder.snapshot()
    if last.status.state != "stopped":
        raise RecorderError(
            f"the recorder (pid {recorder.process.pid}) ended without publishing its session",
            path=directory,
            hint="its log has the reason; the next start publishes what is confirmed",
        )
    if last.status.error is not None:
        raise RecorderError(
            f"the recorder (pid {recorder.process.pid}) ended with an error: {last.status.error}",
            hint="its log has the details; the next start publishes what is confirmed and unpublished",
        )
    status = last.status
    dropped = f"; dropped: {dropped_words(status.games_dropped)}" if status.games_dropped else ""
    text = (
        f"stopped ({printable(status.why)}): {counted(status.sessions, 'session')}, "
        f"{counted(status.recorded_games, 'game')}, {counted(status.recorded_rows, 'row')}{dropped}"
    )
    print_result(msgspec.to_builtins(last, str_keys=True), lambda: [text], as_json=as_json)
