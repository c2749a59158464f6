"""Search depths by phase of the game: the rate of 32768 against processor time.

::

    python -m tests.bench.depths [--games 2000]

The players take turns of 40 games with the same seeds, so that speeds and results are compared alike. The
games are kept, so that a killed run continues. Then run ``make generate``, which writes the table and the
chart of ``docs/explanation/strength.md``.
"""

import argparse
import json
import time
from typing import Any

import numpy as np
from tests.bench.peers import CACHE
from tests.pages import DEPTHS

from tape2048_recorder.evaluation.evaluated_games import make_contestant
from tape2048_recorder.game.game_loop import play_unrecorded
from tape2048_recorder.game.rng import game_seeds
from tape2048_recorder.players.options import check_player

#: ``look``, and ``look_margin`` if it is not the default.
SETTINGS = (
    "3", "0", "0+4:3", "0+4:16 3200", "0+4:16 6400", "0+3:3+4:16", "0+3:3+4:16 3200", "0+3:3+4:16 6400",
    "2+4:16 6400", "3 6400", "3+4:16", "3+4:16 6400", "0+3:3+4:16/2 6400", "3+4:16/2 6400", "16 6400", "16 0",
    "16+4:16/2 0", "16/2 0",
)  # fmt: skip
_TURN = 40  # games


def player_of(setting: str) -> Any:
    """Return the player of a setting, with its tables in memory."""
    look, _, margin = setting.partition(" ")
    args = {"look": look} | ({"look_margin": float(margin)} if margin else {})
    player = make_contestant("ntuple", check_player("ntuple", args))
    turn(player, 2**32, 1)
    return player


def turn(player: Any, first: int, games: int) -> dict[str, Any]:
    """Play games one by one; return their scores, highest exponents and moves, and the processor time."""
    seeds = game_seeds(1, np.arange(first, first + games, dtype=np.uint64))
    scores, highest, steps = np.empty(games, np.uint32), np.empty(games, np.uint8), []
    none = np.empty(0, np.uint64)
    begin = time.process_time()
    for i in range(games):
        game = slice(i, i + 1)
        steps.append(int(play_unrecorded(player, none, seeds[game], scores[game], highest[game])))
    spent = time.process_time() - begin
    return {"cpu": spent, "steps": steps, "scores": scores.tolist(), "highest": highest.tolist()}


def summary(setting: str, turns: list[dict[str, Any]], speeds: list[float]) -> dict[str, Any]:
    """Return the line of a setting; its speed is relative to the default, in the same turns."""
    scores, highest, steps = (
        np.array([each for turn in turns for each in turn[key]]) for key in ("scores", "highest", "steps")
    )
    won, games = highest >= 15, len(scores)
    error = 1.96 / np.sqrt(games)
    return {
        "look": setting.partition(" ")[0], "look_margin": float(setting.partition(" ")[2] or 1600),
        "games": games,
        "mean_score": round(scores.mean()), "mean_score_error": round(error * scores.std(ddof=1)),
        "rate": round(won.mean(), 4), "rate_error": round(error * won.std(ddof=1), 4),
        "rows": round(steps[won].sum() / steps.sum(), 4), "moves": round(steps.mean()),
        "speed": round(float(np.median(speeds)), 3),
    }  # fmt: skip


def main() -> None:
    """Play, and write the lines of all settings."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--games", type=int, default=2000)
    games = parser.parse_args().games
    kept = CACHE / "depths.jsonl"
    kept.parent.mkdir(parents=True, exist_ok=True)
    kept.touch()
    played: dict[str, list[dict[str, Any]]] = {setting: [] for setting in SETTINGS}
    for line in kept.read_text().splitlines():
        one = json.loads(line)
        played.get(one["setting"], []).append(one)
    made: dict[str, Any] = {}
    for first in range(0, games, _TURN):
        for setting, turns in played.items():
            if len(turns) * _TURN <= first:
                made[setting] = made.get(setting) or player_of(setting)
                turns.append({"setting": setting, **turn(made[setting], first, _TURN)})
                with kept.open("a") as file:
                    file.write(f"{json.dumps(turns[-1])}\n")
    speeds = {setting: [sum(one["steps"]) / one["cpu"] for one in turns] for setting, turns in played.items()}
    lines = [
        summary(setting, turns, np.divide(speeds[setting], speeds[SETTINGS[0]]).tolist())
        for setting, turns in played.items()
    ]
    DEPTHS.write_text("".join(f"{json.dumps(one)}\n" for one in lines))


if __name__ == "__main__":
    main()
