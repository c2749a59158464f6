"""The common part of the commands that write columns: sources, shares, ``--dry-run`` and the report."""

from __future__ import annotations

import functools
import time
from typing import TYPE_CHECKING, Any, NamedTuple

import click
import msgspec

from tape2048.base.text import counted, printable
from tape2048_tools.terminal.click_extras import (
    EXISTING,
    exit_on_findings,
    int_option,
    json_option,
    options,
    out_option,
    quiet_option,
    shard,
)
from tape2048_tools.terminal.display import duration, number, size
from tape2048_tools.terminal.output import complain, print_result, table

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from tape2048.session.columns import ColumnInfo
    from tape2048.session.session import Session

_RATE_S = 1.0  # time that --dry-run measures
_RATE_ROWS = 256  # rows of its first measurement


class Maker(NamedTuple):
    """A computation of columns.

    Attributes:
        label: description for people, such as ``critic default``.
        facts: facts for the report.
        columns: names, types and widths of the columns.
        make: function of a session and a range of its rows that returns the values by column.
        notes: function of a session that returns remarks for standard error.
        of: function of a session that returns its maker; None if all sessions have this maker.
    """

    label: str
    facts: Mapping[str, Any]
    columns: Sequence[ColumnInfo]
    make: Callable[[Session, range], Mapping[str, NDArray[Any]]]
    notes: Callable[[Session], list[str]] = lambda _: []
    of: Callable[[Session], Maker] | None = None


def column_options(what: str, chunk_rows: int = 65_536) -> Callable[[Any], Any]:
    return options(
        click.argument("sources", nargs=-1, required=True, type=EXISTING, metavar="SESSION|ROOT..."),
        out_option(
            "Write to DIR/<session> instead of the sessions. Read with columns=DIR.", "DIR", required=False
        ),
        int_option(
            "--chunk-rows", "Rows per write. A kill loses at most one write.", default=chunk_rows, least=1
        ),
        click.option(
            "--shard",
            "share",
            type=shard,
            metavar="I/N",
            help="Process share I of N of every session's rows.  [default: torchrun's rank, or all]",
        ),
        click.option("--force", is_flag=True, help=f"Replace existing {what}."),
        click.option("--dry-run", is_flag=True, help="Print the rows, size and duration, and write nothing."),
        json_option(),
        quiet_option(),
    )


def make_columns(
    operation: str,
    open_maker: Callable[[], Maker],
    *,
    sources: tuple[Path, ...],
    out: Path | None,
    share: tuple[int, int] | None,
    dry_run: bool,
    as_json: bool,
    quiet: bool,
    **how: Any,
) -> None:
    """Write the columns of sessions, print the outcomes, and exit with 1 if a session failed.

    ``how`` holds ``chunk_rows`` and ``force``.
    """
    from tape2048.errors import error_class
    from tape2048.loader.batches import launched_ranks
    from tape2048_tools.commands.jobs import failure
    from tape2048_tools.sessions.session_jobs import Job, refuse_namesakes, run_job

    share = share or launched_ranks()
    maker, found = open_maker(), _sessions_in(sources)
    if out:
        out = out.absolute()
        refuse_namesakes(found)
    facts = {**maker.facts, "columns": [column.name for column in maker.columns]}
    if dry_run:
        plan = _plan(found, maker, share[1])
        text = (
            f"{counted(plan['rows'], 'row')} of {counted(len(found), 'session')}: {size(plan['bytes'])}; "
            f"at {number(plan['rows_per_s'])} rows/s, "
            + (f"each of {share[1]} shares takes " if share[1] > 1 else "")
            + f"about {duration(plan['seconds'])}. Nothing was written."
        )
        print_result(facts | plan, lambda: [maker.label, text], as_json=as_json)
        return
    how |= {"columns": out, "share": share, "quiet": quiet}
    job = Job(operation, {}, functools.partial(_make_one, open_maker, **how), None)
    outcomes = run_job(job, found)
    failed = [outcome for outcome in outcomes if outcome.error is not None]
    if len(failed) == len(outcomes):
        first = failed[0]
        raise error_class(str(first.error))(first.message, hint=first.hint)
    report = [outcome.result for outcome in outcomes if outcome.error is None]
    for note in dict.fromkeys(note for line in report for note in line.pop("notes")):
        complain(note)
    document = {**facts, "sessions": report, "failed": msgspec.to_builtins(failed)}
    made = table("session", ">rows", ">computed", "")
    words = {"made": "complete", "there": "already complete", "waiting": "other shares are unfinished"}
    for line in report:
        counts = number(line["rows"]), number(line["rows_made"])
        made.add_row(printable(line["session"]), *counts, words[line["status"]])
    parts = [maker.label, made, *(part for outcome in failed for part in failure(outcome))]
    print_result(document, lambda: parts, as_json=as_json)
    exit_on_findings(failed)


