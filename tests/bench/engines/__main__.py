"""Measure the players here, and public engines beside them; for ``docs/explanation/strength.md``.

::

    python -m tests.bench.engines [--games 100] [--cpu-minutes 30] [--share 1] [--skip NAME] [--no-page]

An engine plays if its program is in ``.peers/engines``: an adapter of this directory, compiled with the
engine's own sources.

Each player plays until it has finished the games or used the processor time. Unfinished games count for its
speed, and not for its scores. A slow engine plays one game at a time. Its first game does not count for its
speed, because the engine may compute tables in it.

A killed run continues with the same command. What is skipped or not built is named below the table. Then run
``make generate``, which writes the table of the players here.
"""

import argparse
import contextlib
import itertools
import json
import math
import os
import shlex
import shutil
import subprocess
import sys
from typing import Any, NamedTuple

import msgspec
import numpy as np
from tests.bench.figures import CHECKOUT, cpu_name
from tests.bench.peers import CACHE
from tests.pages import STRENGTHS, table, with_parts

from tape2048 import Corpus
from tape2048_recorder.evaluation.arena_file import ArenaFile
from tape2048_recorder.evaluation.evaluated_games import Played
from tape2048_recorder.evaluation.paired_games import play
from tape2048_recorder.players.engine import EnginePlayer
from tape2048_tools.commands.players.contests import make_players

PAGE = CHECKOUT / "docs/explanation/strength.md"

#: The engines run here. One of them keeps its tables in the working directory.
DIRECTORY = CACHE / "engines"


class Entry(NamedTuple):
    """A player of the comparison: its text for the arena, and its name in the table."""

    player: str
    name: str
    file: str = ""  # that has to exist
    memory: str = "-"  # of a player in this process
    most: int = 10**9  # games
    is_slow: bool = False  # it plays one game at a time


def engine(command: str, name: str, file: str, *, is_slow: bool = False) -> Entry:
    """Return an engine of this directory."""
    return Entry(f"exec:start_timeout_s=600,move_timeout_s=600,./{command}", name, file, is_slow=is_slow)


_STRONG = "805 MB"  # of the network's table
_TDL = "moporgic-TDL2048/4x6patt.w"  # ./2048 -n 4x6patt -t 100 -o 4x6patt.w
_ZIAP = "ziap-2048-tdl/nw4x6/weights.bin"  # ./2048 train -e 20 -a 1.0 -l 0.5 -c -o
_WEAK = "aszczepanski-2048/data/2048_strategies/2048_a_weak_player.bin.txt"

ENTRIES = [
    Entry("ntuple:look=16,look_margin=0", "`ntuple:look=16,look_margin=0`: 2-ply", "", _STRONG),
    Entry("ntuple", "`ntuple` (default)", "", _STRONG),
    Entry("ntuple:look=0", "`ntuple:look=0`: 1-ply", "", _STRONG),
    Entry("expectimax", "`expectimax`"),
    engine("macroxue -d 3", "macroxue/2048-ai, depth 3, small tables", "macroxue", is_slow=True),
    engine("nneonneo", "nneonneo/2048-ai, its own depth", "nneonneo", is_slow=True),
    engine(f"moporgic -n 4x6patt -i {_TDL} -e 1 -d 2p", "moporgic/TDL2048, 2-ply, 100,000 games", _TDL),
    engine(f"moporgic -n 4x6patt -i {_TDL} -e 1", "moporgic/TDL2048, 1-ply, 100,000 games", _TDL),
    engine(f"ziap {_ZIAP} 0", "ziap/2048-tdl, 1-ply, 20,000 games", _ZIAP),
    engine(f"aszczepanski {_WEAK} 1", "aszczepanski/2048, 1-ply, its weak strategy", _WEAK),
]  # fmt: skip

