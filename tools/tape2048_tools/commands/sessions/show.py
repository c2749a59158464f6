"""``tape2048 list`` and ``tape2048 show``: a line per session, one session in full, or a summary of many."""

from __future__ import annotations

import sys
import textwrap
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, cast

import click
import msgspec
import numpy as np

from tape2048.base.intervals import wilson
from tape2048.base.text import counted, printable
from tape2048.errors import StorageError, TapeError
from tape2048.files.reading import reading
from tape2048.players import player_label, player_name
from tape2048.session.layout import METADATA_DB
from tape2048.session.recorded_order import order_of
from tape2048.session.run_table import REACH_TILES
from tape2048.session.session import Session
from tape2048.session.stored import open_stored, session_paths
from tape2048.session.tiles_shown import tiles_of_players, tiles_shown
from tape2048.short_names import short_names
from tape2048_tools.sessions.summary import (
    Summary,
    brief,
    column_facts,
    default_root,
    described,
    distribution,
    find_twice,
    label_prevalence,
    players_of,
    read_each,
    refuse_session,
    scores as scores_of,
    session_bytes,
    session_place,
    sum_up,
    summarize,
    total_of,
    twice_lines,
)
from tape2048_tools.terminal.click_extras import (
    CACHE,
    COLUMNS,
    PLACE,
    exit_on_findings,
    json_option,
    new_command,
)
from tape2048_tools.terminal.display import board, duration, number, share, share_between, size, with_error
from tape2048_tools.terminal.output import (
    cell,
    columns,
    columns_that_fit,
    error_finding,
    print_human,
    print_json,
    print_lines,
    print_result,
    table,
)

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from rich.console import RenderableType

    from tape2048.loader.duplicates import Doubled

#: With more sessions, scores are read only with --scores, because each SQLite file takes 2 ms, and the table
#: is plain text, because rich takes as long for a line.
SCORES_SESSIONS_MAX = 500

_UNREAD = "Without scores, a game that two sessions hold counts twice. Pass --scores to read the scores."

#: Characters of a line of a player's name in tables on a terminal.
_PLAYER_WIDTH = 26

#: Columns that a narrow terminal omits, in this order, after the smaller tiles.
_LESS_NEEDED = (">best", "player", ">size")

#: Fields of one session that a directory's total lacks.
_OWN = ("name", "path", "player", "player_name", "recovered", "storage", "columns")


