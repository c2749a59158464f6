"""The overview of a selection of games: from run tables, and from the rows of a few games."""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING, Any

import numpy as np

from tape2048.base.intervals import wilson
from tape2048.base.text import unix_s
from tape2048.errors import TapeError
from tape2048.rows.duplicates import describe_doubled
from tape2048.session.run_table import REACH_TILES, exponents_of
from tape2048_tools.sessions.summary import quantiles
from tape2048_tools.viewer.games import Judges, read_game, require_opinion

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from tape2048_tools.viewer.collection import Entry, GameTable

    # A game of the sample: its number, its boards u64[n], and the highest exponent so far at each.
    _Read = tuple[int, NDArray[np.uint64], NDArray[np.uint8]]

#: Bins of histograms and points of curves.
BINS = 48
_POINTS = 120

#: Tiles whose reach is shown: nearly all games make the others.
_FIRST_TILE = 256

#: Number of listed players, starting with the most games.
PLAYERS_MAX = 50

#: Games whose rows are read for facts that the run table lacks.
SAMPLE_GAMES = 48

_MOVES = 4

#: Exponents of tiles in a run table of 32-bit numbers.
_EXPONENTS = 32


def overview(games: GameTable, choices: Sequence[NDArray[np.bool_] | None]) -> dict[str, Any]:
    """Return the overview of one or several selections, ``bool[R]`` or None for all, with the same bins.

    A game that several sessions of a selection hold counts once.
    """
    names = ("max_score", "steps", "highest_tile", "rows", "session")
    several = [games.once(chosen) for chosen in choices]
    parts = [
        {name: games[name] if one.games is None else games[name][one.games] for name in names}
        for one in several
    ]
    score_max, steps_max = (
        max((int(part[name].max(initial=0)) for part in parts), default=0) for name in ("max_score", "steps")
    )
    widths = {"score": _round_width(score_max / BINS), "steps": _round_width(steps_max / BINS)}
    return {
        "widths": widths,
        "waiting": games.waiting,
        "waiting_rows": games.waiting_rows,
        "waiting_games": games.waiting_games,
        "broken": list(games.broken),
        "selections": [
            {
                **_part(games, part, one.left_out, widths),
                "best": _best(games, one.games, part["max_score"]),
                "left_out": describe_doubled(one.doubled),
            }
            for part, one in zip(parts, several, strict=True)
        ],
    }


def _best(games: GameTable, chosen: NDArray[np.bool_] | None, scores: NDArray[Any]) -> dict[str, Any] | None:
    if not len(scores):
        return None
    best = int(scores.argmax())
    return games.document(best if chosen is None else int(np.flatnonzero(chosen)[best]))


def _round_width(width: float) -> int:
    """Return the next 1, 2 or 5 times a power of ten."""
    if width <= 1:
        return 1
    base = 10 ** math.floor(math.log10(width))
    return int(next(step * base for step in (1, 2, 5, 10) if step * base >= width))


