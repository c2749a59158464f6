"""Contests of players in the same games, for ``eval``, ``match`` and ``arena``."""

from __future__ import annotations

import contextlib
import functools
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from tape2048.base.resources import available_cores
from tape2048.base.text import counted
from tape2048.errors import PlayerError
from tape2048.players import player_name
from tape2048.session.tiles_shown import tiles_shown
from tape2048_recorder.players.options import check_player
from tape2048_tools.options.recorder_options import parse_player
from tape2048_tools.progress.panel import progress_bar
from tape2048_tools.terminal.click_extras import EXISTING, int_option, json_option, options
from tape2048_tools.terminal.display import number, share_between, with_error
from tape2048_tools.terminal.output import complain, table

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from rich.table import Table

    from tape2048_recorder.evaluation.paired_games import Difference, Results, Strength

#: Games of each player, by default.
GAMES = 1000

_FORFEITS_SHOWN = 3  # of each player

SEED = int_option("--seed", "Seed of the games.", default=1, most=2**64 - 1)
THREADS = click.option(
    "--threads",
    type=click.IntRange(0, 1024),
    metavar="N",
    default=0,
    show_default=True,
    callback=lambda _ctx, _param, threads: threads or available_cores(),
    help="Number of threads; 0: one per core.",
)
PLAYING = options(
    int_option(
        "--games", f"Games per player.  [default: {GAMES}; with --from, the number of boards]", least=1
    ),
    SEED,
    THREADS,
    click.option(
        "--from",
        "starts",
        type=EXISTING,
        help="Start from the boards in this file (.npy u8[N, 16] or text), in turn. Scores count from there.",
    ),
    json_option(),
)


class Contestant(NamedTuple):
    name: str
    args: dict[str, Any]
    player: Any

    @property
    def sha256(self) -> str:
        from tape2048_recorder.evaluation.evaluated_games import contestant_sha256

        return contestant_sha256(*self)

    @property
    def player_name(self) -> str:
        args = check_player(self.name, self.args)
        return player_name({"player": self.name, "player_args": args, "player_sha256": self.sha256})


def make_players(texts: Iterable[str]) -> dict[str, Contestant]:
    """Make all players before any game, so that a damaged network is found first."""
    chosen = {text: parse_player(text) for text in texts}
    for name, args in chosen.values():
        check_player(name, args)
    from tape2048_recorder.evaluation.evaluated_games import make_contestant

    return {
        text: Contestant(name, args, make_contestant(name, args)) for text, (name, args) in chosen.items()
    }


def play_each(
    players: Mapping[str, Contestant],
    *,
    games: int | None,
    seed: int,
    threads: int,
    starts: Path | None,
    out: Path | None = None,
    failures: dict[str, PlayerError] | None = None,
) -> tuple[dict[str, Any], dict[str, Results]]:
    """Play the same games with each player; return facts for a document, and results by player.

    Forfeited games are reported on standard error, and games in ``out`` are not repeated. ``failures``
    receives the errors of players that cannot continue; None: the first error is raised.
    """
    from tape2048_recorder.evaluation.arena_file import ArenaFile
    from tape2048_recorder.evaluation.paired_games import Results, play
    from tape2048_recorder.game.start_files import read_starts

    boards = None if starts is None else read_starts(starts)["board"].copy()
    count = games or (GAMES if boards is None else len(boards))
    facts = {"games": count, "seed": seed, **({} if starts is None else {"from": str(starts)})}
    found: dict[str, Results] = {}
    with contextlib.ExitStack() as stack:
        file = None if out is None else stack.enter_context(ArenaFile(out, seed, boards))
        for text, player in players.items():
            found[text] = Results(count) if file is None else file.results(text, player.sha256, count)
        for text, player in players.items():
            take = None if file is None else functools.partial(file.add, text, player.sha256)
            how: dict[str, Any] = {"games": count, "seed": seed, "threads": threads, "starts": boards}
            try:
                with progress_bar(text) as progress:
                    play(player.player, **how, progress=progress, results=found[text], take=take)
            except PlayerError as error:
                if failures is None:
                    raise
                failures[text] = error
            _complain_forfeits(found[text])
    return facts, found


def _complain_forfeits(results: Results) -> None:
    for why in list(results.forfeits.values())[:_FORFEITS_SHOWN]:
        complain(why)
    if (more := len(results.forfeits) - _FORFEITS_SHOWN) > 0:
        complain(f"... and {counted(more, 'further game')}")


def difference_words(found: Difference) -> str:
    return "+" * (found.difference >= 0) + with_error(found.difference, found.difference_error)


def score_words(found: Strength) -> str:
    return with_error(found.mean_score, found.mean_score_error)


def tiles_of(found: Iterable[Strength]) -> list[int]:
    """Return the tiles of a table of players."""
    return tiles_shown({tile: one.share for tile, one in each.reach.items()} for each in found)


def strength_table(found: Iterable[tuple[str, Strength]]) -> Table:
    found = list(found)
    tiles = tiles_of([result for _, result in found])
    heads = (">games", ">mean score", *(f">{tile}" for tile in tiles), ">moves/CPU s", ">moves/s")
    made = table("player", *heads)
    for text, result in found:
        made.add_row(
            text,
            number(result.games),
            score_words(result),
            *(share_between(*result.reach[tile]) for tile in tiles),
            number(result.moves_per_cpu_s),
            number(result.moves_per_s),
        )
    return made
