"""``tape2048 arena``: compare players in the same games."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import click
import msgspec

from tape2048.base.text import counted
from tape2048.errors import PlayerError
from tape2048.short_names import short_names
from tape2048_tools.commands.players.contests import (
    PLAYING,
    difference_words,
    make_players,
    play_each,
    score_words,
    tiles_of,
)
from tape2048_tools.options.recorder_options import complete_player
from tape2048_tools.terminal.click_extras import PATH, new_command
from tape2048_tools.terminal.display import number, rate, share_between, size
from tape2048_tools.terminal.output import columns, complain, print_result, table

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import RenderableType
    from rich.table import Table

    from tape2048_recorder.evaluation.paired_games import Results, Strength


@new_command(
    "tape2048 arena ntuple ntuple:look=16 expectimax --games 1000",
    "tape2048 arena 'exec:./engine --depth 3' ntuple --games 500 --out arena.jsonl",
    "tape2048 arena python:players.py:make greedy --from starts.npy --json",
)
@click.argument("players", nargs=-1, required=True, shell_complete=complete_player)
@click.option(
    "-o",
    "--out",
    type=PATH,
    metavar="FILE",
    help="Keep results in this file. The same command resumes a killed arena. More games or more players "
    "extend the file.",
)
@PLAYING
def command(*, players: tuple[str, ...], out: Path | None, as_json: bool, **playing: Any) -> int:
    """Compare players of any kind in the same games.

    Write PLAYERS as for `record`. All of them play the same seeds. The table groups players by speed class,
    such as 10k moves/s: players that make 10,000 to 99,999 moves per second of processor time. Within a
    class, it orders them by mean score. The difference is from the player with the highest mean score, with a
    95% interval from pairs of games with the same seed. If a player fails, the other players continue.
    """
    failures: dict[str, PlayerError] = {}
    made = make_players(players)
    facts, results = play_each(made, **playing, out=out, failures=failures)
    found = {text: each.strength() for text, each in results.items() if each.played.any()}
    differences = [
        {"a": a, "b": b, **msgspec.structs.asdict(results[a].minus(results[b]))}
        for a, b in itertools.combinations(found, 2)
        if (results[a].played & results[b].played).any()
    ]
    document = {
        **facts,
        "players": {
            text: {**_facts(found.get(text)), "forfeited": each.forfeits, "error": _text(failures.get(text))}
            for text, each in results.items()
        },
        "differences": differences,
    }
    names = {text: one.player_name for text, one in made.items()}
    short = {text: short_names(names.values())[name] for text, name in names.items()}
    told = {short[text]: text for text in found if text != short[text]}
    shown: list[RenderableType] = ["", columns(told)] if told else []
    print_result(document, lambda: [_table(found, results, short), *shown], as_json=as_json)
    for text, error in failures.items():
        complain(f"{text} failed after {counted(results[text].played.sum(), 'game')}: {error}")
        complain(f"hint: {error.advice}")
    return PlayerError.exit_code if failures else 0


def _facts(strength: Strength | None) -> dict[str, Any]:
    if strength is None:  # it failed in its first game
        return {"games": 0}
    facts: dict[str, Any] = msgspec.to_builtins(strength, str_keys=True)
    del facts["moves_per_s"]  # of this run only
    return {**facts, "speed_class": speed_class(strength)}


def _text(error: PlayerError | None) -> str | None:
    return None if error is None else str(error)


def speed_class(strength: Strength) -> int:
    """Round a player's moves per second of processor time down to 1, 10, 100 and so on; at least 1."""
    exponent = len(str(int(strength.moves_per_cpu_s))) - 1
    return int("1".ljust(exponent + 1, "0"))


def _table(found: dict[str, Strength], results: dict[str, Results], short: dict[str, str]) -> Table:
    best = max(found, key=lambda text: found[text].mean_score, default="")
    order = sorted(found, key=lambda text: (-speed_class(found[text]), -found[text].mean_score))
    forfeits = any(one.forfeits for one in found.values())
    memory = any(one.peak_bytes for one in found.values())
    tiles = tiles_of(found.values())
    heads = [">games", ">mean score", *(f">{tile}" for tile in tiles), ">moves/CPU s", ">difference"]
    heads += [">forfeited"] * forfeits + [">memory"] * memory
    made = table("speed class", "player", *heads)
    for text in order:
        one = found[text]
        cells = [
            f"{rate(speed_class(one))} moves/s",
            short[text],
            number(one.games),
            score_words(one),
            *(share_between(*one.reach[tile]) for tile in tiles),
            number(one.moves_per_cpu_s),
            "-" if text == best else difference_words(results[text].minus(results[best])),
        ]
        cells += [number(one.forfeits)] * forfeits
        cells += [size(one.peak_bytes) if one.peak_bytes else "-"] * memory
        made.add_row(*cells)
    return made
