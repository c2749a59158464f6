"""``tape2048 status``, ``rotate`` and ``stop``: show and control running recorders."""

from __future__ import annotations

import contextlib
import sys
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click
import msgspec

from tape2048.base.text import counted, printable
from tape2048.errors import RecorderError
from tape2048.players import player_text
from tape2048_recorder.status.control_socket import Running
from tape2048_recorder.status.status_report import Snapshot, Verdict, judge, snapshots
from tape2048_tools.terminal.click_extras import (
    ROOT,
    exit_on_findings,
    json_option,
    new_command,
    running_recorder,
)
from tape2048_tools.terminal.display import duration, number, reach_words, share, size
from tape2048_tools.terminal.output import cell, columns, complain, print_human, print_json, print_result

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from rich.console import RenderableType

#: A recorder writes its status at this interval.
WATCH_S = 1.0


@new_command(
    "tape2048 status",
    "tape2048 status /var/lib/tape2048/main/selfplay --watch",
    "tape2048 status selfplay --json | jq '.recorders[].status.steps_per_s'",
    "tape2048 status selfplay --instance default >/dev/null || echo not recording",
)
@click.argument("directory", type=ROOT, default="selfplay")
@click.option("--instance", metavar="TEXT", help="Name of the recorder.  [default: all in the directory]")
@click.option("--watch", is_flag=True, help="Update the display every second, until Ctrl-C.")
@json_option("Print one JSON document: each recorder with its verdict.")
def status(*, directory: Path, instance: str | None, watch: bool, as_json: bool) -> None:
    """Show the state of the recorders in DIRECTORY (default: selfplay).

    This reads the file that a recorder writes every second. A hung or killed recorder shows as stale. A
    recorder in another container or on another host is judged by the time of its last write. The exit code
    is 0 if a recorder is running (starting, recording, finishing or paused), 1 if all are draining, stopped
    or stale, and 3 if none ever ran.
    """
    if watch and as_json:
        raise click.UsageError("--watch and --json exclude each other: give only one")
    if watch:
        _watch(directory, instance)
        return
    found = _look(directory, instance)
    document = {
        "recorders": [
            {"verdict": msgspec.to_builtins(verdict), **msgspec.to_builtins(snapshot, str_keys=True)}
            for snapshot, verdict in found
        ]
    }
    print_result(document, lambda: _parts(found), as_json=as_json)
    exit_on_findings(not any(verdict.running for _, verdict in found))


Found = tuple[Snapshot, Verdict]


def _look(directory: Path, instance: str | None) -> list[Found]:
    return [(snapshot, judge(snapshot)) for snapshot in snapshots(directory, instance)]


def _watch(directory: Path, instance: str | None) -> None:
    from rich.console import Group
    from rich.live import Live

    if not sys.stdout.isatty():
        while True:
            print_human(*_parts(_look(directory, instance)))
            time.sleep(WATCH_S)
    with contextlib.suppress(KeyboardInterrupt), Live(auto_refresh=False) as live:
        while True:
            live.update(Group(*_parts(_look(directory, instance))), refresh=True)
            time.sleep(WATCH_S)


def _parts(found: Sequence[Found]) -> list[RenderableType]:
    parts: list[RenderableType] = []
    for snapshot, verdict in found:
        style = "bold green" if verdict.running else "bold red"
        parts += [cell(f"{snapshot.instance}: {verdict.text}", style), columns(_facts(snapshot, verdict))]
    return parts


