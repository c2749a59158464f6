"""``tape2048 player``: evaluate players; show and quantise networks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
import msgspec

from tape2048_tools.options.completion import complete_player
from tape2048_tools.terminal.click_extras import (
    PATH,
    force_option,
    int_option,
    json_option,
    new_group,
    refuse_missing,
)
from tape2048_tools.terminal.display import duration, number, share, share_between, size
from tape2048_tools.terminal.output import columns, print_result, table
from tape2048_tools.views.opening import progress_bar

if TYPE_CHECKING:
    from pathlib import Path

    from rich.table import Table

    from tape2048_recorder.players.evaluation import Evaluation


@new_group(
    "tape2048 player info default",
    "tape2048 player eval ntuple:look_below=0 ntuple --games 1000",
    "tape2048 player quantise runs/mine/network.safetensors mine.ntuple --step 16",
)
def command() -> None:
    """Evaluate players; show and quantise their networks."""


def _network(_ctx: click.Context, _param: click.Parameter, value: str) -> str:
    """Return the name of a shipped network, or a path at which something stands."""
    from pathlib import Path

    from tape2048.ntuple.files import SHIPPED

    if value not in SHIPPED:
        refuse_missing(Path(value), f"name a file, or a network that ships: {', '.join(SHIPPED)}")
    return value


@command.subcommand("tape2048 player info default", "tape2048 player info mine.ntuple --json")
@click.argument("weights", callback=_network)
@json_option()
def info(*, weights: str, as_json: bool) -> None:
    """Show the contents of a network file. WEIGHTS is a file, or a shipped network (default, fast)."""
    from tape2048.ntuple.files import file_facts, load_network
    from tape2048.ntuple.layout import tuple_text

    network = load_network(weights)
    layout = network.layout
    used = int((network.table != 0).sum())
    facts: dict[str, Any] = {
        "weights": weights,
        **file_facts(weights),
        "tuples": [tuple_text(cells) for cells in layout.tuples],
        "stages": list(layout.stages),
        "entries": layout.entries,
        "entries_used": used,
        "dtype": str(network.table.dtype),
        "scales": network.scales.tolist(),
        "facts": network.facts,
    }
    training = network.facts.get("training")
    settings = training.items() if isinstance(training, dict) else ()
    shown = {
        "network": weights,
        "file": f"{size(facts['bytes'])}, SHA-256 {facts['sha256'][:16]}...",
        "tuples": " ".join(facts["tuples"]),
        "stages": "from the start" + "".join(f", from {tile}" for tile in layout.stages),
        "tables": f"{number(layout.entries)} entries of {facts['dtype']}, "
        f"{size(network.table.nbytes)} in memory, {share(used / layout.entries)} of them used",
        "trained": _trained(network.facts),
        "settings": ", ".join(f"{name}={value}" for name, value in settings) or "-",
    }
    print_result(facts, lambda: [columns(shown)], as_json=as_json)


def _trained(facts: dict[str, Any]) -> str:
    """Return the extent of a training; ``-`` if the file does not state it."""
    plain = [
        facts[name] for name in ("moves", "games", "elapsed_s") if isinstance(facts.get(name), int | float)
    ]
    if len(plain) < 3:
        return "-"
    moves, games, seconds = plain
    return f"{number(moves)} moves, {number(games)} game{'' if games == 1 else 's'}, {duration(seconds)}"


@command.subcommand(
    "tape2048 player eval ntuple",
    "tape2048 player eval ntuple:look_below=0 ntuple:look_below=16 --games 5000 --json",
    "tape2048 player eval ntuple:weights=runs/mine/network.ntuple",
    name="eval",
)
@click.argument("players", nargs=-1, required=True, shell_complete=complete_player)
@int_option("--games", "Games of each player.", default=1000, least=1)
@int_option("--seed", "Seed of the games.", default=1, most=2**64 - 1)
@int_option("--threads", "Number of threads; 0: one for each core.", default=0, most=1024)
@json_option()
def evaluate_players(*, players: tuple[str, ...], games: int, seed: int, threads: int, as_json: bool) -> None:
    """Play seeded games: mean scores, reach rates, speed.

    Each of PLAYERS plays the same games; reach rates have 95% intervals. A player is written
    as for `record`: NAME or NAME:key=value,key=value.
    """
    from tape2048.base.resources import available_cores
    from tape2048_recorder.players.registry import check_player, make_player
    from tape2048_tools.options.recorder import parse_player

    chosen = {text: parse_player(text) for text in players}
    for name, args in chosen.values():
        check_player(name, args)
    from tape2048_recorder.players.evaluation import evaluate

    # Make all players first: a damaged network would waste the games of the players before it.
    made = [(text, make_player(name, args)) for text, (name, args) in chosen.items()]
    found: dict[str, Evaluation] = {}
    for text, player in made:
        with progress_bar(text) as progress:
            found[text] = evaluate(
                player, games=games, seed=seed, threads=threads or available_cores(), progress=progress
            )
    document = {"games": games, "seed": seed, "players": msgspec.to_builtins(found, str_keys=True)}
    print_result(document, lambda: [_table(found)], as_json=as_json)


def _table(found: dict[str, Evaluation]) -> Table:
    from tape2048.session.labels import REACH_TILES

    made = table(
        "player",
        ">games",
        ">mean score",
        *(f">{tile}" for tile in REACH_TILES),
        ">moves/s a core",
        ">moves/s",
    )
    for text, result in found.items():
        made.add_row(
            text,
            number(result.games),
            number(result.mean_score) + (f" ±{number(result.mean_score_error)}" if result.games > 1 else ""),
            *(share_between(*one) for one in (result.reach[tile] for tile in REACH_TILES)),
            number(result.moves_per_cpu_s),
            number(result.moves_per_s),
        )
    return made


@command.subcommand("tape2048 player quantise runs/mine/network.safetensors mine.ntuple --step 16")
@click.argument("source", callback=_network)
@click.argument("target", type=PATH)
@click.option("--step", type=float, default=16.0, show_default=True, help="Points of score per int16 step.")
@force_option("TARGET")
@json_option()
def quantise(*, source: str, target: Path, step: float, force: bool, as_json: bool) -> None:
    """Write a float32 network as int16, compressed. `player eval` of both shows the loss."""
    import numpy as np

    from tape2048.errors import NameTakenError
    from tape2048.io.reading import reading
    from tape2048.ntuple.files import load_network, save_network

    with reading(target):
        exists = target.exists()
    if exists and not force:
        raise NameTakenError("the file exists; nothing was replaced", path=target, hint="--force replaces it")
    network = load_network(source).quantised(step)
    written = save_network(network, target)
    largest = float(network.scales.max())
    coarser = f" (up to {largest:.3g} for tables with a wide range)" if largest > np.float32(step) else ""
    print_result(
        {"path": str(target), "bytes": written, "step": step, "step_max": largest},
        lambda: [f"{target}: {size(written)}, int16 in steps of {step:g}{coarser}"],
        as_json=as_json,
    )