@new_command(
    "tape2048 list",
    "tape2048 list /data/selfplay",
    "tape2048 list --scores",
    "tape2048 list s3://bucket/selfplay",
    "tape2048 list --json | jq '.sessions[] | select(.recovered) | .name'",
)
@click.argument("root", type=PLACE, required=False)
@click.option(
    "--scores/--no-scores",
    default=None,
    help=f"Read the games' scores and tiles, or not.  [default: with at most {SCORES_SESSIONS_MAX} sessions]",
)
@CACHE
@json_option("Print one JSON document: sessions, unreadable sessions, totals.")
def list_sessions(
    *, root: Path | str | None, scores: bool | None, cache: str | None, cache_max_mb: int, as_json: bool
) -> None:
    """List the sessions in ROOT: player, rows, games, mean and best score, reach of the big tiles, size.

    ROOT is by default the out_dir of `tape2048 record`. This reads the run tables, and no rows. With more
    than 500 sessions and without --scores, it reads the manifests only, which is faster.

    Mean scores have 95% intervals, and the totals of several players are by player. A game that two sessions
    hold counts once in the totals, and a line names the sessions. With manifests
    only, it counts twice. An unreadable session is listed with its error, and the exit code is then 1.
    Sessions in ROOT/.quarantine are only counted. A narrow terminal omits the columns 2048, 4096, best,
    player and size, in this order.

    ROOT can be the address of a store (s3://bucket/prefix), whose sessions are listed by lease, too. Only run
    tables are fetched, and cached files are not fetched again.
    """
    from tape2048.maintenance.removal import list_quarantine

    place, quarantined, is_few = root or default_root(), 0, True
    opened: list[Session] = []
    found: Sequence[tuple[Path | str, Summary | TapeError]]

    def read(session: Session) -> Summary:
        opened.append(session)
        return summarize(session)

    def read_path(path: Path) -> Summary:
        known = None if scores else brief(str(path), path.name)
        whole = read(Session.open(path, "mmap")) if known is None or is_few else None
        return known or cast("Summary", whole)

    if isinstance(place, str):
        scores = True
        remote = open_stored(place, cache, cache_max_mb).sessions()
        found = [(name, one if isinstance(one, TapeError) else read(one)) for name, one in remote]
    else:
        refuse_session(place, f"Show it with: tape2048 show {place}; or list its parent directory.")
        try:
            is_few = len(session_paths(place)) <= SCORES_SESSIONS_MAX
            scores = is_few if scores is None else scores
            found = read_each(place, read_path)
            quarantined = len(list_quarantine(place))
        except StorageError as error:
            error.hint = error.hint or f"Give another directory, or record: tape2048 record --out {place}"
            raise
    good, broken = _divided(found, opened)
    # Without the run tables, it is unknown which games are in two sessions.
    total, players, twice = _total(good, opened if is_few or scores else [], scores=scores)
    twice = twice if is_few or scores else None
    if as_json:
        totals = msgspec.to_builtins(total, str_keys=True)
        print_json(
            {
                "root": str(place),
                "sessions": msgspec.to_builtins(good, str_keys=True),
                "broken": [described(*pair) for pair in broken],
                "total": {key: value for key, value in totals.items() if key not in _OWN},
                "players": players,
                "twice": twice,
                "scores": scores,
                "quarantined": quarantined,
                "leases": _by_lease(opened),
            }
        )
    else:
        findings = [error_finding(error) for _, error in broken]
        if len(good) > SCORES_SESSIONS_MAX:
            print_lines(*_lines(good, total, players, scores=scores, note=True))
            print_human(*findings, *([] if scores else [_UNREAD]))
        elif found:
            print_human(*([_table(good, total, players)] if good else []), *findings)
        else:
            print_human(cell(f"no sessions in {place}"), f"record some: tape2048 record --out {place}")
        _print_leases(_by_lease(opened))
        print_human(*map(cell, twice_lines(twice or ())))
        if quarantined:
            there = f"{counted(quarantined, 'session')} in {place}/.quarantine"
            print_human(cell(f"{there}, each with a file that states the reason"))
    exit_on_findings(broken)


def _total(
    good: Sequence[Summary], opened: Sequence[Session], *, scores: bool
) -> tuple[Summary, list[dict[str, Any]], list[Doubled] | None]:
    """Return the sum of sessions, the sum for each player if ``scores``, and games in two sessions."""
    counts: dict[str, Any] = {key: sum(getattr(one, key) for one in good) for key in ("rows", "games")}
    players: list[dict[str, Any]] = []
    twice: list[Doubled] = []
    if opened:
        runs, twice = find_twice(opened)
        every = total_of(runs)
        players = players_of(opened, runs) if scores else []
        # A mean over several players is the mean of no player.
        counts = every if len(players) == 1 else {key: every[key] for key in counts}
    return Summary(bytes=sum(one.bytes for one in good), **counts), players, twice


def _divided(
    found: Sequence[tuple[Path | str, Summary | TapeError]], opened: Sequence[Session]
) -> tuple[list[Summary], list[tuple[Path | str, TapeError]]]:
    good = [one for _, one in found if not isinstance(one, TapeError)]
    if len(opened) == len(good):  # otherwise, the names decide
        good = [good[i] for i in order_of(opened, [session.runs["run_id"] for session in opened])]
    return good, [(where, one) for where, one in found if isinstance(one, TapeError)]


def _by_lease(opened: Sequence[Session]) -> list[dict[str, Any]]:
    """Return the sessions, games and the age of the newest session of each lease of a store."""
    from tape2048.stores.remote import RemoteName

    found: dict[str, list[Session]] = {}
    for session in opened:
        name = RemoteName.parse(session.name)
        if name and name.label:
            found.setdefault(name.label, []).append(session)
    return [
        {
            "lease": lease,
            "sessions": len(sessions),
            "games": sum(len(session.runs) for session in sessions),
            "newest": (newest := max(str(session.meta.get("ended_at", "")) for session in sessions)),
            "age_s": _age_s(newest),
        }
        for lease, sessions in sorted(found.items())
    ]


def _print_leases(leases: Sequence[dict[str, Any]]) -> None:
    rows = []
    for one in leases:
        age = "-" if one["age_s"] is None else f"{duration(one['age_s'])} ago"
        rows.append([one["lease"], number(one["sessions"]), number(one["games"]), age])
    if rows:
        print_lines(["lease", ">sessions", ">games", ">newest"], rows)


