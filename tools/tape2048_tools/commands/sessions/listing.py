"""``tape2048 list``: list the sessions in a directory, one line each."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from tape2048.errors import StorageError, TapeError
from tape2048_tools.sessions.roots import default_root, described, refuse_session
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

    from tape2048_tools.sessions.summary import Summary

#: With more sessions than this, scores are read only with --scores, as each session's SQLite file takes two
#: milliseconds, and the table is plain text, as rich takes as long for a line.
SCORES_SESSIONS_MAX = 500

#: Columns that a narrow terminal leaves out, in this order; the critic's own tiles stay.
_LESS_NEEDED = (">2048", ">4096", ">best", ">size")

#: Fields of one session, which a directory's total lacks.
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
    *,
    root: Path | str | None,
    scores: bool | None,
    cache: str | None,
    cache_max_mb: int,
    as_json: bool,
) -> None:
    """List the sessions in ROOT: rows, games, mean and best score, reach of the big tiles, size.

    ROOT is by default the out_dir of `tape2048 record`. The time is proportional to the games, or without
    scores to the sessions; no rows are read. An unreadable session is listed with its error, and the exit
    code is then 1. Sessions in ROOT/.quarantine are only counted. A narrow terminal leaves out the columns
    2048, 4096, best and size, in this order.

    ROOT may be the address of a store (s3://bucket/prefix): the run tables of its sessions are fetched, and
    no rows. What is in the cache is not fetched again.
    """
    if isinstance(root, str):
        good, broken = _open_remote(root, cache, cache_max_mb)
        _show(root, good, broken, scores=True, put_away=0, as_json=as_json)
        return
    from tape2048.maintenance.quarantine import list_quarantine

    directory = root or default_root()
    refuse_session(directory, f"show it with: tape2048 show {directory}; or list its parent directory")
    try:
        good, broken, scores = _open_all(directory, scores)
    except StorageError as error:
        error.hint = error.hint or f"name another directory, or record: tape2048 record --out-dir {directory}"
        raise
    put_away = len(list_quarantine(directory))
    _show(directory, good, broken, scores=scores, put_away=put_away, as_json=as_json)


def _show(
    directory: Path | str,
    good: list[Summary],
    broken: list[tuple[Path | str, TapeError]],
    *,
    scores: bool,
    put_away: int,
    as_json: bool,
) -> None:
    """Print the sessions of a directory, or of a store."""
    if as_json:
        print_json(_document(directory, good, broken) | {"scores": scores, "quarantined": put_away})
        exit_on_findings(broken)
        return
    findings = [finding(type(error).__name__, str(error), error.advice) for _, error in broken]
    if len(good) > SCORES_SESSIONS_MAX:
        print_lines(*_lines(good, scores=scores, note=True, gap=2))
        print_human(*findings, *([] if scores else ["scores are left out: --scores reads them"]))
    elif not good and not broken:
        hint = f"record some: tape2048 record --out-dir {directory}"
        print_human(cell(f"no sessions in {directory}"), hint)
    else:
        print_human(*([_table(good)] if good else []), *findings)
    if put_away:
        print_human(cell(f"{put_away} in {Path(directory, '.quarantine')}, each with its reason beside it"))
    exit_on_findings(broken)


def _lines(
    summaries: Sequence[Summary], *, scores: bool, note: bool, gap: int
) -> tuple[list[str], list[list[str]]]:
    """Return headings, a line for each session and one of totals; fewer columns for a narrow terminal."""
    from tape2048.session.labels import REACH_TILES

    headings = ["session", ">rows", ">games"]
    if scores:
        headings += [">mean score", ">best", *(f">{tile}" for tile in REACH_TILES)]
    headings += [">size", *(["note"] if note else [])]
    named = [(printable(summary.name), summary) for summary in summaries]
    if len(summaries) > 1:
        named.append((f"{len(summaries)} sessions", _total(summaries)))
    lines = [
        [
            name,
            *_numbers(summary, scores=scores),
            *([_note(summary)] if note else []),
        ]
        for name, summary in named
    ]
    kept = columns_that_fit(headings, lines, _LESS_NEEDED, gap=gap)
    return [headings[i] for i in kept], [[line[i] for i in kept] for line in lines]


def _table(summaries: Sequence[Summary]) -> Any:
    """Return the sessions as a table with a line of totals."""
    note = any(map(_note, summaries))
    headings, lines = _lines(summaries, scores=True, note=note, gap=1)
    shown = table(*headings)
    for line in lines[: len(summaries)]:
        shown.add_row(cell(line[0]), *line[1:])
    for line in lines[len(summaries) :]:
        shown.add_section()
        shown.add_row(cell(line[0], style="bold"), *line[1:])
    return shown


def _note(summary: Summary) -> str:
    notes = {"on tape": summary.storage == "tape", "recovered": summary.recovered}
    return ", ".join(name for name, holds in notes.items() if holds)


def _numbers(summary: Summary, *, scores: bool) -> list[str]:
    found = [number(summary.rows), number(summary.games)]
    if scores:
        scores_shown = number(summary.mean_score), number(summary.best_score)
        found += [*scores_shown, *map(share, summary.reach.values())]
    return [*found, size(summary.bytes)]


def _total(summaries: Sequence[Summary]) -> Summary:
    """Combine sessions into one summary; means and shares are over games."""
    from tape2048.session.labels import REACH_TILES
    from tape2048_tools.sessions.summary import Summary

    games = sum(summary.games for summary in summaries)

    def mean(values: Sequence[float | None]) -> float | None:
        pairs = zip(values, summaries, strict=True)
        total = sum(value * summary.games for value, summary in pairs if value is not None)
        return total / games if games else None

    return Summary(
        name="",
        path="",
        rows=sum(summary.rows for summary in summaries),
        games=games,
        mean_score=mean([summary.mean_score for summary in summaries]),
        best_score=max((one.best_score for one in summaries if one.best_score is not None), default=None),
        highest_tile=max((one.highest_tile for one in summaries if one.highest_tile), default=None),
        reach={tile: mean([summary.reach[tile] for summary in summaries]) for tile in REACH_TILES},
        bytes=sum(summary.bytes for summary in summaries),
        recovered=None,
        storage=None,
    )


def _document(
    directory: Path | str, good: list[Summary], broken: list[tuple[Path | str, TapeError]]
) -> dict[str, Any]:
    total = msgspec.to_builtins(_total(good), str_keys=True)
    return {
        "root": str(directory),
        "sessions": msgspec.to_builtins(good, str_keys=True),
        "broken": [described(*pair) for pair in broken],
        "total": {key: value for key, value in total.items() if key not in _OWN},
    }


def _open_remote(
    url: str, cache: str | None, cache_max_mb: int
) -> tuple[list[Summary], list[tuple[Path | str, TapeError]]]:
    """Return the sessions of a store, and the unreadable ones with their errors."""
    from tape2048.session.remote_session import open_source
    from tape2048_tools.sessions.summary import summarize

    good: list[Summary] = []
    broken: list[tuple[Path | str, TapeError]] = []
    for address, one in open_source(url, cache, cache_max_mb).sessions():
        if isinstance(one, TapeError):
            broken.append((address, one))
        else:
            good.append(summarize(one))
    return good, broken


def _open_all(
    directory: Path,
    scores: bool | None,  # noqa: FBT001 - as the command has it
) -> tuple[list[Summary], list[tuple[Path | str, TapeError]], bool]:
    """Return the sessions, the unreadable ones with their errors, and whether scores were read."""
    from tape2048.session.session import Session, session_names
    from tape2048_tools.sessions.summary import brief, summarize

    good: list[Summary] = []
    broken: list[tuple[Path | str, TapeError]] = []
    names = session_names(directory)
    scores = len(names) <= SCORES_SESSIONS_MAX if scores is None else scores
    before = str(directory / "x")[:-1]
    for name in names:
        try:
            path = before + name
            good.append((None if scores else brief(path, name)) or summarize(Session.open(path)))
        except TapeError as error:
            if os.path.lexists(path):  # otherwise it was removed after its name was read
                broken.append((Path(path), error))
        except FileNotFoundError:
            continue
    return good, broken, scores
