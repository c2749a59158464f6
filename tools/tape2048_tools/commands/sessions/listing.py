"""``tape2048 list``: the sessions in a directory, one line each."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from tape2048.errors import OutDirError, TapeError
from tape2048_tools.sessions.roots import refuse_session
from tape2048_tools.terminal.click_extras import PATH, Command, json_option
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

EXIT_FINDINGS = 1

#: With more sessions than this, scores are read only where they are asked for: they stand in a SQLite file
#: each, which takes two milliseconds; and the table is plain text, since rich takes as long for a line.
SCORES_SESSIONS_MAX = 500

#: What a narrow terminal goes without, one after the other: the critic's own tiles stay.
_LESS_NEEDED = (">2048", ">4096", ">best", ">size")

_RECOVERED = "recovered"


@click.command(
    cls=Command,
    examples=[
        "tape2048 list",
        "tape2048 list /data/selfplay",
        "tape2048 list --scores",
        "tape2048 list --json | jq '.sessions[] | select(.recovered) | .name'",
    ],
)
@click.argument("root", type=PATH, required=False)
@click.option(
    "--scores/--no-scores",
    default=None,
    help=f"Read each game's score and tile, or not.  [default: with at most {SCORES_SESSIONS_MAX} sessions]",
)
@json_option("One JSON document: sessions, broken ones, totals.")
def command(*, root: Path | None, scores: bool | None, as_json: bool) -> None:
    """List the sessions in ROOT: rows, games, mean score, reach of the big tiles, size.

    ROOT is where `tape2048 record` would write (its out_dir) where not given. Costs time in proportion
    to the games, or without scores to the sessions; no rows are read. A session that cannot be opened is
    listed with its error, and makes the exit code 1. What stands in ROOT/.quarantine is only counted. On
    a terminal that is too narrow, the columns 2048, 4096, best and size are left out, in this order.
    """
    from tape2048.maintenance.quarantine import list_quarantine

    directory = root if root is not None else _default_root()
    refuse_session(directory, f"one session: tape2048 show {directory}; or list the directory above it")
    try:
        good, broken, scores = _open_all(directory, scores)
    except OutDirError as error:
        error.hint = error.hint or f"name another directory, or record: tape2048 record --out-dir {directory}"
        raise
    put_away = len(list_quarantine(directory))
    if as_json:
        more = {"scores": scores, "quarantined": put_away}
        print_json(_document(directory, good, broken) | more)
        if broken:
            raise click.exceptions.Exit(EXIT_FINDINGS)
        return
    if len(good) > SCORES_SESSIONS_MAX:
        print_lines(*_lines(good, scores=scores, note=True, gap=2))
        good = []  # they are printed
        if broken or put_away or not scores:
            print_human(
                *(finding(type(error).__name__, str(error), error.hint) for _, error in broken),
                *([] if scores else ["scores are left out: --scores reads them"]),
            )
    elif not good and not broken:
        print_human(
            cell(f"no sessions in {directory}"), f"record some: tape2048 record --out-dir {directory}"
        )
    else:
        print_human(
            *([_table(good)] if good else []),
            *(finding(type(error).__name__, str(error), error.hint) for _, error in broken),
        )
    if put_away:
        print_human(cell(f"{put_away} in {directory / '.quarantine'}, each with its reason beside it"))
    if broken:
        raise click.exceptions.Exit(EXIT_FINDINGS)


def _lines(
    summaries: Sequence[Summary], *, scores: bool, note: bool, gap: int
) -> tuple[list[str], list[list[str]]]:
    """Headings, and a line for each session and one of totals; on a narrow terminal with fewer columns."""
    from tape2048_tools.sessions.summary import REACH_THRESHOLDS

    headings = ["session", ">rows", ">games"]
    if scores:
        headings += [">mean score", ">best", *(f">{tile}" for tile in REACH_THRESHOLDS)]
    headings += [">size", *(["note"] if note else [])]
    lines = [
        [
            printable(summary.name),
            *_numbers(summary, scores=scores),
            *([_RECOVERED if summary.recovered else ""] if note else []),
        ]
        for summary in summaries
    ]
    if len(summaries) > 1:
        total = _numbers(_total(summaries), scores=scores)
        lines.append([f"{len(summaries)} sessions", *total, *([""] if note else [])])
    kept = columns_that_fit(headings, lines, _LESS_NEEDED, gap=gap)
    return [headings[i] for i in kept], [[line[i] for i in kept] for line in lines]


def _table(summaries: Sequence[Summary]) -> Any:
    """Sessions as a table with a line of totals."""
    note = any(summary.recovered for summary in summaries)
    headings, lines = _lines(summaries, scores=True, note=note, gap=1)
    shown = table(*headings)
    for line in lines[: len(summaries)]:
        shown.add_row(cell(line[0]), *line[1:])
    for line in lines[len(summaries) :]:
        shown.add_section()
        shown.add_row(cell(line[0], style="bold"), *line[1:])
    return shown


def _numbers(summary: Summary, *, scores: bool) -> list[str]:
    return [
        number(summary.rows),
        number(summary.games),
        *(_scores(summary) if scores else []),
        size(summary.bytes),
    ]


def _scores(summary: Summary) -> list[str]:
    return [
        number(summary.mean_score),
        "-" if summary.best_tile is None else str(summary.best_tile),
        *(share(value) for value in summary.reach.values()),
    ]


def _total(summaries: Sequence[Summary]) -> Summary:
    """All sessions as if they were one: means and shares are over games, not over sessions."""
    from tape2048_tools.sessions.summary import REACH_THRESHOLDS, Summary

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
        best_tile=max((summary.best_tile for summary in summaries if summary.best_tile), default=None),
        reach={tile: mean([summary.reach[tile] for summary in summaries]) for tile in REACH_THRESHOLDS},
        bytes=sum(summary.bytes for summary in summaries),
        recovered=None,
    )


def _document(directory: Path, good: list[Summary], broken: list[tuple[Path, TapeError]]) -> dict[str, Any]:
    total = msgspec.to_builtins(_total(good), str_keys=True)
    return {
        "root": str(directory),
        "sessions": msgspec.to_builtins(good, str_keys=True),
        "broken": [
            {
                "name": path.name,
                "path": str(path),
                "error": type(error).__name__,
                "message": str(error),
                "hint": error.hint,
            }
            for path, error in broken
        ],
        "total": {key: total[key] for key in ("rows", "games", "mean_score", "best_tile", "reach", "bytes")},
    }


def _open_all(
    directory: Path,
    scores: bool | None,  # noqa: FBT001 - as the command has it
) -> tuple[list[Summary], list[tuple[Path, TapeError]], bool]:
    """The sessions, those that cannot be opened, and whether scores were read."""
    from tape2048.session.session import Session, session_names
    from tape2048_tools.sessions.brief import brief
    from tape2048_tools.sessions.summary import summarize

    good: list[Summary] = []
    broken: list[tuple[Path, TapeError]] = []
    names = session_names(directory)
    scores = len(names) <= SCORES_SESSIONS_MAX if scores is None else scores
    before = str(directory / "x")[:-1]
    for name in names:
        try:
            path = before + name
            good.append((None if scores else brief(path, name)) or summarize(Session.open(path)))
        except TapeError as error:
            if os.path.lexists(path):  # else it was removed since its name was read
                broken.append((Path(path), error))
        except FileNotFoundError:
            continue
    return good, broken, scores


def _default_root() -> Path:
    from tape2048_recorder.config.loading import load_config

    return Path(load_config({}, os.environ).config.out_dir)