def _age_s(moment: str) -> float | None:
    try:
        return max(0.0, (datetime.now(UTC) - datetime.fromisoformat(moment)).total_seconds())
    except ValueError:
        return None


def _lines(
    summaries: Sequence[Summary],
    total: Summary,
    players: Sequence[dict[str, Any]],
    *,
    scores: bool,
    note: bool,
    is_table: bool = False,
) -> tuple[list[str], list[list[str]]]:
    headings = ["session", *(["player"] if scores else []), ">rows", ">games"]
    tiles = tiles_shown(one.reach for one in (*summaries, total))
    if scores:
        headings += [">mean score", ">best", *(f">{tile}" for tile in tiles)]
    headings += [">size", *(["note"] if note else [])]
    named = [(printable(summary.name), summary) for summary in summaries]
    if len(summaries) > 1:
        several = players if 1 < len(players) < len(summaries) else ()
        named += [(counted(one["sessions"], "session"), _summary_of(one, summaries)) for one in several]
        named.append((f"{len(summaries)} sessions", total))
    short = short_names(one.player_name for one in summaries if one.player_name)
    lines = []
    for name, one in named:
        player = printable(short.get(one.player_name or "", ""))
        if is_table and sys.stdout.isatty():
            player = textwrap.fill(player, _PLAYER_WIDTH)
        line = [name, *([player] if scores else []), number(one.rows), number(one.games)]
        if scores:
            line += [
                with_error(one.mean_score, one.mean_score_error),
                number(one.best_score),
                *(share(one.reach[tile]) for tile in tiles),
            ]
        lines.append([*line, size(one.bytes), *([_note(one)] if note else [])])
    less_needed = (*(f">{tile}" for tile in tiles[:-3]), *_LESS_NEEDED)
    kept = columns_that_fit(headings, lines, less_needed, gap=1 if is_table else 2)
    return [headings[i] for i in kept], [[line[i] for i in kept] for line in lines]


def _summary_of(player: dict[str, Any], summaries: Sequence[Summary]) -> Summary:
    shared: dict[str, Any] = {name: player[name] for name in Summary.__struct_fields__ if name in player}
    reach = {int(tile): rate["share"] for tile, rate in player["reach"].items()}
    size = sum(one.bytes for one in summaries if one.player_name == player["player_name"])
    return Summary(**{**shared, "bytes": size, "reach": reach or dict.fromkeys(REACH_TILES)})


def _table(summaries: Sequence[Summary], total: Summary, players: Sequence[dict[str, Any]]) -> Any:
    headings, lines = _lines(
        summaries, total, players, scores=True, note=any(map(_note, summaries)), is_table=True
    )
    shown = table(*headings)
    for i, line in enumerate(lines):
        is_total = i >= len(summaries)
        if i == len(summaries):
            shown.add_section()
        shown.add_row(cell(line[0], style="bold" if is_total else ""), *line[1:])
    return shown


def _note(summary: Summary) -> str:
    notes = {"on tape": summary.storage == "tape", "recovered": summary.recovered}
    notes |= {f"columns: {' '.join(one['name'] for one in summary.columns)}": bool(summary.columns)}
    return ", ".join(name for name, holds in notes.items() if holds)


#: Number of shown players, starting with the most games.
_PLAYERS_MAX = 20

_BAR_WIDTH = 40


@new_command(
    "tape2048 show selfplay/20260101T000000Z_model=ntuple",
    'tape2048 show "$(ls -d selfplay/*/ | tail -1)"',
    "tape2048 show selfplay",
    "tape2048 show SESSION --json | jq .score.p50",
    "tape2048 show s3://bucket/selfplay",
)
@click.argument("path", metavar="SESSION|ROOT", type=PLACE)
@COLUMNS
@CACHE
@json_option()
def show(
    *, path: Path | str, overlay: Path | None, cache: str | None, cache_max_mb: int, as_json: bool
) -> None:
    """Show a session, or summarize a directory of sessions.

    For a session, this shows facts and settings, columns, scores, tiles, labels, and the best game, which has
    the highest score. For a directory, it shows the games of all sessions, each player's mean score and reach
    of the big tiles with 95% intervals, the time span, and the size on disk. A game that two sessions hold
    counts once. An unreadable session in a directory is listed, and the exit code is then 1.

    For a store (s3://bucket/prefix), or a session in it, only run tables are fetched. The best game then has
    no board.
    """
    found: Sequence[tuple[Path | str, Session | TapeError]] = []
    if isinstance(path, str):
        source = open_stored(path, cache, cache_max_mb)
        found, is_root = source.sessions(), not source.is_session
        session: Session | TapeError = found[0][1]
        if not is_root and isinstance(session, Exception):
            raise session
    else:
        with reading(path):
            is_root = path.is_dir() and not (path / METADATA_DB).exists()
        found = read_each(path, Session.open) if is_root else []
        is_root = bool(found)
        session = found[0][1] if is_root else Session.open(path, "mmap")
    if is_root:
        _show_root(path, found, as_json=as_json)
        return
    session = cast("Session", session)
    session.use_overlay(overlay)
    document = _document(session)
    print_result(document, lambda: _parts(document), as_json=as_json)


