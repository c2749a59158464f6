"""The overview of a selection of games: from run tables, and from the rows of a few games."""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING, Any

import numpy as np

from tape2048.base.intervals import mean_error, wilson
from tape2048.base.text import unix_s
from tape2048.errors import TapeError
from tape2048.loader.duplicates import describe_doubled
from tape2048.session.run_table import REACH_TILES, exponents_of
from tape2048.session.tiles_shown import tiles_of_players
from tape2048.short_names import short_names
from tape2048_tools.sessions.summary import quantiles
from tape2048_tools.viewer.comparison import compare
from tape2048_tools.viewer.game_data import Judges, read_game, require_opinion

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from tape2048_tools.viewer.collection import Entry, GameTable, Once

    # A game of the sample: its number, its boards u64[n], and the highest exponent so far at each.
    _Read = tuple[int, NDArray[np.uint64], NDArray[np.uint8]]

#: Bins of histograms.
BINS = 48

#: Most players in a chart, starting with the most games: each has a colour.
LINES_MAX = 6

#: The largest sum of tiles that a phase spans, the fewest phases of a longest game unless they span less than
#: a move, the sum that a move adds on average, and the fewest games that reach a phase that is shown.
_PHASE, _PHASES_MIN, _PER_MOVE, _ENTERED_MIN = 1024, 16, 2.2, 10

#: Lowest tile whose reach is always shown: nearly all games reach smaller tiles.
_FIRST_TILE = 256

#: Number of listed players, starting with the most games.
PLAYERS_MAX = 50

#: Games whose rows are read for facts that the run table lacks.
SAMPLE_GAMES = 48

#: Exponents of tiles in a run table of 32-bit numbers.
_EXPONENTS = 32


def overview(games: GameTable, choices: Sequence[NDArray[np.bool_] | None]) -> dict[str, Any]:
    """Return the overview of selections with the same bins; a game in several sessions counts once."""
    names = ("score", "steps", "highest_tile", "rows", "session", "seed")
    several = [games.once(chosen) for chosen in choices]
    parts = [
        {name: games[name] if one.games is None else games[name][one.games] for name in names}
        for one in several
    ]
    score_max, steps_max = (
        max((int(part[name].max(initial=0)) for part in parts), default=0) for name in ("score", "steps")
    )
    widths = {"score": _round_width(score_max / BINS), "steps": _round_width(steps_max / BINS)}
    widths["phase"] = min(_PHASE, 1 << int(_PER_MOVE * steps_max / _PHASES_MIN + 1).bit_length() - 1)
    if len({one.label for one in games.sessions}) > 1:
        widths["score"] = 0  # logarithmic, since players can differ by orders of magnitude
    return {
        "widths": widths,
        "phases": _phases(steps_max, widths["phase"]),
        "waiting": games.waiting,
        "waiting_rows": games.waiting_rows,
        "waiting_games": games.waiting_games,
        "broken": list(games.broken),
        "comparison": compare(parts[0], parts[1], _shared(len(games), several)) if len(parts) > 1 else None,
        "selections": [
            {
                **_part(games, part, one.left_out, widths, pooled=len(choices) > 1),
                "best": _best(games, one.games, part["score"]),
                "left_out": describe_doubled(one.doubled),
            }
            for part, one in zip(parts, several, strict=True)
        ],
    }


def _shared(count: int, several: Sequence[Once]) -> int:
    chosen = [one.games for one in several if one.games is not None]
    return int(np.count_nonzero(np.logical_and.reduce(chosen))) if chosen else count


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


def _phases(steps_max: int, width: int) -> list[dict[str, int]]:
    sums = np.arange(0, _PER_MOVE * (steps_max + 2) + width, width)
    moves = np.maximum(np.ceil(sums / _PER_MOVE - 2), 0).astype(int).tolist()
    return [
        {"sum": int(least), "first": first, "last": after - 1}
        for least, (first, after) in zip(sums.tolist(), itertools.pairwise(moves), strict=False)
    ]


def _part(
    games: GameTable,
    columns: dict[str, NDArray[Any]],
    left_out: NDArray[np.bool_],
    widths: dict[str, int],
    *,
    pooled: bool,
) -> dict[str, Any]:
    """Return an overview, with ``lines`` by player unless ``pooled``; sessions left out count, too."""
    scores, steps, owners = (columns[name] for name in ("score", "steps", "session"))
    # Games by session and highest tile.
    places = owners.astype(np.int64) * _EXPONENTS + exponents_of(columns["highest_tile"])
    size = (len(games.sessions), _EXPONENTS)
    table = np.bincount(places, minlength=size[0] * size[1]).reshape(size)
    not_counted = np.bincount(games["session"][left_out], minlength=size[0])
    has_games = table.sum(axis=1) + not_counted > 0
    entries = list(itertools.compress(games.sessions, has_games))
    times = [_span(one) for one in entries]
    begins = [begin for begin, _ in times if begin is not None]
    ends = [end for _, end in times if end is not None]
    players = _players(games, owners, scores, table, has_games)
    groups = [range(size[0])] if pooled else [one["numbers"] for one in players[:LINES_MAX]]
    line_of = np.full(size[0], len(groups))
    for line, numbers in enumerate(groups):
        line_of[list(numbers)] = line
    mine = line_of[owners]
    whole = np.array(["start_boards" not in one.meta for one in games.sessions], bool)
    return {
        "games": len(scores),
        "rows": int(columns["rows"].sum(dtype=np.uint64)),
        "steps": int(steps.sum(dtype=np.uint64)),
        "sessions": len(entries),
        "bytes": sum(one.bytes for one in entries),
        "started": min(begins, default=None),
        "ended": max(ends, default=None),
        "score": quantiles(scores) | mean_of(scores),
        "length": quantiles(steps),
        "players": [{name: one[name] for name in one if name != "numbers"} for one in players],
        "players_in_all": len({one.label for one in entries}),
        "lines": [
            _line(scores[mine == line], steps[mine == line], steps[(mine == line) & whole[owners]], widths)
            | {"tiles": _reach(table[list(numbers)].sum(axis=0))}
            for line, numbers in enumerate(groups)
        ]
        if len(scores)
        else [],
    }


