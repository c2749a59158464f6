"""``tape2048 list``: the sessions in a directory, one line each."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from tape2048.errors import OutDirError, TapeError
from tape2048_tools._click import Command
from tape2048_tools.display import number, share, size
from tape2048_tools.output import cell, finding, print_human, print_json, print_lines, table
from tape2048_tools.roots import refuse_session

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tape2048_tools.summary import Summary

__all__ = ["command", "summaries_table"]

EXIT_FINDINGS = 1

#: With more sessions than this, scores are read only where they are asked for: they stand in a SQLite file
#: each, which takes two milliseconds; and the table is plain text, since rich takes as long for a line.
SCORES_SESSIONS_MAX = 500


@click.command(
    cls=Command,
    examples=[
        "tape2048 list",
        "tape2048 list /data/selfplay",
        "tape2048 list --scores",
        "tape2048 list --json | jq '.sessions[] | select(.recovered) | .name'",
    ],
)
@click.argument("root", type=click.Path(path_type=Path), required=False)
@click.option(
    "--scores/--no-scores",
    default=None,
    help=f"Read each game's score and tile, or not.  [default: with at most {SCORES_SESSIONS_MAX} sessions]",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON document: sessions, broken ones, totals.")
def command(*, root: Path | None, scores: bool | None, as_json: bool) -> None:
    """List the sessions in ROOT: rows, games, mean score, reach of the big tiles, size.

    ROOT is where `tape2048 record` would write (its out_dir) where not given. Costs time in proportion
    to the games, or without scores to the sessions; no rows are read. A session that cannot be opened is
    listed with its error, and makes the exit code 1. What stands in ROOT/.quarantine is only counted.
    """
    from tape2048._quarantine import quarantined

    directory = root if root is not None else _default_root()
    refuse_session(directory, f"one session: tape2048 show {directory}; or list the directory above it")
    try:
        good, broken, scores = _open_all(directory, scores)
    except OutDirError as error:
        error.hint = error.hint or f"name another directory, or record: tape2048 record --out-dir {directory}"
        raise
    put_away = len(quarantined(directory))
    if as_json:
        more = {"scores": scores, "quarantined": put_away}
        print_json(_document(directory, good, broken) | more)
        if broken:
            raise click.exceptions.Exit(EXIT_FINDINGS)
        return
    if len(good) > SCORES_SESSIONS_MAX:
        _print_many(good, scores=scores)
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
            *([summaries_table(good)] if good else []),
            *(finding(type(error).__name__, str(error), error.hint) for _, error in broken),
        )
    if put_away:
        print_human(cell(f"{put_away} in {directory / '.quarantine'}, each with its reason beside it"))
    if broken:
        raise click.exceptions.Exit(EXIT_FINDINGS)


def summaries_table(summaries: Sequence[Summary]) -> Any:
    """Sessions as a table with a line of totals: for ``list``, and for the end of a recording."""
    from tape2048_tools.summary import REACH_THRESHOLDS

    shown = table(
        "session",
        ">rows",
        ">games",
        ">mean score",
        ">best",
        *(f">{tile}" for tile in REACH_THRESHOLDS),
        ">size",
        *(["note"] if any(summary.recovered for summary in summaries) else []),
    )
    for summary in summaries:
        shown.add_row(cell(summary.name), *_numbers(summary), *(["recovered"] if summary.recovered else []))
    if len(summaries) > 1:
        shown.add_section()
        shown.add_row(cell(f"{len(summaries)} sessions", style="bold"), *_numbers(_total(summaries)))
    return shown


def _numbers(summary: Summary, *, scores: bool = True) -> list[str]:
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
    from tape2048_tools.summary import REACH_THRESHOLDS, Summary

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
    from tape2048.session import Session, session_names
    from tape2048_tools.brief import brief
    from tape2048_tools.summary import summarize

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


def _print_many(summaries: Sequence[Summary], *, scores: bool) -> None:
    from tape2048_tools.summary import REACH_THRESHOLDS

    tail = [">size", "note"]
    headings = ["session", ">rows", ">games"]
    if scores:
        headings += [">mean score", ">best", *(f">{tile}" for tile in REACH_THRESHOLDS)]
    lines = [
        [summary.name, *_numbers(summary, scores=scores), "recovered" if summary.recovered else ""]
        for summary in summaries
    ]
    lines.append([f"{len(summaries)} sessions", *_numbers(_total(summaries), scores=scores), ""])
    print_lines(headings + tail, lines)


def _default_root() -> Path:
    from tape2048_recorder.config import load_config

    return Path(load_config({}, os.environ).config.out_dir)