def _show_root(
    root: Path | str, found: Sequence[tuple[Path | str, Session | TapeError]], *, as_json: bool
) -> None:
    opened = [one for _, one in found if not isinstance(one, TapeError)]
    broken = [(path, error) for path, error in found if isinstance(error, TapeError)]
    document: dict[str, Any] = {"root": str(root), "broken": [described(*pair) for pair in broken]}
    if opened:
        highest = [int(one.runs["score"].max(initial=0)) if len(one.runs) else -1 for one in opened]
        best = opened[int(np.argmax(highest))]
        document |= sum_up(opened)
        document["best"] = {"session": best.name, **game} if (game := _best(best)) else None
    findings = [error_finding(error) for _, error in broken]
    shown = _root_parts(document) if opened and not as_json else []
    print_result(document, lambda: [*shown, *findings], as_json=as_json)
    exit_on_findings(broken)


def _root_parts(document: dict[str, Any]) -> list[RenderableType]:
    given = document["given_starts"]
    shown = {
        "sessions": number(document["sessions"]),
        "rows": number(document["rows"]),
        "games": number(document["games"]),
        "size": size(document["bytes"]),
        "storage": f"{tapes} of {document['sessions']} on tape" if (tapes := document["on_tape"]) else None,
        "starts": f"{given} of {document['sessions']} from given boards" if given else None,
        "started_at": document["started_at"],
        "ended_at": document["ended_at"],
    }
    shown = {key: value for key, value in shown.items() if value is not None}
    parts: list[RenderableType] = [cell(document["root"], style="bold"), columns(shown)]
    if document["games"]:
        parts += ["", *_players(document), ""]
        if len(document["players"]) == 1:  # a distribution over several players is of no player
            parts += [quantiles_table(document), "", tiles_table(document), ""]
        parts += [_labels(document), "", *_best_parts(document["best"])]
    return [*parts, *map(cell, twice_lines(document["twice"]))]


def _players(document: dict[str, Any]) -> list[RenderableType]:
    several = sorted(document["players"], key=lambda one: -one["games"])
    shown, more = several[:_PLAYERS_MAX], len(several) - _PLAYERS_MAX
    short = short_names(one["player_name"] for one in shown)
    tiles = tiles_of_players(shown)
    made = table("player", ">games", ">mean", *(f">{tile}" for tile in tiles))
    for one in shown:
        rates = [
            f"{share(rate['share'])}\n{100 * rate['low']:.1f}-{100 * rate['high']:.1f}"
            for rate in (one["reach"][tile] for tile in tiles if one["games"])
        ]
        counts = number(one["games"]), with_error(one["mean_score"], one["mean_score_error"], "\n")
        made.add_row(_narrow(short[one["player_name"]], _PLAYER_WIDTH), *counts, *rates)
    rest = [f"and {counted(more, 'more player')}: --json lists them"] if more > 0 else []
    names = (f"{short[one['player_name']]}: {one['player']}  {one['recorded_as']}" for one in shown)
    return [made, *rest, "", *(_narrow(name, 98) for name in names)]


def _narrow(text: str, width: int) -> RenderableType:
    from rich.constrain import Constrain

    return Constrain(cell(text), width)


def _document(session: Session) -> dict[str, Any]:
    runs = session.runs
    return {
        "name": session.name,
        "path": session_place(session),
        "player": player_label(session.meta),
        "player_name": player_name(session.meta),
        "rows": len(session),
        "rows_without_run": session.rows_without_run,
        "games": len(runs),
        "bytes": session_bytes(session),
        "columns": column_facts(session.columns),
        "meta": session.meta,
        "mean_score_error": scores_of(runs)["mean_score_error"],
        **distribution(runs),
        "labels": label_prevalence(runs),
        "best": _best(session),
    }