def _part(
    games: GameTable, columns: dict[str, NDArray[Any]], left_out: NDArray[np.bool_], widths: dict[str, int]
) -> dict[str, Any]:
    """Return the overview of the games with these columns, and of the sessions of games that are left out."""
    scores, steps, owners = (columns[name] for name in ("max_score", "steps", "session"))
    # Games by session and highest tile.
    places = owners.astype(np.int64) * _EXPONENTS + exponents_of(columns["highest_tile"])
    size = (len(games.sessions), _EXPONENTS)
    table = np.bincount(places, minlength=size[0] * size[1]).reshape(size)
    others, their_steps = games["session"][left_out], games["steps"][left_out]
    not_counted = np.bincount(others, minlength=size[0])
    has_games = table.sum(axis=1) + not_counted > 0
    omitted = np.stack((np.bincount(others, their_steps, size[0]), not_counted), axis=1)[has_games]
    entries = list(itertools.compress(games.sessions, has_games))
    times = [_span(one) for one in entries]
    begins = [begin for begin, _ in times if begin is not None]
    ends = [end for _, end in times if end is not None]
    lengths = np.bincount(steps // widths["steps"], minlength=1)
    # The share of games that last at least to the start of each bin.
    survival = 1 - np.append(0, np.cumsum(lengths)) / max(1, len(steps))
    return {
        "games": len(scores),
        "rows": int(columns["rows"].sum(dtype=np.uint64)),
        "steps": int(steps.sum(dtype=np.uint64)),
        "sessions": len(entries),
        "bytes": sum(one.bytes for one in entries),
        "started": min(begins, default=None),
        "ended": max(ends, default=None),
        "score": quantiles(scores),
        "length": quantiles(steps),
        "score_bins": np.bincount(scores // widths["score"], minlength=1).tolist(),
        "steps_bins": lengths.tolist(),
        "survival": survival.round(6).tolist() if len(steps) else [],
        "tiles": _reach(table.sum(axis=0)),
        "players": _players(games, owners, scores, table, has_games),
        "players_in_all": len({one.label for one in entries}),
        "throughput": _throughput(entries, omitted.astype(np.int64).tolist()),
    }


def _players(
    games: GameTable,
    owners: NDArray[Any],
    scores: NDArray[Any],
    table: NDArray[np.int64],
    has_games: NDArray[np.bool_],
) -> list[dict[str, Any]]:
    sessions, counts = games.sessions, table.sum(axis=1)
    of_player: dict[str, list[int]] = {}
    for number in np.flatnonzero(has_games).tolist():
        of_player.setdefault(sessions[number].label, []).append(number)
    total = np.bincount(owners, scores, len(sessions))
    reached = {tile: table[:, tile.bit_length() - 1 :].sum(axis=1) for tile in REACH_TILES}
    found = []
    most = sorted(of_player.items(), key=lambda one: -counts[one[1]].sum())[:PLAYERS_MAX]
    for label, numbers in most:
        its, first = int(counts[numbers].sum()), sessions[numbers[0]]
        reach = {tile: wilson(int(by[numbers].sum()), its)._asdict() for tile, by in reached.items()}
        found.append(
            {
                "select": {"player": label} if label else {"where": "player = ''"},
                "player": first.player_name, "full": first.player,
                "sessions": len(numbers), "games": its,
                "mean_score": float(total[numbers].sum() / its),
                "reach": {str(tile): share for tile, share in reach.items()},
            }
        )  # fmt: skip
    return found


def _reach(by_exponent: NDArray[np.int64]) -> list[dict[str, Any]]:
    count = int(by_exponent.sum())
    at_least = by_exponent[::-1].cumsum()[::-1].tolist()
    return [
        {"tile": 1 << exp, "games": int(by_exponent[exp]), **wilson(at_least[exp], count)._asdict()}
        for exp in range(1, len(by_exponent))
        if at_least[exp] and (1 << exp >= _FIRST_TILE or by_exponent[exp])
    ]


def _span(entry: Entry) -> tuple[float | None, float | None]:
    begin, end = (unix_s(entry.meta.get(name)) for name in ("started_at", "ended_at"))
    return None if math.isnan(begin) else begin, None if math.isnan(end) else end


def _throughput(entries: Sequence[Entry], not_counted: Iterable[tuple[int, int]]) -> list[dict[str, float]]:
    """Return the pace of sessions, without the steps and games of each that are not counted."""
    found = []
    for entry, (its_steps, its_games) in zip(entries, not_counted, strict=True):
        begin, end = _span(entry)
        if begin is not None and end is not None and end >= begin:
            end = max(end, begin + 1)  # the times are whole seconds
            made = int(entry.runs["steps"].sum(dtype=np.uint64))
            found.append((begin, end, made - its_steps, len(entry.runs) - its_games))
    if not found:
        return []
    first, last = min(one[0] for one in found), max(one[1] for one in found)
    edges = np.linspace(first, last, max(24, min(_POINTS, 4 * len(found))) + 1)
    steps, games = np.zeros(len(edges) - 1), np.zeros(len(edges) - 1)
    for begin, end, its_steps, its_games in found:
        share = np.clip((np.minimum(edges[1:], end) - np.maximum(edges[:-1], begin)) / (end - begin), 0, None)
        steps += its_steps * share
        games += its_games * share
    width = (last - first) / len(steps)
    return [
        {"at": float(at), "steps_per_s": float(step / width), "games_per_s": float(game / width)}
        for at, step, game in zip((edges[:-1] + edges[1:]) / 2, steps, games, strict=True)
    ]


def sample(games: GameTable, chosen: NDArray[np.bool_] | None, judges: Judges) -> dict[str, Any]:
    """Return statistics of a few games: first steps of tiles, shares of moves, the critic's predictions."""
    numbers = np.arange(len(games)) if chosen is None else np.flatnonzero(chosen)
    if len(numbers) > SAMPLE_GAMES:
        numbers = numbers[np.linspace(0, len(numbers) - 1, SAMPLE_GAMES).round().astype(np.int64)]
    owners = games["session"][numbers]
    firsts: dict[int, list[int]] = {}
    made = np.zeros(_MOVES, np.int64)
    read: list[_Read] = []
    unread: list[str] = []
    for owner in np.unique(owners).tolist():
        entry = games.sessions[owner]
        mine = numbers[owners == owner].tolist()
        try:
            for number, game in zip(mine, read_game(entry.path, games["id"][mine].tolist()), strict=True):
                highest = np.maximum.accumulate(game.exps.max(axis=1))
                for exp in range(2, int(highest[-1]) + 1):
                    at = np.searchsorted(highest, exp)
                    firsts.setdefault(exp, []).append(int(at if game.numbers is None else game.numbers[at]))
                made += np.bincount(game.moves, minlength=256)[:_MOVES]
                read.append((number, game.states, highest))
        except (TapeError, OSError) as error:
            unread.append(str(error))
    return {
        "games": len(read),
        "unread": unread[:3],
        "critic": _predictions(games, read, judges),
        "moves": (made / max(1, made.sum())).tolist(),
        "first": [
            {"tile": 1 << exp, "games": len(steps), **quantiles(np.array(steps))}
            for exp, steps in sorted(firsts.items())
            if exp >= 5
        ],
    }


def _predictions(games: GameTable, read: Sequence[_Read], judges: Judges) -> dict[str, Any]:
    """Return for each tile of the critic its predictions of some games, and how many of them reach the tile.

    The predictions are for the first board of each game, and for the first board with half the tile. Neither
    board depends on the later game, as the board halfway through would.
    """
    try:
        tiles = judges.critic.thresholds
        owners = np.unique(games["session"][[number for number, _, _ in read]]).tolist() if read else []
        found = []
        for column, tile in enumerate(tiles):
            for half in (False, True):
                boards, reached = [], 0
                for number, states, highest in read:
                    at = int(np.searchsorted(highest, tile.bit_length() - 2)) if half else 0
                    if at < len(highest):
                        boards.append(states[at])
                        reached += int(games["highest_tile"][number]) >= tile
                if boards:
                    predicted = float(require_opinion(judges, np.array(boards))[:, column].mean())
                    share = wilson(reached, len(boards))._asdict()
                    found.append(
                        {"tile": tile, "half": half, "games": len(boards), "predicted": predicted, **share}
                    )
        remark = judges.remark([games.sessions[owner].meta for owner in owners])
    except TapeError as error:
        return {"points": [], "remark": f"No critic: {error}"}
    return {"points": found, "remark": remark}
