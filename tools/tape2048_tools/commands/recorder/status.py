"""``tape2048 status``: show the last status of the recorders of a directory, and whether it is current."""

from __future__ import annotations

import contextlib
import sys
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click
import msgspec

from tape2048.base.text import counted
from tape2048_tools.terminal.click_extras import ROOT, exit_on_findings, json_option, new_command
from tape2048_tools.terminal.display import duration, number, share, size
from tape2048_tools.terminal.output import cell, columns, print_human, print_result, printable

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from rich.console import RenderableType

    from tape2048_recorder.status.status_file import Snapshot, Verdict

#: A recorder writes its status at this interval.
WATCH_S = 1.0


@new_command(
    "tape2048 status",
    "tape2048 status /var/lib/tape2048/main/selfplay --watch",
    "tape2048 status selfplay --json | jq '.recorders[].status.steps_per_s'",
    "tape2048 status selfplay --instance default >/dev/null || echo not recording",
)
@click.argument("directory", type=ROOT, default="selfplay")
@click.option("--instance", metavar="TEXT", help="Name of the recorder.  [default: all of the directory]")
@click.option("--watch", is_flag=True, help="Update the display each second, until Ctrl-C.")
@json_option("Print one JSON document: each recorder with its verdict.")
def command(*, directory: Path, instance: str | None, watch: bool, as_json: bool) -> None:
    """Show the state of the recorders of DIRECTORY (selfplay).

    This reads the file that a recorder writes each second and needs nothing else from it: a hung or killed
    recorder shows as stale. The exit code is 0 if one is running (starting, recording or paused), 1 if all
    are draining, stopped or stale, and 44 if none ever ran.
    """
    if watch and as_json:
        raise click.UsageError("--watch and --json exclude each other: give one of them")
    if watch:
        _watch(directory, instance)
        return
    found = _look(directory, instance)
    document = {"recorders": [_document(*pair) for pair in found]}
    print_result(document, lambda: _parts(found), as_json=as_json)
    exit_on_findings(not any(verdict.running for _, verdict in found))


Found = tuple["Snapshot", "Verdict"]


def _look(directory: Path, instance: str | None) -> list[Found]:
    from tape2048_recorder.status.status_file import judge, snapshots

    return [(snapshot, judge(snapshot)) for snapshot in snapshots(directory, instance)]


def _watch(directory: Path, instance: str | None) -> None:
    from rich.console import Console, Group

    from tape2048_tools.progress.panel import Display

    if not sys.stdout.isatty():
        while True:  # one line a second, until the process is ended
            print_human(*(f"{printable(s.instance)}: {_line(s, v)}" for s, v in _look(directory, instance)))
            time.sleep(WATCH_S)
    with contextlib.suppress(KeyboardInterrupt), Display(Console(), transient=False) as display:
        while True:
            display.show(Group(*_parts(_look(directory, instance))))
            time.sleep(WATCH_S)


def _document(snapshot: Snapshot, verdict: Verdict) -> dict[str, Any]:
    return {"verdict": msgspec.to_builtins(verdict), **msgspec.to_builtins(snapshot, str_keys=True)}


def _line(snapshot: Snapshot, verdict: Verdict) -> str:
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


def _facts(snapshot: Snapshot, verdict: Verdict) -> dict[str, str]:
    from tape2048_tools.progress.jobs import dropped_words, in_model

    status, counts = snapshot.status, snapshot.status.counts
    written = datetime.fromtimestamp(snapshot.written_at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    workers = counted(status.workers, "worker")
    games = f"{number(status.games)} finished, {number(status.recorded_games)} recorded"
    facts: dict[str, str] = {
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
        facts["disk"] = f"{size(status.free_bytes)} free"
        if verdict.running and status.disk_full_s is not None:
            facts["disk"] += f", full in {duration(status.disk_full_s)} at this rate"
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