def _best(session: Session) -> dict[str, Any] | None:
    """Return the best game and its last recorded board; none from a store, whose rows are not fetched."""
    if not len(session.runs):
        return None
    ordinal = int(session.runs["score"].argmax())
    run = session.runs[ordinal]
    rows = session.numbers_of(ordinal)
    last_row = [rows.stop - 1] if isinstance(rows, slice) else rows[-1:]
    has_board = run["rows"] and not session.is_remote
    last = session.get_batch(last_row)[0] if has_board else None
    return {
        "run_id": int(run["run_id"]),
        "seed": int(run["seed"]),
        "score": int(run["score"]),
        "highest_tile": int(run["highest_tile"]),
        "steps": int(run["steps"]),
        "step": None if last is None else int(last["step_idx"]),
        "exps": None if last is None else last["exps"].tolist(),
    }


def _parts(document: dict[str, Any]) -> list[RenderableType]:
    facts = {key: value for key, value in document["meta"].items() if key not in ("config", "rows", "runs")}
    config = document["meta"].get("config")
    left_out = document["rows_without_run"]
    shown = {
        "path": document["path"],
        "rows": number(document["rows"])
        + (f" (without {left_out:,} that belong to no run)" if left_out else ""),
        "games": number(document["games"]),
        "size": size(document["bytes"]),
        **{key: _line(key, "", value) for key, value in facts.items()},
        "player": _narrow(f"{document['player_name']}, {document['player']}", 80),
    }
    parts: list[RenderableType] = [cell(document["name"], style="bold"), columns(shown)]
    if isinstance(config, dict):
        settings = {key: _line(key, key, value) for key, value in config.items()}
        parts += ["", cell("settings", style="bold"), columns(settings)]
    if document["columns"]:
        made = table("column", "type", "shape", "made by", "")
        for one in document["columns"]:
            made.add_row(*(cell("" if value is None else str(value)) for value in one.values()))
        parts += ["", made]
    if document["games"]:
        parts += ["", quantiles_table(document), "", tiles_table(document), "", _labels(document), ""]
        parts += _best_parts(document["best"])
    return parts


def _line(key: str, name: str, value: object) -> RenderableType:
    text = _setting(name, value)
    return _narrow(text, 80) if key in {"player", "player_args"} else text


def _setting(name: str, value: object) -> str:
    from tape2048.base.settings import settings_of
    from tape2048_recorder.record_options import RecorderConfig

    setting = settings_of(RecorderConfig).get(name)
    if setting is not None and value is None:
        return setting.show(value)
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def quantiles_table(document: dict[str, Any]) -> RenderableType:
    shown = table("games", ">mean", ">10%", ">50%", ">90%", ">max")
    for name, key in (("score", "score"), ("moves", "steps")):
        mean, *others = document[key].values()
        error = document.get("mean_score_error") if key == "score" else None
        shown.add_row(name, with_error(mean, error), *map(number, others))
    return shown


def tiles_table(document: dict[str, Any]) -> RenderableType:
    shown = table(">highest tile", ">games", ">share", ">reached", "")
    most = max(tile["games"] for tile in document["tiles"])
    total = left = sum(tile["games"] for tile in document["tiles"])
    for tile in document["tiles"]:
        bar = "#" * max(1, round(_BAR_WIDTH * tile["games"] / most))
        shares = share(tile["share"]), share_between(*wilson(left, total))
        left -= tile["games"]
        shown.add_row(str(tile["tile"]), number(tile["games"]), *shares, cell(bar, "yellow"))
    return shown


def _labels(document: dict[str, Any]) -> RenderableType:
    shown = table(">label", ">games", ">of games", ">of rows")
    for label in document["labels"]:
        shares = share(label["game_share"]), share(label["row_share"])
        shown.add_row(str(label["threshold"]), number(label["games"]), *shares)
    return shown


def _best_parts(best: dict[str, Any]) -> list[RenderableType]:
    where = f" of {best['session']}" if "session" in best else ""
    score, moves = number(best["score"]), number(best["steps"])
    facts = f"best game: run {best['run_id']}{where}, score {score}, {moves} moves"
    if best["exps"] is None:
        return [cell(f"{facts}; its boards were not recorded, or are in the store")]
    return [cell(f"{facts}; its board before move {best['step']}", "bold"), board(best["exps"])]