def mean_of(values: NDArray[Any]) -> dict[str, float]:
    values = values.astype(np.float64)
    return _mean_of_sums(len(values), float(values.sum()), float(np.square(values).sum()))


def _mean_of_sums(count: int, total: float, squares: float) -> dict[str, float]:
    """Return a mean with its 95% interval; empty without values, and no interval of a single value."""
    if not count:
        return {}
    mean, half = total / count, mean_error(count, total, squares)
    return {"mean": mean} | ({"low": mean - half, "high": mean + half} if count > 1 else {})


def _line(
    scores: NDArray[Any], steps: NDArray[Any], whole: NDArray[Any], widths: dict[str, int]
) -> dict[str, Any]:
    lengths = np.bincount(steps // widths["steps"], minlength=1)
    # The share of games that last at least to the start of each bin.
    survival = 1 - np.append(0, np.cumsum(lengths)) / max(1, len(steps))
    ended = np.bincount((_PER_MOVE * (whole + 2.0) / widths["phase"]).astype(np.int64), minlength=1)
    entered = len(whole) - np.append(0, np.cumsum(ended)[:-1])
    return {
        "games": len(scores),
        "score": mean_of(scores),
        "score_bins": np.bincount(_bins(scores, widths["score"]), minlength=1).tolist(),
        "survival": survival.round(6).tolist(),
        "deaths": [
            {"phase": phase, "games": died, "entered": count, **wilson(died, count)._asdict()}
            for phase, (died, count) in enumerate(zip(ended.tolist(), entered.tolist(), strict=True))
            if count >= _ENTERED_MIN
        ],
    }


def _bins(scores: NDArray[Any], width: int) -> NDArray[np.int64]:
    bins = scores // width if width else 8 * np.log2(np.maximum(scores, 1), dtype=np.float32)
    return np.asarray(bins, np.int64)


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
    squares = np.bincount(owners, np.square(scores, dtype=np.float64), len(sessions))
    reached = {tile: table[:, tile.bit_length() - 1 :].sum(axis=1) for tile in REACH_TILES}
    found: list[dict[str, Any]] = []
    most = sorted(of_player.items(), key=lambda one: -counts[one[1]].sum())[:PLAYERS_MAX]
    for label, numbers in most:
        its, first = int(counts[numbers].sum()), sessions[numbers[0]]
        reach = {tile: wilson(int(by[numbers].sum()), its)._asdict() for tile, by in reached.items()}
        found.append(
            {
                "numbers": numbers,
                "select": {"player": label} if label else {"where": "player = ''"},
                "player": games.short[first.player_name], "full": first.full,
                "sessions": len(numbers), "games": its,
                "score": _mean_of_sums(its, float(total[numbers].sum()), float(squares[numbers].sum())),
                "reach": {str(tile): share for tile, share in reach.items()},
            }
        )  # fmt: skip
    tiles = tiles_of_players(found)
    return [{**one, "reach": {tile: one["reach"][tile] for tile in tiles}} for one in found]


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


def sample(games: GameTable, chosen: NDArray[np.bool_] | None, judges: Judges) -> dict[str, Any]:
    """Return the critic's predictions for games of the players that it was trained on."""
    try:
        its = {
            label
            for label, meta in {one.label: one.meta for one in games.sessions}.items()
            if judges.knows(meta)
        }
        players = short_names(one.player_name for one in judges.critic.info.players)
    except TapeError as error:
        return {"games": 0, "unread": [], "critic": {"points": [], "remark": f"No critic: {error}"}}
    known = np.array([one.label in its for one in games.sessions], bool)[games["session"]]
    numbers = np.flatnonzero(known if chosen is None else chosen & known)
    if len(numbers) > SAMPLE_GAMES:
        numbers = numbers[np.linspace(0, len(numbers) - 1, SAMPLE_GAMES).round().astype(np.int64)]
    owners = games["session"][numbers]
    read: list[_Read] = []
    unread: list[str] = []
    for owner in np.unique(owners).tolist():
        entry = games.sessions[owner]
        mine = numbers[owners == owner].tolist()
        try:
            for number, game in zip(mine, read_game(entry.path, games["run_id"][mine].tolist()), strict=True):
                read.append((number, game.states, np.maximum.accumulate(game.exps.max(axis=1))))
        except (TapeError, OSError) as error:
            unread.append(str(error))
    critic = {"players": ", ".join(players.values()), **_predictions(games, read, judges)}
    return {"games": len(read), "unread": unread[:3], "critic": critic}


def _predictions(games: GameTable, read: Sequence[_Read], judges: Judges) -> dict[str, Any]:
    """Return the critic's mean prediction for each tile, and the number of games that reach the tile.

    The predictions are for the first board of each game, and for the first board with half the tile. Unlike
    the board halfway through the game, neither board depends on the length of the game.
    """
    try:
        tiles = judges.critic.thresholds
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
    except TapeError as error:
        return {"points": [], "remark": f"No critic: {error}"}
    return {"points": found, "remark": None}
