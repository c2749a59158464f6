"""``tape2048 list``: list the sessions in a directory, one line each."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from tape2048.errors import StorageError, TapeError
from tape2048.session.run_table import REACH_TILES
from tape2048_tools.sessions.roots import default_root, described, refuse_session
from tape2048_tools.sessions.summary import Summary, brief, read_each, summarize
from tape2048_tools.terminal.click_extras import (
    CACHE,
    PLACE,
    ROOT,
    exit_on_findings,
    json_option,
    new_command,
)
from tape2048_tools.terminal.display import number, share, size
from tape2048_tools.terminal.output import (
    cell,
    columns_that_fit,
    finding,
    print_human,
    print_json,
    print_lines,
    printable,
    table,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    Found = list[tuple[Path, Summary | TapeError]]

#: With more sessions than this, scores are read only with --scores, as each session's SQLite file takes two
#: milliseconds, and the table is plain text, as rich takes as long for a line.
SCORES_SESSIONS_MAX = 500

#: Columns that a narrow terminal omits, in this order; the tiles of the critic stay.
_LESS_NEEDED = (">2048", ">4096", ">best", ">size")

#: Fields of one session that a directory's total lacks.
_OWN = ("name", "path", "recovered", "storage")


@new_command(
    "tape2048 list",
    "tape2048 list /data/selfplay",
    "tape2048 list --scores",
    "tape2048 list s3://bucket/selfplay",
    "tape2048 list --json | jq '.sessions[] | select(.recovered) | .name'",
)
@click.argument("root", type=PLACE, required=False, shell_complete=ROOT.shell_complete)
@click.option(
    "--scores/--no-scores",
    default=None,
    help=f"Read the games' scores and tiles, or not.  [default: with at most {SCORES_SESSIONS_MAX} sessions]",
)
@CACHE
@json_option("Print one JSON document: sessions, broken ones, totals.")
def command(
    *, root: Path | str | None, scores: bool | None, cache: str | None, cache_max_mb: int, as_json: bool
) -> None:
    """List the sessions in ROOT: rows, games, mean and best score, reach of the big tiles, size.

    ROOT is by default the out_dir of `tape2048 record`. The time is proportional to the games, or without
    scores to the sessions; no rows are read. An unreadable session is listed with its error, and the exit
    code is then 1. Sessions in ROOT/.quarantine are only counted. A narrow terminal leaves out the columns
    2048, 4096, best and size, in this order.

    ROOT may be the address of a store (s3://bucket/prefix): the run tables of its sessions are fetched, and
    no rows. What is in the cache is not fetched again.
    """
    place = root or default_root()
    quarantined = 0
    found: list[tuple[Path | str, Summary | TapeError]] = []
    if isinstance(place, str):
        from tape2048.session.remote_session import open_remote

        scores = True
        for address, one in open_remote(place, cache, cache_max_mb).sessions():
            found.append((address, one if isinstance(one, TapeError) else summarize(one)))
    else:
        local, scores, quarantined = _in_directory(place, scores)
        found += local
    good = [one for _, one in found if not isinstance(one, TapeError)]
    broken = [(where, one) for where, one in found if isinstance(one, TapeError)]
    if as_json:
        total = msgspec.to_builtins(_total(good), str_keys=True)
        print_json(
            {
                "root": str(place),
                "sessions": msgspec.to_builtins(good, str_keys=True),
                "broken": [described(*pair) for pair in broken],
                "total": {key: value for key, value in total.items() if key not in _OWN},
                "scores": scores,
                "quarantined": quarantined,
            }
        )
    else:
        findings = [finding(type(error).__name__, str(error), error.advice) for _, error in broken]
        if len(good) > SCORES_SESSIONS_MAX:
            print_lines(*_lines(good, scores=scores, note=True, gap=2))
            print_human(*findings, *([] if scores else ["scores are left out: --scores reads them"]))
        elif found:
            print_human(*([_table(good)] if good else []), *findings)
        else:
            print_human(cell(f"no sessions in {place}"), f"record some: tape2048 record --out-dir {place}")
        if quarantined:
            where = Path(place, ".quarantine")
            print_human(cell(f"{quarantined} in {where}, each with its reason beside it"))
    exit_on_findings(broken)


def _in_directory(root: Path, scores: bool | None) -> tuple[Found, bool, int]:  # noqa: FBT001 - as the command
    """Return a directory's sessions, whether scores were read, and the number of quarantined sessions."""
    from tape2048.maintenance.removal import list_quarantine
    from tape2048.session.session import Session, session_names

    refuse_session(root, f"show it with: tape2048 show {root}; or list its parent directory")
    try:
        with_scores = len(session_names(root)) <= SCORES_SESSIONS_MAX if scores is None else scores

        def summary(path: Path) -> Summary:
            return (None if with_scores else brief(str(path), path.name)) or summarize(Session.open(path))

        return read_each(root, summary), with_scores, len(list_quarantine(root))
    except StorageError as error:
        error.hint = error.hint or f"name another directory, or record: tape2048 record --out-dir {root}"
        raise


def _lines(
    summaries: Sequence[Summary], *, scores: bool, note: bool, gap: int
) -> tuple[list[str], list[list[str]]]:
    """Return headings, a line for each session and a line of totals; fewer columns for a narrow terminal."""
    headings = ["session", ">rows", ">games"]
    if scores:
        headings += [">mean score", ">best", *(f">{tile}" for tile in REACH_TILES)]
    headings += [">size", *(["note"] if note else [])]
    named = [(printable(summary.name), summary) for summary in summaries]
    if len(summaries) > 1:
        named.append((f"{len(summaries)} sessions", _total(summaries)))
    lines = []
    for name, one in named:
        line = [name, number(one.rows), number(one.games)]
        if scores:
            line += [number(one.mean_score), number(one.best_score), *map(share, one.reach.values())]
        lines.append([*line, size(one.bytes), *([_note(one)] if note else [])])
    kept = columns_that_fit(headings, lines, _LESS_NEEDED, gap=gap)
    return [headings[i] for i in kept], [[line[i] for i in kept] for line in lines]


def _table(summaries: Sequence[Summary]) -> Any:
    """Return the sessions as a table with a line of totals."""
    headings, lines = _lines(summaries, scores=True, note=any(map(_note, summaries)), gap=1)
    shown = table(*headings)
    for i, line in enumerate(lines):
        is_total = i == len(summaries)
        if is_total:
            shown.add_section()
        shown.add_row(cell(line[0], style="bold" if is_total else ""), *line[1:])
    return shown


def _note(summary: Summary) -> str:
    notes = {"on tape": summary.storage == "tape", "recovered": summary.recovered}
    return ", ".join(name for name, holds in notes.items() if holds)


def _total(summaries: Sequence[Summary]) -> Summary:
    """Combine sessions into one summary; means and shares are over games."""
    games = sum(summary.games for summary in summaries)

    def mean(values: Sequence[float | None]) -> float | None:
        pairs = zip(values, summaries, strict=True)
        total = sum(value * summary.games for value, summary in pairs if value is not None)
        return total / games if games else None

    return Summary(
        rows=sum(summary.rows for summary in summaries),
        games=games,
        mean_score=mean([summary.mean_score for summary in summaries]),
        best_score=max((one.best_score for one in summaries if one.best_score is not None), default=None),
        highest_tile=max((one.highest_tile for one in summaries if one.highest_tile), default=None),
        reach={tile: mean([summary.reach[tile] for summary in summaries]) for tile in REACH_TILES},
        bytes=sum(summary.bytes for summary in summaries),
    )
