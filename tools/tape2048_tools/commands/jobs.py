"""Jobs over many sessions, with a progress bar and a report on standard output."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import msgspec

from tape2048.base.text import counted
from tape2048.errors import MaintenanceError
from tape2048_tools.progress.panel import progress_bar
from tape2048_tools.sessions.session_jobs import Job, Outcome, refuse_namesakes, run_job
from tape2048_tools.sessions.summary import refuse_session
from tape2048_tools.terminal.click_extras import exit_on_findings
from tape2048_tools.terminal.output import cell, finding, print_human, print_json

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from rich.console import RenderableType


def do_job(
    job: Job,
    sessions: Sequence[Path],
    *,
    shard: tuple[int, int] | None,
    as_json: bool,
    quiet: bool,
    show: Callable[[dict[str, Any]], object] = lambda _: None,
) -> None:
    """Do a shard of a job, print the outcomes, and exit with 1 if a session failed."""
    assert job.out is not None
    out = job.out.absolute()
    job = dataclasses.replace(job, out=out)
    sessions = refuse_namesakes(sessions)
    refuse_session(out, "Choose a directory for the outputs, such as the parent of this session.")
    if any(out == session.parent for session in sessions):
        raise MaintenanceError(
            "found the directory of the sessions, expected a separate directory for the outputs",
            path=out,
            hint="Choose a different directory.",
        )
    job.begin()
    with progress_bar(job.operation, unit="sessions", quiet=quiet) as progress:
        outcomes = run_job(job, sessions, shard=shard or (0, 1), progress=progress)
    done = job.done(sessions)
    failed = [
        outcome for outcome in outcomes if not (outcome.error is None and outcome.result.get("ok", True))
    ]
    there = sum(outcome.status == "there" for outcome in outcomes)
    counts = {"made": len(outcomes) - there - len(failed), "there": there, "failed": len(failed)}
    if as_json:
        facts = {"operation": job.operation, "parameters": job.parameters, "out": str(out)}
        total = {"sessions": len(sessions), "complete": done, **counts}
        print_json({**facts, **total, "outcomes": msgspec.to_builtins(outcomes)})
    else:
        for outcome in outcomes:
            print_human(*failure(outcome))
            if outcome.error is None:
                show(outcome.result)
        if not quiet:
            words = f"{counts['made']} done now, {counts['there']} done before, {counts['failed']} failed"
            print_human(cell(f"{out}: {words}; {done} of {counted(len(sessions), 'session')} complete"))
    exit_on_findings(failed)


def failure(outcome: Outcome) -> list[RenderableType]:
    """Return the lines to print for a failed session; none for other sessions."""
    if outcome.error is None:
        return []
    return [
        cell(f"failed: {outcome.path}", "bold red"),
        finding(outcome.error, outcome.message, outcome.hint),
    ]