def _sessions_in(sources: tuple[Path, ...]) -> list[Path]:
    from tape2048.errors import EmptyCorpusError, NotASessionError
    from tape2048_tools.sessions.summary import expand_sources

    found: list[Path] = []
    for source in sources:
        try:
            inside = [path.absolute() for path in expand_sources(source, may_be_empty=True)]
        except NotASessionError as error:
            hint = (
                f"Convert the runs to a session first: tape2048 convert {source} --to session --out SESSION"
            )
            raise NotASessionError(error.message, path=error.path, hint=hint) from error
        found += inside
        if not inside:
            complain(f"{source}: skipped, because it has no sessions")
    if not found:
        names = ", ".join(map(str, sources))
        raise EmptyCorpusError(f"no sessions in {names}", hint="Record some with `tape2048 record`.")
    return found


def _make_one(
    open_maker: Callable[[], Maker],
    path: Path,
    _draft: Path,
    *,
    columns: Path | None,
    quiet: bool,
    **how: Any,
) -> dict[str, Any]:
    from tape2048.session.column_draft import write_columns
    from tape2048.session.session import Session
    from tape2048_tools.progress.panel import progress_bar

    session, begin = Session.open(path, columns=columns), time.monotonic()
    opened = open_maker()
    maker = _of_session(opened, session)
    names = ", ".join(column.name for column in maker.columns)
    with progress_bar(f"{names} of {session.name}", unit="rows", quiet=quiet) as progress:
        make = functools.partial(maker.make, session)
        done = write_columns(session, maker.columns, make, progress=progress, **how)
    seconds = time.monotonic() - begin
    return {
        "session": session.name,
        **({} if maker is opened else maker.facts),
        "status": done.status,
        "rows": done.rows,
        "rows_made": done.rows_made,
        "bytes": done.rows * sum(column.row_bytes for column in done.columns),
        "seconds": round(seconds, 3),
        "rows_per_s": round(done.rows_made / max(seconds, 1e-9), 1),
        "notes": maker.notes(session),
    }


def _of_session(maker: Maker, session: Session) -> Maker:
    return maker if maker.of is None else maker.of(session)


def _plan(found: list[Path], maker: Maker, shares: int) -> dict[str, Any]:
    from tape2048.session.session import Session

    sessions = [Session.open(path, "mmap") for path in found]
    rows, largest = sum(map(len, sessions)), max(sessions, key=len)
    maker = _of_session(maker, largest)
    if len(largest):
        maker.make(largest, range(1))  # compiles, and sets up a device
    made, begin, seconds = 0, time.monotonic(), 0.0
    while made < len(largest) and seconds < _RATE_S:
        part = range(made, min(2 * made + _RATE_ROWS, len(largest)))
        maker.make(largest, part)
        made, seconds = part.stop, time.monotonic() - begin
    rate = made / max(seconds, 1e-9)
    return {
        "sessions": len(sessions),
        "rows": rows,
        "bytes": rows * sum(column.row_bytes for column in maker.columns),
        "rows_per_s": round(rate, 1),
        "seconds": round(rows / shares / max(rate, 1e-9), 3),
    }