#: The players of the first table, and the games of each.
PLAYERS = [
    Entry("random", "`random`: random legal moves", most=100_000),
    Entry("greedy", "`greedy`: best immediate merge", most=100_000),
    Entry("expectimax", "`expectimax`: 2-ply, hand-made features", most=1000),
    Entry("ntuple:weights=fast,look=0", "1-ply, smallest network", most=2000),
    Entry("ntuple:weights=small,look=0", "1-ply, small network", most=2000),
    Entry("ntuple:weights=small", "2-ply at critical moves, small network", most=2000),
    Entry("ntuple:look=0", "1-ply", most=2000),
    Entry("ntuple", "`ntuple` (default): 2-ply at critical moves", most=2000),
    Entry("ntuple:look=16,look_margin=0", "2-ply", most=2000),
    *(
        Entry(
            f"ntuple:look=16/{below},look_margin=0",
            f"2-ply, 3-ply with fewer than {below} empty cells",
            most=games,
        )
        for below, games in ((2, 1000), (4, 300), (6, 300))
    ),
    Entry(
        "ntuple:look=16/0/0/0,look_margin=0,look_chance=0.01,look_unsure=500",
        "2-ply, deeper where unsure",
        most=200,
    ),
]

_TILES = ("16384", "32768", "65536")


class _Spent(Exception):  # noqa: N818 - it never leaves this module
    """The player has used its processor time."""


def arena(entry: Entry, games: int, file: str = "arena.jsonl", minutes: float = math.inf) -> dict[str, Any]:
    """Return a player's facts from games on one thread, which are kept for the next run.

    The file is of ``tape2048 arena``. A line without moves has the processor time of a process of an engine
    until its first answer.
    """
    count, path = min(games, entry.most), DIRECTORY / file
    contestant = make_players([entry.player])[entry.player]
    engine = getattr(contestant.player, "player", None)
    with ArenaFile(path, 1, None) as kept, contextlib.suppress(_Spent):
        results = kept.results(entry.player, contestant.sha256, count)
        before_s = results.cpu_s

        def keep(part: Played) -> None:
            if part.moves:
                kept.add(entry.player, contestant.sha256, part)

        def check(*_: object) -> None:
            used_s = engine.used.cpu_s + before_s if isinstance(engine, EnginePlayer) else results.cpu_s
            if used_s > 60 * minutes:
                raise _Spent

        check()
        if isinstance(engine, EnginePlayer) and len(results.missing):
            engine.batch = 1 if entry.is_slow else engine.batch
            kept.add(entry.player, contestant.sha256, _until_first_answer(engine))
        play(contestant.player, games=count, seed=1, threads=1, progress=check, results=results, take=keep)
    sys.stderr.writelines(f"{why}\n" for why in results.forfeits.values())
    found = msgspec.to_builtins(results.strength(), str_keys=True) if results.played.any() else {"games": 0}
    lines = [
        one for one in map(json.loads, path.read_text().splitlines()[1:]) if one["player"] == entry.player
    ]
    return {**found, "peak_bytes": results.peak_bytes, **_times(lines, first_apart=entry.is_slow)}


def _until_first_answer(engine: EnginePlayer) -> Played:
    none, board = np.empty(0, np.uint64), np.array([0x1200 << 48], np.uint64)
    engine(board, np.array([0b1010], np.uint8), np.array([[1, 2, *[0] * 14]], np.uint8))
    return Played(none, none, none.astype(np.uint8), 0, engine._begun.cpu_s + engine.used.cpu_s)


def _times(lines: list[dict[str, Any]], *, first_apart: bool) -> dict[str, Any]:
    """Return the speed, the time until the first answer, and that from there to the end of the first game."""
    started = [after for before, after in itertools.pairwise(lines) if after["moves"] and not before["moves"]]
    later = [one for one in lines if one["moves"] and not (first_apart and one in started)]
    timed = later or started  # if a slow engine finished no game
    return {
        "moves_per_cpu_s": sum(one["moves"] for one in timed) / sum(one["cpu_s"] for one in timed),
        "setup_s": next((one["cpu_s"] for one in lines if not one["moves"]), None),
        "first_game_s": started[0]["cpu_s"] if first_apart and started[0]["numbers"] else None,
    }