def _facts(snapshot: Snapshot, verdict: Verdict) -> dict[str, str]:
    status, counts = snapshot.status, snapshot.status.counts
    written = datetime.fromtimestamp(snapshot.written_at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    workers = counted(status.workers, "worker")
    games = f"{number(status.games)} finished, {number(status.recorded_games)} of them on disk"
    facts: dict[str, str] = {
        "recorder": f"pid {snapshot.process.pid} on {snapshot.host}, tape2048 {snapshot.version}",
        "time": f"{duration(status.elapsed_s)} since {snapshot.started_at}, last status {written}",
        "plays": f"{status.player or player_text(snapshot.config)} with {status.workers_ready} of {workers}",
        "games": f"{games}, {counted(status.steps, 'step')}, mean score {number(status.mean_score)}",
        "reach": reach_words(status.reach) if status.games else "-",
        "session": f"{number(status.session_rows)} of {number(snapshot.config['rotate_steps'])} rows, "
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
    if status.shipping is not None:
        facts["ships"] = status.shipping.text
    if status.games_dropped:
        facts["dropped"] = dropped_words(status.games_dropped)
    if counts.games_forfeited:
        facts["forfeited"] = f"{counted(counts.games_forfeited, 'game')}, because of engine faults"
    if counts.pauses:
        kinds = ", ".join(f"{kind} {count}" for kind, count in sorted(counts.pauses.items()))
        facts["pauses"] = f"{kinds} ({duration(counts.paused_s)} in all)"
    if counts.worker_restarts:
        facts["restarts"] = f"{counted(counts.worker_restarts, 'worker')} ({counts.workers_silent} silent)"
    return facts


@new_command(
    "tape2048 rotate",
    "tape2048 rotate /data/selfplay --instance gpu0",
    'tape2048 show "$(tape2048 rotate selfplay)"',
)
@running_recorder("Longest time to wait.", 600.0)
@json_option("Print one JSON document: the path, or null.")
def rotate(*, directory: Path, instance: str | None, timeout_s: float, as_json: bool) -> None:
    """Have the recorder in DIRECTORY (default: selfplay) publish its open session, and print the path.

    The session holds all finished games, including games in the memory of workers. Games in progress go into
    the next session. If no game has finished since the last session, nothing is published and the exit code
    is 1. A worker that cannot write within 10 s (the disk is full) is skipped.
    """
    with Running(directory, instance) as recorder:
        path = recorder.rotate(timeout_s)
    if as_json:
        print_json({"path": path})
    elif path is not None:
        print_human(printable(path))
    else:
        complain("nothing to publish: no game has finished since the last session")
    exit_on_findings(path is None)


@new_command(
    "tape2048 stop",
    "tape2048 stop /data/selfplay --instance gpu0 --now",
    "tape2048 stop selfplay --timeout-s 300",
)
@running_recorder("Longest time to wait. The recorder continues to stop after that.  [default: unlimited]")
@click.option(
    "--drain/--now",
    default=True,
    help="Finish the games in progress first, for at most drain_timeout_s (default). Or drop them, and the "
    "finished games that workers have not written, which are at most flush_s old.",
)
@json_option("Print one JSON document: the last status.")
def stop(
    *, directory: Path, instance: str | None, drain: bool, timeout_s: float | None, as_json: bool
) -> None:
    """Stop the recorder in DIRECTORY (default: selfplay), and wait until it has ended.

    The recorder publishes its session and exits with 0, so that a service with `Restart=on-failure` stays
    stopped. If the recorder ends with an error, this command prints the error and exits with 10.
    """
    with Running(directory, instance) as recorder:
        recorder.stop(drain=drain)
        if not recorder.wait(timeout_s):
            raise RecorderError(
                f"the recorder (pid {recorder.process.pid}) did not end within {timeout_s:g} s",
                path=directory,
                hint="Wait, it continues to stop. `tape2048 stop --now` publishes the committed rows now.",
            )
        last = recorder.snapshot()
    if last.status.state != "stopped":
        raise RecorderError(
            f"the recorder (pid {recorder.process.pid}) ended without publishing its session",
            path=directory,
            hint="See its log for the reason. The next start publishes the committed rows.",
        )
    if last.status.error is not None:
        raise RecorderError(
            f"the recorder (pid {recorder.process.pid}) ended with an error: {last.status.error}",
            hint="See its log for details. The next start publishes the committed rows.",
        )
    status = last.status
    dropped = f"; dropped: {dropped_words(status.games_dropped)}" if status.games_dropped else ""
    text = (
        f"stopped ({printable(status.why)}): {counted(status.sessions, 'session')}, "
        f"{counted(status.recorded_games, 'game')}, {counted(status.recorded_rows, 'row')}{dropped}"
    )
    print_result(msgspec.to_builtins(last, str_keys=True), lambda: [text], as_json=as_json)


def in_model(model_share: float | None) -> str:
    return "" if model_share is None else f", {share(model_share)} of the time in the model"


def dropped_words(games: int) -> str:
    return (
        f"{counted(games, 'game')} of the workers: not started, in progress, or finished and not yet written"
    )
