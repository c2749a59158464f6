"""``tape2048 status``: what the recorders of a directory last said, and whether that still holds."""

from __future__ import annotations

import contextlib
import sys
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click
import msgspec

from tape2048_tools.terminal.click_extras import PATH, Command, json_option
from tape2048_tools.terminal.display import number, share, size
from tape2048_tools.terminal.output import cell, columns, print_human, print_json, printable

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from rich.console import RenderableType

    from tape2048_recorder.status.report import Status
    from tape2048_recorder.status.status_file import Snapshot, Verdict

EXIT_NOT_RUNNING = 1

#: A recorder writes its status this often.
WATCH_S = 1.0


@click.command(
    cls=Command,
    examples=[
        "tape2048 status",
        "tape2048 status /var/lib/tape2048/main/selfplay --watch",
        "tape2048 status selfplay --json | jq '.recorders[].status.steps_per_s'",
        "tape2048 status selfplay --instance default >/dev/null || echo not recording",
    ],
)
@click.argument("directory", type=PATH, default="selfplay")
@click.option("--instance", metavar="TEXT", help="Only this one's; all of the directory where not given.")
@click.option("--watch", is_flag=True, help="Show it anew each second, until Ctrl-C.")
@json_option("One JSON document: each recorder with its verdict.")
def command(*, directory: Path, instance: str | None, watch: bool, as_json: bool) -> None:
    """Show what the recorders of DIRECTORY (selfplay) are doing.

    This reads the file that a recorder writes each second and needs nothing else of it: one that hangs or
    was killed shows as stale. The exit code is 0 where one is running (starting, recording or paused), and 1
    where all are draining, stopped or stale. Where none ever was it is 44.
    """
    if watch and as_json:
        raise click.UsageError("--watch is for people, --json for programs: ask for one of them")
    if watch:
        _watch(directory, instance)
        return
    found = _look(directory, instance)
    if as_json:
        print_json({"recorders": [_document(*pair) for pair in found]})
    else:
        print_human(*_parts(found))
    if not any(verdict.running for _, verdict in found):
        raise click.exceptions.Exit(EXIT_NOT_RUNNING)


Found = tuple["Snapshot", "Verdict"]


def _look(directory: Path, instance: str | None) -> list[Found]:
    from tape2048_recorder.status.status_file import judge, snapshots

    return [(snapshot, judge(snapshot)) for snapshot in snapshots(directory, instance)]


def _watch(directory: Path, instance: str | None) -> None:
    from rich.console import Group
    from rich.live import Live

    if not sys.stdout.isatty():
        while True:  # a line a second, until somebody ends it
            print_human(*(f"{printable(s.instance)}: {_line(s, v)}" for s, v in _look(directory, instance)))
            time.sleep(WATCH_S)
    with contextlib.suppress(KeyboardInterrupt), Live(auto_refresh=False) as live:
        while True:
            live.update(Group(*_parts(_look(directory, instance))), refresh=True)
            time.sleep(WATCH_S)


def _document(snapshot: Snapshot, verdict: Verdict) -> dict[str, Any]:
    return {
        "verdict": msgspec.to_builtins(verdict),
        **msgspec.to_builtins(snapshot, str_keys=True),
    }


def _line(snapshot: Snapshot, verdict: Verdict) -> str:
    from tape2048.base.text import counted

    status = snapshot.status
    return (
        f"{printable(verdict.text)}, {number(status.steps_per_s)} steps/s, {counted(status.games, 'game')}, "
        f"session {number(status.session_rows)}/{number(status.rotate_steps)} rows, "
        f"{status.sessions} published"
    )


def _parts(found: Sequence[Found]) -> list[RenderableType]:
    parts: list[RenderableType] = []
    for snapshot, verdict in found:
        style = "bold green" if verdict.running else "bold red"
        parts.append(cell(f"{snapshot.instance}: {verdict.text}", style))
        parts.append(columns(_facts(snapshot, verdict)))
    return parts


def _facts(snapshot: Snapshot, verdict: Verdict) -> dict[str, object]:
    from tape2048.base.text import counted
    from tape2048_tools.terminal.display import duration
    from tape2048_tools.views.recording import dropped_words, in_model

    status, counts = snapshot.status, snapshot.status.counts
    written = datetime.fromtimestamp(snapshot.written_at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    workers = counted(status.workers, "worker")
    games = f"{number(status.games)} finished, {number(status.recorded_games)} recorded"
    facts: dict[str, object] = {
        "recorder": f"pid {snapshot.process.pid} on {snapshot.host}, tape2048 {snapshot.version}",
        "time": f"{duration(status.elapsed_s)} since {snapshot.started_at}, written {written}",
        "plays": f"{snapshot.config['player']} with {status.workers_ready} of {workers}",
        "games": f"{games}, {counted(status.steps, 'step')}, mean score {number(status.mean_score)}",
        "reach": "   ".join(f"{tile} {share(value)}" for tile, value in status.reach.items()) or "-",
        "session": f"{number(status.session_rows)} of {number(status.rotate_steps)} rows, "
        f"{counts.sessions} published ({size(counts.session_bytes)})",
    }
    if verdict.running:
        facts["rate"] = f"{number(status.steps_per_s)} steps/s{in_model(status.model_share)}"
    if status.free_bytes is not None:
        facts["disk"] = f"{size(status.free_bytes)} free" + (_until_full(status) if verdict.running else "")
    if status.rows_waiting or status.sessions_pending:
        rows, sessions = counted(status.rows_waiting, "row"), counted(status.sessions_pending, "session")
        facts["waiting"] = f"{rows}, {sessions}"
    if status.games_dropped:
        facts["dropped"] = dropped_words(status.games_dropped)
    if counts.pauses:
        kinds = ", ".join(f"{kind} {count}" for kind, count in sorted(counts.pauses.items()))
        facts["pauses"] = f"{kinds} ({duration(counts.paused_s)} in all)"
    if counts.worker_restarts:
        facts["restarts"] = f"{counted(counts.worker_restarts, 'worker')} ({counts.workers_silent} silent)"
    return facts


def _until_full(status: Status) -> str:
    from tape2048_tools.terminal.display import duration

    return "" if status.disk_full_s is None else f", full in {duration(status.disk_full_s)} at this rate"