def row(entry: Entry, facts: dict[str, Any]) -> list[str]:
    """Return a row of the table."""
    shares = score = "-"
    if facts["games"]:
        shares = " / ".join(f"{facts['reach'][tile][0]:.0%}" for tile in _TILES)
        score = f"{facts['mean_score']:,.0f}"
    if facts["games"] > 1:
        score += f" ± {facts['mean_score_error']:,.0f}"
    memory = f"{facts['peak_bytes'] / 1e6:,.0f} MB" if facts["peak_bytes"] else entry.memory
    times = ["-" if facts[name] is None else f"{facts[name]:,.1f} s" for name in ("setup_s", "first_game_s")]
    speed = f"{facts['moves_per_cpu_s']:,.0f}"
    return [entry.name, str(facts["games"]), score, shares, speed, *times, memory]


def lengths(entry: Entry, games: int) -> dict[str, Any]:
    """Return the points per move of recorded games, and the mean number of moves of those with a 32768."""
    out = DIRECTORY / "lengths"
    shutil.rmtree(out, ignore_errors=True)
    command = [sys.executable, "-m", "tape2048_tools.cli", "record", "--player", entry.player, "--seed", "2"]
    command += ["--max-games", str(games), "--max-steps", "off", "--storage", "tape", "--out", str(out)]
    subprocess.run(command, check=True)
    runs = Corpus.open(out).runs
    won = runs["steps"][runs["highest_tile"] >= 32768]
    return {
        "points_per_move": round(float(runs["score"].sum() / runs["steps"].sum()), 2),
        "moves_32768": round(float(won.mean())) if len(won) else None,
    }


def players(share: float) -> None:
    """Write the lines of the players here: speeds from this share of their games, and scores if from all."""
    known = {one["player"]: one for one in map(json.loads, STRENGTHS.read_text().splitlines())}
    for entry in PLAYERS:
        facts = arena(entry, max(2, int(entry.most * share)), "players.jsonl")
        name = entry.name if entry.name.startswith("`") else f"`{entry.player}`: {entry.name}"
        one = known.setdefault(entry.player, {"player": entry.player, "name": name, "games": 0})
        one["moves_per_cpu_s"] = float(f"{facts['moves_per_cpu_s']:.2g}")
        if facts["games"] >= one["games"]:
            one["games"], one["mean_score"] = facts["games"], round(facts["mean_score"])
            one["mean_score_error"] = round(facts["mean_score_error"])
            one["reach"] = {tile: facts["reach"][tile][0] for tile in ("8192", "16384", "32768")}
        if one["reach"]["32768"]:
            one |= lengths(entry, entry.most // 5)
        STRENGTHS.write_text("".join(f"{json.dumps(one)}\n" for one in known.values()))


def main() -> None:
    """Play, print and write the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--games", type=int, default=100)
    parser.add_argument("--cpu-minutes", type=float, default=30, help="processor time of each player")
    parser.add_argument("--results", default="arena.jsonl", help="file of results in .peers/engines")
    parser.add_argument("--share", type=float, default=1, help="share of the games of the first table")
    parser.add_argument("--skip", action="append", default=[], help="players with this in their name")
    parser.add_argument("--no-page", action="store_true", help="leave the page in docs/ as it is")
    args = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    os.chdir(DIRECTORY)
    os.sched_setaffinity(0, {max(cores := os.sched_getaffinity(0))})  # an engine shares a core with the arena
    chosen = [each for each in ENTRIES if not any(name in each.name for name in args.skip)]
    there = [each for each in chosen if not each.file or (DIRECTORY / each.file).exists()]
    rows = [(each, arena(each, args.games, args.results, args.cpu_minutes)) for each in there]
    os.sched_setaffinity(0, cores)
    rows.sort(key=lambda each: (-len(f"{each[1]['moves_per_cpu_s']:.0f}"), -each[1].get("mean_score", 0)))
    heads = ["player", "games", "mean score", " / ".join(_TILES), "moves/CPU s", "set-up", "first game"]
    missing = [each.name for each in ENTRIES if each not in there]
    text = table([*heads, "memory"], (row(*each) for each in rows))
    command = shlex.join(["python", "-m", "tests.bench.engines", *sys.argv[1:]])
    text += f"\n`{command}` made this table on {cpu_name()}, seed 1.\n"
    text += f"Skipped or not built: {'; '.join(missing)}.\n" if missing else ""
    sys.stdout.write(text)
    if not args.no_page:
        PAGE.write_text(with_parts(PAGE.read_text(), {"engines": lambda: text}))
        players(args.share)


if __name__ == "__main__":
    main()
