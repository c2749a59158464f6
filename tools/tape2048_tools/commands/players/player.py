"""``tape2048 player``: evaluate, compare and analyse players; show, calibrate and shrink networks."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec
import numpy as np

from tape2048.base.text import counted
from tape2048.errors import ConfigError
from tape2048.files.durable import check_new_file
from tape2048.ntuple.calibrated_network import CALIBRATIONS, calibrations_of
from tape2048.ntuple.calibration import GAMES_MIN, SIZES
from tape2048.ntuple.network import (
    SHIPPED,
    TILES,
    StoredNetwork,
    file_facts,
    load_network,
    map_network,
    network_path,
    save_network,
    tuple_text,
)
from tape2048.ntuple.tdl2048 import split_name
from tape2048.players import player_text
from tape2048_recorder.players.options import check_player, make_player
from tape2048_tools.commands.players.contests import (
    GAMES,
    PLAYING,
    SEED,
    THREADS,
    difference_words,
    make_players,
    play_each,
    strength_table,
)
from tape2048_tools.options.recorder_options import complete_player, parse_player
from tape2048_tools.progress.panel import progress_bar
from tape2048_tools.terminal.click_extras import (
    EXISTING,
    force_option,
    int_option,
    json_option,
    new_group,
    out_option,
    refuse_missing,
)
from tape2048_tools.terminal.display import duration, number, share, share_between, size
from tape2048_tools.terminal.output import columns, complain, print_result, table

if TYPE_CHECKING:
    from rich.table import Table

    from tape2048.ntuple.calibration import Calibration
    from tape2048_recorder.evaluation.positions import Falls


@new_group(
    "tape2048 player info strong",
    "tape2048 player eval ntuple:look=0 ntuple --games 1000",
    "tape2048 player match ntuple ntuple:look=16 --games 1000",
    "tape2048 player quantise runs/mine/network.safetensors --out mine.ntuple --step 16",
)
def command() -> None:
    """Evaluate, compare and analyse players; show, calibrate, quantise and prune their networks."""


def _network(_ctx: click.Context, _param: click.Parameter, value: str) -> str:
    if value not in SHIPPED:
        tdl2048 = split_name(value)
        hint = f"Give a file, a shipped network ({', '.join(SHIPPED)}), or tdl2048:FILE."
        refuse_missing(Path(tdl2048.path if tdl2048 else value), hint)
    return value


@command.subcommand("tape2048 player info strong", "tape2048 player info mine.ntuple --json")
@click.argument("weights", callback=_network)
@json_option()
def info(*, weights: str, as_json: bool) -> None:
    """Show the contents of a network file.

    WEIGHTS is a file, a shipped network (strong, small, fast), or tdl2048:FILE, a weight file of TDL2048.
    """
    network = StoredNetwork.of(map_network(weights), weights)
    layout = network.layout
    bytes_ = layout.entries * network.dtype.itemsize
    used = sum(int(np.count_nonzero(table)) for tables in network.stages() for table in tables)
    known = calibrations_of(weights)
    facts: dict[str, Any] = {
        "weights": weights,
        **file_facts(weights),
        "tuples": [tuple_text(cells) for cells in layout.tuples],
        "stages": list(layout.stages),
        "entries": layout.entries,
        "entries_used": used,
        "dtype": str(network.dtype),
        "scales": network.scales.tolist(),
        "calibrations": [
            {"player": one.player, "player_sha256": one.player_sha256, "games": one.games, "lost": one.lost}
            for one in known
        ],
        "facts": {name: fact for name, fact in network.facts.items() if name != CALIBRATIONS},
    }
    training = network.facts.get("training")
    settings = training.items() if isinstance(training, dict) else ()
    shown = {
        "network": weights,
        "file": f"{size(facts['bytes'])}, SHA-256 {facts['sha256'][:16]}...",
        "tuples": " ".join(facts["tuples"]),
        "stages": "from the start" + "".join(f", from {tile}" for tile in layout.stages),
        "tables": f"{number(layout.entries)} entries of {facts['dtype']}, "
        f"{size(bytes_)} in memory, {share(used / layout.entries)} of them used",
        "trained": _trained(network.facts),
        "calibrated": "; ".join(dict.fromkeys(_calibrated(one) for one in known)) or "no",
        "settings": ", ".join(f"{name}={value}" for name, value in settings) or "-",
    }
    print_result(facts, lambda: [columns(shown)], as_json=as_json)


def _calibrated(one: Calibration) -> str:
    name, args = parse_player(one.player)
    normal = check_player(name, {})
    brief = player_text({"player": name, "player_args": {k: v for k, v in args.items() if normal[k] != v}})
    return f"for {brief}, by {number(one.games)} games"


def _trained(facts: dict[str, Any]) -> str:
    found: list[Any] = [facts.get(name) for name in ("moves", "games", "elapsed_s")]
    if not all(isinstance(each, int | float) for each in found):
        return "-"
    moves, games, seconds = found
    return f"{number(moves)} moves, {number(games)} game{'' if games == 1 else 's'}, {duration(seconds)}"


@command.subcommand(
    "tape2048 player eval ntuple",
    "tape2048 player eval ntuple:look=0 ntuple:look=16 --games 5000 --json",
    "tape2048 player eval ntuple:weights=runs/mine/network.ntuple",
    "tape2048 player eval ntuple --from starts.npy --games 1000",
    name="eval",
)
@click.argument("players", nargs=-1, required=True, shell_complete=complete_player)
@PLAYING
def evaluate_players(*, players: tuple[str, ...], as_json: bool, **playing: Any) -> None:
    """Measure players: mean scores, reach rates, speed.

    All PLAYERS play the same games. Scores and reach rates have 95% intervals. Write a player as for
    `record`: NAME or NAME:key=value,key=value.
    """
    facts, results = play_each(make_players(players), **playing)
    found = {text: each.strength() for text, each in results.items()}
    document = {**facts, "players": msgspec.to_builtins(found, str_keys=True)}
    print_result(document, lambda: [strength_table(found.items())], as_json=as_json)


@command.subcommand(
    "tape2048 player match ntuple ntuple:look=16 --games 2000",
    "tape2048 player match ntuple:weights=runs/mine/network.ntuple ntuple --from starts.npy --json",
    name="match",
)
@click.argument("a", shell_complete=complete_player)
@click.argument("b", shell_complete=complete_player)
@PLAYING
def match_players(*, a: str, b: str, as_json: bool, **playing: Any) -> None:
    """Compare two players in the same games.

    Write A and B as for `record`. The result is the difference of their mean scores, with a 95% interval
    from the differences of games with the same seed. If the interval excludes 0, the players differ in
    strength.
    """
    facts, results = play_each(make_players((a, b)), **playing)
    found, strengths = results[a].minus(results[b]), [results[text].strength() for text in (a, b)]
    shown = {
        "difference": f"{difference_words(found)} points for the first",
        "ahead": f"the first in {share_between(*found.a_ahead)} of the games",
    }
    sides = {"a": strengths[0], "b": strengths[1], **msgspec.structs.asdict(found)}
    document = {**facts, "players": [a, b], **msgspec.to_builtins(sides, str_keys=True)}
    # A list of pairs, since a player may be matched with itself.
    pairs = [(a, strengths[0]), (b, strengths[1])]
    print_result(document, lambda: [strength_table(pairs), columns(shown)], as_json=as_json)


@command.subcommand(
    "tape2048 player starts selfplay --out starts.npy --tile 16384",
    "tape2048 player starts selfplay --out blunders.npy --rows-where 'loss > 1000 AND step > 500'",
    name="starts",
)
@click.argument("sessions", type=EXISTING)
@out_option("The new file, .npy or text.")
@int_option("--tile", "Take the first board of each game with this tile.  [default: 16384]", least=2)
@click.option(
    "--rows-where", metavar="SQL", help="Take the first board of each game that meets this condition."
)
@click.option("--where", metavar="SQL", help="Take boards only of games that meet this condition.")
@force_option("the file")
@json_option()
def collect_starts(
    *,
    sessions: Path,
    out: Path,
    tile: int | None,
    rows_where: str | None,
    where: str | None,
    force: bool,
    as_json: bool,
) -> None:
    """Write one board of each recorded game as a start board.

    Pass the file to --from of `record`, `arena`, `eval` or `match`. SESSIONS is a session, or a directory of
    sessions. The conditions are written as for `where` and `rows_where` in the SDK.
    """
    from tape2048_recorder.game.start_files import write_starts
    from tape2048_tools.sessions.start_boards import boards_of_sessions

    if tile is not None and rows_where is not None:
        raise click.UsageError("found --tile and --rows-where, expected only one of them")
    check_new_file(out, replace=force)
    if rows_where is None and (tile := tile or 16384) not in TILES:
        raise ConfigError(f"--tile: found {tile}, expected a power of 2 from {TILES[0]} to {TILES[-1]}")
    condition = rows_where or f"board_highest_tile >= {tile or 1}"
    boards = boards_of_sessions(sessions, where, condition)
    write_starts(out, boards, replace=force)
    with_what = f"with a {tile}" if tile else f"where {rows_where}"
    print_result(
        {"path": str(out), "boards": len(boards), "tile": tile, "rows_where": condition, "where": where},
        lambda: [f"{out}: {counted(len(boards), 'board')}, the first of each game {with_what}"],
        as_json=as_json,
    )


@command.subcommand(
    "tape2048 player analyse ntuple --games 200", "tape2048 player analyse selfplay --games 5000 --json"
)
@click.argument("source")
@int_option("--games", "Most games to analyse.", default=200, least=1)
@SEED
@THREADS
@click.option("--weights", help="Network that values the boards.  [default: the player's, or strong]")
@json_option()
def analyse(*, source: str, games: int, seed: int, threads: int, weights: str | None, as_json: bool) -> None:
    """Show where games are lost.

    SOURCE is a player, which plays the games, or a directory of sessions that hold all boards. A network
    values each board. Unlucky spawns and bad moves lower the value. The tables show the largest drop in each
    game after its highest tile appeared, as a share of the value. If the network has a calibration for the
    player, its values are the score that comes, and the drop is also in points.
    """
    from tape2048_recorder.evaluation.positions import analyse as find_falls, recorded_games
    from tape2048_recorder.replay.judging import Judge

    if Path(source).is_dir():
        played, facts = recorded_games(Path(source), games)
    else:
        from tape2048_recorder.evaluation.evaluated_games import play_games
        from tape2048_recorder.game.rng import game_seeds

        contestant = make_players([source])[source]
        player, args = contestant.player, dict(check_player(contestant.name, contestant.args))
        facts = {"player": contestant.name, "player_args": args, "player_sha256": contestant.sha256}
        seeds = game_seeds(seed, np.arange(games, dtype=np.uint64))
        with progress_bar(source) as progress:
            played = play_games(player, seeds, stride=1, threads=threads, progress=progress)
    if weights is None:
        judge, note = Judge.of_recorded(facts)
    else:
        judge, note = Judge.of_player("ntuple", {"weights": weights}, str(facts.get("player_sha256"))), None
    calibrated = judge.calibration is not None
    found = find_falls(played, judge.board_values, calibrated=calibrated)
    if note:
        complain(note)
    if not calibrated:
        complain(
            f"uncalibrated: {judge.weights} has no calibration for this player, so drops are only shares"
        )
    document = {
        "source": source,
        "weights": judge.weights,
        "calibrated": calibrated,
        "by_highest": msgspec.to_builtins(found, str_keys=True),
    }
    print_result(document, lambda: _falls_tables(found), as_json=as_json)


def _falls_tables(found: dict[int, Falls]) -> list[Table]:
    cells = range(max(max(falls.at_empty) for falls in found.values()) + 1)
    points = [">in points"] if all(falls.points is not None for falls in found.values()) else []
    heads = (">games", ">moves", ">largest drop", *points, ">moves left", ">empty at the end")
    all_of = table(">highest tile", *heads)
    by_empty = table(">empty cells at the largest drop", *(f">{count}" for count in cells))
    for tile, falls in found.items():
        drops = [share(falls.share), *([number(falls.points)] if points else [])]
        counts = number(falls.games), number(falls.moves), *drops, number(falls.moves_left)
        all_of.add_row(str(tile), *counts, f"{falls.last_empty:.1f}")
        by_empty.add_row(str(tile), *(share(falls.at_empty.get(count, 0) / falls.games) for count in cells))
    return [all_of, by_empty]


_MOVES = "up", "down", "left", "right"


@command.subcommand(
    "tape2048 player calibrate selfplay --out mine.ntuple",
    "tape2048 player calibrate selfplay --out mine.ntuple --positions 2000 --json",
)
@click.argument("sessions", type=EXISTING)
@out_option("The new file of the network.")
@int_option("--positions", "Positions to play on.", default=12_000, least=100)
@int_option("--rollouts", "Games from each move of a position.", default=64, least=2)
@SEED
@THREADS
@force_option("the file")
@json_option()
def calibrate(*, sessions: Path, out: Path, force: bool, as_json: bool, **how: int) -> None:
    """Write a network's file with what its values mean in games.

    SESSIONS is a session, or a directory of sessions, of one n-tuple player. Record at least 20,000 games.
    The calibration maps the network's values to the score that comes and the probability of the next tile, in
    the games of this player. For the losses of moves, both moves of some positions are played on. Other
    calibrations of the file are kept. `annotate`, `record --columns`, `view` and `report` use the file's
    calibration for the player that they judge.
    """
    from tape2048 import Corpus
    from tape2048_recorder.evaluation.calibrating import calibrate as calibrate_player, player_of

    check_new_file(out, replace=force)
    corpus = Corpus.open(sessions)
    weights = player_of(corpus)["player_args"]["weights"]
    with progress_bar("playing positions on") as progress:
        made = calibrate_player(corpus, progress=progress, **how)
    keys = {(one.values_of, one.player_sha256) for one in made}
    others = [one for one in calibrations_of(weights) if (one.values_of, one.player_sha256) not in keys]
    network = load_network(weights)
    facts = {**network.facts, CALIBRATIONS: msgspec.to_builtins([*made, *others])}
    written = save_network(dataclasses.replace(network, facts=facts), out)
    first = made[0]
    phases = sum(count > 0 for count in first.phase_games)
    shown = {
        "file": f"{out}, {size(written)}",
        "player": first.player,
        "games": number(first.games),
        "phases": f"{phases} with at least {GAMES_MIN} games",
        "lost to the judge": f"{number(first.lost)} points per game",
    }
    document = {"path": str(out), "bytes": written, "calibrations": msgspec.to_builtins(made)}
    print_result(document, lambda: [columns(shown), *_differences_table(first)], as_json=as_json)


def _differences_table(calibration: Calibration) -> list[Table]:
    if (found := calibration.differences) is None:
        return []
    shown = table("part of the game", *(f">loss of {number(each)}" for each in SIZES))
    for part, name in enumerate(("until 4096", "with an 8192", "with a 16384")):
        pairs = zip(found.real[part], found.errors[part], found.positions[part], strict=True)
        shown.add_row(name, *(f"{number(a)} ± {number(2 * b)}" if count else "-" for a, b, count in pairs))
    return [shown]


@command.subcommand(
    "tape2048 player play-on 0x1000001200353469 --player ntuple:weights=fast --games 300",
    "tape2048 player play-on '2 0 0 0 0 0 2 4 0 0 8 32 8 16 64 512' --json",
    name="play-on",
)
@click.argument("board")
@click.option("--player", "text", default="ntuple", show_default=True, shell_complete=complete_player,
              help="The player that plays on.")  # fmt: skip
@int_option("--games", "Games from each move.", default=300, least=2)
@SEED
@THREADS
@json_option()
def play_on_moves(*, board: str, text: str, games: int, seed: int, threads: int, as_json: bool) -> None:
    """Play whole games from each legal move of a board.

    BOARD is 16 hexadecimal digits, tiles or exponents, from the top left. This is the answer of rollouts: it
    needs no judge, and its interval shows what it is worth.
    """
    import time

    from tape2048.base.intervals import wilson
    from tape2048.game.board_text import parse_board
    from tape2048_recorder.evaluation.calibrating import play_moves_on

    try:
        packed = parse_board(board)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="BOARD") from error
    name, args = parse_player(text)
    player = make_player(name, check_player(name, args))
    begin = time.process_time()
    with progress_bar("playing on") as progress:
        found = play_moves_on(packed, player, games=games, seed=seed, threads=threads, progress=progress)
    cost = time.process_time() - begin
    tile = 2 << max(packed >> 4 * cell & 15 for cell in range(16))
    shown = table("move", ">score that came", f">reached {tile}")
    for one in sorted(found, key=lambda each: -each.score):
        interval = share_between(*wilson(one.reached, games))
        shown.add_row(_MOVES[one.move], f"{number(one.score)} ± {number(1.96 * one.error)}", interval)
    document = {
        "board": f"{packed:016x}", "player": text, "tile": tile, "seed": seed, "cpu_s": cost,
        "moves": msgspec.to_builtins(found),
    }  # fmt: skip
    print_result(
        document,
        lambda: [shown, f"{games} games from each move, {cost:.1f} s of processor time"],
        as_json=as_json,
    )


@command.subcommand(
    "tape2048 player quantise runs/mine/network.safetensors --out mine.ntuple --step 16",
    "tape2048 player quantise tdl2048:4x6patt.w --out 4x6patt.ntuple",
)
@click.argument("source", callback=_network)
@out_option("The new file.")
@click.option("--step", type=float, default=16.0, show_default=True, help="Points of score per int16 step.")
@force_option("the file")
@json_option()
def quantise(*, source: str, out: Path, step: float, force: bool, as_json: bool) -> None:
    """Write a float32 network as int16, compressed.

    SOURCE is a file, or tdl2048:FILE, a weight file of TDL2048. Run `player eval` with both networks to
    measure the loss of strength.
    """
    check_new_file(out, replace=force)
    network = load_network(source).quantised(step)
    written = save_network(network, out)
    largest = float(network.scales.max())
    coarser = f" (up to {largest:.3g} for tables with a wide range)" if largest > np.float32(step) else ""
    print_result(
        {"path": str(out), "bytes": written, "step": step, "step_max": largest},
        lambda: [f"{out}: {size(written)}, int16 in steps of {step:g}{coarser}"],
        as_json=as_json,
    )


@command.subcommand(
    "tape2048 player prune runs/mine/network.ntuple --out mine.ntuple --max-mb 8", name="prune"
)
@click.argument("source", callback=_network)
@out_option("The new file.")
@click.option(
    "--max-mb",
    type=click.FloatRange(min=0.01),
    required=True,
    help="Largest size of the file in MB, 1 million bytes.",
)
@int_option(
    "--games",
    f"Play games to count look-ups.  [default: use the training's counts; without them, {GAMES} games]",
    least=2,
)
@SEED
@THREADS
@force_option("the file")
@json_option()
def prune(
    *, source: str, out: Path, max_mb: float, games: int | None, force: bool, as_json: bool, **playing: int
) -> None:
    """Round a network's entries until its file is small enough.

    Entries that are used less often are rounded more coarsely. The uses are counted in the network's
    training, if its checkpoint is in the directory of SOURCE. Otherwise, the network plays games, half of
    them 1-ply and half 2-ply. SOURCE must be int16 (`player quantise`). Run `player match` with both networks
    to measure the loss of strength.
    """
    from tape2048_recorder.ntuple_training.pruning import check_prunable, count_lookups, pruned
    from tape2048_recorder.ntuple_training.trainer import training_counts

    check_new_file(out, replace=force)
    network = load_network(source)
    check_prunable(network)
    counts = training_counts(network, network_path(source)) if games is None else None
    counted_in = "games" if counts is None else "training"
    if counts is None:
        with progress_bar("counting look-ups") as progress:
            counts = count_lookups(network, games=games or GAMES, **playing, progress=progress)
    with progress_bar("compressing") as progress:
        found = pruned(network, counts, round(max_mb * 1e6), progress)
    written = save_network(found, out)
    used = [int((one.table != 0).sum()) for one in (network, found)]
    kept = f"{number(used[1])} entries used, of {number(used[0])}"
    print_result(
        {
            "path": str(out),
            "bytes": written,
            "entries_used": used[1],
            "entries_used_before": used[0],
            "counted_in": counted_in,
        },
        lambda: [f"{out}: {size(written)}, {kept}; uses counted in {counted_in}"],
        as_json=as_json,
    )
